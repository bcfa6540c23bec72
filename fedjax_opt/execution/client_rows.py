"""The states of clients as a round finds them: of all of them by number, or of some of them by id."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.execution import strategies
from fedjax_opt.execution.strategies import Strategy

# No client has it: the id of a row without a client, which stands behind all others.
NOBODY = 2**31 - 1


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

    ids: Any
    states: Any

    def __getitem__(self, client: int) -> Any:
        """The state of one client, by its id."""
        known = np.asarray(self.ids)
        known = known[known != NOBODY].tolist()
        if client not in known:
            shown = ", ".join(map(str, known[:10])) + (", ..." if len(known) > 10 else "")
            raise ValueError(f"client must be one of those that are here, {shown}; got {client!r}.")
        return read(self, jnp.int32(client))


def read(clients: Any, client: jax.Array) -> Any:
    """One client's state; an id that is not there reads that of another client."""
    if isinstance(clients, ClientRows):
        client, clients = _rank(clients.ids, client), clients.states
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, client, keepdims=False), clients)


def write(strategy: Strategy, clients: Any, new: Any, ids: jax.Array) -> Any:
    """The states with `new[i]` for the client `ids[i]`; an id that is not there changes nothing."""
    if not isinstance(clients, ClientRows):
        return strategies.write_rows(strategy, clients, new, ids)
    room = clients.ids.shape[0]
    rank = jax.vmap(partial(_rank, clients.ids))(ids)
    found = clients.ids[jnp.minimum(rank, room - 1)] == ids
    states = strategies.write_rows(strategy, clients.states, new, jnp.where(found, rank, room))
    return dataclasses.replace(clients, states=states)


def _rank(ids: Any, client: Any) -> jax.Array:
    """How many ids are below a client's: its row, if it has one."""
    return jnp.sum(jnp.asarray(ids) < jnp.asarray(client, jnp.int32), dtype=jnp.int32)
