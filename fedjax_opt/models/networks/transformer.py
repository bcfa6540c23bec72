"""The vision transformer.

Dosovitskiy et al., An image is worth 16x16 words: transformers for image recognition at scale, 2021.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedjax_opt.models.inputs import as_images


class EncoderBlock(nn.Module):
    """Attention, then two layers with GELU, each normalised before and added to its input."""

    heads: int
    mlp: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.LayerNorm(epsilon=1e-6)(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads)(y)
        y = nn.gelu(nn.Dense(self.mlp)(nn.LayerNorm(epsilon=1e-6)(x)), approximate=False)
        return x + nn.Dense(x.shape[-1])(y)


class VisionTransformer(nn.Module):
    """Square patches as tokens beside a class token, whose last state is classified."""

    num_classes: int
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072

    @nn.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        x = as_images(x)
        batch, height, breadth, channels = x.shape
        size = self.patch
        if height % size or breadth % size:
            raise ValueError(
                f"x must be images whose sides are multiples of {size}, got {height} x {breadth}."
            )
        x = x.reshape(batch, height // size, size, breadth // size, size, channels)
        x = x.swapaxes(2, 3).reshape(batch, -1, size * size * channels)
        x = nn.Dense(self.width)(x)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, self.width), jnp.float32)
        x = jnp.concatenate([jnp.broadcast_to(token, (batch, 1, self.width)), x], axis=1)
        x = x + self.param(
            "positions", nn.initializers.normal(0.02), (1, *x.shape[1:]), jnp.float32
        )
        for _ in range(self.depth):
            x = EncoderBlock(self.heads, self.mlp)(x)
        x = nn.LayerNorm(epsilon=1e-6)(x)[:, 0]
        return nn.Dense(self.num_classes)(x), x
