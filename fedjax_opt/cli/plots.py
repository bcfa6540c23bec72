"""Plots of runs."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: no display is needed, and none is opened
import matplotlib.pyplot as plt

from fedjax_opt.planning.figure import COLOURS, STYLES


def save_curves(
    path: pathlib.Path,
    title: str,
    panels: Mapping[str, Mapping[str, tuple[Any, Any]]],
    levels: Mapping[str, float] | None = None,
) -> None:
    """Saves curves over rounds, one panel for each quantity.

    Args:
      path: the file; its ending chooses the format.
      title: over all panels.
      panels: quantity -> name of a curve -> (rounds, values).
      levels: quantity -> a level to mark, such as a target.
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.5 * len(panels), 4.2), squeeze=False, layout="constrained"
    )
    for axis, (quantity, curves) in zip(axes[0], panels.items(), strict=True):
        for i, (name, (rounds, values)) in enumerate(curves.items()):
            axis.plot(
                rounds,
                values,
                linestyle=STYLES[i % len(STYLES)],
                color=COLOURS[i % len(COLOURS)],
                label=name,
                linewidth=2,
            )
        if levels and quantity in levels:
            axis.axhline(levels[quantity], color="0.5", linewidth=1, linestyle=(0, (1, 3)))
        axis.set_xlabel("round")
        axis.set_ylabel(quantity)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][-1].legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)
