"""Convolutional and fully connected networks of the federated-learning papers.

Every module returns (logits, the inputs of its last layer).
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn

from fedjax_opt.models.convolution import patch_conv
from fedjax_opt.models.inputs import as_features, as_images
from fedjax_opt.models.pooling import max_pool
from fedjax_opt.models.thin_product import thin_dot


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
    conv: Callable[..., Any] = patch_conv

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> tuple[Any, Any]:
        x = images = as_images(x)
        window = (self.kernel_size, self.kernel_size)
        for width in self.features:
            x = nn.Conv(width, window, padding=self.padding, conv_general_dilated=self.conv)(x)
            if min(x.shape[1:-1]) < 2:
                raise ValueError(
                    f"x must be images of which {len(self.features)} convolutions by {window}, each"
                    f" pooled by 2, leave something, got shape {list(images.shape)}."
                )
            x = nn.relu(max_pool(x, (2, 2), strides=(2, 2)))  # the same as the other way round
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
    conv: Callable[..., Any] = patch_conv

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> tuple[Any, Any]:
        x = as_images(x)
        for width, rate in zip(self.features, self.dropout, strict=True):
            for _ in range(2):
                x = nn.relu(nn.Conv(width, (3, 3), conv_general_dilated=self.conv)(x))
                x = nn.BatchNorm(use_running_average=not train, momentum=0.99, epsilon=1e-3)(x)
            x = nn.Dropout(rate, deterministic=not train)(x)
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(self.num_classes, dot_general=thin_dot)(x), x
