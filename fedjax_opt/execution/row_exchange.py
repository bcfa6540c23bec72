"""Rows of client state between the processes that hold them and the devices that compute with them.

    OneHost     every row is of this process, and every device has the whole table
    ManyHosts   each process has its own rows, and a table may be divided over the axis of the model

With many hosts, rows stand in an array that is cut over all devices: a process puts its own rows on its
own devices, and a program brings them together into the table that every device sees. On the way back
the program cuts the table in the same way, and each process takes what is on its devices. What stands
where follows from the clients' ids, so that no process has to be told.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_opt.execution import meshes
from fedjax_opt.execution.client_rows import NOBODY, ClientRows

# How much more room is made than was needed so far: more room compiles anew.
_SPARE = 1.25

# ids -> the states of these clients, which this process holds, stacked `[n, ...]`.
Read = Callable[[np.ndarray], Any]


def between(mesh: Mesh | None, room: int) -> "OneHost | ManyHosts":
    """How rows come to the devices of a mesh, and back.

    Args:
      mesh: the devices; None for the first one.
      room: how many rows a table has.
    """
    if mesh is None or meshes.is_simple(mesh):
        return OneHost(mesh, room)
    return ManyHosts(mesh, room)


def rows_of(mesh: Mesh | None, ids: np.ndarray, holders: np.ndarray, read: Read) -> ClientRows:
    """The states of clients, read at once and brought to the devices of a mesh."""
    exchange, nobody = between(mesh, len(ids)), np.full(len(ids), -1, np.int32)
    return exchange.table(ids, None, nobody, exchange.read(ids, nobody, holders, read))


class OneHost:
    """Rows that this process has all of.

    Args:
      mesh: the devices; None for the first one.
      room: how many rows a table has.
    """

    def __init__(self, mesh: Mesh | None, room: int) -> None:
        self._mesh, self._room = mesh, room

    def read(self, ids: np.ndarray, source: np.ndarray, holders: np.ndarray, read: Read) -> Any:
        """On the host, in any thread: a table with the rows that are read; zeros elsewhere.

        Args:
          ids: the clients of the next table, ascending.
          source: where a client stands in the table before; -1 for one that is to be read.
          holders: which process has each row: this one.
          read: reads rows.
        """
        del holders
        fresh = np.flatnonzero(source < 0)
        return jax.tree.map(partial(_placed, self._room, fresh), read(ids[fresh]))

    def table(self, ids: np.ndarray, before: Any, source: np.ndarray, sent: Any) -> ClientRows:
        """The next table, whole on every device, from the one before, if any, and what was read."""
        if before is None:
            states = jax.tree.map(jnp.array, sent)  # a copy: its buffers are given up
        else:
            states = _handed_on(before, sent, _filled(self._room, source, -1))
        table = ClientRows(jnp.array(_filled(self._room, ids, NOBODY)), states)
        return table if self._mesh is None else meshes.put(table, self._mesh)

    def back(self, states: Any, holders: np.ndarray) -> Callable[[], Any]:
        """What gives, in any thread, the states of a table's first rows: those of its clients."""
        count = len(holders)
        return lambda: jax.tree.map(lambda x: np.asarray(x)[:count], states)


