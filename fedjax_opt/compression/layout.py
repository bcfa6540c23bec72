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
    slots: list[Slot] = []
    leaders: dict[Any, int] = {}
    for path, leaf in _paths_in_the_model(tree):
        leader, text = None, _text(path or ())
        if path is not None and _is_coded(codec, text, leaf):
            leader = leaders.setdefault(path, len(slots))
        slots.append(Slot(text, tuple(leaf.shape), jnp.dtype(leaf.dtype), leader))
    return tuple(slots)


def _is_coded(codec, path, leaf):
    size = math.prod(leaf.shape)
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or size < max(int(codec.min_size), 1):
        return False
    return codec.excluded is None or not codec.excluded(path, leaf)


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
