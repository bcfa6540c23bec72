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


def finish_mean(tree: Any, count: jax.Array) -> Any:
    """Turns uniform sums into means, and takes the marker off."""

    def finish(node):
        if not _is_uniform(node):
            return node
        divide = lambda leaf: leaf / jnp.maximum(count, 1).astype(leaf.dtype)  # noqa: E731
        return jax.tree.map(divide, node.value)

    return jax.tree.map(finish, tree, is_leaf=_is_uniform)


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
