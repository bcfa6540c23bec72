"""What the records of runs say: curves over rounds, scores by any metric, who is best, and at what cost.

A curve with a NaN is of a run that diverged or was interrupted: its score is NaN, whatever came before.
For the page one set of rules holds for every number and every plot:

- A seed that diverged keeps the last value of the metric, as a run keeps its last good model; its other
  quantities end there.
- A seed that was not finished counts as far as it goes.
- A mean stands where every seed has a value, so that it never jumps because a seed has left. A seed
  without any value is not counted.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.metrics import rounds_to_target, smooth

#: By what the best of several hyperparameters may be chosen, and what it means.
CRITERIA = {
    "best": "The best point of each curve.",
    "final": "The last point of each curve.",
    "mean": "The mean height of each curve over the rounds, by the trapezoidal rule.",
    "rounds_to_target": "The first evaluated round at which each curve has reached the target.",
}
#: Columns of what a run costs, and the column of a record that each is from.
COSTS = {
    "bytes_up": "bytes_up",
    "bytes_down": "bytes_down",
    "flops": "flops",
    "seconds": "simulated_seconds",
}
_LABELS = ("label", "hyperparameters", "seed", "round", "diverged")
# Words in a metric's name by which more of it is better, or less.
_MORE = ("accuracy", "auc", "f1", "precision", "recall", "score", "r2")
_LESS = ("loss", "error", "mse", "rmse", "mae", "perplexity", "distance")


class Curves(NamedTuple):
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

    def values(self, metric: str) -> np.ndarray:
        """A metric of each seed at each evaluation, `[seeds, E]`; NaN where there is none."""
        missing = np.full((len(self.seeds), len(self.rounds)), np.nan)
        return self.columns.get(metric, missing)


class Rule(NamedTuple):
    """By what curves are judged.

    Attributes:
      metric: the name of a column.
      maximise: whether more of it is better.
      criterion: one of `CRITERIA`.
      target: a value of the metric to reach; None for the baseline's best.
      smoothing: the decay of the moving average of each seed's curve; 0 leaves it as measured.
      chosen_by: the column by which the best points are chosen; empty for the metric itself.
    """

    metric: str
    maximise: bool
    criterion: str = "best"
    target: float | None = None
    smoothing: float = 0.0
    chosen_by: str = ""

    @property
    def choosing(self) -> "Rule":
        """The rule by which the best points are chosen."""
        return self._replace(metric=self.chosen_by or self.metric)

    @property
    def percent(self) -> bool:
        """Whether the metric is a share, which is written in percent."""
        return self.metric.endswith("accuracy")

    def text(self, value: float, digits: int = 1) -> str:
        """A value of the metric, without its unit."""
        return f"{100 * value:.{digits}f}" if self.percent else f"{value:.4g}"

    def ahead(self, one: float, other: float) -> bool:
        """Whether one value of the metric is better than another."""
        return one > other if self.maximise else one < other


def curves(records: Iterable[Mapping[str, Any]]) -> list[Curves]:
    """Records by algorithm and point, in the order in which they first appear.

    Args:
      records: of a run directory, or `Trials.records`.

    Example:
      >>> from fedjax_opt.experiments.results import curves
      >>> records = [
      ...     {"label": "fedavg", "hyperparameters": {}, "seed": s, "round": r, "accuracy": r / 100}
      ...     for s in (0, 1) for r in (10, 20)
      ... ]
      >>> curves(records)[0].values("accuracy").tolist()
      [[0.1, 0.2], [0.1, 0.2]]
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        key = json.dumps([record["label"], record["hyperparameters"]], sort_keys=True, default=str)
        groups.setdefault(key, []).append(record)
    return [_curves(group) for group in groups.values()]


