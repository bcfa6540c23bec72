"""What a run has spent, until a target was reached, and against other runs.

Rounds alone flatter an algorithm that sends or computes more in each of them. Here every round of a
history is priced: simulated seconds, bytes, operations, joules; and each is read off where the curve
first reached a target.

References:
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Table 4.
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. Table 4 and Appendix C.3.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.targets import first_reached
from fedjax_opt.costs.runtime import column
from fedjax_opt.costs.spending import Prices, Spent, spent


class Comparison(NamedTuple):
    """One run against a baseline.

    Attributes:
      name: of the run.
      best: its best value.
      to_best: what it had spent when it first had that value.
      reached: whether it matched the baseline's best value.
      to_match: what it had spent when it first did; else None, or its whole budget if that was asked.
      factor: `to_match` relative to what the baseline spent, entry by entry: below 1 is cheaper.
    """

    name: str
    best: float
    to_best: Spent
    reached: bool
    to_match: Spent | None
    factor: Spent | None


def cost_to_target(
    result: Any,
    target: float,
    prices: Prices = Prices(),  # noqa: B008 -- immutable
    metric: str = "accuracy",
    maximise: bool = True,
) -> Spent | None:
    """What a run had spent when it first reached a target; None if it never did.

    Args:
      result: a `Result` of `simulate`, whose evaluations are searched; or a history, of which each round
        is searched (a loss of round t counts as known when the round is over).
      target: the value to reach.
      prices: `Prices`.
      metric: the name of the evaluated metric, or of the column of a history.
      maximise: whether larger is better.

    Returns:
      A `Spent` of numbers, or None.

    Example:
      >>> import fedjax_opt as fo
      >>> history = {"cohort": [[0, 1], [1, 2]], "num_steps": [[4, 4], [2, 2]], "loss": [3.0, 1.0]}
      >>> prices = fo.costs.Prices(flops=fo.costs.Flops(step=10.0))
      >>> cost = fo.costs.cost_to_target(history, 2.0, prices, metric="loss", maximise=False)
      >>> cost.rounds, cost.flops
      (2, 120.0)
      >>> fo.costs.cost_to_target(history, 0.5, prices, metric="loss", maximise=False) is None
      True
    """
    checks.number("target", target)
    history, rounds, values = _curve(result, metric)
    index = first_reached(values, target, maximise)
    return None if index is None else _after(history, prices, rounds[index])


def compare(
    runs: Mapping[str, tuple[Any, Prices]],
    baseline: str,
    metric: str = "accuracy",
    maximise: bool = True,
    unreached: str = "none",
) -> list[Comparison]:
    """Each run's cost to its own best value, and to match the baseline's.

    Args:
      runs: by name, (result, prices); results as for `cost_to_target`.
      baseline: the name of the run whose best value the others are to match.
      metric: the name of the evaluated metric.
      maximise: whether larger is better.
      unreached: of a run that never matches the baseline, 'none' of its cost is shown (as in the
        FedGBO paper), or its whole 'budget', which is the least that it can be (as in the GHBM paper).

    Returns:
      A `Comparison` for each run, in their order.

    Example:
      >>> import fedjax_opt as fo
      >>> steps = {"cohort": [[0], [1], [2]], "num_steps": [[2], [2], [2]]}
      >>> prices = fo.costs.Prices(flops=fo.costs.Flops(step=1.0))
      >>> slow, fast = steps | {"accuracy": [0.1, 0.2, 0.5]}, steps | {"accuracy": [0.5, 0.6, 0.7]}
      >>> rows = fo.costs.compare({"slow": (slow, prices), "fast": (fast, prices)}, "slow")
      >>> rows[1].to_match.rounds, round(rows[1].factor.flops, 3)
      (1, 0.333)

    Reference:
      Mills et al. 2022, Table 4; Zaccone et al., Table 4.
    """
    checks.choice("baseline", baseline, tuple(runs))
    checks.choice("unreached", unreached, ("none", "budget"))
    best = {name: _best(result, metric, maximise) for name, (result, _) in runs.items()}

    def to(name, value):
        result, prices = runs[name]
        return cost_to_target(result, value, prices, metric, maximise)

    to_best: dict[str, Any] = {name: to(name, value) for name, value in best.items()}
    rows = []
    for name, (result, prices) in runs.items():
        match = to(name, best[baseline])
        reached = match is not None
        if not reached and unreached == "budget":
            history, rounds, _ = _curve(result, metric)
            match = _after(history, prices, rounds[-1])
        factor = None if match is None else Spent(*map(_ratio, match, to_best[baseline]))
        rows.append(Comparison(name, best[name], to_best[name], reached, match, factor))
    return rows


_COLUMNS = {
    "rounds": ("rounds", 1),
    "seconds": ("hours", 3600),
    "bytes_down": ("down (GB)", 1e9),
    "bytes_up": ("up (GB)", 1e9),
    "flops": ("FLOPs (1e12)", 1e12),
    "joules": ("kJ", 1e3),
}


def comparison_table(rows: Sequence[Comparison]) -> str:
    """A comparison as a Markdown table, in the layout of Table 4 of the FedGBO paper.

    To the left each run's best value and what it cost, to the right what it cost to match the baseline's
    best, with the factor against the baseline in brackets; a dash where it never did.

    Args:
      rows: from `compare`.

    Returns:
      The table, with the columns that have a price.

    Example:
      >>> import fedjax_opt as fo
      >>> rounds = {"cohort": [[0], [1]], "num_steps": [[2], [2]], "accuracy": [0.25, 0.5]}
      >>> print(fo.costs.comparison_table(fo.costs.compare({"a": (rounds, fo.costs.Prices())}, "a")))
      | run | best | rounds | rounds to match |
      | --- | --- | --- | --- |
      | a | 0.5 | 2 | 2 (x1) |
    """
    priced = [f for f in Spent._fields if any(getattr(r.to_best, f) is not None for r in rows)]
    titles = [_COLUMNS[field][0] for field in priced]
    table = [["run", "best", *titles, *(f"{title} to match" for title in titles)]]
    table.append(["---"] * len(table[0]))
    for row in rows:
        right = [_cell(row.to_match, f) + _factor(row.factor, f) for f in priced]
        table.append(
            [row.name, f"{row.best:.4g}", *(_cell(row.to_best, f) for f in priced), *right]
        )
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def _cell(costs, field):
    value = None if costs is None else getattr(costs, field)
    if value is None:
        return "-"
    return str(value) if field == "rounds" else f"{value / _COLUMNS[field][1]:.3g}"


def _factor(factor, field):
    value = None if factor is None else getattr(factor, field)
    return "" if value is None else f" (x{value:.3g})"


def _ratio(value, reference):
    return None if value is None or not reference else value / reference


def _curve(result: Any, metric: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """The history, the rounds done at each measurement, and what was measured."""
    if hasattr(result, "evaluations"):
        if metric not in result.evaluations:
            raise ValueError(
                f"metric must be one of the evaluated {sorted(result.evaluations)}, got {metric!r}."
                " Without a test set nothing is evaluated; a history can be searched instead."
            )
        history, rounds = result.history, np.asarray(result.evaluations["round"])
        return history, rounds, _one_per_row(metric, result.evaluations[metric])
    values = _one_per_row(metric, column(result, metric))
    return result, _rounds_done(result, len(values)), values


def _one_per_row(metric, values):
    values = np.asarray(values)
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"metric {metric!r} must have one value per row, got {list(values.shape)}."
        )
    return values


def _rounds_done(history: Any, count: int) -> np.ndarray:
    """How many rounds of the run were done at the end of each row; a resumed run's begin later."""
    known = history.get("round") if isinstance(history, dict) else getattr(history, "round", None)
    return np.arange(1, count + 1) if known is None else np.asarray(known) + 1


def _after(history: Any, prices: Prices, rounds: Any) -> Spent:
    """What the rows of a history had spent when so many rounds of the run were done."""
    totals = spent(history, prices)
    row = int(np.searchsorted(_rounds_done(history, len(totals.rounds)), rounds, side="right")) - 1
    picked = (None if column is None else column[row].item() for column in totals)
    return Spent(*picked)


def _best(result: Any, metric: str, maximise: bool) -> float:
    values = _curve(result, metric)[2]
    return float(np.nanmax(values) if maximise else np.nanmin(values))
