"""Networks of images. Every module returns (logits, the inputs of its last layer).

He et al., Deep residual learning for image recognition, 2016. Sandler et al., MobileNetV2: inverted
residuals and linear bottlenecks, 2018. Wu and He, Group normalization, 2018. Dosovitskiy et al., An
image is worth 16x16 words: transformers for image recognition at scale, 2021.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedjax_opt.kernels.thin_product import thin_dot
from fedjax_opt.models.inputs import as_features, as_images


class DNN(nn.Module):
    """ReLU layers on flattened inputs; with `batch_norm`, a batch normalisation after the first."""

    num_classes: int
    hidden: tuple[int, ...] = (200, 200)
    batch_norm: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> tuple[Any, Any]:
        x = as_features(x)
        for i, width in enumerate(self.hidden):
            x = nn.relu(nn.Dense(width, dot_general=thin_dot)(x))
            if self.batch_norm and i == 0:
                x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(self.num_classes, dot_general=thin_dot)(x), x


class CNN(nn.Module):
    """Blocks of convolution, ReLU, 2x2 max-pooling and perhaps batch normalisation; then ReLU layers."""

    num_classes: int
    features: tuple[int, ...] = (32, 64)
    hidden: tuple[int, ...] = (512,)
    kernel_size: int = 3
    padding: str = "VALID"
    batch_norm: bool = False

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> tuple[Any, Any]:
        x = images = as_images(x)
        window = (self.kernel_size, self.kernel_size)
        for width in self.features:
            x = nn.Conv(width, window, padding=self.padding)(x)
            if min(x.shape[1:-1]) < 2:
                raise ValueError(
                    f"x must be images of which {len(self.features)} convolutions by {window}, each"
                    f" pooled by 2, leave something, got shape {list(images.shape)}."
                )
            x = nn.relu(nn.max_pool(x, (2, 2), strides=(2, 2)))  # the same as the other way round
            if self.batch_norm:
                x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dot_general=thin_dot)(x))
        return nn.Dense(self.num_classes, dot_general=thin_dot)(x), x


class CifarCNN(nn.Module):
    """Three pairs of padded 3x3 convolutions with batch normalisation, each followed by dropout."""

    num_classes: int
    features: tuple[int, ...] = (32, 64, 128)
    dropout: tuple[float, ...] = (0.2, 0.3, 0.4)

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> tuple[Any, Any]:
        x = as_images(x)
        for width, rate in zip(self.features, self.dropout, strict=True):
            for _ in range(2):
                x = nn.relu(nn.Conv(width, (3, 3))(x))
                x = nn.BatchNorm(use_running_average=not train, momentum=0.99, epsilon=1e-3)(x)
            x = nn.Dropout(rate, deterministic=not train)(x)
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(self.num_classes, dot_general=thin_dot)(x), x


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is padded or projected where the shape changes."""

    features: int
    stride: int
    groups: int
    project: bool

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

    @nn.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        x = as_images(x)
        x = nn.Conv(self.stages[0][0], (3, 3), use_bias=False)(x)
        x = nn.relu(nn.GroupNorm(self.groups)(x))
        for stage, (features, blocks) in enumerate(self.stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Block(features, stride, self.groups, self.project)(x)
        x = jnp.mean(x, axis=(1, 2))
        return nn.Dense(self.num_classes)(x), x


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

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(
            self.features,
            (self.kernel_size, self.kernel_size),
            (self.stride, self.stride),
            padding=self.kernel_size // 2,
            feature_group_count=self.features if self.depthwise else 1,
            use_bias=False,
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

    @nn.compact
    def __call__(self, x: Any) -> tuple[Any, Any]:
        def unit(features, kernel_size, **options):
            return Unit(features, kernel_size, groups=self.groups, **options)

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
