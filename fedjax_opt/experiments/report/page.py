"""The report as one page that needs nothing but itself: no network, and scripts only for comfort."""

import base64
import csv
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.experiments.report import plots
from fedjax_opt.experiments.report.units import in_unit, unit_of
from fedjax_opt.experiments.results import Curves, Measured, Row, Rule, measure, rule

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_HEADINGS = {
    "rounds": "Rounds",
    "bytes_up": "Upload",
    "bytes_down": "Download",
    "bytes": "Up + down",
    "flops": "FLOPs",
    "seconds": "Time",
}
_CHEAPEST = {
    "rounds": "Fewest rounds",
    "bytes": "Least traffic",
    "flops": "Fewest FLOPs",
    "seconds": "Least time",
}


class About(NamedTuple):
    """What a report says besides the curves.

    Attributes:
      title: the page's.
      task: a description of the data, the split and the model; blank lines part paragraphs.
      facts: what holds for all runs, by name: clients, cohort, local steps, ...
      commands: the exact command lines.
      versions: of Python and of packages, by name.
      notes: what a reader should know, such as where a paper's ordering does not hold.
      baseline: the label that the others are measured against; None for the one called FedAvg, else
        the first.
      beside: what a paper reports beside what was measured, as lines of a table, its head first.
      differing: settings that differ between the runs, by name, with a value for each algorithm.
    """

    title: str
    task: str = ""
    facts: Mapping[str, Any] = _NOTHING
    commands: Sequence[str] = ()
    versions: Mapping[str, Any] = _NOTHING
    notes: Sequence[str] = ()
    baseline: str | None = None
    beside: Sequence[Sequence[str]] = ()
    differing: Mapping[str, Sequence[Any]] = _NOTHING


class Cell(NamedTuple):
    """A cell of a table: its text, a small line below it, and what kind of line that is."""

    text: str
    small: str = ""
    kind: str = ""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      heading: over it.
      unit: below the heading.
      cells: of each row.
      keys: what each row is sorted by; those with None come last.
      group: a heading over several columns.
      descending: whether the largest comes first when it is sorted.
      best: the row to set in bold.
      words: whether it holds text, which begins to the left.
    """

    heading: str
    unit: str
    cells: Sequence[Cell]
    keys: Sequence[Any]
    group: str = ""
    descending: bool = False
    best: int | None = None
    words: bool = False


def write_report(
    path: str | pathlib.Path, about: About, curves: Sequence[Curves], by: Rule | None = None
) -> pathlib.Path:
    """Writes a comparison as one HTML page, with all of its numbers as a CSV file beside it.

    It needs the extra 'report'.

    Args:
      path: the file; its folder is made if it is missing. The numbers are in results.csv beside a
        report.html, and in `<name>.csv` beside another page.
      about: what to say besides the curves.
      curves: of each algorithm, in the order of the legend and the table.
      by: the metric that is compared, its target and smoothing; see `results.rule`.

    Returns:
      The path.

    Example:
      >>> import pathlib, tempfile
      >>> from fedjax_opt import experiments as ex
      >>> records = [
      ...     {"label": label, "hyperparameters": {}, "seed": s, "round": r, "loss": 1 / (r + s)}
      ...     for label in ("FedAvg", "FedACG") for s in (1, 2, 3) for r in (10, 20)
      ... ]
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     page = ex.write_report(f"{folder}/report.html", ex.About("Two"), ex.curves(records))
      ...     "FedACG" in page.read_text(encoding="utf-8")
      True
    """
    path = pathlib.Path(path)
    text = make_page(about, curves, by or rule(curves))
    path.parent.mkdir(parents=True, exist_ok=True)
    name = "results" if path.stem == "report" else path.stem
    write_csv(path.with_name(f"{name}.csv"), curves)
    path.write_text(text, encoding="utf-8")
    return path


def write_csv(path: pathlib.Path, curves: Sequence[Curves]) -> None:
    """A line for each algorithm, seed and evaluation, with every column."""
    names = list(dict.fromkeys(name for one in curves for name in one.columns))
    points = list(dict.fromkeys(name for one in curves for name in one.hyperparameters))
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["label", *points, "seed", "round", *names])
        for one in curves:
            point = [one.hyperparameters.get(name, "") for name in points]
            for i, seed in enumerate(one.seeds):
                for j, played in enumerate(one.rounds):
                    values = (one.values(name)[i, j] for name in names)
                    shown = [repr(float(v)) if np.isfinite(v) else "" for v in values]
                    if any(shown):
                        lines.writerow([one.label, *point, seed, int(played), *shown])


def make_page(about: About, curves: Sequence[Curves], by: Rule) -> str:
    """The page as text; see `write_report`."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("A page needs jinja2: pip install 'fedjax_opt[report]'.") from error

    comparison = measure(curves, by, about.baseline)
    first, others = plots.panels(comparison)
    script = _packaged("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    styles = plots.looks(comparison.rows, comparison.baseline)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_packaged("page.html")).render(
        about=about,
        paragraphs=[part.strip() for part in about.task.split("\n\n") if part.strip()],
        comparison=comparison,
        rows=comparison.rows,
        looks=styles,
        metric=by.metric.replace("_", " "),
        unit="%" if by.percent else "",
        target=by.text(comparison.target) if np.isfinite(comparison.target) else "",
        cards=_cards(comparison),
        troubles=[f"{row.label}: {'; '.join(row.troubles)}." for row in comparison.rows if row.troubles],
        accuracy=[_picture(comparison, panel) for panel in first],
        others=[_picture(comparison, panel) for panel in others],
        axes=[(panel.axis, plots.AXES[panel.axis][1]) for panel in first],
        results=_heads(_results(comparison)),
        settings=_heads(_settings(about, comparison)),
        prices=_heads(_prices(comparison)),
        seeds=_seeds(comparison.rows),
        style=_packaged("style.css"),
        script=script,
        digest=digest,
    )  # fmt: skip


