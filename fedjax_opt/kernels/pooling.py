"""Pooling for compiled loops on CPUs, where XLA's reductions over windows are slow: slices and sums."""

import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from fedjax_opt.kernels.convolution import MOST_OFFSETS, pad, windows

_pool_p = core.Primitive("fast_pool")


def faster(equation: core.JaxprEqn, ways: Any) -> core.JaxprEqn | None:
    """The rule for `reduce_window_max` and `reduce_window_sum`: the same pool in our way."""
    del ways
    params = equation.params
    sizes = [
        size for v in (*equation.invars, *equation.outvars) for size in cast(Any, v.aval).shape
    ]
    dilations = {*params["base_dilation"], *params["window_dilation"]}
    is_large = math.prod(params["window_dimensions"]) > MOST_OFFSETS
    if dilations != {1} or is_large or 0 in sizes:
        return None
    return equation.replace(
        primitive=_pool_p, params=params | {"original": equation.primitive.name}
    )


def _compute(x, *, original, window_dimensions, window_strides, padding, **_):
    # All axes are spatial here: in those of examples and channels, windows have the size 1.
    reduced = _REDUCTIONS[original](x.dtype)
    return _pool(x[None, ..., None], window_dimensions, window_strides, padding, *reduced)[
        0, ..., 0
    ]


def _derivative(primals, tangents, **params):
    tangents = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(functools.partial(_compute, **params), primals, tangents)


def _over_many(arrays, axes, **params):
    """The rule of `vmap`: one more axis of examples."""
    names = {"window_dimensions": 1, "window_strides": 1, "base_dilation": 1, "window_dilation": 1}
    params |= {name: (one, *params[name]) for name, one in (names | {"padding": (0, 0)}).items()}
    return _pool_p.bind(jnp.moveaxis(arrays[0], axes[0], 0), **params), 0


def _shape(x, *, original, **params):
    primitive = (
        lax.reduce_window_max_p if original == "reduce_window_max" else lax.reduce_window_sum_p
    )
    return primitive.abstract_eval(x, **params)


_pool_p.def_impl(_compute)
_pool_p.def_effectful_abstract_eval(_shape)
mlir.register_lowering(_pool_p, mlir.lower_fun(_compute, multiple_results=False))
ad.primitive_jvps[_pool_p] = _derivative
batching.primitive_batchers[_pool_p] = _over_many


def max_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: str | Sequence[tuple[int, int]] = "VALID",
) -> jax.Array:
    """The maximum over windows, without the windowed reduction that is slow inside compiled loops.

    Takes the place of `flax.linen.max_pool`, also in its gradient: of several inputs that are the
    maximum of a window, the first has it all.

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
    return _pool(inputs, window_shape, strides, padding, *_max(inputs.dtype))


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
    total = _pool(inputs, window_shape, strides, padding, *_sum(inputs.dtype))
    if count_include_pad:
        return total / math.prod(window_shape)
    ones = jnp.ones_like(inputs)
    return total / _pool(ones, window_shape, strides, padding, *_sum(inputs.dtype))


def _max(dtype):
    """What padding is, how blocks are reduced along an axis, and how windows are combined."""
    lowest = -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min
    return lowest, _largest, _larger


def _sum(dtype):
    del dtype
    return 0, functools.partial(jnp.sum, promote_integers=False), jnp.add


_REDUCTIONS = {"reduce_window_max": _max, "reduce_window_sum": _sum}


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
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(flat.shape[1:-1], window, strides, padding)
    flat = pad(flat, fill, padding)
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
        parts = windows(flat, window, outputs, strides, (1,) * axes)
        pooled = functools.reduce(combine, parts)
    return pooled.reshape(*shape[: -axes - 1], *outputs, shape[-1])


def _reduce_blocks(x, block, outputs, reduce):
    """Windows side by side: one axis after the other, split into (windows, block) and reduced.

    The last axis first, so that the first of equal maxima is the first in the order of memory.
    """
    for axis in reversed(range(1, x.ndim - 1)):
        size, count = block[axis - 1], outputs[axis - 1]
        if size == 1:
            continue
        x = lax.slice_in_dim(x, 0, count * size, axis=axis)
        x = reduce(x.reshape(*x.shape[:axis], count, size, *x.shape[axis + 1 :]), axis=axis + 1)
    return x


def _largest(x, axis):
    parts = [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis])]
    return functools.reduce(_larger, parts)


@jax.custom_jvp
def _larger(first, second):
    return jnp.maximum(first, second)


@_larger.defjvp
def _larger_jvp(primals, tangents):
    # JAX's own derivative divides the gradient among equals, which takes longer than to choose.
    first, second = primals
    return _larger(first, second), jnp.where(first >= second, *tangents)
