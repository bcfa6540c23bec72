"""Residual networks for small images, with group normalisation.

He et al., Deep residual learning for image recognition, 2016. Wu and He, Group normalization, 2018.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedjax_opt.models.convolution import patch_conv
from fedjax_opt.models.inputs import as_images


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is padded or projected where the shape changes."""

    features: int
    stride: int
    groups: int
    project: bool
    conv: Callable[..., Any]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def convolution(x, size, stride):
            # Padded on both sides, as the published models are: 'SAME' would pad an even input on one.
            x = nn.Conv(
                self.features,
                (size, size),
                (stride, stride),
                padding=size // 2,
                use_bias=False,
                conv_general_dilated=self.conv,
            )(x)
            return nn.GroupNorm(self.groups)(x)

        y = nn.relu(convolution(x, 3, self.stride))
        y = convolution(y, 3, 1)
        if x.shape != y.shape:
            if self.project:
                x = convolution(x, 1, self.stride)
            else:
                extra = self.features - x.shape[-1]
                x = x[:, :: self.stride, :: self.stride]
                x = jnp.pad(x, [(0, 0)] * 3 + [(extra // 2, extra - extra // 2)])
        return nn.relu(x + y)


class ResNet(nn.Module):
    """A 3x3 convolution, stages of blocks that halve the image from the second on, the mean, a layer."""

    num_classes: int
    stages: tuple[tuple[int, int], ...]
    groups: int = 2
    project: bool = True
    conv: Callable[..., Any] = patch_conv

    @nn.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        x = as_images(x)
        x = nn.Conv(self.stages[0][0], (3, 3), use_bias=False, conv_general_dilated=self.conv)(x)
        x = nn.relu(nn.GroupNorm(self.groups)(x))
        for stage, (features, blocks) in enumerate(self.stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Block(features, stride, self.groups, self.project, self.conv)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_classes)(x), x
