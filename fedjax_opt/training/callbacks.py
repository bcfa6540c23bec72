"""What may act between the chunks of a simulated run: a callback is any function of an `Event`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.state import FederatedState


class Event(NamedTuple):
    """What a callback sees, after each chunk of rounds.

    Attributes:
      round: the number of rounds done.
      state: the state; read it, do not keep it (its buffers are reused), or copy it.
      history: arrays over all rounds so far, by name.
      evaluation: the newest evaluation, by name; empty if there was none in this chunk.
    """

    round: int
    state: FederatedState
    history: dict[str, np.ndarray]
    evaluation: dict[str, float]


# Returns a reason to stop the run, or None to go on.
Callback = Callable[[Event], str | None]


def early_stopping(metric: str = "loss", patience: int = 10, maximise: bool = False) -> Callback:
    """Stops when a metric has not become better in so many evaluations.

    Args:
      metric: the name of an evaluated metric.
      patience: how many evaluations without a new best are accepted.
      maximise: whether larger is better.

    Returns:
      A callback, for one run.

    Example:
      >>> import fedjax_opt as fo
      >>> stop = fo.early_stopping("accuracy", patience=5, maximise=True)
    """
    checks.integer("patience", patience, low=1)
    best, waited = -np.inf, 0

    def callback(event: Event) -> str | None:
        nonlocal best, waited
        if not event.evaluation:
            return None
        value = _metric(event, metric) * (1 if maximise else -1)
        best, waited = (value, 0) if value > best else (best, waited + 1)
        if waited >= patience:
            return f"{metric} has not improved in {patience} evaluations"
        return None

    return callback


def stop_at(metric: str, target: float, maximise: bool = True) -> Callback:
    """Stops when a metric reaches a target.

    Args:
      metric: the name of an evaluated metric.
      target: the value to reach.
      maximise: whether larger is better.

    Returns:
      A callback.

    Example:
      >>> import fedjax_opt as fo
      >>> stop = fo.stop_at("accuracy", 0.9)
    """

    def callback(event: Event) -> str | None:
        if not event.evaluation:
            return None
        value = _metric(event, metric)
        reached = value >= target if maximise else value <= target
        return f"{metric} reached {target}" if reached else None

    return callback


def _metric(event: Event, metric: str) -> Any:
    if metric not in event.evaluation:
        raise ValueError(
            f"metric must be one of the evaluated {sorted(event.evaluation)}, got {metric!r}."
        )
    return event.evaluation[metric]
