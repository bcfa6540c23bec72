"""Convolution and pooling for compiled loops on CPUs.

XLA runs a convolution about ten times slower inside a compiled loop than outside one on CPUs, and all
local steps of a client are inside one. Here the input is unfolded into patches by slices, and the
convolution is their product with the kernel as a matrix:

    y[b, p, :] = sum over offsets o of x[b, stride p + dilation o, :] @ w[o]

Only slices and products are used, so every derivative of every order, `vmap` and `scan` are XLA's own.
A 3x3 convolution of many channels needs fewer products, and less memory, as in `winograd.py`.

Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing,
2006 (the unfolding).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_opt.models import winograd

# The weight gradient contracts over batch and positions, which is long. That product alone is faster as
# this many shorter ones, summed; in a whole training step the gain is within the noise.
_PRODUCTS = 8


def patch_conv(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """A convolution as products of matrices, fast inside compiled loops on CPUs.

    Takes the place of `jax.lax.conv_general_dilated` in Flax's layers:
    `nn.Conv(32, (3, 3), conv_general_dilated=fo.models.patch_conv)`. On accelerators, whose own
    convolutions are right inside loops too, it calls those: the default backend decides, when the
    program is traced.

    Args:
      lhs: the input, `[B, spatial..., features]`.
      rhs: the kernel, `[spatial..., features / groups, out features]`.
      window_strides: the stride along each spatial axis.
      padding: 'SAME', 'SAME_LOWER', 'VALID', or (before, after) for each spatial axis.
      lhs_dilation: must be None or all 1; transposed convolutions are refused.
      rhs_dilation: the kernel's dilation along each spatial axis.
      dimension_numbers: as in JAX; channels must come last (NHWC, HWIO, NHWC), as Flax has them.
      feature_group_count: the number of groups; as many as features for a depthwise convolution.
      batch_group_count: must be 1.
      precision: that of the products, as in `jax.lax.dot_general`.
      preferred_element_type: the dtype to accumulate in and to return.
      out_sharding: must be None.

    Returns:
      `[B, spatial..., out features]`, the numbers of `jax.lax.conv_general_dilated`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> x, w = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 5))
      >>> layout = ("NHWC", "HWIO", "NHWC")
      >>> fo.models.patch_conv(x, w, (1, 1), "VALID", dimension_numbers=layout)[0, :, :, 0].tolist()
      [[18.0, 18.0], [18.0, 18.0]]
    """
    axes = lhs.ndim - 2
    dilation = (1,) * axes if rhs_dilation is None else tuple(rhs_dilation)
    _check_layout(lhs, rhs, dimension_numbers)
    _refuse("lhs_dilation", lhs_dilation, lhs_dilation is None or set(lhs_dilation) <= {1}, "all 1")
    _refuse("batch_group_count", batch_group_count, batch_group_count == 1, "1")
    _refuse("out_sharding", out_sharding, out_sharding is None, "None")
    options = {
        "rhs_dilation": dilation,
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "precision": precision,
        "preferred_element_type": preferred_element_type,
    }

    def ordinary(lhs, rhs):
        return lax.conv_general_dilated(lhs, rhs, window_strides, padding, **options)

    expected = jax.eval_shape(ordinary, lhs, rhs)  # JAX's own checks of shapes and dtypes.
    if jax.default_backend() != "cpu" or 0 in (*expected.shape, *rhs.shape):
        return ordinary(lhs, rhs)
    kernel, outputs = rhs.shape[:-2], expected.shape[1:-1]
    padded = _pad(lhs, 0, kernel, window_strides, padding, dilation)
    if winograd.is_better(rhs, window_strides, dilation, feature_group_count, expected.dtype):
        return winograd.winograd_conv(padded, rhs, precision)
    windows = _windows(padded, kernel, outputs, window_strides, dilation)
    if feature_group_count == 1:
        found = _dense(windows, rhs, precision, expected.dtype)
    else:
        found = _grouped(windows, rhs, feature_group_count, precision, expected.dtype)
    return found.reshape(expected.shape)


def _dense(windows, kernel, precision, dtype):
    patches = jnp.concatenate(windows, axis=-1)
    batch, width, features = patches.shape[0], patches.shape[-1], kernel.shape[-1]
    products = math.gcd(batch, _PRODUCTS)
    matrix = jnp.broadcast_to(kernel.reshape(1, width, features), (products, width, features))
    return jnp.matmul(
        patches.reshape(products, -1, width),
        matrix,
        precision=precision,
        preferred_element_type=dtype,
    )


def _grouped(windows, kernel, groups, precision, dtype):
    *_, inputs, features = kernel.shape
    kernel = kernel.reshape(len(windows), inputs, groups, features // groups)
    if inputs == 1:  # Depthwise: products of numbers, for which a matrix product is no help.
        weights = kernel.reshape(len(windows), *(1,) * (windows[0].ndim - 1), groups, -1)
        terms = [
            window[..., None].astype(dtype) * weight.astype(dtype)
            for window, weight in zip(windows, weights, strict=True)
        ]
        return functools.reduce(jnp.add, terms)
    patches = jnp.stack(windows, axis=-2)
    patches = patches.reshape(-1, len(windows), groups, inputs)
    return jnp.einsum(
        "nkgi,kigo->ngo", patches, kernel, precision=precision, preferred_element_type=dtype
    )


def max_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """The maximum over windows, without the windowed reduction that is slow inside compiled loops.

    Takes the place of `flax.linen.max_pool`. Where several inputs share the maximum, they share its
    gradient.

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
    return _pool(inputs, window_shape, strides, padding, lowest, jnp.max, jnp.maximum)


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
    flat = _pad(flat, fill, window, strides, padding, (1,) * axes)
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
        parts = _windows(flat, window, outputs, strides, (1,) * axes)
        pooled = functools.reduce(combine, parts)
    return pooled.reshape(*shape[: -axes - 1], *outputs, shape[-1])


