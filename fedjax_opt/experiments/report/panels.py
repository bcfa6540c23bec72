"""What is drawn, as plain numbers: every picture of the report starts here, on the page or in a file."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_opt.experiments.report.curves import About
from fedjax_opt.experiments.report.measured import Band, Measured
from fedjax_opt.experiments.report.scales import Scale, Unit, linear, logarithmic, unit_of
from fedjax_opt.planning.figure import COLOURS

# Axis -> its title, and the words for it in a heading.
AXES = {
    "rounds": ("communication rounds", "rounds"),
    "bytes": ("bytes exchanged, up and down", "bytes"),
    "flops": ("operations of all clients", "FLOPs"),
    "seconds": ("simulated time", "simulated time"),
}
# Lengths of strokes and gaps. With the marks, a line is known without its colour.
DASHES = ((), (7, 3), (2, 2.5), (9, 3, 2, 3), (14, 3), (5, 2, 1.5, 2, 1.5, 2))
MARKS = ("", "circle", "square", "triangle")
_MOST_POINTS = 500  # of a curve: more than a screen has pixels for
# Quantity -> what it is called; others by their names.
_TITLES = {
    "client_distance": "distance between clients (mean 1 - cos)",
    "client_update_norm": "length of a client's update",
    "perturbation_norm": "what local steps change in the gradient",
    "momentum_deviation": "momentum's deviation from the gradient",
    "upload_bytes": "upload of a client in a round (bytes)",
}


class Look(NamedTuple):
    """How a curve is told from others.

    Attributes:
      colour: of `COLOURS`; None for the ink of text.
      dash: of `DASHES`.
      mark: one of `MARKS`.
    """

    colour: int | None
    dash: int
    mark: str


class Line(NamedTuple):
    """A curve in a panel, in the panel's units; `crosses` are where its seeds diverged."""

    curve: int
    label: str
    x: np.ndarray
    band: Band
    crosses: list[tuple[float, float]]


class Panel(NamedTuple):
    """A picture.

    Attributes:
      name: for files and anchors.
      title: what is along y.
      axis: what is along x, one of `AXES`.
      label: of the axis along x, with its unit.
      unit: along x.
      x: the axis along x.
      y: the axis along y.
      lines: the curves.
      level: a height to mark, if any.
    """

    name: str
    title: str
    axis: str
    label: str
    unit: Unit
    x: Scale
    y: Scale
    lines: list[Line]
    level: float | None = None


def looks(labels: Sequence[str], baseline: str) -> list[Look]:
    """A look for each curve: the baseline in the ink of text, the others by colour, dashes and marks."""
    found, others = [], 0
    for label in labels:
        if label == baseline:
            found.append(Look(None, 0, ""))
            continue
        turn, colour = divmod(others, len(COLOURS))
        found.append(Look(colour, (colour + turn) % len(DASHES), MARKS[turn % len(MARKS)]))
        others += 1
    return found


def accuracy_panels(about: About, curves: Sequence[Measured], target: float) -> list[Panel]:
    """Accuracy against each axis that any curve has a price for; `target` is marked if it is finite."""
    y = _accuracy_scale(curves)
    level = 100 * target if np.isfinite(target) else None
    return [
        _panel(f"accuracy_{axis}", f"{about.metric} (%)", axis, "accuracy", curves, y, level)
        for axis in AXES
        if any(axis in curve.spent for curve in curves)
    ]


def other_panels(curves: Sequence[Measured]) -> list[Panel]:
    """The loss and the other quantities that were measured, over the rounds."""
    names = dict.fromkeys(name for curve in curves for name in curve.bands if name != "accuracy")
    panels = (
        _panel(name, _TITLES.get(name, name), "rounds", name, curves, _open_scale(curves, name))
        for name in names
    )
    return [panel for panel in panels if panel.lines]


def _panel(
    name: str,
    title: str,
    axis: str,
    quantity: str,
    curves: Sequence[Measured],
    y: Scale,
    level: float | None = None,
) -> Panel:
    unit = unit_of(axis, [max(float(c.spent[axis][-1]) for c in curves if axis in c.spent)])
    lines = [
        _line(i, curve, axis, quantity, unit)
        for i, curve in enumerate(curves)
        if axis in curve.spent and quantity in curve.bands
    ]
    lines = [line for line in lines if len(line.x)]
    x = _cost_scale(lines)
    label = AXES[axis][0] + f" ({unit.name})" * bool(unit.name) + ", log scale" * x.log
    title = f"{title[:1].upper()}{title[1:].replace('_', ' ')}"
    return Panel(name, title, axis, label, unit, x, y, lines, level)


def _line(index: int, curve: Measured, axis: str, quantity: str, unit: Unit) -> Line:
    x = curve.spent[axis] / unit.size
    size = 100.0 if quantity == "accuracy" else 1.0
    crosses = curve.ends if quantity == "accuracy" else []
    band = curve.bands[quantity]
    known = np.flatnonzero(np.isfinite(band.mean))
    shown = np.union1d(known[:: 1 + len(known) // _MOST_POINTS], known[-1:])
    return Line(
        index,
        curve.label,
        x[shown],
        Band(*(size * part[shown] for part in band)),
        [(float(x[i]), size * value) for i, value in crosses],
    )


def _cost_scale(lines: Sequence[Line]) -> Scale:
    """From nothing to the most that was spent; by factors where the least would be lost beside it."""
    ends = [float(line.x[-1]) for line in lines] or [1.0]
    if 0 < 8 * min(ends) < max(ends):
        return logarithmic(min(float(line.x[line.x > 0][0]) for line in lines), max(ends))
    return linear(0.0, max(ends))


def _accuracy_scale(curves: Sequence[Measured]) -> Scale:
    """One for all axes. In the first tenth of the rounds a curve may come from below: all do."""
    bands = [curve.bands["accuracy"] for curve in curves]
    later = [b.mean[c.rounds >= c.rounds[-1] / 10] for b, c in zip(bands, curves, strict=True)]
    low, _ = _range(later)
    _, high = _range([band.high for band in bands])
    room = 4 * (high - low)
    return linear(max(100 * low - room, 0.0), min(100 * high + room, 100.0), 8)


def _open_scale(curves: Sequence[Measured], quantity: str) -> Scale:
    """For what knows no bound: a curve that diverged leaves the picture, and flattens no other."""
    able = [curve for curve in curves if quantity in curve.bands]
    sound = [curve for curve in able if not curve.ends] or able
    low, high = _range([curve.bands[quantity].mean for curve in sound])
    if low > 0 and high > 30 * low:
        return logarithmic(low, high)
    room = 0.04 * (high - low)
    return linear(max(low - room, 0.0) if low >= 0 else low - room, high + room, 8)


def _range(parts: Sequence[np.ndarray]) -> tuple[float, float]:
    """The least and the greatest of what is finite; 0 and 1 if nothing is."""
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
