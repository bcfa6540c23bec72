"""What a sweep is asked, and what it answers: trials, their records, and how far it has come."""

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import jax
import numpy as np

from fedjax_opt.core import Algorithm, Federation, Variables, checks
from fedjax_opt.core.algorithm import Scheduled
from fedjax_opt.core.federation import check_nouns
from fedjax_opt.core.info import Info
from fedjax_opt.training.history import Columns, describe_failure, rows_of

# Diagnostics of each client of a cohort, of which a record has the mean.
_OF_CLIENTS = ("client_update_norm",)
# Columns that a record has beside, of what was spent.
_COSTS = ("bytes_up", "bytes_down", "flops", "simulated_seconds", "diverged")
#: What clients have done in all rounds so far: what costs are counted from.
WORK = ("participations", "client_steps", "longest_steps")


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      label: what it is called in results, such as the algorithm's name.
      algorithm: the algorithm, or one with a `scheduled` learning rate.
      federation: what it learns on.
      seed: of the initial model and of everything drawn later, as in `fo.simulate`.
      point: the hyperparameters that were chosen for it, by name: for the record alone.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.sweep import Trial
      >>> model, clients, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> federation = fo.Federation(model, clients, cohort=2, local_steps=2, batch_size=1)
      >>> Trial("fedavg", fo.fedavg(fo.optimizers.sgd(0.1)), federation, seed=0).label
      'fedavg'
    """

    label: str
    algorithm: Algorithm | Scheduled
    federation: Federation
    seed: int = 0
    point: Mapping[str, Any] = MappingProxyType({})

    @property
    def identity(self) -> str:
        """The same text for the same label, point and seed, and for no others."""
        return _identity(self.label, self.point, self.seed)

    @property
    def name(self) -> str:
        """What its final model is called: the label, the point if there is one, and the seed."""
        return model_name(self.label, self.point, self.seed)


def model_name(label: str, point: Mapping[str, Any], seed: int) -> str:
    """What the final model of a run is called."""
    shown = ", ".join(f"{name}={value}" for name, value in point.items())
    return f"{label} ({shown}), seed {seed}" if shown else f"{label}, seed {seed}"


class Trials(NamedTuple):
    """What a sweep gave, for each of its trials.

    Attributes:
      trials: the trials.
      rounds: how many rounds each has done.
      failures: why each ended early, by round, client and step; empty where it did not.
      history: arrays `[rounds, ...]` by name, as those of `fo.simulate`; of the rounds that were played
        here, where a trial goes on from a state on the disk.
      evaluations: arrays `[evaluations]` by name, `round` among them.
      variables: the final models, or the last good ones; None where it was not kept, or not finished.
      records: what goes into a file: for each trial and each evaluation a mapping with `label`,
        `hyperparameters`, `seed`, `round`, the metrics by name (on `validation` as `validation_<name>`;
        one whose name is taken is called `test_<name>`), every scalar of the history in that round (and
        the clients' mean `client_update_norm`), its `loss` as `train_loss`, and what clients have done
        until then: `participations`, `client_steps`, and `longest_steps`, the sum over rounds of the
        most that one took. A trial that diverged ends with one that says why, as `diverged`.
      seconds: wall-clock seconds, compilation included.
    """

    trials: tuple[Trial, ...]
    rounds: tuple[int, ...]
    failures: tuple[str, ...]
    history: tuple[dict[str, np.ndarray], ...]
    evaluations: tuple[dict[str, np.ndarray], ...]
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
      models: the trials that have just ended, with their final models, if those are kept.
    """

    done: int
    total: int
    seconds: float
    trials: tuple[Trial, ...]
    round: int
    records: tuple[dict[str, Any], ...]
    models: tuple[tuple[Trial, Variables], ...] = ()


class Log:
    """What is written down of one trial, as it comes."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.begin(0)
        self.history, self.evaluations = Columns(), Columns()
        self.failure = ""  # why it diverged
        self.records: list[dict[str, Any]] = []
        self.variables: Variables | None = None

    def begin(self, rounds: int, work: Mapping[str, int] | None = None) -> None:
        """Sets how many rounds it has done, and what its clients have done in them."""
        self.rounds, self.work = rounds, dict(work or dict.fromkeys(WORK, 0))

    def add(self, infos: Info, count: int, found: dict[str, chex.Numeric], seconds: float) -> None:
        """Adds a chunk of rounds, and the evaluation after it."""
        infos = jax.tree.map(lambda x: np.asarray(x)[:count], infos)
        good = int(infos.finite.sum())
        self.history.append(rows_of(infos))
        self.rounds += good
        self._count(np.asarray(infos.num_steps)[infos.finite])
        record = {
            "label": self.trial.label,
            "hyperparameters": dict(self.trial.point),
            "seed": self.trial.seed,
            "round": self.rounds,
        }
        if good < count:
            self.failure = describe_failure(infos)
            self.records.append(record | {"diverged": self.failure})
            return
        metrics = {name: float(value) for name, value in found.items()}
        row = {"round": np.int32(self.rounds), "seconds": np.float64(seconds), **metrics}
        self.evaluations.append({name: np.asarray(value)[None] for name, value in row.items()})
        history = self.history.views
        record |= {
            "train_loss" if name == "loss" else name: column[-1].item()
            for name, column in history.items()
            if column.ndim == 1 and name != "round"
        }
        record |= {name: _mean(history[name][-1]) for name in _OF_CLIENTS if name in history}
        record |= self.work
        # A metric of the model's own may have the name of anything else.
        taken = {name for name in record if not name.startswith("validation_")} | {*_COSTS}
        self.records.append(
            record | {f"test_{k}" if k in taken else k: value for k, value in metrics.items()}
        )

    def _count(self, num_steps: np.ndarray) -> None:
        self.work["participations"] += int(np.sum(num_steps > 0))
        self.work["client_steps"] += int(np.sum(num_steps))
        self.work["longest_steps"] += int(np.sum(np.max(num_steps, axis=1, initial=0)))


def _mean(of_clients: np.ndarray) -> float:
    """Over the clients that took part, of which others are NaN."""
    known = of_clients[np.isfinite(of_clients)]
    return float(known.mean()) if known.size else float("nan")


def collect(logs: Sequence[Log], seconds: float) -> Trials:
    """The logs of all trials, whole or interrupted."""
    return Trials(
        trials=tuple(log.trial for log in logs),
        rounds=tuple(log.rounds for log in logs),
        failures=tuple(log.failure for log in logs),
        history=tuple(log.history.views for log in logs),
        evaluations=tuple(log.evaluations.views for log in logs),
        variables=tuple(log.variables for log in logs),
        records=tuple(record for log in logs for record in log.records),
        seconds=seconds,
    )


def finished(records: Iterable[Mapping[str, Any]], rounds: int) -> set[str]:
    """The identities of trials that records show to have done so many rounds, or to have diverged."""
    return {
        identity_of(record)
        for record in records
        if record["round"] >= rounds or "diverged" in record
    }


def identity_of(record: Mapping[str, Any]) -> str:
    """The identity of the trial that a record is of."""
    return _identity(record["label"], record["hyperparameters"], record["seed"])


def check_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Refuses what is no trial, and trials that cannot be told apart."""
    trials = tuple(trials)
    if not trials or not all(isinstance(trial, Trial) for trial in trials):
        raise ValueError(f"trials must hold at least one Trial, and nothing else, got {trials!r}.")
    seen = set()
    for trial in trials:
        check_nouns(trial.algorithm, trial.federation, "run_trials(trials, rounds)")
        checks.integer("seed", trial.seed, low=0)
        if not isinstance(trial.label, str) or not trial.label:
            raise ValueError(f"label must be a word, got {trial.label!r}.")
        if trial.identity in seen:
            raise ValueError(
                f"trials must differ from each other, but {trial.identity} comes twice."
            )
        seen.add(trial.identity)
    return trials


def _identity(label: str, point: Mapping[str, Any], seed: int) -> str:
    return f"{label} {json.dumps(dict(point), sort_keys=True, default=str)} seed {seed}"
