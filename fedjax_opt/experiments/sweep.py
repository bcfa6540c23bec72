"""Many runs as one program: grids, random search, and seeds as an axis of it."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import FederatedState, Federation, StaticInt, checks, init_state
from fedjax_opt.core.client_data import in_memory
from fedjax_opt.core.controller import first_algorithm
from fedjax_opt.engine.preparation import prepare
from fedjax_opt.execution import Strategy
from fedjax_opt.execution.strategies import place
from fedjax_opt.experiments import waves
from fedjax_opt.experiments.axes import axis_of, check_values, federation_of, point, rows_of
from fedjax_opt.experiments.search import Range as Range
from fedjax_opt.experiments.search import expand as expand
from fedjax_opt.experiments.search import sample as sample
from fedjax_opt.experiments.trials import Notes, check_trials, collect
from fedjax_opt.experiments.trials import Progress as Progress
from fedjax_opt.experiments.trials import Trial as Trial
from fedjax_opt.experiments.trials import Trials as Trials
from fedjax_opt.experiments.trials import remaining as remaining
from fedjax_opt.experiments.unfinished import Unfinished
from fedjax_opt.training import NonFiniteLossError, fingerprint


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a sweep. `trials` holds what was done up to the last chunk."""

    def __init__(self, trials: Trials):
        super().__init__("The sweep was interrupted.")
        self.trials = trials


def run_trials(
    federation: Federation,
    trials: Iterable[Trial],
    *,
    rounds: int,
    diagnostics: Sequence[str] = (),
    evaluate_every: int = 10,
    strategy: str | Strategy = "auto",
    client_strategy: str | Strategy = "auto",
    memory: float | None = None,
    keep_models: bool = True,
    on_chunk: Callable[[Progress], Any] | None = None,
    on_nonfinite: str = "keep",
    unfinished: Unfinished | None = None,
) -> Trials:
    """Runs trials that differ in hyperparameters and seeds as one compiled program.

    Each trial gives what `fo.simulate` gives with the same algorithm and seed. Hyperparameters that are
    the same in all trials are compiled in; those that differ are an axis of the program, next to the
    seed. Trials are played in waves, each in chunks of `evaluate_every` rounds; two programs are
    compiled, one for the initial states and one for the rounds, however many trials there are.

    Args:
      federation: what they learn on, its examples in memory. Every `evaluate_every` rounds they are
        evaluated on its `test`. With a `client_test` the metrics are those of each client's own model on
        its own examples (`personal_variables`), in the mean over clients, and those of the global model
        on the test set are called `global_accuracy` and the like.
      trials: what to run; all share one `build`.
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
      unfinished: where the wave that is being played is kept on the disk, and which trials were finished
        before: those are not played again and not among the `Trials`, and the others go on where they
        were, bit for bit.

    Returns:
      The `Trials`.

    Raises:
      Interrupted: at Ctrl-C; a `KeyboardInterrupt` that holds the `Trials` up to the last chunk.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.sweep import Trial, expand, run_trials
      >>> model, clients, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> federation = fo.Federation(
      ...     model, clients, cohort=2, local_steps=2, batch_size=1, test=clients.examples
      ... )
      >>> def build(hyperparameters):
      ...     return fo.fedavg(fo.optimizers.sgd(hyperparameters["learning_rate"]))
      >>> points = expand({"learning_rate": [0.01, 0.1]})
      >>> found = run_trials(
      ...     federation, [Trial("fedavg", build, point, seed) for point in points for seed in (0, 1)],
      ...     rounds=4, evaluate_every=2,
      ... )
      >>> found.history["loss"].shape, found.evaluations["loss"].shape
      ((4, 4), (4, 2))
    """
    started = time.perf_counter()
    trials = check_trials(trials)
    rounds = checks.integer("rounds", rounds, low=1)
    length = min(checks.integer("evaluate_every", evaluate_every, low=1), rounds)
    checks.choice("on_nonfinite", on_nonfinite, ("keep", "raise"))
    axis, constants = axis_of(trials)
    check_values(trials, axis)
    shared = _prepare(federation, trials, diagnostics)

    def setup(plan: waves.Plan) -> waves.Setup:
        return waves.Setup(trials[0].build, constants, plan.clients, plan.trials, length)

    def needed_bytes(plan: waves.Plan) -> int:
        return waves.needed_bytes(shared, rows_of(axis, range(plan.size)), setup(plan))

    options = waves.plans(
        strategy, client_strategy, len(trials), shared.prepared.federation.cohort.size
    )
    shared = place(shared, options[0].meshed)  # which is the same for all
    unfinished = Unfinished(None) if unfinished is None else unfinished
    notes = [Notes(trial) for trial in trials]
    asked = [note for note in notes if note.trial.identity not in unfinished.finished]

    def so_far() -> Trials:
        return collect(asked, rounds, length, time.perf_counter() - started)

    try:
        plan = waves.fit(options, needed_bytes, memory)
        for now, ended in _chunks(
            shared, axis, plan, setup(plan), notes, rounds, keep_models, unfinished
        ):
            if on_chunk is not None:
                on_chunk(_progress(asked, now, ended, rounds, time.perf_counter() - started))
            failed = [note for note in now if note.failure]
            if failed and on_nonfinite == "raise":
                message, result = f"{failed[0].trial.identity}: {failed[0].failure}", so_far()
                raise NonFiniteLossError(message, cast(Any, result))
    except KeyboardInterrupt:
        unfinished.save()
        raise Interrupted(so_far()) from None
    return so_far()


