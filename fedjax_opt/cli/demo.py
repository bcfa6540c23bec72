"""`fedjax-opt demo`: three algorithms on handwritten digits, split unevenly over many clients."""

import argparse
import pathlib
import sys
from typing import Any

import fedjax_opt as fo
from fedjax_opt.cli.files import check_plot_path

ALGORITHMS = {"FedAvg": "fedavg", "FedGBO": "fedgbo-sgdm", "SCAFFOLD": "scaffold"}


def add_parser(commands: Any) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "demo",
        help="train FedAvg, FedGBO and SCAFFOLD on the digits that come with the package",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=300, help="rounds of each run")
    parser.add_argument("--clients", type=int, default=100, help="clients that share the data")
    parser.add_argument("--cohort-size", type=int, default=5, help="clients in each round")
    parser.add_argument("--local-steps", type=int, default=20, help="steps of a client in a round")
    parser.add_argument("--batch-size", type=int, default=8, help="examples in a step")
    parser.add_argument(
        "--alpha",
        type=float,
        default=0.0,
        help="how alike the clients are: 0 for one class each, large for the same mixture",
    )
    parser.add_argument("--target", type=_share, default=0.9, help="test accuracy to reach")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each algorithm")
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("fedjax_opt_demo.png"),
        help="where to save the plot",
    )
    parser.set_defaults(run=run)


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must lie in [0, 1], got {text}")
    return value


def run(options: argparse.Namespace) -> int:
    """Compares the algorithms, prints the table and saves the plot."""
    check_plot_path(options.output)
    digits = fo.tasks.digits(options.clients, options.alpha).replace(
        cohort=options.cohort_size,
        local_steps=options.local_steps,
        batch_size=options.batch_size,
    )
    data = digits.clients.summary()  # type: ignore[union-attr]
    print(f"Digits: {data}; {len(digits.test['y'])} test examples.", flush=True)
    suggested = fo.tasks.suggested("digits")
    found = fo.compare(
        {name: suggested.algorithm(short) for name, short in ALGORITHMS.items()},
        digits,
        options.rounds,
        seeds=options.seeds,
        target=options.target,
        evaluate_every=min(5, max(options.rounds, 1)),
        progress=sys.stderr.isatty(),
    )
    print(found.table())
    try:
        found.plot(options.output)
        print(f"Plot: {options.output}")
    except ImportError as error:
        print(f"No plot. {error}")
    return 0
