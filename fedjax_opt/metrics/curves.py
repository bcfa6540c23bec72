"""Reading curves: smoothing, the last rounds, what diverged, and when a target was reached."""

from typing import Any

import numpy as np

from fedjax_opt.core import checks


def smooth(values: Any, decay: float = 0.9) -> np.ndarray:
    """The exponential moving average `s_t = decay s_{t-1} + (1 - decay) v_t`, with `s_0 = v_0`.

    Args:
      values: a curve `[T]`.
      decay: in [0, 1); 0.9 in the FedACG paper.

    Returns:
      The smoothed curve `[T]`, which stays where it is at a value that is NaN.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.metrics.smooth([0.0, 1.0], decay=0.5).tolist()
      [0.0, 0.5]
    """
    checks.number("decay", decay, low=0.0, high=1.0, open_high=True)
    smoothed, last = np.array(values, np.float64), np.nan
    for t, value in enumerate(smoothed):
        if np.isnan(last):
            last = value
        elif not np.isnan(value):  # a round in which nobody took part says nothing
            last = decay * last + (1 - decay) * value
        smoothed[t] = last
    return smoothed


def last_mean(rounds: Any, values: Any, count: int = 100) -> float:
    """The mean of a curve over the last rounds, which is how the GHBM paper reports accuracy.

    Args:
      rounds: the rounds at which the curve was measured `[T]`, in ascending order.
      values: the curve `[T]`; NaN where nobody took part does not count.
      count: over how many of the last rounds, not measurements.

    Returns:
      The mean; NaN if nothing was measured in these rounds.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.metrics.last_mean([100, 150, 200], [0.5, 0.7, 0.9], count=100)
      0.8
    """
    count = checks.integer("count", count, low=1)
    rounds, values = np.asarray(rounds), np.asarray(values, np.float64)
    if rounds.shape != values.shape or rounds.ndim != 1 or not rounds.size:
        raise ValueError(
            f"rounds and values must be [T] with T >= 1, got shapes {rounds.shape} and {values.shape}."
        )
    late = values[(rounds > rounds[-1] - count) & ~np.isnan(values)]
    return float(np.mean(late)) if late.size else float("nan")


def share_diverged(losses: Any, rise: float = 2.0) -> float:
    """The share of runs that diverge: their loss is not finite, or ends above where it began.

    Args:
      losses: the training loss of each run `[runs, T]`; a run that was stopped has NaN from there on.
      rise: how many times the first loss the last one may be.

    Returns:
      A share from 0 to 1.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.metrics.share_diverged([[2.3, 0.5], [2.3, 9.0], [2.3, float("nan")], [2.3, 2.4]])
      0.5
    """
    rise = checks.number("rise", rise, low=1.0)
    losses = np.asarray(losses, np.float64)
    if losses.ndim != 2 or not losses.size:
        raise ValueError(
            f"losses must be [runs, T], one or more of each, got shape {losses.shape}."
        )
    fine = np.isfinite(losses).all(axis=1) & (losses[:, -1] <= rise * losses[:, 0])
    return float(np.mean(~fine))


def rounds_to_target(rounds: Any, values: Any, target: float, maximise: bool = True) -> int | None:
    """The first round at which a curve reached a target; None if it never did.

    Args:
      rounds: the rounds at which the curve was measured `[T]`.
      values: the curve `[T]`.
      target: the value to reach.
      maximise: whether larger is better.

    Returns:
      The round, or None.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.metrics.rounds_to_target([10, 20, 30], [0.5, 0.8, 0.9], target=0.75)
      20
    """
    values = np.asarray(values)
    reached = np.flatnonzero(values >= target if maximise else values <= target)  # NaN never is
    return int(np.asarray(rounds)[reached[0]]) if len(reached) else None
