"""Rows of client state on disk: sparse files, a shard of the clients in each.

    client_state.json   whose states these are, which part of all clients, and up to which round
    initial.bin         the row of a client that has none of its own
    checksums.bin       a CRC-32 per client; 0 for one without a row
    rows-00000.bin ...  the rows of the first shard of clients, ...
    undo-A-B.bin        the rows as they were in round A, for going back from round B

Only written rows take room: a file with holes is as large as what is in it. Rows are read and written
by their positions rather than through a map of the file, since a full disk is then an error that can
be caught, and what was read does not count as this process's memory.

A chunk of rounds is applied in four steps, each on the disk before the next begins: the old rows are
written to an `undo` file, the rows and their checksums are replaced, the new round is written to the
index. If the process ends in between, the index still has the old round, and opening the folder puts
the old rows back.

A shelf holds all clients, or every n-th of them, whose rows then stand next to each other.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedjax_opt.storage import durable, undo_files
from fedjax_opt.storage.shelves import Undo

INDEX, _INITIAL, _CHECKSUMS, _LOCK = "client_state.json", "initial.bin", "checksums.bin", "lock"
_FORMAT, _VERSION = "fedjax_opt client state", 1
_SHARD_BYTES = 2**34  # each shard that is written to is one more file to wait for


class DiskShelf:
    """Rows in a folder; opened by one process at a time.

    Args:
      folder: what `create` has made.
      part: which part of how many it holds: client i is in part i mod the second.
    """

    def __init__(self, folder: pathlib.Path, part: tuple[int, int] = (0, 1)) -> None:
        self._folder = folder
        # Whoever forgets to close it lets go of the folder all the same.
        self._let_go = weakref.finalize(self, os.close, durable.lock(folder / _LOCK))
        self._index: dict[str, Any]
        try:
            self._index = _read_index(folder / INDEX, part)
            self._parts = part[1]
            self._num_rows = _num_rows(self._index["num_clients"], part)
            self.initial = self._read_initial()
            self._check_size(folder / _CHECKSUMS, 4 * self._num_rows)
            self._recover()
        except BaseException:
            self.close()
            raise

    @property
    def round(self) -> int:
        """The round that all rows are of."""
        return self._index["round"]

    @property
    def about(self) -> dict[str, Any]:
        """Whose rows these are."""
        return self._index["about"]

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of clients, and who has one; each compared with its checksum."""
        rows = np.zeros((len(ids), len(self.initial)), np.uint8)
        expected = self._read_checksums(ids)
        for path, size, members, positions in self._shards(ids):
            if path.exists():
                self._check_size(path, size)
                with durable.opened(path, "rb") as file:
                    for member, position in zip(members, positions, strict=True):
                        file.seek(position)
                        durable.read_all(file, rows[member])
            for member in members:
                client, row, known = int(ids[member]), rows[member], expected[member] != 0
                wrong = _checksum(client, row) != expected[member] if known else row.any()
                if wrong:
                    raise ValueError(
                        f"{path} is damaged: the row of client {client} does not have the checksum"
                        f" that {_CHECKSUMS} beside it names."
                    )
        return rows, expected != 0

    def put(self, ids: np.ndarray, rows: np.ndarray, known: np.ndarray) -> None:
        """Replaces rows; a client that is not known has none any more."""
        rows = np.where(known[:, None], rows, np.uint8(0))
        for path, size, members, positions in self._shards(ids):
            if not path.exists():
                with durable.opened(path, "xb") as file:
                    file.truncate(size)
                durable.settle(self._folder)
            self._check_size(path, size)
            with durable.opened(path, "r+b") as file:
                for member, position in zip(members, positions, strict=True):
                    file.seek(position)
                    durable.write_all(file, rows[member])
        with durable.opened(self._folder / _CHECKSUMS, "r+b") as file:
            for client, row, has in zip(ids.tolist(), rows, known, strict=True):
                file.seek(4 * (client // self._parts))
                durable.write_all(file, np.uint32(_checksum(client, row) if has else 0).tobytes())

    def record(self, undo: Undo) -> None:
        """Writes down what is about to be replaced."""
        undo_files.write(self._folder, undo)

    def commit(self, round_number: int) -> None:
        """Says that all rows are those of a round."""
        index = self._index | {"round": round_number}
        durable.write_json(self._folder / INDEX, index)
        self._index = index

    def newest(self) -> Undo | None:
        """What takes the shelf back by one step, if it can go."""
        steps = undo_files.steps(self._folder)
        return undo_files.read(steps[-1].path, len(self.initial)) if steps else None

    def forget_newest(self) -> None:
        """Drops that step, which was taken."""
        undo_files.steps(self._folder)[-1].path.unlink()

    def forget_oldest(self, keep: int) -> None:
        """Drops all but the newest steps."""
        for step in undo_files.steps(self._folder)[:-keep]:
            step.path.unlink()

    def reachable(self) -> list[int]:
        """The rounds that it can be taken to, from the present one back."""
        rounds = [self.round]
        for step in reversed(undo_files.steps(self._folder)):
            if step.last != rounds[-1]:
                break
            rounds.append(step.first)
        return rounds

    def close(self) -> None:
        """Lets go of the folder."""
        self._let_go()

    def _recover(self) -> None:
        """Takes back what was begun and not committed."""
        for step in reversed(undo_files.steps(self._folder)):
            if step.last > self.round:
                undo = undo_files.read(step.path, len(self.initial))
                self.put(undo.ids, undo.rows, undo.known)
                step.path.unlink()

    def _shards(self, ids: np.ndarray) -> Iterator[tuple[pathlib.Path, int, np.ndarray, list[int]]]:
        """Each shard's file, its size, which of the ids are in it, and where their rows begin."""
        length, places = len(self.initial), ids // self._parts
        each = max(self._index["shard_bytes"] // length, 1)
        shards = places // each
        for shard in np.unique(shards).tolist():
            members = np.flatnonzero(shards == shard)
            positions = [(place - shard * each) * length for place in places[members].tolist()]
            size = min(each, self._num_rows - shard * each) * length
            yield self._folder / f"rows-{shard:05d}.bin", size, members, positions

    def _read_checksums(self, ids: np.ndarray) -> np.ndarray:
        found = np.zeros(len(ids), np.uint32)
        with durable.opened(self._folder / _CHECKSUMS, "rb") as file:
            for place, client in enumerate(ids.tolist()):
                file.seek(4 * (client // self._parts))
                durable.read_all(file, found[place : place + 1])
        return found

    def _read_initial(self) -> np.ndarray:
        path = self._folder / _INITIAL
        self._check_size(path, self._index["row_bytes"])
        found = np.fromfile(path, np.uint8)
        if zlib.crc32(found.data) != self._index["initial_crc32"]:
            raise ValueError(f"{path} is damaged: it does not have the checksum of {INDEX}.")
        return found

    def _check_size(self, path: pathlib.Path, size: int) -> None:
        with durable.named(path, "cannot be read"):
            found = path.stat().st_size
        if found != size:
            raise ValueError(f"{path} is damaged: it has {found} bytes, not {size}.")


def is_shelf(folder: pathlib.Path) -> bool:
    """Whether a folder holds rows."""
    return (folder / INDEX).exists()


@contextlib.contextmanager
def created(
    folder: pathlib.Path,
    about: dict[str, Any],
    num_clients: int,
    initial: np.ndarray,
    start: int,
    part: tuple[int, int] = (0, 1),
) -> Iterator[DiskShelf]:
    """A new shelf to put the first rows in, which appears under its name when it is complete.

    Args:
      folder: where; missing or empty.
      about: whose rows these are.
      num_clients: N, of all parts together.
      initial: the row of a client that has none of its own.
      start: the round of the first rows.
      part: which part of how many it holds.
    """
    with durable.named(folder, "cannot be written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent)
    partial = pathlib.Path(partial)
    try:
        durable.replace(partial / _INITIAL, initial.tobytes())
        with durable.opened(partial / _CHECKSUMS, "xb") as file:
            file.truncate(4 * _num_rows(num_clients, part))
        index = {
            "format": _FORMAT, "version": _VERSION, "about": about, "num_clients": num_clients,
            "part": list(part), "row_bytes": len(initial), "initial_crc32": zlib.crc32(initial.data),
            "shard_bytes": _SHARD_BYTES, "round": start,
        }  # fmt: skip
        durable.write_json(partial / INDEX, index)
        with contextlib.closing(DiskShelf(partial, part)) as shelf:
            yield shelf
        with durable.named(folder, "cannot be written"):
            os.chmod(partial, 0o755)  # temporary directories are closed to others
            if folder.exists():
                folder.rmdir()
            os.rename(partial, folder)
        durable.settle(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _num_rows(num_clients: int, part: tuple[int, int]) -> int:
    return len(range(part[0], num_clients, part[1]))


def _read_index(path: pathlib.Path, part: tuple[int, int]) -> dict[str, Any]:
    index = durable.read_json(path)
    if (index.get("format"), index.get("version")) != (_FORMAT, _VERSION):
        raise ValueError(
            f"{path} must describe {_FORMAT!r} of version {_VERSION}, got"
            f" {index.get('format')!r} of version {index.get('version')!r}."
        )
    found = index.get("part", [0, 1])
    if found != list(part):
        raise ValueError(
            f"{path} must describe part {part[0]} of {part[1]}, as its folder says, got part"
            f" {found[0]} of {found[1]}."
        )
    return index


def _checksum(client: int, row: np.ndarray) -> int:
    """Of a row and of whom it belongs to; never 0, which stands for no row."""
    return zlib.crc32(row.data, zlib.crc32(client.to_bytes(8, "little"))) or 1
