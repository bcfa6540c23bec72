"""Extensions that stop a run by what is measured."""

import dataclasses

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.training.extensions import Chunk, Extension, Memory, RunFacts, Stop


def early_stopping(metric: str = "loss", patience: int = 10, maximise: bool = False) -> Extension:
    """Stops when a metric has not become better in so many evaluations.

    Args:
      metric: the name of an evaluated metric.
      patience: how many evaluations without a new best are accepted.
      maximise: whether larger is better.

    Returns:
      An extension.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.early_stopping("accuracy", patience=5, maximise=True).name
      'early_stopping(accuracy)'
    """
    checks.integer("patience", patience, low=1)
    return _OnMetric(metric, maximise, patience=patience)


def stop_at(metric: str, target: float, maximise: bool = True) -> Extension:
    """Stops when a metric reaches a target.

    Args:
      metric: the name of an evaluated metric.
      target: the value to reach.
      maximise: whether larger is better.

    Returns:
      An extension.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.stop_at("accuracy", 0.9).name
      'stop_at(accuracy, 0.9)'
    """
    return _OnMetric(metric, maximise, target=target)


@dataclasses.dataclass(frozen=True)
class _OnMetric(Extension):
    """Stops at a target, or where there is none, after so many evaluations without a new best."""

    metric: str
    maximise: bool
    patience: int = 1
    target: float | None = None

    @property
    def name(self) -> str:
        if self.target is None:
            return f"early_stopping({self.metric})"
        return f"stop_at({self.metric}, {self.target})"

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        if self.metric not in run.names:
            why = "" if run.names else " Nothing is evaluated: give a test set, or measurements."
            raise ValueError(
                f"metric must be one of the evaluated {sorted(run.names)}, got {self.metric!r}.{why}"
            )
        return memory or {"best": -np.inf, "waited": 0}

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, Stop | None]:
        if not chunk.finite:
            return memory, None
        sign, waited = 1 if self.maximise else -1, memory["waited"] + 1
        value = sign * chunk.metrics[self.metric]
        if self.target is not None:
            reached = value >= sign * self.target
            return memory, Stop(f"{self.metric} reached {self.target}") if reached else None
        if value > memory["best"]:
            return {"best": value, "waited": 0}, None
        why = f"{self.metric} has not improved in {self.patience} evaluations"
        return memory | {"waited": waited}, Stop(why) if waited >= self.patience else None
