"""`fedjax-opt demo`: three algorithms on handwritten digits, split unevenly over many clients."""

import argparse
import pathlib
from typing import Any

import fedjax_opt as fo
from fedjax_opt.cli.files import check_plot_path
from fedjax_opt.cli.tables import megabytes, print_table
from fedjax_opt.training.progress import Progress

ALGORITHMS = {"FedAvg": "fedavg", "FedGBO": "fedgbo-sgdm", "SCAFFOLD": "scaffold"}


def add_parser(commands: Any) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "demo",
        help="train FedAvg, FedGBO and SCAFFOLD on the digits that come with the package",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=300, help="rounds of each algorithm")
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
    parser.add_argument("--seed", type=int, default=0, help="of the split and of the training")
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
    """Trains, prints the table and saves the plot."""
    check_plot_path(options.output)
    digits = fo.tasks.digits(options.clients, options.alpha, options.seed).replace(
        cohort=options.cohort_size,
        local_steps=options.local_steps,
        batch_size=options.batch_size,
    )
    data = digits.clients.summary()  # type: ignore[union-attr]
    print(f"Digits: {data}; {len(digits.test['y'])} test examples.")
    suggested = fo.tasks.suggested("digits")
    results = {}
    for name, short in ALGORITHMS.items():
        results[name] = fo.simulate(
            suggested.algorithm(short),
            digits,
            options.rounds,
            seed=options.seed,
            evaluate_every=min(5, max(options.rounds, 1)),
            progress=False,
            extensions=[Progress(f"{name:9}")],
        )
    print_table(
        ["algorithm", "accuracy", f"rounds to {options.target:.0%}", "MB up", "MB down", "seconds"],
        [_row(name, result, suggested, options) for name, result in results.items()],
    )
    print(
        "MB: sent by and to all clients until the target was reached, or until the end. Seconds"
        " include compilation."
    )
    return _save_plot(results, options)


def _mixture(alpha: float) -> str:
    return "one class each" if alpha == 0 else f"labels by Dirichlet {alpha:g}"


def _row(
    name: str, result: fo.Result, suggested: fo.tasks.Suggested, options: argparse.Namespace
) -> list[str]:
    accuracy = result.evaluations["accuracy"]
    reached = fo.metrics.rounds_to_target(result.evaluations["round"], accuracy, options.target)
    exchanged = (reached or options.rounds) * options.cohort_size
    cost = fo.costs.of(suggested.algorithm(ALGORITHMS[name]), result.variables)
    return [
        name,
        f"{accuracy[-1]:.1%}",
        str(reached) if reached else "not reached",
        megabytes(cost.bytes_up * exchanged),
        megabytes(cost.bytes_down * exchanged),
        f"{result.seconds:.1f}",
    ]


def _save_plot(results: dict[str, fo.Result], options: argparse.Namespace) -> int:
    try:
        from fedjax_opt.cli.plots import save_curves
    except ImportError:
        print("No plot: matplotlib is missing. Install it by pip install 'fedjax_opt[bench]'.")
        return 0
    save_curves(
        options.output,
        f"Digits on {options.clients} clients ({_mixture(options.alpha)});"
        f" {options.cohort_size} of them and K = {options.local_steps} in each round",
        {
            "test accuracy": {
                name: (result.evaluations["round"], result.evaluations["accuracy"])
                for name, result in results.items()
            },
            "training loss (smoothed)": {
                name: (result.history["round"], fo.metrics.smooth(result.history["loss"]))
                for name, result in results.items()
            },
        },
        levels={"test accuracy": options.target},
    )
    print(f"Plot: {options.output}")
    return 0
