"""Checks on arguments: each failure names the argument, its value and what is allowed.

Values are checked only where they are known. Under `jit`, `vmap` or `grad` a value is a tracer:
then shapes and dtypes are still checked, values are trusted.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import keystr, tree_leaves_with_path

from fedjax_opt.core.aliases import Tree

T = TypeVar("T")


def is_traced(*values: Tree) -> bool:
    """Says whether any leaf of the values is known only inside a transformation."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def as_array(name: str, value: object) -> Any:
    """Lists and plain numbers as NumPy arrays, arrays as they are, anything else refused."""
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number):
        raise ValueError(f"{name} must be a number or an array of numbers, got {value!r}.")
    return array


def whole_array(name: str, value: object) -> Any:
    """The same of whole numbers alone."""
    array = as_array(name, value)
    if not jnp.issubdtype(jnp.result_type(array), jnp.integer):
        raise ValueError(f"{name} must be whole, got {jnp.result_type(array)}.")
    return array


def number(
    name: str,
    value: Any,
    *,
    low: float = -np.inf,
    high: float = np.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> Any:
    """Returns `value` after checking that every known entry lies in the interval."""
    if is_traced(value):
        return value
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.number) or jnp.issubdtype(array.dtype, jnp.number)):
        raise ValueError(f"{name} must be a number, got {value!r}.")
    array = array.astype(np.float64)
    below = (array <= low) if open_low else (array < low)
    above = (array >= high) if open_high else (array > high)
    if np.any(below | above | np.isnan(array)):
        interval = f"{'(' if open_low else '['}{low}, {high}{')' if open_high else ']'}"
        raise ValueError(f"{name} must lie in {interval}, got {value!r}.")
    # 1 and 1.0 should not be compiled twice.
    return float(value) if isinstance(value, int) else value


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of Python or NumPy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def integer(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    """Returns `value` as an int after checking that it is a whole number within the limits."""
    if not is_whole(value) or value < low or (high is not None and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {limits}, got {value!r}.")
    return int(value)


def choice(name: str, value: T, allowed: tuple[str, ...]) -> T:
    """Returns `value` after checking that it is one of the allowed names."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def trainable(params: Tree) -> None:
    """Refuses parameters that no gradient can change."""
    if not jax.tree.leaves(params):
        raise ValueError("variables.params has no leaves: there is nothing to train.")
    for path, leaf in tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"params{keystr(path)} has dtype {dtype}; parameters must be floating point. Put"
                " counters, tables and other values that are not trained in variables.state."
            )


def same_structure(name: str, value: Tree, expected: Tree, why: str) -> None:
    """Refuses a pytree whose structure, shapes or dtypes are not those of `expected`."""
    found, wanted = jax.tree.structure(value), jax.tree.structure(expected)
    if found != wanted:
        raise ValueError(f"{name} must have the tree structure {wanted} ({why}), got {found}.")
    for (path, leaf), want in zip(
        tree_leaves_with_path(value), jax.tree.leaves(expected), strict=True
    ):
        if jnp.shape(leaf) != jnp.shape(want) or jnp.result_type(leaf) != jnp.result_type(want):
            raise ValueError(
                f"{name}{keystr(path)} must be {_kind(want)} ({why}), got {_kind(leaf)}."
            )


def _kind(leaf: Tree) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def same_shapes(name: str, found: Tree, expected: Tree) -> None:
    """Refuses arrays of other shapes, and names the first; dtypes and containers may differ."""
    shapes: dict[str, list] = {}
    for side, tree in enumerate((found, expected)):
        for path, leaf in tree_leaves_with_path(tree):
            both = shapes.setdefault(keystr(path), ["missing", "missing"])
            both[side] = list(jnp.shape(leaf))
    for path, (got, want) in sorted(shapes.items()):
        if got != want:
            raise ValueError(f"{name}{path} must have the shape {want}, got {got}.")


def one_for_each(name: str, value: Tree, shape: tuple[int, ...], what: str) -> None:
    """Refuses an array that does not have one entry for each of some things."""
    if jnp.shape(value) != shape:
        raise ValueError(
            f"{name} must have one entry per {what}, {list(shape)}, got shape {list(jnp.shape(value))}."
        )


def differences(there: Mapping[str, object], here: Mapping[str, object]) -> list[str]:
    """What two descriptions by name do not agree in."""
    return [
        f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]


def leading_axes(name: str, tree: Tree, expected: tuple[int | None, ...], letters: str) -> tuple:
    """Returns the shared leading axes of all leaves; None in `expected` stands for any size."""
    leaves = tree_leaves_with_path(tree)
    if not leaves:
        raise ValueError(f"{name} must hold at least one array, got an empty tree.")
    for path, leaf in leaves:
        shape = jnp.shape(leaf)
        first = shape[: len(expected)]
        known = tuple(
            got if want is None else want
            for want, got in zip(expected, (*first, *expected[len(first) :]), strict=True)
        )
        if first != known:
            wanted = ", ".join(
                letter if want is None else f"{letter}={want}"
                for letter, want in zip(letters, expected, strict=True)
            )
            raise ValueError(
                f"{name}{keystr(path)} must have leading axes [{wanted}], got shape {list(shape)}."
            )
        expected = known
    return expected
