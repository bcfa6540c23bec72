"""Tables as lines of text."""

from collections.abc import Collection, Sequence


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Collection[int] = (0,)
) -> list[str]:
    """A table's lines: text to the left, numbers to the right.

    Args:
      header: the columns' names.
      rows: their cells.
      text_columns: which columns hold text.
    """
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i in text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, ["-" * width for width in widths], *rows)
    ]
