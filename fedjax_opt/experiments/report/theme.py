"""Colours of the curves on light and on dark ground, and the style sheet of a page."""

from importlib.resources import files

from fedjax_opt.experiments.report.panels import DASHES
from fedjax_opt.planning.figure import COLOURS

# The ground of each theme, and the least contrast of lines on it: 3 is what WCAG 2.1 asks of what is
# drawn (1.4.11); thin lines on dark ground need more to look the same.
GROUNDS = {"light": ("#ffffff", 3.0), "dark": ("#14171b", 4.5)}


def packaged(name: str) -> str:
    """The text of a file beside this one."""
    return files("fedjax_opt.experiments.report").joinpath(name).read_text(encoding="utf-8")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG, from 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def readable(colour: str, ground: str, least: float) -> str:
    """The colour, darker or lighter until its contrast to the ground is `least`."""
    away = 0 if _luminance(ground) > 0.5 else 255
    for percent in range(100):
        mixed = "#" + "".join(
            f"{round(part + (away - part) * percent / 100):02x}" for part in _parts(colour)
        )
        if contrast(mixed, ground) >= least:
            return mixed
    return colour


def style_sheet(curves: int) -> str:
    """The page's style sheet: style.css, the colours and dashes of curves, and the switches for them."""
    light, dark = (
        f"--ground:{ground};"
        + "".join(f"--colour-{i}:{readable(c, ground, least)};" for i, c in enumerate(COLOURS))
        for ground, least in GROUNDS.values()
    )
    rules = [
        packaged("style.css"),
        f":root{{{light}}}",
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}",
        *(f".colour-{i}{{--own:var(--colour-{i})}}" for i in range(len(COLOURS))),
        *(
            f".dash-{i} .line{{stroke-dasharray:{' '.join(map(str, dash))}}}"
            for i, dash in enumerate(DASHES)
            if dash
        ),
        # A curve is hidden by its box in the legend, with or without scripts.
        *(
            f'body:has(#curve-{i}:not(:checked)) [data-curve="{i}"]{{display:none}}'
            for i in range(curves)
        ),
    ]
    return "\n".join(rules)


def _parts(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _luminance(colour: str) -> float:
    parts = (part / 255 for part in _parts(colour))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
