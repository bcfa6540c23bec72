"""A panel as SVG. Colours and fonts are the page's; see style.css."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from fedjax_opt.experiments.report.panels import Line, Look, Panel
from fedjax_opt.experiments.report.scales import tick_text

WIDTH, HEIGHT = 580, 400
# The frame around the curves; the room to its right is for their names.
LEFT, TOP, RIGHT, BOTTOM = 44, 14, 468, 352
_SPACING = 12.5  # between the names of curves
_LONGEST = 15  # letters of a name that fit beside the frame
_MARKS = 7  # on a curve


def draw(panel: Panel, looks: Sequence[Look]) -> str:
    """The picture of a panel.

    Args:
      panel: what to draw.
      looks: of each curve of the report.
    """
    clip = f"{panel.name}-frame"
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-labelledby="{panel.name}-title {panel.name}-desc">',
        f'<title id="{panel.name}-title">{escape(f"{panel.title} against {panel.label}")}</title>',
        f'<desc id="{panel.name}-desc">{escape(_description(panel))}</desc>',
        f'<clipPath id="{clip}"><rect x="{LEFT}" y="{TOP - 3}" width="{RIGHT - LEFT + 3}"'
        f' height="{BOTTOM - TOP + 3}"/></clipPath>',
        *_axes(panel),
        f'<g clip-path="url(#{clip})">',
        *(
            _band(panel, line, looks[line.curve])
            for line in panel.lines
            if np.any(line.band.high > line.band.low)
        ),
        *(_curve(panel, line, looks[line.curve]) for line in panel.lines),
        "</g>",
        *_names(panel, looks),
        "</svg>",
    ]
    return "\n".join(parts)


def swatch(look: Look) -> str:
    """A piece of a curve, for legends."""
    return (
        f'<svg class="swatch" viewBox="0 0 34 12" aria-hidden="true"><g class="{style(look)}">'
        f'<path class="line" d="M1,6H33"/>{_mark(look.mark, 17.0, 6.0)}</g></svg>'
    )


def style(look: Look) -> str:
    """The classes of a look."""
    return f"{'ink' if look.colour is None else f'colour-{look.colour}'} dash-{look.dash}"


def _description(panel: Panel) -> str:
    """The picture in words: where each curve ends."""
    ends = (
        f"{line.label} ends at {tick_text(float(f'{line.band.mean[-1]:.3g}'))}"
        for line in panel.lines
    )
    return f"{len(panel.lines)} curves, means over seeds. {'; '.join(ends)}."


def _xy(panel: Panel, x, y) -> tuple[np.ndarray, np.ndarray]:
    """Pixels. What lies far outside is kept near the frame, which cuts it off."""
    across = LEFT + panel.x.place(x) * (RIGHT - LEFT)
    up = BOTTOM - np.clip(np.nan_to_num(panel.y.place(y), nan=-1.0), -1.0, 2.0) * (BOTTOM - TOP)
    return across, up


def _points(across, up) -> str:
    known = np.isfinite(across)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across[known], up[known], strict=True))


def _axes(panel: Panel) -> Iterable[str]:
    yield '<g class="axes">'
    level = None if panel.level is None else float(_xy(panel, panel.x.low, panel.level)[1])
    for tick in panel.y.ticks:
        y = float(_xy(panel, panel.x.low, tick)[1])
        yield f'<path class="grid" d="M{LEFT},{y:.1f}H{RIGHT}"/>'
        if level is None or abs(y - level) > _SPACING:
            yield f'<text class="y" x="{LEFT - 6}" y="{y:.1f}">{tick_text(tick)}</text>'
    for tick in panel.x.ticks:
        x = float(_xy(panel, tick, panel.y.low)[0])
        yield f'<path class="tick" d="M{x:.1f},{BOTTOM}v5"/>'
        yield f'<text class="x" x="{x:.1f}" y="{BOTTOM + 18}">{tick_text(tick)}</text>'
    yield f'<path class="rule" d="M{LEFT},{BOTTOM}H{RIGHT}"/>'
    middle = (LEFT + RIGHT) / 2
    yield f'<text class="x name" x="{middle}" y="{HEIGHT - 10}">{escape(panel.label)}</text>'
    if level is not None and TOP <= level <= BOTTOM:
        yield f'<path class="level" d="M{LEFT},{level:.1f}H{RIGHT}"/>'
        yield f'<text class="y level" x="{LEFT - 6}" y="{level:.1f}">{panel.level:.1f}</text>'
    yield "</g>"


def _band(panel: Panel, line: Line, look: Look) -> str:
    across, low = _xy(panel, line.x, line.band.low)
    high = _xy(panel, line.x, line.band.high)[1]
    points = _points(np.append(across, across[::-1]), np.append(low, high[::-1]))
    return f'<polygon class="band {style(look)}" data-curve="{line.curve}" points="{points}"/>'


def _curve(panel: Panel, line: Line, look: Look) -> str:
    across, up = _xy(panel, line.x, line.band.mean)
    mark, marks = look.mark or "circle" * (len(line.x) == 1), ""
    if mark:
        # Evenly along x, and from one curve to the next a little later, so that they do not meet.
        wanted = np.linspace(LEFT, np.nanmax(across), _MARKS + 1)[1:] - 4 * (line.curve % 5)
        nearest = np.unique([int(np.nanargmin(np.abs(across - x))) for x in wanted])
        marks = "".join(_mark(mark, float(across[i]), float(up[i])) for i in nearest)
    for x, y in line.crosses:
        x, y = (float(value) for value in _xy(panel, x, y))
        marks += f'<path class="cross" d="M{x - 4:.1f},{y - 4:.1f}l8,8m0,-8l-8,8"/>'
    points = _points(across, up)
    return (
        f'<g class="curve {style(look)}" data-curve="{line.curve}">'
        f'<polyline class="line" points="{points}"/>{marks}</g>'
    )


def _mark(mark: str, x: float, y: float) -> str:
    shapes = {
        "": "",
        "circle": f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="2.8"/>',
        "square": f'<path class="mark" d="M{x - 2.6:.1f},{y - 2.6:.1f}h5.2v5.2h-5.2z"/>',
        "triangle": f'<path class="mark" d="M{x - 3.2:.1f},{y + 2.4:.1f}h6.4l-3.2,-5.6z"/>',
    }
    return shapes[mark]


def _names(panel: Panel, looks: Sequence[Look]) -> Iterable[str]:
    """The curves' names beside the frame, from top to bottom as the curves end."""
    ends = []
    for line in panel.lines:
        across, up = _xy(panel, line.x, line.band.mean)
        ends.append((float(np.clip(up[-1], TOP, BOTTOM)), float(across[-1]), line))
    ends.sort(key=lambda end: end[0])
    heights = spread([end[0] for end in ends], _SPACING, TOP, BOTTOM)
    for (y, x, line), height in zip(ends, heights, strict=True):
        name = line.label if len(line.label) <= _LONGEST else line.label[: _LONGEST - 1] + "…"
        yield (
            f'<g class="end" data-curve="{line.curve}">'
            f'<path class="leader {style(looks[line.curve])}" d="M{x:.1f},{y:.1f}H{RIGHT + 4}'
            f'L{RIGHT + 11},{height:.1f}h3"/>'
            f'<text x="{RIGHT + 16}" y="{height:.1f}">{escape(name)}</text></g>'
        )


def spread(heights: Sequence[float], spacing: float, low: float, high: float) -> list[float]:
    """The nearest heights in the same order that are `spacing` apart, and within limits if they fit.

    Args:
      heights: increasing.
      spacing: between neighbours.
      low: the least height.
      high: the greatest.
    """
    # Without the spacing, they must not fall: blocks of equal heights, each the mean of its members.
    blocks: list[list[float]] = []
    for i, height in enumerate(heights):
        blocks.append([height - i * spacing])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [float(np.mean(block)) for block in blocks for _ in block]
    last = max(high - (len(level) - 1) * spacing, low)
    return [min(max(y, low), last) + i * spacing for i, y in enumerate(level)]
