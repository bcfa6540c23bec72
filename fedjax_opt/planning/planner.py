"""`plan`: from a model, its links, devices and constants to how to train it within a budget.

Theorem 1 of Mills et al. (2023), with the runtime model of its section 3.2, is minimised over K, eta and
the cohort. What a schedule costs follows from the runtime model alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.bounds import Bound, FedAvgConstants
from fedjax_opt.core import Algorithm, Federation, checks
from fedjax_opt.core.compatibility import enable_x64
from fedjax_opt.costs import Devices, EnergyRates
from fedjax_opt.costs.round_time import check_devices
from fedjax_opt.planning import candidates, checking
from fedjax_opt.planning.candidates import CohortChoice, WhatIf
from fedjax_opt.planning.notes import notes_of
from fedjax_opt.planning.problem import problem_of
from fedjax_opt.planning.schedules import Forecast
from fedjax_opt.planning.setting import (
    Given,
    Setting,
    as_numbers,
    limiting_budget,
)
from fedjax_opt.planning.tuned import TunedRun

_MOST_STEPS = 10_000


class Plan(NamedTuple):
    """How to train within a budget, what it costs, and how much each input matters.

    `print(fo.planning.table(plan))` shows it, `fo.planning.save_plot` draws it.

    Attributes:
      setting: what it was made for, in float64.
      given: what was not to be chosen, and the limits of the choice.
      local_steps: K, the best whole number if it is the same in all rounds; or the K_0 that was given.
      real_steps: K*, the bound's best real number; None without constants.
      learning_rate: eta; None if it was not given and there is no bound to choose it.
      unclipped_rate: eta if 1/(4L) were no limit.
      cohort_size: N.
      cohorts: what each candidate cohort size allows.
      schedule: the name of the recommended forecast.
      forecasts: the schedules within the budget, and what they cost.
      limited_by: the budget that is used up first.
      bound: the `Bound` of (8) at K, eta and N; None without constants. Its assumptions say which hold.
      elasticities: by input and output, the slope of log(output) between half of the input and twice.
      what_ifs: by input, the plan with half of it and with twice; None where there is none.
      notes: what a person should know before acting on it.

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
    """

    setting: Setting
    given: Given
    local_steps: int
    real_steps: float | None
    learning_rate: float | None
    unclipped_rate: float | None
    cohort_size: int
    cohorts: tuple[CohortChoice, ...]
    schedule: str
    forecasts: tuple[Forecast, ...]
    limited_by: str
    bound: Bound | None
    elasticities: dict[str, dict[str, float]]
    what_ifs: dict[str, tuple[WhatIf | None, WhatIf | None]]
    notes: tuple[str, ...]

    @property
    def recommended(self) -> Forecast:
        """The recommended schedule: its rounds, seconds, bytes, and how to use it."""
        return next(row for row in self.forecasts if row.name == self.schedule)

    @property
    def rate_clipped(self) -> bool:
        """Whether the bound alone would take a larger eta than the 1/(4L) up to which it holds."""
        if self.learning_rate is None or self.unclipped_rate is None:
            return False
        return self.unclipped_rate > self.learning_rate * (1 + 1e-9)


def plan(
    federation: Federation | Any,
    devices: Devices | None = None,
    *,
    algorithm: Algorithm | None = None,
    constants: FedAvgConstants | TunedRun | None = None,
    client_variance: float | None = None,
    seconds: float | None = None,
    rounds: int | None = None,
    total_bytes: float | None = None,
    client_bytes: float | None = None,
    cohort_size: int | Sequence[int] | None = None,
    num_clients: int | None = None,
    learning_rate: float | None = None,
    local_steps: int | None = None,
    plateau_round: int | None = None,
    max_local_steps: int = 1000,
    tolerance: float = 0.01,
    energy: EnergyRates | None = None,
) -> Plan:
    """Plans a training within a budget: local steps, learning rate and cohort, with what they cost.

    With constants, FedAvg's bound is minimised over K, eta <= 1/(4L) and N, with as many rounds as all
    budgets allow. Without, K_0 = `local_steps` was found by a search, and only costs are predicted.
    Its arguments are known numbers; inside `jit` or `vmap`, use `fo.bounds.best_plan`.

    Args:
      federation: what is trained, from which all that travels and is computed is derived; or without one
        |x| in megabits, or a pair (down, up) such as `fo.costs.megabits(cost)`.
      devices: the clients' `Devices`; if they differ, those of all clients or of a sample. None, with a
        federation: a Raspberry Pi 3B+ over 4G, on which a local step takes as long as its operations do.
      algorithm: what a federation is trained by; None for FedAvg.
      constants: the bound's constants, or a `TunedRun` from which to assume them. Their cohort size is
        the default.
      client_variance: sigma^2 of one client's minibatch gradient, of which a cohort has sigma^2/N; added
        to `constants.noise`, which is that of all clients and does not depend on N.
      seconds: a budget: the time of the whole run.
      rounds: a budget: how many rounds there may be.
      total_bytes: a budget: what all clients together may send and receive.
      client_bytes: a budget: what each client may send and receive, in the mean over all clients.
      cohort_size: N, or several to choose from: the smallest that is as good as any, up to
        `tolerance`. None for the federation's.
      num_clients: all clients, from whom cohorts are drawn. None for the federation's, and without one
        if every client is in every round.
      learning_rate: eta, if it is not to be chosen.
      local_steps: K_0, if it is not to be chosen; without constants None is the federation's.
      plateau_round: the round at which K-step is assumed to step down; None to leave that schedule out.
      max_local_steps: no K is above it.
      tolerance: how much larger a bound may be for a smaller cohort, or a simpler schedule.
      energy: what work costs the clients, for a forecast in joules.

    Returns:
      A `Plan`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=4.0, strong_convexity=0.1, initial_loss=4.1, gradient_bound=0.5,
      ...     heterogeneity=1.0, cohort_size=60,
      ... )
      >>> phones = fo.costs.devices(download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> plan = fo.plan(6.71, phones, constants=constants, seconds=36_000)
      >>> plan.local_steps, round(plan.learning_rate, 4), plan.recommended.rounds
      (3, 0.0056, 20827)
      >>> round(plan.elasticities["upload"]["bound"], 2)
      -0.38

      What a federation costs as it is, in an hour:

      >>> plan = fo.plan(fo.tasks.digits(), seconds=3600)
      >>> plan.local_steps, plan.cohort_size, plan.recommended.rounds > 10_000
      (20, 5, True)

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
    """
    sent: Any = federation
    if isinstance(federation, Federation):
        known = problem_of(federation, algorithm, devices)
        sent, devices = known.model_megabits, known.devices
        num_clients = known.num_clients if num_clients is None else num_clients
        cohort_size = known.cohort_size if cohort_size is None else cohort_size
        if constants is None and local_steps is None:
            local_steps = known.local_steps
    elif devices is None or algorithm is not None:
        raise ValueError(
            "federation must be a Federation where devices are left out or an algorithm is given, got"
            f" {federation!r:.80}."
        )
    down, up = checking.both_ways(sent)
    check_devices(devices)
    setting = Setting(
        down, up, devices, num_clients, constants, client_variance,
        seconds, rounds, total_bytes, client_bytes,
    )  # fmt: skip
    most = checking.check_setting(setting)
    checking.check_constants(constants)
    sizes = checking.cohort_candidates(cohort_size, constants, most)
    given = _given(learning_rate, local_steps, plateau_round, max_local_steps, tolerance)
    if constants is None and local_steps is None:
        raise ValueError(
            "constants or local_steps must be given: without the bound's constants, K_0 cannot be"
            " chosen. Take one that a search found good, here or in a TunedRun."
        )
    setting = as_numbers(setting)
    with enable_x64():  # a flat minimum needs the digits
        checking.check_one_round(setting, sizes[0], local_steps or 1)
        return _plan(setting, sizes, most, given, energy)


def _given(learning_rate, local_steps, plateau_round, max_local_steps, tolerance):
    if learning_rate is not None:
        checks.number("learning_rate", learning_rate, low=0.0, open_low=True, open_high=True)
        learning_rate = float(learning_rate)
    checks.number("tolerance", tolerance, low=0.0, open_high=True)
    most = checks.integer("max_local_steps", max_local_steps, low=1)
    if most > _MOST_STEPS:
        raise ValueError(f"max_local_steps must be at most {_MOST_STEPS}, got {max_local_steps!r}.")
    if local_steps is not None and checks.integer("local_steps", local_steps, low=1) > most:
        raise ValueError(
            f"local_steps must be at most max_local_steps={most}, got {local_steps!r}."
        )
    if plateau_round is not None:
        checks.integer("plateau_round", plateau_round, low=1)
    return Given(learning_rate, local_steps, plateau_round, most, float(tolerance))


def _plan(setting, sizes, most, given, energy):
    solved, cohorts, size = None, [], sizes[0]
    if setting.constants is not None:
        all_solved = candidates.solve([setting] * len(sizes), sizes, given)
        cohorts = candidates.compare_cohorts(setting, sizes, all_solved)
        size = candidates.smallest_good_cohort(cohorts, given.tolerance).cohort_size
        solved = all_solved[sizes.index(size)]
    elif len(sizes) > 1:
        raise ValueError(
            f"cohort_size must be one number where there are no constants, got {sizes}."
        )
    steps = int(solved.local_steps) if solved else given.local_steps
    forecasts = candidates.forecasts_of(setting, size, steps, given, energy)
    what_ifs, elasticities = candidates.what_ifs(setting, size, most, given)
    made = Plan(
        setting=setting,
        given=given,
        local_steps=steps,
        real_steps=float(solved.real_steps) if solved else None,
        learning_rate=float(solved.learning_rate) if solved else given.learning_rate,
        unclipped_rate=float(solved.unclipped_rate) if solved else None,
        cohort_size=size,
        cohorts=tuple(cohorts),
        schedule=candidates.recommended(forecasts, given.tolerance),
        forecasts=tuple(forecasts),
        limited_by=limiting_budget(setting, float(size), float(steps)),
        bound=_plain(solved.bound) if solved else None,
        elasticities=elasticities,
        what_ifs=what_ifs,
        notes=(),
    )
    return made._replace(notes=notes_of(made))


def _plain(bound: Bound) -> Bound:
    """The same with Python's numbers."""
    return jax.tree.map(lambda leaf: np.asarray(leaf).item(), bound)
