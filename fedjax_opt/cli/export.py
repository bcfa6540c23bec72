"""`fedjax-opt export`: the model of a run, in a file that other programs read.

fedjax-opt export runs/compare-digits model.safetensors
    the best run by the criterion: of the best algorithm, at its best point
fedjax-opt export runs/compare-digits model.npz --algorithm scaffold --seed 1
    that of one algorithm and seed, at its best point

The ending is the form: .safetensors, .npz, .msgpack (Flax's), or none for a folder of orbax's. Beside it
lies a .json that says what run it is from.
"""

import argparse
import pathlib
from typing import Any

from fedjax_opt.experiments.comparison import read


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "export", help="the model of a run, in a file that other programs read",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("run_directory", type=pathlib.Path, metavar="RUN", help="a run directory")
    parser.add_argument("path", type=pathlib.Path, metavar="PATH", help="the file to write")
    parser.add_argument("--algorithm", metavar="LABEL", help="whose (default: the best one's)")
    parser.add_argument("--seed", type=int, metavar="SEED", help="which run (default: the best)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the model."""
    found = read(options.run_directory)
    print(f"Model: {found.export(options.path, options.algorithm, options.seed)}")
    return 0
