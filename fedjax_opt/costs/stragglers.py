"""What slow clients cost: the mean time of a round over all cohorts, and a sampler with a deadline.

The time of a round is a maximum over its cohort, so its mean grows with the size S of the cohort. Drawn
uniformly and without replacement from N clients with known times, it is a sum over order statistics:
exact, with nothing sampled.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import Sampler, checks
from fedjax_opt.costs.fleet import Devices
from fedjax_opt.costs.runtime import client_seconds


def expected_maximum(values: Any, size: Any) -> jax.Array:
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
    values = jnp.asarray(checks.as_array("values", values), jnp.result_type(float))
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
    cohort_size: Any,
    num_steps: Any,
    megabits_down: Any,
    megabits_up: Any,
    deadline: Any = None,
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
    num_steps: Any,
    megabits_down: Any,
    megabits_up: Any,
    deadline: Any,
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
