"""Many runs as few programs: hyperparameters and seeds as an axis of each."""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import FederatedState, Federation, StaticInt, checks, init_state
from fedjax_opt.core.client_data import in_memory
from fedjax_opt.core.controller import first_algorithm
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.run import prepare
from fedjax_opt.execution import Strategy
from fedjax_opt.execution.strategies import place
from fedjax_opt.experiments import waves
from fedjax_opt.experiments.search import Range as Range
from fedjax_opt.experiments.search import expand as expand
from fedjax_opt.experiments.search import sample as sample
from fedjax_opt.experiments.states import States, digest
from fedjax_opt.experiments.trials import Log, check_trials, collect
from fedjax_opt.experiments.trials import Progress as Progress
from fedjax_opt.experiments.trials import Trial as Trial
from fedjax_opt.experiments.trials import Trials as Trials
from fedjax_opt.training import NonFiniteLossError, fingerprint

# Arrays up to this size are compared by value, larger ones must be one and the same to be shared.
_SMALL = 1024


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep. `trials` holds what was done up to the last chunk."""

    def __init__(self, trials: Trials):
        super().__init__("The sweep was interrupted.")
        self.trials = trials


def run_trials(
    trials: Iterable[Trial],
    rounds: int,
    *,
    diagnostics: Sequence[str] = (),
    evaluate_every: int = 10,
    strategy: str | Strategy = "auto",
    client_strategy: str | Strategy = "auto",
    memory: float | None = None,
    keep_models: bool = True,
    on_chunk: Callable[[Progress], Any] | None = None,
    on_nonfinite: str = "keep",
    states: States | None = None,
) -> Trials:
    """Runs trials; those that differ in numbers alone are one compiled program.

    Each trial gives what `fo.simulate` gives with the same algorithm, federation and seed. Trials share
    a program if their algorithms and federations have the same structure and the same data; numbers in
    which they differ are an axis of the program, next to the seed. They are played in waves, each in
    chunks of `evaluate_every` rounds.

    Args:
      trials: what to run; their examples are in memory. Every `evaluate_every` rounds they are evaluated
        on the `test` and the `validation` of their federation. With a `client_test` the metrics are
        those of each client's own model on its own examples (`personal_variables`), in the mean over
        clients, and those of the global model on the test set are called `global_accuracy` and the like.
      rounds: R, how many rounds each of them runs.
      diagnostics: what to measure of the clients' drift, as in `run_rounds`.
      evaluate_every: the rounds between evaluations, and the length of a chunk.
      strategy: how trials are executed: 'scan' one after the other, 'vmap' all at once, 'chunked' so
        many at once, 'sharded' over the devices; see `Strategy`. 'auto' spreads them over CPU devices
        (over which it spreads the clients instead if there are too few trials), and on an accelerator
        computes as many at once as fit into its memory.
      client_strategy: how the clients of each trial are executed.
      memory: the bytes of an accelerator that 'auto' may use beside the data; by default what is free.
      keep_models: whether to bring each trial's final model to the host.
      on_chunk: called with a `Progress` after each chunk.
      on_nonfinite: 'keep' the last good state of a trial that diverges and go on with the others, or
        'raise' a `NonFiniteLossError` whose `result` holds the `Trials` so far.
      states: where the trials' states are on the disk; those that have one go on from there.

    Returns:
      The `Trials`.

    Raises:
      Interrupted: at Ctrl-C; a `KeyboardInterrupt` that holds the `Trials` up to the last chunk.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments import Trial, run_trials
      >>> model, clients, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> federation = fo.Federation(
      ...     model, clients, cohort=2, local_steps=2, batch_size=1, test=clients.examples
      ... )
      >>> found = run_trials(
      ...     [Trial("fedavg", fo.fedavg(fo.optimizers.sgd(rate)), federation, seed, {"rate": rate})
      ...      for rate in (0.01, 0.1) for seed in (0, 1)],
      ...     rounds=4, evaluate_every=2,
      ... )
      >>> len(found.trials), found.history[0]["loss"].shape, found.evaluations[0]["loss"].shape
      (4, (4,), (2,))
    """
    started = time.perf_counter()
    trials = check_trials(trials)
    rounds = checks.integer("rounds", rounds, low=1)
    length = min(checks.integer("evaluate_every", evaluate_every, low=1), rounds)
    checks.choice("on_nonfinite", on_nonfinite, ("keep", "raise"))
    logs = [Log(trial) for trial in trials]
    if states is not None:
        for log in logs:
            states.begin(log, rounds)

    def so_far() -> Trials:
        return collect(logs, time.perf_counter() - started)

    try:
        for program in _programs(logs, diagnostics):
            options = waves.plans(strategy, client_strategy, len(program.logs), program.cohort_size)
            needed = partial(_needed_bytes, program, length)
            plan = waves.fit(options, needed, memory)
            for now, ended in _chunks(program, plan, length, rounds, keep_models, states):
                if on_chunk is not None:
                    on_chunk(_progress(logs, now, ended, rounds, time.perf_counter() - started))
                failed = [log for log in now if log.failure]
                if failed and on_nonfinite == "raise":
                    message = f"{failed[0].trial.identity}: {failed[0].failure}"
                    raise NonFiniteLossError(message, cast(Any, so_far()))
    except KeyboardInterrupt:
        if states is not None:
            states.save()
        raise Interrupted(so_far()) from None
    return so_far()


class Program(NamedTuple):
    """Trials that share a program.

    Attributes:
      logs: theirs.
      shared: what all of them see.
      axis: what differs between them.
      state: zeros in the shapes of a state.
    """

    logs: list[Log]
    shared: waves.Shared
    axis: waves.Axis
    state: FederatedState

    @property
    def cohort_size(self) -> int:
        """S."""
        return self.shared.prepared.federation.cohort.size

    def rows(self, rows: Sequence[int]) -> waves.Axis:
        """What differs between some of the trials."""
        places = np.asarray(rows)
        return jax.tree.map(lambda x: x[places], self.axis)

    def parts(self) -> dict[str, Any]:
        """What the trials have in common: their code, and their data."""
        shared, algorithm = self.shared, first_algorithm(self.logs[0].trial.algorithm)
        state = self.state._replace(key=jax.random.key(0))
        found = fingerprint.of_run(shared.prepared, state, algorithm)
        tested = fingerprint.of_data(
            test=shared.test, client_test=shared.client_test, validation=shared.validation
        )
        kept = {name: found[name] for name in ("functions", "program", "recorded")}
        return kept | {"data": found["data"] | tested}


def together(trials: Iterable[Trial]) -> list[list[Trial]]:
    """The trials in groups that can share a program, in the order of the first of each."""
    groups: list[tuple[Any, list[Trial]]] = []
    for trial in trials:
        key = _structure(trial)
        found = next((group for known, group in groups if known == key), None)
        if found is None:
            groups.append((key, [trial]))
        else:
            found.append(trial)
    return [group for _, group in groups]


def _structure(trial: Trial) -> Any:
    """Equal for trials that differ in numbers alone."""
    own = _traced(trial.federation)
    leaves, tree = jax.tree.flatten(waves.nouns(trial.algorithm, own))
    data = own.clients, own.test, own.client_test, own.initial, own.validation
    model = jax.tree.leaves(own.model)
    same = [id(x) for x in (*data, *model)]
    words = own.batch_size, own.batching, own.weighting, jax.tree.structure(own.model)
    return tree, [_kind(leaf) for leaf in leaves], same, words


def _kind(leaf: Any) -> Any:
    if _is_number(leaf):
        return "number"
    large = np.size(leaf) > _SMALL
    return np.shape(leaf), jnp.result_type(leaf), id(leaf) if large else None


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (int, float)) and not isinstance(leaf, bool)


def _traced(federation: Federation) -> Federation:
    """With local steps that are traced, as in `simulate`: another K compiles nothing."""
    if isinstance(federation.local_steps, StaticInt):
        return changed(federation, local_steps=jnp.asarray(int(federation.local_steps)))
    return federation


def _programs(logs: Sequence[Log], diagnostics: Sequence[str]) -> Iterator[Program]:
    by_trial = {id(log.trial): log for log in logs}
    for group in together(log.trial for log in logs):
        yield _program([by_trial[id(trial)] for trial in group], diagnostics)


def _program(logs: list[Log], diagnostics: Sequence[str]) -> Program:
    shared, state = _prepare(logs[0].trial, diagnostics)
    seen: dict[tuple[int, int], list[Any]] = {}  # the trials of a point have one algorithm

    def leaves(trial: Trial) -> list[Any]:
        key = id(trial.algorithm), id(trial.federation)
        if key not in seen:
            seen[key] = jax.tree.leaves(waves.nouns(trial.algorithm, _traced(trial.federation)))
        return seen[key]

    table = [leaves(log.trial) for log in logs]
    varying = {}
    for leaf, values in enumerate(zip(*table, strict=True)):
        if not all(_same(value, values[0]) for value in values):
            # Python numbers stay weakly typed, as they are in `simulate`.
            if any(isinstance(value, float) for value in values):
                values = [float(v) if _is_number(v) else v for v in values]
            stacked = jnp.stack([jnp.asarray(value) for value in values])
            # Of several processes each has all of it, which only NumPy's arrays say.
            varying[leaf] = stacked if jax.process_count() == 1 else np.asarray(stacked)
    # Made here, not in the program, where a large seed would be another one.
    keys = [np.asarray(jax.random.key_data(jax.random.key(log.trial.seed))) for log in logs]
    return Program(logs, shared, waves.Axis(np.stack(keys), varying), state)


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(np.array_equal(one, other))


def _prepare(trial: Trial, diagnostics: Sequence[str]) -> tuple[waves.Shared, FederatedState]:
    """What all trials of a program share, checked by the first of them; and a state, for its shapes."""
    federation = _traced(trial.federation)
    if not in_memory(federation.clients):
        raise ValueError(
            "federation.clients must be in memory for a sweep, whose trials draw cohorts of their own"
            " and so need all examples on the device, but these examples are in files. Select all"
            " clients, clients[:], or run the trials one by one with fo.simulate."
        )
    shapes = jax.eval_shape(lambda federation: init_state(trial.algorithm, federation), federation)
    # Only its structure is looked at.
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes._replace(key=()))
    state = state._replace(num_clients=np.int32(federation.num_clients))
    algorithm = trial.algorithm
    prepared, state = prepare(algorithm, federation, state, "scan", diagnostics, "run_trials")
    tests = federation.test, federation.client_test, federation.validation
    return waves.Shared(prepared, federation.initial, *tests), state


def _needed_bytes(program: Program, length: int, plan: waves.Plan) -> int:
    setup = waves.Setup(plan.clients, plan.trials, length)
    wave = program.rows([min(i, len(program.logs) - 1) for i in range(plan.size)])
    return waves.needed_bytes(program.shared, wave, setup)


def _chunks(
    program: Program,
    plan: waves.Plan,
    length: int,
    rounds: int,
    keep_models: bool,
    states: States | None,
) -> Iterator[tuple[list[Log], Sequence[Log]]]:
    """Plays one wave after the other; tells after each chunk whose logs have grown, and whose ended."""
    setup = waves.Setup(plan.clients, plan.trials, length)
    shared = place(program.shared, plan.meshed)
    parts = functools.cache(program.parts)  # to trace the program takes a while

    def identity(log: Log) -> str:
        """What a trial is computed from: code, data and numbers."""
        nouns = waves.nouns(log.trial.algorithm, log.trial.federation)
        return digest([parts(), fingerprint.describe(nouns=nouns)])

    for first, members in _waves(program.logs, plan.size, rounds):
        logs = [program.logs[i] for i in members]
        wave = program.rows(members + members[-1:] * (plan.size - len(members)))
        now = waves.begin(shared, wave, setup=setup)
        if states is not None and first:
            restored = _restored(states, logs, now, identity)
            now, first = (now, 0) if restored is None else (restored, first)
        if plan.trials.mesh is None:  # else they are where they belong
            now = place(now, plan.clients)
        began = time.perf_counter()
        while first < rounds:
            count = min(length - first % length, rounds - first)
            if states is not None:
                states.let_go()
            now, *seen = waves.play(shared, wave, now, np.int32(count), setup=setup)
            grown, first = _grow(logs, jax.device_get(tuple(seen)), count, began), first + count
            ended = first == rounds or all(log.failure for log in logs)
            if ended and keep_models:
                models = jax.device_get(now.variables)
                for i, log in enumerate(logs):
                    log.variables = jax.tree.map(lambda x, i=i: x[i], models)
            if states is not None:
                states.note(logs, now, identity)
            yield grown, logs if ended else []
            if states is not None:
                states.after(logs if ended else [])
            if ended:
                break


def _waves(logs: Sequence[Log], size: int, rounds: int) -> Iterator[tuple[int, list[int]]]:
    """Those that are not done in waves of one size, each of trials that begin in the same round."""
    starts: dict[int, list[int]] = {}
    for i, log in enumerate(logs):
        if log.rounds < rounds:
            starts.setdefault(log.rounds, []).append(i)
    for first in sorted(starts, reverse=True):
        for start in range(0, len(starts[first]), size):
            yield first, starts[first][start : start + size]


def _restored(
    states: States, logs: Sequence[Log], now: FederatedState, identity: Callable[[Log], str]
) -> FederatedState | None:
    """The states in which the trials of a wave go on; None if any of them is not used."""
    keyless = now._replace(key=jax.random.key_data(now.key))
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), keyless)
    found = [states.restore(log, like, identity) for log in logs]
    if any(state is None for state in found):
        for log in logs:
            log.begin(0)
        return None
    found += found[-1:] * (now.round.shape[0] - len(found))
    stacked: Any = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *found)
    return stacked._replace(key=jax.random.wrap_key_data(stacked.key))


def _grow(logs: Sequence[Log], seen: Any, count: int, began: float) -> list[Log]:
    """Writes a chunk down for those who had not diverged before, and gives their logs."""
    grown = []
    for i, log in enumerate(logs):
        if not log.failure:
            infos, found = jax.tree.map(lambda x, i=i: x[i], seen)
            log.add(infos, count, found, time.perf_counter() - began)
            grown.append(log)
    return grown


def _progress(
    logs: Sequence[Log], now: list[Log], ended: Sequence[Log], rounds: int, seconds: float
) -> Progress:
    return Progress(
        done=sum(rounds if log.failure else log.rounds for log in logs),
        total=rounds * len(logs),
        seconds=seconds,
        trials=tuple(log.trial for log in now),
        round=max(log.rounds for log in now),
        records=tuple(log.records[-1] for log in now),
        models=tuple((x.trial, x.variables) for x in ended if x.variables is not None),
    )