def _curves(records: Sequence[Mapping[str, Any]]) -> Curves:
    seeds = tuple(dict.fromkeys(record["seed"] for record in records))
    diverged = {record["seed"]: record["round"] for record in records if "diverged" in record}
    evaluated = [record for record in records if "diverged" not in record]
    rounds = np.array(sorted({record["round"] for record in evaluated}), int)
    columns: dict[str, np.ndarray] = {}
    for record in evaluated:
        place = seeds.index(record["seed"]), int(np.searchsorted(rounds, record["round"]))
        for name, value in record.items():
            if isinstance(value, (int, float)) and name not in _LABELS:
                empty = np.full((len(seeds), len(rounds)), np.nan)
                columns.setdefault(name, empty)[place] = value
    first = records[0]
    return Curves(first["label"], dict(first["hyperparameters"]), seeds, rounds, columns, diverged)


def rule(
    found: Sequence[Curves],
    metric: str | None = None,
    criterion: str = "best",
    target: float | None = None,
    smoothing: float = 0.0,
) -> Rule:
    """By what curves are judged, with the metric found among their columns.

    Args:
      found: of `curves`.
      metric: a column's name, with 'max' or 'min' before it where the name does not say what is better;
        None for 'accuracy' where there is one, else for 'loss'.
      criterion: one of `CRITERIA`.
      target: for 'rounds_to_target', the value to reach.
      smoothing: decay of the moving average, in [0, 1).

    Example:
      >>> from fedjax_opt.experiments.results import curves, rule
      >>> record = {"label": "a", "hyperparameters": {}, "seed": 0, "round": 1, "rmse": 2.0}
      >>> rule(curves([record]), "min rmse").maximise
      False
    """
    known = list(dict.fromkeys(name for one in found for name in one.columns))
    checks.choice("criterion", criterion, tuple(CRITERIA))
    checks.number("smoothing", smoothing, low=0.0, high=1.0, open_high=True)
    if target is not None:
        checks.number("target", target)
    if criterion == "rounds_to_target" and target is None:
        raise ValueError("criterion 'rounds_to_target' needs a target: give one, such as 0.9.")
    name, maximise = read_metric(metric or ("accuracy" if "accuracy" in known else "loss"))
    if known and name not in known:
        raise ValueError(f"metric must be one of {', '.join(known)}, got {name!r}.")
    validated = f"validation_{name}"
    return Rule(
        name, maximise, criterion, target, smoothing, validated if validated in known else ""
    )


def read_metric(text: str) -> tuple[str, bool]:
    """The name of a metric, and whether more of it is better: 'max f1', 'min rmse', 'loss'."""
    direction, _, name = text.strip().rpartition(" ")
    if direction in ("max", "min") and name:
        return name, direction == "max"
    more = any(word in name.lower() for word in _MORE)
    if direction or more == any(word in name.lower() for word in _LESS):
        raise ValueError(
            f"metric must be a name with what is better of it, such as 'max {name}' or 'min {name}',"
            f" got {text!r}."
        )
    return name, more


def score(curve: Curves, by: Rule) -> np.ndarray:
    """The score of each seed `[seeds]`: NaN of one that has a NaN, infinite where a target was missed.

    Args:
      curve: of `curves`.
      by: of `rule`.

    Example:
      >>> from fedjax_opt.experiments.results import curves, rule, score
      >>> records = [
      ...     {"label": "a", "hyperparameters": {}, "seed": 0, "round": r, "loss": 1 / r} for r in (1, 2)
      ... ]
      >>> found = curves(records)
      >>> score(found[0], rule(found, criterion="final")).tolist()
      [0.5]
    """
    values = curve.values(by.metric)
    if not values.size:  # diverged before the first evaluation
        return np.full(len(curve.seeds), np.nan)
    whole = np.isfinite(values).all(axis=1)
    values = np.stack([smooth(row, by.smoothing) for row in values])
    if by.criterion == "best":
        scores = (values.max if by.maximise else values.min)(axis=1)
    elif by.criterion == "final":
        scores = values[:, -1]
    elif by.criterion == "mean":
        span = curve.rounds[-1] - curve.rounds[0]
        area = np.trapezoid(values, curve.rounds, axis=1) / max(span, 1)
        scores = area if span else values[:, 0]
    else:
        assert by.target is not None  # it is the criterion's
        firsts = [rounds_to_target(curve.rounds, row, by.target, by.maximise) for row in values]
        scores = np.array([np.inf if first is None else first for first in firsts], float)
    return np.where(whole, scores, np.nan)


