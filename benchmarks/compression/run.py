"""CE-FedAvg against FedAvg with the same codec: rounds, and bytes, until MNIST is right 97 times in 100.

The part `main` is the entry W = 20, C = 0.5, Y = 2 of the CE-FedAvg thesis's tables 3.2 (s = 0.9) and
3.1 (s = 0.6) for the network MNIST-2NN; `iid` is the same for clients with examples of all classes
(Y = 10); `more` has s = 0.95 (table 3.3), both algorithms with nothing compressed, and Adam without its
bias correction. The learning rate of FedAvg is searched for each entry with a seed of its own, Adam's is
0.001. Then come the seeds that count: the split, the first weights and the cohorts follow from them.
Every finished run is saved at once, and a second start goes on where the first one ended.

Run:  python benchmarks/compression/run.py                  (several hours on two cores)
      python benchmarks/compression/run.py --hour           (s = 0.9, two classes per client)
      python benchmarks/compression/run.py --parts main iid
      python benchmarks/compression/run.py --quick          (30 rounds at s = 0.9, a minute, not saved)
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

import jax  # noqa: E402
import numpy as np  # noqa: E402
from task import ADAM_RATE, FEDAVG_RATES, MODEL, TASK, Setting, build, clients  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import mnist  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "compression.json"
SEARCH_SEED = 100
CHUNK = 10  # rounds in one program
BOTH = ("CE-FedAvg", "FedAvg")
HOUR = [Setting(name, 0.9, 2) for name in BOTH]
# What is shown first comes first.
SETTINGS = {
    "main": [*HOUR, *(Setting(name, 0.6, 2) for name in BOTH)],
    "iid": [Setting(name, sparsity, 10) for sparsity in (0.6, 0.9) for name in BOTH],
    "more": [
        *(Setting(name, 0.95, 2) for name in BOTH),
        *(Setting(name, None, 2) for name in BOTH),
        Setting("CE-FedAvg, uncorrected", 0.9, 2),
    ],
}


@jax.jit
def some_rounds(algorithm, users, state):
    """The state after CHUNK rounds, and of each: test accuracy, bytes per upload, finite or not."""

    def one_round(state, _):
        run = fo.run_rounds(algorithm, users, state, 1, diagnostics=["upload_bytes"])
        accuracy = fo.evaluate(MODEL, run.state.variables, users.test)["accuracy"]
        sent, finite = run.history.diagnostics["upload_bytes"][0], run.history.finite[0]
        return run.state, (accuracy, sent, finite)

    return jax.lax.scan(one_round, state, length=CHUNK)


def train(algorithm, data, test, seed, rounds):
    """Test accuracy and mean bytes per upload of every round, until the target or for all rounds."""
    users = fo.Federation(
        MODEL, data, cohort=TASK["cohort_size"], local_steps=fo.epochs(TASK["epochs"]),
        batch_size=TASK["batch_size"], test=test,
    )  # fmt: skip
    state, accuracy, sent = fo.place(fo.init_state(algorithm, users, seed)), [], []
    while len(accuracy) < rounds and max(accuracy, default=0.0) < TASK["target"]:
        state, found = some_rounds(algorithm, users, state)
        found_accuracy, found_sent, finite = map(np.asarray, found)
        finite = np.logical_and.accumulate(finite)  # the first round that is not ends the run
        accuracy += found_accuracy[finite].tolist()
        sent += found_sent[finite].tolist()
        if not finite.all():
            print(f"  not finite after round {len(accuracy)}", flush=True)
            break
    return accuracy[:rounds], sent[:rounds]


def first_at_target(accuracy):
    """The first round at which the target was reached, or None."""
    rounds = range(1, len(accuracy) + 1)
    return fo.metrics.rounds_to_target(rounds, accuracy, TASK["target"])


def search(setting, train_set, test, limit):
    """Learning rates of FedAvg, the soonest at the target first; a rate later than the best is given up.

    Where the best is the smallest or the largest, the next one by a factor of two is tried as well.
    """
    data, tried, waiting = clients(train_set, setting, SEARCH_SEED), [], list(FEDAVG_RATES)
    while waiting:
        rate = waiting.pop(0)
        accuracy, _ = train(build(setting, rate), data, test, SEARCH_SEED, limit)
        reached = first_at_target(accuracy)
        best = round(max(accuracy, default=0.0), 4)
        tried.append({"rate": rate, "rounds": reached, "tried": len(accuracy), "best": best})
        print(f"  {rate:g}: {reached or 'X'} (best {best})", flush=True)
        limit = reached or limit
        tried.sort(key=lambda one: (one["rounds"] or float("inf"), -one["best"]))
        if not waiting and len(tried) < len(FEDAVG_RATES) + 2:
            rates = [one["rate"] for one in tried]
            factor = {min(rates): 0.5, max(rates): 2.0}.get(rates[0])
            waiting = [] if factor is None else [rates[0] * factor]
    return tried


def measure(settings, saved, arrays, options, save):
    """Searches and runs what is not yet saved."""
    train_set, test = arrays
    test = fo.place(test)
    for setting in settings:
        name, rate = setting.name, ADAM_RATE
        if setting.algorithm == "FedAvg":
            if name not in saved["search"]:
                print(f"{name}: search", flush=True)
                saved["search"][name] = search(setting, train_set, test, options.rounds)
                save()
            rate = saved["search"][name][0]["rate"]
        for seed in range(options.seeds):
            old = saved["runs"].get(f"{name}/{seed}")
            if old and (old["rounds"] or old["limit"] >= options.rounds):
                continue
            started = time.perf_counter()
            data = clients(train_set, setting, seed)
            accuracy, sent = train(build(setting, rate), data, test, seed, options.rounds)
            reached = first_at_target(accuracy)
            saved["runs"][f"{name}/{seed}"] = {
                "rate": rate,
                "rounds": reached,
                "limit": options.rounds,
                "megabytes": round(sum(sent[:reached]) / 1e6, 3),
                "bytes_per_upload": round(float(np.mean(sent)), 1),
                "accuracy": [round(value, 4) for value in accuracy],
                "seconds": round(time.perf_counter() - started, 1),
            }
            save()
            found = saved["runs"][f"{name}/{seed}"]
            print(
                f"{name}/{seed}: {reached or 'X'} rounds (best {max(accuracy):.4f}),"
                f" {found['megabytes']} MB, {found['seconds']} s",
                flush=True,
            )


def load(path):
    """What was saved before, or the places for it."""
    if not path.exists():
        return {"task": TASK, "search_seed": SEARCH_SEED, "search": {}, "runs": {}}
    saved = json.loads(path.read_text(encoding="utf-8"))
    if saved["task"] != TASK:
        raise SystemExit(f"{path} holds another task: {saved['task']}. Move it away.")
    return saved


def save(saved, path):
    """Adds to what is in the file, which another part may have written to since."""
    found = load(path)
    for name in ("search", "runs"):
        found[name] |= saved[name]
    text = re.sub(r"\[[^][{]*\]", lambda m: " ".join(m[0].split()), json.dumps(found, indent=1))
    fresh = path.with_suffix(".tmp")
    fresh.write_text(text + "\n", encoding="utf-8")  # every list of numbers on one line
    os.replace(fresh, path)


def main():
    """Measures what is missing, and saves it as it comes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", help="where MNIST is, or is to be kept")
    parser.add_argument("--parts", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=400, help="at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--hour", action="store_true", help="s = 0.9: under an hour on two cores")
    parser.add_argument("--quick", action="store_true", help="30 rounds; nothing is saved")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args()
    arrays = mnist.load(options.data)
    if options.quick:
        options.rounds, options.seeds = 30, 1
        known = {setting.name: [{"rate": FEDAVG_RATES[0]}] for setting in HOUR}
        measure(HOUR, {"search": known, "runs": {}}, arrays, options, lambda: None)
        return
    saved = load(options.results)
    keep = functools.partial(save, saved, options.results)
    for settings in [HOUR] if options.hour else [SETTINGS[part] for part in options.parts]:
        measure(settings, saved, arrays, options, keep)


if __name__ == "__main__":
    main()
