"""The rows of the clients that were met last, in memory."""

from collections import OrderedDict

import numpy as np


class HotRows:
    """As many rows as there is room for; whoever was met longest ago makes room.

    Args:
      room: how many.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._rows: OrderedDict[int, np.ndarray] = OrderedDict()

    def read(self, ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Fills in the rows that are here, and says which those are."""
        here = np.array([client in self._rows for client in ids.tolist()], bool)
        for place in np.flatnonzero(here):
            rows[place] = self._rows[int(ids[place])]
        return here

    def keep(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Takes rows in as those met last."""
        if self._room:
            for client, row in zip(ids.tolist(), rows, strict=True):
                self._rows[client] = row.copy()
                self._rows.move_to_end(client)
        while len(self._rows) > self._room:
            self._rows.popitem(last=False)

    def clear(self) -> None:
        """Forgets all of them."""
        self._rows.clear()
