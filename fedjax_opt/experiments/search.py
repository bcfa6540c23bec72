"""Points to try: all combinations of a grid, or random ones."""

import itertools
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks

_NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
RANGE = re.compile(rf"\s*(uniform|loguniform)\({_NUMBER},{_NUMBER}\)\s*", re.ASCII)


class Range(NamedTuple):
    """An interval to draw a hyperparameter from; see `sample`.

    Attributes:
      low: its lower end.
      high: its upper end.
      logarithmic: whether every factor is as likely as any other, and not every difference.

    Example:
      >>> from fedjax_opt.experiments.sweep import Range
      >>> Range(1e-4, 1.0, logarithmic=True).low
      0.0001
    """

    low: float
    high: float
    logarithmic: bool = False

    def __str__(self) -> str:
        """The text that `parse_range` reads."""
        kind = "loguniform" if self.logarithmic else "uniform"
        return f"{kind}({float(self.low)!r}, {float(self.high)!r})"


def parse_range(text: str) -> Range:
    """Reads a range."""
    match = RANGE.fullmatch(text)
    if not match:
        raise ValueError(
            f"A range is written uniform(low, high) or loguniform(low, high), got {text!r}."
        )
    return Range(float(match[2]), float(match[3]), logarithmic=match[1] == "loguniform")


def expand(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the values of a grid; the last hyperparameter changes fastest.

    Args:
      grid: the values to try, by hyperparameter.

    Returns:
      The points, each a mapping of all hyperparameters to values.

    Example:
      >>> from fedjax_opt.experiments.sweep import expand
      >>> expand({"learning_rate": [0.1, 0.2], "mu": [1.0]})
      [{'learning_rate': 0.1, 'mu': 1.0}, {'learning_rate': 0.2, 'mu': 1.0}]
    """
    if not grid:
        raise ValueError("grid must name at least one hyperparameter, got an empty one.")
    for name, values in grid.items():
        _check_choices("grid", name, values)
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def sample(
    ranges: Mapping[str, Range | Sequence[Any]], count: int, seed: int = 0
) -> list[dict[str, Any]]:
    """Random points: each hyperparameter from its range, or one of its values.

    A hyperparameter's numbers depend on its name and the seed alone: another one beside it, or more
    points, leave them as they are.

    Args:
      ranges: a `Range` or a list of values, by hyperparameter.
      count: how many points.
      seed: of the draws.

    Returns:
      The points, each a mapping of all hyperparameters to values.

    Example:
      >>> from fedjax_opt.experiments.sweep import Range, sample
      >>> points = sample({"learning_rate": Range(1e-3, 1.0, logarithmic=True)}, count=8)
      >>> all(1e-3 <= point["learning_rate"] <= 1.0 for point in points)
      True
    """
    if not ranges:
        raise ValueError("ranges must name at least one hyperparameter, got none.")
    count = checks.integer("count", count, low=1)
    seed = checks.integer("seed", seed, low=0)
    columns = {}
    for name, values in ranges.items():
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if isinstance(values, Range):
            columns[name] = _drawn(name, values, generator.uniform(size=count))
        else:
            _check_choices("ranges", name, values)
            columns[name] = [values[i] for i in generator.integers(len(values), size=count)]
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _drawn(name: str, values: Range, uniform: np.ndarray) -> list[float]:
    low, high = values.low, values.high
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"ranges: {name!r} must have finite ends, low < high, got {values}.")
    if not values.logarithmic:
        return (low + (high - low) * uniform).tolist()
    if low <= 0:
        raise ValueError(f"ranges: {name!r} must be positive to be logarithmic, got {values}.")
    return np.clip(low * (high / low) ** uniform, low, high).tolist()


def _check_choices(what: str, name: str, values: Any) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
        raise ValueError(f"{what}: {name!r} must be a list of at least one value, got {values!r}.")
    repeated = [value for i, value in enumerate(values) if value in values[:i]]
    if repeated:
        raise ValueError(f"{what}: {name!r} must not repeat a value, got {repeated[0]!r} twice.")
