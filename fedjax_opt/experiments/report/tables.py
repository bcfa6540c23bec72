"""The tables of the page."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.experiments.report.comparison import Comparison, Row
from fedjax_opt.experiments.report.panels import Look
from fedjax_opt.experiments.report.scales import in_unit, unit_of
from fedjax_opt.experiments.report.svg import swatch

# Cost -> its heading, and the quantity whose units it has.
_COSTS = {
    "rounds": ("Rounds", "rounds"),
    "bytes_up": ("Upload", "bytes"),
    "bytes_down": ("Download", "bytes"),
    "bytes": ("Up + down", "bytes"),
    "flops": ("FLOPs", "flops"),
    "seconds": ("Time", "seconds"),
}
_NOTHING = '<span class="none">–</span>'


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      heading: over it.
      unit: below the heading.
      cells: of each row, as HTML.
      keys: what each row is sorted by; those with None come last.
      group: a heading over several columns.
      descending: whether the largest comes first when it is sorted.
      best: the row to set in bold.
      words: whether it holds text, which begins to the left.
    """

    heading: str
    unit: str
    cells: Sequence[str]
    keys: Sequence[Any]
    group: str = ""
    descending: bool = False
    best: int | None = None
    words: bool = False


def results_table(comparison: Comparison, looks: Sequence[Look]) -> str:
    """Best accuracies, what they cost, and what it cost to match the baseline."""
    rows = comparison.rows
    best = [row.best if np.isfinite(row.best) else None for row in rows]
    cells = [_accuracy(row) for row in rows]
    columns = [Column("Max accuracy", "%", cells, best, "", True, _winner(rows, best, max))]
    if any(row.lead for row in rows):
        leads = [row.lead.mean if row.lead else None for row in rows]
        cells = [_lead(row) for row in rows]
        columns.append(Column("Lead", "points", cells, leads, "", True))
    for cost in ("rounds", "bytes_up", "flops"):
        columns += _cost(rows, cost, "To its own best", lambda row: row.to_best)
    for cost in ("rounds", "bytes_up", "bytes", "flops", "seconds"):
        group = f"To {comparison.goal}"
        columns += _cost(
            rows, cost, group, lambda row: row.to_match, lambda row: row.factors, bold=True
        )
    return _table("Results", comparison, looks, columns, troubles=True)


def prices_table(comparison: Comparison, looks: Sequence[Look]) -> str:
    """What a round costs in the mean; '' if nothing is known."""
    prices = {
        curve.label: {
            cost: float(total[-1] / curve.rounds[-1])
            for cost, total in curve.spent.items()
            if cost != "rounds" and curve.rounds[-1] > 0
        }
        for curve in comparison.curves
    }
    reference = prices[comparison.baseline]

    def factors(row: Row) -> dict[str, float]:
        return {
            cost: price / reference[cost]
            for cost, price in prices[row.label].items()
            if reference.get(cost, 0.0) > 0
        }

    columns = []
    for cost in ("bytes_up", "bytes_down", "flops", "seconds"):
        columns += _cost(comparison.rows, cost, "", lambda row: prices[row.label], factors)
    return _table("Cost of a round", comparison, looks, columns) if columns else ""


def hyperparameters_table(comparison: Comparison, looks: Sequence[Look]) -> str:
    """What each algorithm was run with; '' if nothing is known."""
    given = [curve.hyperparameters for curve in comparison.curves]
    shared = [name for name in given[0] if all(name in each for each in given)]
    columns = []
    for name in shared:
        values = [each[name] for each in given]
        columns.append(Column(name, "", [escape(_plain(value)) for value in values], values))
    # One column for all that only some have: a table of gaps says less.
    others = [
        ", ".join(f"{name} = {_plain(value)}" for name, value in each.items() if name not in shared)
        for each in given
    ]
    if any(others):
        title = "Others" if shared else "Hyperparameters"
        cells = [escape(text) or _NOTHING for text in others]
        columns.append(Column(title, "", cells, [text or None for text in others], words=True))
    return _table("Hyperparameters", comparison, looks, columns) if columns else ""


def plain_table(name: str, lines: Sequence[Sequence[str]]) -> str:
    """Texts in lines, the first of which is the head; '' if there is none."""
    if not lines:
        return ""
    head, *rest = lines
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    rows = []
    for first, *others in rest:
        cells = "".join(f"<td>{escape(text) or _NOTHING}</td>" for text in others)
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{name}"><table aria-label="{name}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def factor_text(factor: float | None) -> str:
    """A factor with an arrow, as HTML: down is cheaper; '' where there is none to speak of."""
    if not factor:
        return ""
    times = max(factor, 1 / factor)
    if times < 1.005:
        return '<small class="same">1×</small>'
    size = f"{times:.2f}" if times < 1.995 else f"{times:.1f}" if times < 9.95 else f"{times:.0f}"
    word, arrow = ("less", "↓") if factor < 1 else ("more", "↑")
    return (
        f'<small class="{word}"><span aria-hidden="true">{arrow} {size}×</span>'
        f'<span class="unseen">{size} times {word}</span></small>'
    )