def best(found: Sequence[Curves], by: Rule) -> list[Curves]:
    """For each label the point with the best mean score; where none finished, its first.

    A point with a NaN never wins, nor one with fewer seeds than another. Between equal scores (where
    none reached the target, say) the best value of the metric decides, and then the order.

    Args:
      found: of `curves`.
      by: of `rule`.

    Example:
      >>> from fedjax_opt.experiments.results import best, curves, rule
      >>> found = curves([
      ...     {"label": "a", "hyperparameters": {"mu": mu}, "seed": 0, "round": 1, "loss": mu}
      ...     for mu in (0.3, 0.1, 0.2)
      ... ])
      >>> best(found, rule(found))[0].hyperparameters
      {'mu': 0.1}
    """
    chosen, by = [], by.choosing
    for label in dict.fromkeys(one.label for one in found):
        own = [one for one in found if one.label == label]
        sizes = [one.values(by.metric).size for one in own]
        sound = [one for one in own if np.isfinite(score(one, by._replace(criterion="best"))).all()]
        full = [one for one in sound if one.values(by.metric).size == max(sizes)]
        ranks = [_rank(one, by) for one in full]
        chosen.append(full[ranks.index(max(ranks))] if full else own[0])
    return chosen


def _rank(curve: Curves, by: Rule) -> tuple[float, float]:
    ranks = (seed_ranks(curve, by._replace(criterion=name)) for name in (by.criterion, "best"))
    first, second = (float(np.mean(each)) for each in ranks)
    return first, second


def seed_ranks(curve: Curves, by: Rule) -> np.ndarray:
    """The score of each seed `[seeds]`, with its sign turned where less is better."""
    more = by.maximise and by.criterion != "rounds_to_target"
    return score(curve, by) if more else -score(curve, by)


def best_run(found: Sequence[Curves], by: Rule) -> tuple[Curves, int]:
    """The best of several points, and its best seed; the first where all diverged.

    Args:
      found: of `best`.
      by: of `rule`.
    """
    by = by.choosing
    ranks = [
        np.nan_to_num(np.mean(seed_ranks(one, by)), nan=-np.inf, posinf=np.inf) for one in found
    ]
    chosen = found[int(np.argmax(ranks))]
    seeds = np.nan_to_num(seed_ranks(chosen, by), nan=-np.inf, posinf=np.inf)
    return chosen, chosen.seeds[int(np.argmax(seeds))]


class Interval(NamedTuple):
    """A mean, and how far from it the true one may be: mean - half_width to mean + half_width."""

    mean: float
    half_width: float


