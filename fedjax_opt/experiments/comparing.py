"""`fo.compare` and `fo.sweep`: algorithms on a federation, as few programs, and what came of it."""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import Algorithm, ClientData, Controller, Federation, checks
from fedjax_opt.core.algorithm import Scheduled
from fedjax_opt.core.client_data import in_memory
from fedjax_opt.core.controller import first_algorithm
from fedjax_opt.core.federation import Epochs
from fedjax_opt.engine.labels import check_labels
from fedjax_opt.execution import Strategy, distributed
from fedjax_opt.experiments import results, rundir
from fedjax_opt.experiments.comparison import Comparison, read
from fedjax_opt.experiments.points import Family, Grid, checked_seeds, grids_of, trials_of
from fedjax_opt.experiments.pricing import Device, Prices, operations_of, priced, prices
from fedjax_opt.experiments.search import Range
from fedjax_opt.experiments.states import States, digest
from fedjax_opt.experiments.sweep import run_trials, together
from fedjax_opt.experiments.trials import Progress, Trial, finished, identity_of
from fedjax_opt.training import Interrupted, fingerprint
from fedjax_opt.training.interruption import Signals
from fedjax_opt.training.progress import round_bar

_LOGGED = 30.0  # seconds between two lines of progress where they go into a file


class Source(NamedTuple):
    """How a run directory describes what was run, where that is not said by arguments in Python.

    Attributes:
      config: a TOML text.
      command: the command that runs it.
      about: what else `about.json` says.
    """

    config: str
    command: str = ""
    about: Mapping[str, Any] = {}


