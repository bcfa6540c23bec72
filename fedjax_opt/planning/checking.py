"""Refuses what no plan can be made of, in words for the person who asked for it."""

import math
from typing import Any

import numpy as np

from fedjax_opt.bounds import FedAvgConstants
from fedjax_opt.bounds.theorem import checked
from fedjax_opt.core import checks
from fedjax_opt.costs import client_seconds
from fedjax_opt.planning.setting import BUDGETS, Setting, known_shares
from fedjax_opt.planning.text import in_bytes, in_time
from fedjax_opt.planning.tuned import TunedRun, check_tuned


def both_ways(model_megabits: Any) -> tuple[Any, Any]:
    """What travels down and up: one size for both, or a pair."""
    sizes = model_megabits if isinstance(model_megabits, (tuple, list)) else [model_megabits] * 2
    if len(sizes) != 2 or any(np.ndim(size) for size in sizes):
        raise ValueError(
            "federation must be a Federation, or |x| in megabits, or a pair (down, up) of them, got"
            f" {model_megabits!r:.80}."
        )
    for size in sizes:
        checks.number("model_megabits", size, low=0.0, open_low=True, open_high=True)
    return tuple(sizes)


def check_budget(setting: Setting) -> None:
    """Refuses budgets that are missing, or nothing."""
    budgets = {name: getattr(setting, name) for name in BUDGETS}
    if all(value is None for value in budgets.values()):
        raise ValueError(
            f"a budget must be given, one or more of {', '.join(budgets)}; got none of them."
        )
    for name, value in budgets.items():
        if value is not None:
            checks.number(name, value, low=0.0, open_low=True, open_high=True)


def check_one_round(setting: Setting, cohort_size: int, local_steps: int = 1) -> None:
    """Refuses budgets that do not last for one round."""
    # Out of `jit`, so that sizes which would take days are refused.
    client_seconds(setting.devices, 1.0, setting.megabits_down, setting.megabits_up)
    for name, share in known_shares(setting, cohort_size, local_steps).items():
        if share <= 1 + 1e-9:
            continue
        budget = float(getattr(setting, name))
        needs = f"a round takes {in_bytes(share * budget)}"
        if name == "seconds":
            sent = known_shares(setting, cohort_size, 0)[name] * budget
            step = share * budget - sent
            needs = (
                f"sending the model there and back takes {sent:.4g} s, and {local_steps} local"
                f" step{'s'[: local_steps > 1]} {step:.4g} s"
            )
        amount = {"seconds": in_time, "rounds": "{:g}".format}.get(name, in_bytes)(budget)
        raise ValueError(f"{name} must last for at least one round, got {amount}: {needs}.")


def check_constants(constants: FedAvgConstants | TunedRun | None) -> None:
    """Refuses constants that no problem has, or from which no bound follows."""
    if constants is None:
        return
    if isinstance(constants, TunedRun):
        return check_tuned(constants)
    if not isinstance(constants, FedAvgConstants):
        raise ValueError(
            "constants must be FedAvgConstants, a TunedRun or None, got"
            f" {type(constants).__name__}."
        )
    checked("constants", constants, FedAvgConstants)
    L, mu = float(constants.smoothness), float(constants.strong_convexity)
    if not mu > 0 or math.isinf(mu):
        raise ValueError(
            f"constants.strong_convexity must be above 0, got {mu:g}: the bound is one for strongly"
            " convex losses. Where mu is not known, plan from a K and an eta that were found good (a"
            " TunedRun), or with a K_0 and no constants."
        )
    if mu > L * (1 + 1e-9):
        raise ValueError(
            f"kappa = smoothness / strong_convexity must be at least 1, got {L:g} / {mu:g} ="
            f" {L / mu:.3g}: no function curves more in its flattest direction (mu) than in its"
            " steepest (L). Were the two exchanged?"
        )
    start, least = float(constants.initial_loss), float(constants.optimal_loss)
    if not start > least:
        raise ValueError(
            f"constants.initial_loss must be above optimal_loss, got {start:g} and {least:g}: there"
            " would be nothing to train."
        )


def cohort_candidates(
    cohort_size: Any, constants: FedAvgConstants | TunedRun | None, most: int | None
) -> list[int]:
    """The cohort sizes to compare, in ascending order."""
    if cohort_size is None and constants is None:
        raise ValueError("cohort_size must be given where constants are not, got None.")
    if cohort_size is None:
        cohort_size = int(constants.cohort_size)  # pyright: ignore[reportOptionalMemberAccess]
    sizes = cohort_size if np.ndim(cohort_size) else [cohort_size]
    sizes = sorted({checks.integer("cohort_size", size, low=1) for size in list(sizes)})
    if not sizes:
        raise ValueError("cohort_size must hold at least one size, got none.")
    if most is not None and sizes[-1] > most:
        raise ValueError(f"cohort_size must be at most all {most} clients, got {sizes[-1]}.")
    return sizes


def check_setting(setting: Setting) -> int | None:
    """Checks sizes and budgets; returns the most clients that a cohort may have, None for any."""
    check_budget(setting)
    if setting.client_variance is not None:
        checks.number("client_variance", setting.client_variance, low=0.0, open_high=True)
    if setting.num_clients is not None:
        checks.integer("num_clients", setting.num_clients, low=1)
    counts = [np.size(field) for field in setting.devices if np.ndim(field)]
    if setting.num_clients is not None:
        counts.append(setting.num_clients)
    return min(counts) if counts else None