def _chunks(
    shared: waves.Shared,
    axis: waves.Axis,
    plan: waves.Plan,
    setup: waves.Setup,
    notes: Sequence[Notes],
    rounds: int,
    keep_models: bool,
    unfinished: Unfinished,
) -> Iterator[tuple[list[Notes], Sequence[Notes]]]:
    """Plays one wave after the other; tells after each chunk whose notes have grown, and whose ended."""
    for first in range(0, len(notes), plan.size):
        members = notes[first : first + plan.size]
        asked = [note for note in members if note.trial.identity not in unfinished.finished]
        if not asked:
            continue
        wave = rows_of(axis, range(first, first + plan.size))
        states = waves.begin(shared, wave, setup=setup)
        if plan.trials.mesh is None:  # else they are where they belong
            states = place(states, plan.clients)
        play = partial(waves.play, shared, wave, setup=setup)
        states, told = unfinished.begin(
            [note.trial.identity for note in members],
            states,
            partial(_describe, shared, setup, notes[0].trial, rounds, states),
            lambda states, play=play: jax.eval_shape(play, states, np.int32(0))[1:],
        )
        for played in range(0, rounds, setup.length):
            count = min(setup.length, rounds - played)
            if told:
                grown = _grow(members, told.pop(0), count)
                if not told:  # of the last chunk alone nobody may have heard
                    yield [note for note in grown if note in asked], []
                continue
            unfinished.let_go()
            states, *seen = play(states, np.int32(count))
            seen = jax.device_get(tuple(seen))
            grown = [note for note in _grow(members, seen, count) if note in asked]
            ended = played + count == rounds or all(note.failure for note in asked)
            if ended and keep_models:
                models = jax.device_get(states.variables)
                for i, note in enumerate(members):
                    note.variables = jax.tree.map(lambda x, i=i: x[i], models)
            if not ended:
                unfinished.keep(states, seen)
            yield grown, members if ended else []
            if ended:
                unfinished.end()
                break


def _grow(members: Sequence[Notes], seen: Any, count: int) -> list[Notes]:
    """Writes a chunk down for those who had not diverged before, and gives their notes."""
    grown = []
    for i, note in enumerate(members):
        if not note.failure:
            infos, evaluation = jax.tree.map(lambda x, i=i: x[i], seen)
            note.add(infos, count, evaluation)
            grown.append(note)
    return grown


def _describe(
    shared: waves.Shared, setup: waves.Setup, trial: Trial, rounds: int, states: FederatedState
) -> dict[str, dict[str, str]]:
    """What makes a wave the one that it is, apart from which trials it holds."""
    algorithm = trial.build(point(trial))
    run = shared.prepared.replace(algorithm=algorithm, strategy=setup.clients)
    one = jax.tree.map(lambda x: x[0], states)
    found = fingerprint.of_run(run, one, first_algorithm(algorithm), rounds=rounds)
    tested = fingerprint.of_data(test=shared.test, client_test=shared.client_test)
    seeds = {"key": fingerprint.of_array(states.key)}
    return found | {"data": found["data"] | tested, "seed": seeds}


def _progress(
    notes: Sequence[Notes], now: list[Notes], ended: Sequence[Notes], rounds: int, seconds: float
) -> Progress:
    return Progress(
        done=sum(rounds if note.failure else note.rounds for note in notes),
        total=rounds * len(notes),
        seconds=seconds,
        trials=tuple(note.trial for note in now),
        round=max(note.rounds for note in now),
        records=tuple(note.records[-1] for note in now),
        models=tuple((x.trial, x.variables) for x in ended if x.variables is not None),
    )


def _prepare(
    federation: Federation, trials: Sequence[Trial], diagnostics: Sequence[str]
) -> waves.Shared:
    """What all trials share."""
    if not isinstance(federation, Federation):
        raise ValueError(f"federation must be a Federation, got {type(federation).__name__}.")
    if not in_memory(federation.clients):
        raise ValueError(
            "federation.clients must be in memory for a sweep, whose trials draw cohorts of their own"
            " and so need all examples on the device, but these examples are in files. Select all"
            " clients, clients[:], or run the trials one by one with fo.simulate."
        )
    federation = federation_of(trials[0], federation)
    if isinstance(federation.local_steps, StaticInt):
        steps = jnp.asarray(int(federation.local_steps))  # traced, as simulate has it
        federation = federation.replace(local_steps=steps)
    algorithm = trials[0].build(point(trials[0]))
    shapes = jax.eval_shape(lambda federation: init_state(algorithm, federation), federation)
    # Only its structure is looked at.
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes._replace(key=()))
    state = state._replace(num_clients=np.int32(federation.num_clients))
    prepared, _ = prepare(algorithm, federation, state, "scan", diagnostics, "run_trials")
    return waves.Shared(
        prepared.replace(algorithm=()), federation.initial, federation.test, federation.client_test
    )
