"""Every picture of a comparison, by matplotlib: SVG in the page, and PNG or PDF files."""

import html
import io
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.experiments.report.units import Unit, unit_of
from fedjax_opt.experiments.results import Band, Measured, Row

# On light ground, on dark ground: each with a contrast of at least 3, and 4.5 where lines are thin.
COLOURS = (
    ("#0072b2", "#4aa3d8"), ("#d55e00", "#f08a3c"), ("#009e73", "#2fc396"), ("#cc79a7", "#e39ac1"),
    ("#c68900", "#e6b343"), ("#4b9dcb", "#8ccdf2"), ("#7a52a5", "#b494dc"), ("#7a7a00", "#bcbc4a"),
)  # fmt: skip
INK = ("#1b1f24", "#e7eaee")
# No series is dotted: nothing else looks like the line of the target, which is thin and grey.
DASHES = ((), (6, 2), (6, 2, 1.5, 2), (10, 3), (3, 1.5), (8, 2, 1.5, 2, 1.5, 2))
# Axis -> its title, and the words for it in a heading.
AXES = {
    "rounds": ("communication rounds", "rounds"),
    "bytes": ("bytes exchanged, up and down", "bytes"),
    "flops": ("operations of all clients", "FLOPs"),
    "seconds": ("simulated time", "simulated time"),
}
_MOST_POINTS = 300  # of a curve
_WIDTH = 1.7  # of a line, in points
# Columns that are no curves of their own: they are costs, or stand in the tables.
_BOOKS = ("participations", "client_steps", "longest_steps", "bytes_up", "bytes_down", "flops")
_BOOKS += ("simulated_seconds", "upload_bytes", "first_loss", "update_norm", "learning_rate")
_TITLES = {
    "client_distance": "distance between clients (mean 1 - cos)",
    "client_update_norm": "length of a client's update",
    "perturbation_norm": "what local steps change in the gradient",
    "momentum_deviation": "momentum's deviation from the gradient",
}


class Look(NamedTuple):
    """How a curve is told from others: its colour on light and on dark ground, and its dashes."""

    light: str
    dark: str
    dash: tuple[float, ...]
    width: float = _WIDTH


class Panel(NamedTuple):
    """A picture: a quantity of every algorithm along an axis.

    Attributes:
      name: of its file.
      title: what is along y.
      axis: what is along x, one of `AXES`.
      quantity: a column of the rows.
    """

    name: str
    title: str
    axis: str
    quantity: str


def looks(rows: Sequence[Row], baseline: str) -> list[Look]:
    """A look for each curve: the baseline in the ink of text, the others by colour and dashes."""
    found, others = [], 0
    for row in rows:
        if row.label == baseline:
            found.append(Look(*INK, (), 1.4 * _WIDTH))
            continue
        turn, colour = divmod(others, len(COLOURS))
        found.append(Look(*COLOURS[colour], DASHES[(colour + turn) % len(DASHES)]))
        others += 1
    return found


def panels(comparison: Measured) -> tuple[list[Panel], list[Panel]]:
    """The metric against each axis that any row has a price for; and other quantities over rounds."""
    metric, rows = comparison.by.metric, comparison.rows
    title = f"{metric.replace('_', ' ')}{' (%)' if comparison.by.percent else ''}"
    first = [
        Panel(f"{metric}_{axis}", title, axis, metric)
        for axis in AXES
        if any(axis in row.spent for row in rows)
    ]
    names = dict.fromkeys(name for row in rows for name in row.bands)
    others = [
        Panel(name, _TITLES.get(name, name.replace("_", " ")), "rounds", name)
        for name in names
        if name not in (metric, *_BOOKS) and not name.startswith("train_")
        if any(np.isfinite(row.bands[name].mean).any() for row in rows if name in row.bands)
    ]
    return first, others


