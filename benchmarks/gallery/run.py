"""Train every algorithm of the library on one small task, and draw docs/gallery.md's plots and tables.

The step sizes and the seeds of an algorithm are one program: a `vmap` of `run_rounds`.

Run:  python benchmarks/gallery/run.py             (trains all; seventeen minutes on two cores)
      python benchmarks/gallery/run.py --redraw    (from benchmarks/results/gallery.json, no training)
"""

import argparse
import json
import pathlib
import re
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from catalogue import COLOURS, ENTRIES, MODEL, REFERENCES, TASK, Entry
from page import costs, fill_page, generated_parts

import fedjax_opt as fo

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gallery.json"
PAGE = ROOT / "docs" / "gallery.md"
IMAGES = ROOT / "docs" / "images" / "gallery"
TRAINED = {**ENTRIES, **REFERENCES}


def load_data() -> tuple[fo.ClientData, Any]:
    """The clients' digits, and the test set."""
    train, test = fo.data.load_digits()
    owners = fo.data.dirichlet(train["y"], TASK["clients"], TASK["alpha"])
    return fo.ClientData.from_arrays(train, owners, TASK["clients"]), test


def user_accuracy(own: Any, data: fo.ClientData, test: Any) -> jax.Array:
    """The mean over clients of their own models' accuracy, had the test set their labels' proportions.

    Most clients have too few digits to spare some for a test. Each class is therefore tested on all test
    examples of it, and counts as often as the client has it.
    """
    labels = [np.bincount(data[client]["y"], minlength=10) for client in range(data.num_clients)]
    shares = np.array([counts / counts.sum() for counts in labels], np.float32)
    by_class = fo.ClientData.from_arrays(test, test["y"])

    def of_client(client):
        return fo.evaluate_clients(MODEL, own(client), by_class)["accuracy"]

    found = jax.vmap(of_client)(jnp.arange(data.num_clients, dtype=jnp.int32))
    return jnp.mean(jnp.sum(shares * found, axis=1))


def train(entry: Entry, data: fo.ClientData, test: Any) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies `[steps, seeds, evaluations]`, and whether all losses were finite `[steps]`."""
    digits = fo.Federation(
        MODEL, data, cohort=TASK["cohort_size"], local_steps=TASK["local_steps"],
        batch_size=TASK["batch_size"],
    )  # fmt: skip

    def accuracy(eta, algorithm, state):
        if entry.own is None:
            return fo.evaluate(MODEL, state.variables, test, batch_size=512)["accuracy"]
        return user_accuracy(entry.own_models(eta, algorithm, state, data), data, test)

    def one_run(eta, seed):
        algorithm, key = entry.make(eta), jax.random.key(seed)
        start = fo.first_state(algorithm, MODEL.init(key, data[0]), data.num_clients, key)
        judged = partial(accuracy, eta, algorithm)

        def some_rounds(state, _):
            every = TASK["evaluate_every"]
            run = fo.run_rounds(algorithm, digits, state, every, strategy="vmap")
            return run.state, (judged(run.state), jnp.all(run.history.finite))

        evaluations = TASK["rounds"] // TASK["evaluate_every"]
        _, (curve, finite) = jax.lax.scan(some_rounds, start, length=evaluations)
        return jnp.concatenate([judged(start)[None], curve]), jnp.all(finite)

    grid = jax.jit(jax.vmap(jax.vmap(one_run, in_axes=(None, 0)), in_axes=(0, None)))
    curves, finite = grid(jnp.array(entry.steps), jnp.arange(TASK["seeds"]))
    return np.asarray(curves, np.float64), np.array([all(seeds) for seeds in np.asarray(finite)])


def summarise(entry: Entry, curves: np.ndarray, finite: np.ndarray) -> dict[str, Any]:
    """The curve of the step with the highest mean accuracy in the last evaluations, over all seeds."""
    # A run that met a loss that is not finite stands still: its step is never chosen.
    scores = np.where(finite, curves[:, :, -TASK["last_evaluations"] :].mean(axis=(1, 2)), -1)
    best = int(np.argmax(scores))
    mean = curves[best].mean(axis=0)
    rounds = evaluated_rounds()
    return {
        "step": entry.steps[best],
        "accuracy_by_step": {
            f"{eta:g}": round(float(score), 4) if score >= 0 else None
            for eta, score in zip(entry.steps, scores, strict=True)
        },
        "accuracy": round(float(scores[best]), 4),
        "rounds_to_target": fo.metrics.rounds_to_target(rounds, mean, TASK["target"]),
        "mean": mean.round(4).tolist(),
        "min": curves[best].min(axis=0).round(4).tolist(),
        "max": curves[best].max(axis=0).round(4).tolist(),
        "costs": costs(entry.make(entry.steps[best])),
    }


def evaluated_rounds() -> list[int]:
    """After how many rounds the accuracy is measured."""
    return list(range(0, TASK["rounds"] + 1, TASK["evaluate_every"]))


def plot_title(key: str, results: dict[str, Any]) -> str:
    """The name and the step; also the title in the file's metadata, by which a test knows it."""
    eta = "η_s" if "server_learning_rate=eta" in (code := ENTRIES[key].code) else "η"
    eta = "η_s" if "server=" in code else eta
    return f"{ENTRIES[key].title}, {eta} = {results['algorithms'][key]['step']:g}"


