"""The way over the clients of a round: who is computed where, and results in the order of the cohort."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.execution import balance, relay, strategies
from fedjax_opt.execution.jobs import Job
from fedjax_opt.execution.strategies import Strategy


class OverClients:
    """The places in which a strategy computes the clients of a cohort.

    Places that are left over are filled up with copies of a client that take no step. With several
    devices, clients are dealt out by work, or handed over from device to device.

    Args:
      strategy: how the client axis is executed.
      num_steps: of each client `[S]`; 0 for one that is absent.
      unequal: whether clients may differ in their numbers of steps.
    """

    def __init__(self, strategy: Strategy, num_steps: jax.Array, unequal: bool = False) -> None:
        self._strategy = strategy
        self._size = num_steps.shape[0]
        self._places = strategies.round_up(strategy, self._size)
        self._dealt: Any = None
        self._hands_over = False
        if strategy.mesh is not None:
            self._hands_over = relay.applies(strategy, self._size, unequal)
            steps = self._filled_up(num_steps).at[self._size :].set(0)
            self._dealt = balance.order(strategy, steps, self._size, unequal)

    def seated(self, clients: Any) -> Any:
        """Clients `[S, ...]`, a NamedTuple with a field `num_steps`, in their places."""
        if self._places > self._size:
            steps = self._filled_up(clients.num_steps).at[self._size :].set(0)
            clients = jax.tree.map(self._filled_up, clients)._replace(num_steps=steps)
        if self._dealt is None:
            return clients
        return jax.tree.map(lambda x: x[self._dealt], clients)

    def in_order(self, stacked: Any) -> Any:
        """What stands by place, in the order of the cohort and without those who fill up."""
        if self._dealt is not None:
            stacked = balance.undo(self._dealt, stacked)
        if self._places == self._size:
            return stacked
        return jax.tree.map(lambda x: x[: self._size], stacked)

    def map(
        self, function: Callable[[Any, Any], tuple[Any, Any]], shared: Any, clients: Any
    ) -> tuple[Any, Any]:
        """`function(shared, client)` of all: the first result summed, the second stacked by place."""
        filled = self._places > self._size and balance.num_parts(self._strategy) > 1
        absent = _is_absent if filled else None
        return strategies.map_reduce(self._strategy, function, shared, clients, absent)

    def map_jobs(
        self, job_of: Callable[[Any, Any], Job], shared: Any, clients: Any, steps: Any
    ) -> tuple[Any, Any]:
        """The same for jobs, which may be handed over; `steps` is their number, None if unknown."""
        if self._hands_over:
            steps = jnp.max(clients.num_steps) if steps is None else steps
            return relay.map_reduce(self._strategy, job_of, shared, clients, self._size, steps)

        def whole(shared, client):
            return job_of(shared, client).whole()

        return self.map(whole, shared, clients)

    def _filled_up(self, rows: Any) -> jax.Array:
        """Rows `[S, ...]`, the last one repeated as often as it takes to fill all places."""
        places = jnp.minimum(jnp.arange(self._places, dtype=jnp.int32), self._size - 1)
        return jnp.asarray(rows)[places]


def _is_absent(client: Any) -> jax.Array:
    return client.num_steps == 0
