"""Energy of clients: joules per operation or per second of computing, and per byte sent.

    E_r^c = e_f N_r^c + e_s K_r beta_c + e_d b_d + e_u b_u

with N the client's operations, K beta the seconds that it computes, b_d and b_u the bytes that it
downloads and uploads. A device is described by its power while it computes (e_s, in watts) or by what an
operation costs (e_f); give one of the two, or both where there is a base load.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks
from fedjax_opt.costs.fleet import (
    Devices,
    broadcast,
    check_cohort,
    check_devices,
    of_cohort,
    per_client,
)
from fedjax_opt.costs.flops import Flops
from fedjax_opt.costs.runtime import column


class EnergyRates(NamedTuple):
    """What work costs a client. Each field is one number for all clients, or one per client `[N]`.

    Attributes:
      joules_per_flop: e_f, for each operation.
      joules_per_second: e_s, for each second of computing: the device's power in watts.
      joules_per_byte_down: e_d, for each byte received.
      joules_per_byte_up: e_u, for each byte sent.
    """

    joules_per_flop: Any = 0.0
    joules_per_second: Any = 0.0
    joules_per_byte_down: Any = 0.0
    joules_per_byte_up: Any = 0.0


class RoundEnergy(NamedTuple):
    """The energy of a round.

    Attributes:
      joules: of all clients of the cohort; `[...]`, one per cohort.
      client_joules: of each slot `[..., S]`; 0 where nobody takes part.
    """

    joules: jax.Array
    client_joules: jax.Array


def round_joules(
    rates: EnergyRates,
    cohort: Any,
    num_steps: Any,
    bytes_down: Any = 0.0,
    bytes_up: Any = 0.0,
    flops: Flops | None = None,
    devices: Devices | None = None,
) -> RoundEnergy:
    """The energy that the clients of a cohort spend in a round, or those of many cohorts.

    Args:
      rates: what work costs.
      cohort: ids `[S]`, or `[..., S]` for many rounds; -1 for a slot that nobody filled.
      num_steps: K, a number or one per slot; 0 for a client that does not take part, which is not
        charged: what those spend who drop out is not in a history.
      bytes_down: what a client downloads, a number or one per slot.
      bytes_up: what it uploads, in the same way.
      flops: the operations of a client, for `joules_per_flop`; see `client_flops`, `formula_flops`.
      devices: the clients' devices, for `joules_per_second`.

    Returns:
      A `RoundEnergy`.

    Example:
      Two watts for 4 steps of half a second, and a microjoule per byte, for two clients:

      >>> import fedjax_opt as fo
      >>> rates = fo.costs.EnergyRates(joules_per_second=2.0, joules_per_byte_up=1e-6)
      >>> fleet = fo.costs.devices(20.0, 5.0, 0.5)
      >>> float(fo.costs.round_joules(rates, [3, 7], 4, bytes_up=2_000_000, devices=fleet).joules)
      12.0
    """
    prices, population = _check(rates)
    cohort = check_cohort(cohort, population)
    steps = broadcast("num_steps", checks.number("num_steps", num_steps, low=0.0), cohort.shape)
    sizes = {"bytes_down": bytes_down, "bytes_up": bytes_up}
    down, up = (
        broadcast(name, checks.number(name, size, low=0.0), cohort.shape)
        for name, size in sizes.items()
    )
    spent = [prices.joules_per_byte_down, down, prices.joules_per_byte_up, up]
    if flops is not None:
        spent += [prices.joules_per_flop, flops.client(steps)]
    elif _charged(rates.joules_per_flop):
        raise ValueError("flops must be given where joules_per_flop is not 0.")
    if devices is not None:
        devices, owners = check_devices(devices)
        check_cohort(cohort, owners)
        spent += [prices.joules_per_second, steps * of_cohort(devices.seconds_per_step, cohort)]
    elif _charged(rates.joules_per_second):
        raise ValueError("devices must be given where joules_per_second is not 0.")
    total = jnp.zeros(cohort.shape, jnp.result_type(float))
    for price, amount in zip(spent[::2], spent[1::2], strict=True):
        total = total + of_cohort(price, cohort) * amount
    total = jnp.where((cohort >= 0) & (steps > 0), total, 0)
    return RoundEnergy(jnp.sum(total, axis=-1), total)


def run_joules(
    rates: EnergyRates,
    history: Any,
    bytes_down: Any = 0.0,
    bytes_up: Any = 0.0,
    flops: Flops | None = None,
    devices: Devices | None = None,
) -> jax.Array:
    """The energy that all clients have spent at the end of each round of a run.

    Args:
      rates: what work costs.
      history: whatever holds `cohort` and `num_steps`, `[R, S]`; see `run_seconds`.
      bytes_down: what a client downloads in a round.
      bytes_up: what it uploads.
      flops: as for `round_joules`.
      devices: as for `round_joules`.

    Returns:
      Joules `[R]`, cumulative.

    Example:
      >>> import fedjax_opt as fo
      >>> history = {"cohort": [[0, 1], [1, -1]], "num_steps": [[4, 4], [2, 0]]}
      >>> rates = fo.costs.EnergyRates(joules_per_flop=0.5)
      >>> fo.costs.run_joules(rates, history, flops=fo.costs.Flops(step=3.0)).tolist()
      [12.0, 15.0]
    """
    cohort, num_steps = column(history, "cohort"), column(history, "num_steps")
    spent = round_joules(rates, cohort, num_steps, bytes_down, bytes_up, flops, devices)
    return jnp.cumsum(spent.joules, axis=-1)


def _check(rates: EnergyRates) -> tuple[EnergyRates, int | None]:
    if not isinstance(rates, EnergyRates):
        raise ValueError(f"rates must be EnergyRates, got {type(rates).__name__}.")
    arrays, population = per_client(rates._asdict())
    return EnergyRates(*arrays), population


def _charged(rate: Any) -> bool:
    """Whether a rate is known to be positive for somebody; a traced one may be."""
    return checks.is_traced(rate) or bool(jnp.any(jnp.asarray(rate) > 0))
