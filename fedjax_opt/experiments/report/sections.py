"""The parts of the page, as HTML. Every text that is not this file's own is escaped."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from fedjax_opt.experiments.report import svg, tables
from fedjax_opt.experiments.report.comparison import Comparison, Row
from fedjax_opt.experiments.report.curves import About
from fedjax_opt.experiments.report.panels import AXES, Look, Panel
from fedjax_opt.experiments.report.scales import in_unit, unit_of

_CHEAPEST = {
    "rounds": "Fewest rounds",
    "bytes": "Least traffic",
    "flops": "Fewest FLOPs",
    "seconds": "Least time",
}


def summary(about: About, comparison: Comparison) -> str:
    """Who is best at what, and what went wrong."""
    rows = [row for row in comparison.rows if np.isfinite(row.best) and not row.troubles]
    cards = []
    if rows:
        best = max(rows, key=lambda row: row.best)
        number = f"{100 * best.best:.1f} {tables.interval_text(best)}".strip()
        text = f"{number}%{_rivals(best, rows)}"
        cards.append(_card("Highest accuracy", best.label, text))
    cards += [_cheapest(comparison, axis, title) for axis, title in _CHEAPEST.items()]
    troubles = [
        f"{row.label}: {'; '.join(row.troubles)}." for row in comparison.rows if row.troubles
    ]
    return "\n".join(
        [
            f'<ul class="cards">{"".join(cards)}</ul>',
            _list("Not all seeds went well", troubles, "warning"),
            _list("Notes", about.notes, "notes"),
        ]
    )


def accuracy(
    about: About, comparison: Comparison, panels: Sequence[Panel], looks: Sequence[Look]
) -> str:
    """The switch of axes, the legend, and accuracy against each axis."""
    several = max(len(curve.seeds) for curve in comparison.curves) > 1
    text = "Lines are means over seeds; bands reach from the lowest seed to the highest."
    words = [text if several else "Each line is one seed."]
    if np.isfinite(comparison.target):
        whose = "the target" if about.target is not None else f"{comparison.baseline}'s best"
        words.append(f"Dotted: {escape(whose)}, {comparison.target:.1%}.")
    if about.smoothing:
        words.append(f"Each seed is smoothed by a moving average of decay {about.smoothing:g}.")
    if any(curve.ends for curve in comparison.curves):
        words.append("A cross is where a seed diverged; from there on its accuracy is held.")
    chips = "".join(
        f'<label><input type="checkbox" id="curve-{i}" data-of="{i}" checked autocomplete="off">'
        f"{svg.swatch(look)}<span>{escape(curve.label)}</span></label>"
        for i, (curve, look) in enumerate(zip(comparison.curves, looks, strict=True))
    )
    return "\n".join(
        [
            f"<p>{' '.join(words)}</p>",
            '<div class="controls">',
            _switch(panels),
            f'<fieldset class="legend"><legend>Algorithms</legend>{chips}</fieldset>',
            "</div>",
            pictures(panels, looks),
        ]
    )


def results(about: About, comparison: Comparison, looks: Sequence[Look]) -> str:
    """The table in the papers' layout, and how to read it."""
    base = escape(comparison.baseline)
    target = f"{base}'s best" if about.target is None else f"the target of {comparison.target:.1%}"
    paired = ""
    if any(row.lead and np.isfinite(row.lead.half_width) for row in comparison.rows):
        paired = (
            f" Lead: that minus {base}'s, seed by seed; an interval that holds 0 does not tell the two"
            " apart."
        )
    nobody = "" if any(row.to_match for row in comparison.rows) else " No algorithm did."
    return f"""<p>Max accuracy is the highest mean over seeds, ± half of its 95% interval (Student's t,
over the seeds in that round).{paired}
To the right: what was spent, by all clients together, when the mean first reached {target}, read
at the evaluated rounds.{nobody} <span class="less">↓ 2×</span> is half of what {base} spent,
<span class="more">↑ 2×</span> twice as much; – is never within the rounds that were run.
Bold is the best of a column, among those whose seeds all went well.</p>
{tables.results_table(comparison, looks)}"""


def pictures(panels: Sequence[Panel], looks: Sequence[Look]) -> str:
    """Panels side by side; '' if there are none."""
    figures = "\n".join(
        f'<figure data-axis="{panel.axis}" data-panel="{panel.name}">'
        f"<figcaption>{escape(panel.title)} against {AXES[panel.axis][1]}</figcaption>"
        f'<div class="canvas">{svg.draw(panel, looks)}</div></figure>'
        for panel in panels
    )
    return f'<div class="pictures">{figures}</div>' if panels else ""


