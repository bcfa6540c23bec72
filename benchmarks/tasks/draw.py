"""The table and the plot of what `run.py` has saved.

python benchmarks/tasks/draw.py     # writes docs/images/tasks.svg and prints the table
"""

import pathlib

import numpy as np
import run

import fedjax_opt as fo

FIGURE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "images" / "tasks.svg"
LABELS = {"fedavg": "FedAvg", "fedgbo-sgdm": "FedGBO-SGDm", "scaffold": "SCAFFOLD"}
LOOKS = {
    "fedavg": ("#000000", "--"), "fedgbo-sgdm": ("#0072B2", "-"), "scaffold": ("#D55E00", "-."),
}  # fmt: skip


def runs_of(saved, task, algorithm):
    """The runs of all seeds."""
    return [
        found for key, found in saved["table"].items() if key.startswith(f"{task}/{algorithm}/")
    ]


def print_table(saved):
    print("| task | rounds | algorithm | step size | accuracy (three seeds: mean, all) | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for task, setting in run.TASKS.items():
        for algorithm, label in LABELS.items():
            runs = runs_of(saved, task, algorithm)
            if not runs:
                continue
            last = [found["accuracy"][-1] for found in runs]
            listed = ", ".join(
                f"{100 * value:.1f}" + ("" if "rounds done" in found["stopped"] else " †")
                for value, found in zip(last, runs, strict=True)
            )
            seconds = np.mean([found["seconds"] for found in runs])
            print(
                f"| `{task}` | {setting.rounds} | {label} | {runs[0]['rate']:g}"
                f" | **{100 * np.mean(last):.1f}** ({listed}) | {seconds:.0f} |"
            )
    print()
    for task, (target, _) in run.TARGETS.items():
        for algorithm, label in LABELS.items():
            longer = [
                found for key, found in saved["target"].items() if f"{task}/{algorithm}" in key
            ]
            rounds = [
                fo.metrics.rounds_to_target(found["round"], found["accuracy"], target)
                for found in longer or runs_of(saved, task, algorithm)
            ]
            print(f"{task}, {label}: rounds to {target:.0%}: {rounds}")
    print(
        "†: a loss was not finite before the last round; the accuracy is that of the last evaluation."
    )
    total = sum(found["seconds"] for found in saved["table"].values())
    print(f"All runs of the table together: {total / 60:.0f} minutes.")


def draw(saved):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tasks"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(run.TASKS), figsize=(3.1 * len(run.TASKS), 3.2), layout="constrained",
        facecolor="white",
    )  # fmt: skip
    for axis, task in zip(axes, run.TASKS, strict=True):
        for algorithm, label in LABELS.items():
            runs = runs_of(saved, task, algorithm)
            if not runs:
                continue
            colour, style = LOOKS[algorithm]
            rounds = max((found["round"] for found in runs), key=len)
            accuracy = np.full((len(runs), len(rounds)), np.nan)  # where a run has diverged
            for row, found in zip(accuracy, runs, strict=True):
                row[: len(found["accuracy"])] = found["accuracy"]
            axis.plot(rounds, np.nanmean(accuracy, 0), color=colour, linestyle=style, label=label)
            low, high = np.nanmin(accuracy, 0), np.nanmax(accuracy, 0)
            axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        if task in run.TARGETS:
            axis.axhline(run.TARGETS[task][0], color="0.5", linewidth=1, linestyle=(0, (1, 3)))
        axis.set_title(task, fontsize=10)
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(fontsize=8, edgecolor="none")
    figure.savefig(FIGURE, metadata={"Title": "Tasks", "Date": None})
    plt.close(figure)


if __name__ == "__main__":
    results = run.load()
    print_table(results)
    draw(results)
