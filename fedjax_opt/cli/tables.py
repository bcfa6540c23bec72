"""Tables for a terminal."""

from collections.abc import Sequence

from fedjax_opt.core.tables import table_lines


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: the first column to the left, numbers to the right."""
    print("\n".join(table_lines(header, rows)))


def megabytes(count: float) -> str:
    """A number of bytes in megabytes."""
    return f"{count / 1e6:.1f}"
