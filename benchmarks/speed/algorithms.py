"""Time a round of every algorithm on W2, relative to FedAvg's, in one process and interleaved.

    python benchmarks/speed/algorithms.py --output benchmarks/results/algorithms.json

A repeat times every algorithm once, in an order that rotates, and divides by the mean of FedAvg's
times before and after it, so that a machine whose speed changes disturbs little. The table gives the
median of those ratios and their quartiles. Beside it stands the ratio of the matrix products, counted
from the gradients and evaluations that the algorithm needs: what is above it is elementwise work.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import common

import fedjax_opt as fo

fo.use_cpu_devices()  # before JAX starts

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import ours  # noqa: E402

from fedjax_opt import optimizers as opt  # noqa: E402


class Entry(NamedTuple):
    """An algorithm of the learning rate; what its K steps and its probe compute beyond K gradients.

    Attributes:
      make: learning rate -> algorithm.
      gradients: further gradients in each local step.
      evaluations: further evaluations (forward passes) in each local step.
      probe: minibatches whose gradient is taken before the local steps; -1 for all of a client's.
    """

    make: Callable[[float], fo.Algorithm]
    gradients: int = 0
    evaluations: int = 0
    probe: int = 0


ENTRIES = {
    "fedavg": Entry(lambda lr: fo.fedavg(opt.sgd(lr))),
    "dsgd": Entry(lambda lr: fo.dsgd(opt.sgd(lr))),
    "fedprox": Entry(lambda lr: fo.fedprox(opt.sgd(lr), 0.01)),
    "fedmax": Entry(lambda lr: fo.fedmax(opt.sgd(lr), 0.1)),
    "fedavgm": Entry(lambda lr: fo.fedavgm(opt.sgd(lr))),
    "fedadam": Entry(lambda lr: fo.fedadam(opt.sgd(lr), 0.01)),
    "fedyogi": Entry(lambda lr: fo.fedyogi(opt.sgd(lr), 0.01)),
    "fedadagrad": Entry(lambda lr: fo.fedadagrad(opt.sgd(lr), 0.01)),
    "mfl-sgdm": Entry(lambda lr: fo.mfl(opt.sgdm(lr))),
    "mfl-adam": Entry(lambda lr: fo.mfl(opt.adam(lr / 10))),
    "fedgbo-sgdm": Entry(lambda lr: fo.fedgbo(opt.sgdm(lr))),
    "fedgbo-rmsprop": Entry(lambda lr: fo.fedgbo(opt.rmsprop(lr / 10))),
    "fedgbo-adam": Entry(lambda lr: fo.fedgbo(opt.adam(lr / 10))),
    "mimelite-sgdm": Entry(lambda lr: fo.mimelite(opt.sgdm(lr)), probe=-1),
    "mimexlite-sgdm": Entry(lambda lr: fo.mimexlite(opt.sgdm(lr)), probe=1),
    "mime-sgdm": Entry(lambda lr: fo.mime(opt.sgdm(lr)), gradients=1, probe=-1),
    "mimemom": Entry(lambda lr: fo.mimemom(opt.sgd(lr / 10)), gradients=1, probe=-1),
    "fedacg": Entry(lambda lr: fo.fedacg(opt.sgd(lr), 0.85, 0.01)),
    "fedcm": Entry(lambda lr: fo.fedcm(opt.sgd(lr), 0.1)),
    "fedadc": Entry(lambda lr: fo.fedadc(opt.sgd(lr))),
    "ghbm": Entry(lambda lr: fo.ghbm(opt.sgd(lr), 5)),
    "ghbm_theory": Entry(lambda lr: fo.ghbm_theory(opt.sgd(lr), 5)),
    "ghbm_server": Entry(lambda lr: fo.ghbm_server(opt.sgd(lr), 5)),
    "localghbm": Entry(lambda lr: fo.localghbm(opt.sgd(lr))),
    "fedhbm": Entry(lambda lr: fo.fedhbm(opt.sgd(lr))),
    "scaffold-1": Entry(lambda lr: fo.scaffold(opt.sgd(lr), 1), probe=-1),
    "scaffold-2": Entry(lambda lr: fo.scaffold(opt.sgd(lr), 2)),
    "scaffold_m": Entry(lambda lr: fo.scaffold_m(opt.sgd(lr), 0.1)),
    "feddyn": Entry(lambda lr: fo.feddyn(opt.sgd(lr), 0.1)),
    "adabest": Entry(lambda lr: fo.adabest(opt.sgd(lr))),
    "feddc": Entry(lambda lr: fo.feddc(opt.sgd(lr))),
    "moon": Entry(lambda lr: fo.moon(opt.sgd(lr)), evaluations=2),
    "compressed_fedavg": Entry(lambda lr: fo.compressed_fedavg(opt.sgd(lr), 0.9)),
    "ce_fedavg": Entry(lambda lr: fo.ce_fedavg(opt.adam(lr / 10, initial_v=0.0), 0.9)),
    "independent": Entry(lambda lr: fo.independent(opt.sgd(lr))),
    "pfedme": Entry(lambda lr: fo.pfedme(opt.sgd(lr), 15.0, 0.01, 1)),
}


def forward(params, x):
    h = x
    for i, (w, b) in enumerate(params):
        features = jax.nn.relu(h) if i else h
        h = features @ w + b
    return h, features


def products(task: common.Task, entry: Entry) -> float:
    """The matrix products of a round, relative to FedAvg's."""
    sizes = [m * n for m, n in zip(task.layers, task.layers[1:], strict=False)]
    gradient = 4 * sum(sizes) + 2 * sum(sizes[1:])
    evaluation = 2 * sum(sizes)
    step = (1 + entry.gradients) * gradient + entry.evaluations * evaluation
    probe = task.examples // task.batch if entry.probe < 0 else entry.probe
    return (task.local_steps * step + probe * gradient) / (task.local_steps * gradient)


