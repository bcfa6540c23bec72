"""Checks on arguments: each failure names the argument, its value and what is allowed.

Values are checked only where they are known. Under `jit`, `vmap` or `grad` a value is a tracer:
then shapes and dtypes are still checked, values are trusted.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def is_traced(*values: Any) -> bool:
    """Says whether any leaf of the values is known only inside a transformation."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def as_array(name: str, value: Any) -> Any:
    """Lists and plain numbers as NumPy arrays, arrays as they are, anything else refused."""
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number):
        raise ValueError(f"{name} must be a number or an array of numbers, got {value!r}.")
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
    """Returns `value` after checking that every known entry lies in the interval.

    A Python int comes back as a float: 1 and 1.0 should not be compiled twice.
    """
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
    return float(value) if isinstance(value, int) else value


def integer(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    """Returns `value` as an int after checking that it is a whole number within the limits."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {limits}, got {value!r}.")
    return int(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """Returns `value` after checking that it is one of the allowed names."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


def trainable(params: Any) -> None:
    """Refuses parameters that no gradient can change."""
    if not jax.tree.leaves(params):
        raise ValueError("variables.params has no leaves: there is nothing to train.")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"params{jax.tree_util.keystr(path)} has dtype {dtype}; parameters must be floating"
                " point. Put counters, tables and other values that are not trained in"
                " variables.state."
            )


def same_structure(name: str, value: Any, expected: Any, why: str) -> None:
    """Refuses a pytree whose structure, shapes or dtypes are not those of `expected`."""
    found, wanted = jax.tree.structure(value), jax.tree.structure(expected)
    if found != wanted:
        raise ValueError(f"{name} must have the tree structure {wanted} ({why}), got {found}.")
    for (path, leaf), want in zip(
        jax.tree_util.tree_leaves_with_path(value), jax.tree.leaves(expected), strict=True
    ):
        if jnp.shape(leaf) != jnp.shape(want) or jnp.result_type(leaf) != jnp.result_type(want):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must be"
                f" {jnp.result_type(want)}{list(jnp.shape(want))} ({why}), got"
                f" {jnp.result_type(leaf)}{list(jnp.shape(leaf))}."
            )


def leading_axes(name: str, tree: Any, expected: tuple[int | None, ...], letters: str) -> tuple:
    """Returns the shared leading axes of all leaves; None in `expected` stands for any size."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        raise ValueError(f"{name} must hold at least one array, got an empty tree.")
    sizes = list(expected)
    for path, leaf in leaves:
        shape = jnp.shape(leaf)
        ok = len(shape) >= len(sizes) and all(
            want is None or want == got for want, got in zip(sizes, shape, strict=False)
        )
        if not ok:
            wanted = ", ".join(
                letter if want is None else f"{letter}={want}"
                for letter, want in zip(letters, sizes, strict=True)
            )
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must have leading axes [{wanted}], got shape"
                f" {list(shape)}."
            )
        sizes = [
            got if want is None else want
            for want, got in zip(sizes, shape[: len(sizes)], strict=True)
        ]
    return tuple(sizes)
