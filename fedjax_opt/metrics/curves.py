"""Reading curves: smoothing, and when a target was reached."""

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
