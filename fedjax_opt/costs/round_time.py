"""The clients' devices, and how long rounds take on them.

    W_r^c = |x| / D_c + K_r beta_c + |x| / U_c      a client downloads, computes and uploads      (3)
    W_r   = max over the cohort of W_r^c            the server waits for the slowest              (4)
    W     = sum_r W_r                               R (|x|/D + |x|/U) + beta sum_r K_r if equal   (5)

Bandwidths are in megabits (10^6 bits) per second, the time beta of a local step is in seconds; each is
one number for all clients or one per client. |x| may differ in the two directions: SCAFFOLD sends more
than FedAvg, FedGBO more down than up; `megabits(fedjax_opt.costs.of(algorithm, variables))` gives both.

The mean of W_r over all cohorts of S clients is a mean of maxima, and so a sum over order statistics:
exact, with nothing sampled.

With a deadline the server waits no longer than that, and goes on without those who are late. `on_time`
makes a sampler of it; `fedjax_opt.cohorts.unreliable` is the same by chance instead of by speed, and
either may wrap the other. A server cannot tell late from lost: where somebody whom it asked does not
report, it waits until the deadline.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Section 3.2.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import Sampler, checks
from fedjax_opt.costs.traffic import Cost

# A terabit per second, in megabits per second. No client has it; 20e6 for 20 is an easy slip.
_MOST_MBPS = 1e6
_DAY = 86_400.0


class Devices(NamedTuple):
    """How fast clients are. Each field is one number for all clients, or one per client `[N]`.

    Attributes:
      download_mbps: D, megabits per second from the server to a client.
      upload_mbps: U, megabits per second from a client to the server.
      seconds_per_step: beta, seconds of one local step: a minibatch's gradient and its update.
    """

    download_mbps: chex.Numeric
    upload_mbps: chex.Numeric
    seconds_per_step: chex.Numeric


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


def devices(
    download_mbps: chex.Numeric, upload_mbps: chex.Numeric, seconds_per_step: chex.Numeric
) -> Devices:
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
    """
    return check_devices(Devices(download_mbps, upload_mbps, seconds_per_step))[0]


def lognormal(median: chex.Numeric, spread: chex.Numeric) -> Callable[..., jax.Array]:
    """A log-normal distribution: two thirds of all values lie within a factor of the median.

    `median * spread ** z` with z standard normal; 68% lie in [median / spread, median * spread].

    Args:
      median: positive.
      spread: the factor, at least 1; with 1 all values are the median.

    Returns:
      A distribution for `draw_devices`: (key, shape) -> values.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> fo.costs.lognormal(20.0, spread=1.0)(jax.random.key(0), (2,)).tolist()
      [20.0, 20.0]
    """
    checks.number("median", median, low=0.0, open_low=True, open_high=True)
    checks.number("spread", spread, low=1.0, open_high=True)
    return Partial(_lognormal, _float(median), _float(spread))


def uniform(low: chex.Numeric, high: chex.Numeric) -> Callable[..., jax.Array]:
    """A uniform distribution between two positive values.

    Args:
      low: the smallest value, positive.
      high: the largest value, at least `low`.

    Returns:
      A distribution for `draw_devices`: (key, shape) -> values.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> bool((fo.costs.uniform(1.0, 10.0)(jax.random.key(0), (9,)) >= 1.0).all())
      True
    """
    checks.number("low", low, low=0.0, open_low=True, open_high=True)
    least = 0.0 if checks.is_traced(low) else float(np.max(low))
    checks.number("high", high, low=least, open_high=True)
    return Partial(_uniform, _float(low), _float(high))


