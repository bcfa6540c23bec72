"""Arrays and tables with a column that says whose each row is."""

import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedjax_opt.data.sources import columns as cells

_BYTES_UNQUESTIONED, _LIKELY_RATIO = 2**30, 200


def read_npz(
    path: str | os.PathLike[str], client: str = "client", columns: cells.Columns | None = None
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Reads a `.npz` file with the client of each example.

    Numbers of 64 bits become int32 and float32, if they fit; others and text keep their types.

    Args:
      path: The file. It is read into memory; arrays of objects, which are pickles, are refused.
      client: The array of the clients' names or numbers, `[n]`.
      columns: Which arrays to read, `{"x": "images", ...}`, by the names that they get. None: all.

    Returns:
      Pairs of a client's name and its examples, in the order of the names or numbers.

    Example:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "data.npz"
      >>> np.savez(file, x=np.arange(3), client=np.array(["bob", "ann", "bob"]))
      >>> [(name, examples["x"].tolist()) for name, examples in fo.data.read_npz(file)]
      [('ann', [1]), ('bob', [0, 2])]
    """
    arrays = _load(pathlib.Path(path))
    if client not in arrays:
        raise ValueError(
            f"client must name an array of {path}, which has {', '.join(map(repr, arrays))};"
            f" got {client!r}."
        )
    chosen = cells.choose(arrays, columns, (client,), str(path))
    ids = arrays[client]
    for name in chosen.values():
        if ids.ndim != 1 or arrays[name].shape[:1] != ids.shape:
            raise ValueError(
                f"{path}: {client!r} must be a vector with one entry for each row of {name!r}, got"
                f" shapes {list(ids.shape)} and {list(arrays[name].shape)}."
            )
    found = {key: _plain(arrays[name], f"{path}: {name!r}") for key, name in chosen.items()}
    return _groups(ids, found, str(path))


def read_table(
    table: Any, client: str, columns: cells.Columns | None = None
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Reads a table whose columns have names, such as a Hugging Face `datasets.Dataset`.

    Numbers of 64 bits become int32 and float32, if they fit, images arrays of their pixels, and text
    arrays of objects; numbers of fewer bits keep their types.

    Args:
      table: Anything with `column_names` and a column for each, `table[name]`. Of a `datasets.Dataset`
        no more than one client's rows are read at once.
      client: The column of the clients' names or numbers.
      columns: Which columns to read, `{"x": "image", "y": "label"}`, by the names that they get. None:
        all but the client's.

    Returns:
      Pairs of a client's name and its examples, in the order of the names or numbers.

    Example:
      >>> import fedjax_opt as fo
      >>> class Table(dict):
      ...     column_names = property(list)
      >>> table = Table(user=["bob", "ann", "bob"], label=[0, 1, 2])
      >>> clients = fo.data.read_table(table, client="user", columns={"y": "label"})
      >>> [(name, examples["y"].tolist()) for name, examples in clients]
      [('ann', [1]), ('bob', [0, 2])]
    """
    names = getattr(table, "column_names", None)
    if names is None or isinstance(names, dict):
        raise ValueError(
            f"table must have column_names, and be one split, got a {type(table).__name__}."
        )
    chosen = cells.choose(names, columns, (client,), "the table")
    if client not in names:
        raise ValueError(f"client must be one of {', '.join(map(repr, names))}, got {client!r}.")
    ids = cells.objects(
        [i.item() if isinstance(i, np.generic) else i for i in _cells(table, client)]
    )
    if hasattr(table, "with_format") and hasattr(table, "select"):  # rows can be read as needed
        return _selected(table, ids, chosen)
    arrays = {key: _column(table, name, "the table") for key, name in chosen.items()}
    for key, array in arrays.items():
        if len(array) != len(ids):
            raise ValueError(f"Column {chosen[key]!r} must have {len(ids)} rows, got {len(array)}.")
    return _groups(ids, arrays, "the table")


def _selected(table, ids, chosen):
    for name, rows in _rows(ids, "the table"):
        part = table.select(rows)
        yield name, {key: _column(part, column, name) for key, column in chosen.items()}


def _cells(table: Any, name: str) -> list[Any]:
    values = table[name]
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _column(table: Any, name: str, origin: str) -> np.ndarray:
    values = _cells(table, name)
    if all(isinstance(value, (str, bytes)) for value in values):
        return cells.objects(values)
    try:
        array = np.asarray([np.asarray(value) for value in values])
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{origin}: column {name!r} must have rows of one shape: {error}"
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{origin}: column {name!r} must be numbers, images or text throughout.")
    return cells.values(array, f"{origin}: column {name!r}")


def _plain(array: np.ndarray, origin: str) -> np.ndarray:
    return array if array.dtype.kind in "US" else cells.values(array, origin)


def _groups(ids: np.ndarray, arrays: dict[str, np.ndarray], origin: str):
    for name, rows in _rows(ids, origin):
        yield name, {key: array[rows] for key, array in arrays.items()}


def _rows(ids: np.ndarray, origin: str) -> Iterator[tuple[str, np.ndarray]]:
    """Each client's name and rows."""
    if not len(ids):
        raise ValueError(f"{origin} has no rows.")
    if ids.dtype.kind not in "iuUO" or any(not isinstance(i, (int, str)) for i in ids.tolist()):
        raise ValueError(f"{origin}: clients must be named by text or whole numbers.")
    try:
        names, numbers = np.unique(ids, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"{origin}: clients must be named all by text or all by numbers."
        ) from error
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers))
    for name, rows in zip(names.tolist(), np.split(order, ends[:-1]), strict=True):
        yield str(name), rows


def _load(path: pathlib.Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise FileNotFoundError(f"path must be a .npz file, got {path}.")
    with cells.named(path, "is not a .npz file that can be read"):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > max(_BYTES_UNQUESTIONED, _LIKELY_RATIO * path.stat().st_size):
            raise ValueError(f"it would unpack to {unpacked} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        for name, array in found.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name!r} in it is no array")
    return found
