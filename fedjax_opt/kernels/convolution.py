"""Convolutions for compiled loops on CPUs.

All local steps of a client are a loop inside one program, and there XLA's gradients of a convolution are
up to a hundred times slower than outside of one. `convolution_p` is `conv_general_dilated` with another
program: forward, and for the gradients of input and kernel. Its ways are

    products    XLA's own forward, which is fast; the kernel's gradient is one product of matrices for
                each offset in the kernel, the input's is a forward convolution with the flipped kernel
    pairs       with few channels: patches times the kernel, where a patch makes two outputs
    winograd    3x3 kernels of many channels, by request: fewer products, see `winograd.py`
    depthwise   a kernel for each channel: products of numbers
    grouped     patches times a kernel for each group
    patches     patches times the kernel, y[p] = sum over offsets o of x[s p + d o] @ w[o]; for kernels
                that differ by client under `vmap`

All but the first are slices and products, whose derivatives are XLA's own.

Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing,
2006 (patches).
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from fedjax_opt.kernels import winograd

# A kernel of more offsets, such as that of a gradient that the user's loss takes, is left to XLA: there
# is a slice or a product for each.
MOST_OFFSETS = 128

# With fewer input channels Winograd's products of matrices are too thin.
_CHANNELS_OF_WINOGRAD = 16

# A width of the kernel -> from how many input channels on the zeros that pairs of outputs are multiplied
# by cost more than their patches save.
_CHANNELS_OF_PAIRS = {3: 16, 5: 128, 7: 128}

# The gradient of a kernel contracts over batch and positions, which is long. That product of patches is
# faster as this many shorter ones, summed.
_PRODUCTS = 8

convolution_p = core.Primitive("fast_convolution")


def faster(equation: core.JaxprEqn, ways: Any) -> core.JaxprEqn | None:
    """The rule for `conv_general_dilated`: the same convolution in our way, if there is a faster one."""
    params = equation.params
    avals: list[Any] = [v.aval for v in (*equation.invars, *equation.outvars)]
    x, w, y = avals
    _, inputs, *window = (w.shape[axis] for axis in params["dimension_numbers"].rhs_spec)
    possible = (
        x.dtype == w.dtype == y.dtype
        and jnp.issubdtype(y.dtype, jnp.floating)
        and params["batch_group_count"] == 1
        and set(params["lhs_dilation"]) == {1}
        and len(window) > 0
        and math.prod(window) <= MOST_OFFSETS
        and 0 not in (*x.shape, *w.shape, *y.shape)
    )
    if not possible:
        return None
    moves = set(params["window_strides"]) | set(params["rhs_dilation"])
    last = params["window_strides"][-1], params["rhs_dilation"][-1]
    if params["feature_group_count"] > 1:
        way = "depthwise" if inputs == 1 else "grouped"
    elif (
        ways == "winograd"
        and (window, moves) == ([3, 3], {1})
        and inputs >= _CHANNELS_OF_WINOGRAD
        and y.dtype in (jnp.float32, jnp.float64)  # Short floats would lose digits in its sums.
    ):
        way = "winograd"
    elif last == (1, 1) and inputs < _CHANNELS_OF_PAIRS.get(window[-1], 0):
        way = "pairs"
    else:
        way = "products"
    return equation.replace(primitive=convolution_p, params=params | {"way": way})


# The primitive --------------------------------------------------------------------------------


class _Window(NamedTuple):
    """How a kernel moves; of arrays `[B, spatial..., channels]`."""

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    precision: Any


def _window_of(params):
    names = "window_strides", "padding", "rhs_dilation", "feature_group_count", "precision"
    return _Window(*(params[name] for name in names))


def _orders(params):
    """The axes of input, kernel and output in the order that the ways want, channels last."""
    numbers = params["dimension_numbers"]
    batch, channels, *spatial = numbers.lhs_spec
    out_channels, in_channels, *window = numbers.rhs_spec
    out_batch, features, *out_spatial = numbers.out_spec
    return (
        (batch, *spatial, channels),
        (*window, in_channels, out_channels),
        (out_batch, *out_spatial, features),
    )


def _back(x, order):
    return x.transpose(np.argsort(order))


def _compute(x, w, *, way, **params):
    of_x, of_w, of_y = _orders(params)
    # Not `x.transpose`: jax 0.7 hands over constants that are arrays without methods.
    y = _WAYS[way](lax.transpose(x, of_x), lax.transpose(w, of_w), _window_of(params))
    return _back(y, of_y)


def _input_gradient(dy, x, w, **params):
    if params["way"] != "products":
        return jax.linear_transpose(lambda x: _compute(x, w, **params), x.aval)(dy)[0]
    of_x, of_w, of_y = _orders(params)
    shape = [x.aval.shape[axis] for axis in of_x]
    dx = _products_dx(dy.transpose(of_y), w.transpose(of_w), shape, params)
    return _back(dx, of_x)


def _kernel_gradient(dy, x, w, **params):
    if params["way"] != "products":
        return jax.linear_transpose(lambda w: _compute(x, w, **params), w.aval)(dy)[0]
    of_x, of_w, of_y = _orders(params)
    shape = [w.aval.shape[axis] for axis in of_w]
    dw = _products_dw(x.transpose(of_x), dy.transpose(of_y), shape, _window_of(params))
    return _back(dw, of_w)


def _over_many(arrays, axes, **params):
    """The rule of `vmap`. Many inputs for one kernel are one larger batch."""
    (x, w), (of_x, of_w) = arrays, axes
    if of_w is not None:
        way = "patches" if params["way"] == "products" else params["way"]
        function = functools.partial(_compute, **params | {"way": way})
        return jax.vmap(function, in_axes=(of_x, of_w))(x, w), 0
    before, after = params["dimension_numbers"].lhs_spec[0], params["dimension_numbers"].out_spec[0]
    x = jnp.moveaxis(x, of_x, before)
    many, batch = x.shape[before : before + 2]
    x = x.reshape(*x.shape[:before], many * batch, *x.shape[before + 2 :])
    y = convolution_p.bind(x, w, **params)
    return y.reshape(*y.shape[:after], many, batch, *y.shape[after + 1 :]), after


convolution_p.def_impl(_compute)
convolution_p.def_effectful_abstract_eval(
    lambda x, w, *, way, **params: lax.conv_general_dilated_p.abstract_eval(x, w, **params)
)
mlir.register_lowering(convolution_p, mlir.lower_fun(_compute, multiple_results=False))
ad.defbilinear(convolution_p, _input_gradient, _kernel_gradient)
batching.primitive_batchers[convolution_p] = _over_many


# Products -------------------------------------------------------------------------------------


def _numbers(axes):
    """Channels last, as JAX spells it."""
    places = (0, axes + 1, *range(1, axes + 1))
    return lax.ConvDimensionNumbers(places, (axes + 1, axes, *range(axes)), places)


def _products(x, w, window):
    return lax.conv_general_dilated(
        x,
        w,
        window.strides,
        window.padding,
        rhs_dilation=window.dilation,
        dimension_numbers=_numbers(x.ndim - 2),
        precision=window.precision,
    )


def _products_dw(x, dy, shape, window):
    *kernel, inputs, features = shape
    parts = windows(
        pad(x, 0, window.padding), kernel, dy.shape[1:-1], window.strides, window.dilation
    )
    rows = dy.reshape(-1, features)
    over_rows = (((0,), (0,)), ((), ()))
    products = [
        lax.dot_general(part.reshape(-1, inputs), rows, over_rows, precision=window.precision)
        for part in parts
    ]
    return jnp.stack(products).reshape(shape)


def _products_dx(dy, w, shape, params):
    window, (*kernel, inputs, features) = _window_of(params), w.shape
    reach = [(size - 1) * d for size, d in zip(kernel, window.dilation, strict=True)]
    if set(window.strides) == {1}:
        flipped = jnp.flip(w, range(len(kernel))).swapaxes(-1, -2)
        # As far as the kernel reaches on either side; less of a padded border, whose gradient is cut.
        padding = tuple(
            (far - low, far - high) for far, (low, high) in zip(reach, window.padding, strict=True)
        )
        new = {"dimension_numbers": _numbers(len(kernel)), "padding": padding}
        return convolution_p.bind(dy, flipped, **params | new)
    # What each output gives to each offset of its window, added up where these lie in the input.
    over_features = (((dy.ndim - 1,), (1,)), ((), ()))
    given = lax.dot_general(
        dy, w.reshape(-1, features), over_features, precision=window.precision
    ).reshape(*dy.shape[:-1], -1, inputs)
    padded = [
        size + low + high for size, (low, high) in zip(shape[1:-1], window.padding, strict=True)
    ]
    zero = jnp.zeros((), dy.dtype)
    total = jnp.zeros((dy.shape[0], *padded, inputs), dy.dtype)
    for i, offset in enumerate(itertools.product(*map(range, kernel))):
        edges = [
            (o * d, size - o * d - (count - 1) * stride - 1, stride - 1)
            for o, d, size, count, stride in zip(
                offset, window.dilation, padded, dy.shape[1:-1], window.strides, strict=True
            )
        ]
        total = total + lax.pad(given[..., i, :], zero, [(0, 0, 0), *edges, (0, 0, 0)])
    return pad(total, 0, [(-low, -high) for low, high in window.padding])


# Patches --------------------------------------------------------------------------------------


def _patches(x, w, window):
    return _patches_times(_parts(x, w, window), w, window)


def _patches_times(parts, w, window):
    patches = jnp.concatenate(parts, axis=-1)
    width, features = patches.shape[-1], w.shape[-1]
    products = math.gcd(patches.shape[0], _PRODUCTS)
    matrix = jnp.broadcast_to(w.reshape(1, width, features), (products, width, features))
    y = jnp.matmul(patches.reshape(products, -1, width), matrix, precision=window.precision)
    return y.reshape(*patches.shape[:-1], features)


def _pairs(x, w, window):
    """Neighbours along the last axis as one entry of twice the channels, of which a kernel of twice the
    features makes two outputs: half as many patches, and longer pieces of memory to make them of."""
    *_, width, inputs, features = w.shape
    *others, count = _outputs(x, w, window)
    x = pad(x, 0, window.padding)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, count % 2), (0, 0)])
    x = x.reshape(*x.shape[:-2], x.shape[-2] // 2, 2 * inputs)
    # [[w0 0] [w1 w0] [w2 w1] [0 w2]] for a width of 3: the left column is for the left output.
    rows = w.reshape(-1, width * inputs, features)
    left = jnp.pad(rows, ((0, 0), (0, inputs), (0, 0)))
    right = jnp.pad(rows, ((0, 0), (inputs, 0), (0, 0)))
    both = jnp.concatenate([left, right], axis=-1)
    both = both.reshape(*w.shape[:-3], (width + 1) // 2, 2 * inputs, 2 * features)
    parts = windows(
        x, both.shape[:-2], (*others, (count + 1) // 2), window.strides, window.dilation
    )
    y = _patches_times(parts, both, window).reshape(x.shape[0], *others, -1, features)
    return lax.slice_in_dim(y, 0, count, axis=-2)


def _depthwise(x, w, window):
    # Products of numbers, for which one of matrices is no help.
    parts = _parts(x, w, window)
    kernels = w.reshape(len(parts), *(1,) * (x.ndim - 1), window.groups, -1)
    terms = [part[..., None] * kernel for part, kernel in zip(parts, kernels, strict=True)]
    return functools.reduce(jnp.add, terms).reshape(*parts[0].shape[:-1], -1)


def _grouped(x, w, window):
    *_, inputs, features = w.shape
    parts = _parts(x, w, window)
    patches = jnp.stack(parts, axis=-2).reshape(-1, len(parts), window.groups, inputs)
    kernels = w.reshape(len(parts), inputs, window.groups, features // window.groups)
    y = jnp.einsum("nkgi,kigo->ngo", patches, kernels, precision=window.precision)
    return y.reshape(*parts[0].shape[:-1], features)


def _winograd(x, w, window):
    return winograd.winograd_conv(pad(x, 0, window.padding), w, window.precision)


_WAYS = {
    "products": _products, "pairs": _pairs, "winograd": _winograd, "depthwise": _depthwise,
    "grouped": _grouped, "patches": _patches,
}  # fmt: skip


# Windows --------------------------------------------------------------------------------------


def _outputs(x, w, window):
    """How many places the kernel has along each spatial axis."""
    return [
        (low + size + high - (width - 1) * dilation - 1) // stride + 1
        for size, width, stride, (low, high), dilation in zip(
            x.shape[1:-1],
            w.shape[:-2],
            window.strides,
            window.padding,
            window.dilation,
            strict=True,
        )
    ]


def _parts(x, w, window):
    outputs = _outputs(x, w, window)
    padded = pad(x, 0, window.padding)
    return windows(padded, w.shape[:-2], outputs, window.strides, window.dilation)


def windows(
    x: jax.Array,
    kernel: Sequence[int],
    outputs: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> list[jax.Array]:
    """For each offset within the kernel, what it meets at all positions: `[B, outputs..., channels]`."""
    found = []
    for offset in itertools.product(*map(range, kernel)):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [
            first + (count - 1) * stride + 1
            for first, count, stride in zip(start, outputs, strides, strict=True)
        ]
        found.append(
            lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *strides, 1))
        )
    return found


def pad(x: jax.Array, fill: Any, padding: Sequence[tuple[int, int]]) -> jax.Array:
    """The input with `fill` around it along each spatial axis; a negative number cuts."""
    if not any(map(any, padding)):
        return x
    edges = [(0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0)]
    return lax.pad(x, jnp.asarray(fill, x.dtype), edges)
