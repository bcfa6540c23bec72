"""What a schedule of local steps costs until a budget is used up, and what Theorem 1 says of it.

A schedule is kept as runs of equal K: ceil(K_0 r^(-1/3)) has at most K_0 of them, however many rounds
there are, and sums over its rounds are exact. Of Table 3 of Mills et al. (2023), these need no data:

    dSGD       K_r = 1
    fixed      K_r = K_0
    K-rounds   K_r = ceil(K_0 r^(-1/3))
    K-step     K_r = K_0 until a given round, then ceil(K_0/10)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds import FedAvgConstants, Rounds, fedavg, optimal_learning_rate
from fedjax_opt.costs import Cost, EnergyRates, Prices, spent
from fedjax_opt.planning.setting import (
    BYTES_PER_MEGABIT,
    Setting,
    participation,
    round_bytes,
    round_seconds,
)

_FOREVER = 2**62
_ROUNDING = 1e-9  # what is short of a whole round by so little is a whole round
_ROWS = 256  # schedules are judged in blocks of so many: one program for all plans


class Forecast(NamedTuple):
    """A schedule of local steps within the budget, and what it costs.

    Attributes:
      name: as in the paper's Table 3: 'fixed', 'K-rounds', 'dSGD' or 'K-step'.
      use: the arguments of `simulate` that follow it, as Python.
      runs: pairs (K, rounds) in the order in which they are played.
      run_seconds: how long each of them takes.
      learning_rate: eta, or None if nobody gave or chose one.
      rounds: R.
      local_steps: sum_r K_r, the steps of a client that is in every cohort.
      seconds: the time of all rounds, in the mean over cohorts.
      total_bytes: what all clients together send and receive.
      client_bytes: the same for one client, in the mean over all clients.
      joules: what all clients together spend, or None without energy rates.
      bound: Theorem 1's, or None without constants.
    """

    name: str
    use: str
    runs: tuple[tuple[int, int], ...]
    run_seconds: tuple[float, ...]
    learning_rate: float | None
    rounds: int
    local_steps: int
    seconds: float
    total_bytes: float
    client_bytes: float
    joules: float | None
    bound: float | None


class Limits(NamedTuple):
    """What a run may take: whole rounds, seconds, and the seconds of a round by its K."""

    rounds: int
    seconds: float
    times: np.ndarray


def limits_of(setting: Setting, cohort_size: int, max_local_steps: int) -> Limits:
    """The limits for a cohort; `times[K]` for K up to `max_local_steps`."""
    each = float(round_bytes(setting))
    share = float(participation(setting, cohort_size))
    rounds = min(
        float(setting.rounds),
        float(setting.total_bytes) / (cohort_size * each),
        float(setting.client_bytes) / (share * each),
    )
    steps = np.arange(max_local_steps + 1, dtype=np.float64)
    times = np.asarray(_times(setting, float(cohort_size), steps))
    return Limits(_floor(rounds), float(setting.seconds), times)


@jax.jit
def _times(setting, cohort_size, steps):
    return jax.lax.map(lambda k: round_seconds(setting, cohort_size, k), steps, batch_size=64)


def _floor(number):
    """The whole part; what rounding has pushed below a whole number is that number."""
    return int(np.floor(min(number * (1 + _ROUNDING), _FOREVER)))


def fixed(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """K in every round: the values of K, and how many rounds each is used at most."""
    return np.array([steps]), np.array([_FOREVER])


def by_rounds(initial_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """K_r = ceil(K_0 r^(-1/3)), as `controllers.steps_by_rounds`, without a cube root.

    K_r >= k as long as (k - 1)^3 r < K_0^3.
    """
    values = np.arange(initial_steps, 0, -1)
    last = (initial_steps**3 - 1) // np.maximum(values - 1, 1) ** 3
    last[-1] = _FOREVER
    counts = np.diff(last, prepend=0)
    return values[counts > 0], counts[counts > 0]


def stepped(initial_steps: int, plateau_round: int) -> tuple[np.ndarray, np.ndarray]:
    """K_0 for so many rounds, then a tenth of it."""
    return np.array([initial_steps, -(-initial_steps // 10)]), np.array([plateau_round, _FOREVER])


def within(limits: Limits, values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The part of a schedule that the limits allow, in whole rounds."""
    times = limits.times[values]
    counts = np.minimum(counts, np.maximum(limits.rounds - _before(counts), 0))
    if np.isfinite(limits.seconds):
        # Where a run is cut short, no time is left for those after it.
        left = limits.seconds * (1 + _ROUNDING) - _before(counts * times)
        counts = np.minimum(counts, np.maximum(np.floor(left / times), 0).astype(np.int64))
    return values[counts > 0], counts[counts > 0]


