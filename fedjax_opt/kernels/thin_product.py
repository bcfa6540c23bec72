"""The product of a small batch and a large matrix, for compiled loops on CPUs.

The gradient of y = x w with respect to x is g w^T. XLA makes the transpose of w first, in every step.
With few examples it is faster to transpose all else: (w g^T)^T.

The product is a primitive of its own, whose gradients are given here. They are ordinary products, so
that every further derivative is JAX's.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

# A batch is small if it has at most one example for as many rows, and columns, of the matrix.
_ROWS = 4

_MATRICES = (((1,), (0,)), ((), ()))


def thin_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    **options: Any,
) -> jax.Array:
    """A product of matrices whose gradient does not transpose the second one, if that is large.

    Takes the place of `jax.lax.dot_general` in Flax's layers:
    `nn.Dense(512, dot_general=fo.models.thin_dot)`. Where it is no gain, it is `jax.lax.dot_general`: on
    accelerators, for large batches, and for other products than that of two matrices of one type.

    Args:
      lhs: the inputs, `[B, features]`.
      rhs: the weights, `[features, out features]`.
      dimension_numbers: what is contracted, as in `jax.lax.dot_general`.
      precision: that of the products, as in `jax.lax.dot_general`.
      preferred_element_type: the dtype to accumulate in and to return.
      **options: those of `jax.lax.dot_general`; with any, it is called.

    Returns:
      `[B, out features]`, the numbers of `jax.lax.dot_general`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> x, w = jnp.ones((2, 64)), jnp.ones((64, 32))
      >>> fo.models.thin_dot(x, w, (((1,), (0,)), ((), ())))[0, 0].item()
      64.0
    """
    numbers = tuple(tuple(tuple(axes) for axes in pair) for pair in dimension_numbers)
    is_thin = (
        jax.default_backend() == "cpu"
        and lhs.ndim == rhs.ndim == 2
        and numbers == _MATRICES
        and lhs.dtype == rhs.dtype
        and preferred_element_type in (None, lhs.dtype)
        and jnp.issubdtype(lhs.dtype, jnp.floating)
        and _ROWS * lhs.shape[0] <= min(rhs.shape)
        and not options
    )
    if is_thin:
        return _thin_p.bind(lhs, rhs, precision=precision)
    return lax.dot_general(
        lhs,
        rhs,
        dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        **options,
    )


def _multiply(x, w, *, precision):
    return jnp.matmul(x, w, precision=precision)


def _input_gradient(g, x, w, *, precision):
    del x
    # Without the barriers, XLA would turn it into the product that this is to avoid.
    g_transposed = lax.optimization_barrier(g.T)
    return lax.optimization_barrier(jnp.matmul(w, g_transposed, precision=precision)).T


def _weight_gradient(g, x, w, *, precision):
    del w
    return jnp.matmul(x.T, g, precision=precision)


def _over_many(arrays, axes, *, precision):
    return jax.vmap(lambda x, w: _multiply(x, w, precision=precision), axes)(*arrays), 0


_thin_p = core.Primitive("thin_dot")
_thin_p.def_impl(_multiply)
_thin_p.def_effectful_abstract_eval(
    lambda x, w, *, precision: lax.dot_general_p.abstract_eval(
        x, w, dimension_numbers=_MATRICES, precision=precision, preferred_element_type=None,
        out_sharding=None,
    )
)  # fmt: skip
mlir.register_lowering(_thin_p, mlir.lower_fun(_multiply, multiple_results=False))
ad.defbilinear(_thin_p, _input_gradient, _weight_gradient)
batching.primitive_batchers[_thin_p] = _over_many
