"""What the records of a run say: curves by algorithm and point, scores over seeds, and who wins."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.costs import Spent
from fedjax_opt.experiments.criteria import Interval, interval, score, winner
from fedjax_opt.experiments.experiment import Experiment
from fedjax_opt.experiments.pricing import COLUMNS
from fedjax_opt.experiments.report import Curves


class Outcome(NamedTuple):
    """What one algorithm did at one point of its grid.

    Attributes:
      label: the algorithm's.
      hyperparameters: the point.
      seeds: those that have records.
      rounds: evaluated `[E]`.
      columns: every scalar by name, `[seeds, E]`; NaN where a seed has none.
      diverged: seed -> the round in which it diverged.
    """

    label: str
    hyperparameters: dict[str, Any]
    seeds: tuple[int, ...]
    rounds: np.ndarray
    columns: dict[str, np.ndarray]
    diverged: dict[int, int]

    @property
    def accuracy(self) -> np.ndarray:
        """Test accuracies `[seeds, E]`."""
        return self.columns.get("accuracy", np.full((len(self.seeds), len(self.rounds)), np.nan))


def outcomes(records: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    """The records of a run by algorithm and point, in the order in which they first appear.

    Args:
      records: of `rundir.read`.

    Example:
      >>> from fedjax_opt.experiments.summary import outcomes
      >>> records = [
      ...     {"label": "fedavg", "hyperparameters": {}, "seed": s, "round": r, "accuracy": r / 100}
      ...     for s in (0, 1) for r in (10, 20)
      ... ]
      >>> outcomes(records)[0].accuracy.tolist()
      [[0.1, 0.2], [0.1, 0.2]]
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        key = json.dumps([record["label"], record["hyperparameters"]], sort_keys=True)
        groups.setdefault(key, []).append(record)
    return [_outcome(group) for group in groups.values()]


def _outcome(records: Sequence[Mapping[str, Any]]) -> Outcome:
    seeds = tuple(dict.fromkeys(record["seed"] for record in records))
    diverged = {record["seed"]: record["round"] for record in records if "diverged" in record}
    evaluated = [record for record in records if "diverged" not in record]
    rounds = np.array(sorted({record["round"] for record in evaluated}), int)
    names = dict.fromkeys(
        name
        for record in evaluated
        for name, value in record.items()
        if isinstance(value, (int, float)) and name not in ("seed", "round")
    )
    columns = {name: np.full((len(seeds), len(rounds)), np.nan) for name in names}
    for record in evaluated:
        place = seeds.index(record["seed"]), int(np.searchsorted(rounds, record["round"]))
        for name in names:
            if name in record:
                columns[name][place] = record[name]
    first = records[0]
    return Outcome(first["label"], dict(first["hyperparameters"]), seeds, rounds, columns, diverged)


class Judged(NamedTuple):
    """An outcome, and its score over the seeds by the experiment's criterion."""

    outcome: Outcome
    score: Interval


def judge(experiment: Experiment, found: Sequence[Outcome]) -> list[Judged]:
    """The score of every outcome: its mean over seeds, and half of its 95% interval.

    Args:
      experiment: which says the criterion.
      found: of `outcomes`.

    Example:
      >>> from fedjax_opt import experiments as ex
      >>> experiment = ex.from_options({"task": ["digits"], "algorithms": ["fedavg"]})
      >>> records = [
      ...     {"label": "fedavg", "hyperparameters": {"learning_rate": rate}, "seed": seed, "round": 10,
      ...      "accuracy": rate + seed / 10}
      ...     for rate in (0.1, 0.2) for seed in (0, 1)
      ... ]
      >>> judged = ex.judge(experiment, ex.outcomes(records))
      >>> [round(one.score.mean, 3) for one in judged]
      [0.15, 0.25]
    """
    judged = []
    for outcome in found:
        if len(outcome.rounds):
            scores = score(*_criterion(experiment, outcome))
            judged.append(Judged(outcome, interval(scores)))
        else:  # diverged before its first evaluation
            judged.append(Judged(outcome, Interval(np.nan, np.nan)))
    return judged


