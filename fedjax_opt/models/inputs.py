"""What comes in at a model's door: images of bytes or numbers, with or without a channel axis."""

from typing import Any

import jax
import jax.numpy as jnp


def as_numbers(x: Any) -> jax.Array:
    """Bytes as float32 from 0 to 1, floating-point numbers as they are, nothing else."""
    x = jnp.asarray(x)
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / 255
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x must be uint8 (0 to 255) or floating point, got {x.dtype}.")
    return x


def as_images(x: Any) -> jax.Array:
    """Images `[B, height, width, channels]` of numbers, from those or from `[B, height, width]`."""
    x = as_numbers(x)
    if x.ndim not in (3, 4):
        raise ValueError(
            "x must be images [B, height, width] or [B, height, width, channels], got shape"
            f" {list(x.shape)}."
        )
    return x[..., None] if x.ndim == 3 else x


def as_features(x: Any) -> jax.Array:
    """Vectors `[B, features]` of numbers, from inputs of any shape."""
    x = as_numbers(x)
    return x.reshape(x.shape[0], -1)


def as_ids(x: Any, axes: str) -> jax.Array:
    """Places in a vocabulary, `[B, L]`, as int32."""
    x = jnp.asarray(x)
    if x.ndim != 2 or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f"x must be integers {axes}, got {x.dtype}{list(x.shape)}.")
    return x.astype(jnp.int32)
