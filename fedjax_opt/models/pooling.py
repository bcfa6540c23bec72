"""Pooling for compiled loops on CPUs, where XLA's reductions over windows are slow: slices and sums."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_opt.models.windows import pad, windows


def max_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """The maximum over windows, without the windowed reduction that is slow inside compiled loops.

    Takes the place of `flax.linen.max_pool`, also in its gradient: of several inputs that are the
    maximum of a window, the first has it all.

    Args:
      inputs: `[..., spatial..., features]`.
      window_shape: the size of a window along each spatial axis.
      strides: the distance between windows along each spatial axis; 1 unless given, as in Flax.
      padding: 'SAME', 'VALID', or (before, after) for each spatial axis. Padding is never a maximum.

    Returns:
      `[..., windows..., features]`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> x = jnp.arange(16.0).reshape(1, 4, 4, 1)
      >>> fo.models.max_pool(x, (2, 2), strides=(2, 2))[0, :, :, 0].tolist()
      [[5.0, 7.0], [13.0, 15.0]]
    """
    lowest = -jnp.inf if jnp.issubdtype(inputs.dtype, jnp.floating) else jnp.iinfo(inputs.dtype).min
    return _pool(inputs, window_shape, strides, padding, lowest, _largest, _larger)


def avg_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
    count_include_pad: bool = True,
) -> jax.Array:
    """The mean over windows, without the windowed reduction that is slow inside compiled loops.

    Takes the place of `flax.linen.avg_pool`.

    Args:
      inputs: `[..., spatial..., features]`.
      window_shape: the size of a window along each spatial axis.
      strides: the distance between windows along each spatial axis; 1 unless given, as in Flax.
      padding: 'SAME', 'VALID', or (before, after) for each spatial axis.
      count_include_pad: whether padding counts as zeros in the mean, or not at all.

    Returns:
      `[..., windows..., features]`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> x = jnp.arange(16.0).reshape(1, 4, 4, 1)
      >>> fo.models.avg_pool(x, (2, 2), strides=(2, 2))[0, :, :, 0].tolist()
      [[2.5, 4.5], [10.5, 12.5]]
    """
    total = _pool(inputs, window_shape, strides, padding, 0, jnp.sum, jnp.add)
    if count_include_pad:
        return total / math.prod(window_shape)
    ones = jnp.ones_like(inputs)
    return total / _pool(ones, window_shape, strides, padding, 0, jnp.sum, jnp.add)


def _pool(x, window, strides, padding, fill, reduce, combine):
    axes = len(window) if np.ndim(window) == 1 else 0
    strides = (1,) * axes if strides is None else strides
    if not 0 < axes < x.ndim or np.shape(strides) != (axes,) or min(*window, *strides) < 1:
        raise ValueError(
            f"window_shape and strides must have one positive entry per spatial axis of inputs"
            f" [..., spatial..., features], got {window!r} and {strides!r} for shape"
            f" {list(x.shape)}."
        )
    shape = x.shape
    flat = x.reshape(math.prod(shape[: -axes - 1]), *shape[-axes - 1 :])
    flat = pad(flat, fill, window, strides, padding, (1,) * axes)
    outputs = tuple(
        (size - width) // stride + 1
        for size, width, stride in zip(flat.shape[1:-1], window, strides, strict=True)
    )
    if min(outputs) < 1:
        raise ValueError(
            f"window_shape must fit into the padded inputs, got {tuple(window)} for shape {list(shape)}."
        )
    if tuple(window) == tuple(strides):
        pooled = _reduce_blocks(flat, strides, outputs, reduce)
    else:
        parts = windows(flat, window, outputs, strides, (1,) * axes)
        pooled = functools.reduce(combine, parts)
    return pooled.reshape(*shape[: -axes - 1], *outputs, shape[-1])


def _reduce_blocks(x, block, outputs, reduce):
    """Windows side by side: one axis after the other, split into (windows, block) and reduced.

    The last axis first, so that the first of equal maxima is the first in the order of memory.
    """
    for axis in reversed(range(1, x.ndim - 1)):
        size, count = block[axis - 1], outputs[axis - 1]
        x = lax.slice_in_dim(x, 0, count * size, axis=axis)
        x = reduce(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis=axis + 1)
    return x


def _largest(x, axis):
    parts = [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]
    return functools.reduce(_larger, parts)


@jax.custom_jvp
def _larger(first, second):
    return jnp.maximum(first, second)


@_larger.defjvp
def _larger_jvp(primals, tangents):
    # JAX's own derivative divides the gradient among equals, which takes longer than to choose.
    first, second = primals
    return _larger(first, second), jnp.where(first >= second, *tangents)
