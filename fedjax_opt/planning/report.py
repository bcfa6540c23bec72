"""A plan as a page of text, and as plain data."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedjax_opt.core.tables import table_lines
from fedjax_opt.planning.planner import Plan
from fedjax_opt.planning.setting import inputs_of
from fedjax_opt.planning.text import as_input, in_bytes, in_count, in_joules, in_time
from fedjax_opt.planning.tuned import TunedRun

WIDTH = 80
_SCHEDULES = {
    True: "Schedules within the budget (*: recommended; bound relative to it)",
    False: "Schedules within the budget (*: recommended)",
}
_SENSITIVITY = {
    True: "Sensitivity: what 1% more of an input changes, in %; K with half and twice of it",
    False: "Sensitivity: what 1% more of an input changes, in %",
}


def table(plan: Plan, title: str = "", origin: str = "") -> str:
    """A plan as text of at most 80 columns: what to do, what it costs, and what it depends on.

    Args:
      plan: a `Plan`.
      title: what it is for.
      origin: where its constants are from, if that should be said.

    Returns:
      Lines of text.

    Example:
      >>> import fedjax_opt as fo
      >>> phones = fo.costs.devices(download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> plan = fo.plan(6.71, phones, rounds=10_000, cohort_size=60, local_steps=80)
      >>> print(fo.planning.table(plan).split("Schedules")[0])  # doctest: +ELLIPSIS
      Given
        model          6.71 Mbit (839 kB)
      ...
      Recommended
        local steps    K-rounds, K from 80 to 4
        cohort         N = 60 in a round
      ...
    """
    blocks = [
        [title] if title else [],
        ["Given", *_given(plan, origin)],
        ["Recommended", *_recommended(plan), *_code(plan)],
        [_SCHEDULES[plan.bound is not None], *_schedules(plan)],
        ["Cohort sizes (*: recommended)", *_cohorts(plan)] if len(plan.cohorts) > 1 else [],
        [_SENSITIVITY[plan.bound is not None], *_sensitivity(plan)],
        ["Notes", *_notes(plan)] if plan.notes else [],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def as_dict(plan: Plan) -> dict[str, Any]:
    """A plan as dicts, lists, numbers and text, ready for JSON; what is not finite is None.

    Args:
      plan: a `Plan`.

    Returns:
      A dict with the plan's fields, and `recommended`.

    Example:
      >>> import json
      >>> import fedjax_opt as fo
      >>> phones = fo.costs.devices(download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> plan = fo.plan(6.71, phones, rounds=100, cohort_size=60, local_steps=80)
      >>> json.loads(json.dumps(fo.planning.as_dict(plan)))["recommended"]["rounds"]
      100
    """
    return _plain(plan) | {"recommended": _plain(plan.recommended)}


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _given(plan: Plan, origin: str) -> Iterator[str]:
    setting = plan.setting
    down, up = float(setting.megabits_down), float(setting.megabits_up)
    size = f"{down:.4g} Mbit ({in_bytes(down * 125_000)})"
    if down != up:
        size = f"{size} down, {up:.4g} Mbit ({in_bytes(up * 125_000)}) up"
    yield _line("model", size)
    devices = setting.devices
    yield _line(
        "link",
        f"{_spread(devices.download_mbps)} Mbit/s down, {_spread(devices.upload_mbps)} Mbit/s up",
    )
    yield _line("device", f"{_spread(devices.seconds_per_step)} s for a local step")
    if np.isfinite(setting.num_clients):
        yield _line("clients", f"{int(setting.num_clients):,} in all")
    yield _line("budget", ", ".join(_budgets(plan)))
    known = setting.constants
    if isinstance(known, TunedRun):
        text = (
            f"assumed, from K_0 = {int(known.local_steps)} and eta_0 ="
            f" {float(known.learning_rate):.3g}, which were good for {int(known.rounds):,} rounds with"
            f" {int(known.cohort_size)} clients"
        )
    elif known is not None:
        kappa = float(known.smoothness / known.strong_convexity)
        text = (
            f"L = {float(known.smoothness):.3g}, mu = {float(known.strong_convexity):.3g} (kappa ="
            f" {kappa:.3g}), F(x0) = {float(known.initial_loss):.3g}, F* ="
            f" {float(known.optimal_loss):.3g}, G = {float(known.gradient_bound):.3g}, noise ="
            f" {float(known.noise):.3g}, Gamma = {float(known.heterogeneity):.3g}"
        )
    else:
        text = "none: no bound, costs only"
    yield from _wrapped("constants", f"{text}; {origin}" if origin else text)


def _budgets(plan: Plan) -> Iterator[str]:
    setting = plan.setting
    if np.isfinite(setting.seconds):
        yield f"{in_time(float(setting.seconds))}"
    if np.isfinite(setting.rounds):
        yield f"{float(setting.rounds):,.0f} rounds"
    if np.isfinite(setting.total_bytes):
        yield f"{in_bytes(float(setting.total_bytes))} in all"
    if np.isfinite(setting.client_bytes):
        yield f"{in_bytes(float(setting.client_bytes))} for each client"


def _recommended(plan: Plan) -> Iterator[str]:
    best, setting = plan.recommended, plan.setting
    first, last = best.runs[0][0], best.runs[-1][0]
    if best.name == "fixed" or first == last:
        yield _line("local steps", f"K = {first} in every round")
    else:
        yield _line("local steps", f"{best.name}, K from {first} to {last}")
    if best.learning_rate is not None:
        kept = " (kept at 1/(4L))" if plan.rate_clipped else ""
        yield _line("learning rate", f"eta = {best.learning_rate:.3g}{kept}")
    yield _line("cohort", f"N = {plan.cohort_size} in a round")
    yield _line("rounds", f"{best.rounds:,}, of {in_time(best.seconds / best.rounds)} in the mean")
    yield _line("time", f"{in_time(best.seconds)}, for {in_count(best.local_steps)} local steps")
    sizes = [in_bytes(float(m) * 125_000) for m in (setting.megabits_down, setting.megabits_up)]
    yield _line("traffic", f"{sizes[0]} down and {sizes[1]} up for a client in a round;")
    each = "each client in the mean" if np.isfinite(setting.num_clients) else "each client"
    yield _line(
        "", f"{in_bytes(best.client_bytes)} for {each}, {in_bytes(best.total_bytes)} in all"
    )
    if best.joules is not None:
        yield _line("energy", f"{in_joules(best.joules)} of all clients together")
    if plan.bound is None:
        return
    yield _line("bound", f"{plan.bound.value:.3g} on the smallest E||grad F||^2")
    shares = sorted(plan.bound.terms.items(), key=lambda term: -term[1])
    parts = [f"{name} {value / plan.bound.value:.0%}" for name, value in shares if value > 0]
    yield _line("", " + ".join(parts))
    broken = plan.bound.violated()
    if broken:
        yield _line("FAILS", "; ".join(broken))
    holding = [name for name in sorted(plan.bound.assumptions) if name not in broken]
    yield from _wrapped("holds", "; ".join(holding))


def _code(plan: Plan) -> list[str]:
    """The calls that follow the plan."""
    best = plan.recommended
    eta = "learning_rate" if best.learning_rate is None else f"{best.learning_rate:.3g}"
    return [
        "",
        f"  federation = fo.Federation(model, clients, cohort={plan.cohort_size},",
        f"      {best.use})",
        f"  fo.simulate(fo.fedavg(fo.optimizers.sgd({eta})), federation, {best.rounds})",
    ]


def _schedules(plan: Plan) -> Iterator[str]:
    best = plan.recommended.bound
    energy = any(row.joules is not None for row in plan.forecasts)
    header = ["schedule", "K", "eta", "rounds", "steps", "time", "traffic"]
    header += ["energy"] * energy + ["bound"] * (best is not None)
    rows = []
    for row in plan.forecasts:
        first, last = row.runs[0][0], row.runs[-1][0]
        cells = [
            f"{row.name}{' *' if row is plan.recommended else ''}",
            str(first) if first == last else f"{first}-{last}",
            "-" if row.learning_rate is None else f"{row.learning_rate:.2g}",
            in_count(row.rounds),
            in_count(row.local_steps),
            in_time(row.seconds),
            in_bytes(row.total_bytes),
        ]
        if energy:
            cells.append(in_joules(row.joules or 0.0))
        if best is not None and row.bound is not None:
            cells.append(f"x{row.bound / best:.3g}")
        rows.append([cells[0], *(cell.replace(" ", "") for cell in cells[1:])])
    yield from _rows(header, rows)


def _cohorts(plan: Plan) -> Iterator[str]:
    best = min(choice.bound for choice in plan.cohorts)
    yield from _rows(
        ["N", "K", "eta", "rounds", "a round", "traffic", "bound"],
        [
            [
                f"{choice.cohort_size}{' *' if choice.cohort_size == plan.cohort_size else ''}",
                str(choice.local_steps),
                f"{choice.learning_rate:.3g}",
                f"{choice.rounds:,}",
                in_time(choice.round_seconds),
                in_bytes(choice.total_bytes),
                f"x{choice.bound / best:.3f}",
            ]
            for choice in plan.cohorts
        ],
    )


def _sensitivity(plan: Plan) -> Iterator[str]:
    values = inputs_of(plan.setting)
    outputs = {"rounds": "rounds", "seconds": "time"}
    if plan.bound is not None:
        outputs = {"bound": "bound", "local steps": "K", "learning rate": "eta"} | outputs
    else:
        outputs["bytes"] = "traffic"
    header = ["input", "is", *outputs.values()] + ["K: /2", "x2"] * bool(plan.what_ifs)
    rows = []
    for name, slopes in plan.elasticities.items():
        if values[name] == 0:
            continue  # 1% of nothing changes nothing
        cells = [f"{slopes[output]:+.2f}" for output in outputs]
        cells = ["0" if cell[1:] == "0.00" else cell for cell in cells]
        rows.append([name, as_input(name, values[name]), *cells, *_steps_if(plan, name)])
    if plan.what_ifs:
        cells = ["" for _ in outputs]
        rows.append(["cohort size", str(plan.cohort_size), *cells, *_steps_if(plan, "cohort size")])
    yield from _rows(header, rows)


def _steps_if(plan, name):
    if not plan.what_ifs:
        return []
    return ["-" if other is None else str(other.local_steps) for other in plan.what_ifs[name]]


def _notes(plan: Plan) -> Iterator[str]:
    for note in plan.notes:
        yield from textwrap.wrap(
            note, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
        )


def _line(name, text):
    return f"  {name:15}{text}".rstrip()


def _wrapped(name, text):
    lines = textwrap.wrap(text, WIDTH - 17, break_on_hyphens=False)
    return [_line(name if i == 0 else "", line) for i, line in enumerate(lines)]


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (f"  {line}" for line in table_lines(header, rows))


def _spread(values: Any) -> str:
    """One number, or the median and the range of many."""
    if np.ndim(values) == 0 or np.min(values) == np.max(values):
        return f"{float(np.max(values)):.4g}"
    return f"{np.median(values):.3g} ({np.min(values):.3g} to {np.max(values):.3g})"
