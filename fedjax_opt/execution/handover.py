"""A cohort that the devices do not divide evenly: a client begins on one and ends on its neighbour.

Five clients on two devices would leave one of them idle for a third of the round. Instead the steps of
all clients are laid end to end on a line, cut into equal pieces, one for each device (McNaughton's
wrap-around rule; here with K = 10):

    device 0    client 0, client 1, the last 5 steps of client 2
    device 1    the first 5 steps of client 2, client 3, client 4

A device begins with what it has of its neighbour's client, and ends with its own client that the other
neighbour has begun: in between, the client's model travels. All devices stop together for that, after
the same number of steps, as often as it takes for all models to arrive in time. No number changes:
every client takes the steps that it would take on one device, one after the other.

R. McNaughton (1959), Scheduling with deadlines and loss functions, Management Science 6(1).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_opt.core import trees
from fedjax_opt.execution import placement
from fedjax_opt.execution.jobs import Client, Job, Rows, Shared, Sum
from fedjax_opt.execution.placement import CLIENTS
from fedjax_opt.execution.strategies import Strategy


class Shift(NamedTuple):
    """What a device does of one client between two stops: the steps `first <= k < end`."""

    first: jax.Array
    end: jax.Array
    is_new: jax.Array
    is_taken_over: jax.Array  # it comes from the neighbour
    is_passed_on: jax.Array  # it goes to the other neighbour
    is_done: jax.Array


def owners(size: int, parts: int) -> np.ndarray:
    """The device that each client ends on: the one in whose piece of the line it begins."""
    return np.arange(size) * parts // size


def places(size: int, parts: int) -> np.ndarray:
    """Who stands in which place: each device's own clients, then fillers, numbered from `size` on."""
    is_taken = np.arange(-(-size // parts)) < _counts(size, parts)[:, None]
    found = np.empty(is_taken.shape, np.int64)
    found[is_taken] = np.arange(size)
    found[~is_taken] = np.arange(size, found.size)
    return found.reshape(-1)


def heads(size: int, parts: int) -> np.ndarray:
    """In which place the client stands that each device begins for its neighbour; any, for the first."""
    last = np.arange(parts) * -(-size // parts) + _counts(size, parts) - 1
    return np.append(0, last[:-1])


def timetable(size: int, parts: int, steps: chex.Numeric) -> Shift:
    """All shifts `[parts, stops + 1, 1 + most]`: of the neighbour's client, then of its own."""
    steps = jnp.asarray(steps, jnp.int32)
    each, rest = divmod(size, parts)
    # How often the devices stop to hand over models: it does not depend on K.
    stops, most = -(-parts // (size - parts)), -(-size // parts)
    # Where a device's piece of the line begins, rounded up to whole steps, its neighbour's client ends
    # `head` steps later. Written so that no product is larger than K times devices.
    under = (np.arange(parts + 1) * rest % parts).astype(np.int32)
    head = jnp.where(under > 0, steps, 0) + -under * steps // parts
    # A client is never on two devices at once, and finds a stop in between, if they stop this often.
    spacing = (each - 1) * steps + rest * steps // parts + 1

    # From here on with the axes [device, phase, turn].
    phase, turn = (np.arange(n, dtype=np.int32) for n in (stops + 1, 1 + most))
    phase, turn = phase[None, :, None], turn[None, None, :]
    own = _counts(size, parts)[:, None, None]
    before, after = head[:-1, None, None], head[1:, None, None]
    is_head = turn == 0
    taken = jnp.where(turn == own, after, 0)  # the steps that the neighbour took before
    length = jnp.where(is_head, before, jnp.where(turn <= own, steps - taken, 0))
    start = jnp.where(is_head, 0, before + (turn - 1) * steps)  # by the device's own clock
    now = phase * spacing
    first = taken + jnp.clip(now - start, 0, length)
    until = jnp.where(phase == stops, length, now + spacing - start)
    end = taken + jnp.clip(until, 0, length)
    busy, whole = end > first, taken + length
    return Shift(
        first=first,
        end=end,
        is_new=busy & (first == 0),
        is_taken_over=busy & (first == taken) & (taken > 0),
        is_passed_on=busy & is_head & (end == whole),
        is_done=busy & ~is_head & (end == whole),
    )


def applies(strategy: Strategy, size: int, unequal: bool) -> bool:
    """Whether clients of equal work are left over after every device has as many as the others."""
    # Between processes a model would take longer to travel; and one that is divided stays where it is.
    mesh = strategy.mesh
    if mesh is None or strategy.inner != "scan" or not placement.is_simple(mesh) or unequal:
        return False
    parts = placement.num_parts(mesh)
    return size > parts and size % parts > 0


def map_reduce(
    mesh: Mesh,
    job_of: Callable[[Shared, Client], Job[tuple[Sum, Rows]]],
    apart: Callable[[Shared, Client], tuple[Sum, Rows]],
    shared: Shared,
    clients: Client,
    size: int,
    steps: chex.Numeric,
) -> tuple[Sum, Rows]:
    """As `strategies.map_reduce`, for jobs of equally many steps."""
    parts = placement.num_parts(mesh)

    @jax.custom_jvp
    def handed_over(shared, clients, steps):
        first = jax.tree.map(lambda x: x[heads(size, parts)], clients)
        shifts = timetable(size, parts, steps)
        return placement.over_devices(mesh, partial(_play, job_of), shared, clients, first, shifts)

    @handed_over.defjvp
    def _(primals, tangents):
        return jax.jvp(apart, primals[:2], tangents[:2])

    return handed_over(shared, clients, steps)


def _play(job_of, shared, mine, head, shifts):
    """The part of one device: each of its shifts, with a stop where models move to the device before."""
    everyone = jax.tree.map(lambda one, rest: jnp.concatenate([one, rest]), head, mine)
    shifts = jax.tree.map(lambda x: x[0], shifts)
    num_phases, num_turns = shifts.first.shape
    some_job = job_of(shared, _row(everyone, 0))
    carry = some_job.begin()
    summed, stacked = jax.eval_shape(some_job.finish, carry)
    results = jax.tree.map(lambda x: jnp.zeros((num_turns - 1, *x.shape), x.dtype), stacked)

    def one_shift(phase, turn, memory):
        shift = Shift(*(x[phase, turn] for x in shifts))
        job = job_of(shared, _row(everyone, turn))

        def finish(ended):
            total, results = ended
            contribution, result = job.finish(now)
            put = jax.lax.dynamic_update_index_in_dim
            results = jax.tree.map(lambda old, new: put(old, new, turn - 1, 0), results, result)
            return trees.add(total, contribution), results

        now, passed_on, arrived, ended = memory
        now = _if(shift.is_new, lambda _: job.begin(), now)
        now = _if(shift.is_taken_over, lambda _: arrived, now)
        end = jnp.minimum(shift.end, job.num_steps)
        now = jax.lax.fori_loop(shift.first, end, lambda k, carry: job.step(carry, k), now)
        passed_on = _if(shift.is_passed_on, lambda _: now, passed_on)
        return now, passed_on, arrived, _if(shift.is_done, finish, ended)

    def one_phase(phase, memory):
        now, passed_on, _, ended = jax.lax.fori_loop(
            0, num_turns, lambda turn, memory: one_shift(phase, turn, memory), memory
        )
        back = [(i, i - 1) for i in range(1, jax.lax.axis_size(CLIENTS))]
        arrived = jax.tree.map(lambda x: jax.lax.ppermute(x, CLIENTS, back), passed_on)
        return now, passed_on, arrived, ended

    memory = (carry, carry, carry, (trees.zeros_like(summed), results))
    return jax.lax.fori_loop(0, num_phases, one_phase, memory)[-1]


def _counts(size, parts):
    """How many clients end on each device."""
    return np.bincount(owners(size, parts), minlength=parts)


def _if(condition, change, carry):
    """`change(carry)` or `carry`; as a loop, which changes it in place where a branch would copy it."""
    return jax.lax.fori_loop(0, jnp.asarray(condition, jnp.int32), lambda _, c: change(c), carry)


def _row(stacked, index):
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), stacked)
