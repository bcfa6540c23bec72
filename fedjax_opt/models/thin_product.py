"""The product of a small batch and a large matrix, for compiled loops on CPUs.

The gradient of y = x w with respect to x is g w^T. XLA makes the transpose of w first, in every step.
With few examples it is faster to transpose all else: (w g^T)^T.

JAX makes the program of that gradient, and always puts g first. What has a transpose of its own choice
is the solution of linear equations: (u, v) -> (u, v + u w) solves those of (u, v) -> (u, v - u w), whose
transpose is (p, q) -> (p - q w^T, q). Hence every derivative of every order, forward and reverse, and
`vmap` are right, as with the ordinary product.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# A batch is small if it has at most one example for as many rows, and columns, of the matrix.
_ROWS = 4


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
    contracted, batched = ([tuple(axes) for axes in pair] for pair in dimension_numbers)
    is_thin = (
        jax.default_backend() == "cpu"
        and lhs.ndim == rhs.ndim == 2
        and (contracted, batched) == ([(1,), (0,)], [(), ()])
        and lhs.dtype == rhs.dtype
        and preferred_element_type in (None, lhs.dtype)
        and jnp.issubdtype(lhs.dtype, jnp.floating)
        and _ROWS * lhs.shape[0] <= min(rhs.shape)
        and not options
    )
    if is_thin:
        return _thin(lhs, rhs, precision)
    return lax.dot_general(
        lhs,
        rhs,
        dimension_numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        **options,
    )


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _thin(x, w, precision):
    return jnp.matmul(x, w, precision=precision)


@_thin.defjvp
def _thin_jvp(precision, primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    product = functools.partial(jnp.matmul, precision=precision)
    return _thin(x, w, precision), _linear(dx, w, product) + product(x, dw)


def _linear(u, w, product):
    """u w, a linear function of u that says what its transpose is."""
    rows, columns = w.shape

    def parts(pair):
        return jnp.split(pair, [rows], axis=1)

    def equations(pair):
        u, v = parts(pair)
        return jnp.concatenate([u, v - product(u, w)], axis=1)

    def solution(_, pair):
        u, v = parts(pair)
        return jnp.concatenate([u, v + product(u, w)], axis=1)

    def transposed_solution(_, pair):
        p, q = parts(pair)
        # Without the barriers, XLA would turn it into the product that this is to avoid.
        q_transposed = lax.optimization_barrier(q.T)
        found = lax.optimization_barrier(product(w, q_transposed))
        return jnp.concatenate([p + found.T, q], axis=1)

    pair = jnp.pad(u, ((0, 0), (0, columns)))
    return parts(lax.custom_linear_solve(equations, pair, solution, transposed_solution))[1]