def origin(about: About, comparison: Comparison) -> str:
    """Commands, versions and seeds: what it takes to have this page again."""
    seeds: dict[tuple[int, ...], list[str]] = {}
    for curve in comparison.curves:
        seeds.setdefault(curve.seeds, []).append(curve.label)
    lines = [
        ", ".join(map(str, some)) + f" ({', '.join(labels)})" * (len(seeds) > 1)
        for some, labels in seeds.items()
    ]
    commands = escape("\n".join(about.commands))
    return "\n".join(
        [
            f"<h3>Commands</h3><pre><code>{commands}</code></pre>" if commands else "",
            f"<h3>Versions</h3>{pairs(about.versions)}" if about.versions else "",
            f"<h3>Seeds</h3><p>{escape('; '.join(lines))}</p>",
        ]
    )


def paragraphs(text: str) -> str:
    """Text whose blank lines part paragraphs."""
    parts = (part.strip() for part in text.split("\n\n"))
    return "\n".join(f"<p>{escape(part)}</p>" for part in parts if part)


def pairs(values: Mapping[str, Any]) -> str:
    """Names with their values."""
    items = (
        f"<div><dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd></div>"
        for name, value in values.items()
    )
    return f"<dl>{''.join(items)}</dl>" if values else ""


def readings(panels: Sequence[Panel]) -> str:
    """The numbers under the pointer, as JSON that cannot end the element it stands in."""
    data = {
        panel.name: {
            "frame": [svg.LEFT, svg.TOP, svg.RIGHT, svg.BOTTOM, svg.WIDTH, svg.HEIGHT],
            "x": [panel.x.low, panel.x.high, panel.x.log],
            "unit": panel.unit.name or AXES[panel.axis][1],
            "percent": panel.name.startswith("accuracy_"),
            "lines": [
                {
                    "curve": line.curve,
                    "label": line.label,
                    "x": [float(f"{value:.5g}") for value in line.x],
                    "y": [float(f"{value:.5g}") for value in line.band.mean],
                }
                for line in panel.lines
            ],
        }
        for panel in panels
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _rivals(best: Row, rows: Sequence[Row]) -> str:
    """Says whose intervals reach the best one's: with few seeds, the best may not be told apart."""
    if not np.isfinite(best.half_width):
        return "; one seed, so no interval"
    if len(rows) == 1:
        return ""
    close = [
        row.label
        for row in rows
        if row is not best and row.best + row.half_width >= best.best - best.half_width
    ]
    if not close:
        return "; no other interval reaches it"
    names = close[0] if len(close) == 1 else f"{len(close)} others"
    return f"; its interval meets that of {escape(names)}"


def _cheapest(comparison: Comparison, axis: str, title: str) -> str:
    """The algorithm that matched the baseline at the least cost; '' if nobody has that price."""
    title = f"{title} to {comparison.goal}"
    rows = [row for row in comparison.rows if axis in row.to_match and not row.troubles]
    if not rows:
        return ""
    best = min(rows, key=lambda row: row.to_match[axis])
    if best.label == comparison.baseline:
        return _card(title, best.label, "none is cheaper")
    value = best.to_match[axis]
    unit = unit_of(axis, [value])
    text = f"{in_unit(value, unit)} {unit.name or 'rounds'} {tables.factor_text(best.factors.get(axis))}"
    return _card(title, best.label, text)


def _card(title: str, winner: str, text: str) -> str:
    """`text` is HTML."""
    return f"<li><h3>{escape(title)}</h3><strong>{escape(winner)}</strong><p>{text}</p></li>"


def _list(title: str, items: Sequence[str], kind: str) -> str:
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<div class="{kind}"><h3>{title}</h3><ul>{lines}</ul></div>' if items else ""


def _switch(panels: Sequence[Panel]) -> str:
    """Which of the panels is shown; all of them at first."""
    if len(panels) < 2:
        return ""
    choices = {"all": "all", **{panel.axis: AXES[panel.axis][1] for panel in panels}}
    radios = "".join(
        f'<label><input type="radio" name="axis" id="show-{axis}" autocomplete="off"'
        f"{' checked' if axis == 'all' else ''}><span>{words}</span></label>"
        for axis, words in choices.items()
    )
    return f'<fieldset class="switch"><legend>Against</legend>{radios}</fieldset>'
