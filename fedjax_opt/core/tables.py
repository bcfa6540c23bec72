"""Tables and numbers as text."""

from collections.abc import Collection, Sequence


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Collection[int] = (0,)
) -> list[str]:
    """A table's lines: text to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i in text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, ["-" * width for width in widths], *rows)
    ]


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def number(value: object) -> str:
    """A number with four digits; anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
