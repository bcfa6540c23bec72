"""The files of TensorFlow Federated's data sets, HDF5 and SQLite, without TensorFlow.

HDF5 files have a group `examples`, in it a group for each client, and in that an array for each feature.
SQLite files have a table `examples` with `split_name`, `client_id` and a serialized `tf.train.Example`
in each row, and a table `client_metadata`.
"""

import contextlib
import lzma
import os
import pathlib
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_opt.data import files as cells
from fedjax_opt.data.sources import example_proto, hdf5_heaps

_LIKELY_RATIO, _PIECE = 1000, 2**20
_LONGEST = 10**9  # bytes of a value, as SQLite has it


def read_hdf5(
    path: str | os.PathLike[str], columns: cells.Columns | None = None
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Reads an HDF5 file of TensorFlow Federated, client by client.

    Numbers of 64 bits become int32 and float32, if they fit, and text arrays of objects; numbers of
    fewer bits keep their types. Clients without examples are passed over.

    Args:
      path: The file.
      columns: Which features to read, `{"x": "pixels", "y": "label"}`, by the names that they get.
        None: all, under their own names.

    Returns:
      Pairs of a client's name and its examples.

    Example:
      >>> import fedjax_opt as fo
      >>> columns = {"x": "pixels", "y": "label"}
      >>> clients = fo.data.read_hdf5("fed_emnist_train.h5", columns)  # doctest: +SKIP
    """
    h5py = cells.optional("h5py", "read_hdf5", "hdf5")
    file = pathlib.Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"path must be an HDF5 file, got {file}.")
    return _hdf5_clients(h5py, file, columns)


def _hdf5_clients(h5py, path, columns):
    with cells.named(path, "is not an HDF5 file that can be read"), h5py.File(path, "r") as file:
        groups = _own(h5py, file, "examples", h5py.Group, str(path))
        heaps_are_whole = False
        for name in groups:
            origin = f"{path}: client {name!r:.60}"
            client = _own(h5py, groups, name, h5py.Group, origin)
            features = {}
            for key, feature in cells.choose(client, columns, (), origin).items():
                data = _own(h5py, client, feature, h5py.Dataset, origin)
                if data.dtype.kind == "O" and not heaps_are_whole:
                    hdf5_heaps.check(path)
                    heaps_are_whole = True
                features[key] = _feature(h5py, data, path, f"{origin}: {feature!r}")
            sizes = {len(values) for values in features.values()}
            if len(sizes) > 1:
                raise ValueError(f"{origin} must have as many examples in every feature.")
            if sizes != {0}:
                yield name, features


def _own(h5py: Any, group: Any, name: str, kind: Any, origin: str) -> Any:
    """A member of a group that is in this very file: a link could lead to any file."""
    link = group.get(name, getlink=True)
    member = group[name] if isinstance(link, h5py.HardLink) else None
    if not isinstance(member, kind):
        raise ValueError(f"{origin} must have a {kind.__name__.lower()} {name!r}, and has none.")
    return member


def _feature(h5py: Any, data: Any, path: pathlib.Path, origin: str) -> np.ndarray:
    if data.is_virtual or data.external or data.ndim < 1:
        raise ValueError(f"{origin} must be an array [n, ...] within the file.")
    # Without chunks there is no compression; nor is there for text of any length, kept apart.
    size, packed = path.stat().st_size, data.chunks and data.dtype.kind != "O"
    if data.nbytes > (_LIKELY_RATIO * (size + _PIECE) if packed else size):
        raise ValueError(f"{origin} would unpack to {data.nbytes} bytes.")
    if data.ndim == 1 and h5py.check_string_dtype(data.dtype):
        return cells.objects([_text(value) for value in data[()].tolist()])
    if data.dtype.kind not in "biuf":
        raise ValueError(f"{origin} must be numbers, or one text in each example, and is not.")
    return cells.values(data[()], origin)


def read_sqlite(
    path: str | os.PathLike[str],
    split: str | None = None,
    columns: cells.Columns | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Reads an SQLite file of TensorFlow Federated, client by client.

    Floating-point features become float32, whole numbers int32, if they fit, and text arrays of objects.
    Features with one value in each example become vectors. Clients without examples are passed over.

    Args:
      path: The file, also compressed as `.lzma` or `.xz` (it is then unpacked to a temporary file).
      split: The split to read, such as `train`. None: the only one.
      columns: Which features to read, `{"x": "pixels", "y": "label"}`, by the names that they get.
        None: all, under their own names.
      shapes: The shapes of examples, `{"x": (28, 28)}`; files keep features flat.

    Returns:
      Pairs of a client's name and its examples.

    Example:
      >>> import fedjax_opt as fo
      >>> columns, shapes = {"x": "pixels", "y": "label"}, {"x": (28, 28)}
      >>> clients = fo.data.read_sqlite(
      ...     "emnist_all.sqlite", "all_train", columns, shapes
      ... )  # doctest: +SKIP
    """
    file = pathlib.Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"path must be an SQLite file, got {file}.")
    return _sqlite_clients(file, split, columns, shapes or {})