def draw_devices(
    key: chex.PRNGKey,
    num_clients: int,
    download_mbps: chex.Numeric | Callable[..., jax.Array],
    upload_mbps: chex.Numeric | Callable[..., jax.Array],
    seconds_per_step: chex.Numeric | Callable[..., jax.Array],
) -> Devices:
    """Devices of a heterogeneous population, drawn independently for each client and each quantity.

    Args:
      key: a JAX key; the same key gives the same devices.
      num_clients: N.
      download_mbps: D in megabits per second: a distribution (`lognormal`, `uniform`, or any function
        of a key and a shape), a number, or one per client `[N]`.
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
    shape = (checks.integer("num_clients", num_clients, low=1),)
    keys = jax.random.split(key, 3)

    def draw(key: Any, name: str, value: Any) -> Any:
        return value(key, shape) if callable(value) else broadcast(name, value, shape)

    return devices(
        draw(keys[0], "download_mbps", download_mbps),
        draw(keys[1], "upload_mbps", upload_mbps),
        draw(keys[2], "seconds_per_step", seconds_per_step),
    )


def megabits(cost: Cost | chex.Numeric) -> Any:
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
    devices: Devices,
    num_steps: chex.Numeric,
    megabits_down: chex.Numeric,
    megabits_up: chex.Numeric,
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
    cohort: chex.Array,
    num_steps: chex.Numeric,
    megabits_down: chex.Numeric,
    megabits_up: chex.Numeric,
    deadline: chex.Numeric | None = None,
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


def expected_maximum(values: chex.Array, size: chex.Numeric) -> jax.Array:
    """The mean of the largest of S values, drawn from N without replacement; exact.

    With the values in ascending order, `sum_j v_(j) C(j-1, S-1) / C(N, S)`: v_(j) is the largest of a
    cohort that holds it and S - 1 of the j - 1 below it.

    Args:
      values: `[N]`: what each client takes.
      size: S, from 1 to N; it may be traced.

    Returns:
      A scalar.

    Example:
      >>> import fedjax_opt as fo
      >>> round(float(fo.costs.expected_maximum([1.0, 2.0, 6.0], 2)), 6)
      4.666667
    """
    values = _float(checks.as_array("values", values))
    if values.ndim != 1 or not values.size:
        raise ValueError(f"values must be one per client [N], got shape {list(values.shape)}.")
    ordered, count = jnp.sort(values), values.shape[0]
    checks.number("size", size, low=1, high=count)
    size = jnp.asarray(size, ordered.dtype)
    # C(j-2, S-1) / C(j-1, S-1) = (j-S) / (j-1): from the largest (S/N) downwards, with no factorial.
    j = jnp.arange(count, 1, -1, dtype=ordered.dtype)
    ratios = jnp.maximum(j - size, 0) / (j - 1)
    weights = jnp.cumprod(jnp.concatenate([size[None] / count, ratios]))
    return jnp.sum(ordered[::-1] * weights)


def expected_round_seconds(
    devices: Devices,
    cohort_size: chex.Numeric,
    num_steps: chex.Numeric,
    megabits_down: chex.Numeric,
    megabits_up: chex.Numeric,
    deadline: chex.Numeric | None = None,
) -> jax.Array:
    """E[W_r]: how long a round takes in the mean over all cohorts of S clients drawn uniformly.

    The more clients, the slower the slowest: this is what a larger cohort costs in time.

    Args:
      devices: the clients' `Devices`.
      cohort_size: S; it may be traced, such as under `vmap`.
      num_steps: K, a number or one per client `[N]`.
      megabits_down: what a client downloads, a number or one per client `[N]`.
      megabits_up: what it uploads, in the same way.
      deadline: the seconds that the server waits at most; None for as long as it takes.

    Returns:
      Seconds, a scalar.

    Example:
      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.devices(20.0, 5.0, [1.0, 2.0, 6.0])
      >>> [float(fo.costs.expected_round_seconds(fleet, s, 2, 4.0, 4.0)) for s in (1, 3)]
      [7.0, 13.0]
    """
    times = client_seconds(devices, num_steps, megabits_down, megabits_up)
    if deadline is not None:
        checks.number("deadline", deadline, low=0.0, open_low=True)
        times = jnp.minimum(times, jnp.asarray(deadline, times.dtype))
    return times if times.ndim == 0 else expected_maximum(times, cohort_size)


def on_time(
    sampler: Sampler,
    devices: Devices,
    num_steps: chex.Numeric,
    megabits_down: chex.Numeric,
    megabits_up: chex.Numeric,
    deadline: chex.Numeric,
) -> Sampler:
    """A sampler whose clients are lost where they would miss the deadline: the runtime model at work.

    Slow clients are asked in vain, always the same ones: what they know never reaches the model. A guard
    names and counts them as `Fault.TIMED_OUT`.

    Args:
      sampler: who is asked.
      devices: the clients' `Devices`.
      num_steps: K, a number or one per client `[N]`, as in the run.
      megabits_down: what a client downloads, a number or one per client `[N]`.
      megabits_up: what it uploads, in the same way.
      deadline: the seconds that the server waits.

    Returns:
      A `Sampler`.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.devices(20.0, 5.0, [0.1, 9.0, 0.1])
      >>> sampler = fo.costs.on_time(fo.cohorts.cyclic(3), fleet, 2, 4.0, 4.0, deadline=10.0)
      >>> sampler.draw(jax.random.key(0), 0, 3)[1].tolist()
      [True, False, True]
    """
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a Sampler of fedjax_opt.cohorts, got {sampler!r}.")
    times = client_seconds(devices, num_steps, megabits_down, megabits_up)
    checks.number("deadline", deadline, low=0.0, open_low=True)
    punctual = times <= jnp.asarray(deadline, times.dtype)
    population = sampler.population if times.ndim == 0 else times.shape[0]
    if sampler.population not in (None, population):
        raise ValueError(
            f"sampler was made for {sampler.population} clients, but devices for {population}."
        )
    if sampler.punctual is not None:
        punctual &= sampler.punctual
    return dataclasses.replace(sampler, punctual=punctual, population=population)


def check_devices(devices: Devices) -> tuple[Devices, int | None]:
    """The devices as floating-point arrays, and the N they are of; None if they are all alike."""
    if not isinstance(devices, Devices):
        raise ValueError(
            "devices must be Devices, such as fedjax_opt.costs.devices(20.0, 5.0, 0.1), got"
            f" {type(devices).__name__}."
        )
    arrays, population = per_client(devices._asdict(), open_low=True)
    for name in ("download_mbps", "upload_mbps"):
        value = getattr(devices, name)
        if not checks.is_traced(value) and np.any(np.asarray(value) > _MOST_MBPS):
            raise ValueError(
                f"{name} is in megabits per second and must be at most {_MOST_MBPS:g} (a terabit),"
                f" got {value!r}. Was it given in bits per second?"
            )
    return Devices(*arrays), population


def per_client(
    values: Mapping[str, Any], open_low: bool = False
) -> tuple[list[jax.Array], int | None]:
    """Quantities as floats, each a number or `[N]`; and N, None if all are numbers."""
    population, arrays = None, []
    for name, value in values.items():
        array = _float(checks.as_array(name, value))
        if array.ndim > 1 or (array.ndim and population not in (None, array.shape[0])):
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


def check_cohort(cohort: chex.Array, population: int | None) -> jax.Array:
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


def of_cohort(values: chex.Numeric, cohort: chex.Array) -> jax.Array:
    """One value per slot of a cohort: a scalar is everyone's, `[N]` is read at the ids."""
    values = jnp.asarray(values)
    if values.ndim == 0:
        return jnp.broadcast_to(values, cohort.shape)
    return values[jnp.maximum(cohort, 0)]


