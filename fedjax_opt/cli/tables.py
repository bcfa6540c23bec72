"""Tables and paragraphs for a terminal."""

import textwrap
from collections.abc import Sequence

from fedjax_opt.core.tables import table_lines

WIDTH = 96


def print_paragraph(text: str, indent: str = "", rest: str = "") -> None:
    """Prints text in lines of `WIDTH`, the first and the others indented; nothing if there is none."""
    if text:
        print(
            textwrap.fill(
                text, WIDTH, initial_indent=indent, subsequent_indent=rest, break_on_hyphens=False
            )
        )


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table: the first column to the left, numbers to the right."""
    print("\n".join(table_lines(header, rows)))


def megabytes(count: float) -> str:
    """A number of bytes in megabytes."""
    return f"{count / 1e6:.1f}"
