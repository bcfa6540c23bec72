"""Bounds of FedAvg whose number of local steps may fall during training.

Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023. With
kappa = L/mu, A = kappa F(x_0) - F* and T = sum_r K_r, for strongly convex clients and eta <= 1/(4L)

    min_t E||grad F(xbar_t)||^2 <= 2 kappa A/(eta T) + eta kappa L [
        sum_c p_c^2 sigma_c^2 + 6 L Gamma + (8 + 4/N) G^2 sum_r K_r^3 / sum_r K_r ]        (Theorem 1)

where xbar_t is the mean of the clients' models after t local steps, not only at the end of rounds. The
proof bounds the mean over t = 0 .. T-1, of which the smallest is no larger. With a fixed K and
T = W K/(c + beta K) steps in W seconds it is (8); with T = K R it is the bound after R rounds.

From the strong convexity the first term follows as 2 kappa^2 (F(x_0) - F*)/(eta T); that it is at most
the term above is where F* >= 0 and kappa >= 1 are needed.
That K_r never increases is a condition of the theorem, and is reported; its proof does not use it.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.fedavg_constants import (
    FedAvgConstants,
    Link,
    check_constants,
    check_link,
)
from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Bound


def fedavg(
    constants: FedAvgConstants, learning_rate: Any, local_steps: Any, rounds: Any = None
) -> Bound:
    """FedAvg's bound after a schedule of local steps: Theorem 1.

    With T = sum_r K_r it bounds the smallest E||grad F(xbar_t)||^2 over the local steps t by

        2 kappa A/(eta T)  +  eta kappa L sum_c p_c^2 sigma_c^2  +  eta kappa L 6 L Gamma
            +  eta kappa L (8 + 4/N) G^2 sum_r K_r^3 / T

    whose terms are named 'initial', 'noise', 'heterogeneity' and 'local steps'.

    Args:
      constants: the problem's `FedAvgConstants`.
      learning_rate: eta > 0.
      local_steps: K_r for every round, `[R]` or, for many schedules at once, `[..., R]`; or one K, with
        `rounds`.
      rounds: R, for one K in all rounds.

    Returns:
      A `Bound`.

    Example:
      As many steps in all, from 10 a round to 1 rather than 10 to the end:

      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> fixed = fo.bounds.fedavg(constants, 0.01, 10, rounds=100)
      >>> falling = fo.bounds.fedavg(constants, 0.01, [10] * 50 + [1] * 500)
      >>> round(float(fixed.value), 3), round(float(falling.value), 3)
      (0.968, 0.885)
      >>> bool(falling.terms["local steps"] < fixed.terms["local steps"]), bool(falling.holds)
      (True, True)
      >>> fo.bounds.fedavg(constants, 0.5, [1, 2]).violated()
      ('K_r does not increase', 'eta <= 1/(4L)')

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      Theorem 1.
    """
    listed = isinstance(local_steps, (list, tuple, range))
    schedule = jnp.asarray(local_steps) if listed else local_steps
    if rounds is not None:
        if jnp.ndim(schedule):
            raise ValueError(
                "local_steps must be one number where rounds are given, or a schedule without them, got"
                f" shape {jnp.shape(schedule)} and rounds={rounds!r}."
            )
        return fedavg_by_rounds(constants, learning_rate, local_steps, rounds)
    if not jnp.size(schedule) or not jnp.ndim(schedule):
        raise ValueError(
            "local_steps must be a schedule [R] of one or more rounds, or one number with rounds, got"
            f" {local_steps!r} and rounds=None."
        )
    check_constants(constants)
    positive(learning_rate=learning_rate, local_steps=schedule)
    return _by_schedule(constants, learning_rate, schedule)


def fedavg_by_runtime(
    constants: FedAvgConstants, link: Link, learning_rate: Any, local_steps: Any, runtime: Any
) -> Bound:
    """FedAvg's bound after some seconds with a fixed K: equation 8.

    `2 kappa A (c + beta K)/(eta W K) + eta kappa L Z` with `c = |x|/D + |x|/U` and
    `Z = sum_c p_c^2 sigma_c^2 + 6 L Gamma + (8 + 4/N) G^2 K^2`. It looks forward from any moment of a
    run: F(x_0) is then the loss at that moment, and W the time that is left. Arguments are numbers, or
    arrays of one shape.

    Args:
      constants: the problem's `FedAvgConstants`.
      link: the clients' `Link`.
      learning_rate: eta > 0.
      local_steps: K > 0, not necessarily a whole number.
      runtime: W, in seconds.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> link = fo.bounds.Link(
      ...     megabits=6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017
      ... )
      >>> round(float(fo.bounds.fedavg_by_runtime(constants, link, 0.01, 10, 3600.0).value), 3)
      0.209

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      equation 8.
    """
    check_constants(constants)
    check_link(link)
    positive(learning_rate=learning_rate, local_steps=local_steps, runtime=runtime)
    return _by_runtime(constants, link, learning_rate, local_steps, runtime)


def fedavg_by_rounds(
    constants: FedAvgConstants, learning_rate: Any, local_steps: Any, rounds: Any
) -> Bound:
    """FedAvg's bound after R rounds with a fixed K: Theorem 1 with T = K R.

    It is also (8) where communication takes all the time, so that W = R c. Arguments are numbers, or
    arrays of one shape.

    Args:
      constants: the problem's `FedAvgConstants`.
      learning_rate: eta > 0.
      local_steps: K > 0, not necessarily a whole number.
      rounds: R > 0.

    Returns:
      A `Bound`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> bound = fo.bounds.fedavg_by_rounds(constants, 0.01, jnp.array([1.0, 10.0, 100.0]), 100)
      >>> [round(float(value), 2) for value in bound.value]
      [8.0, 0.97, 16.88]

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      Theorem 1
      and remark 2.3.
    """
    check_constants(constants)
    positive(learning_rate=learning_rate, local_steps=local_steps, rounds=rounds)
    return _by_rounds(constants, learning_rate, local_steps, rounds)


# One compiled program each, for a first call is slow where every operation is compiled by itself.


@jax.jit
def _by_schedule(constants, eta, steps):
    constants, eta, steps = as_floats(constants, eta, steps)
    # In units of the largest K, neither the sum nor the cubes of a long schedule overflow.
    largest = jnp.max(steps, axis=-1)
    share = steps / largest[..., None]
    total = jnp.sum(share, axis=-1)
    typical = largest * jnp.sqrt(jnp.sum(share**3, axis=-1) / total)
    never_grows = jnp.all(steps[..., 1:] <= steps[..., :-1], axis=-1)
    bound = evaluate(constants, eta, largest * total, typical)
    return bound._replace(assumptions=bound.assumptions | {"K_r does not increase": never_grows})


@jax.jit
def _by_runtime(*arguments):
    constants, link, eta, steps, seconds = as_floats(*arguments)
    return evaluate(constants, eta, iterations_in(link, steps, seconds), steps)


@jax.jit
def _by_rounds(*arguments):
    constants, eta, steps, rounds = as_floats(*arguments)
    return evaluate(constants, eta, steps * rounds, steps)


# What follows takes arrays of one dtype.


def iterations_in(link: Link, steps: Any, seconds: Any) -> Any:
    """T = W K/(c + beta K), the local steps in W seconds."""
    return seconds / (link.communication_seconds / steps + link.seconds_per_step)


def loss_gap(constants: FedAvgConstants) -> Any:
    """A = kappa F(x_0) - F*, as a sum of what is not negative: nothing cancels for kappa near 1."""
    L, mu, start = constants.smoothness, constants.strong_convexity, constants.initial_loss
    return (L - mu) / mu * start + (start - constants.optimal_loss)


def drift_weight(constants: FedAvgConstants) -> Any:
    """8 + 4/N."""
    return 8 + 4 / constants.cohort_size


def largest_learning_rate(constants: FedAvgConstants) -> Any:
    """1/(4L)."""
    return 0.25 / constants.smoothness


def evaluate(constants: FedAvgConstants, eta: Any, iterations: Any, steps: Any) -> Bound:
    """Theorem 1 after T iterations, for K with K^2 = sum K_r^3 / sum K_r.

    The products are ordered for float32: no factor is formed that is larger than the terms.
    """
    L, G = constants.smoothness, constants.gradient_bound
    kappa, gap = L / constants.strong_convexity, loss_gap(constants)
    scale = eta * L * kappa
    # Without gradients there is no drift, however many the steps: 0 times infinity is 0 here.
    drift = G * jnp.where(G > 0, steps, 0.0)
    terms = {
        # Where there is nothing to gain, the best step is 0, and the term's limit is 0, too.
        "initial": jnp.where(gap == 0, 0.0, 2 * kappa / iterations * (gap / eta)),
        "noise": scale * constants.noise,
        "heterogeneity": scale * (6 * L * constants.heterogeneity),
        "local steps": drift * (scale * drift_weight(constants)) * drift,
    }
    return Bound(sum(terms.values()), terms, _assumptions(constants, eta))


def _assumptions(constants, eta):
    L, mu = constants.smoothness, constants.strong_convexity
    # A number that was rounded to this precision on its way may lie on the limit.
    slack = 1 + 4 * jnp.finfo(L.dtype).eps
    return {
        "eta <= 1/(4L)": eta <= largest_learning_rate(constants) * slack,
        "mu > 0": mu > 0,
        "kappa >= 1": (mu > 0) & (mu <= L * slack),
        "F* >= 0": constants.optimal_loss >= 0,
        "F(x0) >= F*": constants.initial_loss >= constants.optimal_loss,
    }
