"""Arithmetic on pytrees that keeps each leaf's dtype, whatever the scalar's; and what it refuses."""

import dataclasses
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_opt.core.aliases import Number, Tree, Values


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Coded:
    """A message or an upload that travels in another form than its arrays.

    It is what was sent, so it is not to be computed with: arithmetic on it is refused. Take its `inner`,
    or change what is sent before it is coded.
    """

    inner: Tree  # its value, as the receiver reads it
    num_bytes: (
        Number  # what travels, int32; below, on average, where that is known before any value
    )
    expected_bytes: float | None = dataclasses.field(default=None, metadata={"static": True})
    codec: Tree = None  # what coded it
    # The codes, of which `compression.bytes_of_coded` makes the bytes; None where the value was changed.
    payload: Tree = None

    def changed(self, inner: Tree) -> "Coded":
        """The same with another value, which has the size of this one and no codes."""
        return dataclasses.replace(self, inner=inner, payload=None)


def is_coded(node: object) -> bool:
    """Whether a node of a tree is a `Coded`."""
    return isinstance(node, Coded)


def decoded(tree: Tree) -> Tree:
    """The tree with the values in place of what travels."""
    return jax.tree.map(lambda n: n.inner if is_coded(n) else n, tree, is_leaf=is_coded)


def scale(factor: Number, tree: Tree) -> Tree:
    """factor * tree, in the dtype of each leaf."""
    return _map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def add(left: Tree, right: Tree) -> Tree:
    """left + right."""
    return _map(jnp.add, left, right)


def subtract(left: Tree, right: Tree) -> Tree:
    """left - right."""
    return _map(jnp.subtract, left, right)


def add_scaled(left: Tree, factor: Number, right: Tree) -> Tree:
    """left + factor * right, in the dtype of each leaf of `left`."""
    return _map(lambda a, b: a + jnp.asarray(factor, a.dtype) * b.astype(a.dtype), left, right)


def each(function: Callable[..., Tree], first: Tree, /, *others: Tree, **scalars: Values) -> Tree:
    """`function` of corresponding leaves and of scalars, all in the dtype of the first tree's leaf."""

    def one(leaf, *rest):
        rest = (jnp.asarray(x, leaf.dtype) for x in rest)
        return function(leaf, *rest, **{k: jnp.asarray(s, leaf.dtype) for k, s in scalars.items()})

    return _map(one, first, *others)


def _map(function: Callable[..., Tree], *trees: Tree) -> Tree:
    """`function` of all leaves; refuses what is coded: its number of bytes is a leaf, too."""
    if any(map(is_coded, jax.tree.leaves(trees, is_leaf=is_coded))):
        raise ValueError(
            "A Coded is what was sent: arithmetic on it would change the number of its bytes."
            " Compute with its `inner`, or before it is coded."
        )
    return jax.tree.map(function, *trees)


def reciprocal(count: Number) -> jax.Array:
    """1 / count in the default floating-point type: an int32 divided as it is may lose half of it."""
    return 1 / jnp.asarray(count, jnp.result_type(float))


def sum_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype in which many values are summed: their own, but float32 for anything shorter."""
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)
    return jnp.result_type(float)


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same shapes and dtypes (abstract leaves are welcome)."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def shapes_of(tree: Tree) -> Tree:
    """The shapes and dtypes of a tree's leaves, for `jax.eval_shape` and `lower`."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)), tree)


def select(condition: Number, if_true: Tree, if_false: Tree) -> Tree:
    """One of two trees, leaf by leaf."""
    return jax.tree.map(partial(jnp.where, condition), if_true, if_false)


def squared_norm(tree: Tree) -> jax.Array:
    """The sum of squares of all entries."""
    total = jnp.zeros((), jnp.result_type(float))
    for leaf in jax.tree.leaves(tree):
        total += jnp.sum(jnp.square(leaf.astype(total.dtype)))
    return total


def norm(tree: Tree) -> jax.Array:
    """The Euclidean norm of all entries."""
    return jnp.sqrt(squared_norm(tree))


def all_finite(tree: Tree) -> jax.Array:
    """Whether every floating-point entry is finite."""
    finite = jnp.asarray(True)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= jnp.all(jnp.isfinite(leaf))
    return finite
