"""What a plan chooses from: cohort sizes, schedules, and what it would be if an input were another."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_opt.costs import EnergyRates
from fedjax_opt.planning import schedules
from fedjax_opt.planning.optimum import Best, best_for_each
from fedjax_opt.planning.schedules import Forecast, Limits
from fedjax_opt.planning.setting import (
    Given,
    Setting,
    constants_of,
    inputs_of,
    round_bytes,
    round_seconds,
    rounds_within,
    scaled,
)
from fedjax_opt.planning.tuned import TunedRun

_ROWS = 8  # cohorts and what-ifs are solved in blocks of so many: one program for both
FACTORS = (0.5, 2.0)


class CohortChoice(NamedTuple):
    """The best that a cohort size allows.

    Attributes:
      cohort_size: N.
      local_steps: K.
      learning_rate: eta.
      rounds: R, within the budget.
      round_seconds: the mean time of a round, which is its slowest client's.
      total_bytes: what all clients together send and receive.
      bound: the bound's value.
    """

    cohort_size: int
    local_steps: int
    learning_rate: float
    rounds: int
    round_seconds: float
    total_bytes: float
    bound: float


class WhatIf(NamedTuple):
    """The plan if one input were half or twice what it is.

    Attributes:
      local_steps: K.
      learning_rate: eta.
      bound: the bound's value.
    """

    local_steps: int
    learning_rate: float
    bound: float


def solve(
    settings: list[Setting],
    cohort_sizes: list[int],
    given: Given,
) -> list[Best]:
    """The best K and eta for each pair of a setting and a cohort size, as NumPy scalars."""
    rows = -(-len(settings) // _ROWS) * _ROWS
    padded = [settings[i % len(settings)] for i in range(rows)]
    sizes = np.resize(np.asarray(cohort_sizes, np.float64), rows)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
    blocks = [
        best_for_each(
            jax.tree.map(lambda leaf, i=i: leaf[i : i + _ROWS], stacked),
            sizes[i : i + _ROWS],
            float(given.max_local_steps),
            np.nan if given.learning_rate is None else given.learning_rate,
            np.nan if given.local_steps is None else float(given.local_steps),
        )
        for i in range(0, rows, _ROWS)
    ]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], joined) for i in range(len(settings))]


def compare_cohorts(
    setting: Setting, cohort_sizes: list[int], solved: list[Best]
) -> list[CohortChoice]:
    """A `CohortChoice` for each cohort size whose budget lasts for a round."""
    return [
        CohortChoice(
            cohort_size=size,
            local_steps=int(best.local_steps),
            learning_rate=float(best.learning_rate),
            rounds=int(best.rounds * (1 + 1e-9)),
            round_seconds=float(best.round_seconds),
            total_bytes=int(best.rounds * (1 + 1e-9)) * size * float(round_bytes(setting)),
            bound=float(best.bound.value),
        )
        for size, best in zip(cohort_sizes, solved, strict=True)
        if best.rounds >= 1 - 1e-9
    ]


def smallest_good_cohort(choices: list[CohortChoice], tolerance: float) -> CohortChoice:
    """The smallest cohort whose bound is hardly above the best: every client costs bytes."""
    best = min(choice.bound for choice in choices)
    good = [choice for choice in choices if choice.bound <= best * (1 + tolerance)]
    return min(good, key=lambda choice: choice.cohort_size)


def what_ifs(
    setting: Setting,
    cohort_size: int,
    most_clients: int | None,
    given: Given,
) -> tuple[dict[str, tuple[WhatIf | None, WhatIf | None]], dict[str, dict[str, float]]]:
    """The plan with each input halved and doubled, None where there is none; and how outputs change.

    An output's elasticity is the slope of its logarithm between the two: -0.5 says that twice the input
    divides it by the root of two.
    """
    names = list(inputs_of(setting))
    settings = [scaled(setting, {name: factor}) for name in names for factor in FACTORS]
    if setting.constants is None:
        costs = [_costs(each, cohort_size, float(given.local_steps or 1)) for each in settings]
        return {}, _slopes(names, costs)
    sizes = [cohort_size] * len(settings)
    names.append("cohort size")
    settings += [setting, setting]
    sizes += [max(cohort_size // 2, 1), cohort_size * 2]
    most = most_clients or sizes[-1]
    solved = solve(settings, [min(n, most) for n in sizes], given)
    results = [
        _what_if(best) if size <= most else None for best, size in zip(solved, sizes, strict=True)
    ]
    plans = dict(zip(names, zip(results[::2], results[1::2], strict=True), strict=True))
    outputs = []
    for each, best in zip(settings[:-2], solved, strict=False):
        steps = float(given.local_steps or max(best.real_steps, 1.0))
        chosen = {"local steps": steps, "learning rate": float(best.real_rate)}
        costs = _costs(each, cohort_size, steps)
        outputs.append({**chosen, **costs, "bound": float(best.bound.value)})
    return plans, _slopes(names[:-1], outputs)


def _costs(setting: Setting, cohort_size: int, local_steps: float) -> dict[str, float]:
    """What a run within the budgets takes."""
    rounds = float(rounds_within(setting, float(cohort_size), local_steps))
    seconds = rounds * float(round_seconds(setting, float(cohort_size), local_steps))
    spent = rounds * cohort_size * float(round_bytes(setting))
    return {"rounds": rounds, "seconds": seconds, "bytes": spent}


def _slopes(names: list[str], outputs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The elasticities of all outputs, from those with half and twice of each input."""
    span = np.log(FACTORS[1] / FACTORS[0])
    return {
        name: {key: round(float(np.log(twice[key] / half[key]) / span), 9) + 0.0 for key in half}
        for name, half, twice in zip(names, outputs[::2], outputs[1::2], strict=True)
    }


