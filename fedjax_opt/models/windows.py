"""What convolutions and pools see of their inputs `[B, spatial..., features]`: padding, and slices."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def windows(
    x: jax.Array,
    kernel: Sequence[int],
    outputs: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> list[jax.Array]:
    """For each offset within the kernel, what it meets at all positions: `[B, outputs..., features]`."""
    found = []
    for offset in itertools.product(*map(range, kernel)):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [
            first + (count - 1) * stride + 1
            for first, count, stride in zip(start, outputs, strides, strict=True)
        ]
        found.append(
            lax.slice(
                x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *map(int, strides), 1)
            )
        )
    return found


def pad(
    x: jax.Array,
    fill: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> jax.Array:
    """The input with `fill` around it, as much as the padding says, given or by name."""
    if isinstance(padding, str):
        reach = [(size - 1) * d + 1 for size, d in zip(kernel, dilation, strict=True)]
        padding = lax.padtype_to_pads(x.shape[1:-1], reach, strides, padding)
    low_high = [(0, 0), *padding, (0, 0)]
    if not any(map(any, low_high)):
        return x
    return lax.pad(x, jnp.asarray(fill, x.dtype), [(low, high, 0) for low, high in low_high])
