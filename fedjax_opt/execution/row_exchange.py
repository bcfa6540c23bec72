"""Rows of client state between the processes that hold them and the devices that compute with them.

With one process and a model that is not divided, every device gets the whole table. Else rows stand in
an array that is cut over all devices: a process puts its own rows on its own devices, and a program
brings them together into the table that every device sees. On the way back a program cuts the table in
the same way, and each process takes what is on its devices. What stands where follows from the clients'
ids, so that no process has to be told. All processes call these functions, in the same order.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_opt.execution import placement
from fedjax_opt.execution.client_table import NOBODY, ClientRows


def table(
    mesh: Mesh | None, room: int, ids: np.ndarray, holders: np.ndarray, own: chex.ArrayTree
) -> ClientRows:
    """The states of clients, on the devices of a mesh.

    Args:
      mesh: the devices; None for the first one.
      room: how many rows the table has.
      ids: the clients, ascending.
      holders: which process has each of them.
      own: the states of those that this process has, stacked in the order of the ids, on the host.
    """
    named = _filled(room, ids, NOBODY)
    if mesh is None or placement.is_simple(mesh):
        places = np.arange(len(ids))
        # A copy: its buffers are given up to the program.
        states = jax.tree.map(lambda x: jnp.array(_placed(room, places, x)), own)
        rows = ClientRows(jnp.array(named), states)
        return rows if mesh is None else placement.put(rows, mesh)
    split = _split(mesh)
    seats, each = _seats(mesh, holders)
    mine = seats[holders == jax.process_index()]

    def put(rows: np.ndarray) -> jax.Array:
        """One array of all processes, with this one's rows in their places."""

        def part(index):
            start = index[0].start or 0
            here = np.flatnonzero((mine >= start) & (mine < start + each))
            return _placed(each, mine[here] - start, rows[here])

        shape = (each * mesh.size, *rows.shape[1:])
        return jax.make_array_from_callback(shape, split, part)

    leaves, structure = jax.tree.flatten(own)
    shapes = [jax.ShapeDtypeStruct((room, *x.shape[1:]), x.dtype) for x in leaves]
    where = placement.put(_filled(room, seats, 0), mesh)
    shardings = tuple(placement.table_shardings(shapes, mesh))
    states = _rows(list(map(put, leaves)), where, shardings)
    return ClientRows(
        placement.put(jnp.asarray(named), mesh), jax.tree.unflatten(structure, states)
    )


def back(mesh: Mesh | None, states: chex.ArrayTree, holders: np.ndarray) -> chex.ArrayTree:
    """Of the clients of a table, the states of those that this process has, on the host.

    Args:
      mesh: the devices that have it.
      states: the table's states, of which the first are the clients'.
      holders: which process has each of the clients.
    """
    if mesh is None or placement.is_simple(mesh):
        return jax.tree.map(lambda x: np.asarray(x)[: len(holders)], states)
    split = _split(mesh)
    seats, each = _seats(mesh, holders)
    mine = seats[holders == jax.process_index()]
    where = np.zeros(each * mesh.size, np.int32)
    where[seats] = np.arange(len(seats))
    leaves, structure = jax.tree.flatten(states)
    cut = _rows(leaves, placement.put(where, mesh), (split,) * len(leaves))

    def fetch(x: jax.Array) -> np.ndarray:
        found = np.empty((len(mine), *x.shape[1:]), x.dtype)
        for part in x.addressable_shards:
            start = part.index[0].start or 0
            here = np.flatnonzero((mine >= start) & (mine < start + each))
            found[here] = np.asarray(part.data)[mine[here] - start]
        return found

    return jax.tree.unflatten(structure, list(map(fetch, cut)))


def _split(mesh: Mesh) -> NamedSharding:
    """Rows cut over all devices."""
    return NamedSharding(Mesh(mesh.devices.reshape(-1), ("devices",)), PartitionSpec("devices"))


def _seats(mesh: Mesh, holders: np.ndarray) -> tuple[np.ndarray, int]:
    """Where rows stand in an array that is cut over all devices, and how many are on each."""
    owner = np.array([device.process_index for device in mesh.devices.reshape(-1)])
    missing = set(np.unique(holders).tolist()) - set(owner.tolist())
    if missing:
        raise ValueError(
            f"strategy.mesh must have a device of every process that holds client states, but has none"
            f" of process {min(missing)}."
        )
    turn, device = np.zeros((2, len(holders)), np.int64)
    for process in np.unique(holders):
        own, members = np.flatnonzero(owner == process), np.flatnonzero(holders == process)
        turn[members], place = np.divmod(np.arange(len(members)), len(own))
        device[members] = own[place]
    # A power of two: few lengths are ever met, and each of them is compiled once.
    each = 1 << int(turn.max(initial=0)).bit_length()
    return device * each + turn, each


def _filled(room: int, values: np.ndarray, filling: int) -> np.ndarray:
    """Values in a table's length."""
    return np.append(values, np.full(room - len(values), filling)).astype(np.int32)


def _placed(room: int, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows in their places of an array, among zeros."""
    found = np.zeros((room, *rows.shape[1:]), rows.dtype)
    found[places] = rows
    return found


@partial(jax.jit, static_argnames="shardings")
def _rows(
    arrays: list[jax.Array], where: jax.Array, shardings: tuple[NamedSharding, ...]
) -> list[jax.Array]:
    """Rows of arrays, with the result where it belongs."""
    return [
        jax.lax.with_sharding_constraint(x[where], sharding)
        for x, sharding in zip(arrays, shardings, strict=True)
    ]
