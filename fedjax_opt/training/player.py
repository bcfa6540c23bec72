"""A run that is ready to be played, and what plays its chunks of rounds."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.algorithm import Algorithm, Scheduled, StaticInt
from fedjax_opt.core.client_data import ClientData, in_memory
from fedjax_opt.core.controller import Controller, first_algorithm
from fedjax_opt.core.federation import Federation, initial_variables
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState, as_key
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.preparation import Prepared, prepare
from fedjax_opt.engine.run import one_round, seats
from fedjax_opt.execution import meshes
from fedjax_opt.execution.strategies import Strategy, place, resolve
from fedjax_opt.training import chunks
from fedjax_opt.training.memory import settle_run
from fedjax_opt.training.saves import Course
from fedjax_opt.training.step_scale import with_step_scale


class Plan(NamedTuple):
    """A run that is ready to be played.

    Attributes:
      algorithm: the algorithm of its first round.
      prepared: what its program is called with.
      start: the state that it starts from, as the host keeps it.
      seen: that state as a round sees it: shapes, where clients' states are elsewhere.
      clients: what holds the clients' states for the device.
      chunk: the largest number of rounds in a chunk.
    """

    algorithm: Algorithm
    prepared: Prepared
    start: FederatedState
    seen: Any
    clients: chunks.DeviceStates | chunks.StoreStates
    chunk: int


def planned(
    algorithm: Algorithm | Scheduled,
    federation: Federation,
    chunk: int,
    seed: int,
    state: FederatedState | None,
    clients: chunks.DeviceStates | chunks.StoreStates,
    strategy: str | Strategy,
    diagnostics: Sequence[str],
) -> Plan:
    """The arguments of `simulate`, checked."""
    if isinstance(federation.local_steps, StaticInt):  # traced: another K compiles nothing
        federation = federation.replace(local_steps=jnp.asarray(int(federation.local_steps)))
    first = first_algorithm(algorithm)
    make = partial(_first_state, first, federation, seed, clients)
    start = meshes.made(make, resolve(strategy).mesh) if state is None else state
    clients, start = clients.open(first, start)
    prepared, start = prepare(algorithm, federation, start, strategy, diagnostics, "simulate")
    start, seen = clients.part(start, federation.cohort)
    return Plan(first, prepared, start, seen, clients, chunk)


def fitting(plan: Plan, tests: list[Any], copies: int) -> Plan:
    """The plan with a strategy that fits into memory, beside test sets and copies of the state."""
    compiled = partial(_compiled, plan.chunk)
    prepared = settle_run(plan.prepared, plan.seen, tests, plan.chunk, 2 + copies, compiled)
    return plan._replace(prepared=prepared)


class Player:
    """Plays chunks of rounds, with the examples and the clients' states that they need.

    Args:
      plan: the run.
      course: how far it has come.
      scaled: whether the step may become another one, without compiling.
    """

    def __init__(self, plan: Plan, course: Course, scaled: bool) -> None:
        self._plan, self._strategy = plan, plan.prepared.strategy
        self._scaled = scaled
        # The rows of a run have the same columns from its first round on.
        rows = course.history.rounds
        self._is_told = "step_scale" in rows if rows else scaled
        num_clients = int(plan.start.num_clients)
        self._prepared = place(plan.prepared.with_clients(num_clients), self._strategy)
        self._source = _source(plan.prepared, plan.start.cohort_key, plan.chunk)
        self.begin(course)

    def begin(self, course: Course) -> None:
        """Takes the clients to the round of the state, and the state to the devices."""
        self._scaled |= course.step_scale != 1
        self._plan.clients.begin(course.state, self._strategy)
        # It is copied, since its buffers are given up to the program: whoever else has it keeps theirs.
        course.state = place(jax.tree.map(jnp.copy, course.state), self._strategy)

    def play(self, course: Course, rounds: int, oldest: int) -> Info:
        """Plays the next chunk, as many as are left of some rounds; what each was like, on the host.

        Args:
          course: the run; its state is given up.
          rounds: how many it has in all.
          oldest: the earliest round to which it may go back.
        """
        plan, first = self._plan, course.round
        count = min(plan.chunk, rounds - first)
        prepared = self._prepared.with_clients(self._source.take(first, count))
        if self._scaled:
            scale = jnp.asarray(course.step_scale, jnp.result_type(float))
            prepared = with_step_scale(prepared, place(scale, self._strategy))
        state = plan.clients.put_in(course.state, first, count)
        for ahead in (self._source, plan.clients):
            ahead.prefetch(first + count, min(plan.chunk, rounds - first - count))
        state, infos, played = _play(prepared, state, jnp.int32(count), plan.chunk)
        course.state = plan.clients.take_out(state, oldest)
        infos = jax.tree.map(lambda x: np.asarray(x)[: int(played)], infos)
        _check_cohorts(infos, int(plan.start.num_clients))
        return infos

    def columns(self, course: Course) -> dict[str, float]:
        """What the history has beside what rounds tell."""
        return {"step_scale": course.step_scale} if self._is_told else {}

    def close(self) -> None:
        """Ends what reads ahead."""
        self._source.close()


def _check_cohorts(infos: Info, num_clients: int) -> None:
    """Refuses what a sampler of the user's own may do wrong, and no gather would notice."""
    cohorts = np.sort(infos.cohort, axis=1)
    filled = cohorts >= 0
    wrong = (cohorts >= num_clients).any(axis=1)
    wrong |= (filled[:, 1:] & (cohorts[:, 1:] == cohorts[:, :-1])).any(axis=1)
    if wrong.any():
        t = int(np.argmax(wrong))
        raise ValueError(
            f"cohort must be of different clients, from 0 to {num_clients - 1}, but that of round"
            f" {infos.round[t]} is {infos.cohort[t].tolist()}."
        )


