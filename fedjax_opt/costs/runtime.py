"""How long rounds take on the clients' devices.

    W_r^c = |x| / D_c + K_r beta_c + |x| / U_c      a client downloads, computes and uploads      (3)
    W_r   = max over the cohort of W_r^c            the server waits for the slowest              (4)
    W     = sum_r W_r                               R (|x|/D + |x|/U) + beta sum_r K_r if equal   (5)

|x| may differ in the two directions: SCAFFOLD sends more than FedAvg, FedGBO more down than up;
`megabits(fedjax_opt.costs.of(algorithm, variables))` gives both.

With a deadline the server waits no longer than that, and goes on without those who are late. Who is late
does not take part: give the round `num_steps = 0` for it, `jnp.where(time.arrived, num_steps, 0)`, or
let the sampler do so (`on_time`). `fedjax_opt.cohorts.unreliable` is the same by chance instead of by
speed; either may wrap the other. A server cannot tell late from lost: where somebody whom it asked does
not report, it waits until the deadline.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Section 3.2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.costs.communication import Cost
from fedjax_opt.costs.fleet import Devices, broadcast, check_cohort, check_devices, of_cohort

_DAY = 86_400.0


class RoundTime(NamedTuple):
    """How long a round takes, and who is in time for it.

    Attributes:
      seconds: W_r, how long the server waits; `[...]`, one per cohort.
      client_seconds: W_r^c of each slot `[..., S]`; 0 where nobody takes part. Of a client that misses
        the deadline, how long it would take.
      arrived: whether the client took part and was in time `[..., S]`.
    """

    seconds: jax.Array
    client_seconds: jax.Array
    arrived: jax.Array


def megabits(cost: Any) -> Any:
    """Bytes as megabits: 8 bits a byte, 10^6 bits a megabit.

    Args:
      cost: a number of bytes, an array of them, or a `Cost`.

    Returns:
      Megabits; of a `Cost` the pair (down, up) of one client and round.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> fo.costs.megabits(1_000_000)
      8.0
      >>> variables = fo.Variables({"w": jnp.zeros(250_000)})
      >>> fo.costs.megabits(fo.costs.of(fo.fedgbo(fo.optimizers.sgdm(0.1, 0.9)), variables))
      (16.0, 8.0)
    """
    if isinstance(cost, Cost):
        return megabits(cost.bytes_down), megabits(cost.bytes_up)
    return checks.number("cost", cost, low=0.0, open_high=True) * 8 / 1e6


def client_seconds(
    devices: Devices, num_steps: Any, megabits_down: Any, megabits_up: Any
) -> jax.Array:
    """W^c of all clients, equation (3): download, K local steps, upload.

    Args:
      devices: the clients' `Devices`.
      num_steps: K, a number or one per client `[N]`.
      megabits_down: what a client downloads in a round, a number or one per client `[N]`.
      megabits_up: what it uploads, in the same way.

    Returns:
      Seconds, one per client `[N]`; a scalar where nothing differs between clients.

    Example:
      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.devices(20.0, [5.0, 2.5], 0.25)
      >>> fo.costs.client_seconds(fleet, num_steps=4, megabits_down=40.0, megabits_up=40.0).tolist()
      [11.0, 19.0]
    """
    devices, population = check_devices(devices)
    work = {"num_steps": num_steps, "megabits_down": megabits_down, "megabits_up": megabits_up}
    shapes = {np.shape(value) for value in work.values()} - {()}
    shape = (population,) if population else shapes.pop() if len(shapes) == 1 else ()
    return _seconds(Devices(*(jnp.broadcast_to(x, shape) for x in devices)), shape, **work)


def round_seconds(
    devices: Devices,
    cohort: Any,
    num_steps: Any,
    megabits_down: Any,
    megabits_up: Any,
    deadline: Any = None,
    await_absent: bool = True,
) -> RoundTime:
    """W_r, equation (4): the time of the slowest client of a cohort, or of many cohorts at once.

    Args:
      devices: the clients' `Devices`.
      cohort: ids `[S]`, or `[..., S]` for many rounds; -1 for a slot that nobody filled.
      num_steps: K, a number or one per slot; 0 for a client that does not take part.
      megabits_down: what a client downloads, a number or one per slot.
      megabits_up: what it uploads, in the same way.
      deadline: the seconds that the server waits at most, a number or one per round; None for as long
        as it takes. Whoever would be later has not arrived.
      await_absent: whether, with a deadline, the server waits for those who do not take part: it asked
        them and knows no better (as with `cohorts.unreliable` and `on_time`). False where it asked
        nobody for these slots (as with `cohorts.available`).

    Returns:
      A `RoundTime`. A round in which nobody takes part takes no time; with a deadline it takes that
      long, unless nobody is awaited.

    Example:
      The slowest client takes 40/20 + 0.5 + 40/5 seconds; ten are not enough for it:

      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.devices(20.0, [80.0, 5.0, 40.0], 0.25)
      >>> float(fo.costs.round_seconds(fleet, [0, 1], 2, 40.0, 40.0).seconds)
      10.5
      >>> in_time = fo.costs.round_seconds(fleet, [0, 1], 2, 40.0, 40.0, deadline=10.0)
      >>> float(in_time.seconds), in_time.arrived.tolist()
      (10.0, [True, False])
    """
    devices, population = check_devices(devices)
    cohort = check_cohort(cohort, population)
    steps = broadcast("num_steps", num_steps, cohort.shape)
    here = Devices(*(of_cohort(x, cohort) for x in devices))
    times = _seconds(here, cohort.shape, num_steps, megabits_down, megabits_up)
    present = (cohort >= 0) & (steps > 0)
    times = jnp.where(present, times, 0)
    if deadline is None:
        return RoundTime(jnp.max(times, axis=-1), times, present)
    checks.number("deadline", deadline, low=0.0, open_low=True)
    limit = broadcast("deadline", deadline, cohort.shape[:-1])
    arrived = present & (times <= limit[..., None])
    missing = ~arrived if await_absent else present & ~arrived
    slowest = jnp.max(jnp.where(arrived, times, 0), axis=-1)
    return RoundTime(jnp.where(jnp.any(missing, axis=-1), limit, slowest), times, arrived)


def run_seconds(
    devices: Devices,
    history: Any,
    megabits_down: Any,
    megabits_up: Any,
    deadline: Any = None,
    await_absent: bool = True,
) -> jax.Array:
    """W, equation (5): the simulated seconds that have passed at the end of each round of a run.

    Args:
      devices: the clients' `Devices`.
      history: `Result.history` of `simulate` or `Run.history` of `run_rounds`: whatever holds `cohort`
        and `num_steps`, `[R, S]`.
      megabits_down: what a client downloads in a round.
      megabits_up: what it uploads.
      deadline: as for `round_seconds`. It times the run, and changes nothing in it: clients who would
        have been late are in the history unless the run's sampler left them out (`on_time`).
      await_absent: as for `round_seconds`.

    Returns:
      Seconds `[R]`, cumulative.

    Example:
      >>> import fedjax_opt as fo
      >>> history = {"cohort": [[0, 1], [1, -1]], "num_steps": [[4, 4], [2, 0]]}
      >>> fleet = fo.costs.devices(20.0, 5.0, [1.0, 0.5])
      >>> fo.costs.run_seconds(fleet, history, 40.0, 40.0).tolist()
      [14.0, 25.0]
    """
    times = round_seconds(
        devices, column(history, "cohort"), column(history, "num_steps"),
        megabits_down, megabits_up, deadline, await_absent,
    )  # fmt: skip
    return jnp.cumsum(times.seconds, axis=-1)


def column(history: Any, name: str) -> Any:
    """A column of a history: an entry of a dict, or a field."""
    if isinstance(history, dict) and name in history:
        return history[name]
    if hasattr(history, name):
        return getattr(history, name)
    known = sorted(history) if isinstance(history, dict) else type(history).__name__
    raise ValueError(f"history must hold {name!r}, got {known}.")


def _seconds(here, shape, num_steps, megabits_down, megabits_up):
    """Equation (3), entry by entry."""
    sizes = {"megabits_down": megabits_down, "megabits_up": megabits_up}
    rates = (here.download_mbps, here.upload_mbps)
    steps = broadcast("num_steps", checks.number("num_steps", num_steps, low=0.0), shape)
    total = steps * here.seconds_per_step
    for (name, size), rate in zip(sizes.items(), rates, strict=True):
        seconds = broadcast(name, checks.number(name, size, low=0.0), shape) / rate
        if not checks.is_traced(seconds) and np.any(np.asarray(seconds) > _DAY):
            raise ValueError(
                f"{name}={size!r} would take {float(np.max(seconds)) / _DAY:.3g} days to transfer."
                " Is it in bytes? fedjax_opt.costs.megabits(bytes) makes megabits of them."
            )
        total = total + seconds
    return total
