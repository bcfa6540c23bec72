"""Clients that come one after the other: gathered in memory, or in files that outgrow it.

A directory holds one `.npy` file for each array of the examples, grouped by client, the clients' sizes
and names, and `clients.json`, which says what belongs there, with the SHA-256 of each file. It appears
under its name only when it is complete. Where it is opened, nothing is read but what is asked for;
`fo.simulate` then keeps the examples on the host and sends each chunk of rounds those of its cohorts.
"""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData, StoredClients
from fedjax_opt.data.files import digest, named

Clients = Iterable[tuple[str, dict[str, chex.ArrayNumpy]]]

_INDEX, _NAMES, _SIZES = "clients.json", "names.json", "sizes.npy"
_FORMAT, _VERSION = "fedjax_opt clients", 4


def collect(clients: Clients) -> tuple[ClientData, list[str]]:
    """Gathers clients one after the other into memory, which holds them once.

    Args:
      clients: pairs of a name and the examples of that client, a mapping of names to arrays `[n, ...]`;
        what the readers of federated files return.

    Returns:
      The data, and the name of each client.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> pairs = [("ann", {"x": np.zeros((2, 3))}), ("bob", {"x": np.ones((1, 3))})]
      >>> data, names = fo.data.collect(pairs)
      >>> data.sizes.tolist(), names
      ([2, 1], ['ann', 'bob'])
    """
    columns, sizes, names = _gather(clients, lambda key, array: _Column(array, io.BytesIO()))
    examples = {key: column.array() for key, column in columns.items()}
    return ClientData.from_sizes(examples, sizes), names


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
    if isinstance(clients, (ClientData, StoredClients)):
        data = clients
        clients = ((str(client), data[client]) for client in range(len(data)))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        _write(clients, partial)
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
    index, checksum = _read_index(folder)
    sizes = np.load(_whole(folder, _SIZES, index))
    examples = {}
    for name, about in index["arrays"].items():
        path = folder / f"{name}.npy"
        with named(path, "is damaged"):
            array = examples[name] = np.load(path, mmap_mode="r", allow_pickle=False)
            found = {"dtype": array.dtype.str, "shape": list(array.shape)}
            if about != found or not array.flags.c_contiguous:
                raise ValueError(f"it holds {found}, not {about}")
        if verify:
            _whole(folder, path.name, index)
    data = ClientData.from_sizes(examples, sizes)
    files = _Files(folder.resolve(), checksum, examples)
    return StoredClients(data.offsets, data.sizes, files, data.known)


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
    path = _whole(folder, _NAMES, _read_index(folder)[0])
    return json.loads(path.read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class _Files:
    """The arrays of a directory, compared by where it is and by what its index says of them."""

    folder: pathlib.Path
    checksum: int
    arrays: dict[str, np.memmap] = dataclasses.field(compare=False, repr=False)


class _Column:
    """One array in the making, appended to a stream; text and other objects to a list."""

    def __init__(self, array: chex.ArrayNumpy, stream: io.BytesIO | BinaryIO) -> None:
        self.kind, self.shape, self.stream = array.dtype, array.shape[1:], stream
        self.rows = 0
        self.objects: list[chex.ArrayNumpy] = []

    def append(self, array: chex.ArrayNumpy) -> None:
        self.rows += len(array)
        if self.kind.hasobject:
            self.objects.append(array)
        else:
            self.stream.write(array.tobytes())

    def array(self) -> chex.ArrayNumpy:
        """What was appended to a stream in memory, which is not copied."""
        if self.kind.hasobject:
            return np.concatenate(self.objects)
        assert isinstance(self.stream, io.BytesIO)
        return np.ndarray((self.rows, *self.shape), self.kind, self.stream.getbuffer())

    def write_header(self) -> None:
        """Begins a `.npy` file, or says in the end how many rows it has come to have."""
        # NumPy leaves room for the first axis to grow, so the header keeps its length.
        self.stream.seek(0)
        described = np.lib.format.dtype_to_descr(self.kind)
        header = {"descr": described, "fortran_order": False, "shape": (self.rows, *self.shape)}
        np.lib.format.write_array_header_1_0(self.stream, header)


def _gather(
    clients: Clients, column: Callable[[str, chex.ArrayNumpy], _Column]
) -> tuple[dict[str, _Column], list[int], list[str]]:
    """Appends each client to columns made for the first; also the clients' sizes and names."""
    columns: dict[str, _Column] = {}
    first: dict[str, tuple[Any, Any]] = {}
    sizes: dict[str, int] = {}
    for name, examples in clients:
        if not isinstance(name, str):
            raise ValueError(f"clients must be named by strings, got {name!r:.60}.")
        if name in sizes:
            raise ValueError(f"clients must have different names, but {name!r} comes twice.")
        if not isinstance(examples, dict) or not examples:
            raise ValueError(f"The examples of client {name!r} must be a mapping of arrays.")
        arrays = {key: np.ascontiguousarray(value) for key, value in examples.items()}
        (sizes[name],) = checks.leading_axes(f"client {name!r}", arrays, (None,), "n")
        if sizes[name] == 0:
            raise ValueError(f"Every client must hold at least one example, but {name!r} does not.")
        kinds = {key: (array.dtype, array.shape[1:]) for key, array in arrays.items()}
        first = first or kinds
        if kinds != first:
            expected, got = (
                ", ".join(f"{key}: {dtype}{list(shape)}" for key, (dtype, shape) in some.items())
                for some in (first, kinds)
            )
            raise ValueError(
                f"The examples of client {name!r} must be like those before it, {expected}, got {got}."
            )
        for key, array in arrays.items():
            if key not in columns:
                columns[key] = column(key, array)
            columns[key].append(array)
    if not sizes:
        raise ValueError("clients must hold at least one client, got none.")
    return columns, list(sizes.values()), list(sizes)


def _write(clients: Clients, folder: pathlib.Path) -> None:
    with contextlib.ExitStack() as opened:

        def begin(key: str, array: chex.ArrayNumpy) -> _Column:
            if array.dtype.hasobject:
                raise ValueError(f"Array {key!r} must hold numbers or text, got {array.dtype}.")
            if pathlib.PurePath(key).name != key or f"{key}.npy" == _SIZES:
                raise ValueError(f"{key!r} cannot be the name of an array that is stored.")
            column = _Column(array, opened.enter_context(open(folder / f"{key}.npy", "w+b")))
            column.write_header()
            return column

        columns, sizes, names = _gather(clients, begin)
        for column in columns.values():
            column.write_header()
    np.save(folder / _SIZES, np.asarray(sizes, np.int32))
    (folder / _NAMES).write_text(json.dumps(names), encoding="utf-8")
    index = {
        "format": _FORMAT,
        "version": _VERSION,
        "arrays": {
            key: {"dtype": column.kind.str, "shape": [column.rows, *column.shape]}
            for key, column in columns.items()
        },
        "sha256": {path.name: digest([path], path) for path in sorted(folder.iterdir())},
    }
    (folder / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _read_index(folder: pathlib.Path) -> tuple[dict[str, Any], int]:
    """What `clients.json` says, and its checksum, which is one of all files."""
    path = folder / _INDEX
    if not path.is_file():
        raise ValueError(f"{folder} does not hold stored clients: {_INDEX} is missing.")
    with named(path, "is damaged"):
        content = path.read_bytes()
        index = json.loads(content)
        found = index["format"], index["version"]
    if found != (_FORMAT, _VERSION):
        raise ValueError(
            f"{path} must describe {_FORMAT!r} of version {_VERSION}, got {found[0]!r} of version"
            f" {found[1]!r}."
        )
    return index, zlib.crc32(content)


def _whole(folder: pathlib.Path, name: str, index: dict[str, Any]) -> pathlib.Path:
    """A file, after comparing its checksum."""
    path = folder / name
    with named(path, "is damaged"):
        if (found := digest([path], path)) != index["sha256"][name]:
            raise ValueError(f"its checksum is {found}")
    return path