def compare(
    algorithms: Mapping[str, Algorithm | Scheduled | Family],
    federation: Federation,
    rounds: int,
    *,
    grid: Grid | None = None,
    seeds: int | Iterable[int] = 3,
    samples: int | None = None,
    search_seed: int = 0,
    metric: str | None = None,
    criterion: str = "best",
    target: float | None = None,
    smoothing: float = 0.0,
    baseline: str | None = None,
    validation: float | None = None,
    evaluate_every: int = 10,
    diagnostics: Sequence[str] = (),
    device: Device | None = None,
    strategy: str | Strategy = "auto",
    output: str | os.PathLike[str] | None = None,
    keep_states: bool = True,
    progress: bool = True,
    source: Source | None = None,
) -> Comparison:
    """Plays algorithms on a federation, each at every point of its grid and with every seed.

    Runs that differ in numbers alone (hyperparameters, local steps, seeds) are one program.

    Args:
      algorithms: by label: an algorithm, or a family: a function of hyperparameters that returns one.
      federation: what they learn on: any model, any data in memory.
      rounds: of each run.
      grid: values to try, by the name of a family's argument or of the federation's `local_steps`,
        `local_epochs`, `cohort`, `batch_size`, `batching`, `weighting`: for every algorithm that has it,
        or, as `{"FedAvg": {...}}`, for one alone. With `samples` also a `Range`.
      seeds: how many, or which: of the first model and of all that is drawn.
      samples: how many points to draw from each grid; None for all of it.
      search_seed: of that draw.
      metric: what is compared, and 'max' or 'min' before it where its name does not say what is better;
        None for 'accuracy', or 'loss' where there is none.
      criterion: by what the best point of each algorithm is chosen: 'best', 'final', 'mean' over the
        rounds, or 'rounds_to_target'.
      target: a value of the metric to reach.
      smoothing: decay of a moving average of each curve before it is judged.
      baseline: the label that others are measured against; None for FedAvg, else the first.
      validation: the share of each client's training examples by which points are chosen, in (0, 1).
        None: by the federation's `validation`, and without one by the test set that is reported, which
        the result says.
      evaluate_every: the rounds between evaluations.
      diagnostics: what to measure of the clients' drift, as for `run_rounds`.
      device: the clients' link and speed, for the simulated time.
      strategy: how runs are spread over devices; see `experiments.run_trials`.
      output: a directory for records, final models and states. It survives kills; the same call goes on
        where it was, and more seeds, algorithms, points and rounds extend it.
      keep_states: whether the states of finished runs stay in it, from which more rounds go on.
      progress: whether to show a bar.
      source: how `output` describes it, in place of these arguments.

    Returns:
      A `Comparison`; with `output` of all that the directory holds.

    Example:
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> federation = fo.Federation(
      ...     model, clients, cohort=4, local_steps=5, batch_size=1, test=clients.examples
      ... )
      >>> found = fo.compare(
      ...     {"FedAvg": lambda rate: fo.fedavg(fo.optimizers.sgd(rate)),
      ...      "SCAFFOLD": lambda rate: fo.scaffold(fo.optimizers.sgd(rate))},
      ...     federation, 20, grid={"rate": [0.01, 0.1]}, seeds=2, progress=False,
      ... )
      >>> [(one.label, one.hyperparameters) for one in found.best()]
      [('FedAvg', {'rate': 0.1}), ('SCAFFOLD', {'rate': 0.1})]
    """
    rounds, seeds = checks.integer("rounds", rounds, low=1), checked_seeds(seeds)
    results.rule((), metric, criterion, target, smoothing)
    grids = grids_of(algorithms, grid or {})
    if baseline is not None:
        checks.choice("baseline", baseline, tuple(algorithms))
    if validation is not None:
        federation = held_out(federation, validation)
    trials = trials_of(algorithms, federation, grids, seeds, samples, search_seed)
    check_labels(federation)
    if source is None:
        source = Source(
            rundir.to_toml({
                "federation": repr(federation), "rounds": rounds, "seeds": list(seeds),
                "evaluate_every": evaluate_every, "diagnostics": list(diagnostics), "metric": metric,
                "criterion": criterion, "target": target, "smoothing": smoothing, "baseline": baseline,
                "samples": samples, "search_seed": search_seed, "validation": validation,
                "algorithms": {label: _called(each) for label, each in algorithms.items()},
                "grid": _flat(grids),
            })
        )  # fmt: skip
    about = {
        "facts": facts(trials, rounds), "grids": _tried(grids), "seeds": list(seeds),
        "command": source.command, "validated": federation.validation is not None,
        "link": (device or Device())[:2], **source.about,
    }  # fmt: skip
    said = {} if output is None else _fingerprints(trials)
    with rundir.opened(output, source.config, about, said) as directory:
        _play(
            directory, trials, rounds, pricer(trials, device), keep_states, progress,
            evaluate_every=evaluate_every, diagnostics=diagnostics, strategy=strategy,
        )  # fmt: skip
    if isinstance(directory, rundir.RunDirectory):
        return read(directory.path)
    made = rundir.describe() | about | {"status": "finished"}
    return Comparison(source.config, made, directory.records, directory.models)


def _play(
    directory: rundir.RunDirectory | rundir.Memory,
    trials: Sequence[Trial],
    rounds: int,
    price: Callable[[Trial], Prices],
    keep_states: bool,
    progress: bool,
    **options: Any,
) -> None:
    """Plays what a directory does not hold yet, and writes it down."""
    done = finished(directory.records, rounds)
    left = [trial for trial in trials if trial.identity not in done]
    states, asked = None, left
    # Several processes would all have to go on from the same round.
    if directory.states is not None and jax.process_count() == 1:
        reached = {identity_of(record): record["round"] for record in directory.records}
        states = States(directory.states, done, reached, keep=keep_states)
        asked = trials  # those that are done keep their places beside the others

    def write(told: Progress) -> None:
        for trial, variables in told.models:
            directory.save_model(trial.name, variables)
        records = []
        for trial, record in zip(told.trials, told.records, strict=True):
            records.append(priced(record, price(trial)))
        directory.append(records)  # last: it says that the trials are finished
        bar.show(told)

    if left:
        with _Bar(rounds * len(asked), progress) as bar, _stopped_after_a_chunk(bar, directory):
            bar.begin(rounds * (len(asked) - len(left)))
            run_trials(asked, rounds, on_chunk=write, states=states, **options)


