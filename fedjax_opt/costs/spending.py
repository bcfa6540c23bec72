"""What a run has spent after each of its rounds: simulated seconds, bytes, operations, joules."""

from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.costs.communication import Cost
from fedjax_opt.costs.energy import EnergyRates, round_joules
from fedjax_opt.costs.fleet import Devices, check_cohort
from fedjax_opt.costs.flops import Flops
from fedjax_opt.costs.runtime import column, megabits, round_seconds


class Prices(NamedTuple):
    """What a round of an algorithm costs; what is left out is not counted.

    Attributes:
      traffic: the bytes of a client and round; `fedjax_opt.costs.of(algorithm, variables)`.
      flops: a client's operations; from `client_flops` or `formula_flops`.
      devices: the clients' `Devices`, for seconds; they need the traffic too.
      energy: `EnergyRates`, for joules.
      deadline: the seconds that the server waits at most; see `round_seconds`.
      await_absent: whether it waits for those who never report; see `round_seconds`.
      probe_steps: the minibatches that a client computes before its local steps: n/B for the full-batch
        gradient of Mime, MimeLite and SCAFFOLD's option I. They take time, and are not in `num_steps`.
    """

    traffic: Cost | None = None
    flops: Flops | None = None
    devices: Devices | None = None
    energy: EnergyRates | None = None
    deadline: Any = None
    await_absent: bool = True
    probe_steps: Any = 0


class Spent(NamedTuple):
    """What was spent, all clients together; None for what has no price.

    Attributes:
      rounds: communication rounds.
      seconds: simulated time by the runtime model.
      bytes_down: downloaded by those who took part.
      bytes_up: uploaded by those who took part.
      flops: operations of those who took part.
      joules: energy of those who took part.
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
        and `num_steps`, `[R, S]`.
      prices: `Prices`.

    Returns:
      A `Spent` of cumulative float64 arrays `[R]`; None for what has no price.

    Example:
      >>> import fedjax_opt as fo
      >>> history = {"cohort": [[0, 1], [1, -1]], "num_steps": [[4, 4], [2, 0]]}
      >>> fo.costs.spent(history, fo.costs.Prices(flops=fo.costs.Flops(step=10.0))).flops.tolist()
      [80.0, 100.0]
    """
    cohort, num_steps = (np.asarray(column(history, name)) for name in ("cohort", "num_steps"))
    check_cohort(cohort, None)
    if cohort.ndim != 2 or cohort.shape != num_steps.shape:
        raise ValueError(
            f"history must hold cohort and num_steps [R, S], got shapes {list(cohort.shape)} and"
            f" {list(num_steps.shape)}."
        )
    traffic = prices.traffic
    if traffic is not None and not isinstance(traffic, Cost):
        raise ValueError(
            "traffic must be a Cost, such as fedjax_opt.costs.of(algorithm, variables), got"
            f" {traffic!r}."
        )
    present = (cohort >= 0) & (num_steps > 0)
    probe_steps = checks.number("probe_steps", prices.probe_steps, low=0.0)
    asked = np.where(present, num_steps + np.asarray(probe_steps), 0)
    found: dict[str, Any] = {"rounds": np.arange(1, len(cohort) + 1)}
    if traffic is not None:
        for name in ("bytes_down", "bytes_up"):
            found[name] = present.sum(axis=1) * float(getattr(traffic, name))
    if prices.flops is not None:
        found["flops"] = np.where(present, prices.flops.client(num_steps.astype(float)), 0).sum(1)
    if prices.devices is not None:
        if traffic is None:
            raise ValueError("prices must hold traffic where they hold devices: bytes take time.")
        down, up = megabits(traffic)
        limits = prices.deadline, prices.await_absent
        found["seconds"] = round_seconds(prices.devices, cohort, asked, down, up, *limits).seconds
    if prices.energy is not None:
        sizes = (0, 0) if traffic is None else (traffic.bytes_down, traffic.bytes_up)
        # Operations of the probe are in flops.probe, its time in the steps that were asked for.
        flops = None if prices.flops is None else _for_steps(prices.flops, probe_steps)
        found["joules"] = round_joules(
            prices.energy, cohort, asked, *sizes, flops, prices.devices
        ).joules
    totals = {
        name: value if name == "rounds" else np.cumsum(np.asarray(value, np.float64))
        for name, value in found.items()
    }
    return Spent(**totals)


def _for_steps(flops: Flops, probe_steps: Any) -> Flops:
    """The same operations for a number of steps in which those of a probe are counted."""
    return flops._replace(probe=flops.probe - probe_steps * flops.step)
