"""MobileNetV2 with group normalisation.

Sandler et al., MobileNetV2: inverted residuals and linear bottlenecks, 2018. Hsu, Qi and Brown,
Federated visual classification with real-world data distribution, 2020 (group normalisation).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedjax_opt.models.convolution import patch_conv
from fedjax_opt.models.inputs import as_images

# (expansion, features, blocks, stride of the first), the paper's Table 2.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Unit(nn.Module):
    """A convolution without bias, group normalisation and, unless it is linear, ReLU6."""

    features: int
    kernel_size: int
    stride: int = 1
    depthwise: bool = False
    linear: bool = False
    groups: int = 8
    conv: Callable[..., Any] = patch_conv

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(
            self.features,
            (self.kernel_size, self.kernel_size),
            (self.stride, self.stride),
            padding=self.kernel_size // 2,
            feature_group_count=self.features if self.depthwise else 1,
            use_bias=False,
            conv_general_dilated=self.conv,
        )(x)
        x = nn.GroupNorm(self.groups)(x)
        return x if self.linear else nn.relu6(x)


class MobileNetV2(nn.Module):
    """Inverted residual blocks: expand, convolve each channel, project; the mean, a layer."""

    num_classes: int
    stages: tuple[tuple[int, int, int, int], ...] = STAGES
    stem: int = 32
    head: int = 1280
    groups: int = 8
    conv: Callable[..., Any] = patch_conv

    @nn.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        def unit(features, kernel_size, **options):
            return Unit(features, kernel_size, groups=self.groups, conv=self.conv, **options)

        x = unit(self.stem, 3, stride=2)(as_images(x))
        for expansion, features, blocks, first_stride in self.stages:
            for block in range(blocks):
                stride = first_stride if block == 0 else 1
                width = expansion * x.shape[-1]
                y = unit(width, 1)(x) if expansion > 1 else x
                y = unit(width, 3, stride=stride, depthwise=True)(y)
                y = unit(features, 1, linear=True)(y)
                x = x + y if x.shape == y.shape else y
        x = jnp.mean(unit(self.head, 1)(x), axis=(1, 2))
        return nn.Dense(self.num_classes)(x), x
