"""`fedjax-opt report`: one page, in one file, about one or several runs.

fedjax-opt report runs/compare-digits
    writes runs/compare-digits/report.html
fedjax-opt report runs/a runs/b --output both.html --plots plots
    two runs on one page, and the plots as PNG and PDF files
"""

import argparse
import pathlib
from typing import Any

from fedjax_opt.experiments.comparison import read, report


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="one self-contained page about one or several runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="DIR", help="run directories")
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FILE",
        help="the page (default: report.html in the first directory)",
    )  # fmt: skip
    parser.add_argument("--plots", type=pathlib.Path, metavar="DIR", help="PNG and PDF files, too")
    parser.add_argument("--title", help="of the page")
    parser.add_argument(
        "--baseline", metavar="LABEL", help="what the others are compared with (default: fedavg)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the page."""
    page = options.output or options.runs[0] / "report.html"
    runs = [read(path) for path in options.runs]
    print(f"Report: {report(runs, page, options.title, options.baseline, options.plots)}")
    return 0
