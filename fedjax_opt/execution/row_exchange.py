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
    """The states of clients, on the devices of a mesh."""
    named = _filled(room, ids, NOBODY)
    if mesh is None or placement.is_simple(mesh):
        # A copy: its buffers are given up to the program.
        states = jax.tree.map(lambda x: jnp.array(_among_zeros(room, x)), own)
        rows = ClientRows(jnp.array(named), states)
        return rows if mesh is None else placement.put(rows, mesh)
    split = _split(mesh)
    seats, each = _seats(mesh, holders)
    room_here = each * len(split.addressable_devices)

    def put(rows: np.ndarray) -> jax.Array:
        """One array of all processes, whose own rows come first on their devices."""
        shape = (each * mesh.size, *rows.shape[1:])
        here = _among_zeros(room_here, rows)
        return jax.make_array_from_process_local_data(split, here, shape)

    leaves, structure = jax.tree.flatten(own)
    shapes = [jax.ShapeDtypeStruct((room, *x.shape[1:]), x.dtype) for x in leaves]
    where = placement.put(_filled(room, seats, 0), mesh)
    shardings = tuple(placement.table_shardings(shapes, mesh))
    states = _rows(list(map(put, leaves)), where, shardings)
    return ClientRows(
        placement.put(jnp.asarray(named), mesh), jax.tree.unflatten(structure, states)
    )


def back(mesh: Mesh | None, states: chex.ArrayTree, holders: np.ndarray) -> chex.ArrayTree:
    """Of the clients of a table, the states of those that this process has, on the host."""
    if mesh is None or placement.is_simple(mesh):
        return jax.tree.map(lambda x: np.asarray(x)[: len(holders)], states)
    split = _split(mesh)
    seats, each = _seats(mesh, holders)
    where = np.zeros(each * mesh.size, np.int32)
    where[seats] = np.arange(len(seats))
    leaves, structure = jax.tree.flatten(states)
    cut = _rows(leaves, placement.put(where, mesh), (split,) * len(leaves))
    count = np.sum(holders == jax.process_index())

    def fetch(x: jax.Array) -> np.ndarray:
        parts = sorted(x.addressable_shards, key=lambda part: part.index[0].start or 0)
        return np.concatenate([np.asarray(part.data) for part in parts])[:count]

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
    seats = np.zeros(len(holders), np.int64)
    rows = {process: np.flatnonzero(holders == process) for process in np.unique(holders)}
    devices = {process: np.flatnonzero(owner == process) for process in rows}
    most = max((-(-len(rows[p]) // len(devices[p])) for p in rows), default=1)
    # A power of two: few lengths are ever met, and each of them is compiled once.
    each = 1 << max(most - 1, 0).bit_length()
    for process, members in rows.items():
        device, place = np.divmod(np.arange(len(members)), each)
        seats[members] = devices[process][device] * each + place
    return seats, each


def _filled(room: int, values: np.ndarray, filling: int) -> np.ndarray:
    """Values in a table's length."""
    return np.append(values, np.full(room - len(values), filling)).astype(np.int32)


def _among_zeros(room: int, rows: np.ndarray) -> np.ndarray:
    """Rows at the beginning of an array, and zeros behind them."""
    found = np.zeros((room, *rows.shape[1:]), rows.dtype)
    found[: len(rows)] = rows
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
