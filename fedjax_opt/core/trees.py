"""Arithmetic on pytrees that keeps each leaf's dtype, whatever the scalar's."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.coded import is_coded


def scale(factor: Any, tree: Any) -> Any:
    """factor * tree, in the dtype of each leaf."""
    return _map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def add(left: Any, right: Any) -> Any:
    """left + right."""
    return _map(jnp.add, left, right)


def subtract(left: Any, right: Any) -> Any:
    """left - right."""
    return _map(jnp.subtract, left, right)


def add_scaled(left: Any, factor: Any, right: Any) -> Any:
    """left + factor * right, in the dtype of each leaf of `left`."""
    return _map(lambda a, b: a + jnp.asarray(factor, a.dtype) * b.astype(a.dtype), left, right)


def each(function: Any, first: Any, /, *others: Any, **scalars: Any) -> Any:
    """`function` of corresponding leaves and of scalars, all in the dtype of the first tree's leaf."""

    def one(leaf, *rest):
        rest = (jnp.asarray(x, leaf.dtype) for x in rest)
        return function(leaf, *rest, **{k: jnp.asarray(s, leaf.dtype) for k, s in scalars.items()})

    return _map(one, first, *others)


def _map(function: Any, *trees: Any) -> Any:
    """`function` of all leaves; refuses what is coded: its number of bytes is a leaf, too."""

    def one(*nodes):
        if any(map(is_coded, nodes)):
            raise ValueError(
                "A Coded is what was sent: arithmetic on it would change the number of its bytes."
                " Compute with its `inner`, or before it is coded."
            )
        return function(*nodes)

    return jax.tree.map(one, *trees, is_leaf=is_coded)


def reciprocal(count: Any) -> jax.Array:
    """1 / count in the default floating-point type: an int32 divided as it is may lose half of it."""
    return 1 / jnp.asarray(count, jnp.result_type(float))


def sum_dtype(dtype: Any) -> Any:
    """The dtype in which many values are summed: their own, but float32 for anything shorter."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
    return jnp.result_type(float)


def zeros_like(tree: Any) -> Any:
    """Zeros of the same shapes and dtypes (abstract leaves are welcome)."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def select(condition: Any, if_true: Any, if_false: Any) -> Any:
    """One of two trees, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


def squared_norm(tree: Any) -> jax.Array:
    """The sum of squares of all entries."""
    dtype = jnp.result_type(float)
    return sum(
        (jnp.sum(jnp.square(leaf.astype(dtype))) for leaf in jax.tree.leaves(tree)),
        start=jnp.zeros((), dtype),
    )


def all_finite(tree: Any) -> jax.Array:
    """Whether every floating-point entry is finite."""
    leaves = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(leaves)) if leaves else jnp.asarray(True)
