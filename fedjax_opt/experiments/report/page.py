"""The report as one page that needs nothing but itself: no network, and scripts only for comfort."""

import base64
import hashlib
import pathlib
from collections.abc import Sequence
from html import escape

from fedjax_opt.experiments.report import sections, tables
from fedjax_opt.experiments.report.comparison import compare
from fedjax_opt.experiments.report.curves import About, Curves
from fedjax_opt.experiments.report.panels import accuracy_panels, looks, other_panels
from fedjax_opt.experiments.report.theme import packaged, style_sheet


def write_report(path: str | pathlib.Path, about: About, curves: Sequence[Curves]) -> pathlib.Path:
    """Writes a comparison as one HTML page.

    Args:
      path: the file; its folder is made if it is missing.
      about: what to say besides the curves.
      curves: of each algorithm, in the order of the legend and the table.

    Returns:
      The path.

    Example:
      >>> import pathlib, tempfile
      >>> from fedjax_opt.experiments.report import About, Curves, per_round, write_report
      >>> rounds = [10, 20, 30]
      >>> prices = per_round(rounds, bytes_up=4e6, bytes_down=4e6, flops=1e9, seconds=30.0)
      >>> curves = [
      ...     Curves("FedAvg", {"learning_rate": 0.1}, (0, 1), rounds,
      ...            [[0.1, 0.3, 0.5], [0.2, 0.3, 0.4]], costs=prices),
      ...     Curves("FedACG", {"learning_rate": 0.1, "beta": 0.9}, (0, 1), rounds,
      ...            [[0.2, 0.5, 0.6], [0.3, 0.5, 0.7]], costs=prices),
      ... ]
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = write_report(pathlib.Path(folder) / "report.html", About("Two algorithms"), curves)
      ...     "FedACG" in path.read_text(encoding="utf-8")
      True
    """
    path = pathlib.Path(path)
    text = make_page(about, curves)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def make_page(about: About, curves: Sequence[Curves]) -> str:
    """The page as text; see `write_report`."""
    comparison = compare(about, curves)
    styles = looks([curve.label for curve in comparison.curves], comparison.baseline)
    pictures = accuracy_panels(about, comparison.curves, comparison.target)
    others = other_panels(comparison.curves)
    parts = {
        "In short": sections.summary(about, comparison),
        "Beside the paper": tables.plain_table("Beside the paper", about.beside),
        "Accuracy": sections.accuracy(about, comparison, pictures, styles),
        "Results": sections.results(about, comparison, styles),
        "Loss and drift": sections.pictures(others, styles),
        "Hyperparameters": tables.hyperparameters_table(comparison, styles),
        "Cost of a round": tables.prices_table(comparison, styles),
        "How it was made": sections.origin(about, comparison),
    }
    parts = {name: text for name, text in parts.items() if text}
    script = packaged("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Whatever a label may hold: no other script runs, and nothing is loaded.
    allowed = f"style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    title = escape(about.title)
    anchors = {name: name.lower().replace(" ", "-") for name in parts}
    body = "\n".join(
        f'<section id="{anchors[name]}"><h2>{name}</h2>\n{text}\n</section>'
        for name, text in parts.items()
    )
    links = "".join(f'<li><a href="#{anchor}">{name}</a></li>' for name, anchor in anchors.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; {allowed}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style_sheet(len(curves))}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<h1>{title}</h1>
{sections.paragraphs(about.task)}
{sections.pairs(about.facts)}
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main id="main" tabindex="-1">
{body}
</main>
<script type="application/json" id="panels">{sections.readings(pictures + others)}</script>
<script>{script}</script>
</body>
</html>
"""