def contestant(task: common.Task, data: Any, model: fo.Model, name: str, rounds: int):
    """A function that plays a few rounds and returns their seconds; the first time it compiles."""
    algorithm = ENTRIES[name].make(task.learning_rate)
    state, play = ours.start(task, algorithm, model, data, model.init(jax.random.key(0), None))

    def run() -> float:
        # Always from the same state: not every algorithm bears this step size for long.
        start = time.perf_counter()
        result = jax.block_until_ready(play(state, rounds))
        seconds = time.perf_counter() - start
        if not bool(jnp.all(result.history.finite)):
            sys.exit(f"{name}: a loss was not finite: {result.history.loss}")
        return seconds / rounds

    return run


def problem() -> tuple[common.Task, Any, fo.Model]:
    """W2, its data and its model with features."""
    task = common.TASKS["w2"]
    data = fo.place(fo.ClientData.from_list(common.client_data(task)))
    first = ours.to_ours(common.first_params(task))
    return task, data, fo.models.classifier(lambda key, batch: first, forward, features=1)


def serve(name: str, rounds: int) -> None:
    """As a worker: one algorithm, timed when asked; see `common.serve`."""

    def setup():
        run = contestant(*problem(), name, rounds)
        compile_seconds = run() * rounds
        run()
        return {"compile_seconds": compile_seconds}, lambda: {"seconds": run() * rounds}

    common.serve(setup)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=5, help="rounds in a timed unit")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", choices=ENTRIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args.worker, args.rounds)
        return
    task, data, model = problem()
    chosen = [name.strip() for name in args.only.split(",") if name.strip()] or list(ENTRIES)
    unknown = set(chosen) - set(ENTRIES)
    if unknown:
        parser.error(f"--only must be among {', '.join(ENTRIES)}; got {', '.join(sorted(unknown))}")
    runs = {}
    for name in dict.fromkeys(["fedavg", *chosen]):
        print(f"compiling {name}", file=sys.stderr)
        runs[name] = contestant(task, data, model, name, args.rounds)
        runs[name]()
        runs[name]()
    names = list(runs)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(args.repeats):
        before = runs["fedavg"]()
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            taken = runs[name]()
            after = runs["fedavg"]()
            ratios[name].append(taken / ((before + after) / 2))
            seconds[name].append(taken)
            before = after
    rows = {}
    print("| algorithm | time of a round / FedAvg's | quartiles | matrix products / FedAvg's |")
    print("| --- | --- | --- | --- |")
    for name in names:
        low, middle, high = statistics.quantiles(ratios[name], n=4)
        expected = products(task, ENTRIES[name])
        print(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} | {expected:.2f} |")
        rows[name] = {
            "ratio": middle,
            "quartiles": [low, high],
            "products": expected,
            "median_seconds": statistics.median(seconds[name]),
        }
    if args.output:
        versions = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
        about = {
            "repeats": args.repeats,
            "rounds": args.rounds,
            "python": platform.python_version(),
        }
        args.output.write_text(
            json.dumps({**about, **versions, "algorithms": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
