"""Federated data that is larger than memory: written client by client, read through memory maps.

A directory holds one `.npy` file for each array of the examples, grouped by client, the clients' sizes
and names, and `clients.json`, which says what belongs there, with checksums of all of it and of itself.
It appears under its name only when it is complete. Where it is opened, nothing is read but what is asked
for; `fo.simulate` then keeps the examples on the host and sends each chunk of rounds those of its
cohorts.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedjax_opt.core.client_data import ClientData, StoredClients
from fedjax_opt.data.files import named
from fedjax_opt.data.gathering import Clients, gather

_INDEX, _NAMES, _SIZES = "clients.json", "names.json", "sizes"
_FORMAT, _VERSION = "fedjax_opt clients", 2
_PIECE = 2**24  # bytes that are read at once to verify


def store(
    clients: Clients | ClientData | StoredClients, directory: str | os.PathLike[str]
) -> StoredClients:
    """Writes clients one after the other into a directory, and opens it.

    The memory it needs is that of one client. If it is interrupted, the directory does not appear.

    Args:
      clients: pairs of a name and the examples of that client, a mapping of names to arrays `[n, ...]`;
        or a `ClientData`, whose clients are then named by their numbers.
      directory: where to write; it must not exist.

    Returns:
      The data, its examples memory-mapped.

    Example:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> home = pathlib.Path(tempfile.mkdtemp())
      >>> data = fo.data.store([("ann", {"x": np.zeros((2, 3), np.uint8)})], home / "people")
      >>> type(data.examples["x"]).__name__, fo.data.open_stored(home / "people").sizes.tolist()
      ('memmap', [2])
    """
    target = pathlib.Path(directory)
    if target.exists():
        raise ValueError(f"directory must not exist yet, got {target}. Open it with open_stored.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        _write(_pairs(clients), partial)
        os.chmod(partial, 0o755)  # temporary directories are closed to others
        os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return open_stored(target)


def open_stored(directory: str | os.PathLike[str], verify: bool = False) -> StoredClients:
    """Opens what `store` wrote, without reading the examples.

    Args:
      directory: where it is.
      verify: whether to read all of it once, and compare its checksums.

    Returns:
      The data, its examples memory-mapped and read-only.

    Example:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "people"
      >>> data = fo.data.store([("ann", {"x": np.arange(3)}), ("bob", {"x": np.arange(2)})], home)
      >>> fo.data.open_stored(home, verify=True)[1]["x"].tolist()
      [0, 1]
    """
    folder = pathlib.Path(directory)
    index = _read_index(folder)
    sizes = _open_sizes(folder, index)
    examples = {
        name: _open(folder / f"{name}.npy", about, verify)
        for name, about in index["arrays"].items()
    }
    try:
        data = ClientData.from_sizes(examples, sizes)
    except ValueError as error:
        raise ValueError(f"{folder} is damaged: {error}") from error
    files = _Files(folder.resolve(), index["crc32"], examples)
    return StoredClients(data.offsets, data.sizes, files, data.known)


@dataclasses.dataclass(frozen=True)
class _Files:
    """The arrays of a directory, compared by where it is and by what its index says of them."""

    folder: pathlib.Path
    checksum: int
    arrays: dict[str, np.memmap] = dataclasses.field(compare=False, repr=False)


def stored_names(directory: str | os.PathLike[str]) -> list[str]:
    """The names of the clients in a directory that `store` wrote, in order.

    Args:
      directory: where it is.

    Example:
      >>> import pathlib, tempfile
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "people"
      >>> data = fo.data.store([("ann", {"x": np.arange(3)}), ("bob", {"x": np.arange(2)})], home)
      >>> fo.data.stored_names(home)
      ['ann', 'bob']
    """
    folder = pathlib.Path(directory)
    names, index = _read_json(folder / _NAMES, list), _read_index(folder)
    count = len(_open_sizes(folder, index))
    if not all(isinstance(name, str) for name in names) or len(set(names)) != count:
        raise ValueError(f"{folder / _NAMES} is damaged: it must hold {count} different names.")
    _check(folder / _NAMES, (folder / _NAMES).read_bytes(), index[_NAMES]["crc32"])
    return names


def _pairs(clients: Clients | ClientData | StoredClients) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(clients, (ClientData, StoredClients)):
        yield from clients
        return
    for client in range(len(clients)):
        yield str(client), clients[client]


class _File:
    """One array in the making: a `.npy` file whose number of rows is filled in at the end."""

    def __init__(self, folder: pathlib.Path, name: str, array: np.ndarray) -> None:
        if array.dtype.hasobject:
            raise ValueError(f"Array {name!r} must hold numbers or text, got dtype {array.dtype}.")
        if not _can_be_stored(name):
            raise ValueError(f"{name!r} cannot be the name of an array that is stored.")
        self.rows, self.checksum = 0, 0
        self.kind, self.shape = array.dtype, array.shape[1:]
        self.file = open(folder / f"{name}.npy", "w+b")  # noqa: SIM115 -- closed by close
        self._write_header()
        self.start = self.file.tell()

    def _write_header(self) -> None:
        # NumPy leaves room for the first axis to grow, so the header keeps its length.
        described = np.lib.format.dtype_to_descr(self.kind)
        header = {"descr": described, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.file, header)

    def append(self, array: np.ndarray) -> None:
        content = array.tobytes()
        self.checksum = zlib.crc32(content, self.checksum)
        self.rows += len(array)
        self.file.write(content)

    def finish(self) -> dict[str, Any]:
        self.file.seek(0)
        self._write_header()
        assert self.file.tell() == self.start
        self.file.seek(0)
        header = zlib.crc32(self.file.read(self.start))
        return {"start": self.start, "crc32": self.checksum, "header_crc32": header}

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def _write(clients: Clients, folder: pathlib.Path) -> None:
    columns: dict[str, _File] = {}
    try:
        sizes, names = gather(clients, columns, functools.partial(_File, folder))
        arrays = {key: column.finish() for key, column in columns.items()}
    finally:
        for column in columns.values():
            column.close()
    counts = np.asarray(sizes, np.int32)
    np.save(folder / f"{_SIZES}.npy", counts)
    (folder / _NAMES).write_text(json.dumps(names), encoding="utf-8")
    index = {"format": _FORMAT, "version": _VERSION, "arrays": arrays}
    index |= {
        _SIZES: {"crc32": zlib.crc32((folder / f"{_SIZES}.npy").read_bytes())},
        _NAMES: {"crc32": zlib.crc32((folder / _NAMES).read_bytes())},
    }
    sealed = index | {"crc32": _own_checksum(index)}
    (folder / _INDEX).write_text(json.dumps(sealed, indent=1), encoding="utf-8")


def _own_checksum(index: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(index).encode())


def _read_json(path: pathlib.Path, kind: type) -> Any:
    if not path.is_file():
        raise ValueError(f"{path.parent} does not hold stored clients: {path.name} is missing.")
    with named(path, "is damaged"):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, kind):
        raise ValueError(f"{path} is damaged: it must hold a {kind.__name__}.")
    return found


def _read_index(folder: pathlib.Path) -> dict[str, Any]:
    index = _read_json(folder / _INDEX, dict)
    if (index.get("format"), index.get("version")) != (_FORMAT, _VERSION):
        raise ValueError(
            f"{folder / _INDEX} must describe {_FORMAT!r} of version {_VERSION}, got"
            f" {index.get('format')!r} of version {index.get('version')!r}."
        )
    arrays = index.get("arrays")
    if not isinstance(arrays, dict) or not arrays or not all(map(_can_be_stored, arrays)):
        raise ValueError(f"{folder / _INDEX} is damaged: it names no arrays that can be stored.")
    others = {name: index.get(name) for name in (_SIZES, _NAMES)}
    for name, about in {**arrays, **others}.items():
        if not isinstance(about, dict) or not isinstance(about.get("crc32"), int):
            raise ValueError(f"{folder / _INDEX} is damaged: it has no checksum of {name!r}.")
    sealed = index.pop("crc32", None)
    if sealed != _own_checksum(index):
        raise ValueError(f"{folder / _INDEX} is damaged: it does not have its own checksum.")
    return index | {"crc32": sealed}


def _can_be_stored(name: str) -> bool:
    """Whether an array of this name has a file of its own in the folder."""
    return pathlib.PurePath(name).name == name and name != _SIZES


def _open(path: pathlib.Path, about: dict[str, Any], verify: bool) -> np.memmap:
    """An array, after checking what its file says about it, and if asked for its content."""
    array = _load(path)
    with open(path, "rb") as file:
        _check(path, file.read(about["start"]), about["header_crc32"])
    if verify:
        rows, found = max(_PIECE // max(array[:1].nbytes, 1), 1), 0
        for start in range(0, len(array), rows):
            found = zlib.crc32(np.ascontiguousarray(array[start : start + rows]).tobytes(), found)
        if found != about["crc32"]:
            raise ValueError(f"{path} is damaged: its checksum is {found}, not {about['crc32']}.")
    return array


def _open_sizes(folder: pathlib.Path, index: dict[str, Any]) -> np.ndarray:
    path = folder / f"{_SIZES}.npy"
    sizes = np.array(_load(path))
    _check(path, path.read_bytes(), index[_SIZES]["crc32"])
    return sizes


def _load(path: pathlib.Path) -> np.memmap:
    with named(path, "is damaged"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not array.ndim:
        raise ValueError(f"{path} is damaged: it must hold one row an example.")
    return array


def _check(path: pathlib.Path, content: bytes, expected: int) -> None:
    if (found := zlib.crc32(content)) != expected:
        raise ValueError(f"{path} is damaged: its checksum is {found}, not {expected}.")
