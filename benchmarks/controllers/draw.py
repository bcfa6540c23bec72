"""The plots of the controllers' benchmark, from its saved numbers."""

import pathlib
from typing import Any

COLOURS = {
    "dSGD": "0.55", "fixed": "#000000", "K-rounds": "#0072B2", "K-error": "#56B4E9",
    "K-step": "#009E73", "eta-rounds": "#D55E00", "eta-error": "#E69F00", "eta-step": "#CC79A7",
    "theory": "#7A3FB0",
}  # fmt: skip
STYLES = {"dSGD": ":", "fixed": "--", "theory": "-."}


def draw(saved: dict[str, Any], folder: pathlib.Path) -> None:
    """Accuracy and K over simulated time; seconds of the clock over K."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "controllers"
    import matplotlib.pyplot as plt
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(12, 3.8), layout="constrained", facecolor="white"
    )
    for name, row in saved["schedules"].items():
        look = {"color": COLOURS[name], "linestyle": STYLES.get(name, "-"), "linewidth": 1.6}
        left.plot(row["seconds"], np.maximum.accumulate(row["accuracy"]), label=name, **look)
        middle.plot(row["seconds"], row["steps"], **look)
    left.axhline(saved["task"]["target"], color="0.5", linewidth=1, linestyle=(0, (1, 3)))
    left.set(
        xlabel="simulated seconds",
        ylabel="best test accuracy so far",
        xscale="log",
        ylim=(0.8, 0.98),
    )
    left.legend(fontsize=8, loc="lower right", edgecolor="none", framealpha=0.7)
    middle.set(xlabel="simulated seconds", ylabel="local steps K", xscale="log", yscale="log")
    steps = [int(k) for k in saved["clock"]]
    times = [1000 * np.array(v) for v in saved["clock"].values()]
    right.plot(steps, [np.median(t) for t in times], "o-", color="#0072B2")
    right.fill_between(
        steps, [t.min() for t in times], [t.max() for t in times], color="#0072B2", alpha=0.2
    )
    right.set(xlabel="local steps K", ylabel="milliseconds of the clock per round")
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "controllers.svg", metadata={"Title": "Controllers", "Date": None})
    plt.close(figure)
