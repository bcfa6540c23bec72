"""Clients that the data names itself: users, writers, speaking roles."""

from typing import Any

import numpy as np

from fedjax_opt.core import checks


def by_key(keys: Any, min_size: int = 1) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Makes a client of all examples that share a key, such as a user, a writer or a role.

    Clients are numbered in the order in which their keys first occur.

    Args:
      keys: One key per example, `[n]`: an array of integers or strings, or a sequence of anything
        hashable, such as pairs of a play and a role. Missing ones (None, NaN) are refused.
      min_size: Smallest number of examples of a client. Clients with fewer are dropped: they have no
        name, and the id of their examples is -1.

    Returns:
      `(ids, names)`: client ids, int32 `[n]`, and the key of each client. If clients may have been
      dropped, keep the examples where `ids >= 0`; `ClientData.from_arrays` refuses the others.

    Example:
      >>> keys = ["ann", "bob", "ann", "cy", "bob"]
      >>> by_key(keys)
      (array([0, 1, 0, 2, 1], dtype=int32), ('ann', 'bob', 'cy'))
      >>> by_key(keys, min_size=2)
      (array([ 0,  1,  0, -1,  1], dtype=int32), ('ann', 'bob'))
    """
    checks.integer("min_size", min_size, low=1)
    if isinstance(keys, np.ndarray) and keys.ndim != 1:
        raise ValueError(f"keys must be a vector, got shape {list(keys.shape)}.")
    codes, names = _array_codes(keys) if _is_plain(keys) else _object_codes(keys)
    if not names:
        raise ValueError("keys must hold at least one key, got none.")
    large = np.bincount(codes) >= min_size
    if not large.any():
        raise ValueError(
            f"min_size must be at most {np.bincount(codes).max()}, the size of the largest client, got"
            f" {min_size}."
        )
    renumbered = np.where(large, np.cumsum(large) - 1, -1).astype(np.int32)
    return renumbered[codes], tuple(name for name, keep in zip(names, large, strict=True) if keep)


def _is_plain(keys: Any) -> bool:
    return isinstance(keys, np.ndarray) and keys.dtype.kind in "biufUS"


def _array_codes(keys: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        raise ValueError(f"keys must not be missing, but keys[{np.isnan(keys).argmax()}] is nan.")
    values, first, codes = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return np.argsort(order)[codes], values[order].tolist()


def _object_codes(keys: Any) -> tuple[np.ndarray, list[Any]]:
    """Not by NumPy, which would read the keys 1 and "1" of a list as the same."""
    if isinstance(keys, (str, bytes, set, frozenset, dict)) or not hasattr(keys, "__iter__"):
        raise ValueError(f"keys must be a sequence with one key per example, got {keys!r:.60}.")
    numbers: dict[Any, int] = {}
    codes = []
    for i, key in enumerate(keys):
        try:
            missing = key is None or bool(key != key)
            codes.append(numbers.setdefault(key, len(numbers)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"keys must be hashable, but keys[{i}] is {key!r:.60}.") from error
        if missing:
            raise ValueError(f"keys must not be missing, but keys[{i}] is {key!r}.")
    return np.asarray(codes, np.int64), list(numbers)
