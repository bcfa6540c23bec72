"""Quantities with units as people type them: '6.71Mbit', '20 Mbit/s', '1.5GiB', '17ms'.

Sizes become megabits, rates megabits per second, times seconds: the units of the runtime model. What may
mean two things is refused, not guessed: a bare number, 'Mb' (bits or bytes?), 'KB' (1000 or 1024?).
"""

import math
import re

from fedjax_opt.core import checks

_BIT = 1e-6  # in megabits
_BYTE = 8e-6
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SIZES = (
    {f"{prefix}bit": factor * _BIT for prefix, factor in (_DECIMAL | _BINARY).items()}
    | {f"{prefix}B": factor * _BYTE for prefix, factor in (_DECIMAL | _BINARY).items()}
    | {"bits": _BIT, "byte": _BYTE, "bytes": _BYTE, "params": 4 * _BYTE, "parameters": 4 * _BYTE}
)
_RATES = (
    {f"{unit}/s": factor for unit, factor in _SIZES.items() if "param" not in unit}
    | {f"{prefix}bps": factor * _BIT for prefix, factor in _DECIMAL.items()}
    | {f"{prefix.lower()}bps": factor * _BIT for prefix, factor in _DECIMAL.items()}
    | {f"{prefix}Bps": factor * _BYTE for prefix, factor in _DECIMAL.items() if prefix}
)
_TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86_400.0),
}
_KINDS = {"size": _SIZES, "rate": _RATES, "time": _TIMES}
_CALLED = {"size": "a size", "rate": "a bandwidth", "time": "a time"}
_SUCH_AS = {
    "size": "such as 6.71Mbit, 850kB, 1.5GiB or 209662params (of 32 bits)",
    "rate": "such as 20Mbit/s, 20Mbps or 2.5MB/s",
    "time": "such as 17ms, 0.5s, 30min or 10h",
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\W\d_]\S*)?\s*")


def parse(name: str, text: str, kind: str, *, bare: bool = False, zero: bool = False) -> float:
    """A quantity in the runtime model's unit: Mbit, Mbit/s or s.

    Args:
      name: what it is called in messages.
      text: a number and a unit, with or without a space between.
      kind: 'size', 'rate' or 'time'.
      bare: whether a number alone is one in seconds, Mbit or Mbit/s, because the name says so.
      zero: whether nothing at all is allowed.

    Returns:
      A number of at least 0.
    """
    checks.choice("kind", kind, tuple(_KINDS))
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f"{name} must be {_CALLED[kind]}, {_SUCH_AS[kind]}, got {text!r}.")
    number, unit = float(match.group(1)), match.group(2)
    if unit is None and not bare:
        raise ValueError(f"{name} needs a unit, {_SUCH_AS[kind]}, got {text!r}.")
    value = number * (1.0 if unit is None else _factor(name, text, unit, kind))
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name} must be above 0, got {text!r}.")
    return value


def _factor(name, text, unit, kind):
    """What one unit is worth; or the reason why nobody knows."""
    known = _known(kind, unit)
    if known is not None:
        return known
    number = text.strip().removesuffix(unit).strip()
    for other in _KINDS:
        if _known(other, unit) is not None:
            raise ValueError(
                f"{name} must be {_CALLED[kind]}, {_SUCH_AS[kind]}; {text!r} is {_CALLED[other]}."
                + (f" Did you mean {number}{unit}/s?" if (other, kind) == ("size", "rate") else "")
            )
    ambiguous = re.fullmatch(r"([kmgt]?)b(/s|ps)?", unit, re.IGNORECASE)
    if not ambiguous:
        raise ValueError(f"{name}: the unit {unit!r} is not known. It should be {_SUCH_AS[kind]}.")
    prefix, end = ambiguous[1].upper(), "/s" if ambiguous[2] else ""
    if prefix == "K":
        raise ValueError(
            f"{name}: {unit!r} may be 1000 bits, 1000 bytes or 1024 bytes. Write kbit{end}, kB{end} or"
            f" KiB{end}."
        )
    raise ValueError(
        f"{name}: {unit!r} may be bits or bytes. Write {number}{prefix}bit{end} for bits or"
        f" {number}{prefix}B{end} for bytes; a byte has 8 bits."
    )


def _known(kind, unit):
    table = _KINDS[kind]
    return table[unit] if unit in table else _ignoring_case(table, unit)


def _ignoring_case(table, unit):
    """A unit in other letters than ours, if it can only mean one thing: 'mbit' can, 'mb' cannot."""
    if re.fullmatch(r"[kmgt]?b(/s)?", unit, re.IGNORECASE):
        return None
    found = {factor for known, factor in table.items() if known.lower() == unit.lower()}
    return found.pop() if len(found) == 1 else None
