"""The parts over which the clients of a store are divided, and which process holds which.

Client i of a store of n parts is in part i mod n. A run of n processes makes n parts, one each:

    directory/                        the one part of a store that one process has made
    directory/part-00001-of-00002/    the second of two

Each part is whole by itself: its rows, its round, what takes it back. A run that was killed may leave
its parts a chunk apart. A checkpoint is written only when all parts have reached its round, so all of
them can go back to it.

A part is held by the process of its number, modulo the number of processes, if that one sees it, and
else by the first that does. So the disk may be one that all see, or each machine's own, and a run may go
on with another number of processes.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_opt.execution import distributed
from fedjax_opt.storage import disk_shelf
from fedjax_opt.storage.disk_shelf import DiskShelf
from fedjax_opt.storage.shelves import MemoryShelf, Undo

Shelf = DiskShelf | MemoryShelf

_NAME = re.compile(r"part-(\d{5})-of-(\d{5})")
_PARTIAL = ".partial-"


class Parts:
    """The parts of a store, those that this process holds among them.

    Args:
      holders: which process holds each part.
      here: the shelves of this process, by part.
      rounds: the rounds of all parts that exist, by part; the others are `missing`.
    """

    def __init__(
        self, holders: Sequence[int], here: dict[int, Shelf], rounds: dict[int, int]
    ) -> None:
        self.count = len(holders)
        self._holders = np.asarray(holders)
        self._here = here
        self.rounds = rounds

    @property
    def missing(self) -> list[int]:
        """The parts that nobody has."""
        return [part for part in range(self.count) if part not in self.rounds]

    @property
    def round(self) -> int:
        """The round of the part that is furthest behind."""
        return min(self.rounds.values())

    @property
    def here(self) -> dict[int, Shelf]:
        """The shelves of this process, by part."""
        return self._here

    @property
    def abouts(self) -> list[dict[str, Any]]:
        """Whose rows each of these is said to hold."""
        return [shelf.about for shelf in self._here.values()]

    def holders(self, ids: np.ndarray) -> np.ndarray:
        """Which process has the rows of clients."""
        return self._holders[ids % self.count]

    @property
    def to_make(self) -> list[int]:
        """The missing parts that this process is to make."""
        return [part for part in self.missing if self._holders[part] == jax.process_index()]

    def add(self, made: dict[int, Shelf], start: int) -> None:
        """Takes in what this process has made of the missing parts; the others have made the rest."""
        self._here |= made
        self.rounds |= dict.fromkeys(self.missing, start)

    def read(self, ids: np.ndarray, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of clients that are here, and who has one; others have the initial row."""
        rows, known = np.zeros((len(ids), row_bytes), np.uint8), np.zeros(len(ids), bool)
        for shelf, members in self._members(ids):
            found, has = shelf.read(ids[members])
            rows[members], known[members] = np.where(has[:, None], found, shelf.initial), has
        return rows, known

    def apply(
        self, round_number: int, ids: np.ndarray, rows: np.ndarray, old: Any, known: Any, keep: int
    ) -> None:
        """Applies rounds to each part here: what rows are now, and what they were.

        Args:
          round_number: the number of rounds done.
          ids: the clients whose rows have changed.
          rows: their rows.
          old: their rows before.
          known: who had one.
          keep: how many of the newest steps can be taken back.
        """
        for shelf, members in self._members(ids):
            if round_number == shelf.round and not len(members):
                continue
            changed = ids[members]
            step = Undo(shelf.round, round_number, changed, old[members], known[members])
            shelf.record(step)
            shelf.put(changed, rows[members], np.ones(len(changed), bool))
            shelf.commit(round_number)
            shelf.forget_oldest(keep)
        self.rounds = dict.fromkeys(self.rounds, round_number)

    def go_back(self, round_number: int) -> None:
        """Takes each part here back to a round that it can reach."""
        for shelf in self._here.values():
            while shelf.round > round_number:
                undo = shelf.newest()
                assert undo is not None  # it can be reached
                shelf.commit(undo.first)  # from here on, opening the folder would do the rest
                shelf.put(undo.ids, undo.rows, undo.known)
                shelf.forget_newest()
        self.rounds = dict.fromkeys(self.rounds, round_number)

    def close(self) -> None:
        """Lets go of the folders."""
        for shelf in self._here.values():
            shelf.close()

    def _members(self, ids: np.ndarray) -> list[tuple[Shelf, np.ndarray]]:
        """Each shelf of this process, and which of the clients are on it."""
        parts = ids % self.count
        return [(shelf, np.flatnonzero(parts == part)) for part, shelf in self._here.items()]


def in_memory() -> Parts:
    """As many parts as there are processes, none of them made yet."""
    return Parts(range(jax.process_count()), {}, {})


def in_folder(directory: pathlib.Path) -> Parts:
    """The parts in a folder, or a part of them in the folders of each machine; opens its own.

    All processes must call it.

    Raises:
      ValueError: if a part is damaged or in use, or if the folder is of something else.
    """
    seen = distributed.from_each(list(_look(directory)))
    counts = {count for count, parts in seen if parts}
    if len(counts) > 1:
        raise ValueError(
            f"{directory} must hold the parts of one store, but there are some of"
            f" {' and of '.join(map(str, sorted(counts)))} parts: move those away that do not belong"
            " to the run."
        )
    processes = jax.process_count()
    count = counts.pop() if counts else processes
    holders = [part % processes for part in range(count)]
    present = set()
    for part in range(count):
        seers = [process for process, (_, parts) in enumerate(seen) if part in parts]
        if seers:
            present.add(part)
            holders[part] = holders[part] if holders[part] in seers else seers[0]
    mine = [part for part in sorted(present) if holders[part] == jax.process_index()]
    here: dict[int, Shelf] = {}
    try:
        for part in mine:
            here[part] = DiskShelf(part_folder(directory, part, count), (part, count))
    except BaseException:
        for shelf in here.values():
            shelf.close()
        raise
    pairs = distributed.from_each([[part, shelf.round] for part, shelf in here.items()])
    rounds = {part: number for some in pairs for part, number in some}
    return Parts(holders, here, rounds)


def part_folder(directory: pathlib.Path, part: int, count: int) -> pathlib.Path:
    """Where a part lies."""
    return directory if count == 1 else directory / f"part-{part:05d}-of-{count:05d}"


def _look(directory: pathlib.Path) -> tuple[int, list[int]]:
    """How many parts a store has, and which of them this process sees; none in an empty folder."""
    if disk_shelf.is_shelf(directory):
        return 1, [0]
    if not directory.exists():
        return 0, []
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else [""]
    names = [name for name in names if _PARTIAL not in name]  # what a kill has left
    found = [_NAME.fullmatch(name) for name in names]
    parts = [(int(name[2]), int(name[1])) for name in found if name]
    if len(parts) < len(names) or len({count for count, _ in parts}) > 1:
        raise ValueError(
            f"directory must be empty, or hold client state that is complete, but"
            f" {directory / disk_shelf.INDEX} is missing."
        )
    return (parts[0][0] if parts else 0), sorted(part for _, part in parts)
