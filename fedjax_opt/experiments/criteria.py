"""Who wins: scores of accuracy curves, as the papers compare them, and intervals over seeds.

A curve is an accuracy at each of E evaluations; curves come as `[seeds, E]`, and scores as `[seeds]`.
Curves are smoothed first by an exponential moving average over evaluations (0.9 in FedACG; 0 for none).
One with a NaN is of a run that diverged or was interrupted: its score is NaN, whatever came before.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.targets import first_reached
from fedjax_opt.metrics import smooth

#: By what the best of several hyperparameters may be chosen.
CRITERIA = ("best_accuracy", "final_accuracy", "rounds_to_target", "area_under_curve")


def best_accuracy(curves: Any, decay: float = 0.9) -> np.ndarray:
    """The highest point of each curve.

    Args:
      curves: accuracies `[seeds, E]`.
      decay: of the smoothing, in [0, 1).

    Returns:
      The scores `[seeds]`.

    Example:
      >>> from fedjax_opt.experiments.criteria import best_accuracy
      >>> best_accuracy([[0.1, 0.5, 0.3]], decay=0.0).tolist()
      [0.5]
    """
    return np.max(_smoothed(curves, decay), axis=1)


def final_accuracy(curves: Any, decay: float = 0.9) -> np.ndarray:
    """The last point of each curve.

    Args:
      curves: accuracies `[seeds, E]`.
      decay: of the smoothing, in [0, 1).

    Returns:
      The scores `[seeds]`.

    Example:
      >>> from fedjax_opt.experiments.criteria import final_accuracy
      >>> final_accuracy([[0.1, 0.5, 0.3]], decay=0.0).tolist()
      [0.3]
    """
    return _smoothed(curves, decay)[:, -1]


def rounds_to_target(rounds: Any, curves: Any, target: float, decay: float = 0.9) -> np.ndarray:
    """The first evaluated round at which each curve has reached a target.

    Args:
      rounds: the rounds of the evaluations `[E]`.
      curves: accuracies `[seeds, E]`.
      target: the accuracy to reach.
      decay: of the smoothing, in [0, 1).

    Returns:
      The scores `[seeds]`, infinite where a curve never reached it; less is better.

    Example:
      >>> from fedjax_opt.experiments.criteria import rounds_to_target
      >>> rounds_to_target([10, 20], [[0.1, 0.5], [0.1, 0.2]], target=0.4, decay=0.0).tolist()
      [20.0, inf]
    """
    smoothed = _smoothed(curves, decay)
    rounds = _check_rounds(rounds, smoothed)
    target = checks.number("target", target)
    scores = np.full(len(smoothed), np.inf)
    for seed, curve in enumerate(smoothed):
        index = first_reached(curve, target)
        if np.isnan(curve).any():
            scores[seed] = np.nan
        elif index is not None:
            scores[seed] = rounds[index]
    return scores


def area_under_curve(rounds: Any, curves: Any, decay: float = 0.9) -> np.ndarray:
    """The mean height of each curve over the rounds, by the trapezoidal rule.

    Args:
      rounds: the rounds of the evaluations `[E]`.
      curves: accuracies `[seeds, E]`.
      decay: of the smoothing, in [0, 1).

    Returns:
      The scores `[seeds]`.

    Example:
      >>> from fedjax_opt.experiments.criteria import area_under_curve
      >>> area_under_curve([10, 20, 40], [[0.0, 0.4, 0.4]], decay=0.0).round(3).tolist()
      [0.333]
    """
    smoothed = _smoothed(curves, decay)
    rounds = _check_rounds(rounds, smoothed)
    if len(rounds) == 1:
        return smoothed[:, 0]
    return np.trapezoid(smoothed, rounds, axis=1) / (rounds[-1] - rounds[0])


def score(
    criterion: str, rounds: Any, curves: Any, target: float | None = None, decay: float = 0.9
) -> np.ndarray:
    """The scores of curves by a criterion that is given by its name.

    Args:
      criterion: 'best_accuracy', 'final_accuracy', 'rounds_to_target' or 'area_under_curve'.
      rounds: the rounds of the evaluations `[E]`.
      curves: accuracies `[seeds, E]`.
      target: for 'rounds_to_target', the accuracy to reach.
      decay: of the smoothing, in [0, 1).

    Returns:
      The scores `[seeds]`.

    Example:
      >>> from fedjax_opt.experiments.criteria import score
      >>> score("final_accuracy", [10, 20], [[0.1, 0.5], [0.1, 0.2]], decay=0.0).tolist()
      [0.5, 0.2]
    """
    checks.choice("criterion", criterion, CRITERIA)
    if criterion == "rounds_to_target":
        if target is None:
            raise ValueError("target must be given with criterion='rounds_to_target', got None.")
        return rounds_to_target(rounds, curves, target, decay)
    if criterion == "area_under_curve":
        return area_under_curve(rounds, curves, decay)
    return (best_accuracy if criterion == "best_accuracy" else final_accuracy)(curves, decay)


def winner(
    rounds: Any,
    candidates: Sequence[Any],
    criterion: str = "best_accuracy",
    target: float | None = None,
    decay: float = 0.9,
) -> int:
    """The candidate whose curves have the best mean score over their seeds.

    A candidate with a NaN in any of its curves never wins. Between equal scores (where none reached the
    target, say) the best accuracy decides, and then the order.

    Args:
      rounds: the rounds of the evaluations `[E]`.
      candidates: the curves of each, `[seeds, E]`.
      criterion: a name, as in `score`.
      target: for 'rounds_to_target', the accuracy to reach.
      decay: of the smoothing, in [0, 1).

    Returns:
      The winner's place among the candidates.

    Example:
      >>> from fedjax_opt.experiments.criteria import winner
      >>> winner([10, 20], [[[0.1, 0.5]], [[0.1, 0.6]]])
      1
    """
    if not len(candidates):
        raise ValueError("candidates must hold at least one, got none.")
    ranks = []
    for place, curves in enumerate(candidates):
        mean = np.mean(score(criterion, rounds, curves, target, decay))
        better = -mean if criterion == "rounds_to_target" else mean
        ranks.append((better, np.mean(best_accuracy(curves, decay)), -place))
    finished = [rank for rank in ranks if not np.isnan(rank[:2]).any()]
    if not finished:
        raise ValueError(
            f"None of the {len(candidates)} candidates has finished with finite numbers, so none of them"
            " wins. Smaller learning rates may help."
        )
    return -max(finished)[2]


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
      >>> from fedjax_opt.experiments.criteria import interval
      >>> mean, half_width = interval([0.80, 0.82, 0.81])
      >>> f"{mean:.3f} ± {half_width:.3f}"
      '0.810 ± 0.025'
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"values must be a list of at least one number, got {values!r}.")
    level = checks.number("level", level, low=0.0, high=1.0, open_low=True, open_high=True)
    mean, count = float(values.mean()), len(values)
    if count == 1 or not np.isfinite(values).all():
        return Interval(mean, math.nan)
    half_width = student_t(level, count - 1) * values.std(ddof=1) / math.sqrt(count)
    return Interval(mean, float(half_width))


def student_t(level: float, freedom: int) -> float:
    """The t with P(|T| < t) = level, for a whole number of degrees of freedom.

    With a = atan(t / sqrt(freedom)) that probability is a finite sum of powers of cos(a), and grows
    with a: a is found by bisection.

    Args:
      level: the probability, in (0, 1).
      freedom: the degrees of freedom.

    Returns:
      The quantile.

    Example:
      >>> from fedjax_opt.experiments.criteria import student_t
      >>> round(student_t(0.95, 2), 3)
      4.303

    Reference:
      Abramowitz, Stegun. Handbook of mathematical functions. 1964. 26.7.3 and 26.7.4.
    """
    freedom = checks.integer("freedom", freedom, low=1)
    odd = freedom % 2
    # cos + 2/3 cos^3 + 2/3 4/5 cos^5 + ..., or 1 + 1/2 cos^2 + 1/2 3/4 cos^4 + ...
    orders = np.arange(2 + odd, freedom - 1, 2)
    factors = np.append(1.0, np.cumprod((orders - 1) / orders))
    powers = odd + 2 * np.arange(len(factors))

    def probability(angle: float) -> float:
        total = math.sin(angle) * float(np.sum(factors * math.cos(angle) ** powers))
        if not odd:
            return total
        return 2 / math.pi * (angle + (total if freedom > 1 else 0.0))

    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if probability(middle) < level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _smoothed(curves: Any, decay: float) -> np.ndarray:
    curves = np.asarray(curves, np.float64)
    if curves.ndim != 2 or not curves.size:
        raise ValueError(f"curves must be numbers [seeds, E], got shape {curves.shape}.")
    smoothed = np.stack([smooth(curve, decay) for curve in curves])
    # An evaluation that is NaN is of a model that is lost, whatever a smoothed curve makes of it.
    return np.where(np.isnan(curves).any(axis=1, keepdims=True), np.nan, smoothed)


def _check_rounds(rounds: Any, curves: np.ndarray) -> np.ndarray:
    rounds = np.asarray(rounds, np.float64)
    if rounds.shape != curves.shape[1:] or not np.all(np.diff(rounds) > 0):
        raise ValueError(
            f"rounds must be {curves.shape[1]} rising numbers, one for each evaluation, got"
            f" {rounds.tolist()}."
        )
    return rounds
