"""What a run has spent: simulated seconds, bytes, operations and joules, and until a target was reached.

Rounds alone flatter an algorithm that sends or computes more in each of them. Here every round of a
history has its price. The energy of a client in a round is

    E_r^c = e_f N_r^c + e_s K_r beta_c + e_d b_d + e_u b_u

with N its operations, K beta the seconds that it computes, b_d and b_u the bytes that it downloads and
uploads. A device is described by its power while it computes (e_s, in watts) or by what an operation
costs (e_f); give one of the two, or both where there is a base load.
"""

from typing import Any, NamedTuple

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.costs.operations import Flops
from fedjax_opt.costs.round_time import (
    Devices,
    check_cohort,
    check_devices,
    megabits,
    of_cohort,
    per_client,
    round_seconds,
)
from fedjax_opt.costs.traffic import Cost
from fedjax_opt.metrics import rounds_to_target


class EnergyRates(NamedTuple):
    """What work costs a client. Each field is one number for all clients, or one per client `[N]`.

    Attributes:
      joules_per_flop: e_f, for each operation.
      joules_per_second: e_s, for each second of computing: the device's power in watts.
      joules_per_byte_down: e_d, for each byte received.
      joules_per_byte_up: e_u, for each byte sent.
    """

    joules_per_flop: chex.Numeric = 0.0
    joules_per_second: chex.Numeric = 0.0
    joules_per_byte_down: chex.Numeric = 0.0
    joules_per_byte_up: chex.Numeric = 0.0


class Prices(NamedTuple):
    """What a round of an algorithm costs; what is left out is not counted.

    Attributes:
      traffic: the bytes of a client and round; `fedjax_opt.costs.of(algorithm, variables)`.
      flops: a client's operations; from `client_flops`.
      devices: the clients' `Devices`, for seconds; they need the traffic too.
      energy: `EnergyRates`, for joules.
      deadline: the seconds that the server waits at most; see `round_seconds`. It times the run, and
        changes nothing in it: clients who would have been late are in the history unless the run's
        sampler left them out (`on_time`).
      await_absent: whether it waits for those who never report; see `round_seconds`.
      probe_steps: the minibatches that a client computes before its local steps: n/B for the full-batch
        gradient of Mime, MimeLite and SCAFFOLD's option I. They take time, and are not in `num_steps`.
    """

    traffic: Cost | None = None
    flops: Flops | None = None
    devices: Devices | None = None
    energy: EnergyRates | None = None
    deadline: chex.Numeric | None = None
    await_absent: bool = True
    probe_steps: chex.Numeric = 0


class Spent(NamedTuple):
    """What was spent, all clients together; None for what has no price.

    Attributes:
      rounds: communication rounds.
      seconds: simulated time by the runtime model.
      bytes_down: downloaded by those who took part.
      bytes_up: uploaded by those who took part.
      flops: operations of those who took part.
      joules: energy of those who took part; what those spend who drop out is not in a history.
    """

    rounds: Any
    seconds: Any = None
    bytes_down: Any = None
    bytes_up: Any = None
    flops: Any = None
    joules: Any = None