def _packaged(name: str) -> str:
    return files("fedjax_opt.experiments.report").joinpath(name).read_text(encoding="utf-8")


def _picture(comparison: Measured, panel: plots.Panel) -> dict[str, str]:
    title = f"{panel.title[:1].upper()}{panel.title[1:]} against {plots.AXES[panel.axis][1]}"
    return {"axis": panel.axis, "title": title, "svg": plots.svg(comparison, panel)}


def _heads(columns: Sequence[Column]) -> dict[str, Any]:
    """A table's columns, and those that stand under one heading together."""
    groups = [(name, list(own)) for name, own in groupby(columns, lambda column: column.group)]
    return {"columns": columns, "groups": groups, "grouped": any(name for name, _ in groups)}


def spread(row: Row, by: Rule) -> str:
    """How far the seeds' best values are apart: an interval, of two seeds both, of one nothing."""
    if len(row.at_best) == 2:
        return f"{by.text(min(row.at_best))} and {by.text(max(row.at_best))}"
    return f"± {by.text(row.half_width)}" if np.isfinite(row.half_width) else ""


def clearly_best(rows: Sequence[Row], by: Rule) -> int | None:
    """The row with the best value, if its interval and the next one's do not overlap."""
    able = [i for i, row in enumerate(rows) if np.isfinite(row.best) and not row.troubles]
    able.sort(key=lambda i: rows[i].best, reverse=by.maximise)
    if len(able) < 2:
        return None
    first, second = rows[able[0]], rows[able[1]]
    apart = abs(first.best - second.best) > first.half_width + second.half_width
    return able[0] if apart else None


def _cards(comparison: Measured) -> list[dict[str, str]]:
    """Who is best at what."""
    by = comparison.by
    rows = [row for row in comparison.rows if np.isfinite(row.best) and not row.troubles]
    cards = []
    if rows:
        choose = max if by.maximise else min
        top = choose(rows, key=lambda row: row.best)
        apart = spread(top, by)
        apart = f"({apart})" if " and " in apart else apart
        text = f"{by.text(top.best)}{'%' if by.percent else ''} {apart}".strip()
        title = f"{'Highest' if by.maximise else 'Lowest'} {by.metric.replace('_', ' ')}"
        cards.append(
            {"title": title, "winner": top.label, "text": f"{text}{_rivals(top, rows, by)}"}
        )
    for cost, title in _CHEAPEST.items():
        able = [row for row in comparison.rows if cost in row.to_match and not row.troubles]
        if not able:
            continue
        top = min(able, key=lambda row: row.to_match[cost])
        unit = unit_of(cost, [top.to_match[cost]])
        factor = _factor(top.factors.get(cost))
        text = f"{in_unit(top.to_match[cost], unit)} {unit.name or 'rounds'} {factor.small}"
        if top.label == comparison.baseline:
            text = "none is cheaper"
        cards.append({"title": f"{title} to {comparison.goal}", "winner": top.label, "text": text})
    return cards


def _rivals(top: Row, rows: Sequence[Row], by: Rule) -> str:
    """Says whose intervals reach the best one's: with few seeds, the best may not be told apart."""
    if not np.isfinite(top.half_width):
        return f"; {len(top.at_best)} seed{'s' * (len(top.at_best) > 1)}, so no interval"
    close = [
        row.label
        for row in rows
        if row is not top and not abs(row.best - top.best) > row.half_width + top.half_width
    ]
    if len(rows) == 1:
        return ""
    if not close:
        return "; no other interval reaches it"
    return f"; its interval meets that of {close[0] if len(close) == 1 else f'{len(close)} others'}"


