"""Where rows of client state lie, and what is needed to go back to an earlier round.

A shelf holds the rows of those clients that ever had one, and says up to which round they are. Before
rows are replaced, what they were is recorded; the change counts once it is committed.
"""

from typing import Any, NamedTuple

import numpy as np


class Undo(NamedTuple):
    """What takes a shelf back from one round to an earlier one.

    Attributes:
      first: the round that it leads back to.
      last: the round that it leads back from.
      ids: the clients whose rows were changed in between.
      rows: what they were, `[n, num_bytes]`.
      known: whether the client had a row at all, `[n]`.
    """

    first: int
    last: int
    ids: np.ndarray
    rows: np.ndarray
    known: np.ndarray


class MemoryShelf:
    """Rows in the memory of the host.

    Args:
      about: whose rows these are.
      initial: the row of a client that has none of its own.
      start: the round of the rows that are put here first.
    """

    def __init__(self, about: dict[str, Any], initial: np.ndarray, start: int) -> None:
        self.about, self.initial, self.round = about, initial, start
        self._rows: dict[int, np.ndarray] = {}
        self._undos: list[Undo] = []

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of clients, and who has one."""
        rows = np.zeros((len(ids), len(self.initial)), np.uint8)
        known = np.array([client in self._rows for client in ids.tolist()], bool)
        for place in np.flatnonzero(known):
            rows[place] = self._rows[int(ids[place])]
        return rows, known

    def put(self, ids: np.ndarray, rows: np.ndarray, known: np.ndarray) -> None:
        """Replaces rows; a client that is not known has none any more."""
        for client, row, has in zip(ids.tolist(), rows, known, strict=True):
            if has:
                self._rows[client] = row.copy()
            else:
                self._rows.pop(client, None)

    def record(self, undo: Undo) -> None:
        """Remembers what is about to be replaced."""
        self._undos.append(undo)

    def commit(self, round_number: int) -> None:
        """Says that all rows are those of a round."""
        self.round = round_number

    def newest(self) -> Undo | None:
        """What takes the shelf back by one step, if it can go."""
        return self._undos[-1] if self._undos else None

    def forget_newest(self) -> None:
        """Drops that step, which was taken."""
        self._undos.pop()

    def forget_oldest(self, keep: int) -> None:
        """Drops all but the newest steps."""
        del self._undos[:-keep]

    def reachable(self) -> list[int]:
        """The rounds that it can be taken to, from the present one back."""
        return [self.round, *(undo.first for undo in reversed(self._undos))]

    def close(self) -> None:
        """Nothing is to be let go."""