def no_rounds(plan: Plan) -> Info:
    """What rounds would tell, of none."""
    _, info = jax.eval_shape(one_round, plan.prepared, plan.seen)
    return jax.tree.map(lambda x: np.zeros((0, *x.shape), x.dtype), info)


def _first_state(algorithm, federation, seed, clients) -> FederatedState:
    key = as_key(seed)
    variables = initial_variables(federation, key)
    return clients.first_state(
        algorithm, variables, federation.num_clients, jax.random.fold_in(key, 1)
    )


def _source(prepared: Prepared, key: jax.Array, chunk: int) -> Any:
    federation, strategy = prepared.federation, prepared.strategy
    clients: Any = federation.clients
    if in_memory(clients):
        return chunks.DeviceExamples(clients, strategy)
    if "momentum_deviation" in prepared.diagnostics:
        raise ValueError(
            "diagnostics: 'momentum_deviation' needs all examples in every round, but those of the"
            " clients are in files, and only the cohorts' are read. Leave it out, or use data in memory."
        )
    mesh = strategy.mesh
    if (
        mesh is None
        or not mesh.is_multi_process
        or isinstance(prepared.controls.local_steps, Controller)
    ):
        cohorts = partial(chunks.cohort_ids, federation.cohort, key, chunk, len(clients.sizes))
        return chunks.FileExamples(clients, strategy, lambda first: cohorts(np.int32(first)))
    read = changed(federation, clients=ClientData((), (), clients.sizes), validation=None)
    who = prepared.replace(algorithm=(), federation=read)

    def lineup(first_round: int) -> jax.Array:
        return seats(who, key, np.int32(first_round), chunk)

    return chunks.FileExamples(clients, strategy, lineup, meshes.num_parts(mesh))


@partial(jax.jit, static_argnames="length", donate_argnames="state")
def _play(prepared: Prepared, state: FederatedState, count: jax.Array, length: int):
    """Up to `count` rounds, fewer if one is not finite; history arrays have room for `length`."""
    info = jax.eval_shape(lambda s: one_round(prepared, s)[1], state)
    room = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), info)

    def go_on(carry):
        _, _, played, finite = carry
        return (played < count) & finite

    def one(carry):
        state, infos, played, _ = carry
        state, info = one_round(prepared, state)
        infos = jax.tree.map(lambda rows, row: rows.at[played].set(row), infos, info)
        return state, infos, played + 1, info.finite

    start = state, room, jnp.int32(0), jnp.asarray(True)
    state, infos, played, _ = jax.lax.while_loop(go_on, one, start)
    return state, infos, played


def _compiled(chunk: int, prepared: Prepared, state: FederatedState) -> Any:
    """The program of a chunk of rounds, for shapes."""
    count = jax.ShapeDtypeStruct((), jnp.int32)
    return _play.lower(prepared, state, count, chunk).compile()
