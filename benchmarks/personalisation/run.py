"""What stays at home: rounds until the users' own models are right 97 times in 100, on MNIST.

Four parts: `plain` is the MNIST column of the MTFL thesis's table 4.2 (200 clients of two shards, half
of them in each round, one epoch of minibatches of 20), `noisy` is FedAvg of its table 4.3, `rivals` are
other ways to personalise (figure 4.5), `steps` is the user accuracy after every local step (figure 4.4).
The learning rates of each row and column are searched with a seed of their own; then come the seeds that
count. Every finished run is saved at once, and a second start goes on where the first one ended.

Run:  python benchmarks/personalisation/run.py                  (several hours on two cores)
      python benchmarks/personalisation/run.py --hour           (FedAvg, nothing and gamma, beta private)
      python benchmarks/personalisation/run.py --quick          (the same, a few minutes, not saved)
      python benchmarks/personalisation/run.py --parts noisy steps
"""

import argparse
import functools
import json
import os
import pathlib
import re
import sys
import time

import fedjax_opt as fo

fo.use_cpu_devices()  # before JAX starts

import numpy as np  # noqa: E402
from methods import PRIVATE, RATES, RIVALS, build  # noqa: E402
from task import MODEL, TASK, clients  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import mnist  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "personalisation.json"
SEARCH_SEED = 100
# FedAvg with and without what is claimed of MTFL.
HOUR = [("FedAvg", "none"), ("FedAvg", "gamma, beta")]
# What is shown first comes first.
ROWS = {
    "plain": [(a, p) for a in ("FedAvg", "FedAvg-Adam", "FedAdam") for p in PRIVATE],
    "noisy": [("FedAvg", "gamma, beta"), ("FedAvg", "none")],
    "rivals": [(name, "") for name in RIVALS],
}
STEPS = {"rounds": 30, "local_steps": 10, "cohort_size": TASK["clients"], "seed": 0}


def train(method, data, seed, rounds, every=1, stop=True):
    """User accuracies every so many rounds, up to the target or for all rounds; the last in full."""
    users = fo.Federation(MODEL, data.train, cohort=TASK["cohort_size"], **method.training)
    state, curve, found = fo.place(fo.init_state(method.algorithm, users, seed)), [], None
    while every * len(curve) < rounds and not (stop and curve and curve[-1] >= TASK["target"]):
        run = fo.run_rounds(method.algorithm, users, state, every)
        if not bool(run.history.finite.all()):
            print(f"  not finite after round {every * len(curve)}", flush=True)
            break
        state = run.state
        own_models = method.own_models(state, data.train)
        found = fo.metrics.user_accuracy(MODEL, own_models, data.test).over(data.counted)
        curve.append(found.mean)
    return curve, found


def rounds_to_target(curve, every):
    """The first round at which the target was reached, or None."""
    rounds = range(every, every * len(curve) + 1, every)
    return fo.metrics.rounds_to_target(rounds, curve, TASK["target"])


def plan(part, options):
    """(rounds, rounds between evaluations, rounds of the search) of a part."""
    rounds = options.rounds
    return {"plain": (rounds, 1, rounds), "noisy": (2 * rounds, 1, 2 * rounds)}.get(
        part, (min(rounds, 100), 5, min(rounds, 50))
    )


def search(part, algorithm, private, data, options):
    """Every rate of the grid, the best first.

    Best is the soonest to the target, and a rate that is later than the best so far is given up. Among
    rivals, some of which begin near the target, it is the highest accuracy within the search's rounds.
    """
    _, every, limit = plan(part, options)
    tried, soonest = [], part != "rivals"
    for rates in RATES[algorithm]:
        method = build(algorithm, private, rates)
        curve, _ = train(method, data, SEARCH_SEED, limit, every, stop=soonest)
        reached = rounds_to_target(curve, every)
        best = round(max(curve, default=0.0), 4)
        tried.append({"rates": rates, "rounds": reached, "tried": every * len(curve), "best": best})
        limit = reached if soonest and reached else limit
        print(f"  {rates}: {reached or 'X'} (best {best})", flush=True)
    late = float("inf")
    return sorted(tried, key=lambda one: (soonest and (one["rounds"] or late), -one["best"]))


