"""The number of local steps, and the learning rate, at which FedAvg's bounds are smallest.

Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023, Theorem 2 and
corollary 2.1. With A = kappa F(x_0) - F*, c = |x|/D + |x|/U, a run of W seconds or R rounds, and
Z = sum_c p_c^2 sigma_c^2 + 6 L Gamma + (8 + 4/N) G^2 K^2,

    K*^3   = A c/(eta^2 L (8 + 4/N) G^2 W)     or, by rounds, 1/R for c/W
    eta*^2 = 2 A (c + beta K)/(L Z W K)        or, by rounds, 1/R for (c + beta K)/W

These are the roots of the derivatives of (8), which is convex in K and in eta. The print differs:
(9) and (10) lack G^2, (9) has |x|/D twice and never |x|/U, and (11) and (12) lack K below the line. The
printed forms are `as_printed=True`; they do not minimise (8).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.fedavg_closed_forms import closed_form_rate, closed_form_steps
from fedjax_opt.bounds.fedavg_constants import (
    FedAvgConstants,
    Link,
    check_constants,
    check_link,
)
from fedjax_opt.bounds.fedavg_theorem import evaluate, iterations_in, largest_learning_rate
from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Optimum


def optimal_local_steps(
    constants: FedAvgConstants,
    link: Link,
    learning_rate: Any,
    runtime: Any,
    *,
    as_printed: bool = False,
) -> Optimum:
    """The K that minimises the bound after some seconds: Theorem 2.

    `K*^3 = A c/(eta^2 L (8 + 4/N) G^2 W)`, raised to 1 where it is below. It is a real number;
    `best_local_steps` is the best whole one. Without gradients (G = 0) it is infinite.

    Args:
      constants: the problem's `FedAvgConstants`.
      link: the clients' `Link`. The seconds of a step, beta, do not matter to K*.
      learning_rate: eta > 0.
      runtime: W, in seconds.
      as_printed: equation 9 as it is printed: without G^2, and with 2|x|/D for c.

    Returns:
      An `Optimum`.

    Example:
      An eighth of the time, twice the steps:

      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> link = fo.bounds.Link(
      ...     megabits=6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017
      ... )
      >>> hour = fo.bounds.optimal_local_steps(constants, link, 0.01, 3600.0)
      >>> minutes = fo.bounds.optimal_local_steps(constants, link, 0.01, 450.0)
      >>> round(float(hour.value), 2), round(float(minutes.value), 2)
      (4.81, 9.61)

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      Theorem 2.
    """
    check_constants(constants)
    check_link(link)
    positive(learning_rate=learning_rate, runtime=runtime)
    return _steps_by_runtime(as_printed, constants, link, learning_rate, runtime)


def optimal_local_steps_by_rounds(
    constants: FedAvgConstants, learning_rate: Any, rounds: Any, *, as_printed: bool = False
) -> Optimum:
    """The K that minimises the bound after R rounds: remark 2.3.

    `K*^3 = A/(eta^2 L (8 + 4/N) G^2 R)`, raised to 1 where it is below.

    Args:
      constants: the problem's `FedAvgConstants`.
      learning_rate: eta > 0.
      rounds: R > 0.
      as_printed: equation 10 as it is printed, without G^2.

    Returns:
      An `Optimum`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> best = fo.bounds.optimal_local_steps_by_rounds(constants, 0.01, 100)
      >>> round(float(best.value), 2), bool(best.clipped)
      (13.35, False)

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      remark 2.3.
    """
    check_constants(constants)
    positive(learning_rate=learning_rate, rounds=rounds)
    return _steps_by_rounds(as_printed, constants, learning_rate, rounds)


def optimal_learning_rate(
    constants: FedAvgConstants,
    link: Link,
    local_steps: Any,
    runtime: Any,
    *,
    as_printed: bool = False,
) -> Optimum:
    """The eta that minimises the bound after some seconds: corollary 2.1.

    `eta*^2 = 2 A (c + beta K)/(L Z W K)`, lowered to 1/(4L) where it is above, for the bound holds up to
    there. The bound falls until eta*, so the limit is then the best. Whether eta* itself was allowed is
    reported as the assumption 'eta* <= 1/(4L)'.

    Args:
      constants: the problem's `FedAvgConstants`.
      link: the clients' `Link`.
      local_steps: K > 0.
      runtime: W, in seconds.
      as_printed: equation 11 as it is printed, without K below the line.

    Returns:
      An `Optimum`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> link = fo.bounds.Link(
      ...     megabits=6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017
      ... )
      >>> best = fo.bounds.optimal_learning_rate(constants, link, 10, 3600.0)
      >>> round(float(best.value), 4), bool(best.clipped)
      (0.0049, False)
      >>> best = fo.bounds.optimal_learning_rate(constants, link, 1, 60.0)
      >>> round(float(best.value), 4), best.bound.violated()
      (0.25, ('eta* <= 1/(4L)',))

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      corollary 2.1.
    """
    check_constants(constants)
    check_link(link)
    positive(local_steps=local_steps, runtime=runtime)
    return _rate_by_runtime(as_printed, constants, link, local_steps, runtime)


def optimal_learning_rate_by_rounds(
    constants: FedAvgConstants, local_steps: Any, rounds: Any, *, as_printed: bool = False
) -> Optimum:
    """The eta that minimises the bound after R rounds: remark 2.1.3.

    `eta*^2 = 2 A/(L Z R K)`, lowered to 1/(4L) where it is above, as in `optimal_learning_rate`.

    Args:
      constants: the problem's `FedAvgConstants`.
      local_steps: K > 0.
      rounds: R > 0.
      as_printed: equation 12 as it is printed, without K below the line.

    Returns:
      An `Optimum`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> best = fo.bounds.optimal_learning_rate_by_rounds(constants, 10, 100)
      >>> round(float(best.value), 4), bool(best.clipped)
      (0.0218, False)

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      remark 2.1.3.
    """
    check_constants(constants)
    positive(local_steps=local_steps, rounds=rounds)
    return _rate_by_rounds(as_printed, constants, local_steps, rounds)


def best_local_steps(
    constants: FedAvgConstants, link: Link, learning_rate: Any, runtime: Any
) -> Optimum:
    """The whole K >= 1 that minimises the bound after some seconds.

    The bound is convex in K, so it is one of the two whole numbers around Theorem 2's K*, or 1. By the
    bound's difference from K to K + 1, it is K + 1 if and only if K*^3 > K (K + 1/2) (K + 1).

    Args:
      constants: the problem's `FedAvgConstants`.
      link: the clients' `Link`.
      learning_rate: eta > 0.
      runtime: W, in seconds.

    Returns:
      An `Optimum`, whose value is a float that is a whole number.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10
      ... )
      >>> link = fo.bounds.Link(
      ...     megabits=6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017
      ... )
      >>> best = fo.bounds.best_local_steps(constants, link, 0.01, 3600.0)
      >>> int(best.value), round(float(best.unconstrained), 2)
      (5, 4.81)

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      Theorem 2.
    """
    check_constants(constants)
    check_link(link)
    positive(learning_rate=learning_rate, runtime=runtime)
    return _whole_steps(constants, link, learning_rate, runtime)


@partial(jax.jit, static_argnums=0)
def _steps_by_runtime(as_printed, *arguments):
    constants, link, eta, seconds = as_floats(*arguments)
    waiting = link.communication_seconds
    if as_printed:
        waiting = link.megabits / link.download_mbps + link.megabits / link.download_mbps
    best = closed_form_steps(constants, eta, waiting / seconds, as_printed)
    allowed = jnp.maximum(best, 1.0)
    iterations = iterations_in(link, allowed, seconds)
    return Optimum(allowed, best, evaluate(constants, eta, iterations, allowed))


@partial(jax.jit, static_argnums=0)
def _steps_by_rounds(as_printed, *arguments):
    constants, eta, rounds = as_floats(*arguments)
    best = closed_form_steps(constants, eta, 1 / rounds, as_printed)
    allowed = jnp.maximum(best, 1.0)
    return Optimum(allowed, best, evaluate(constants, eta, allowed * rounds, allowed))


@partial(jax.jit, static_argnums=0)
def _rate_by_runtime(as_printed, *arguments):
    constants, link, steps, seconds = as_floats(*arguments)
    return _allowed_rate(constants, iterations_in(link, steps, seconds), steps, as_printed)


@partial(jax.jit, static_argnums=0)
def _rate_by_rounds(as_printed, *arguments):
    constants, steps, rounds = as_floats(*arguments)
    return _allowed_rate(constants, steps * rounds, steps, as_printed)


@jax.jit
def _whole_steps(*arguments):
    constants, link, eta, seconds = as_floats(*arguments)
    best = closed_form_steps(constants, eta, link.communication_seconds / seconds)
    low = jnp.maximum(jnp.floor(best), 1.0)
    between = low * jnp.cbrt((1 + 0.5 / low) * (1 + 1 / low))
    whole = jnp.where(best > between, low + 1, low)
    iterations = iterations_in(link, whole, seconds)
    return Optimum(whole, best, evaluate(constants, eta, iterations, whole))


def _allowed_rate(constants, iterations, steps, as_printed):
    # The print's K is 1 where T = W K/(c + beta K), but not in Z.
    best = closed_form_rate(constants, iterations / steps if as_printed else iterations, steps)
    highest = largest_learning_rate(constants)
    allowed = jnp.minimum(best, highest)
    bound = evaluate(constants, allowed, iterations, steps)
    reported = bound.assumptions | {"eta* <= 1/(4L)": best <= highest}
    return Optimum(allowed, best, bound._replace(assumptions=reported))