def sweep(
    family: Family,
    federation: Federation,
    rounds: int,
    *,
    grid: Grid,
    label: str | None = None,
    **options: Any,
) -> Comparison:
    """Searches the hyperparameters of one algorithm: `compare` with one.

    Args:
      family: a function of hyperparameters that returns an algorithm.
      federation: what it learns on.
      rounds: of each run.
      grid: values to try by hyperparameter, or field of the federation.
      label: what the algorithm is called; None for the name of the function.
      **options: those of `compare`.

    Returns:
      A `Comparison`.

    Example:
      >>> import fedjax_opt as fo
      >>> model, clients, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> federation = fo.Federation(
      ...     model, clients, cohort=4, local_steps=5, batch_size=1, test=clients.examples
      ... )
      >>> def prox(rate, mu=0.0):
      ...     return fo.fedprox(fo.optimizers.sgd(rate), mu)
      >>> found = fo.sweep(
      ...     prox, federation, 10, grid={"rate": [0.01, 0.1], "mu": [0.0, 1.0]}, seeds=1,
      ...     progress=False,
      ... )
      >>> len(found.curves), found.best()[0].hyperparameters
      (4, {'rate': 0.1, 'mu': 1.0})
    """
    name = label or getattr(family, "__name__", "algorithm").strip("<>")
    return compare({name: family}, federation, rounds, grid=grid, **options)


def held_out(federation: Federation, share: float) -> Federation:
    """With a share of each client's examples taken out of its training, for validation."""
    checks.number("validation", share, low=0.0, high=1.0, open_low=True, open_high=True)
    clients = federation.clients
    if federation.validation is not None:
        raise ValueError(
            f"validation must be left out, as the federation has validation examples, got {share}."
        )
    if not isinstance(clients, ClientData) or not in_memory(clients):
        raise ValueError("validation must be left out for examples that are not in memory.")
    train, kept = clients.split(share)
    if not kept.num_examples:
        raise ValueError("validation must be left out, as no client has two examples.")
    return federation.replace(clients=train, validation=kept.examples)


def facts(trials: Sequence[Trial], rounds: int) -> dict[str, int]:
    """What a page says of a run beside its curves: numbers that hold for all trials."""
    found = [_facts(each) for each in {id(t.federation): t.federation for t in trials}.values()]
    same = {k: v for k, v in found[0].items() if all(other.get(k) == v for other in found)}
    return same | {"rounds": rounds}


def _facts(federation: Federation) -> dict[str, int]:
    found = {"clients": federation.num_clients, "batch size": federation.batch_size}
    if federation.cohort is not None:
        found["cohort"] = federation.cohort.size
    name = "local steps"
    steps: Any = federation.local_steps
    if isinstance(steps, Epochs):
        name, steps = "local epochs", steps.count
    if isinstance(steps, Controller):  # which starts from there
        steps = steps.value(steps.init(), 0)
    if not callable(steps) and np.shape(steps) == ():
        found[name] = int(steps)
    for name in ("test", "validation"):
        if getattr(federation, name) is not None:
            found[f"{name} examples"] = len(jax.tree.leaves(getattr(federation, name))[0])
    return found


def _called(algorithm: Any) -> str:
    """What a record calls an algorithm: its text, or where its function is."""
    if isinstance(algorithm, (Algorithm, Scheduled)):
        return "an algorithm"
    if hasattr(algorithm, "hyperparameters"):
        return str(algorithm)
    name = getattr(algorithm, "__qualname__", type(algorithm).__name__)
    return f"{getattr(algorithm, '__module__', '')}:{name}"


