"""The tables and the plot of what `run.py`, `growth.py` and `sweep.py` have saved.

python benchmarks/speed/draw.py     # writes docs/images/speed.svg and prints the tables
"""

import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
FIGURE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "images" / "speed.svg"
LABELS = {
    "ours": "fedjax_opt", "ours-ids": "fedjax_opt, token ids", "fedjax": "FedJAX 0.0.17",
    "torch": "PyTorch, one process", "torch-processes": "PyTorch, one process per core",
}  # fmt: skip
COLOURS = {
    "ours": "#0072B2", "ours-ids": "#56B4E9", "fedjax": "#D55E00", "torch": "#999999",
    "torch-processes": "#000000",
}  # fmt: skip
GROWTH = {
    "population": "clients in the population", "mapped": "the same, memory-mapped",
    "cohort": "clients in a round", "steps": "K", "model": "parameters",
}  # fmt: skip


def load(name):
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def number(seconds):
    return f"{seconds:.3g}" if seconds >= 0.001 else f"{seconds:.2g}"


def print_speed(saved):
    tasks = saved["tasks"]
    if not all(task.get("best_peer") and "matmul" in task for task in tasks.values()):
        sys.exit("speed.json lacks a peer or the matrix rate: measure again with run.py")
    print(f"Seconds a round, medians of at least {min(t['repeats'] for t in tasks.values())}, on")
    print(f"{saved['machine']['cores']} cores ({saved['machine']['cpu']}):\n")
    print(f"| | {' | '.join(name.upper() for name in tasks)} |")
    print(f"| --- |{' --- |' * len(tasks)}")
    for contestant, label in LABELS.items():
        found = [task["contestants"].get(contestant) for task in tasks.values()]
        cells = ["" if row is None else number(row["median"]) for row in found]
        if any(cells):
            print(f"| {label} | {' | '.join(cells)} |")
    ours = [task["contestants"]["ours"] for task in tasks.values()]
    rows = {
        "**times the best peer's speed**": [f"**{r['times_best_peer']:.2f}**" for r in ours],
        "of the matrix rate, 6N": [f"{r['six_n_fraction_of_matmul']:.0%}" for r in ours],
        "of the matrix rate, exact count": [f"{r['fraction_of_matmul']:.0%}" for r in ours],
        "GFLOP/s, 6N": [f"{r['six_n_gflops']:.1f}" for r in ours],
        "matrix rate, GFLOP/s": [
            f"{max(t['matmul']['gflops'].values()):.0f}" for t in tasks.values()
        ],
        "first unit, s (compilation)": [f"{r['compile_seconds']:.1f}" for r in ours],
        "peak memory, MiB": [f"{r['peak_mib']:.0f}" for r in ours],
        "best peer's peak memory, MiB": [
            f"{t['contestants'][t['best_peer']]['peak_mib']:.0f}" for t in tasks.values()
        ],
    }
    for label, cells in rows.items():
        print(f"| {label} | {' | '.join(cells)} |")


def print_growth(saved):
    for section, rows in saved["sections"].items():
        print(f"\n| {section} | seconds a round | relative |")
        print("| --- | --- | --- |")
        for name, row in rows.items():
            print(
                f"| {name.replace('/', ', ')} | {number(row['median'])} | {row['relative']:.2f} |"
            )
    rows = saved["sections"].get("dispatch", {})
    for name in ("w1", "w1-ids"):
        if f"{name}/100" in rows:
            one, ten, hundred = (rows[f"{name}/{n}"]["median"] for n in (1, 10, 100))
            compute = (100 * hundred - 10 * ten) / 90  # what each further round of a call takes
            print(
                f"\n{name}: 100 rounds in one call take {hundred / one:.3f} x 100 calls of one round,"
                f" and {hundred / compute:.3f} x 100 times what each further round takes."
            )


def print_sweep(saved):
    print("\n| 64 trials of 100 rounds | one program | one process | separate commands |")
    print("| --- | --- | --- | --- |")
    for name, found in saved.items():
        seconds = found["seconds"]
        cells = [
            f"{seconds[k]:.1f} s ({seconds[k] / seconds['program']:.2f})"
            for k in ("program", "process", "separate")
        ]
        print(f"| {name.upper()} | {' | '.join(cells)} |")


def draw(speed, growth):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "speed"
    import matplotlib.pyplot as plt

    sections = [s for s in GROWTH if s in growth["sections"]] if growth else []
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4), layout="constrained", facecolor="white"
    )
    tasks = speed["tasks"]
    width = 0.16
    for i, (contestant, label) in enumerate(LABELS.items()):
        places, heights = [], []
        for j, task in enumerate(tasks.values()):
            if contestant in task["contestants"]:
                places.append(j + (i - 2) * width)
                heights.append(task["contestants"][contestant]["median"])
        if places:
            left.bar(places, heights, width, color=COLOURS[contestant], label=label)
    left.set_xticks(range(len(tasks)), [name.upper() for name in tasks])
    left.set_yscale("log")
    left.set_ylabel("seconds a round")
    left.legend(fontsize=7, edgecolor="none")
    markers = iter("osv^D*")
    for section in sections:
        series = {}
        for name, row in growth["sections"][section].items():
            task, point = name.split("/")
            series.setdefault(task, []).append((float(point), row["median"]))
        for task, points in series.items():
            right.plot(
                *zip(*points, strict=True), marker=next(markers), markersize=4, linewidth=1,
                label=f"{GROWTH[section]} ({task})",
            )  # fmt: skip
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("how many")
    right.set_title("growth of our round's time", fontsize=10)
    if sections:
        right.legend(fontsize=7, edgecolor="none")
    for axis in (left, right):
        axis.grid(alpha=0.3, axis="y")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, metadata={"Title": "Speed", "Date": None})
    plt.close(figure)


if __name__ == "__main__":
    found = {name: load(f"speed{name}.json") for name in ("", "_growth", "_sweep")}
    if found[""]:
        print_speed(found[""])
        draw(found[""], found["_growth"])
    if found["_growth"]:
        print_growth(found["_growth"])
    if found["_sweep"]:
        print_sweep(found["_sweep"])
