"""Numbers as people write them."""


def in_bytes(count: float) -> str:
    """Bytes with the unit that leaves the fewest digits; kB is 1000 bytes."""
    return _with_unit(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def in_joules(count: float) -> str:
    """Joules, with a prefix."""
    return _with_unit(count, ("J", "kJ", "MJ", "GJ", "TJ"))


def in_count(count: float) -> str:
    """A large number: 817k, 1.2M."""
    return _with_unit(count, ("", "k", "M", "G", "T")).replace(" ", "")


def in_time(seconds: float) -> str:
    """Seconds, minutes, hours or days."""
    for unit, length in (("days", 2 * 86_400.0), ("h", 3600.0), ("min", 120.0)):
        if seconds >= length * (1 - 1e-3):
            return f"{seconds / {'days': 86_400.0, 'h': 3600.0, 'min': 60.0}[unit]:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1000:.3g} ms"


def _with_unit(count, units):
    for unit in units[:-1]:
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} {units[-1]}"


_UNITS = {
    "model size": lambda value: f"{value:.4g} Mbit",
    "download": lambda value: f"{value:.3g} Mbit/s",
    "upload": lambda value: f"{value:.3g} Mbit/s",
    "seconds per step": in_time,
    "time budget": in_time,
    "byte budget": in_bytes,
    "client byte budget": in_bytes,
}


def as_input(name: str, value: float) -> str:
    """An input's value with its unit."""
    if name in _UNITS:
        return _UNITS[name](value)
    return f"{value:,.0f}" if value == round(value) and value < 1e9 else f"{value:.4g}"
