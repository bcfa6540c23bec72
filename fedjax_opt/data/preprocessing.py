"""Preprocessing inside the program: steps that a minibatch passes through on its way to the model.

A step is a pure function `(batch, key) -> batch`. It changes the examples `batch["x"]`, of shape
`[B, ...]`, and leaves the rest alone. With a key it may be random, each example for itself; with None,
as in evaluation, it is not. Images are `[B, h, w]` or `[B, h, w, channels]`, and may stay uint8 in
memory: `random_crop` and `random_flip` keep the dtype they get, so `scale` comes after them.

Reference:
  He, Zhang, Ren and Sun. Deep residual learning for image recognition. 2016, section 4.2 (the crop).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial, register_static

from fedjax_opt.core import checks

Batch = Mapping[str, chex.Array]


def scale() -> Partial:
    """Makes uint8 images floating point, from 0 to 1; floating-point ones stay as they are.

    Returns:
      The step, to float32.

    Example:
      >>> import numpy as np
      >>> scale()({"x": np.array([[0, 255]], np.uint8)}, None)["x"].tolist()
      [[0.0, 1.0]]
    """
    return Partial(_scale)


def normalise(mean: chex.Numeric | Sequence[float], std: chex.Numeric | Sequence[float]) -> Partial:
    """Subtracts the mean and divides by the standard deviation, of all pixels or of each channel.

    Args:
      mean: One number, or one for each entry of the last axis.
      std: Likewise, larger than zero.

    Returns:
      The step.

    Example:
      >>> import numpy as np
      >>> step = normalise(mean=[0.5, 0.25], std=[0.25, 0.25])
      >>> step({"x": np.ones((1, 1, 1, 2), np.float32)}, None)["x"].tolist()
      [[[[2.0, 3.0]]]]
    """
    means = checks.as_array("mean", checks.number("mean", mean))
    stds = checks.as_array("std", checks.number("std", std, low=0.0, open_low=True))
    for name, value in (("mean", means), ("std", stds)):
        if value.ndim > 1 or not np.all(np.isfinite(value)):
            raise ValueError(
                f"{name} must be a finite number, or one for each channel, got {value!r}."
            )
    return Partial(_normalise, means, stds)


def random_crop(size: int, padding: int = 0) -> Partial:
    """Cuts a square out of each image, at a place of its own; in evaluation, out of the centre.

    Args:
      size: Height and width of the result. At most those of the image with its padding.
      padding: Rows and columns of zeros put around the image first. A crop of 32 after padding by 4
        is the common augmentation of CIFAR's 32x32 images, and leaves them alone in evaluation.

    Returns:
      The step. Every place is equally likely. It keeps the dtype.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> batch = {"x": np.arange(16, dtype=np.uint8).reshape(1, 4, 4)}
      >>> random_crop(2)(batch, None)["x"].tolist()
      [[[5, 6], [9, 10]]]
      >>> random_crop(2)(batch, jax.random.key(0))["x"].shape
      (1, 2, 2)
    """
    checks.integer("size", size, low=1)
    checks.integer("padding", padding, low=0)
    return Partial(_random_crop, _Crop(int(size), int(padding)))


def random_flip() -> Partial:
    """Mirrors each image left to right with probability one half; none in evaluation.

    Returns:
      The step. It keeps the dtype.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> batch = {"x": np.tile(np.arange(3, dtype=np.uint8), (6, 1, 1))}
      >>> flipped = random_flip()(batch, jax.random.key(0))["x"]
      >>> {tuple(image[0].tolist()) for image in flipped} == {(0, 1, 2), (2, 1, 0)}
      True
    """
    return Partial(_random_flip)


def flatten() -> Partial:
    """Makes one vector of each example.

    Returns:
      The step. It keeps the dtype.

    Example:
      >>> import numpy as np
      >>> flatten()({"x": np.zeros((5, 2, 3), np.uint8)}, None)["x"].shape
      (5, 6)
    """
    return Partial(_flatten)


@register_static
@dataclasses.dataclass(frozen=True)
class _Crop:
    """Sizes that are structure of a step, not leaves: shapes depend on them."""

    size: int
    padding: int


def _scale(batch: Batch, key: chex.PRNGKey | None) -> Batch:
    x = _examples("scale", batch)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return batch
    if x.dtype != jnp.uint8:
        raise ValueError(f"scale takes uint8 or floating-point images, got {x.dtype}.")
    return {**batch, "x": x.astype(jnp.float32) / 255}


def _normalise(mean: Any, std: Any, batch: Batch, key: chex.PRNGKey | None) -> Batch:
    x = _examples("normalise", batch)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"normalise takes floating-point examples, got {x.dtype}: scale() first.")
    return {**batch, "x": (x - _per_channel("mean", mean, x)) / _per_channel("std", std, x)}


def _per_channel(name: str, value: Any, x: jax.Array) -> jax.Array:
    if value.ndim and value.shape != x.shape[-1:]:
        raise ValueError(
            f"{name} must have one entry for each of the {x.shape[-1]} channels of examples of shape"
            f" {list(x.shape[1:])}, got {value.shape[0]}."
        )
    return jnp.asarray(value, x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


def _random_crop(crop: _Crop, batch: Batch, key: chex.PRNGKey | None) -> Batch:
    x = _images("random_crop", batch)
    count, *shape = x.shape[:3]
    places = [side + 2 * crop.padding - crop.size + 1 for side in shape]
    if min(places) < 1:
        raise ValueError(
            f"size must be at most {min(shape) + 2 * crop.padding}, the smaller side of images of shape"
            f" {list(x.shape[1:])} with padding {crop.padding}, got {crop.size}."
        )
    for axis, (side, number) in enumerate(zip(shape, places, strict=True), start=1):
        if key is None:
            first = jnp.full((count, 1), (number - 1) // 2)
        else:
            first = jax.random.randint(jax.random.fold_in(key, axis), (count, 1), 0, number)
        index = first - crop.padding + jnp.arange(crop.size, dtype=first.dtype)[None]
        index = jnp.where(index < 0, side, index)  # outside, and not counted from the end
        # Rows, then columns: faster on CPU than one gather of pixels, or than a slice per image.
        others = [other for other in range(1, x.ndim) if other != axis]
        x = jnp.take_along_axis(
            x, jnp.expand_dims(index, others), axis=axis, mode="fill", fill_value=0
        )
    return {**batch, "x": x}


def _random_flip(batch: Batch, key: chex.PRNGKey | None) -> Batch:
    x = _images("random_flip", batch)
    if key is None:
        return batch
    # Another stream than that of the crop, should both be handed the same key.
    flipped = jax.random.bernoulli(jax.random.fold_in(key, 0), shape=(x.shape[0],))
    flipped = flipped.reshape((-1,) + (1,) * (x.ndim - 1))
    return {**batch, "x": jnp.where(flipped, x[:, :, ::-1], x)}


def _flatten(batch: Batch, key: chex.PRNGKey | None) -> Batch:
    x = _examples("flatten", batch)
    return {**batch, "x": x.reshape(x.shape[0], math.prod(x.shape[1:]))}


def _examples(step: str, batch: Batch) -> jax.Array:
    if not isinstance(batch, Mapping) or "x" not in batch:
        found = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch)
        raise ValueError(f"{step} needs a batch with the key 'x', got {found}.")
    return jnp.asarray(batch["x"])


def _images(step: str, batch: Batch) -> jax.Array:
    x = _examples(step, batch)
    if x.ndim not in (3, 4):
        raise ValueError(
            f"{step} needs images [B, h, w] or [B, h, w, channels], got shape {list(x.shape)}."
        )
    return x
