"""Who of a cohort is computed in which place, where the places are not simply those of the cohort.

Clients of equal work that devices do not divide evenly are shared (`handover`). Of unequal work, whole
clients are dealt to devices, so that each has about as much to do as the others. Places that are left
over hold copies of a client that take no step.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import trees
from fedjax_opt.execution import handover, placement, strategies
from fedjax_opt.execution.jobs import Client, Job, Rows, Shared, Sum, Tree, whole
from fedjax_opt.execution.strategies import Strategy


class Lineup:
    """The places of a cohort, computed in the program; `seats` is who of it is computed, by place."""

    def __init__(self, strategy: Strategy, num_steps: jax.Array, unequal: bool = False) -> None:
        self._strategy, self._size = strategy, num_steps.shape[0]
        places = strategies.round_up(strategy, self._size)
        parts = 1
        if strategy.mesh is not None and strategy.inner == "scan":  # one by one on each device
            parts = placement.num_parts(strategy.mesh)
        self._has_absent = places > self._size and parts > 1
        self._hands_over = handover.applies(strategy, self._size, unequal)
        order: np.ndarray | jax.Array = np.arange(places, dtype=np.int32)
        if self._hands_over:
            order = handover.places(self._size, parts)
        elif unequal and 1 < parts < self._size:
            filled = jnp.minimum(order, self._size - 1)
            order = deal(jnp.where(order < self._size, num_steps[filled], 0), parts)
        self.seats, self._is_filler = jnp.minimum(order, self._size - 1), order >= self._size
        self._is_cohort = isinstance(order, np.ndarray) and places == self._size
        self._back = () if self._is_cohort else jnp.argsort(order)[: self._size]

    def seat(self, clients: Tree) -> Tree:
        """Clients `[S, ...]`, a NamedTuple with a field `num_steps`, in their places."""
        if self._is_cohort:
            return clients
        clients = jax.tree.map(lambda x: jnp.asarray(x)[self.seats], clients)
        steps = jnp.where(self._is_filler, 0, clients.num_steps)  # type: ignore[attr-defined]
        return clients._replace(num_steps=steps)  # type: ignore[attr-defined]

    def in_order(self, stacked: Tree) -> Tree:
        """What stands by place, in the order of the cohort and without those who fill up."""
        if self._is_cohort:
            return stacked
        return jax.tree.map(lambda x: x[self._back], stacked)

    def map(
        self,
        function: Callable[[Shared, Client], tuple[Sum, Rows]],
        shared: Shared,
        clients: Client,
    ) -> tuple[Sum, Rows]:
        """As `strategies.map_reduce`, of clients in their places."""
        if self._has_absent:
            function = partial(_unless_absent, function)
        return strategies.map_reduce(self._strategy, function, shared, clients)

    def map_jobs(
        self,
        job_of: Callable[[Shared, Client], Job[tuple[Sum, Rows]]],
        shared: Shared,
        clients: Client,
        steps: int | None,
    ) -> tuple[Sum, Rows]:
        """The same for jobs, which may be handed over; `steps` is their number, None if unknown."""
        apart = partial(self.map, partial(whole, job_of))
        if not self._hands_over:
            return apart(shared, clients)
        most = jnp.max(clients.num_steps) if steps is None else steps  # type: ignore[attr-defined]
        mesh = self._strategy.mesh
        assert mesh is not None
        return handover.map_reduce(mesh, job_of, apart, shared, clients, self._size, most)


def deal(work: jax.Array, parts: int) -> jax.Array:
    """Which client stands in which place, so that equal parts of the places have equal shares."""
    # Dealt out in a snake: no part has more than the largest client's work above another.
    each = work.shape[0] // parts
    part, turn = np.divmod(np.arange(work.shape[0]), each)
    rank = turn * parts + np.where(turn % 2 == 0, part, parts - 1 - part)
    return jnp.argsort(-work, stable=True)[rank]


def _unless_absent(function, shared, client):
    """Zeros for who takes no step: a device that works through its clients one by one saves its time."""

    def nothing(shared, client):
        return trees.zeros_like(jax.eval_shape(function, shared, client))

    return jax.lax.cond(client.num_steps == 0, nothing, function, shared, client)
