"""Trials as an axis of one program, and how many of them it computes at once.

Trials come in waves of one size, so all waves share a program; the last one is filled up with copies of
a trial. On CPU a wave is one trial on each device, its clients one after the other; where that would
leave devices idle (one trial, many devices), trials come one by one, each with its clients over the
devices; so they do on several processes. On an accelerator a wave is as many trials as its memory holds,
all at once.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_opt.core import first_state
from fedjax_opt.core.calls import without_call
from fedjax_opt.core.controller import first_algorithm
from fedjax_opt.core.federation import Federation, initial_variables, with_controllers
from fedjax_opt.core.struct import changed
from fedjax_opt.engine import evaluate, personal_variables
from fedjax_opt.engine.evaluate import mean_over_rows
from fedjax_opt.engine.run import Prepared, one_round
from fedjax_opt.execution import Strategy, memory, strategies
from fedjax_opt.execution.placement import CLIENTS

_ONE_BY_ONE = Strategy("scan")

# Measured on two CPU cores: rounds of 2, 3 and 18 ms on one device took 1.4, 1.3 and 1.06 times half of
# that with their clients over both.
_WORTH_SHARING = 0.75


class Plan(NamedTuple):
    """How trials are executed.

    Attributes:
      size: W, the trials of a wave.
      trials: how the axis of trials is executed.
      clients: how each trial executes its clients.
    """

    size: int
    trials: Strategy
    clients: Strategy

    @property
    def meshed(self) -> Strategy:
        """The strategy that has the mesh, if any has: where arrays are to be placed."""
        return self.clients if self.trials.mesh is None else self.trials


def plans(
    strategy: str | Strategy, clients: str | Strategy, num_trials: int, cohort_size: int
) -> list[Plan]:
    """How trials may be executed, from the fastest to the smallest."""
    on_cpu = jax.default_backend() == "cpu"
    num_devices = jax.device_count()
    asked, inside = strategies.resolve(strategy), strategies.resolve(clients)
    if _is_auto(clients):
        inside = _ONE_BY_ONE if on_cpu else Strategy("vmap")
    if not _is_auto(strategy):
        if jax.process_count() > 1 and asked.name == "sharded":
            raise ValueError(
                "strategy must not be 'sharded' for trials on several processes, which divide the"
                " clients of each trial: leave it at 'auto', or start each process alone with trials of"
                " its own."
            )
        if asked.name == "sharded" and inside.name == "sharded":
            raise ValueError(
                "strategy must not be 'sharded' for trials and for their clients at once: give one of"
                " them another."
            )
        return [_plan(asked, inside, num_trials)]
    alone = Plan(1, _ONE_BY_ONE, inside)
    if inside.name == "sharded" or (on_cpu and num_devices == 1):
        return [alone]
    spread = strategies.resolve("sharded")
    if jax.process_count() > 1:
        # What trials give must be readable in every process; their clients may be anywhere.
        return [alone._replace(clients=spread if _is_auto(clients) else inside)]
    if on_cpu:
        # How long a device works, in rounds of one client. Devices that share a trial wait for each
        # other in every round: that is for where it saves a good deal.
        by_trials = -(-num_trials // num_devices) * cohort_size
        by_clients = num_trials * -(-cohort_size // num_devices)
        if _is_auto(clients) and by_clients <= _WORTH_SHARING * by_trials:
            return [alone._replace(clients=spread)]
        return [_plan(spread, inside, num_trials)]
    many = Strategy("vmap") if num_devices == 1 else spread._replace(inner="vmap")
    options, each = [], -(-num_trials // num_devices)
    while each * num_devices > 1:
        options.append(_plan(many, inside, num_trials, each * num_devices))
        each //= 2
    singles = memory.candidates(cohort_size, num_devices) if _is_auto(clients) else [inside]
    return options + [alone._replace(clients=option) for option in singles]


def fit(options: list[Plan], needed_bytes: Callable[[Plan], int], free: float | None) -> Plan:
    """The first plan whose compiled program fits into the memory, or else the last."""
    if len(options) == 1:
        return options[0]
    if free is None:
        statistics = jax.local_devices()[0].memory_stats() or {}
        limit, used = statistics.get("bytes_limit"), statistics.get("bytes_in_use", 0)
        free = float("inf") if limit is None else float(limit - used)
    return memory.first_that_fits(options, needed_bytes, free)


def _is_auto(strategy: str | Strategy) -> bool:
    return (strategy if isinstance(strategy, str) else strategy.name) == "auto"


def _plan(strategy: Strategy, clients: Strategy, num_trials: int, most: int | None = None) -> Plan:
    """Waves of at most so many trials, all but equally full; by default as the strategy says."""
    part = strategies.round_up(strategy, 1) if strategy.mesh is not None else 1
    if most is None:
        together = strategy.name == "vmap" or (
            strategy.mesh is not None and strategy.inner == "vmap"
        )
        most = num_trials if together else part
        if strategy.name == "chunked":
            most, strategy = min(strategy.size, num_trials), Strategy("vmap")
    waves = -(-num_trials // most)
    size = -(-num_trials // (waves * part)) * part
    return Plan(size, strategy, clients)


class Axis(NamedTuple):
    """What differs between the trials of a program, with the trials on the leading axis.

    Attributes:
      key: the words of each seed's key.
      varying: the numbers that differ, by their places among the leaves of `nouns`.
    """

    key: Any
    varying: dict[int, Any]


class Setup(NamedTuple):
    """What is compiled in.

    Attributes:
      clients: how each trial executes its clients.
      trials: how the axis of trials is executed.
      length: the most rounds of a chunk.
    """

    clients: Strategy
    trials: Strategy
    length: int


class Shared(NamedTuple):
    """What all trials see: the run of the first of them, the first model, and the test sets."""

    prepared: Prepared
    initial: Any
    test: Any
    client_test: Any
    validation: Any


def nouns(algorithm: Any, federation: Federation) -> Any:
    """All that may differ between trials in numbers alone: the algorithm, and fields of a federation."""
    return without_call(algorithm), {
        name: getattr(federation, name) for name in ("cohort", "local_steps", "guard")
    }


@partial(jax.jit, static_argnames="setup")
def begin(shared: Shared, wave: Axis, setup: Setup) -> Any:
    """The initial states of a wave of trials: those of `fo.simulate` with the same seeds."""

    def one(shared, trial):
        prepared = _prepared(setup, shared, trial)
        key = jax.random.wrap_key_data(trial.key)
        federation = changed(prepared.federation, initial=shared.initial)
        variables = initial_variables(federation, key)
        first = first_algorithm(prepared.algorithm)
        state = first_state(first, variables, federation.num_clients, jax.random.fold_in(key, 1))
        return (), with_controllers(prepared.algorithm, federation, state)

    return strategies.map_reduce(setup.trials, one, shared, wave)[1]


@partial(jax.jit, static_argnames="setup", donate_argnames="states")
def play(shared: Shared, wave: Axis, states: Any, count: Any, setup: Setup) -> tuple[Any, Any, Any]:
    """The next `count` rounds of a wave of trials."""

    def one(shared_and_count, trial_and_state):
        (shared, count), (trial, state) = shared_and_count, trial_and_state
        prepared = _prepared(setup, shared, trial)
        model = prepared.federation.model
        info = jax.eval_shape(lambda s: one_round(prepared, s)[1], state)
        room = jax.tree.map(lambda x: jnp.zeros((setup.length, *x.shape), x.dtype), info)

        def next_round(played, carry):
            state, infos = carry
            state, info = one_round(prepared, state)
            infos = jax.tree.map(lambda rows, row: rows.at[played].set(row), infos, info)
            return state, infos

        # The number of rounds is the same for all, so that trials at once need no bookkeeping. One that
        # diverged repeats the round that failed, and its state stays as it is.
        state, infos = jax.lax.fori_loop(jnp.int32(0), count, next_round, (state, room))
        found = {}
        if shared.test is not None:
            found = evaluate(model, state.variables, shared.test)
        watched = {}
        if shared.validation is not None:
            watched = evaluate(model, state.variables, shared.validation)
        if shared.client_test is not None:
            own = personal_variables(first_algorithm(prepared.algorithm), state)
            batch_size = prepared.federation.batch_size
            users = _of_users(model, own, shared.client_test, batch_size)
            found = {f"global_{name}": value for name, value in found.items()} | users
        found |= {f"validation_{name}": value for name, value in watched.items()}
        return (), (state, infos, found)

    return strategies.map_reduce(setup.trials, one, (shared, count), (wave, states))[1]


def _prepared(setup: Setup, shared: Shared, trial: Axis) -> Prepared:
    """What the program of one trial's rounds is called with."""
    prepared = shared.prepared
    leaves, structure = jax.tree.flatten(nouns(prepared.algorithm, prepared.federation))
    for place, value in trial.varying.items():
        leaves[place] = value
    algorithm, fields = jax.tree.unflatten(structure, leaves)
    federation = changed(prepared.federation, **fields)
    return changed(prepared, algorithm=algorithm, federation=federation, strategy=setup.clients)


