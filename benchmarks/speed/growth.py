"""How a round's time grows: with the population, the cohort, K and the model; strategies; dispatch.

    python benchmarks/speed/growth.py --output benchmarks/results/speed_growth.json

One process, `run_rounds` with FedAvg, every core a device. The points of a section are interleaved, in
an order that rotates; the table gives medians, and the time relative to the section's first point.

    population  1e2 to 1e6 clients, of which W1 (token ids) and W2's MLP draw 22 and 20; in memory,
                clients own overlapping stretches of one pool of examples, so only their number grows
    mapped      the same W1 round through `simulate`, every client's examples its own, memory-mapped
    cohort      10 to 1,000 clients a round, W2's MLP, K=10
    steps       K from 1 to 100, W2's MLP, 20 clients
    model       MLPs of two hidden layers of 50 to 800 units, 20 clients
    strategy    scan, vmap, chunked and sharded, on W2's MLP (20 clients) and W5's CNN (4, K=5)
    balance     W5 with 4, 5 and 6 clients: what a cohort that does not divide evenly costs
    dispatch    1, 10 and 100 rounds of W1 in one call
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version

import common
import numpy as np

import fedjax_opt as fo

fo.use_cpu_devices()  # before JAX starts

import jax  # noqa: E402
import ours  # noqa: E402

W1, W2, W5 = (common.TASKS[name] for name in ("w1", "w2", "w5"))
W2 = dataclasses.replace(W2, clients=20)
POOL = 100  # clients whose examples a large population shares


def clients_of(task: common.Task, population: int, ids: bool = False) -> fo.ClientData:
    """Any number of clients on the examples of at most POOL: each begins somewhere in them."""
    made = dataclasses.replace(task, clients=min(population, POOL))
    data = fo.ClientData.from_list(common.client_data(made, ids))
    last = data.num_examples - task.examples
    offsets = np.random.default_rng(0).integers(last + 1, size=population).astype(np.int32)
    sizes = np.full(population, task.examples, np.int32)
    known = fo.core.Sizes.of(sizes)  # as `from_list` and its like find by themselves
    return fo.place(fo.ClientData(data.examples, offsets, sizes, known))


def contestant(task, data, ids=False, rounds=1, strategy="sharded", calls=1):
    """A function that plays rounds and returns the seconds of each; compiled, and warm."""
    algorithm = fo.fedavg(fo.optimizers.sgd(task.learning_rate))
    model, first = ours.first_variables(task, ids)
    state, play = ours.start(task, algorithm, model, fo.place(data, strategy), first, strategy)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            result = play(state, rounds)
            jax.block_until_ready(result.state)
        return (time.perf_counter() - start) / (rounds * calls)

    run()
    return run


def population():
    for count in (10**2, 10**3, 10**4, 10**5, 10**6):
        yield f"w1-ids/{count}", contestant(W1, clients_of(W1, count, True), True, rounds=50)
        yield f"w2/{count}", contestant(W2, clients_of(W2, count), rounds=5)


def mapped():
    """Ten chunks of ten rounds by `simulate`; the first two are not counted."""
    kept = tempfile.TemporaryDirectory()  # until the section's last run, which holds on to it
    home = pathlib.Path(kept.name)
    algorithm = fo.fedavg(fo.optimizers.sgd(W1.learning_rate))
    per_client = 2 * W1.batch
    source = common.client_data(dataclasses.replace(W1, clients=POOL), ids=True)
    pool = {k: np.concatenate([c[k] for c in source]).astype(np.int16) for k in ("x", "y")}

    def examples(count):
        found = {}
        for name, rows in pool.items():
            path, total = home / f"{count}_{name}.npy", count * per_client
            stored = np.lib.format.open_memmap(path, "w+", np.int16, (total, *rows.shape[1:]))
            for first in range(0, total, len(rows)):
                stored[first : first + len(rows)] = rows[: total - first]
            stored.flush()
            found[name] = np.lib.format.open_memmap(path, "r")
        return found

    for count in (10**2, 10**3, 10**4, 10**5, 10**6):
        sizes = np.full(count, per_client, np.int32)
        data = fo.ClientData.from_sizes(examples(count), sizes)
        texts = fo.Federation(
            ours.model_of(W1, ids=True), data, cohort=W1.clients, local_steps=W1.local_steps,
            batch_size=W1.batch,
        )  # fmt: skip

        def run(texts=texts, kept=kept):
            times = []
            fo.simulate(
                algorithm,
                texts,
                100,
                evaluate_every=10,
                progress=False,
                extensions=[lambda chunk: times.append(time.perf_counter())],
            )
            return (times[-1] - times[1]) / 80

        run()
        yield f"w1-ids mapped/{count}", run


def cohort():
    data = clients_of(W2, 1000)
    for size in (10, 30, 100, 300, 1000):
        yield f"w2/{size}", contestant(dataclasses.replace(W2, clients=size), data)


def steps():
    data = clients_of(W2, 100)
    for count in (1, 3, 10, 30, 100):
        task = dataclasses.replace(W2, local_steps=count)
        yield f"w2/{count}", contestant(task, data, rounds=max(1, 10 // count))


def model():
    data = clients_of(W2, 100)
    for width in (50, 100, 200, 400, 800):
        task = dataclasses.replace(W2, hidden=(width, width))
        parameters = sum(value.size for value in common.first_params(task).values())
        yield f"mlp/{parameters}", contestant(task, data)


def strategy():
    few = dataclasses.replace(W5, clients=4, local_steps=5)
    kinds = {
        "sharded": "sharded",
        "sharded, vmap inside": fo.Strategy("sharded", inner="vmap"),
        "scan": "scan",
        "chunked by 2": fo.Strategy("chunked", size=2),
        "vmap": "vmap",
    }
    for kind, chosen in kinds.items():
        yield f"w2/{kind}", contestant(W2, clients_of(W2, 20), rounds=2, strategy=chosen)
        yield f"w5/{kind}", contestant(few, clients_of(few, 4), strategy=chosen)


def balance():
    for clients in (4, 5, 6):
        task = dataclasses.replace(W5, clients=clients)
        yield f"w5/{clients}", contestant(task, clients_of(task, clients))


def dispatch():
    for name, ids in (("w1", False), ("w1-ids", True)):
        data = clients_of(W1, W1.clients, ids)
        for rounds in (1, 10, 100):
            yield f"{name}/{rounds}", contestant(W1, data, ids, rounds, calls=100 // rounds)


SECTIONS = {
    function.__name__: function
    for function in (population, mapped, cohort, steps, model, strategy, balance, dispatch)
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, comma-separated")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(SECTIONS):
        parser.error(f"unknown section: {', '.join(sorted(unknown))}; of {', '.join(SECTIONS)}")
    report = {
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
        "sections": {},
    }
    if args.output and args.output.exists():  # Other sections are kept.
        report["sections"] = json.loads(args.output.read_text())["sections"]
    print("| section | point | seconds a round | least, greatest | relative |")
    print("| --- | --- | --- | --- | --- |")
    for section in args.only.split(","):
        print(f"compiling {section}", file=sys.stderr)
        runs = dict(SECTIONS[section]())
        names, seconds = list(runs), {name: [] for name in runs}
        for i in range(args.repeats):
            for name in names[i % len(names) :] + names[: i % len(names)]:
                seconds[name].append(runs[name]())
        rows, firsts = {}, {}
        for name, times in seconds.items():
            middle = statistics.median(times)
            first = firsts.setdefault(name.split("/")[0], middle)
            rows[name] = {
                "median": middle,
                "min": min(times),
                "max": max(times),
                "relative": middle / first,
                "repeats": args.repeats,
            }
            print(
                f"| {section} | {name} | {middle:.4g} | {min(times):.4g}, {max(times):.4g}"
                f" | {middle / first:.2f} |",
                flush=True,
            )
        report["sections"][section] = rows
        if args.output:
            args.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