def interval(values: Any, level: float = 0.95) -> Interval:
    """The mean of a few independent values and its confidence interval, by Student's t.

    Args:
      values: the values `[n]`, such as the scores of n seeds.
      level: the probability that such an interval holds the true mean, in (0, 1).

    Returns:
      The mean and half the interval's width, `t s / sqrt(n)`. The latter is NaN for a single value, or
      if one is not finite.

    Example:
      >>> from fedjax_opt.experiments.results import interval
      >>> mean, half_width = interval([0.80, 0.82, 0.84])
      >>> round(mean, 3), round(half_width, 3)
      (0.82, 0.05)
    """
    from scipy.special import stdtrit  # jax needs SciPy, too

    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values must be numbers [n], got shape {values.shape}.")
    level = checks.number("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    n = len(values)
    if n == 1 or not np.isfinite(values).all():
        return Interval(float(values.mean()), float("nan"))
    t = stdtrit(n - 1, (1 + level) / 2)
    return Interval(float(values.mean()), float(t * values.std(ddof=1) / n**0.5))


class Band(NamedTuple):
    """A quantity over the evaluated rounds `[E]`, NaN where a seed has no value."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Row(NamedTuple):
    """An algorithm in a comparison; costs by name: 'rounds', 'bytes_up', 'bytes', 'flops', 'seconds'.

    Attributes:
      label: its name.
      hyperparameters: its own.
      seeds: all that it was run with.
      rounds: evaluated `[E]`.
      values: the metric of the seeds that count `[counted, E]`, smoothed.
      bands: every quantity by name.
      spent: what was spent `[E]`, in the mean over seeds, by cost.
      ends: the (index of a round, value) of each seed that diverged, where it was last well.
      troubles: what went wrong, in words.
      best: the best mean over seeds; NaN if there is none.
      at_best: each seed's value in that round.
      to_best: what was spent when the mean was first that good.
      to_match: what was spent when the mean first reached the target; empty if it never did.
      factors: `to_match` relative to the baseline's: below 1 is cheaper.
      lead: `best` minus the baseline's, seed by seed, with its interval; None for the baseline, and
        where the seeds are not the same or not all went well.
    """

    label: str
    hyperparameters: Mapping[str, Any]
    seeds: tuple[int, ...]
    rounds: np.ndarray
    values: np.ndarray
    bands: dict[str, Band]
    spent: dict[str, np.ndarray]
    ends: list[tuple[int, float]]
    troubles: list[str]
    best: float = np.nan
    at_best: tuple[float, ...] = ()
    to_best: Mapping[str, float] = {}
    to_match: Mapping[str, float] = {}
    factors: Mapping[str, float] = {}
    lead: Interval | None = None

    @property
    def half_width(self) -> float:
        """Half of the 95% interval of the best mean; NaN for fewer than three seeds, who give none."""
        return interval(self.at_best).half_width if len(self.at_best) > 2 else np.nan


class Measured(NamedTuple):
    """Algorithms against a baseline.

    Attributes:
      baseline: its label.
      target: the value to match; NaN if the baseline has none.
      goal: what that is, in words that follow 'to'.
      rows: each algorithm.
      by: of `rule`.
    """

    baseline: str
    target: float
    goal: str
    rows: list[Row]
    by: Rule


def measure(found: Sequence[Curves], by: Rule, baseline: str | None = None) -> Measured:
    """Each algorithm's best value, what it took to get there, and what to match the baseline.

    Args:
      found: one for each algorithm.
      by: its metric, target and smoothing count here.
      baseline: a label; None for the one called FedAvg, else the first.

    Example:
      >>> from fedjax_opt.experiments.results import curves, measure, rule
      >>> found = curves([
      ...     {"label": label, "hyperparameters": {}, "seed": 0, "round": 10 * i, "accuracy": i * rate}
      ...     for label, rate in (("FedAvg", 0.1), ("FedACG", 0.2)) for i in (1, 2, 3)
      ... ])
      >>> row = measure(found, rule(found)).rows[1]
      >>> round(row.best, 3), row.to_match["rounds"]
      (0.6, 20.0)
    """
    labels = [one.label for one in found]
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise ValueError(f"curves must be one or more, each with a label of its own, got {labels}.")
    if baseline is not None:
        checks.choice("baseline", baseline, tuple(labels))
    named = [label for label in labels if label.lower() == "fedavg"]
    baseline = baseline or [*named, labels[0]][0]
    rows = [_measured(one, by) for one in found]
    reference = rows[labels.index(baseline)]
    target = reference.best if by.target is None else by.target
    goal = f"match {baseline} at" if by.target is None else "reach"
    unit = "%" if by.percent else ""
    known = np.isfinite(target)
    goal = f"{goal} {by.text(target)}{unit}" if known else f"match {baseline}, which has no value"
    price = _to_match(reference, target, by)
    done = []
    for row in rows:
        match = _to_match(row, target, by)
        factors = {name: cost / price[name] for name, cost in match.items() if price.get(name, 0)}
        together = row is not reference and row.seeds == reference.seeds
        sound = row.at_best and reference.at_best and not (row.troubles or reference.troubles)
        lead = None
        if together and sound:
            lead = interval(np.subtract(row.at_best, reference.at_best))
            lead = lead if len(row.at_best) > 2 else lead._replace(half_width=np.nan)
        done.append(row._replace(to_match=match, factors=factors, lead=lead))
    return Measured(baseline, target, goal, done, by)


def _measured(curve: Curves, by: Rule) -> Row:
    """Applies the rules at the top of this file."""
    values = curve.values(by.metric).copy()
    ends, troubles = [], []
    for i, seed in enumerate(curve.seeds):
        known = np.flatnonzero(np.isfinite(values[i]))
        values[i, known] = smooth(values[i, known], by.smoothing)
        last = int(known[-1]) if len(known) else -1
        if seed in curve.diverged:
            troubles.append(f"seed {seed} diverged in round {curve.diverged[seed]}")
            if last >= 0:
                values[i, last:] = values[i, last]
                ends.append((last, float(values[i, last])))
        elif last < 0:
            troubles.append(f"seed {seed} has no value, and is not counted")
        elif last + 1 < len(curve.rounds):
            where = curve.rounds[last]
            troubles.append(f"seed {seed} has no finite {by.metric} after round {where}")
    counted = np.asarray(np.isfinite(values).any(axis=1))
    tables = {**curve.columns, by.metric: values}
    bands = {name: _band(table[counted]) for name, table in tables.items()}
    row = Row(
        curve.label, curve.hyperparameters, curve.seeds, curve.rounds, values[counted], bands,
        _spent(curve, counted), ends, troubles,
    )  # fmt: skip
    mean = bands[by.metric].mean
    if not np.isfinite(mean).any():
        return row
    place = int(np.nanargmax(mean) if by.maximise else np.nanargmin(mean))
    return row._replace(
        best=float(mean[place]),
        at_best=tuple(row.values[:, place].tolist()),
        to_best={name: float(column[place]) for name, column in row.spent.items()},
    )


def _spent(curve: Curves, counted: np.ndarray) -> dict[str, np.ndarray]:
    """What the counted seeds had spent in the mean; one that has ended has spent what it had then."""
    spent = {"rounds": curve.rounds.astype(np.float64)}
    for name, column in COSTS.items():
        table = curve.values(column)[counted if counted.any() else ...]
        if table.size and np.isfinite(table).any(axis=0).all():
            spent[name] = np.maximum.accumulate(np.nanmean(table, axis=0))
    if {"bytes_up", "bytes_down"} <= spent.keys():
        spent["bytes"] = spent["bytes_up"] + spent["bytes_down"]
    return spent


def _band(table: np.ndarray) -> Band:
    if not len(table):
        table = np.full((1, table.shape[1]), np.nan)
    return Band(table.mean(axis=0), table.min(axis=0), table.max(axis=0))


def _to_match(row: Row, target: float, by: Rule) -> dict[str, float]:
    curve = row.bands[by.metric].mean
    place = rounds_to_target(np.arange(len(curve)), curve, target, by.maximise)
    if place is None:
        return {}
    return {name: float(column[place]) for name, column in row.spent.items()}


def settings_differ(told: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, list]]:
    """What settings of several runs have in common, and those that differ, with the values of each."""
    names = dict.fromkeys(name for one in told for name in one)
    values = {name: [one.get(name) for one in told] for name in names}
    same = {
        name: str(found[0])
        for name, found in values.items()
        if found[0] is not None and all(value == found[0] for value in found)
    }
    differing = {
        name: found for name, found in values.items() if any(value != found[0] for value in found)
    }
    return same, differing