def _sqlite_clients(path, split, columns, shapes):
    wrong = "is not an SQLite file that can be read"
    with _unpacked(path) as plain, cells.named(path, wrong):
        address = f"file:{urllib.parse.quote(str(plain.resolve()))}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            room = plain.stat().st_size
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(room, _LONGEST))
            split = _split(database, path, split)
            query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
            sizes = dict(database.execute(f"{query} ORDER BY client_id", (split,)))
            for name, size in sizes.items():
                query = "SELECT serialized_example_proto FROM examples WHERE split_name = ?"
                found = database.execute(f"{query} AND client_id = ?", (split, name))
                origin = f"{path}: client {name!r:.60}"
                rows = list(_within(found, room, origin))
                if len(rows) != size:
                    said = f"client_metadata says {size}"
                    raise ValueError(f"{origin} has {len(rows)} examples, but {said}.")
                if rows:
                    records = [example_proto.parse(row, origin) for row in rows]
                    yield str(name), _stacked(records, columns, shapes, origin)


def _within(rows: Iterator[tuple[Any]], room: int, origin: str) -> Iterator[Any]:
    """The values of the rows, which a file may compute instead of holding them: then there is no end."""
    for (value,) in rows:
        room -= len(value) if isinstance(value, (bytes, str)) else 0
        if room < 0:
            raise ValueError(f"{origin} has more in its examples than the file can hold.")
        yield value


def _split(database: sqlite3.Connection, path: pathlib.Path, split: str | None) -> str:
    tables = dict(database.execute("SELECT name, type FROM sqlite_master"))
    for name in ("examples", "client_metadata"):
        if tables.get(name) != "table":
            raise ValueError(f"{path} must have a table {name!r}, and has none.")
    splits = [row[0] for row in database.execute("SELECT DISTINCT split_name FROM client_metadata")]
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        raise ValueError(
            f"split must be one of {', '.join(map(repr, splits))} for {path}, got {split!r}."
        )
    return split


def _stacked(records, columns, shapes, origin):
    chosen = cells.choose(records[0], columns, (), origin)
    found = {}
    for key, name in chosen.items():
        values = [record.get(name) for record in records]
        # Lists of bytes have no dtype.
        kinds = {v is not None and (getattr(v, "dtype", bytes), len(v)) for v in values}
        if len(kinds) > 1:
            raise ValueError(
                f"{origin}: {name!r} must have as many values of one kind in every example."
            )
        if isinstance(values[0], list):
            if len(values[0]) != 1:
                raise ValueError(f"{origin}: {name!r} must be one text in each example.")
            found[key] = cells.objects([_text(value[0]) for value in values])
            continue
        array = cells.values(np.stack(values), f"{origin}: {name!r}")
        shape = shapes.get(key, () if array.shape[1] == 1 else array.shape[1:])
        try:
            found[key] = array.reshape(len(array), *shape)
        except ValueError as error:
            have = list(array.shape[1:])
            raise ValueError(f"{origin}: {name!r} is {have}, not {list(shape)}.") from error
    return found


def _text(value: Any) -> Any:
    """Bytes as text where they are text."""
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


@contextlib.contextmanager
def _unpacked(path: pathlib.Path) -> Iterator[pathlib.Path]:
    if path.suffix not in (".lzma", ".xz"):
        yield path
        return
    limit = _LIKELY_RATIO * path.stat().st_size + _PIECE
    with tempfile.TemporaryDirectory() as folder:
        plain = pathlib.Path(folder) / "plain.sqlite"
        try:
            with lzma.open(path) as packed, plain.open("wb") as stream:
                while piece := packed.read(_PIECE):
                    stream.write(piece)
                    if stream.tell() > limit:
                        raise ValueError(f"{path} unpacks to more than {limit} bytes.")
        except (lzma.LZMAError, EOFError) as error:
            raise ValueError(f"{path} is damaged: {error}.") from error
        yield plain
