"""Weights in any pytree, such as an Equinox module: which of its leaves are trained."""

import types
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

ARRAYS = (jax.Array, np.ndarray, np.generic)


class Fixed:
    """Stands in a tree of parameters for a leaf that is not trained, and has no leaves itself.

    Attributes:
      value: a part of the program, such as an activation function; `ARRAY` where the leaf is an array,
        which is then kept beside the parameters.
    """

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and _same(self.value, other.value)

    def __hash__(self) -> int:
        if isinstance(self.value, types.FunctionType):
            return hash(self.value.__code__)
        try:
            return hash(self.value)
        except TypeError:
            return hash(type(self.value))

    def __repr__(self) -> str:
        return f"Fixed({self.value!r})"


ARRAY = "an array that is not trained"
jax.tree_util.register_pytree_node(Fixed, lambda fixed: ((), fixed), lambda fixed, _: fixed)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, types.FunctionType) and isinstance(b, types.FunctionType):
        # A constructor that is called twice makes a lambda twice.
        plain = a.__closure__ is None and b.__closure__ is None
        return plain and a.__code__ == b.__code__ and a.__defaults__ == b.__defaults__
    return type(a) is type(b) and bool(a == b)


def is_array(leaf: object) -> bool:
    """Whether a leaf is an array, traced ones and single numbers of NumPy included."""
    return isinstance(leaf, ARRAYS)


def divided(tree: chex.ArrayTree) -> tuple[chex.ArrayTree, tuple[chex.Array, ...]]:
    """(parameters, other arrays): what `jax.grad` takes as a whole is trained as a whole, else its
    floating-point arrays are, and `Fixed` stands in the place of each other leaf."""
    leaves, structure = jax.tree.flatten(tree)
    whole = all(
        isinstance(leaf, float) or (is_array(leaf) and _is_floating(leaf)) for leaf in leaves
    )
    params, others = [], []
    for leaf in leaves:
        if whole or (is_array(leaf) and _is_floating(leaf)):
            params.append(jnp.asarray(leaf))
            continue
        if is_array(leaf):
            others.append(leaf)
        params.append(Fixed(ARRAY if is_array(leaf) else leaf))
    return jax.tree.unflatten(structure, params), tuple(others)


def joined(params: chex.ArrayTree, others: tuple[chex.Array, ...]) -> chex.ArrayTree:
    """The tree that `divided` took apart, with other numbers in it."""
    rest = iter(others)

    def leaf_of(leaf):
        if not isinstance(leaf, Fixed):
            return leaf
        return next(rest) if leaf.value is ARRAY else leaf.value

    return jax.tree.map(leaf_of, params, is_leaf=lambda leaf: isinstance(leaf, Fixed))


def num_kept_apart(params: chex.ArrayTree) -> int:
    """How many arrays `divided` put beside the parameters."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Fixed))
    return sum(isinstance(leaf, Fixed) and leaf.value is ARRAY for leaf in leaves)


def _is_floating(leaf: chex.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
