"""Units, and numbers as text."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
# Quantity -> its units, from the smallest: name and size. kB is 1000 bytes.
_BYTES = tuple((f"{prefix}B", 1e3**i) for i, prefix in enumerate(_PREFIXES))
_UNITS = {
    "rounds": (("", 1.0),),
    "bytes": _BYTES,
    "bytes_up": _BYTES,
    "bytes_down": _BYTES,
    "flops": tuple((f"{prefix}FLOP", 1e3**i) for i, prefix in enumerate(_PREFIXES)),
    "seconds": (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86_400.0)),
}


class Unit(NamedTuple):
    """A unit of a quantity: what to write, and how much one is."""

    name: str
    size: float


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
        return f"{value:,.0f}" if value >= 10_000 else f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")
