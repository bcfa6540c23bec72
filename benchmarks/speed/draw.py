"""The tables and the plot of what `run.py`, `growth.py`, `sweep.py` and `algorithms.py` have saved.

    python benchmarks/speed/draw.py

It writes the tables of the README beside it and of the project's, between `<!-- name -->` and
`<!-- /name -->`, and draws docs/images/speed.svg.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import pages  # noqa: E402

RESULTS = HERE.parent / "results"
FIGURE = HERE.parents[1] / "docs" / "images" / "speed.svg"
LABELS = {
    "ours": "fedjax_opt", "ours-ids": "fedjax_opt, token ids", "fedjax": "FedJAX 0.0.17",
    "torch": "PyTorch, one process", "torch-processes": "PyTorch, one process per core",
}  # fmt: skip
OURS = ("ours", "ours-ids")  # W1 is the same round with token ids
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


def heading(*cells):
    return [row(*cells), row(*["---"] * len(cells))]


def row(*cells):
    return f"| {' | '.join(cells)} |"


def seconds_table(tasks):
    """Seconds a round of every contestant, and how ours compares."""
    lines = heading("", *(name.upper() for name in tasks))
    for contestant, label in LABELS.items():
        found = [task["contestants"].get(contestant) for task in tasks.values()]
        cells = ["" if measured is None else number(measured["median"]) for measured in found]
        if any(cells):
            lines.append(row(label, *cells))
    best = {
        name: min(task["contestants"][c]["median"] for c in OURS if c in task["contestants"])
        for name, task in tasks.items()
    }
    peers = {name: task["contestants"][task["best_peer"]]["median"] for name, task in tasks.items()}
    times = [f"**{peers[name] / best[name]:.2f}**" for name in tasks]
    lines.append(row("**times the best peer's speed**", *times))
    return lines


def speed_table(saved):
    """The same, with rates, compilation and memory."""
    tasks = saved["tasks"]
    if not all(task.get("best_peer") and "matmul" in task for task in tasks.values()):
        sys.exit("speed.json lacks a peer or the matrix rate: measure again with run.py")
    ours = [task["contestants"]["ours"] for task in tasks.values()]
    rows = {
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
        "load before": [f"{t['load_average_before']:.1f}" for t in tasks.values()],
    }
    machine = saved["machine"]
    repeats = min(t["repeats"] for t in tasks.values())
    return [
        f"On {machine['cores']} cores ({machine['cpu']}), seconds a round, medians of {repeats}:",
        "",
        *seconds_table(tasks),
        *(row(label, *cells) for label, cells in rows.items()),
    ]


def growth_tables(saved):
    lines = []
    for section, rows in saved["sections"].items():
        lines += heading(section, "seconds a round", "relative")
        for name, found in rows.items():
            cells = number(found["median"]), f"{found['relative']:.2f}"
            lines.append(row(name.replace("/", ", "), *cells))
        lines.append("")
    rows = saved["sections"].get("dispatch", {})
    for name in ("w1", "w1-ids"):
        if f"{name}/100" in rows:
            one, ten, hundred = (rows[f"{name}/{n}"]["median"] for n in (1, 10, 100))
            compute = (100 * hundred - 10 * ten) / 90  # what each further round of a call takes
            lines.append(
                f"{name}: 100 rounds in one call take {hundred / one:.3f} x 100 calls of one round,"
                f" and {hundred / compute:.3f} x 100 times what each further round takes."
            )
    return lines


def sweep_table(saved):
    lines = heading("64 trials of 100 rounds", "one program", "one process", "separate commands")
    for name, found in saved.items():
        seconds = found["seconds"]
        cells = [
            f"{seconds[k]:.1f} s ({seconds[k] / seconds['program']:.2f})"
            for k in ("program", "process", "separate")
        ]
        lines.append(row(name.upper(), *cells))
    return lines


def algorithms_table(saved):
    lines = heading("algorithm", "time of a round / FedAvg's", "quartiles", "matrix products")
    for name, found in saved["algorithms"].items():
        low, high = found["quartiles"]
        cells = f"{found['ratio']:.2f}", f"{low:.2f} to {high:.2f}", f"{found['products']:.2f}"
        lines.append(row(name, *cells))
    return lines


def draw(speed, growth):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "speed"
    import matplotlib.pyplot as plt

    sections = [s for s in GROWTH if s in growth["sections"]] if growth else []
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.6), layout="constrained", facecolor="white"
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
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 2}
    left.legend(fontsize=7, edgecolor="none", **below)
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
        right.legend(fontsize=7, edgecolor="none", **below)
    for axis in (left, right):
        axis.grid(alpha=0.3, axis="y")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, metadata={"Title": "Speed", "Date": None})
    plt.close(figure)


TABLES = {
    "speed": ("speed.json", speed_table),
    "growth": ("speed_growth.json", growth_tables),
    "sweep": ("speed_sweep.json", sweep_table),
    "algorithms": ("algorithms.json", algorithms_table),
}

if __name__ == "__main__":
    found = {name: load(file) for name, (file, _) in TABLES.items()}
    pages.fill(
        HERE / "README.md",
        {name: "\n".join(TABLES[name][1](saved)) for name, saved in found.items() if saved},
    )
    if found["speed"]:
        table = "\n".join(seconds_table(found["speed"]["tasks"]))
        pages.fill(HERE.parents[1] / "README.md", {"speed": table})
        draw(found["speed"], found["growth"])