def interval_text(row: Row) -> str:
    """Half of the interval of the best accuracy, in percent; '' if it is not known."""
    return f"± {100 * row.half_width:.1f}" if np.isfinite(row.half_width) else ""


def _accuracy(row: Row) -> str:
    if not np.isfinite(row.best):
        return _NOTHING
    return f"{100 * row.best:.1f}<small>{interval_text(row)}</small>"


def _lead(row: Row) -> str:
    if row.lead is None:
        return ""
    mean, half = (100 * number for number in row.lead)
    text = f"{mean:+.1f}".replace("-", "\N{MINUS SIGN}") if abs(mean) >= 0.05 else "0.0"
    return text + (f"<small>± {half:.1f}</small>" if np.isfinite(half) else "")


def _cost(
    rows: Sequence[Row],
    cost: str,
    group: str,
    spent: Callable[[Row], Mapping[str, float]],
    factors: Callable[[Row], Mapping[str, float]] | None = None,
    bold: bool = False,
) -> list[Column]:
    """The column of a cost; none if no row has it."""
    values = [spent(row).get(cost) for row in rows]
    known = [value for value in values if value is not None]
    if not known:
        return []
    title, quantity = _COSTS[cost]
    unit = unit_of(quantity, known)
    cells = [
        _NOTHING
        if value is None
        else in_unit(value, unit) + factor_text(factors(row).get(cost) if factors else None)
        for row, value in zip(rows, values, strict=True)
    ]
    best = _winner(rows, values, min) if bold else None
    return [Column(title, unit.name, cells, values, group, best=best)]


def _winner(rows: Sequence[Row], values: Sequence[float | None], choose: Callable) -> int | None:
    """The row with the best value, of those in which nothing went wrong."""
    able = [i for i, row in enumerate(rows) if values[i] is not None and not row.troubles]
    return choose(able, key=lambda i: values[i]) if len(able) > 1 else None


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _table(
    name: str,
    comparison: Comparison,
    looks: Sequence[Look],
    columns: Sequence[Column],
    troubles: bool = False,
) -> str:
    """A table with a row for each algorithm; with what went wrong below its name, if asked."""
    grouped = any(column.group for column in columns)
    tall = ' rowspan="2"' if grouped else ""
    lines = [
        # One that is too wide scrolls, also by keyboard.
        f'<div class="wide" tabindex="0" role="group" aria-label="{name}">',
        f'<table class="sortable" aria-label="{name}"><thead><tr>',
        f'<th scope="col"{tall}><span>Algorithm</span></th>',
    ]
    for group, members in groupby(columns, lambda column: column.group):
        heads = [_heading(column, "" if group else tall) for column in members]
        over = f'<th scope="colgroup" class="group" colspan="{len(heads)}">{escape(group)}</th>'
        lines += [over] if group else heads
    if grouped:
        lines += ["</tr><tr>", *(_heading(column, "") for column in columns if column.group)]
    lines.append("</tr></thead><tbody>")
    for i, (row, look) in enumerate(zip(comparison.rows, looks, strict=True)):
        note = escape("; ".join(row.troubles)) if troubles else ""
        lines += [
            f'<tr data-of="{i}"><th scope="row" data-key="{escape(row.label.lower())}">',
            f"{swatch(look)} {escape(row.label)}{f'<small>{note}</small>' if note else ''}</th>",
            *(_cell(column, i) for column in columns),
            "</tr>",
        ]
    return "\n".join([*lines, "</tbody></table></div>"])


def _heading(column: Column, tall: str) -> str:
    first = "descending" if column.descending else "ascending"
    unit = f"<small>{column.unit}</small>" if column.unit else ""
    text = f"<span>{escape(column.heading)}</span>{unit}"
    kind = ' class="words"' if column.words else ""
    return f'<th scope="col" data-first="{first}"{kind}{tall}>{text}</th>'


def _cell(column: Column, row: int) -> str:
    key = column.keys[row]
    sort = "" if key is None else f' data-key="{escape(str(key))}"'
    kind = ' class="words"' if column.words else ' class="best"' if row == column.best else ""
    return f"<td{sort}{kind}>{column.cells[row]}</td>"