def _of_users(model: Any, own: Callable[[Any], Any], test: Any, batch_size: int) -> Any:
    """The metrics of each client's own model on its own examples, in the mean over clients."""

    def one(client):
        rows = jnp.asarray(test.offsets)[client], jnp.asarray(test.sizes)[client]
        return mean_over_rows(model, own(client), test.examples, *rows, batch_size)

    found = jax.lax.map(one, jnp.arange(test.sizes.shape[0], dtype=jnp.int32))
    return jax.tree.map(jnp.nanmean, found)  # one without examples does not count


def needed_bytes(shared: Shared, wave: Axis, setup: Setup) -> int:
    """The device memory that a wave takes beside what all trials share: its states, and its work."""
    # Placed as the arrays will be, so that what is compiled here is what will run.
    everywhere = split = None
    if setup.clients.mesh is not None:
        everywhere = split = NamedSharding(setup.clients.mesh, PartitionSpec())
    elif setup.trials.mesh is not None:
        everywhere = NamedSharding(setup.trials.mesh, PartitionSpec())
        split = NamedSharding(setup.trials.mesh, PartitionSpec(CLIENTS))
    shared, wave = _shapes(shared, everywhere), _shapes(wave, None)
    states = _shapes(jax.eval_shape(partial(begin, setup=setup), shared, wave), split)
    count = jax.ShapeDtypeStruct((), jnp.int32)
    analysis = play.lower(shared, wave, states, count, setup=setup).compile().memory_analysis()
    if analysis is None:
        return 0
    resident = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shared))
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        + analysis.temp_size_in_bytes
        - analysis.alias_size_in_bytes
        - resident
    )


def _shapes(tree: Any, sharding: Any) -> Any:
    def shape(x):
        weak = bool(getattr(x, "weak_type", isinstance(x, int | float)))
        dtype = jnp.result_type(x)
        return jax.ShapeDtypeStruct(jnp.shape(x), dtype, sharding=sharding, weak_type=weak)

    return jax.tree.map(shape, tree)
