"""`fedjax-opt list`: what can be named in a command or a file, and what each takes.

fedjax-opt list
    the kinds of things, and their names
fedjax-opt list algorithms
    one line each
fedjax-opt list ghbm
    what it takes, with its defaults, and the paper that it is from
"""

import argparse
import textwrap
from typing import Any

from fedjax_opt.cli.tables import WIDTH, print_paragraph
from fedjax_opt.experiments.names import KINDS, NUMBER, Named
from fedjax_opt.experiments.results import CRITERIA
from fedjax_opt.experiments.specs import unknown

_PLURALS = {f"{kind}s": known for kind, known in KINDS.items()}
# Of these a grid varies nothing.
_FIXED = ("task", "controller")


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "list",
        help="tasks, algorithms, wrappers, controllers and their parts, by name",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", metavar="KIND|NAME", help=f"{', '.join(_PLURALS)}, criteria, or a name"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Prints names, or what one of them takes."""
    if options.what is None:
        for kind, known in _PLURALS.items():
            print_paragraph(f"{kind}: {', '.join(known)}", rest="  ")
        print_paragraph(f"criteria: {', '.join(CRITERIA)}", rest="  ")
    elif options.what in _PLURALS:
        _definitions({name: named.help for name, named in _PLURALS[options.what].items()})
    elif options.what == "criteria":
        _definitions(CRITERIA)
    else:
        found = {
            kind: known[options.what] for kind, known in KINDS.items() if options.what in known
        }
        if not found:
            names = [*_PLURALS, "criteria", *(name for known in KINDS.values() for name in known)]
            raise unknown("name", options.what, names, "`fedjax-opt list` shows all.")
        for kind, named in found.items():
            _print(options.what, kind, named)
    return 0


def _print(name: str, kind: str, named: Named) -> None:
    print_paragraph(f"{name} ({kind}): {named.help}", rest="  ")
    _definitions(
        {
            key + ("" if parameter.required else f"={parameter.default}"): parameter.help
            + (
                " Can be swept in one program."
                if parameter.kind == NUMBER and kind not in _FIXED
                else ""
            )
            for key, parameter in named.parameters.items()
        }
    )
    if named.paper:
        print_paragraph(named.paper, rest="  ")


def _definitions(entries: dict[str, str]) -> None:
    """Names to the left, what they mean to the right."""
    left = max(map(len, entries), default=0) + 4
    for name, meaning in entries.items():
        first = f"  {name}".ljust(left)
        print(textwrap.fill(f"{first}{meaning}", WIDTH, subsequent_indent=" " * left))
