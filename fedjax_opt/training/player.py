"""A run between two chunks of rounds, and the program that plays the next one."""

import time
from collections.abc import Callable, Mapping, Sequence
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
from fedjax_opt.core.federation import Federation, init_state
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.run import Prepared, one_round, prepare
from fedjax_opt.execution import memory, placement
from fedjax_opt.execution.strategies import Strategy, place, resolve
from fedjax_opt.storage.client_states import ClientStore
from fedjax_opt.training import chunks
from fedjax_opt.training.extensions import Chunk, Memory
from fedjax_opt.training.history import Columns, rows_of

# A pure function of the algorithm, the federation and a state: numbers by name, or one per client.
Measurement = Callable[[Algorithm, Federation, FederatedState], Mapping[str, jax.Array]]


class Player:
    """A run: how far it has come, and what plays its next chunk of rounds, of up to `chunk` rounds.

    The `store` of the clients' states must be able to go back to the run's `keep` newest checkpoints.
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
        measurements: Sequence[Measurement],
        strategy: str | Strategy,
        diagnostics: Sequence[str],
    ) -> None:
        steps = federation.local_steps
        if isinstance(steps, StaticInt):  # traced: another K compiles nothing
            federation = changed(federation, local_steps=jnp.int32(int(steps)))
        is_settled = isinstance(algorithm, Algorithm)
        self.algorithm = algorithm if is_settled else first_algorithm(algorithm)
        self.federation, self.measurements, self._chunk = federation, measurements, chunk
        # What brings clients' states and examples to the devices; None if all of them are there.
        self.states = None if store is None else chunks.StoreStates(store, chunk, keep)
        self._examples: chunks.FileExamples | None = None
        if state is None:
            new = init_state if self.states is None else chunks.without_clients
            make = partial(new, algorithm, federation, seed)
            mesh = resolve(strategy).mesh
            state = make() if mesh is None else placement.make_sharded(make, mesh)
        if self.states is not None:
            self.states, state = self.states.open(self.algorithm, state)
        self.prepared, start = prepare(
            algorithm, federation, state, strategy, diagnostics, "simulate"
        )
        # Where it starts, as the host keeps it; and as a round sees it, with shapes of clients' states.
        self.start = self._seen = start
        if self.states is not None:
            self.start, self._seen = self.states.part(start, federation.cohort)
        self.state, self.round = self.start, int(start.round)
        self.rounds, self.evaluations = Columns(), Columns()  # what is written down
        self.memories: dict[str, Memory] = {}  # what extensions remember, by name
        self.stops: dict[str, str] = {}  # why they have ended the run
        self.keeps: set[int] = set()  # the rounds that they may go back to
        self.may_go_back = False  # whether they may ask for it, from the first chunk on
        self.copies = 0  # of the state on the devices, to go back to
        self.step_scale, self.tells_scale = 1.0, False  # and whether the history has a column of it
        self.began = time.perf_counter()  # had the run never been interrupted

    @property
    def seconds(self) -> float:
        """How long the run has taken, also before it was interrupted."""
        return time.perf_counter() - self.began

    def open(self) -> None:
        """Settles the strategy, and puts on the devices what stays there."""
        strategy = self.prepared.strategy
        if strategy.name == "auto" or strategy.memory_limit is not None:
            strategy = self._fitting()
        read = self.prepared = changed(self.prepared, strategy=strategy)
        if not in_memory(read.federation.clients):
            self._examples = chunks.examples_of(read, self.state.cohort_key, self._chunk)
            read = read.with_clients(int(self.start.num_clients))
        tests = self.federation.test, self.federation.client_test
        self._placed, (test, client_test) = place((read, tests), strategy)
        self.federation = changed(self.federation, test=test, client_test=client_test)
        self.go_on_from(self.state)

    def go_on_from(self, state: FederatedState) -> None:
        """Takes the clients to the round of a state, and the state to the devices."""
        strategy, self.round = self.prepared.strategy, int(state.round)
        if self.states is not None:
            self.states.begin(state, strategy)
        # It is copied, since its buffers are given up to the program: whoever else has it keeps theirs.
        self.state = place(jax.tree.map(jnp.copy, state), strategy)

    def play(self, rounds: int) -> Chunk:
        """Plays the next chunk of so many rounds in all, and writes it down."""
        first, prepared, state = self.round, self._placed, self.state
        count = min(self._chunk, rounds - first)
        after = first + count, min(self._chunk, rounds - first - count)
        if self.may_go_back or self.step_scale != 1:
            scale = jnp.asarray(self.step_scale, jnp.result_type(float))
            prepared = _with_step_scale(prepared, place(scale, prepared.strategy))
        if self._examples is not None:
            prepared = prepared.with_clients(self._examples.take(first, count))
        if self.states is not None:
            state = self.states.put_in(state, first, count)
        if self._examples is not None:
            self._examples.prefetch(*after)
        if self.states is not None:
            self.states.prefetch(*after)
        state, infos, played = _play(prepared, state, jnp.int32(count), self._chunk)
        if self.states is not None:
            state = self.states.take_out(state, min(self.keeps, default=first))
        played = int(played)
        self.state, self.round = state, int(state.round)
        infos = jax.tree.map(lambda x: np.asarray(x)[:played], infos)
        _check_cohorts(infos, int(state.num_clients))
        self.rounds.append(rows_of(infos, self.step_scale if self.tells_scale else None))
        return Chunk(
            first, self.round, infos, {}, bool(infos.finite.all()), self.seconds, self.step_scale,
            state=lambda: jax.tree.map(jnp.copy, self.state),
        )  # fmt: skip

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

    def _fitting(self) -> Strategy:
        """The strategy that fits into memory, beside test sets and copies of the state."""
        federation, size = self.prepared.federation, self.prepared.federation.cohort.size
        clients: Any = federation.clients
        examples = chunks.largest_examples(clients, self._chunk * size)
        seen = self.prepared.with_clients(ClientData(examples, clients.offsets, clients.sizes))
        count = jax.ShapeDtypeStruct((), jnp.int32)

        def compiled(option: Strategy) -> jax.stages.Compiled:
            shapes = trees.shapes_of((changed(seen, strategy=option), self._seen))
            return _play.lower(*shapes, count, self._chunk).compile()

        tests = federation.validation, self.federation.test, self.federation.client_test
        data, states = (examples, tests), [self._seen] * (2 + self.copies)
        return memory.fit(self.prepared.strategy, size, compiled, data, states)


def _check_cohorts(infos: Info, num_clients: int) -> None:
    """Refuses what a sampler of the user's own may do wrong, and no gather would notice."""
    cohorts = np.sort(infos.cohort, axis=1)
    twice = (cohorts[:, 1:] == cohorts[:, :-1]) & (cohorts[:, 1:] >= 0)
    wrong = (cohorts >= num_clients).any(axis=1) | twice.any(axis=1)
    if wrong.any():
        t = int(np.argmax(wrong))
        raise ValueError(
            f"cohort must be of different clients, from 0 to {num_clients - 1}, but that of round"
            f" {infos.round[t]} is {infos.cohort[t].tolist()}."
        )


def _with_step_scale(prepared: Prepared, scale: jax.Array) -> Prepared:
    """A run with its step times a scale: another scale compiles nothing."""
    algorithm = prepared.algorithm
    if not isinstance(algorithm, Scheduled):
        step = Partial(_damped, algorithm.server_step, scale)
        return changed(prepared, algorithm=algorithm._replace(server_step=step))
    rate = algorithm.setting
    if isinstance(rate, Controller):
        rate = rate._replace(value=Partial(_scaled, rate.value, scale))
    elif callable(rate):
        rate = Partial(_scaled, rate, scale)
    else:
        rate = scale * jnp.asarray(rate, scale.dtype)
    return changed(prepared, algorithm=algorithm._replace(setting=rate))


def _damped(server_step, scale, server, mean, situation):
    new = server_step(server, mean, situation)
    old, moved = get_variables(server), get_variables(new)
    part = trees.add_scaled(old.params, scale, trees.subtract(moved.params, old.params))
    # A step that is not scaled stays the same to the last bit.
    params = trees.select(scale < 1, part, moved.params)
    return set_variables(new, moved._replace(params=params))


def _scaled(value, scale, *of):
    """A schedule's value, or a controller's."""
    return scale * jnp.asarray(value(*of), scale.dtype)


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
