"""The report's plots as files, through matplotlib."""

import pathlib
from collections.abc import Sequence

from fedjax_opt.experiments.report.comparison import compare
from fedjax_opt.experiments.report.curves import About, Curves
from fedjax_opt.experiments.report.panels import (
    DASHES,
    Look,
    Panel,
    accuracy_panels,
    looks,
    other_panels,
)
from fedjax_opt.experiments.report.scales import tick_text
from fedjax_opt.planning.figure import COLOURS

_MARKS = {"": None, "circle": "o", "square": "s", "triangle": "^"}
_WIDTH = 1.6  # of a line, in points


def save_plots(
    directory: str | pathlib.Path,
    about: About,
    curves: Sequence[Curves],
    formats: Sequence[str] = ("png", "pdf"),
) -> list[pathlib.Path]:
    """Saves every plot of the report as a file of its own, for papers and slides.

    It needs matplotlib (the extra 'bench').

    Args:
      directory: where to; it is made if it is missing.
      about: as for `write_report`.
      curves: as for `write_report`.
      formats: the files' endings, of those that matplotlib can write.

    Returns:
      The files: accuracy_rounds.png, accuracy_bytes.png, ..., and one for each other quantity.

    Example:
      >>> import tempfile
      >>> from fedjax_opt.experiments.report import About, Curves, save_plots
      >>> curve = Curves("FedAvg", {}, (0,), [10, 20], [[0.1, 0.3]], loss=[[2.0, 1.5]])
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     [path.name for path in save_plots(folder, About("One"), [curve], formats=("pdf",))]
      ['accuracy_rounds.pdf', 'loss.pdf']
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "save_plots needs matplotlib: pip install 'fedjax_opt[bench]'. The page of write_report"
            " has the same plots, and needs nothing."
        ) from error

    comparison = compare(about, curves)
    styles = looks([curve.label for curve in comparison.curves], comparison.baseline)
    panels = accuracy_panels(about, comparison.curves, comparison.target)
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for panel in [*panels, *other_panels(comparison.curves)]:
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure.subplots(), panel, styles)
        for ending in formats:
            paths.append(directory / f"{panel.name}.{ending}")
            # Without a date, the same curves make the same file.
            metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
            figure.savefig(paths[-1], dpi=200, metadata=metadata)
    return paths


def _draw(axis, panel: Panel, styles: Sequence[Look]) -> None:
    handles = []
    for line in panel.lines:
        look = styles[line.curve]
        colour = "black" if look.colour is None else COLOURS[look.colour]
        width = _WIDTH * (1.4 if look.colour is None else 1.0)
        dashes = tuple(length / _WIDTH for length in DASHES[look.dash])
        axis.fill_between(
            line.x, line.band.low, line.band.high, color=colour, alpha=0.12, linewidth=0
        )
        handles += axis.plot(
            line.x,
            line.band.mean,
            color=colour,
            linewidth=width,
            linestyle=(0, dashes) if dashes else "-",
            marker=_MARKS[look.mark or "circle" * (len(line.x) == 1)],
            markevery=max(len(line.x) // 7, 1),
            markersize=4,
            markerfacecolor="white",
        )
        for x, y in line.crosses:
            axis.plot([x], [y], "x", color=colour, markersize=7, markeredgewidth=2)
    if panel.level is not None:
        axis.axhline(panel.level, color="0.3", linewidth=1, linestyle=(0, (1, 3)))
    for side, scale in (("x", panel.x), ("y", panel.y)):
        axis.set(**{f"{side}scale": "log" if scale.log else "linear"})
        axis.set(**{f"{side}lim": (scale.low, scale.high)})
        axis.set(**{f"{side}ticks": scale.ticks})
        axis.set(**{f"{side}ticklabels": [_plain(tick_text(tick)) for tick in scale.ticks]})
    axis.minorticks_off()
    axis.set_xlabel(_plain(panel.label))
    axis.set_ylabel(_plain(panel.title))
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    names = [_plain(line.label) for line in panel.lines]
    beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "handlelength": 3}
    axis.legend(handles, names, frameon=False, fontsize=8, **beside)


def _plain(text: str) -> str:
    """A text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")
