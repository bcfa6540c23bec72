"""How each leaf of a message travels: which choose their entries, which follow, which go as they are."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import Variables


class Slot(NamedTuple):
    """One leaf of a message, and how it travels.

    Attributes:
      path: its path in the model, or in the message.
      shape: its shape.
      dtype: its dtype.
      leader: the index of the leaf whose kept entries are its own: its own index where it chooses
        itself, another's for a companion, None for a leaf that travels as it is.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any
    leader: int | None


def layout(codec: Any, tree: Any) -> tuple[Slot, ...]:
    """How each leaf of a message travels, in the order of its leaves; it depends on shapes alone."""
    leaves = [(path, _text(path or ()), leaf) for path, leaf in _paths_in_the_model(tree)]
    excluded = _excluded(codec, leaves)
    slots: list[Slot] = []
    leaders: dict[Any, int] = {}
    for index, (path, text, leaf) in enumerate(leaves):
        leader = None
        if path is not None and index not in excluded and _is_coded(codec, leaf):
            leader = leaders.setdefault(path, index)
        slots.append(Slot(text, tuple(leaf.shape), jnp.dtype(leaf.dtype), leader))
    return tuple(slots)


def _is_coded(codec, leaf):
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return floating and math.prod(leaf.shape) >= max(int(codec.min_size), 1)


def _excluded(codec: Any, leaves: list[tuple[Any, str, Any]]) -> set[int]:
    """The leaves that `excluding` names; a `where` that names none of them is refused."""
    of_model = [(i, text, leaf) for i, (path, text, leaf) in enumerate(leaves) if path is not None]
    excluded: set[int] = set()
    for chosen in codec.excluded:
        named = {i for i, text, leaf in of_model if chosen(text, leaf)}
        if of_model and not named:
            paths = ", ".join(dict.fromkeys(text for _, text, _ in of_model))
            raise ValueError(
                f"where of excluding matches no leaf of the message; its leaves are {paths}."
            )
        excluded |= named
    return excluded


def _paths_in_the_model(tree: Any) -> list[tuple[Any, Any]]:
    """(path in the model, leaf) of each leaf of a message, in order; None for what is not of a model."""
    models = [n for n in jax.tree.leaves(tree, is_leaf=_is_variables) if _is_variables(n)]
    if not models:
        return jax.tree_util.tree_leaves_with_path(tree)
    params = models[0].params

    def is_part(node):
        return _is_variables(node) or _is_like(node, params)

    found: list[tuple[Any, Any]] = []
    for node in jax.tree.leaves(tree, is_leaf=is_part):
        of_params = not _is_variables(node) and _is_like(node, params)
        if not of_params and not _is_variables(node):
            found.append((None, node))
            continue
        part = Variables(node, None) if of_params else node
        found += jax.tree_util.tree_leaves_with_path(part)
    return found


def _is_variables(node: Any) -> bool:
    return isinstance(node, Variables)


def _is_like(node: Any, params: Any) -> bool:
    """Whether a node has the structure and the shapes of the parameters."""
    if jax.tree.structure(node) != jax.tree.structure(params):
        return False
    pairs = zip(jax.tree.leaves(node), jax.tree.leaves(params), strict=True)
    return all(a.shape == b.shape for a, b in pairs)


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