def measure(part, saved, arrays, options, save):
    """Searches and runs what is not yet saved."""
    rounds, every, _ = plan(part, options)
    for algorithm, private in options.rows or ROWS[part]:
        if options.only and algorithm not in options.only:
            continue
        name = f"{part}/{algorithm}/{private}"
        if name not in saved["search"]:
            print(f"{name}: search", flush=True)
            data = clients(arrays, SEARCH_SEED, noisy=part == "noisy")
            saved["search"][name] = search(part, algorithm, private, data, options)
            save()
        for seed in range(options.seeds):
            old = saved["runs"].get(f"{name}/{seed}")
            if old and (old["rounds"] or old["limit"] >= rounds):
                continue
            started = time.perf_counter()
            data = clients(arrays, seed, noisy=part == "noisy")
            method = build(algorithm, private, saved["search"][name][0]["rates"])
            # What is drawn goes on after the target.
            stop = part == "noisy" or algorithm in ("FedAdam", "FedAvg-Adam")
            curve, last = train(method, data, seed, rounds, every, stop)
            reached = rounds_to_target(curve, every)
            saved["runs"][f"{name}/{seed}"] = {
                "rounds": reached,
                "limit": rounds,
                "every": every,
                "user_accuracy": [round(value, 4) for value in curve],
                "spread": round(last.spread, 4),
                "worst_decile": round(last.worst_decile, 4),
                "seconds": round(time.perf_counter() - started, 1),
            }
            save()
            print(f"{name}/{seed}: {reached or 'X'} rounds; at the end {last}", flush=True)


def by_step(saved, arrays, save):
    """The mean user accuracy as the model is received and after each local step, [rounds, K + 1]."""
    data = clients(arrays, STEPS["seed"])
    users = fo.Federation(
        MODEL, data.train, cohort=STEPS["cohort_size"], local_steps=STEPS["local_steps"],
        batch_size=TASK["batch_size"], client_test=data.test,
    )  # fmt: skip
    for private in ("none", "gamma, beta"):
        if private in saved["steps"]:
            continue
        algorithm = build("FedAvg", private, RATES["FedAvg"][0]).algorithm
        state = fo.place(fo.init_state(algorithm, users, STEPS["seed"]))
        run = fo.run_rounds(algorithm, users, state, STEPS["rounds"], diagnostics=["user_metrics"])
        means = np.asarray(run.history.diagnostics["user_accuracy"]).mean(axis=1)
        saved["steps"][private] = STEPS | {"user_accuracy": means.round(4).tolist()}
        save()
        print(f"steps/{private}: last round {means[-1].round(3)}", flush=True)


def load(path):
    """What was saved before, or the places for it."""
    if not path.exists():
        return {"task": TASK, "search_seed": SEARCH_SEED, "search": {}, "runs": {}, "steps": {}}
    saved = json.loads(path.read_text(encoding="utf-8"))
    if saved["task"] != TASK:
        raise SystemExit(f"{path} holds another task: {saved['task']}. Move it away.")
    return saved


def save(saved, path):
    """Adds to what is in the file, which another part may have written to since."""
    found = load(path)
    for name in ("search", "runs", "steps"):
        found[name] |= saved[name]
    text = re.sub(r"\[[^][{]*\]", lambda m: " ".join(m[0].split()), json.dumps(found, indent=1))
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text + "\n", encoding="utf-8")  # every list of numbers on one line
    os.replace(fresh, path)


def main():
    """Measures what is missing, and saves it as it comes."""
    parts = (*ROWS, "steps")
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="where MNIST is, or is to be kept")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--only", nargs="+", metavar="ALGORITHM", choices=tuple(RATES))
    parser.add_argument("--rounds", type=int, default=150, help="at most; twice as many with noise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--hour", action="store_true", help="FedAvg, two columns: under an hour on two cores"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the same with two seeds; nothing is saved"
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    options.rows = None
    if options.hour or options.quick:
        options.rows, options.parts = HOUR, ["plain"]
    arrays = mnist.load(options.data)
    if options.quick:
        options.seeds = 2
        known = {f"plain/{a}/{p}": [{"rates": RATES[a][0]}] for a, p in options.rows}
        measure("plain", {"search": known, "runs": {}}, arrays, options, lambda: None)
        return
    saved = load(options.results)
    keep = functools.partial(save, saved, options.results)
    for part in options.parts:
        if part == "steps":
            by_step(saved, arrays, keep)
        else:
            measure(part, saved, arrays, options, keep)


if __name__ == "__main__":
    main()