class ManyHosts:
    """Rows of which each process has its own.

    Args:
      mesh: the devices of all processes.
      room: how many rows a table has.
    """

    def __init__(self, mesh: Mesh, room: int) -> None:
        self._mesh, self._room = mesh, room
        devices = mesh.devices.reshape(-1)
        self._split = NamedSharding(Mesh(devices, ("devices",)), PartitionSpec("devices"))
        owner = np.array([device.process_index for device in devices])
        self._devices = {int(p): np.flatnonzero(owner == p) for p in np.unique(owner)}
        self._each = {"there": 1, "back": 1}
        self._me = jax.process_index()

    def read(self, ids: np.ndarray, source: np.ndarray, holders: np.ndarray, read: Read) -> Any:
        """What this process reads, and where all fresh rows stand in the cut array; as `OneHost`'s."""
        fresh = np.flatnonzero(source < 0)
        seats, each = self._seats("there", holders[fresh])
        mine = np.flatnonzero(holders[fresh] == self._me)
        return read(ids[fresh[mine]]), seats[mine], self._spread(fresh, seats), each

    def table(self, ids: np.ndarray, before: Any, source: np.ndarray, sent: Any) -> ClientRows:
        """The next table, where a state on this mesh has it; from the one before, and what was read."""
        own, places, where, each = sent
        put = partial(self._put, places, each)
        cut = jax.tree.map(put, own)
        everywhere = partial(meshes.put, mesh=self._mesh)
        where, source = everywhere((where, _filled(self._room, source, -1)))
        leaves = jax.tree.leaves(cut)
        shapes = [jax.ShapeDtypeStruct((self._room, *x.shape[1:]), x.dtype) for x in leaves]
        found = _brought_together(
            leaves, jax.tree.leaves(before) or None, where, source,
            tuple(meshes.table_shardings(shapes, self._mesh)),
        )  # fmt: skip
        ids = everywhere(_filled(self._room, ids, NOBODY))
        return ClientRows(ids, jax.tree.unflatten(jax.tree.structure(cut), found))

    def back(self, states: Any, holders: np.ndarray) -> Callable[[], Any]:
        """What gives, in any thread, the states of those clients that this process holds.

        The program that cuts the table is called here, where all processes do so in the same order.
        """
        seats, each = self._seats("back", holders)
        rows = np.zeros(each * self._split.mesh.size, np.int32)
        rows[seats] = np.arange(len(seats))
        rows = meshes.put(rows, self._mesh)
        cut = _cut(jax.tree.leaves(states), rows, self._split)
        mine = seats[holders == self._me]

        def fetch(x):
            parts = {(part.index[0].start or 0): part.data for part in x.addressable_shards}
            found = np.empty((len(mine), *x.shape[1:]), x.dtype)
            for start, data in parts.items():
                here = np.flatnonzero((mine >= start) & (mine < start + each))
                found[here] = np.asarray(data)[mine[here] - start]
            return found

        return lambda: jax.tree.unflatten(jax.tree.structure(states), [fetch(x) for x in cut])

    def _seats(self, way: str, holders: np.ndarray) -> tuple[np.ndarray, int]:
        """Where rows stand in an array that is cut over all devices, and how many are on each."""
        missing = set(np.unique(holders).tolist()) - self._devices.keys()
        if missing:
            raise ValueError(
                f"strategy.mesh must have a device of every process that holds client states, but has"
                f" none of process {min(missing)}."
            )
        turns = np.zeros(len(holders), np.int64)
        device = np.zeros(len(holders), np.int64)
        for process, devices in self._devices.items():
            members = np.flatnonzero(holders == process)
            turns[members], place = np.divmod(np.arange(len(members)), len(devices))
            device[members] = devices[place]
        needed = int(turns.max(initial=0)) + 1
        if needed > self._each[way]:
            self._each[way] = min(int(needed * _SPARE) + 1, self._room)
        return device * self._each[way] + turns, self._each[way]

    def _spread(self, rows: np.ndarray, seats: np.ndarray) -> np.ndarray:
        where = np.zeros(self._room, np.int32)
        where[rows] = seats
        return where

    def _put(self, places: np.ndarray, each: int, own: np.ndarray) -> jax.Array:
        """One array of all processes, with this one's rows in their places."""
        shape = (each * self._split.mesh.size, *own.shape[1:])

        def part(index):
            start = index[0].start or 0
            here = np.flatnonzero((places >= start) & (places < start + each))
            return _placed(each, places[here] - start, own[here])

        return jax.make_array_from_callback(shape, self._split, part)


def _filled(room: int, values: np.ndarray, filling: int) -> np.ndarray:
    """Values in a table's length."""
    return np.append(values, np.full(room - len(values), filling)).astype(np.int32)


def _placed(room: int, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows in their places of an array, among zeros."""
    found = np.zeros((room, *rows.shape[1:]), rows.dtype)
    found[places] = rows
    return found


@jax.jit
def _handed_on(before: Any, fresh: Any, source: jax.Array) -> Any:
    """The next table: rows of the one before, from the places of `source`, or else fresh ones."""

    def one(old, new):
        shared = jnp.reshape(source >= 0, (-1,) + (1,) * (new.ndim - 1))
        return jnp.where(shared, old[jnp.maximum(source, 0)], new)

    return jax.tree.map(one, before, fresh)


@partial(jax.jit, static_argnames="shardings")
def _brought_together(cut: Any, before: Any, where: Any, source: Any, shardings: Any) -> Any:
    """The next table: fresh rows from the places of `where` in arrays that are cut over devices."""
    fresh = [x[where] for x in cut]
    table = fresh if before is None else _handed_on(before, fresh, source)
    return list(map(jax.lax.with_sharding_constraint, table, shardings))


@partial(jax.jit, static_argnames="sharding")
def _cut(table: Any, rows: jax.Array, sharding: NamedSharding) -> Any:
    """Rows of a table, cut over devices."""
    return [jax.lax.with_sharding_constraint(x[rows], sharding) for x in table]