def draw(results: dict[str, Any]) -> None:
    """One plot for each algorithm, with FedAvg in grey; the same axes in all of them.

    Personal models are also compared with what each client makes of FedAvg's by ten steps of its own.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "gallery"  # the same file for the same curves
    import matplotlib.pyplot as plt

    rounds, trained = results["rounds"], {**results["algorithms"], **results["references"]}
    IMAGES.mkdir(parents=True, exist_ok=True)
    for key, entry in ENTRIES.items():
        figure, axis = plt.subplots(figsize=(4.5, 2.6), layout="constrained", facecolor="white")
        by_users = entry.own is not None
        shown = {"fedavg-users" if by_users else "fedavg": "0.55", key: COLOURS[entry.family]}
        if by_users:
            tuned = REFERENCES["fedavg-ten"].title
            axis.plot(
                rounds, trained["fedavg-ten"]["mean"], "--", color="0.55", label=tuned, lw=1.2
            )
        for name, colour in shown.items():
            curve = trained[name]
            axis.fill_between(
                rounds, curve["min"], curve["max"], color=colour, alpha=0.2, linewidth=0
            )
            axis.plot(rounds, curve["mean"], color=colour, label=TRAINED[name].title, linewidth=1.6)
        judged = "user accuracy" if by_users else "test accuracy"
        axis.set(xlim=(0, rounds[-1]), ylim=(0.5, 1), xlabel="round", ylabel=judged)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(loc="best", edgecolor="none", framealpha=0.7)
        title = plot_title(key, results)
        axis.set_title(title.replace("η_s", r"$\eta_s$"), fontsize=10)
        figure.savefig(IMAGES / f"{key}.svg", metadata={"Title": title, "Date": None})
        plt.close(figure)


# ----------------------------------------------------------------------------------------------


def load_results() -> dict[str, Any]:
    """What was saved."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def as_json(results: dict[str, Any]) -> str:
    """Indented, with every list on one line."""
    text = json.dumps(results, indent=1)
    return re.sub(r"\[[^][]*\]", lambda m: " ".join(m[0].split()), text) + "\n"


def train_all(names: list[str]) -> dict[str, Any]:
    """Trains the named algorithms, and keeps what was saved of the others."""
    data, test = load_data()
    found = load_results() if RESULTS.exists() else {}
    saved = {**found.get("algorithms", {}), **found.get("references", {})}
    for name in names:
        start = time.perf_counter()
        saved[name] = summarise(TRAINED[name], *train(TRAINED[name], data, test))
        saved[name]["seconds"] = round(time.perf_counter() - start, 1)
        jax.clear_caches()
        print(
            f"{name:16} {saved[name]['seconds']:6.1f} s",
            saved[name]["accuracy_by_step"],
            flush=True,
        )
    return {
        "task": {**TASK, "data": str(data.summary()), "test_examples": len(test["y"])},
        "versions": {"fedjax_opt": fo.__version__, "jax": jax.__version__},
        "rounds": evaluated_rounds(),
        "algorithms": {name: saved[name] for name in ENTRIES if name in saved},
        "references": {name: saved[name] for name in REFERENCES if name in saved},
    }


def main() -> None:
    """Trains, saves, draws, and writes the page's tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--redraw", action="store_true", help="plots and tables of what was saved")
    parser.add_argument(
        "--only", nargs="+", choices=list(TRAINED), default=list(TRAINED), help="train these again"
    )
    options = parser.parse_args()
    if not options.redraw:
        results = train_all(options.only)
        RESULTS.write_text(as_json(results), encoding="utf-8")
    results = load_results()
    draw(results)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(fill_page(page, generated_parts(results)), encoding="utf-8")


if __name__ == "__main__":
    main()
