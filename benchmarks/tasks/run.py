"""Train FedAvg, FedGBO-SGDm and SCAFFOLD on real data: accuracy after a stated number of rounds.

    python benchmarks/tasks/run.py      # all tasks, three seeds; then benchmarks/tasks/draw.py
    python benchmarks/tasks/run.py --only activity --part search

Data sets are fetched once (see `fedjax-opt data`). Results are saved after every run, and what is saved
is not run again. The part 'search' tries the step sizes of a setting on another seed for fewer rounds;
those with the highest accuracy are what the part 'table' uses, and what `fedjax_opt.tasks` suggests.
The part 'target' goes on with FedAvg until a test accuracy is reached.
"""

import argparse
import json
import pathlib
import time
from typing import Any, NamedTuple

import numpy as np

import fedjax_opt as fo

fo.use_cpu_devices()  # before JAX starts

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results" / "tasks.json"
PARTS = ("search", "table", "target")
SEEDS = (0, 1, 2)
SEARCH_SEED = 100
TARGETS = {"mnist_shards": (0.97, 400)}  # an accuracy, and at most so many rounds


class Setting(NamedTuple):
    """How a task is trained here.

    Attributes:
      rounds: in the table.
      search_rounds: in the search.
      every: rounds between evaluations.
      tested: how many test examples are evaluated, the same in all runs.
      rates: the step sizes that are searched.
      options: arguments of the task.
      changes: fields that differ from the task's own, to run here in an hour.
    """

    rounds: int
    search_rounds: int
    every: int
    tested: int
    rates: tuple[float, ...]
    options: dict[str, Any]
    changes: dict[str, Any]


SMALL = {"local_steps": 10, "batch_size": 32}
TASKS = {
    "mnist_shards": Setting(200, 30, 5, 10_000, (0.1, 0.2, 0.4), {}, {}),
    "fashion_mnist_dirichlet": Setting(40, 30, 5, 2_000, (0.03, 0.1, 0.3), {}, {}),
    "cifar10_dirichlet": Setting(60, 30, 10, 2_000, (0.03, 0.1, 0.3), {"model": "cnn"}, SMALL),
    "plays": Setting(25, 15, 5, 1_000, (1.0, 3.0), {}, {}),
    "activity": Setting(150, 60, 5, 10_000, (0.03, 0.1, 0.3), {}, {}),
}
ALGORITHMS = {
    "fedavg": lambda rate: fo.fedavg(fo.optimizers.sgd(rate)),
    "fedgbo-sgdm": lambda rate: fo.fedgbo(fo.optimizers.sgdm(rate, beta=0.9)),
    "scaffold": lambda rate: fo.scaffold(fo.optimizers.sgd(rate)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(TASKS), default=tuple(TASKS))
    parser.add_argument("--part", choices=PARTS, default="table")
    parser.add_argument("--directory", type=pathlib.Path, help="where data sets are kept")
    options = parser.parse_args()
    for name in options.only:
        setting = TASKS[name]
        for algorithm in ALGORITHMS:
            if options.part == "target":
                rounds = TARGETS.get(name, (0, 0))[1] if algorithm == "fedavg" else 0
                jobs = [(seed, None, rounds) for seed in SEEDS] if rounds else []
            elif options.part == "search":
                jobs = [(SEARCH_SEED, rate, setting.search_rounds) for rate in setting.rates]
            else:
                jobs = [(seed, None, setting.rounds) for seed in SEEDS]
            for seed, rate, rounds in jobs:
                key = f"{name}/{algorithm}/{seed}" + (f"/{rate}" if rate else "")
                if key not in load()[options.part]:
                    save(options.part, key, train(name, algorithm, seed, rate, rounds, options))
                found = load()[options.part][key]
                reached = found["accuracy"][-1:] or found["stopped"]
                print(f"{key}: {reached} in {found['seconds']:.0f} s", flush=True)


def train(name, algorithm, seed, rate, rounds, options):
    """One run: the rounds that were evaluated, the accuracy there, and the seconds of all of it."""
    setting = TASKS[name]
    seeded = {} if name in ("plays", "activity") else {"seed": seed}  # the others have no split
    task = fo.tasks.load(name, directory=options.directory, **seeded, **setting.options)
    rows = np.random.default_rng(0).permutation(len(task.test["y"]))[: setting.tested]
    task = task.replace(test={key: x[rows] for key, x in task.test.items()}, **setting.changes)
    chosen = ALGORITHMS[algorithm](rate or rates()[name][algorithm])
    extensions = [fo.stop_at("accuracy", TARGETS[name][0])] if options.part == "target" else []
    began = time.perf_counter()
    result = fo.simulate(
        chosen, task, rounds, seed=seed, evaluate_every=setting.every, on_nonfinite="stop",
        extensions=extensions,
    )  # fmt: skip
    # A run that diverges at once is not evaluated.
    evaluated = {name: result.evaluations.get(name, np.zeros(0)) for name in ("round", "accuracy")}
    return {
        "rate": rate or rates()[name][algorithm],
        "round": evaluated["round"].tolist(),
        "accuracy": np.round(evaluated["accuracy"].astype(float), 4).tolist(),
        "loss": np.round(result.history["loss"].astype(float), 4).tolist(),
        "seconds": round(time.perf_counter() - began, 1),
        "stopped": result.stopped,
    }


def rates():
    """The step size that did best in the search, by task and algorithm."""
    best: dict[str, dict[str, float]] = {}
    accuracy: dict[tuple[str, str], float] = {}
    for key, found in load()["search"].items():
        name, algorithm, _, rate = key.split("/")
        # The mean of the last evaluations: one of them alone is noisy.
        reached = float(np.mean(found["accuracy"][-3:] or [0.0]))
        if "rounds done" in found["stopped"] and reached > accuracy.get((name, algorithm), 0.0):
            accuracy[name, algorithm] = reached
            best.setdefault(name, {})[algorithm] = float(rate)
    return best


def load():
    """All that was measured."""
    if RESULTS.exists():
        return {part: {} for part in PARTS} | json.loads(RESULTS.read_text())
    return {part: {} for part in PARTS}


def save(part, key, found):
    """Adds one run."""
    everything = load()
    everything[part][key] = found
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
