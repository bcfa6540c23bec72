"""Examples on disk, many processes: each device is sent those of its own clients, by its own process.

Which client is computed where follows from the key and the round (`run.seats`), so it is known before a
round begins: for each chunk of rounds a process reads what its own devices need, and nothing else, while
the last chunk computes. Inside the program every device finds its own examples, and in its own table
where each client's begin.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_opt.core.client_data import ClientData
from fedjax_opt.execution import meshes

# How much more room is made than the largest part so far has needed: more room compiles anew.
_SPARE = 1.25


class Parted:
    """The examples of one chunk of rounds after the other, of each device its own.

    Args:
      data: the federated data on the host.
      mesh: the devices.
      seats: the first round of a chunk -> who is computed in which place `[rounds, places]`; the places
        of a device are next to each other.
    """

    def __init__(self, data: Any, mesh: Mesh, seats: Callable[[int], np.ndarray]) -> None:
        self._data, self._mesh, self._seats = data, mesh, seats
        self._sizes = np.asarray(data.sizes)
        self._starts = np.asarray(data.offsets).astype(np.int64)
        self._room = 0
        self._reader = ThreadPoolExecutor(1, "fedjax_opt examples")
        self._pending: tuple[int, int, Future] | None = None
        self.rows_read = 0

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Begins to read what some rounds need, if there are any."""
        if rounds < 1:
            return
        # Decided here: while a chunk is played, a program of the thread's would wait behind it.
        places = self._seats(first_round)[:rounds]
        self._pending = first_round, rounds, self._reader.submit(self._read, places)

    def take(self, first_round: int, rounds: int) -> Any:
        """The data of some rounds, each device's own part on it."""
        if self._pending is None or self._pending[:2] != (first_round, rounds):
            self.prefetch(first_round, rounds)
        assert self._pending is not None
        (clients, rows, room), self._pending = self._pending[2].result(), None
        # Made here, in the order in which all processes do everything.
        return self._placed(clients, rows, room)

    def close(self) -> None:
        """Ends the thread after what it is reading."""
        self._reader.shutdown(cancel_futures=True)

    def _read(self, places: np.ndarray) -> tuple[list[np.ndarray], dict[int, Any], int]:
        """Who is computed by each device, and the rows of those that this process feeds."""
        parts = meshes.num_parts(self._mesh)
        clients = [np.unique(part) for part in np.split(places, parts, axis=1)]
        # Every process makes the same room, though it fills only a part of it.
        needed = max(int(self._sizes[ids].sum(dtype=np.int64)) for ids in clients)
        if needed > self._room:
            self._room = int(needed * _SPARE)
        rows = {part: self._rows_of(clients[part]) for part in _own_parts(self._mesh)}
        return clients, rows, self._room

    def _rows_of(self, ids: np.ndarray) -> Any:
        sizes = self._sizes[ids]
        self.rows_read += int(sizes.sum())
        ends = np.cumsum(sizes, dtype=np.int64)

        def gathered(array):
            found = np.zeros((self._room, *array.shape[1:]), array.dtype)
            for start, size, end in zip(self._starts[ids], sizes, ends, strict=True):
                found[end - size : end] = array[start : start + size]
            return found

        return jax.tree.map(gathered, self._data.examples)

    def _placed(self, clients: list[np.ndarray], rows: dict[int, Any], room: int) -> Any:
        split = NamedSharding(self._mesh, PartitionSpec(meshes.CLIENTS))
        parts, population = len(clients), len(self._sizes)

        def part_of(index, length):
            return (index[0].start or 0) // length

        def place_rows(leaf, *by_part):
            blocks = dict(zip(rows, by_part, strict=True))
            shape = (parts * room, *leaf.shape[1:])
            return jax.make_array_from_callback(
                shape, split, lambda index: blocks[part_of(index, room)]
            )

        def offsets(index):
            ids = clients[part_of(index, population)]
            table = np.zeros(population, np.int32)
            table[ids] = np.cumsum(self._sizes[ids]) - self._sizes[ids]
            return table

        examples = jax.tree.map(place_rows, self._data.examples, *rows.values())
        tables = jax.make_array_from_callback((parts * population,), split, offsets)
        sizes = meshes.put(self._sizes, self._mesh)
        own = meshes.PerDevice
        return ClientData(own(examples), own(tables), sizes)


def _own_parts(mesh: Mesh) -> list[int]:
    """The parts of the clients' axis that devices of this process compute."""
    by_part = mesh.devices.reshape(meshes.num_parts(mesh), -1)
    me = jax.process_index()
    return [i for i, devices in enumerate(by_part) if any(d.process_index == me for d in devices)]
