"""Rows of bytes by client in one SQLite file, in all versions that a run may go back to.

    rows     a client's row as it was after a round, in pieces below SQLite's limit, each with its CRC-32
    about    whose rows they are, the rounds that can be gone back to, and a checksum of all rows' keys

A round's rows are inserted beside the older ones, which are deleted when nobody can go back to them any
more. Each change is one transaction. So the file is always that of one round, whenever the process ends.
"""

import contextlib
import json
import os
import pathlib
import sqlite3
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedjax_opt.storage import durable

_FORMAT, _VERSION = "fedjax_opt client states", 2
_INITIAL = -1  # the "client" whose row is that of all who have none of their own
_SCHEMA = (
    "CREATE TABLE about(id INTEGER PRIMARY KEY, content BLOB, crc INTEGER)",
    "CREATE TABLE rows(client INTEGER, round INTEGER, piece INTEGER, crc INTEGER, bytes BLOB)",
    "CREATE UNIQUE INDEX by_client ON rows(client, round, piece)",
    "CREATE INDEX by_round ON rows(round, client)",
)
_SETTINGS = (
    "page_size = 65536",
    # A write-ahead log needs shared memory, which disks in the network do not have.
    "journal_mode = delete",
    "synchronous = full",
    "locking_mode = exclusive",
    "cell_size_check = on",
    "trusted_schema = off",
)
_PIECE_BYTES = 2**28  # SQLite takes 10^9 by default
# A file of this size is read as a whole when it is opened. In a larger one the rows are compared with
# their checksums when they are read, and only which rows there are is looked at before.
_CHECKED_BYTES = 2**32