def _flat(grids: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A grid as TOML has it."""
    return {
        f"{label}:{name}": [str(values)]
        if isinstance(values, Range)
        else [v if isinstance(v, int | float) else str(v) for v in values]
        for label, own in grids.items()
        for name, values in own.items()
    }


def _tried(grids: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The numbers that were tried, by label and name: at whose ends a best point is worth a word."""
    return {
        label: {
            name: [float(v) for v in values]
            for name, values in own.items()
            if not isinstance(values, Range)
            if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        }
        for label, own in grids.items()
    }


def pricer(trials: Sequence[Trial], device: Device | None) -> Callable[[Trial], Prices]:
    """What a client of a trial costs in a round; trials of one program do the same operations."""
    program = {id(t): i for i, group in enumerate(together(trials)) for t in group}
    operations: dict[int, Any] = {}
    known: dict[tuple[int, int], Prices] = {}

    def price(trial: Trial) -> Prices:
        key = id(trial.algorithm), id(trial.federation)
        if key not in known:
            algorithm, place = first_algorithm(trial.algorithm), program[id(trial)]
            if place not in operations:
                operations[place] = operations_of(algorithm, trial.federation)
            known[key] = prices(algorithm, trial.federation, device, operations[place])
        return known[key]

    return price


def _fingerprints(trials: Sequence[Trial]) -> dict[str, str]:
    """What each trial is computed from: the names of its functions, its numbers and its data."""

    @functools.cache
    def data(federation_id: int) -> dict[str, str]:
        own = by_id[federation_id]
        return fingerprint.of_data(
            clients=own.clients, test=own.test, client_test=own.client_test,
            validation=own.validation, initial=own.initial,
        )  # fmt: skip

    @functools.cache
    def one(algorithm_id: int, federation_id: int) -> str:
        own = by_id[federation_id]
        said = fingerprint.describe(
            algorithm=algorithms[algorithm_id], model=own.model, cohort=own.cohort,
            local_steps=own.local_steps, guard=own.guard, batch_size=own.batch_size,
            batching=own.batching, weighting=own.weighting,
        )  # fmt: skip
        return digest([said, data(federation_id)])

    by_id = {id(trial.federation): trial.federation for trial in trials}
    algorithms = {id(trial.algorithm): trial.algorithm for trial in trials}
    return {t.identity: one(id(t.algorithm), id(t.federation)) for t in trials}


@contextlib.contextmanager
def _stopped_after_a_chunk(bar: "_Bar", directory: Any) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the run when a chunk is written; a second one at once."""
    # Several processes would stop after other rounds each, and wait for the others.
    if directory.states is None or distributed.is_joined():
        yield
        return
    signals = Signals()

    def check() -> None:
        if signals.taken is not None:
            raise KeyboardInterrupt

    bar.check = check
    signals.take()
    try:
        yield
    except KeyboardInterrupt as error:
        if signals.taken is None:
            raise
        raise Interrupted(signals.taken, None, signal.Signals[signals.taken]) from error
    finally:
        signals.give_back()


class _Bar:
    """A bar over the rounds of all trials, and a look whether somebody wants to stop."""

    def __init__(self, total: int, shown: bool) -> None:
        terminal = sys.stderr.isatty()
        self._bar = round_bar(
            total=total, disable=not (shown and distributed.is_first()),
            mininterval=0.1 if terminal else _LOGGED,
        )  # fmt: skip
        self._told: set[str] = set()
        self.check: Callable[[], None] = lambda: None

    def begin(self, done: int) -> None:
        """Counts what was done before."""
        self._bar.update(done)

    def show(self, told: Progress) -> None:
        """Shows how far it is, and which trials diverged."""
        newest = told.records[-1] if told.records else {}
        shown = {k: f"{newest[k]:.4f}" for k in ("train_loss", "accuracy") if k in newest}
        self._bar.set_postfix({"algorithm": told.trials[0].label, **shown}, refresh=False)
        self._bar.update(told.done - self._bar.n)
        for trial, record in zip(told.trials, told.records, strict=True):
            if "diverged" in record and not self._bar.disable:
                self._bar.write(f"{trial.name}: {record['diverged']}", file=sys.stderr)
        self.check()

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
