"""Which checkpoints stay: the newest, those of certain rounds, and the best."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedjax_opt.core import checks


class _Rule(NamedTuple):
    keep: int
    keep_every: int | None
    best_metric: str | None
    maximise: bool


class Retention(_Rule):
    """A rule for what stays.

    Attributes:
      keep: how many of the newest.
      keep_every: rounds that are a multiple of it; None for none.
      best_metric: the metric of which the best stays; None for none.
      maximise: whether larger is better.

    Example:
      >>> from fedjax_opt.training.retention import Retention
      >>> rule = Retention(2, 20, "loss", False)
      >>> losses = {10: 3.0, 20: 2.5, 30: 1.0, 40: 2.0, 50: 2.0, 60: 1.5}
      >>> rule.superfluous({t: {"loss": x} for t, x in losses.items()})
      [10]
    """

    __slots__ = ()

    def __new__(cls, keep, keep_every, best_metric, maximise):
        checks.integer("keep", keep, low=1)
        if keep_every is not None:
            checks.integer("keep_every", keep_every, low=1)
        return super().__new__(cls, keep, keep_every, best_metric, maximise)

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuses metrics that do not hold the one that the best is told by."""
        if self.best_metric is not None and self.best_metric not in metrics:
            raise ValueError(
                f"best_metric must be one of the evaluated {sorted(metrics)}, got"
                f" {self.best_metric!r}."
            )

    def best(self, metrics: Mapping[int, Mapping[str, Any]]) -> int | None:
        """The round with the best value; the earliest of equal ones; None where there is no value."""
        if self.best_metric is None:
            return None
        values = {number: found.get(self.best_metric) for number, found in metrics.items()}
        known = {
            number: value
            for number, value in values.items()
            if isinstance(value, (int, float)) and not math.isnan(value)
        }
        sign = -1 if self.maximise else 1
        return min(known, key=lambda number: (sign * known[number], number), default=None)

    def superfluous(
        self, metrics: Mapping[int, Mapping[str, Any]], protected: Iterable[int] = ()
    ) -> list[int]:
        """The rounds whose checkpoints need not stay.

        Args:
          metrics: of each checkpoint that is there, the metrics by name.
          protected: rounds whose checkpoints stay in any case.
        """
        stay = set(sorted(metrics)[-self.keep :]) | {self.best(metrics), *protected}
        if self.keep_every is not None:
            stay |= {number for number in metrics if number % self.keep_every == 0}
        return sorted(set(metrics) - stay)
