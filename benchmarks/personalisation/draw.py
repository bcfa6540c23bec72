"""Tables and plots of the personalisation benchmark, from its saved numbers.

It writes the tables of README.md, between `<!-- name -->` and `<!-- /name -->`, and draws
docs/images/personalisation.svg and docs/images/user_accuracy_by_step.svg.

Run:  python benchmarks/personalisation/draw.py
"""

import argparse
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import pages  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "personalisation.json"
PAGE = pathlib.Path(__file__).resolve().parent / "README.md"
# What run.py measures, in the order of the thesis's tables.
COLUMNS = {"plain": ("none", "all", "mu, sigma", "gamma, beta"), "noisy": ("none", "gamma, beta")}
LABELS = {
    "none": "nothing (FL)", "all": "μ, σ, γ, β", "mu, sigma": "μ, σ", "gamma, beta": "γ, β",
}  # fmt: skip
# Rounds of the thesis for 200 clients, half of them in each round; None: not within 500.
THESIS = {
    "plain": {
        "FedAvg": (99, 85, None, 29),
        "FedAdam": (85, 56, 109, 31),
        "FedAvg-Adam": (44, 17, 131, 9),
    },
    "noisy": {"FedAvg": (276, 50)},
}
COLOURS = {
    "none": "#000000", "all": "#009E73", "mu, sigma": "#D55E00", "gamma, beta": "#0072B2",
    "FedAvg, fine-tuned": "#CC79A7", "independent": "#E69F00", "Per-FedAvg": "#56B4E9",
    "pFedMe": "#7A3FB0",
}  # fmt: skip


def runs_of(saved, name):
    """The runs of all seeds of a row and column."""
    found = (saved["runs"].get(f"{name}/{seed}") for seed in range(100))
    return [run for run in found if run]


def rounds_text(runs):
    """The mean and the range over seeds; X if none reached the target in its rounds."""
    if not runs:
        return "-"
    reached = [run["rounds"] for run in runs if run["rounds"]]
    if not reached:
        return "X"
    mean = f"{np.mean(reached):.0f}"
    if len(reached) < len(runs):
        return f"X, {len(reached)} of {len(runs)}: {mean}"
    return f"{mean} ({min(reached)} to {max(reached)})"


def best_rates(saved, name):
    """The learning rates that the search chose."""
    found = saved["search"].get(name)
    return "-" if not found else " / ".join(f"{rate:g}" for rate in found[0]["rates"].values())


def rounds_table(saved, part):
    """In the shape of tables 4.2 and 4.3: ours, then the thesis's."""
    columns = COLUMNS[part]
    lines = [f"| private | {' | '.join(LABELS[column] for column in columns)} |"]
    lines.append("| --- |" + " --- |" * len(columns))
    for algorithm, theirs in THESIS[part].items():
        names = [f"{part}/{algorithm}/{column}" for column in columns]
        ours = [rounds_text(runs_of(saved, name)) for name in names]
        lines.append(f"| **{algorithm}** | {' | '.join(ours)} |")
        lines.append(f"| thesis | {' | '.join(str(r or 'X') for r in theirs)} |")
        lines.append(f"| rates | {' | '.join(best_rates(saved, name) for name in names)} |")
    return "\n".join(lines)


def rivals_table(saved):
    """Every way to personalise: rounds to the target, user accuracy at the end, the worst tenth."""
    names = [("FedAvg", "plain/FedAvg/none"), ("MTFL, γ, β private", "plain/FedAvg/gamma, beta")]
    names += [(n, f"rivals/{n}/") for n in COLOURS if f"rivals/{n}/" in saved["search"]]
    lines = ["| | rounds to 97% | at round 100 | worst tenth at the end | rates |"]
    lines.append("| --- |" + " --- |" * 4)
    for label, name in names:
        runs = runs_of(saved, name)
        if not runs:
            continue
        worst = np.mean([run["worst_decile"] for run in runs])
        end = min(run["every"] * len(run["user_accuracy"]) for run in runs)
        lines.append(
            f"| {label} | {rounds_text(runs)} | {accuracy_at(runs, 100)} | {worst:.1%} at {end} |"
            f" {best_rates(saved, name)} |"
        )
    return "\n".join(lines)


def accuracy_at(runs, number):
    """The mean over seeds after that many rounds; - if a run ended before."""
    if any(run["every"] * len(run["user_accuracy"]) < number for run in runs):
        return "-"
    return f"{np.mean([run['user_accuracy'][number // run['every'] - 1] for run in runs]):.1%}"


