"""The best number of local steps and the best learning rate together.

They minimise the bound by runtime, (8) of Mills et al. (2023): with a = 2 kappa A/W, b = kappa L,
s = sum_c p_c^2 sigma_c^2 + 6 L Gamma and g = (8 + 4/N) G^2,

    B(K, eta) = a c/(K eta) + a beta/eta + b s eta + b g K^2 eta

All four terms are monomials with positive coefficients, so B is a convex function of (log K, log eta),
and eta <= 1/(4L) is a convex set. Hence

- V(K), the smallest B over the allowed eta, is convex in log K: it falls to its minimum and rises from
  there, and the best whole K is next to the minimum, or is 1.
- Where the minimum of B over all K and eta is allowed, it is V's. Setting both derivatives to zero
  leaves one cubic, K^2 (1 + 2 K beta/c) = s/g, with one positive root.
- Where it is not allowed, the limit binds at the minimum: eta = 1/(4L), and K is Theorem 2's for it.

Nothing is searched, so nothing can be missed, and the cost does not grow with K.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.fedavg_closed_forms import closed_form_rate, closed_form_steps
from fedjax_opt.bounds.fedavg_constants import (
    FedAvgConstants,
    Link,
    check_constants,
    check_link,
)
from fedjax_opt.bounds.fedavg_theorem import (
    drift_weight,
    evaluate,
    iterations_in,
    largest_learning_rate,
)
from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Bound


class FedAvgPlan(NamedTuple):
    """How to spend a given time: the local steps and the learning rate with the smallest bound.

    Attributes:
      local_steps: K, a whole number of at least 1, as a float.
      learning_rate: eta, at most 1/(4L).
      bound: the `Bound` with both.
    """

    local_steps: Any
    learning_rate: Any
    bound: Bound


def best_plan(constants: FedAvgConstants, link: Link, runtime: Any) -> FedAvgPlan:
    """The whole K >= 1 and the eta <= 1/(4L) that together minimise the bound after some seconds.

    The minimum is found in closed form, from the only stationary point of a convex function.

    Args:
      constants: the problem's `FedAvgConstants`.
      link: the clients' `Link`.
      runtime: W, in seconds.

    Returns:
      A `FedAvgPlan`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10,
      ...     noise=5.0,
      ... )
      >>> link = fo.bounds.Link(
      ...     megabits=6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017
      ... )
      >>> plan = fo.bounds.best_plan(constants, link, runtime=3600.0)
      >>> int(plan.local_steps), round(float(plan.learning_rate), 4), bool(plan.bound.holds)
      (7, 0.0056, True)

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      equation 8.
    """
    check_constants(constants)
    check_link(link)
    positive(runtime=runtime)
    return _best_plan(constants, link, runtime)


@jax.jit
def _best_plan(*arguments):
    constants, link, seconds = as_floats(*arguments)
    limit = largest_learning_rate(constants)

    def rate(steps):
        return closed_form_rate(constants, iterations_in(link, steps, seconds), steps)

    def plan(steps):
        eta = jnp.minimum(rate(steps), limit)
        bound = evaluate(constants, eta, iterations_in(link, steps, seconds), steps)
        return FedAvgPlan(steps, eta, bound)

    free = _stationary_steps(constants, link)
    bound_to = closed_form_steps(constants, limit, link.communication_seconds / seconds)
    # Where K tends to 0, no rate may be a number; there the limit binds.
    best = jnp.where(rate(free) <= limit, free, bound_to)
    low = jnp.maximum(jnp.floor(best), 1.0)
    below, above = plan(low), plan(low + 1)
    return jax.tree.map(
        lambda b, a: jnp.where(above.bound.value < below.bound.value, a, b), below, above
    )


def _stationary_steps(constants, link):
    """The positive root of K^2 (1 + 2 K beta/c) = s/g.

    For 1/K the cubic is Chebyshev's, 4 C^3 - 3 C = z with z = (beta/c) sqrt(27 s/g) and
    K = sqrt(3 s/g)/(2 C).
    """
    G, L = constants.gradient_bound, constants.smoothness
    spread = jnp.sqrt(constants.noise + 6 * L * constants.heterogeneity)
    ratio = spread / (jnp.sqrt(drift_weight(constants)) * jnp.where(G > 0, G, 1.0))
    z = 27**0.5 * (link.seconds_per_step / link.communication_seconds) * ratio
    trigonometric = jnp.cos(jnp.arccos(jnp.minimum(z, 1.0)) / 3)
    hyperbolic = jnp.cosh(jnp.arccosh(jnp.maximum(z, 1.0)) / 3)
    root = 3**0.5 * ratio / (2 * jnp.where(z < 1, trigonometric, hyperbolic))
    return jnp.where(G > 0, root, jnp.inf)
