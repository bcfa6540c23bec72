"""Convolution for compiled loops on CPUs.

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
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_opt.models import winograd
from fedjax_opt.models.windows import pad, windows

# The weight gradient contracts over batch and positions, which is long. That product alone is faster as
# this many shorter ones, summed; in a whole training step the gain is within the noise.
_PRODUCTS = 8

# A width of the kernel -> from how many input channels on the zeros that pairs of outputs are multiplied
# by cost more than their patches save.
_CHANNELS_OF_PAIRS = {3: 16, 5: 128, 7: 128}


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
    padded = pad(lhs, 0, kernel, window_strides, padding, dilation)
    if winograd.is_better(rhs, window_strides, dilation, feature_group_count, expected.dtype):
        return winograd.winograd_conv(padded, rhs, precision)
    if feature_group_count == 1 and _pairs_are_better(rhs, window_strides, dilation):
        return _in_pairs(padded, rhs, window_strides, dilation, precision, expected)
    parts = windows(padded, kernel, outputs, window_strides, dilation)
    if feature_group_count == 1:
        found = _dense(parts, rhs, precision, expected.dtype)
    else:
        found = _grouped(parts, rhs, feature_group_count, precision, expected.dtype)
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


def _pairs_are_better(kernel, strides, dilation):
    *_, width, inputs, _ = kernel.shape
    return strides[-1] == dilation[-1] == 1 and inputs < _CHANNELS_OF_PAIRS.get(width, 0)


def _in_pairs(x, kernel, strides, dilation, precision, expected):
    """Neighbours along the last axis as one entry of twice the features, of which a kernel of twice the
    features makes two outputs: half as many patches, and longer pieces of memory to make them of."""
    *_, width, inputs, features = kernel.shape
    *others, count = expected.shape[1:-1]
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count % 2), (0, 0)])
    x = x.reshape(*x.shape[:-2], x.shape[-2] // 2, 2 * inputs)
    # [[w0 0] [w1 w0] [w2 w1] [0 w2]] for a width of 3: the left column is for the left output.
    rows = kernel.reshape(-1, width * inputs, features)
    left = jnp.pad(rows, ((0, 0), (0, inputs), (0, 0)))
    right = jnp.pad(rows, ((0, 0), (inputs, 0), (0, 0)))
    both = jnp.concatenate([left, right], axis=-1)
    both = both.reshape(*kernel.shape[:-3], (width + 1) // 2, 2 * inputs, 2 * features)
    outputs = (*others, (count + 1) // 2)
    parts = windows(x, both.shape[:-2], outputs, strides, dilation)
    found = _dense(parts, both, precision, expected.dtype)
    found = found.reshape(expected.shape[0], *others, -1, features)
    return lax.slice_in_dim(found, 0, count, axis=-2)


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
