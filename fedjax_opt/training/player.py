"""What plays the rounds of a run, in chunks: what its program is called with, and the program."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Algorithm, Scheduled, StaticInt, get_variables, set_variables
from fedjax_opt.core.client_data import ClientData, in_memory
from fedjax_opt.core.controller import Controller, first_algorithm
from fedjax_opt.core.federation import Federation, initial_variables
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState, as_key, first_state
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.preparation import Prepared, prepare
from fedjax_opt.engine.run import one_round, seats
from fedjax_opt.execution import memory, placement
from fedjax_opt.execution.strategies import Strategy, place, resolve
from fedjax_opt.storage.client_states import ClientStore
from fedjax_opt.training import chunks
from fedjax_opt.training.history import Course


class Player:
    """Plays chunks of rounds, with the examples and the clients' states that they need.

    Args:
      algorithm, federation, seed, state, strategy, diagnostics: as for `simulate`.
      chunk: the largest number of rounds in a chunk.
      store: where the clients' states are, if not on the device.
      keep: to how many checkpoints the store must be able to go back.

    Attributes:
      algorithm: that of the first round.
      prepared: what the program is called with.
      start: the state that the run starts from, as the host keeps it.
      states: what brings clients' states to the devices; None if all of them are there.
    """

    def __init__(
        self,
        algorithm: Algorithm | Scheduled,
        federation: Federation,
        chunk: int,
        seed: int,
        state: FederatedState | None,
        store: ClientStore | None,
        keep: int,
        strategy: str | Strategy,
        diagnostics: Sequence[str],
    ) -> None:
        if isinstance(federation.local_steps, StaticInt):  # traced: another K compiles nothing
            federation = federation.replace(local_steps=jnp.asarray(int(federation.local_steps)))
        self.algorithm, self._chunk = first_algorithm(algorithm), chunk
        self.states = None if store is None else chunks.states_of(store, chunk, keep)
        make = partial(_first_state, self.algorithm, federation, seed, self.states)
        if state is None:
            mesh = resolve(strategy).mesh
            state = make() if mesh is None else placement.make_sharded(make, mesh)
        if self.states is not None:
            self.states, state = self.states.open(self.algorithm, state)
        self.prepared, start = prepare(
            algorithm, federation, state, strategy, diagnostics, "simulate"
        )
        self.start = self._seen = start
        if self.states is not None:
            self.start, self._seen = self.states.part(start, federation.cohort)
        self._examples: chunks.FileExamples | None = None

    def open(self, course: Course, tests: object, copies: int) -> None:
        """Settles the strategy, and puts on the devices what stays there.

        Args:
          course: where the run begins.
          tests: what else is there, to be evaluated between the chunks.
          copies: of the state, as many as the run keeps.
        """
        strategy = self.prepared.strategy
        if strategy.name == "auto" or strategy.memory_limit is not None:
            strategy = self._fitting(tests, 2 + copies)
        read = self.prepared = self.prepared.replace(strategy=strategy)
        if not in_memory(read.federation.clients):
            self._examples = _files(read, course.state.cohort_key, self._chunk)
            read = read.with_clients(int(self.start.num_clients))
        self._placed = place(read, strategy)
        self.begin(course)

    def begin(self, course: Course) -> None:
        """Takes the clients to the round of the state, and the state to the devices."""
        strategy = self.prepared.strategy
        if self.states is not None:
            self.states.begin(course.state, strategy)
        # It is copied, since its buffers are given up to the program: whoever else has it keeps theirs.
        course.state = place(jax.tree.map(jnp.copy, course.state), strategy)

    def play(self, course: Course, rounds: int) -> Info:
        """Plays the next chunk, as many as are left of some rounds; what each was like, on the host.

        Args:
          course: the run; its state is given up.
          rounds: how many it has in all.
        """
        first, prepared, state = course.round, self._placed, course.state
        count = min(self._chunk, rounds - first)
        after = first + count, min(self._chunk, rounds - first - count)
        if self._examples is not None:
            prepared = prepared.with_clients(self._examples.take(first, count))
        if course.may_go_back or course.step_scale != 1:
            scale = jnp.asarray(course.step_scale, jnp.result_type(float))
            prepared = _with_step_scale(prepared, place(scale, prepared.strategy))
        if self.states is not None:
            state = self.states.put_in(state, first, count)
        if self._examples is not None:
            self._examples.prefetch(*after)
        if self.states is not None:
            self.states.prefetch(*after)
        state, infos, played = _play(prepared, state, jnp.int32(count), self._chunk)
        if self.states is not None:
            state = self.states.take_out(state, min(course.keeps, default=first))
        course.state, played = state, int(played)
        infos = jax.tree.map(lambda x: np.asarray(x)[:played], infos)
        _check_cohorts(infos, int(state.num_clients))
        return infos

    def no_rounds(self) -> Info:
        """What rounds would tell, of none."""
        _, info = jax.eval_shape(one_round, self.prepared, self._seen)
        return jax.tree.map(lambda x: np.zeros((0, *x.shape), x.dtype), info)

    def close(self) -> None:
        """Ends what reads ahead, and what writes."""
        if self._examples is not None:
            self._examples.close()
        if self.states is not None:
            self.states.close()

    def _fitting(self, tests: object, copies: int) -> Strategy:
        """The strategy that fits into memory, beside test sets and copies of the state."""
        federation, size = self.prepared.federation, self.prepared.federation.cohort.size
        clients: Any = federation.clients
        examples = _examples_at_once(clients, self._chunk * size)
        seen = self.prepared.with_clients(ClientData(examples, clients.offsets, clients.sizes))
        count = jax.ShapeDtypeStruct((), jnp.int32)

        def compiled(option: Strategy) -> jax.stages.Compiled:
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
                (seen.replace(strategy=option), self._seen),
            )
            return _play.lower(*shapes, count, self._chunk).compile()

        data, states = (examples, federation.validation, tests), [self._seen] * copies
        return memory.fit(self.prepared.strategy, size, compiled, data, states)


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


def _first_state(
    algorithm: Algorithm, federation: Federation, seed: int, states: chunks.StoreStates | None
) -> FederatedState:
    key = as_key(seed)
    variables = initial_variables(federation, key)
    make = first_state if states is None else states.first_state
    return make(algorithm, variables, federation.num_clients, jax.random.fold_in(key, 1))


def _examples_at_once(clients: ClientData, most: int) -> chex.ArrayTree:
    """The examples that are on the device; of those in files, shapes of the largest cohorts'.

    Args:
      clients: whose examples.
      most: clients of all cohorts of a chunk.
    """
    if in_memory(clients):
        return clients.examples
    sizes = np.asarray(clients.sizes)
    most = min(most + 1, len(sizes))  # an empty slot of a cohort reads client 0
    rows = int(np.partition(sizes, -most)[-most:].sum(dtype=np.int64))
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), clients.examples
    )


def _files(prepared: Prepared, key: chex.PRNGKey, chunk: int) -> chunks.FileExamples:
    """What reads the examples of a chunk's cohorts, of each part of a mesh its own if they are known."""
    federation, strategy = prepared.federation, prepared.strategy
    clients: Any = federation.clients
    mesh = strategy.mesh
    if "momentum_deviation" in prepared.diagnostics:
        raise ValueError(
            "diagnostics: 'momentum_deviation' needs all examples in every round, but those of the"
            " clients are in files, and only the cohorts' are read. Leave it out, or use data in memory."
        )
    if (
        mesh is None
        or not mesh.is_multi_process
        or isinstance(prepared.controls.local_steps, Controller)
    ):
        cohorts = partial(chunks.cohort_ids, federation.cohort, key, chunk, len(clients.sizes))
        return chunks.FileExamples(clients, strategy, lambda first: cohorts(np.int32(first)))
    read = changed(federation, clients=ClientData((), (), clients.sizes), validation=None)
    who = prepared.replace(algorithm=(), federation=read)

    def lineup(first_round: int) -> chex.Array:
        return seats(who, key, np.int32(first_round), chunk)

    return chunks.FileExamples(clients, strategy, lineup, placement.num_parts(mesh))