def _what_if(best):
    # A budget that does not last for a round, or constants that no function has, leave no plan.
    if best.rounds < 1 - 1e-9 or not (
        best.bound.assumptions["kappa >= 1"] and best.bound.assumptions["F(x0) >= F*"]
    ):
        return None
    return WhatIf(int(best.local_steps), float(best.learning_rate), float(best.bound.value))


def forecasts_of(
    setting: Setting,
    cohort_size: int,
    local_steps: int,
    given: Given,
    energy: EnergyRates | None,
) -> list[Forecast]:
    """The schedules of Table 3 that need no data, within the budget.

    A K_0 that was given is that of all of them. Otherwise 'fixed' and K-step have the best fixed K, and
    K-rounds has the K_0 with which it has its own smallest bound.
    """
    eta = given.learning_rate
    limits = schedules.limits_of(setting, cohort_size, given.max_local_steps)
    first = given.local_steps or _best_initial_steps(setting, cohort_size, limits, eta)
    rows = {
        "fixed": (f"local_steps={local_steps}", schedules.fixed(local_steps)),
        "K-rounds": (
            f"local_steps=fo.controllers.steps_by_rounds({first})",
            schedules.by_rounds(first),
        ),
        "dSGD": ("local_steps=1", schedules.fixed(1)),
    }
    tuned = setting.constants
    if isinstance(tuned, TunedRun) and tuned.local_steps <= given.max_local_steps:
        K = int(tuned.local_steps)
        use = f"local_steps=fo.controllers.steps_by_rounds({K})"
        rows["fixed, as tuned"] = (f"local_steps={K}", schedules.fixed(K))
        rows["K-rounds, as tuned"] = (use, schedules.by_rounds(K))
    if given.plateau_round is not None:
        rows["K-step"] = (
            f"local_steps=fo.controllers.steps_on_plateau({local_steps})",
            schedules.stepped(local_steps, given.plateau_round),
        )
    fitted = {name: schedules.within(limits, *schedule) for name, (_, schedule) in rows.items()}
    # A K_0 that was tuned elsewhere may be too long for even one round.
    fitted = {name: schedule for name, schedule in fitted.items() if len(schedule[0])}
    etas, bounds = [eta] * len(fitted), [None] * len(fitted)
    if setting.constants is not None:
        judged = schedules.judge(
            constants_of(setting, float(cohort_size)), list(fitted.values()), eta
        )
        etas, bounds = (found.tolist() for found in judged)
    return [
        schedules.forecast(
            name, rows[name][0], schedule, setting, cohort_size, limits, energy, eta, bound
        )
        for (name, schedule), eta, bound in zip(fitted.items(), etas, bounds, strict=True)
    ]


def recommended(forecasts: list[Forecast], tolerance: float) -> str:
    """The schedule with the smallest bound; a fixed K if it is as good; without bounds, K-rounds."""
    bounds = {row.name: row.bound for row in forecasts if row.bound is not None}
    if not bounds:
        return "K-rounds"
    best = min(bounds, key=bounds.__getitem__)
    return "fixed" if bounds["fixed"] <= bounds[best] * (1 + tolerance) else best


def _best_initial_steps(
    setting: Setting, cohort_size: int, limits: Limits, learning_rate: float | None
) -> int:
    """The K_0 of K-rounds with the smallest bound, within 2%: the bound is flat there."""
    most = int(np.searchsorted(limits.times, limits.seconds * (1 + 1e-12), side="right")) - 1
    grid = np.unique(np.geomspace(1, most, 400).astype(int)) if most > 1 else np.array([1])
    fitted = [schedules.within(limits, *schedules.by_rounds(int(first))) for first in grid]
    constants = constants_of(setting, float(cohort_size))
    return int(grid[np.argmin(schedules.judge(constants, fitted, learning_rate)[1])])