def _reduce_blocks(x, block, outputs, reduce):
    """Windows side by side: one axis after the other, split into (windows, block) and reduced."""
    for axis, (size, count) in enumerate(zip(block, outputs, strict=True), start=1):
        x = lax.slice_in_dim(x, 0, count * size, axis=axis)
        x = reduce(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis=axis + 1)
    return x


def _windows(x, kernel, outputs, strides, dilation):
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


def _pad(x, fill, kernel, strides, padding, dilation):
    if isinstance(padding, str):
        reach = [(size - 1) * d + 1 for size, d in zip(kernel, dilation, strict=True)]
        padding = lax.padtype_to_pads(x.shape[1:-1], reach, strides, padding)
    low_high = [(0, 0), *padding, (0, 0)]
    if not any(map(any, low_high)):
        return x
    return lax.pad(x, jnp.asarray(fill, x.dtype), [(low, high, 0) for low, high in low_high])


def _check_layout(lhs, rhs, dimension_numbers):
    last = lhs.ndim - 1
    wanted = lax.ConvDimensionNumbers(
        (0, last, *range(1, last)), (last, last - 1, *range(last - 1)), (0, last, *range(1, last))
    )
    known = lhs.ndim == rhs.ndim and lhs.ndim > 2
    if not known or lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers) != wanted:
        raise ValueError(
            "patch_conv takes channels last (NHWC, HWIO, NHWC and their like in other dimensions), got"
            f" dimension_numbers={dimension_numbers!r} for inputs {list(lhs.shape)} and a kernel"
            f" {list(rhs.shape)}; use jax.lax.conv_general_dilated for other layouts."
        )


def _refuse(name, value, is_possible, allowed):
    if not is_possible:
        raise ValueError(
            f"{name} must be {allowed} in patch_conv, got {value!r}; use"
            " jax.lax.conv_general_dilated instead."
        )