def broadcast(name: str, value: chex.Numeric, shape: tuple[int, ...]) -> jax.Array:
    """A number, or an array of just this shape or of its last axes, as floats of this shape."""
    array = _float(checks.as_array(name, value))
    if array.ndim > len(shape) or array.shape != shape[len(shape) - array.ndim :]:
        raise ValueError(
            f"{name} must be a number or have the shape {list(shape)} (or its last axes), got"
            f" {list(array.shape)}."
        )
    return jnp.broadcast_to(array, shape)


def _seconds(here, shape, num_steps, megabits_down, megabits_up):
    """Equation (3), entry by entry."""
    steps = broadcast("num_steps", checks.number("num_steps", num_steps, low=0.0), shape)
    total = steps * here.seconds_per_step
    for name, size, rate in (
        ("megabits_down", megabits_down, here.download_mbps),
        ("megabits_up", megabits_up, here.upload_mbps),
    ):
        seconds = broadcast(name, checks.number(name, size, low=0.0), shape) / rate
        if not checks.is_traced(seconds) and np.any(np.asarray(seconds) > _DAY):
            raise ValueError(
                f"{name}={size!r} would take {float(np.max(seconds)) / _DAY:.3g} days to transfer."
                " Is it in bytes? fedjax_opt.costs.megabits(bytes) makes megabits of them."
            )
        total = total + seconds
    return total


def _lognormal(median, spread, key, shape):
    normal = jax.random.normal(key, shape, median.dtype)
    return median * jnp.exp(normal * jnp.log(spread))


def _uniform(low, high, key, shape):
    return jax.random.uniform(key, shape, low.dtype, low, high)


def _float(value):
    return jnp.asarray(value, jnp.result_type(float))
