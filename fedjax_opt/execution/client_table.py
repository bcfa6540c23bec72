"""The states of clients as a round finds them: of all of them by number, or of some of them by id."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedjax_opt.execution import placement
from fedjax_opt.execution.jobs import Tree
from fedjax_opt.execution.placement import CLIENTS

# No client has it: the id of a row without a client, which stands behind all others.
NOBODY = 2**31 - 1

# How much the devices exchange at once: on CPUs what stays in their caches, on others what is worth
# the start of a transfer.
_EXCHANGED_BYTES = {"cpu": 2**23, "gpu": 2**26}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ClientRows:
    """The states of some clients, found by the clients' ids.

    It stands in the place of `FederatedState.clients` where these clients alone are asked for.

    Attributes:
      ids: int32 `[R]`, ascending; rows without a client, if any, come last, with the largest int32.
      states: their states, stacked `[R, ...]`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> some = fo.ClientRows(jnp.array([3, 7], jnp.int32), {"c": jnp.array([0.5, 0.25])})
      >>> float(some[7]["c"])
      0.25
    """

    ids: jax.Array
    states: chex.ArrayTree

    def __getitem__(self, client: int) -> chex.ArrayTree:
        """The state of one client, by its id."""
        known = np.asarray(self.ids)
        known = known[known != NOBODY].tolist()
        if client not in known:
            shown = ", ".join(map(str, known[:10])) + (", ..." if len(known) > 10 else "")
            raise ValueError(f"client must be one of those that are here, {shown}; got {client!r}.")
        return read(self, jnp.int32(client))


def read(clients: chex.ArrayTree | ClientRows, client: chex.Numeric) -> chex.ArrayTree:
    """One client's state; an id that is not there reads that of another client."""
    if isinstance(clients, ClientRows):
        client, clients = _rank(clients.ids, client), clients.states
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, client, keepdims=False), clients)


def write(mesh: Mesh | None, clients: Tree, new: chex.ArrayTree, ids: jax.Array) -> Tree:
    """The states with `new[i]` for the client `ids[i]`; an id that is not there changes nothing."""
    if isinstance(clients, ClientRows):
        room = clients.ids.shape[0]
        rank = jax.vmap(partial(_rank, clients.ids))(ids)
        found = clients.ids[jnp.minimum(rank, room - 1)] == ids
        states = write(mesh, clients.states, new, jnp.where(found, rank, room))
        return dataclasses.replace(clients, states=states)
    if mesh is None or not placement.is_divided(mesh):
        return jax.tree.map(lambda old, new: old.at[ids].set(new, mode="drop"), clients, new)
    everywhere, split = PartitionSpec(), PartitionSpec(CLIENTS)
    return jax.shard_map(
        partial(_exchange, mesh),
        mesh=mesh,
        in_specs=(everywhere, split, everywhere),
        out_specs=everywhere,
        check_vma=False,
        **placement.manual_axes(mesh),
    )(clients, new, ids)


def _exchange(mesh, table, mine, places):
    """On one device: all rows into its table, a few at a time, from the cache into their places."""
    # Gathering all of them first would write and read each once more in memory.
    limit = _EXCHANGED_BYTES.get(mesh.devices.flat[0].platform, _EXCHANGED_BYTES["gpu"])
    num_devices = placement.num_parts(mesh)
    each = places.shape[0] // num_devices
    row_bytes = sum(x.nbytes // x.shape[0] for x in jax.tree.leaves(mine))
    chunk = max(1, min(each, limit // max(row_bytes * num_devices, 1)))

    def put(table, row_and_place):
        row, place = row_and_place

        def one(old, new):
            at = jnp.minimum(place, old.shape[0] - 1)
            kept = jax.lax.dynamic_index_in_dim(old, at, keepdims=False)
            new = jnp.where(place < old.shape[0], new, kept)
            return jax.lax.dynamic_update_index_in_dim(old, new, at, 0)

        return jax.tree.map(one, table, row), None

    def some(table, first):
        # The last ones may begin a little earlier, and bring some rows once more.
        first = jnp.minimum(first, each - chunk)
        rows = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, first, chunk), mine)
        received = jax.lax.all_gather(rows, CLIENTS, tiled=True)
        by_device = places.reshape(num_devices, each)
        where = jax.lax.dynamic_slice_in_dim(by_device, first, chunk, axis=1).reshape(-1)
        return jax.lax.scan(put, table, (received, where))

    return jax.lax.scan(some, table, jnp.arange(0, each, chunk))[0]


def _rank(ids: chex.Array, client: chex.Numeric) -> jax.Array:
    """How many ids are below a client's: its row, if it has one."""
    return jnp.sum(jnp.asarray(ids) < jnp.asarray(client, jnp.int32), dtype=jnp.int32)