def pyplot(salt):
    """Matplotlib without a screen, whose files do not change from run to run."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = salt
    import matplotlib.pyplot as plt

    return plt


def band(axis, runs, label, colour):
    """The mean over seeds of the rounds that all have, between the lowest and the highest."""
    if not runs:
        return
    length = min(len(run["user_accuracy"]) for run in runs)
    curves = np.array([run["user_accuracy"][:length] for run in runs])
    rounds = runs[0]["every"] * np.arange(1, length + 1)
    axis.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.2, lw=0)
    axis.plot(rounds, curves.mean(axis=0), color=colour, label=label, lw=1.6)


def finish(plt, figure, axes, path, title):
    """Grids, and the file."""
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Title": title, "Date": None})
    plt.close(figure)
    print(f"drew {path}")


def draw_rounds(saved, folder):
    """User accuracy against rounds: what stays private on the left, other ways on the right."""
    plt = pyplot("personalisation")
    rivals = [n for n in COLOURS if runs_of(saved, f"rivals/{n}/")]
    figure, axes = plt.subplots(
        1, 1 + bool(rivals), figsize=(5.5 + 5 * bool(rivals), 4), layout="constrained", sharey=True,
        squeeze=False, facecolor="white",
    )  # fmt: skip
    left, right = axes[0, 0], axes[0, -1]
    for column in ("gamma, beta", "none", "all", "mu, sigma"):
        runs = runs_of(saved, f"plain/FedAvg/{column}")
        band(left, runs, LABELS[column], COLOURS[column])
    left.set(xlabel="rounds", ylabel="user accuracy, mean of 200 clients", ylim=(0.8, 1.0))
    left.set_title("FedAvg: what stays private", fontsize=10)
    if rivals:
        band(
            right, runs_of(saved, "plain/FedAvg/gamma, beta"), "MTFL, γ, β", COLOURS["gamma, beta"]
        )
        band(right, runs_of(saved, "plain/FedAvg/none"), "FedAvg", COLOURS["none"])
        for name in rivals:
            band(right, runs_of(saved, f"rivals/{name}/"), name, COLOURS[name])
        right.set(xlabel="rounds", xlim=(0, 105))
        right.set_title("Other ways to personalise", fontsize=10)
    for axis in axes[0]:
        axis.axhline(saved["task"]["target"], color="0.5", lw=1, linestyle=(0, (1, 3)))
        axis.legend(fontsize=8, loc="lower right", edgecolor="none", framealpha=0.7)
    finish(plt, figure, axes[0], folder / "personalisation.svg", "Personalisation")


def draw_steps(saved, folder):
    """The saw-tooth: up with every local step, down when the models are averaged."""
    if not saved["steps"]:
        return
    plt = pyplot("user_accuracy_by_step")
    figure, (whole, part) = plt.subplots(
        1, 2, figsize=(10.5, 4), layout="constrained", facecolor="white", width_ratios=(3, 2)
    )
    curves = {name: np.array(run["user_accuracy"]) for name, run in saved["steps"].items()}
    setting = saved["steps"]["none"]
    for private, curve in curves.items():
        steps = np.arange(curve.shape[1]) / (curve.shape[1] - 1)
        rounds = (np.arange(len(curve))[:, None] + steps).ravel()
        for axis in (whole, part):
            axis.plot(rounds, curve.ravel(), color=COLOURS[private], lw=1.2, label=LABELS[private])
        received = np.arange(len(curve)), curve[:, 0]
        for axis in (whole, part):
            axis.plot(*received, "o", color=COLOURS[private], ms=3)
    last = setting["rounds"]
    low = min(curve[-5:].min() for curve in curves.values())
    whole.set(
        xlabel=f"rounds of {setting['local_steps']} local steps",
        ylabel="user accuracy, mean of 200 clients",
        ylim=(0.5, 1.0),
    )
    part.set(xlabel="the last five rounds", xlim=(last - 5, last), ylim=(low - 0.005, 0.98))
    whole.legend(title="private", fontsize=8, title_fontsize=8, loc="lower right", edgecolor="none")
    whole.set_title("after each local step; dots: as received", fontsize=10)
    path = folder / "user_accuracy_by_step.svg"
    finish(plt, figure, (whole, part), path, "User accuracy by step")


def main():
    """Tables and plots."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    saved = json.loads(options.results.read_text(encoding="utf-8"))
    tables = {part: rounds_table(saved, part) for part in THESIS}
    tables["rivals"] = rivals_table(saved)
    for table in tables.values():
        print(table, end="\n\n")
    pages.fill(PAGE, tables)
    draw_rounds(saved, options.output)
    draw_steps(saved, options.output)


if __name__ == "__main__":
    main()