def draw(comparison: Measured, *panels: Panel, legend: bool = True) -> Any:
    """Panels side by side as a matplotlib figure; the extra 'report' has matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'fedjax_opt[report]'.") from error
    drawn = Figure(figsize=(5.6 * len(panels) + 0.8 * legend, 3.8), layout="constrained")
    FigureCanvasAgg(drawn)
    for axes, panel in zip(drawn.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, comparison, panel)
    lines = [line for line in axes.get_lines() if str(line.get_gid()).startswith("curve-")]
    if legend and lines:
        # Said by hand: matplotlib leaves out names that begin with '_'.
        names = [_plain(comparison.rows[int(str(line.get_gid())[6:])].label) for line in lines]
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handlelength": 3}
        axes.legend(lines, names, frameon=False, fontsize=8, **beside)
    return drawn


def _panel(axes: Any, comparison: Measured, panel: Panel) -> None:
    rows = comparison.rows
    ends = [float(row.spent[panel.axis][-1]) for row in rows if len(row.spent.get(panel.axis, ()))]
    unit = unit_of(panel.axis, [max(ends, default=1.0)])
    styles = looks(comparison.rows, comparison.baseline)
    for place, (row, look) in enumerate(zip(comparison.rows, styles, strict=True)):
        if panel.axis in row.spent and panel.quantity in row.bands:
            _draw(axes, comparison, panel, row, look, place, unit)
    _scale(axes, comparison, panel, ends, unit)
    axes.set_ylabel(_plain(panel.title[:1].upper() + panel.title[1:]))
    axes.grid(alpha=0.3)
    axes.tick_params(which="both", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw(
    axes: Any, comparison: Measured, panel: Panel, row: Row, look: Look, place: int, unit: Unit
) -> None:
    size = _size(comparison, panel)
    band = row.bands[panel.quantity]
    known = np.flatnonzero(np.isfinite(band.mean))
    if not len(known):
        return
    shown = np.union1d(known[:: 1 + len(known) // _MOST_POINTS], known[-1:])
    x = row.spent[panel.axis][shown] / unit.size
    mean, low, high = (size * part[shown] for part in band)
    if np.any(high > low):
        area = axes.fill_between(x, low, high, color=look.light, alpha=0.13, linewidth=0)
        area.set_gid(f"band-{place}")
    (line,) = axes.plot(
        x, mean, color=look.light, linewidth=look.width,
        linestyle=(0, look.dash) if look.dash else "-", marker="o" if len(x) == 1 else None,
    )  # fmt: skip
    line.set_gid(f"curve-{place}")
    if panel.quantity == comparison.by.metric:
        for index, value in row.ends:
            at = row.spent[panel.axis][index] / unit.size
            (cross,) = axes.plot([at], [size * value], "x", color=look.light, mew=2, ms=7)
            cross.set_gid(f"cross-{place}")


def _scale(
    axes: Any, comparison: Measured, panel: Panel, ends: Sequence[float], unit: Unit
) -> None:
    """Axes that hold every band; by factors where the least would be lost beside the most."""
    log = bool(ends) and 0 < 8 * min(ends) < max(ends)
    if log:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    name = AXES[panel.axis][0] + f" ({unit.name})" * bool(unit.name) + ", log scale" * log
    axes.set_xlabel(name)
    bands = [
        (row, row.bands[panel.quantity]) for row in comparison.rows if panel.quantity in row.bands
    ]
    # A loss that diverged leaves the picture, and flattens no other.
    sound = [band for row, band in bands if not row.ends] or [band for _, band in bands]
    values = np.concatenate([np.concatenate(Band(*band)) for band in sound])
    values = _size(comparison, panel) * values[np.isfinite(values)]
    metric = panel.quantity == comparison.by.metric
    if len(values) and values.min() > 0 and values.max() > 30 * values.min() and not metric:
        axes.set_yscale("log")
        axes.set_ylim(values.min() / 1.1, values.max() * 1.1)
    elif len(values) and values.max() > values.min():
        room = 0.04 * (values.max() - values.min())
        axes.set_ylim(values.min() - room, values.max() + room)
    level = _size(comparison, panel) * comparison.target
    if metric and axes.get_ylim()[0] <= level <= axes.get_ylim()[1]:
        axes.axhline(level, color="0.45", linewidth=0.9, zorder=1).set_gid("level")
        unit_text = "%" if comparison.by.percent else ""
        note = axes.annotate(
            f"{comparison.by.text(comparison.target)}{unit_text}", (0.01, level),
            xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
            ha="left", va="bottom", fontsize=8, color="0.35",
        )  # fmt: skip
        note.set_gid("level-text")


def _size(comparison: Measured, panel: Panel) -> float:
    """What values are multiplied with before they are drawn."""
    percent = panel.quantity == comparison.by.metric and comparison.by.percent
    return 100.0 if percent else 1.0


def svg(comparison: Measured, panel: Panel) -> str:
    """A panel for a page, whose style sheet colours it: by classes such as curve-3, band-3, level."""
    import matplotlib

    drawn, text = draw(comparison, panel, legend=False), io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": panel.name}):
        drawn.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    found = text.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.S)
    # An id is there once in a page, and it holds several pictures.
    found = re.sub(r'id="((?:curve|band|cross|level)[\w-]*)"', r'class="\1"', found)
    found = re.sub(r' id="[\w.]+_\d+"', "", found)
    found = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', r'<svg class="plot" viewBox="\1">', found)
    words = html.escape(_description(comparison, panel))
    return found.replace(">", f' role="img"><title>{words}</title>', 1)


def _description(comparison: Measured, panel: Panel) -> str:
    """The picture in words: where each curve ends."""
    ends = []
    for row in comparison.rows:
        mean = row.bands[panel.quantity].mean if panel.quantity in row.bands else np.empty(0)
        known = mean[np.isfinite(mean)]
        if len(known):
            value = _size(comparison, panel) * known[-1]
            ends.append(f"{row.label} ends at {value:.3g}")
    return f"{panel.title} against {AXES[panel.axis][1]}. {'; '.join(ends)}."


def save_plots(
    directory: str | os.PathLike[str], comparison: Measured, formats: Sequence[str] = ("png", "pdf")
) -> list[pathlib.Path]:
    """Saves every plot of a comparison as a file of its own, for papers and slides.

    Args:
      directory: where to; it is made if it is missing.
      comparison: of `results.measure`.
      formats: the files' endings, of those that matplotlib can write.

    Returns:
      The files: accuracy_rounds.png, accuracy_bytes.png, ..., and one for each other quantity.

    Example:
      >>> import tempfile
      >>> from fedjax_opt import experiments as ex
      >>> record = {"label": "FedAvg", "hyperparameters": {}, "seed": 0, "round": 10, "loss": 0.5}
      >>> found = ex.curves([record])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     [path.name for path in ex.save_plots(folder, ex.measure(found, ex.rule(found)), ["pdf"])]
      ['loss_rounds.pdf']
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    first, others = panels(comparison)
    for panel in [*first, *others]:
        drawn = draw(comparison, panel)
        for ending in formats:
            paths.append(directory / f"{panel.name}.{ending}")
            # Without a date, the same curves make the same file.
            metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
            drawn.savefig(paths[-1], dpi=200, metadata=metadata)
    return paths


def _plain(text: str) -> str:
    """A text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")
