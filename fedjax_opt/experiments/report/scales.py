"""Units, numbers as text, and axes with round ticks."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
# Quantity -> its units, from the smallest: name and size. kB is 1000 bytes.
_UNITS = {
    "rounds": (("", 1.0),),
    "bytes": tuple((f"{prefix}B", 1e3**i) for i, prefix in enumerate(_PREFIXES)),
    "flops": tuple((f"{prefix}FLOP", 1e3**i) for i, prefix in enumerate(_PREFIXES)),
    "seconds": (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86_400.0)),
}
_MANY = 10_000  # from here on, digits come in groups of three


class Unit(NamedTuple):
    """A unit of a quantity: what to write, and how much one is."""

    name: str
    size: float


class Scale(NamedTuple):
    """An axis.

    Attributes:
      low: its least value.
      high: its greatest.
      ticks: where it is labelled.
      log: whether equal steps are equal factors.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, values) -> np.ndarray:
        """Where values lie, from 0 at the low end to 1 at the high one."""
        values = np.asarray(values, np.float64)
        if not self.log:
            return (values - self.low) / (self.high - self.low)
        positive = np.where(values > 0, values, np.nan)
        return np.log(positive / self.low) / math.log(self.high / self.low)


def unit_of(quantity: str, values: Iterable[float]) -> Unit:
    """The unit in which values of a quantity are written: at least one in the middle of them."""
    values = [value for value in values if value > 0]
    middle = float(np.median(values)) if values else 1.0
    units = _UNITS[quantity]
    fitting = [unit for unit in units if unit[1] <= middle * (1 + 1e-9)] or units[:1]
    return Unit(*fitting[-1])


def in_unit(value: float, unit: Unit) -> str:
    """A value as so many of a unit, with at least three digits; what has no unit is counted."""
    value /= unit.size
    if not unit.name or value >= 999.5:
        return f"{value:,.0f}" if value >= _MANY else f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def tick_text(value: float) -> str:
    """A round number, without what rounding left over."""
    if value != 0 and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.6g}" if abs(value) >= _MANY else f"{value:.6g}"


def linear(low: float, high: float, count: int = 6) -> Scale:
    """An axis from `low` to `high`, with about `count` ticks at multiples of 1, 2, 2.5 or 5."""
    if not high > low:
        low, high = low - (abs(low) or 1.0) * 0.5, low + (abs(low) or 1.0) * 0.5
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, tuple(i * step for i in range(first, last + 1)))


def logarithmic(low: float, high: float) -> Scale:
    """An axis of factors, with ticks at 1, 2 and 5 times powers of ten, or at some powers."""
    if not high > low * (1 + 1e-9):
        low, high = low / 2, low * 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 300 else (1,)
    ticks = [10.0**p * f for p in powers for f in factors if low <= 10.0**p * f * (1 + 1e-9)]
    ticks = [tick for tick in ticks if tick <= high * (1 + 1e-9)]
    return Scale(low, high, tuple(ticks[:: 1 + len(ticks) // 9]), log=True)
