"""What a sweep is asked, and what it answers: trials, their records, and how far it has come."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Variables, checks
from fedjax_opt.core.info import Info
from fedjax_opt.training.history import Columns, describe_failure, rows_of

# Diagnostics of each client of a cohort, of which a record has the mean.
_OF_CLIENTS = ("client_update_norm",)


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      label: what it is called in results, such as the algorithm's name.
      build: hyperparameters -> the algorithm, or one with a `scheduled` learning rate. All trials of a
        program share it.
      hyperparameters: by name. `local_steps` and `local_epochs` are the federation's, not the
        algorithm's: they take the place of what it has, and `build` does not see them.
      seed: of the initial model and of everything drawn later, as in `fo.simulate`.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.sweep import Trial
      >>> def build(hyperparameters):
      ...     return fo.fedavg(fo.optimizers.sgd(hyperparameters["learning_rate"]))
      >>> Trial("fedavg", build, {"learning_rate": 0.1}, seed=0).label
      'fedavg'
    """

    label: str
    build: Callable[[dict[str, Any]], Any]
    hyperparameters: Mapping[str, Any]
    seed: int

    @property
    def identity(self) -> str:
        """The same text for the same label, hyperparameters and seed, and for no others."""
        return _identity(self.label, self.hyperparameters, self.seed)


class Trials(NamedTuple):
    """What a sweep gave. M is the number of trials, R that of the rounds, E that of the evaluations.

    A trial that diverged keeps its last good state: what it did not do is NaN (-1 in whole numbers).

    Attributes:
      trials: the trials.
      rounds: how many rounds each has done `[M]`.
      failures: why each ended early, by round, client and step; empty where it did not.
      history: arrays `[M, R, ...]` by name, as those of `fo.simulate`.
      evaluations: arrays `[M, E]` by name, and `round` `[E]`.
      variables: the final model of each; None where it was not kept, or not finished.
      records: what goes into a file: for each trial and each evaluation a mapping with `label`,
        `hyperparameters`, `seed`, `round`, the test set's metrics by name, every scalar of the
        history in that round (and the clients' mean `client_update_norm`), its `loss` as
        `train_loss`, and what clients have done until then:
        `participations`, `client_steps`, and `longest_steps`, the sum over rounds of the most that one
        took. A trial that diverged ends with one that says why, as `diverged`.
      seconds: wall-clock seconds, compilation included.
    """

    trials: tuple[Trial, ...]
    rounds: np.ndarray
    failures: tuple[str, ...]
    history: dict[str, np.ndarray]
    evaluations: dict[str, np.ndarray]
    variables: tuple[Variables | None, ...]
    records: tuple[dict[str, Any], ...]
    seconds: float


class Progress(NamedTuple):
    """How far a sweep has come, after each chunk of rounds of some of its trials.

    Attributes:
      done: the rounds done, of all trials together; a trial that diverged has none left to do.
      total: the rounds to be done.
      seconds: since the sweep began.
      trials: those that have just come further.
      round: the rounds that they have done, but for those that have just diverged.
      records: their newest records; see `Trials`.
      models: the trials of a wave that has just ended, with their final models, if those are kept.
    """

    done: int
    total: int
    seconds: float
    trials: tuple[Trial, ...]
    round: int
    records: tuple[dict[str, Any], ...]
    models: tuple[tuple[Trial, Variables], ...] = ()


