"""Means over the cohort: summed from client to client, or by a rule that sees all uploads at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Uniform
from fedjax_opt.core.model import Variables

# (values `[S, ...]`, weights `[S]` that sum to 1, 0 for whoever has no say) -> one value.
Aggregator = Callable[[Any, jax.Array], Any]


def weighted(tree: Any, weight: jax.Array, present: jax.Array) -> Any:
    """One client's term of each mean; sums are kept in float32 or better."""

    def term(node):
        factor = present if _is_uniform(node) else weight

        def scale(leaf):
            wide = trees.sum_dtype(leaf.dtype)
            # Selected, not multiplied: what an absent client computed may be anything, NaN too.
            return jnp.where(present, factor.astype(wide) * leaf.astype(wide), 0)

        return jax.tree.map(scale, node)

    return jax.tree.map(term, tree, is_leaf=_is_uniform)


def finish_mean(tree: Any, count: jax.Array, left: Any = None) -> Any:
    """Turns uniform sums into means, and takes the marker off.

    The other sums are means already, unless the weights of those who were counted sum to `left`.
    """

    def finish(node):
        if not _is_uniform(node):
            return node if left is None else node / left.astype(node.dtype)
        divide = lambda leaf: leaf / jnp.maximum(count, 1).astype(leaf.dtype)  # noqa: E731
        return jax.tree.map(divide, node.value)

    return jax.tree.map(finish, tree, is_leaf=_is_uniform)


def uniform_mean(values: Any, weights: jax.Array) -> Any:
    """The plain mean of those who have a say, on stacked values."""
    votes = (weights > 0).astype(weights.dtype)
    return weighted_mean(values, votes / jnp.maximum(jnp.sum(votes), 1))


def weighted_mean(values: Any, weights: jax.Array) -> Any:
    """The mean of stacked values by their weights."""

    def mean(leaf):
        return jnp.tensordot(weights.astype(leaf.dtype), heard(leaf, weights, 0), axes=1)

    return jax.tree.map(mean, values)


def heard(leaf: jax.Array, weights: jax.Array, instead: Any) -> jax.Array:
    """The values of those who have a say; others may have computed anything, NaN too."""
    has_say = (weights > 0).reshape(-1, *[1] * (leaf.ndim - 1))
    return jnp.where(has_say, leaf, jnp.asarray(instead, leaf.dtype))


def is_uniform_mean(aggregator: Any) -> bool:
    """Whether a rule is the plain mean: a round sums it with weights that are all the same."""
    return getattr(aggregator, "func", aggregator) is uniform_mean


def streams(aggregator: Any) -> bool:
    """Whether uploads can be summed from client to client, and need not be seen all at once."""
    return aggregator is None or is_uniform_mean(aggregator)


def apply(aggregator: Aggregator, stacked: Any, weights: jax.Array, present: jax.Array) -> Any:
    """Aggregates the uploads of a cohort, stacked `[S, ...]`, each of their parts on its own.

    A part is a field of the upload (the change of the model, the change of a control variate): they
    have different units, and a rule that measures distances must not mix them.
    """
    count = jnp.sum(present, dtype=weights.dtype)
    uniform = present.astype(weights.dtype) / jnp.maximum(count, 1)

    def part(node):
        value, weight = (node.value, uniform) if _is_uniform(node) else (node, weights)
        wide = jax.tree.map(lambda leaf: leaf.astype(trees.sum_dtype(leaf.dtype)), value)
        result = aggregator(wide, weight)
        # Nobody has a say in an empty round, which is not applied: it must only be finite.
        return trees.select(jnp.any(weight > 0), result, trees.zeros_like(result))

    if hasattr(stacked, "_fields") and not isinstance(stacked, (Variables, Uniform)):
        return type(stacked)(*map(part, stacked))
    return part(stacked)


def without_markers(tree: Any) -> Any:
    """The tree with the values in place of their `Uniform` markers."""
    return jax.tree.map(lambda n: n.value if _is_uniform(n) else n, tree, is_leaf=_is_uniform)


def _is_uniform(node: Any) -> bool:
    return isinstance(node, Uniform)