def spent(history: Any, prices: Prices) -> Spent:
    """What a run had spent at the end of each of its rounds.

    Args:
      history: `Result.history` of `simulate` or `Run.history` of `run_rounds`: whatever holds `cohort`
        and `num_steps`, `[R, S]`, or `[..., R, S]` of many runs.
      prices: `Prices`.

    Returns:
      A `Spent` of cumulative float64 arrays `[..., R]`; None for what has no price.

    Example:
      Two watts for steps of half a second, and a microjoule for each byte that is sent:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> history = {"cohort": [[0, 1], [1, -1]], "num_steps": [[4, 4], [2, 0]]}
      >>> prices = fo.costs.Prices(
      ...     traffic=fo.costs.of(fo.fedavg(fo.optimizers.sgd(0.1)), fo.Variables(jnp.zeros(250))),
      ...     flops=fo.costs.Flops(step=10.0),
      ...     devices=fo.costs.devices(20.0, 5.0, 0.5),
      ...     energy=fo.costs.EnergyRates(joules_per_second=2.0, joules_per_byte_up=1e-6),
      ... )
      >>> total = fo.costs.spent(history, prices)
      >>> total.flops.tolist(), total.joules.round(3).tolist()
      ([80.0, 100.0], [8.002, 10.003])
    """
    cohort, num_steps = (np.asarray(_column(history, name)) for name in ("cohort", "num_steps"))
    check_cohort(cohort, None)
    if cohort.ndim < 2 or cohort.shape != num_steps.shape:
        raise ValueError(
            f"history must hold cohort and num_steps [R, S], got shapes {list(cohort.shape)} and"
            f" {list(num_steps.shape)}."
        )
    _check(prices)
    traffic, flops, energy = prices.traffic, prices.flops, prices.energy
    checks.number("num_steps", num_steps, low=0.0)
    present = (cohort >= 0) & (num_steps > 0)
    asked = np.where(present, num_steps + np.asarray(prices.probe_steps), 0)
    slots: dict[str, Any] = {}  # what each client spends in a round, [..., R, S]
    if traffic is not None:
        slots = {n: np.float64(getattr(traffic, n)) for n in ("bytes_down", "bytes_up")}
    if flops is not None:
        slots["flops"] = flops.client(num_steps.astype(float))
    if energy is not None:
        # Operations of a probe are in flops.probe, its time in the steps that were asked for.
        seconds = 0.0
        if prices.devices is not None:
            fleet, population = check_devices(prices.devices)
            check_cohort(cohort, population)
            seconds = asked * np.float64(of_cohort(fleet.seconds_per_step, cohort))
        rates, population = per_client(energy._asdict())
        check_cohort(cohort, population)
        amounts = (slots.get("flops"), seconds, slots.get("bytes_down"), slots.get("bytes_up"))
        slots["joules"] = sum(
            np.float64(of_cohort(rate, cohort)) * amount
            for rate, amount in zip(rates, amounts, strict=True)
            if amount is not None
        )
    rounds = {name: np.where(present, each, 0).sum(-1) for name, each in slots.items()}
    if prices.devices is not None and traffic is not None:
        down, up = megabits(traffic.bytes_down), megabits(traffic.bytes_up)
        rounds["seconds"] = round_seconds(
            prices.devices, cohort, asked, down, up, prices.deadline, prices.await_absent
        ).seconds
    totals = {name: np.cumsum(np.float64(each), axis=-1) for name, each in rounds.items()}
    return Spent(np.arange(1, cohort.shape[-2] + 1), **totals)


def cost_to_target(
    result: Any,
    target: float,
    prices: Prices = Prices(),  # noqa: B008 -- immutable
    metric: str = "accuracy",
    maximise: bool = True,
) -> Spent | None:
    """What a run had spent when it first reached a target; None if it never did.

    Args:
      result: a `Result` of `simulate`, whose evaluations are searched.
      target: the value to reach.
      prices: `Prices`.
      metric: the name of the evaluated metric.
      maximise: whether larger is better.

    Returns:
      A `Spent` of numbers, or None.

    Example:
      >>> import fedjax_opt as fo
      >>> digits, suggested = fo.tasks.digits(), fo.tasks.suggested("digits")
      >>> result = fo.simulate(suggested.algorithm("fedavg"), digits, 20, progress=False)
      >>> prices = fo.costs.Prices(fo.costs.of(suggested.algorithm("fedavg"), result.variables))
      >>> cost = fo.costs.cost_to_target(result, 0.2, prices)
      >>> cost.bytes_up == cost.rounds * 5 * 19_240  # five clients, 4,810 parameters
      True
    """
    checks.number("target", target)
    if metric not in result.evaluations:
        raise ValueError(
            f"metric must be one of the evaluated {sorted(result.evaluations)}, got {metric!r}."
            " Without a test set nothing is evaluated."
        )
    rounds, values = result.evaluations["round"], result.evaluations[metric]
    first = rounds_to_target(rounds, values, target, maximise)
    if first is None:
        return None
    # A resumed run's first row is a later round.
    done = np.asarray(result.history["round"]) + 1
    row = int(np.searchsorted(done, first, side="right")) - 1
    totals = spent(result.history, prices)
    return Spent(*(None if column is None else column[row].item() for column in totals))


def _check(prices):
    for name, kind, example in (
        ("traffic", Cost, "fedjax_opt.costs.of(algorithm, variables)"),
        ("energy", EnergyRates, "EnergyRates(joules_per_second=2.0)"),
    ):
        value = getattr(prices, name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{name} must be a {kind.__name__}, such as {example}, got {value!r}.")
    checks.number("probe_steps", prices.probe_steps, low=0.0)
    if prices.devices is not None and prices.traffic is None:
        raise ValueError("prices must hold traffic where they hold devices: bytes take time.")
    if prices.energy is not None:
        for rate, price in (("joules_per_flop", "flops"), ("joules_per_second", "devices")):
            if np.any(getattr(prices.energy, rate)) and getattr(prices, price) is None:
                raise ValueError(f"{price} must be given where {rate} is not 0.")


def _column(history, name):
    """A column of a history: an entry of a dict, or a field."""
    if isinstance(history, dict) and name in history:
        return history[name]
    if hasattr(history, name):
        return getattr(history, name)
    known = sorted(history) if isinstance(history, dict) else type(history).__name__
    raise ValueError(f"history must hold {name!r}, got {known}.")