def _with_step_scale(prepared: Prepared, scale: jax.Array) -> Prepared:
    """A run with its step times a scale: another scale compiles nothing.

    The step is the learning rate, where the algorithm is `scheduled`, else the change of the global
    parameters in each round.
    """
    algorithm = prepared.algorithm
    if not isinstance(algorithm, Scheduled):
        step = Partial(_damped, algorithm.server_step, scale)
        return prepared.replace(algorithm=algorithm._replace(server_step=step))
    rate = algorithm.setting
    if isinstance(rate, Controller):
        rate = rate._replace(value=Partial(_scaled_value, rate.value, scale))
    elif callable(rate):
        rate = Partial(_scaled_schedule, rate, scale)
    else:
        rate = scale * jnp.asarray(rate, scale.dtype)
    return prepared.replace(algorithm=algorithm._replace(setting=rate))


def _damped(server_step, scale, server, mean, situation):
    new = server_step(server, mean, situation)
    old, moved = get_variables(server), get_variables(new)
    part = trees.add_scaled(old.params, scale, trees.subtract(moved.params, old.params))
    # A step that is not scaled stays the same to the last bit.
    params = trees.select(scale < 1, part, moved.params)
    return set_variables(new, moved._replace(params=params))


def _scaled_value(value, scale, memory, round_number):
    return scale * jnp.asarray(value(memory, round_number), scale.dtype)


def _scaled_schedule(schedule, scale, round_number):
    return scale * jnp.asarray(schedule(round_number), scale.dtype)


@partial(jax.jit, static_argnames="length", donate_argnames="state")
def _play(prepared: Prepared, state: FederatedState, count: chex.Numeric, length: int):
    """Up to `count` rounds, fewer if one is not finite; history arrays have room for `length`."""
    _, info = jax.eval_shape(one_round, prepared, state)
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
    return jax.lax.while_loop(go_on, one, start)[:3]