def _before(amounts):
    """The sum of what came before each; that of the last run, which may be endless, is in none."""
    return np.concatenate([[0], np.cumsum(amounts[:-1])]).astype(amounts.dtype)


def judge(
    constants: FedAvgConstants, schedules: list[tuple], learning_rate: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Theorem 1's eta and bound for each schedule (values, counts) of one or more rounds.

    With K^2 = sum K_r^3 / sum K_r and T = sum K_r it is the bound of a fixed K after T/K rounds.
    """
    total = np.array([float(np.sum(v * n)) for v, n in schedules])
    typical = np.sqrt([float(np.sum(v.astype(np.float64) ** 3 * n)) for v, n in schedules] / total)
    rows = -(-len(total) // _ROWS) * _ROWS
    padded = [np.resize(values, rows) for values in (typical, total / typical)]
    eta = np.nan if learning_rate is None else learning_rate
    etas, bounds = _judge(constants, *padded, eta)
    return np.asarray(etas)[: len(total)], np.asarray(bounds)[: len(total)]


@jax.jit
def _judge(constants, steps, rounds, learning_rate):
    best = optimal_learning_rate(constants, steps, Rounds(rounds)).value
    eta = jnp.where(jnp.isnan(learning_rate), best, learning_rate)
    return eta, fedavg(constants, eta, steps, Rounds(rounds)).value


def forecast(
    name: str,
    use: str,
    schedule: tuple[np.ndarray, np.ndarray],
    setting: Setting,
    cohort_size: int,
    limits: Limits,
    energy: EnergyRates | None,
    learning_rate: float | None,
    bound: float | None,
) -> Forecast:
    """The costs of a schedule that is within the limits already."""
    values, counts = schedule
    rounds, steps = int(np.sum(counts)), int(np.sum(values * counts))
    seconds = limits.times[values] * counts
    total_bytes = rounds * cohort_size * float(round_bytes(setting))
    return Forecast(
        name=name,
        use=use,
        runs=tuple(zip(values.tolist(), counts.tolist(), strict=True)),
        run_seconds=tuple(seconds.tolist()),
        learning_rate=learning_rate,
        rounds=rounds,
        local_steps=steps,
        seconds=float(np.sum(seconds)),
        total_bytes=total_bytes,
        client_bytes=total_bytes / cohort_size * float(participation(setting, cohort_size)),
        joules=_joules(energy, setting, cohort_size, rounds, steps),
        bound=bound,
    )


def _joules(energy: EnergyRates | None, setting: Any, cohort_size: int, rounds: int, steps: int):
    """Energy is linear in K, so that its sum over a run needs two rounds only."""
    if energy is None:
        return None
    everyone = np.arange(max(np.size(field) for field in (*setting.devices, *energy)))
    down = setting.megabits_down * BYTES_PER_MEGABIT
    up = setting.megabits_up * BYTES_PER_MEGABIT
    prices = Prices(traffic=Cost(down, up, 0, 0, 0, 0), devices=setting.devices, energy=energy)
    history = {
        "cohort": np.stack([everyone, everyone]),
        "num_steps": np.array([[1], [2]]) + 0 * everyone,
    }
    one, both = spent(history, prices).joules / len(everyone)
    each_step = both - 2 * one
    return cohort_size * float(rounds * (one - each_step) + steps * each_step)