class RowFile:
    """A file that is open in this process alone; `opened` and `created` make it."""

    def __init__(
        self, path: pathlib.Path | None, about: dict[str, Any], resources: contextlib.ExitStack
    ) -> None:
        self._path, self._about, self._resources = path, about, resources
        self._has_locks = True
        # Whoever forgets to close it lets go of the file all the same.
        self._let_go = weakref.finalize(self, resources.close)

    @classmethod
    def opened(cls, path: pathlib.Path, part: tuple[int, int]) -> "RowFile":
        """One that is there, which must hold a part of how many."""
        self = cls(path, {}, contextlib.ExitStack())
        try:
            self._lock(path)
            with self._explained():
                self._connect(path, "rw")
                self._about = self._checked_about(part)
                self._check_rows(path)
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def created(
        cls,
        path: pathlib.Path | None,
        part: tuple[int, int],
        whose: dict[str, Any],
        initial: np.ndarray,
        start: int,
    ) -> "RowFile":
        """A new one, which is filled with `put_first`, and is there from `complete` on."""
        about = {
            "format": _FORMAT, "version": _VERSION, "part": list(part), "whose": whose,
            "row_bytes": len(initial), "rounds": [start], "keys": 0,
        }  # fmt: skip
        self = cls(path, about, contextlib.ExitStack())
        try:
            if path is not None:
                self._lock(path)
                for left in (_partial(path), _journal(_partial(path))):
                    left.unlink(missing_ok=True)  # by a process that was killed
            with self._explained():
                self._connect(path and _partial(path), "rwc")
                self._db.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    self._db.execute(statement)
            self.put_first(np.array([_INITIAL]), initial[None])
        except BaseException:
            self.close()
            raise
        return self

    def put_first(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Puts the first rows of some clients into a new file."""
        with self._explained():
            self._insert(self.round, ids, rows)

    def complete(self) -> None:
        """Lets a new file appear under its name."""
        with self._explained():
            self._write_about()
            self._db.execute("COMMIT")
            if self._path is None:
                return
            self._db.close()
            with durable.named(self._path, "cannot be written"):
                os.replace(_partial(self._path), self._path)
            durable.force_names(self._path.parent)
            self._connect(self._path, "rw")

    @property
    def whose(self) -> dict[str, Any]:
        """What `create` was told."""
        return self._about["whose"]

    @property
    def rounds(self) -> list[int]:
        """The rounds that it can go back to; the last one is that of the rows."""
        return self._about["rounds"]

    @property
    def round(self) -> int:
        """The round of the rows."""
        return self.rounds[-1]

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The rows of clients `[n, row_bytes]`, each compared with its checksums."""
        found = np.empty((len(ids), self._about["row_bytes"]), np.uint8)
        with self._explained():
            for row, client in zip(found, ids.tolist(), strict=True):
                if not self._read_one(client, row) and not self._read_one(_INITIAL, row):
                    raise ValueError(f"{self._name} is damaged: the initial row is missing.")
        return found

    def write(self, round_number: int, ids: np.ndarray, rows: np.ndarray, oldest: int) -> None:
        """Puts in the rows of a later round; no round before `oldest` is gone back to any more."""
        with self._transaction():
            base = max(n for n in self.rounds if n <= max(oldest, self.rounds[0]))
            self._insert(round_number, ids, rows)
            # Of each client who took part since: all before its newest row up to the base.
            self._delete(
                "client IN (SELECT client FROM rows INDEXED BY by_round WHERE round > ? AND round <= ?)"
                " AND round < (SELECT max(round) FROM rows AS newer INDEXED BY by_client"
                " WHERE newer.client = rows.client AND newer.round <= ?)",
                self.rounds[0], base, base,
            )  # fmt: skip
            kept = [n for n in self.rounds if n >= base]
            self._about["rounds"] = [*kept, round_number]

    def roll_back(self, round_number: int) -> None:
        """Deletes the rows of all rounds after one of `rounds`."""
        with self._transaction():
            self._delete("round > ?", round_number)
            self._about["rounds"] = [n for n in self.rounds if n <= round_number]

    def close(self) -> None:
        """Lets go of the file; what is in memory is gone."""
        self._let_go()

    @property
    def _name(self) -> str:
        return "client_states in memory" if self._path is None else str(self._path)

    def _lock(self, path: pathlib.Path) -> None:
        lock = durable.Lock(path.with_suffix(".lock"))
        self._resources.callback(lock.close)
        self._has_locks = lock.works

    def _connect(self, path: pathlib.Path | None, mode: str) -> None:
        uri = "file::memory:" if path is None else f"{path.as_uri()}?mode={mode}"
        if not self._has_locks:
            uri += "&nolock=1"  # or SQLite would refuse to work on such a disk
        # A run's thread and its callbacks use it in turns.
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        self._resources.callback(self._db.close)
        for setting in _SETTINGS:
            self._db.execute(f"PRAGMA {setting}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns SQLite's errors into a ValueError that names the file."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise ValueError(f"{self._name} cannot be read or written: {error}.") from error
        except (sqlite3.Error, OverflowError) as error:
            raise ValueError(f"{self._name} is damaged: {error}.") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of a change, or nothing of it."""
        before = dict(self._about)
        with self._explained():
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._write_about()
                self._db.execute("COMMIT")
            except BaseException:
                self._about = before
                self._db.rollback()
                raise

    def _insert(self, round_number: int, ids: np.ndarray, rows: np.ndarray) -> None:
        def pieces() -> Iterator[tuple[int, int, int, int, memoryview]]:
            for client, row in zip(ids.tolist(), rows, strict=True):
                for piece, start in enumerate(range(0, max(len(row), 1), _PIECE_BYTES)):
                    content = row[start : start + _PIECE_BYTES].data
                    key = _crc_of_key(client, round_number, piece)
                    self._about["keys"] ^= key
                    yield client, round_number, piece, zlib.crc32(content, key), content

        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", pieces())

    def _delete(self, condition: str, *values: int) -> None:
        where = f"FROM rows INDEXED BY by_client WHERE {condition}"
        gone = self._db.execute(f"SELECT client, round, piece {where}", values).fetchall()
        self._about["keys"] ^= _crc_of_keys(gone)
        self._db.execute(f"DELETE {where}", values)

    def _read_one(self, client: int, row: np.ndarray) -> bool:
        """Fills in a client's newest row; False if it has none."""
        query = (
            "SELECT round, crc, bytes FROM rows INDEXED BY by_client WHERE client = ?1 AND round ="
            " (SELECT max(round) FROM rows INDEXED BY by_client WHERE client = ?1) ORDER BY piece"
        )
        pieces = self._db.execute(query, (client,)).fetchall()
        # The key is the one that was asked for: a piece of another row has another checksum.
        is_whole = all(
            isinstance(content, bytes)
            and zlib.crc32(content, _crc_of_key(client, round_number, piece)) == crc
            for piece, (round_number, crc, content) in enumerate(pieces)
        )
        if not is_whole or (pieces and sum(len(content) for *_, content in pieces) != len(row)):
            whose = "the initial row" if client == _INITIAL else f"the row of client {client}"
            raise ValueError(f"{self._name} is damaged: {whose} does not have its checksum.")
        if pieces:
            row[:] = np.frombuffer(b"".join(content for *_, content in pieces), np.uint8)
        return bool(pieces)

    def _write_about(self) -> None:
        content = json.dumps(self._about).encode()
        self._db.execute(
            "INSERT OR REPLACE INTO about VALUES (0, ?, ?)", (content, zlib.crc32(content))
        )

    def _checked_about(self, part: tuple[int, int]) -> dict[str, Any]:
        schema = self._db.execute("SELECT sql FROM sqlite_master").fetchall()
        found = self._db.execute("SELECT content, crc FROM about").fetchall()
        content, crc = found[0] if len(found) == 1 else (None, None)
        if not isinstance(content, bytes) or zlib.crc32(content) != crc:
            raise ValueError(
                f"{self._name} is damaged: what it says of itself has another checksum."
            )
        about = json.loads(content)
        if (about["format"], about["version"]) != (_FORMAT, _VERSION):
            raise ValueError(
                f"{self._name} must hold {_FORMAT!r} of version {_VERSION}, got {about['format']!r} of"
                f" version {about['version']}."
            )
        if {sql for (sql,) in schema} != set(_SCHEMA):
            raise ValueError(f"{self._name} is damaged: it has other tables.")
        if about["part"] != list(part):
            raise ValueError(
                f"{self._name} must hold part {part[0]} of {part[1]}, as its name says, got part"
                f" {about['part'][0]} of {about['part'][1]}."
            )
        return about

    def _check_rows(self, path: pathlib.Path) -> None:
        if path.stat().st_size <= _CHECKED_BYTES:
            (answer,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if answer != "ok":
                raise ValueError(f"{self._name} is damaged: {answer}.")
        there = self._db.execute("SELECT client, round, piece FROM rows INDEXED BY by_client")
        if _crc_of_keys(there) != self._about["keys"]:
            raise ValueError(
                f"{self._name} is damaged: some rows are missing, or should not be there."
            )


def _partial(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".new")


def _journal(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + "-journal")


def _crc_of_key(client: Any, round_number: Any, piece: Any) -> int:
    return zlib.crc32(f"{client} {round_number} {piece}".encode())


def _crc_of_keys(keys: Iterable[tuple[Any, Any, Any]]) -> int:
    """One number for a set of keys, which changes with each one that comes or goes."""
    total = 0
    for key in keys:
        total ^= _crc_of_key(*key)
    return total
