"""The table and the plot of the compression benchmark, from its saved numbers.

The table is printed and put into the README beside this file, between its two marks.

Run:  python benchmarks/compression/draw.py          (the plot needs matplotlib)
"""

import json
import pathlib
import sys

import jax
import numpy as np
from task import MODEL, TASK, Setting

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT), str(ROOT / "benchmarks")]
import pages  # noqa: E402

from benchmarks.papers import tables  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "compression.json"
README = pathlib.Path(__file__).with_name("README.md")
PLOT = ROOT / "docs" / "images" / "compression.svg"
NAMES = ("FedAvg", "CE-FedAvg", "CE-FedAvg, uncorrected")
# W = 20, C = 0.5, MNIST-2NN in tables 3.1 to 3.3, by (s, Y).
THESIS = {
    "FedAvg": {
        (0.6, 10): 3.8, (0.6, 2): 143.8, (0.9, 10): 4.8, (0.9, 2): 212.2, (0.95, 2): 338.0,
    },
    "CE-FedAvg": {
        (0.6, 10): 4.2, (0.6, 2): 77.6, (0.9, 10): 7.0, (0.9, 2): 104.6, (0.95, 2): 156.0,
    },
}  # fmt: skip
COLOURS = {"FedAvg": "#d55e00", "CE-FedAvg": "#0072b2"}
STYLES = {0.9: "-", 0.6: "--"}


def runs_of(saved, setting):
    """The runs of all seeds that are there."""
    start = f"{setting.name}/"
    return [run for name, run in saved["runs"].items() if name.startswith(start)]


def table(saved):
    """Rows of markdown, FedAvg above CE-FedAvg as in the thesis's tables."""
    heads = (
        "s", "Y", "algorithm", "learning rate", "rounds, mean (range)", "thesis", "kB per upload",
        "MB until then", "thesis, by its formula",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for sparsity, classes in ((0.6, 10), (0.6, 2), (0.9, 10), (0.9, 2), (0.95, 2), (None, 2)):
        for name in NAMES:
            runs = runs_of(saved, Setting(name, sparsity, classes))
            if runs:
                cells = _cells(name, sparsity, classes, runs)
                lines.append(f"| {sparsity or 0:g} | {classes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(name, sparsity, classes, runs):
    thesis = THESIS.get(name, {}).get((sparsity, classes))
    cells = [_shown_name(name, sparsity), f"{runs[0]['rate']:g}", _rounds(runs)]
    cells.append("" if thesis is None else f"{thesis:g}")
    cells.append(f"{np.mean([run['bytes_per_upload'] for run in runs]) / 1e3:.1f}")
    missed = any(run["rounds"] is None for run in runs)
    cells.append("" if missed else f"{np.mean([run['megabytes'] for run in runs]):.2f}")
    cells.append("" if thesis is None else f"{_formula_megabytes(name, sparsity, thesis):.2f}")
    return cells


def _shown_name(name, sparsity):
    return name.replace("CE-FedAvg", "FedAvg-Adam") if sparsity is None else name


def _rounds(runs):
    """The mean and the range; where a seed did not arrive, how many did."""
    reached = sorted(run["rounds"] for run in runs if run["rounds"] is not None)
    if len(reached) < len(runs):
        limit = max(run["limit"] for run in runs)
        late = f"NC within {limit} in {len(runs) - len(reached)} of {len(runs)}"
        return late + (f", else {', '.join(map(str, reached))}" if reached else "")
    return f"{np.mean(reached):.1f} ({reached[0]} to {reached[-1]})"


def _formula_megabytes(name, sparsity, rounds):
    """The thesis's rounds times the size that its (3.1) or (3.2) gives to an upload."""
    example = {"x": np.zeros((1, 784), np.float32), "y": np.zeros(1, np.int32)}
    shapes = jax.eval_shape(lambda: MODEL.init(jax.random.key(0), example))
    bits = tables.upload_bits(shapes, sparsity, moments=name == "CE-FedAvg")
    return rounds * bits / 8e6


def _progress(runs):
    """The best accuracy so far [seeds, rounds], up to the target: a run that has stopped is at it."""
    longest = max(len(run["accuracy"]) for run in runs)
    curves = []
    for run in runs:
        best = np.minimum(np.maximum.accumulate(run["accuracy"]), TASK["target"])
        curves.append(np.pad(best, (0, longest - len(best)), mode="edge"))
    return np.array(curves)


def draw(saved, path):
    """Accuracy over rounds and over what a client has uploaded, with the range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "compression"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, 2, figsize=(9, 3.6), sharey=True, layout="constrained", facecolor="white"
    )
    for name, colour in COLOURS.items():
        for sparsity, style in STYLES.items():
            runs = runs_of(saved, Setting(name, sparsity, 2))
            if not runs:
                continue
            curves = _progress(runs)
            rounds = np.arange(1, curves.shape[1] + 1)
            # Once the slowest seed is there, nothing more happens.
            arrived = np.flatnonzero(curves.min(0) >= TASK["target"])
            shown = slice(0, int(arrived[0]) + 1 if arrived.size else None)
            sent = np.mean([run["bytes_per_upload"] for run in runs]) / 1e6
            for panel, x in zip(panels, (rounds, sent * rounds), strict=True):
                panel.plot(
                    x[shown], curves.mean(0)[shown], style, color=colour, linewidth=1.6,
                    label=f"{name}, s = {sparsity:g}",
                )  # fmt: skip
                low, high = curves.min(0)[shown], curves.max(0)[shown]
                panel.fill_between(x[shown], low, high, color=colour, alpha=0.15, linewidth=0)
    for panel, label in zip(panels, ("round", "MB uploaded per client"), strict=True):
        panel.axhline(TASK["target"], color="0.5", linewidth=1, linestyle=(0, (1, 3)))
        panel.set(xlabel=label, ylim=(0.8, 0.975))
        panel.set_xlim(left=0)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("best test accuracy so far")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.savefig(path, metadata={"Title": "Compression", "Date": None})
    plt.close(figure)


def main():
    """Prints the table, puts it into the README, draws the plot."""
    saved = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = table(saved)
    print(rows)
    pages.fill(README, {"table": f"\n{rows}\n"})
    draw(saved, PLOT)


if __name__ == "__main__":
    main()