def _results(comparison: Measured) -> list[Column]:
    """Best values, what they cost, and what it cost to match the baseline."""
    rows, by = comparison.rows, comparison.by
    keys = [row.best if np.isfinite(row.best) else None for row in rows]
    cells = [
        Cell(by.text(row.best), spread(row, by)) if np.isfinite(row.best) else Cell("–")
        for row in rows
    ]
    unit = "%" if by.percent else ""
    heading = f"{'Max' if by.maximise else 'Min'} {by.metric.replace('_', ' ')}"
    best = clearly_best(rows, by)
    columns = [Column(heading, unit, cells, keys, "", by.maximise, best)]
    if any(row.lead for row in rows):
        leads = [row.lead.mean if row.lead else None for row in rows]
        columns.append(
            Column(
                "Lead", "points" if unit else "", [_lead(row, by) for row in rows], leads, "", True
            )
        )
    for cost in ("rounds", "bytes_up", "flops"):
        columns += _cost(rows, cost, "To its own best", lambda row: row.to_best)
    for cost in ("rounds", "bytes_up", "bytes", "flops", "seconds"):
        columns += _cost(
            rows, cost, f"To {comparison.goal}", lambda row: row.to_match, lambda row: row.factors
        )
    return columns


def _lead(row: Row, by: Rule) -> Cell:
    if row.lead is None:
        return Cell("")
    sign = "+" if row.lead.mean >= 0 else "\N{MINUS SIGN}"
    half = row.lead.half_width
    small = f"± {by.text(half)}" if np.isfinite(half) else ""
    return Cell(f"{sign}{by.text(abs(row.lead.mean))}", small)


def _prices(comparison: Measured) -> list[Column]:
    """What a round costs in the mean; nothing if that is not known."""
    prices = {
        row.label: {
            cost: float(total[-1] / row.rounds[-1])
            for cost, total in row.spent.items()
            if cost != "rounds" and len(row.rounds)
        }
        for row in comparison.rows
    }
    reference = prices[comparison.baseline]

    def factors(row: Row) -> dict[str, float]:
        own = prices[row.label].items()
        return {cost: price / reference[cost] for cost, price in own if reference.get(cost, 0) > 0}

    columns: list[Column] = []
    for cost in ("bytes_up", "bytes_down", "flops", "seconds"):
        columns += _cost(comparison.rows, cost, "", lambda row: prices[row.label], factors)
    return columns


def _settings(about: About, comparison: Measured) -> list[Column]:
    """What each algorithm was run with, and settings that differ between runs."""
    given = [row.hyperparameters for row in comparison.rows]
    shared = [name for name in given[0] if all(name in each for each in given)]
    tables = {name: [each[name] for each in given] for name in shared} | dict(about.differing)
    columns = [
        Column(name, "", [Cell(_plain(value)) for value in values], _sortable(values))
        for name, values in tables.items()
    ]
    # One column for all that only some have: a table of gaps says less.
    others = [
        ", ".join(f"{name} = {_plain(value)}" for name, value in each.items() if name not in shared)
        for each in given
    ]
    if any(others):
        title = "Others" if shared else "Hyperparameters"
        keys = [text or None for text in others]
        columns.append(Column(title, "", [Cell(text or "–") for text in others], keys, words=True))
    return columns


def _sortable(values: Iterable[Any]) -> list[Any]:
    return [None if value is None else _plain(value) for value in values]


def _cost(
    rows: Sequence[Row],
    cost: str,
    group: str,
    spent: Callable[[Row], Mapping[str, float]],
    factors: Callable[[Row], Mapping[str, float]] = lambda row: {},
) -> list[Column]:
    """The column of a cost; none if no row has it."""
    values = [spent(row).get(cost) for row in rows]
    known = [value for value in values if value is not None]
    if not known:
        return []
    unit = unit_of(cost, known)
    cells = [
        Cell("–")
        if value is None
        else _factor(factors(row).get(cost))._replace(text=in_unit(value, unit))
        for row, value in zip(rows, values, strict=True)
    ]
    return [Column(_HEADINGS[cost], unit.name, cells, values, group)]


def _factor(factor: float | None) -> Cell:
    """A factor with an arrow: down is cheaper; nothing where there is none to speak of."""
    if not factor:
        return Cell("")
    times = max(factor, 1 / factor)
    if times < 1.005:
        return Cell("", "1×", "same")
    size = f"{times:.2f}" if times < 1.995 else f"{times:.1f}" if times < 9.95 else f"{times:.0f}"
    return Cell("", f"↓ {size}×", "less") if factor < 1 else Cell("", f"↑ {size}×", "more")


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _seeds(rows: Sequence[Row]) -> str:
    """Which seeds were run, and of which algorithms where that differs."""
    seeds: dict[tuple[int, ...], list[str]] = {}
    for row in rows:
        seeds.setdefault(row.seeds, []).append(row.label)
    return "; ".join(
        ", ".join(map(str, some)) + f" ({', '.join(labels)})" * (len(seeds) > 1)
        for some, labels in seeds.items()
    )