def best_of_each(experiment: Experiment, judged: Sequence[Judged]) -> list[Judged]:
    """For each algorithm the point that wins by the criterion; where none finished, its first.

    Args:
      experiment: which says the criterion, and the order.
      judged: of `judge`.

    Example:
      >>> from fedjax_opt import experiments as ex
      >>> experiment = ex.from_options({"task": ["digits"], "algorithms": ["fedavg"]})
      >>> records = [
      ...     {"label": "fedavg", "hyperparameters": {"learning_rate": rate}, "seed": seed, "round": 10,
      ...      "accuracy": rate + seed / 10}
      ...     for rate in (0.1, 0.2) for seed in (0, 1)
      ... ]
      >>> judged = ex.judge(experiment, ex.outcomes(records))
      >>> ex.best_of_each(experiment, judged)[0].outcome.hyperparameters
      {'learning_rate': 0.2}
    """
    best = []
    for member in experiment.algorithms:
        own = [one for one in judged if one.outcome.label == member.label]
        complete = [one for one in own if np.isfinite(one.outcome.accuracy).all()]
        complete = [one for one in complete if len(one.outcome.rounds)]
        # A seed that is missing would make a point look better, or worse, than it is.
        full = max((one.outcome.accuracy.size for one in complete), default=0)
        complete = [one for one in complete if one.outcome.accuracy.size == full]
        if complete:
            candidates = [one.outcome.accuracy for one in complete]
            rounds, rest = complete[0].outcome.rounds, _criterion(experiment, complete[0].outcome)
            best.append(complete[winner(rounds, candidates, rest[0], *rest[3:])])
        elif own:
            best.append(own[0])
    return best


def _criterion(experiment: Experiment, outcome: Outcome) -> tuple[Any, ...]:
    """The arguments of `criteria.score`."""
    return (
        experiment.criterion,
        outcome.rounds,
        outcome.accuracy,
        experiment.target,
        experiment.smoothing,
    )


def to_curves(experiment: Experiment, outcome: Outcome) -> Curves:
    """An outcome as a report draws it.

    Args:
      experiment: which says what was measured of the clients' drift.
      outcome: of `outcomes`.

    Returns:
      `Curves`, with what was spent if the records say it.

    Example:
      >>> from fedjax_opt import experiments as ex
      >>> experiment = ex.from_options({"task": ["digits"], "algorithms": ["fedavg"]})
      >>> record = {"label": "fedavg", "hyperparameters": {}, "seed": 0, "round": 10, "accuracy": 0.5}
      >>> ex.to_curves(experiment, ex.outcomes([record])[0]).label
      'fedavg'
    """
    columns = outcome.columns
    counted = [np.isfinite(row).sum() for row in outcome.accuracy]
    longest = int(np.argmax(counted))
    costs = None
    if all(name in columns for name in COLUMNS):
        up, down, flops, seconds = (columns[name][longest] for name in COLUMNS)
        costs = Spent(outcome.rounds, seconds, down, up, flops)
    names = [name for name in experiment.diagnostics if name in columns and name != "upload_bytes"]

    def rows(name: str) -> list[np.ndarray]:
        """A seed that was not finished ends where it ends; one that diverged is NaN from there on."""
        whole = columns[name]
        return [
            row if seed in outcome.diverged else row[: max(count, 1)]
            for seed, row, count in zip(outcome.seeds, whole, counted, strict=True)
        ]

    return Curves(
        outcome.label,
        outcome.hyperparameters,
        outcome.seeds,
        outcome.rounds,
        rows("accuracy"),
        rows("loss") if "loss" in columns else None,
        {name: rows(name) for name in names},
        costs,
        outcome.diverged,
    )