class Notes:
    """What is written down of one trial, as it comes."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.history = Columns()
        self.failure = ""  # why it diverged
        self.rounds = 0
        self.evaluations: list[dict[str, float]] = []
        self.records: list[dict[str, Any]] = []
        self.variables: Variables | None = None

    def add(self, infos: Info, count: int, evaluation: dict[str, Any]) -> None:
        """Adds a chunk of rounds, and the evaluation after it."""
        infos = jax.tree.map(lambda x: np.asarray(x)[:count], infos)
        self.history.append(rows_of(infos))
        if not infos.finite.all():
            self.failure = describe_failure(infos)
        history = self.history.views
        self.rounds = len(history["round"])
        record = {
            "label": self.trial.label,
            "hyperparameters": dict(self.trial.hyperparameters),
            "seed": self.trial.seed,
            "round": self.rounds,
        }
        if self.failure:
            self.records.append(record | {"diverged": self.failure})
            return
        found = {name: float(value) for name, value in evaluation.items()}
        scalars = {
            "train_loss" if name == "loss" else name: column[-1].item()
            for name, column in history.items()
            if column.ndim == 1 and name != "round"
        }
        means = {name: _mean(history[name][-1]) for name in _OF_CLIENTS if name in history}
        self.evaluations.append(found)
        self.records.append(record | scalars | means | _work(history["num_steps"]) | found)


def _mean(of_clients: np.ndarray) -> float:
    """Over the clients that took part, of which others are NaN."""
    known = of_clients[np.isfinite(of_clients)]
    return float(known.mean()) if known.size else float("nan")


def _work(num_steps: np.ndarray) -> dict[str, int]:
    """What clients have done in all rounds so far `[R, S]`: what costs are counted from."""
    return {
        "participations": int(np.sum(num_steps > 0)),
        "client_steps": int(np.sum(num_steps)),
        "longest_steps": int(np.sum(np.max(num_steps, axis=1))),
    }


def collect(notes: Sequence[Notes], rounds: int, every: int, seconds: float) -> Trials:
    """The notes of all trials, whole or interrupted, as arrays."""
    ends = np.array([*range(every, rounds, every), rounds])
    evaluations = [
        {name: np.array([row[name] for row in note.evaluations]) for name in note.evaluations[0]}
        if note.evaluations
        else {}
        for note in notes
    ]
    return Trials(
        trials=tuple(note.trial for note in notes),
        rounds=np.array([note.rounds for note in notes]),
        failures=tuple(note.failure for note in notes),
        history=_stacked([note.history.views for note in notes], rounds),
        evaluations={"round": ends, **_stacked(evaluations, len(ends))},
        variables=tuple(note.variables for note in notes),
        records=tuple(record for note in notes for record in note.records),
        seconds=seconds,
    )


def remaining(
    trials: Iterable[Trial], records: Iterable[Mapping[str, Any]], rounds: int
) -> list[Trial]:
    """The trials that records do not show to have been finished, or to have diverged.

    Args:
      trials: the trials of a sweep.
      records: the records of an earlier, interrupted one.
      rounds: the rounds of the sweep.

    Returns:
      Those that are still to be run.

    Example:
      >>> from fedjax_opt.experiments.sweep import Trial, remaining
      >>> trials = [Trial("fedavg", dict, {"learning_rate": 0.1}, seed) for seed in range(2)]
      >>> records = [
      ...     {"label": "fedavg", "hyperparameters": {"learning_rate": 0.1}, "seed": 0, "round": 50}
      ... ]
      >>> [trial.seed for trial in remaining(trials, records, rounds=50)]
      [1]
    """
    done = finished(records, rounds)
    return [trial for trial in trials if trial.identity not in done]


def finished(records: Iterable[Mapping[str, Any]], rounds: int) -> set[str]:
    """The identities of trials that records show to have been finished, or to have diverged."""
    return {
        _identity(record["label"], record["hyperparameters"], record["seed"])
        for record in records
        if record["round"] >= rounds or "diverged" in record
    }


def check_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Refuses trials that cannot share a program, or that cannot be told apart."""
    trials = tuple(trials)
    if not trials or not all(isinstance(trial, Trial) for trial in trials):
        raise ValueError(f"trials must hold at least one Trial, and nothing else, got {trials!r}.")
    first, seen = trials[0], set()
    for trial in trials:
        checks.integer("seed", trial.seed, low=0)
        if not isinstance(trial.label, str) or not trial.label:
            raise ValueError(f"label must be a word, got {trial.label!r}.")
        if trial.build != first.build:
            raise ValueError(
                f"trials must share one build to share a program, but that of {trial.label!r} is not"
                f" that of {first.label!r}. Call run_trials for each."
            )
        if trial.hyperparameters.keys() != first.hyperparameters.keys():
            raise ValueError(
                "trials must have the same hyperparameters, but have"
                f" {sorted(first.hyperparameters)} and {sorted(trial.hyperparameters)}."
            )
        if trial.identity in seen:
            raise ValueError(
                f"trials must differ from each other, but {trial.identity} comes twice."
            )
        seen.add(trial.identity)
    return trials


def _identity(label: str, hyperparameters: Mapping[str, Any], seed: int) -> str:
    return f"{label} {json.dumps(dict(hyperparameters), sort_keys=True, default=str)} seed {seed}"


def _stacked(columns: Sequence[dict[str, np.ndarray]], length: int) -> dict[str, np.ndarray]:
    """Columns of several trials as arrays `[M, length, ...]`; what a trial does not have is filled."""
    found = {}
    for like in columns:
        for name in [name for name in like if name not in found]:
            whole = np.full((len(columns), length, *like[name].shape[1:]), *_filling(like[name]))
            for row, own in zip(whole, columns, strict=True):
                if name in own:
                    row[: len(own[name])] = own[name]
            found[name] = whole
    return found


def _filling(array: np.ndarray) -> tuple[Any, Any]:
    return (np.nan if jnp.issubdtype(array.dtype, jnp.floating) else -1), array.dtype
