"""A plan as a picture: the bound over K, K over time, and what matters."""

import pathlib

import numpy as np

from fedjax_opt.core.compatibility import enable_x64
from fedjax_opt.planning.optimum import bounds_along
from fedjax_opt.planning.planner import Plan
from fedjax_opt.planning.schedules import Forecast
from fedjax_opt.planning.setting import inputs_of, round_seconds

# Told apart by colour (safe for colour-blind readers) and by line style (safe in print).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
_TERMS = {
    "initial": ("progress: 2κA/(ηT)", "--"),
    "noise": ("noise", (0, (1, 1))),
    "heterogeneity": ("heterogeneity: 6LΓ", ":"),
    "local steps": ("drift: (8 + 4/N) G²K²", "-."),
}
_TIMES = (("days", 86_400.0, 3 * 86_400.0), ("hours", 3600.0, 2 * 3600.0), ("minutes", 60.0, 120.0))


def save_plot(plan: Plan, path: str | pathlib.Path, title: str = "") -> None:
    """Draws a plan: the bound over K, the schedules over time, and the elasticities.

    Without constants, the first panel is how long a round takes with each K. It needs matplotlib (the
    extra 'bench').

    Args:
      plan: a `Plan`.
      path: the file, whose ending says the format: .png, .svg or .pdf.
      title: over all panels.

    Example:
      >>> import pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> phones = fo.costs.devices(download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> plan = fo.plan(6.71, phones, rounds=100, cohort_size=60, local_steps=80)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     fo.planning.save_plot(plan, pathlib.Path(folder) / "plan.svg")
    """
    import matplotlib
    import matplotlib.ticker
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = pathlib.Path(path)
    figure = Figure(figsize=(13.5, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.05))
    with enable_x64():
        (_draw_bound if plan.bound is not None else _draw_rounds)(axes[0], plan)
    _draw_schedules(axes[1], plan)
    _draw_elasticities(axes[2], plan)
    for axis in axes[:2]:
        axis.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:g}"))
        axis.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes[0].xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=11)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "plan"}):
        figure.savefig(path, dpi=150, metadata=metadata)


def _grid(plan: Plan, points: int) -> np.ndarray:
    return np.geomspace(1, max(10 * plan.local_steps, 30), points)


def _draw_bound(axis, plan: Plan) -> None:
    assert plan.bound is not None
    steps = _grid(plan, 160)
    fixed = plan.given.learning_rate
    eta = np.nan if fixed is None else fixed
    bounds = bounds_along(plan.setting, float(plan.cohort_size), steps, eta)
    for name, (label, style) in _TERMS.items():
        values = np.asarray(bounds.terms[name])
        if np.any(values > 0):
            axis.plot(steps, values, linestyle=style, color="0.45", linewidth=1.2, label=label)
    axis.plot(steps, bounds.value, color=COLOURS[0], linewidth=2.2, label="bound")
    axis.plot([plan.local_steps], [plan.bound.value], "o", color=COLOURS[1], markersize=8, zorder=5)
    axis.annotate(
        f"K = {plan.local_steps}\nη = {plan.learning_rate:.3g}",
        (plan.local_steps, plan.bound.value),
        (0, 10),
        textcoords="offset points",
        ha="center",
        va="bottom",
    )
    axis.set(xscale="log", yscale="log", xlabel="local steps K in a round")
    axis.set_ylabel("bound on the smallest E||∇F||²")
    rate = "η as given" if fixed is not None else "best η for each K"
    axis.set_title(f"Bound within the budget ({rate})", fontsize=10)
    axis.set_ylim(float(plan.bound.value) / 30, float(np.max(bounds.value)) * 12)
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)


def _draw_rounds(axis, plan: Plan) -> None:
    steps = _grid(plan, 40)
    times = [float(round_seconds(plan.setting, float(plan.cohort_size), k)) for k in steps]
    axis.plot(steps, times, color=COLOURS[0], linewidth=2.2)
    axis.axhline(times[0], color="0.5", linestyle=":", label="communication, and one step")
    axis.plot(
        [plan.local_steps],
        [float(round_seconds(plan.setting, float(plan.cohort_size), float(plan.local_steps)))],
        "o",
        color=COLOURS[1],
        markersize=8,
        label=f"K = {plan.local_steps}",
    )
    axis.set(xscale="log", xlabel="local steps K in a round", ylabel="seconds of a round")
    axis.set_title("Time of a round", fontsize=10)
    axis.legend(frameon=False, fontsize=8)


def _draw_schedules(axis, plan: Plan) -> None:
    longest = max(row.seconds for row in plan.forecasts)
    unit, length = next(
        ((name, size) for name, size, least in _TIMES if longest >= least), ("seconds", 1.0)
    )
    for i, row in enumerate(plan.forecasts):
        chosen = row.name == plan.schedule
        hours, steps = _corners(row)
        axis.step(
            hours / length,
            steps,
            where="post",
            linestyle=STYLES[i % len(STYLES)],
            color=COLOURS[i % len(COLOURS)],
            linewidth=2.6 if chosen else 1.5,
            label=f"{row.name} (recommended)" if chosen else row.name,
        )
    axis.set(yscale="log", xlabel=f"time in {unit}", ylabel="local steps K in a round")
    axis.set_xlim(0, longest / length)
    most = max(steps for row in plan.forecasts for steps, _ in row.runs)
    axis.set_ylim(0.8, most ** (1.35 if most > 9 else 2) * 2)
    axis.set_title("Schedules within the budget", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=2)


def _corners(row: Forecast) -> tuple[np.ndarray, np.ndarray]:
    """When K changes, in seconds, and to what."""
    steps = [steps for steps, _ in row.runs]
    return np.concatenate([[0.0], np.cumsum(row.run_seconds)]), np.array([*steps, steps[-1]])


def _draw_elasticities(axis, plan: Plan) -> None:
    values = inputs_of(plan.setting)
    names = [name for name in plan.elasticities if values[name] != 0]
    outputs = ("bound", "local steps", "learning rate")
    if plan.bound is None:
        outputs = ("rounds", "seconds", "bytes")
    labels = {"local steps": "K", "learning rate": "η", "seconds": "time", "bytes": "traffic"}
    names.sort(key=lambda name: max(abs(plan.elasticities[name][out]) for out in outputs))
    height = 0.8 / len(outputs)
    places = np.arange(len(names))
    for i, output in enumerate(outputs):
        axis.barh(
            places + (1 - i) * height,
            [plan.elasticities[name][output] for name in names],
            height,
            color=COLOURS[i],
            label=labels.get(output, output),
        )
    axis.locator_params(axis="x", nbins=5)
    axis.axvline(0.0, color="0.3", linewidth=0.8)
    axis.set_yticks(places, names, fontsize=9)
    axis.set_xlabel("elasticity: % of change for 1% more of the input")
    axis.set_title("What matters", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="lower right")
