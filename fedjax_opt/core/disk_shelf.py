"""Rows of client state on disk: sparse files, a shard of the clients in each.

    client_state.json   whose states these are, and up to which round
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
"""

import os
import pathlib
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedjax_opt.core import durable, undo_files
from fedjax_opt.core.shelves import Undo

_INDEX, _INITIAL, _CHECKSUMS, _LOCK = "client_state.json", "initial.bin", "checksums.bin", "lock"
_FORMAT, _VERSION = "fedjax_opt client state", 1
_SHARD_BYTES = 2**34  # each shard that is written to is one more file to wait for


class DiskShelf:
    """Rows in a folder; opened by one process at a time.

    Args:
      folder: what `create` has made.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        # Whoever forgets to close it lets go of the folder all the same.
        self._let_go = weakref.finalize(self, os.close, durable.lock(folder / _LOCK))
        self._index: dict[str, Any]
        try:
            self._index = _read_index(folder / _INDEX)
            self.initial = self._read_initial()
            self._check_size(folder / _CHECKSUMS, 4 * self._index["num_clients"])
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
                file.seek(4 * client)
                durable.write_all(file, np.uint32(_checksum(client, row) if has else 0).tobytes())

    def record(self, undo: Undo) -> None:
        """Writes down what is about to be replaced."""
        undo_files.write(self._folder, undo)

    def commit(self, round_number: int) -> None:
        """Says that all rows are those of a round."""
        index = self._index | {"round": round_number}
        durable.write_json(self._folder / _INDEX, index)
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
        length, num_clients = len(self.initial), self._index["num_clients"]
        each = max(self._index["shard_bytes"] // length, 1)
        shards = ids // each
        for shard in np.unique(shards).tolist():
            members = np.flatnonzero(shards == shard)
            positions = [(client - shard * each) * length for client in ids[members].tolist()]
            size = min(each, num_clients - shard * each) * length
            yield self._folder / f"rows-{shard:05d}.bin", size, members, positions

    def _read_checksums(self, ids: np.ndarray) -> np.ndarray:
        found = np.zeros(len(ids), np.uint32)
        with durable.opened(self._folder / _CHECKSUMS, "rb") as file:
            for place, client in enumerate(ids.tolist()):
                file.seek(4 * client)
                durable.read_all(file, found[place : place + 1])
        return found

    def _read_initial(self) -> np.ndarray:
        path = self._folder / _INITIAL
        self._check_size(path, self._index["row_bytes"])
        found = np.fromfile(path, np.uint8)
        if zlib.crc32(found.data) != self._index["initial_crc32"]:
            raise ValueError(f"{path} is damaged: it does not have the checksum of {_INDEX}.")
        return found

    def _check_size(self, path: pathlib.Path, size: int) -> None:
        with durable.named(path, "cannot be read"):
            found = path.stat().st_size
        if found != size:
            raise ValueError(f"{path} is damaged: it has {found} bytes, not {size}.")


def is_shelf(folder: pathlib.Path) -> bool:
    """Whether a folder holds rows. One that is missing or empty does not; any other is refused."""
    if (folder / _INDEX).exists():
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"directory must be empty, or hold client state that is complete, but {folder / _INDEX}"
            " is missing."
        )
    return False


def create(
    folder: pathlib.Path,
    about: dict[str, Any],
    num_clients: int,
    initial: np.ndarray,
    start: int,
    fill: Callable[[DiskShelf], None],
) -> DiskShelf:
    """A new shelf, which appears under its name when it is complete.

    Args:
      folder: where; missing or empty.
      about: whose rows these are.
      num_clients: N.
      initial: the row of a client that has none of its own.
      start: the round of the first rows.
      fill: puts those in.
    """
    with durable.named(folder, "cannot be written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent)
    partial = pathlib.Path(partial)
    try:
        durable.replace(partial / _INITIAL, initial.tobytes())
        with durable.opened(partial / _CHECKSUMS, "xb") as file:
            file.truncate(4 * num_clients)
        index = {
            "format": _FORMAT, "version": _VERSION, "about": about, "num_clients": num_clients,
            "row_bytes": len(initial), "initial_crc32": zlib.crc32(initial.data),
            "shard_bytes": _SHARD_BYTES, "round": start,
        }  # fmt: skip
        durable.write_json(partial / _INDEX, index)
        shelf = DiskShelf(partial)
        fill(shelf)
        shelf.close()
        with durable.named(folder, "cannot be written"):
            os.chmod(partial, 0o755)  # temporary directories are closed to others
            if folder.exists():
                folder.rmdir()
            os.rename(partial, folder)
        durable.settle(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return DiskShelf(folder)


def _read_index(path: pathlib.Path) -> dict[str, Any]:
    index = durable.read_json(path)
    if (index.get("format"), index.get("version")) != (_FORMAT, _VERSION):
        raise ValueError(
            f"{path} must describe {_FORMAT!r} of version {_VERSION}, got"
            f" {index.get('format')!r} of version {index.get('version')!r}."
        )
    return index


def _checksum(client: int, row: np.ndarray) -> int:
    """Of a row and of whom it belongs to; never 0, which stands for no row."""
    return zlib.crc32(row.data, zlib.crc32(client.to_bytes(8, "little"))) or 1
