"""The numbers of the report: each algorithm's best accuracy, and what it took to get there.

The layout is that of two papers. To the left the highest accuracy with its interval, and what was spent
up to it; to the right what was spent until the baseline's best accuracy was matched, with the factor
against the baseline.

References:
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Table 4.
  Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum. 2024.
  Table 4.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.targets import first_reached
from fedjax_opt.experiments.criteria import Interval, interval
from fedjax_opt.experiments.report.curves import About, Curves
from fedjax_opt.experiments.report.measured import Measured, measure


class Row(NamedTuple):
    """The numbers of one algorithm; costs by name: 'rounds', 'bytes_up', 'bytes', 'flops', 'seconds'.

    Attributes:
      label: its name.
      best: the highest mean accuracy over seeds; NaN if there is none.
      half_width: of the interval of the seeds' accuracies in that round; NaN for one seed.
      to_best: what was spent when it was first that high.
      to_match: what was spent when the mean first reached the target; empty if it never did.
      factors: `to_match` relative to the baseline's: below 1 is cheaper.
      troubles: what went wrong, in words.
      lead: `best` minus the baseline's, seed by seed, with its interval; None for the baseline, and
        where the seeds are not the same or not all went well.
    """

    label: str
    best: float
    half_width: float
    to_best: dict[str, float]
    to_match: dict[str, float]
    factors: dict[str, float]
    troubles: list[str]
    lead: Interval | None = None


class Comparison(NamedTuple):
    """Algorithms against a baseline.

    Attributes:
      baseline: its label.
      target: the accuracy to match; NaN if the baseline has none.
      goal: what that is, in words that follow 'to'.
      curves: each algorithm's measurements.
      rows: each algorithm's numbers.
    """

    baseline: str
    target: float
    goal: str
    curves: list[Measured]
    rows: list[Row]


def compare(about: About, curves: Sequence[Curves]) -> Comparison:
    """The numbers of the report.

    Args:
      about: its baseline, target and smoothing count here.
      curves: one for each algorithm.

    Returns:
      A `Comparison`, in the order of the curves.

    Example:
      >>> from fedjax_opt.experiments.report import About, Curves, compare, per_round
      >>> rounds = [10, 20, 30]
      >>> costs = per_round(rounds, bytes_up=4e6)
      >>> slow = Curves("FedAvg", {}, (0,), rounds, [[0.1, 0.2, 0.5]], costs=costs)
      >>> fast = Curves("FedACG", {}, (0,), rounds, [[0.2, 0.5, 0.6]], costs=costs)
      >>> row = compare(About("A comparison"), [slow, fast]).rows[1]
      >>> row.best, row.to_match["rounds"], round(row.factors["bytes_up"], 3)
      (0.6, 20.0, 0.667)
    """
    labels = [curve.label for curve in curves]
    if not labels or not all(labels) or len(set(labels)) < len(labels):
        raise ValueError(f"curves must be one or more, each with a label of its own, got {labels}.")
    if about.baseline is not None:
        checks.choice("baseline", about.baseline, tuple(labels))
    if about.target is not None:
        checks.number("target", about.target, low=0.0, high=1.0)
    named = [label for label in labels if label.lower() == "fedavg"]
    baseline = about.baseline or [*named, labels[0]][0]
    measured = [measure(curve, about.smoothing) for curve in curves]
    reference = measured[labels.index(baseline)]
    target = _best(reference)[0] if about.target is None else about.target
    goal = f"match {baseline} at" if about.target is None else "reach"
    goal = (
        f"{goal} {target:.1%}" if np.isfinite(target) else f"match {baseline}, which has no value"
    )
    price = _to_match(reference, target)
    rows = [_row(curve, target, price)._replace(lead=_lead(curve, reference)) for curve in measured]
    return Comparison(baseline, target, goal, measured, rows)


def _row(curve: Measured, target: float, price: dict[str, float]) -> Row:
    best, index = _best(curve)
    half_width = np.nan if index is None else interval(curve.accuracy[:, index]).half_width
    match = _to_match(curve, target)
    factors = {
        axis: value / price[axis] for axis, value in match.items() if price.get(axis, 0.0) > 0
    }
    to_best = _spent(curve, index)
    return Row(curve.label, best, half_width, to_best, match, factors, curve.troubles)


def _lead(curve: Measured, reference: Measured) -> Interval | None:
    (_, own), (_, other) = _best(curve), _best(reference)
    together = curve is not reference and curve.seeds == reference.seeds
    if not together or own is None or other is None or curve.troubles or reference.troubles:
        return None
    return interval(curve.accuracy[:, own] - reference.accuracy[:, other])


def _best(curve: Measured) -> tuple[float, int | None]:
    """The highest mean accuracy, and the index of the round that first had it."""
    mean = curve.bands["accuracy"].mean
    if not np.isfinite(mean).any():
        return np.nan, None
    index = int(np.nanargmax(mean))
    return float(mean[index]), index


def _to_match(curve: Measured, target: float) -> dict[str, float]:
    return _spent(curve, first_reached(curve.bands["accuracy"].mean, target))


def _spent(curve: Measured, index: int | None) -> dict[str, float]:
    """What was spent up to an evaluated round; nothing is known of none."""
    if index is None:
        return {}
    return {axis: float(values[index]) for axis, values in curve.spent.items()}
