"""Columns of examples: values of files as arrays, under the names that a model reads."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

Columns = Mapping[str, str]


def optional(module: str, purpose: str) -> Any:
    """Imports a package that only some readers need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("PIL", "Pillow")
        raise ImportError(f"{purpose} needs {package}: pip install 'fedjax_opt[data]'.") from error


@contextlib.contextmanager
def named(path: str | os.PathLike[str], wrong: str) -> Iterator[None]:
    """Makes an error that names the file of whatever a parser raises at a damaged one."""
    try:
        yield
    except Exception as error:  # those of many packages, which have no class in common
        if isinstance(error, ValueError) and os.fspath(path) in str(error):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} {wrong}: {said:.100}.") from error


def choose(
    available: Iterable[str], columns: Columns | None, leave_out: tuple[str, ...], origin: str
) -> dict[str, str]:
    """Names in the result -> names in the file: those asked for, or all."""
    names = list(available)
    chosen = {name: name for name in names if name not in leave_out}
    if columns is not None:
        chosen = dict(columns)
    if not chosen:
        raise ValueError(f"{origin} has no columns of examples, only {names}.")
    for name in chosen.values():
        if name not in names:
            raise ValueError(
                f"columns must name columns of {origin}, which are {', '.join(map(repr, names))};"
                f" got {name!r}."
            )
    return chosen


def texts(values: Iterable[Any], origin: str) -> np.ndarray:
    """Strings as an array of objects: NumPy's own strings are as long as the longest."""
    found = list(values)
    for value in found:
        if not isinstance(value, str):
            raise ValueError(f"{origin} must be text, got a {type(value).__name__}.")
    return objects(found)


def objects(values: list[Any]) -> np.ndarray:
    """Any values as a vector of objects."""
    return np.fromiter(values, object, len(values))


def values(array: np.ndarray, origin: str) -> np.ndarray:
    """Numbers as a model can take them: finite, and whole ones within int32.

    JAX has 32 bits for a number unless told otherwise, and would cut longer ones without a word: here
    they become int32 or float32, or are refused. Shorter ones keep their types.
    """
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX takes no other order
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int32)):
        return array
    if array.dtype.kind in "iu":
        return labels(array, origin)
    if array.dtype.kind != "f":
        raise ValueError(f"{origin} must be numbers, got {array.dtype}.")
    if array.dtype.itemsize > 4:
        return numbers(array, origin)
    return _finite(array, origin)


def numbers(values: Any, origin: str) -> np.ndarray:
    """Finite numbers as float32, all rows of one shape."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{origin} must be rows of one shape: {error!s:.100}") from error
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{origin} must be numbers in rows of one length, and are not.")
    with np.errstate(over="ignore"):  # it is looked for below
        return _finite(array.astype(np.float32), origin)


def _finite(array: np.ndarray, origin: str) -> np.ndarray:
    if not np.isfinite(array).all():
        raise ValueError(f"{origin} must be finite numbers that fit float32, and are not.")
    return array


def labels(values: Any, origin: str) -> np.ndarray:
    """Whole numbers as int32."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{origin} must be whole numbers: {error!s:.100}") from error
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{origin} must be whole numbers that fit int32, and are not.")
    limits = np.iinfo(np.int32)
    if array.size and not (
        np.isfinite(array).all()
        and array.min() >= limits.min
        and array.max() <= limits.max
        and np.all(array == np.trunc(array))
    ):
        raise ValueError(f"{origin} must be whole numbers that fit int32, and are not.")
    return array.astype(np.int32)


def encoded(
    values: np.ndarray, encode: Callable[[list[str]], Any] | None, origin: str
) -> np.ndarray:
    """Texts through the user's function, if there is one."""
    if encode is None:
        return values
    array = np.asarray(encode(values.tolist()))
    if array.shape[:1] != values.shape:
        raise ValueError(
            f"encode must return one row a text, {len(values)} of them for {origin}, got shape"
            f" {list(array.shape)}."
        )
    return array
