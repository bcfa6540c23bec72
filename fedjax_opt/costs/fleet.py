"""The clients' devices: how fast they download, compute and upload; given, measured or drawn.

Bandwidths are in megabits (10^6 bits) per second, the time of a local step is in seconds; the unit is
in each name. Each is one number for all clients or one per client `[N]`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks

# A terabit per second, in megabits per second. No client has it; 20e6 for 20 is an easy slip.
_MOST_MBPS = 1e6


class Devices(NamedTuple):
    """How fast clients are. Each field is one number for all clients, or one per client `[N]`.

    Attributes:
      download_mbps: D, megabits per second from the server to a client.
      upload_mbps: U, megabits per second from a client to the server.
      seconds_per_step: beta, seconds of one local step: a minibatch's gradient and its update.
    """

    download_mbps: Any
    upload_mbps: Any
    seconds_per_step: Any


class LogNormal(NamedTuple):
    """A log-normal distribution; `lognormal` checks its numbers.

    Attributes:
      median: half of all values are below it.
      spread: the geometric standard deviation, a factor of at least 1.
    """

    median: Any
    spread: Any


class Uniform(NamedTuple):
    """A uniform distribution; `uniform` checks its numbers.

    Attributes:
      low: the smallest value.
      high: the largest value.
    """

    low: Any
    high: Any


def devices(download_mbps: Any, upload_mbps: Any, seconds_per_step: Any) -> Devices:
    """Devices with given speeds: the same for all clients, or measured on each.

    Args:
      download_mbps: D in megabits per second, positive: a number, or one per client `[N]`.
      upload_mbps: U, in the same way.
      seconds_per_step: beta in seconds, positive, in the same way.

    Returns:
      `Devices`.

    Example:
      One bandwidth for all, and a step that was timed on each of three phones:

      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.devices(20.0, 5.0, [0.25, 0.25, 1.5])
      >>> fleet.seconds_per_step.tolist()
      [0.25, 0.25, 1.5]

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
      Section 3.2.
    """
    return check_devices(Devices(download_mbps, upload_mbps, seconds_per_step))[0]


def lognormal(median: Any, spread: Any) -> LogNormal:
    """A log-normal distribution: two thirds of all values lie within a factor of the median.

    `median * spread ** z` with z standard normal; 68% lie in [median / spread, median * spread].

    Args:
      median: positive.
      spread: the factor, at least 1; with 1 all values are the median.

    Returns:
      A distribution for `draw_devices`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.costs.lognormal(20.0, spread=2.0).median
      20.0
    """
    return LogNormal(
        checks.number("median", median, low=0.0, open_low=True, open_high=True),
        checks.number("spread", spread, low=1.0, open_high=True),
    )


def uniform(low: Any, high: Any) -> Uniform:
    """A uniform distribution between two positive values.

    Args:
      low: the smallest value, positive.
      high: the largest value, at least `low`.

    Returns:
      A distribution for `draw_devices`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.costs.uniform(1.0, 10.0).high
      10.0
    """
    low = checks.number("low", low, low=0.0, open_low=True, open_high=True)
    least = float(low) if np.ndim(low) == 0 and not checks.is_traced(low) else 0.0
    return Uniform(low, checks.number("high", high, low=least, open_high=True))


def draw_devices(
    key: jax.Array,
    num_clients: int,
    download_mbps: Any,
    upload_mbps: Any,
    seconds_per_step: Any,
) -> Devices:
    """Devices of a heterogeneous population, drawn independently for each client and each quantity.

    Args:
      key: a JAX key; the same key gives the same devices.
      num_clients: N.
      download_mbps: D in megabits per second: a distribution (`lognormal`, `uniform`), a number, or
        one per client `[N]`.
      upload_mbps: U, in the same way.
      seconds_per_step: beta in seconds, in the same way.

    Returns:
      `Devices` with one value per client `[N]` in each field.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.draw_devices(
      ...     jax.random.key(0), 100, fo.costs.lognormal(20.0, 1.5), fo.costs.uniform(2.0, 8.0), 0.1
      ... )
      >>> fleet.upload_mbps.shape, bool((fleet.upload_mbps >= 2.0).all())
      ((100,), True)
    """
    num_clients = checks.integer("num_clients", num_clients, low=1)
    keys = jax.random.split(key, 3)
    asked = Devices(download_mbps, upload_mbps, seconds_per_step)
    drawn = Devices(
        *(
            _draw(k, value, name, num_clients)
            for k, value, name in zip(keys, asked, Devices._fields, strict=True)
        )
    )
    return check_devices(drawn)[0]


def _draw(key, value, name, num_clients):
    shape, dtype = (num_clients,), jnp.result_type(float)
    if isinstance(value, LogNormal):
        normal = jax.random.normal(key, shape, dtype)
        return jnp.asarray(value.median, dtype) * jnp.exp(normal * jnp.log(_float(value.spread)))
    if isinstance(value, Uniform):
        return jax.random.uniform(key, shape, dtype, _float(value.low), _float(value.high))
    return broadcast(name, value, shape)


def check_devices(devices: Devices) -> tuple[Devices, int | None]:
    """The devices as floating-point arrays, and the N they are of; None if they are all alike."""
    if not isinstance(devices, Devices):
        raise ValueError(
            "devices must be Devices, such as fedjax_opt.costs.devices(20.0, 5.0, 0.1), got"
            f" {type(devices).__name__}."
        )
    arrays, population = per_client(devices._asdict(), open_low=True)
    for name, array in zip(Devices._fields[:2], arrays, strict=False):
        if not checks.is_traced(array) and np.any(np.asarray(array) > _MOST_MBPS):
            raise ValueError(
                f"{name} is in megabits per second and must be at most {_MOST_MBPS:g} (a terabit),"
                f" got {getattr(devices, name)!r}. Was it given in bits per second?"
            )
    return Devices(*arrays), population


def per_client(
    values: dict[str, Any], open_low: bool = False
) -> tuple[list[jax.Array], int | None]:
    """Quantities as floats, each a number or `[N]`; and N, None if all are numbers."""
    population, arrays = None, []
    for name, value in values.items():
        array = _float(checks.as_array(name, value))
        if array.ndim > 1 or (array.ndim == 1 and population not in (None, array.shape[0])):
            others = "" if population is None else f" (N={population} in another field)"
            raise ValueError(
                f"{name} must be a number or one per client [N]{others}, got shape {array.shape}."
            )
        if array.size == 0:
            raise ValueError(f"{name} must be that of at least one client, got N=0.")
        population = array.shape[0] if array.ndim else population
        checks.number(name, value, low=0.0, open_low=open_low, open_high=True)
        arrays.append(array)
    return arrays, population


def check_cohort(cohort: Any, population: int | None) -> jax.Array:
    """Cohorts `[..., S]` as int32 ids; -1 marks a slot that nobody filled."""
    cohort = checks.as_array("cohort", cohort)
    if not jnp.issubdtype(cohort.dtype, jnp.integer) or cohort.ndim == 0 or cohort.shape[-1] == 0:
        raise ValueError(
            "cohort must be ids of clients, whole numbers [S] or [R, S] with S >= 1, got"
            f" {cohort.dtype}{list(cohort.shape)}."
        )
    if not checks.is_traced(cohort) and cohort.size:
        lowest, highest = int(np.min(cohort)), int(np.max(cohort))
        if lowest < -1 or (population is not None and highest >= population):
            allowed = "-1" if population is None else f"-1 to {population - 1} (N={population})"
            raise ValueError(
                f"cohort must hold ids from {allowed}, -1 for nobody; got {lowest} to {highest}."
            )
    return jnp.asarray(cohort, jnp.int32)


def of_cohort(values: jax.Array, cohort: jax.Array) -> jax.Array:
    """One value per slot of a cohort: a scalar is everyone's, `[N]` is read at the ids."""
    if values.ndim == 0:
        return jnp.broadcast_to(values, cohort.shape)
    return values[jnp.maximum(cohort, 0)]


def broadcast(name: str, value: Any, shape: tuple[int, ...]) -> jax.Array:
    """A number, or an array of just this shape or of its last axes, as floats of this shape."""
    array = _float(checks.as_array(name, value))
    if array.ndim > len(shape) or array.shape != shape[len(shape) - array.ndim :]:
        raise ValueError(
            f"{name} must be a number or have the shape {list(shape)} (or its last axes), got"
            f" {list(array.shape)}."
        )
    return jnp.broadcast_to(array, shape)


def _float(value: Any) -> jax.Array:
    return jnp.asarray(value, jnp.result_type(float))
