"""Bounds of FedACG: for nonconvex losses, and what is stated for convex ones.

With momentum lambda, K local steps, P = 4 (N - |S|)/(|S| (N - 1)) and
eta = min{(1-lambda)/(2 L K), C/sqrt(t+1)}, without a proximal term,

    min_{k <= t} E||grad F(x_k + lambda m_k)||^2
        <= 2 (F(z_0) - F*) (1-lambda)/((t+1) K) max{2 L K/(1-lambda), sqrt(t+1)/C}
           + C B''/sqrt(t+1)                                                                      (13)
    B'' = {[(1 + L^2 K^4/3)(1-lambda) + (1+P) A] G^2 + A sigma^2}/((1-lambda) K)
    A   = L K^2 (1 + lambda^4/(2 (1-lambda)^2))

Where the print errs: the first term lost the 1/K that (12) has; B'' has (1-lambda^2) for (1-lambda)^2 in
sigma^2's part, and once more lambda^4 L K^2/(2 (1-lambda)^2) in G^2's part, which no lemma gives.

For convex losses and proximal weight beta the paper states

    E[f(mean of x_0 .. x_{T-1})] - f*
        <= (beta (1-lambda) ||x_0 - x*||^2 + (lambda/beta) M)/T                           (Theorem 2)

for 1/2 < lambda < 1 and beta >= L/(1-lambda), M the clients' mean of ||grad f_i||^2. It is not proved:
- Lemma 9 drops the clients' mean of ||grad f_i(x*)||^2, 0 only if x* is optimal for every client. Where
  it is not, FedACG with exact local solutions ends at the fixed point of the mean of proximal maps,
  which is not x*, and the bound fails for large T.
- (19) is an approximate equality.
- Lemma 6 scales Lemma 9 by a number that is negative for lambda > 1/2, and its kappa_0 is not positive
  under the stated conditions: at beta = L/(1-lambda) it is only for lambda < 3/4.
- Theorem 1 of the main text sets beta = L sqrt(lambda/(1-lambda)), which is never >= L/(1-lambda).
So the convex functions return the formula, and what of this can be checked from the numbers.

Reference:
  Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient. CVPR
  2024. Section 3.3 and appendix A, as first submitted.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Bound
from fedjax_opt.core import checks

POSITIVE = {"low": 0.0, "open_low": True}
NOT_NEGATIVE = {"low": 0.0}
AT_LEAST_ONE = {"low": 1.0}
FINITE = {"open_low": True}


class FedACGConstants(NamedTuple):
    """What the bounds of FedACG know of a problem.

    Numbers, or arrays of one shape for many problems at once. The nonconvex bound needs the first seven,
    the convex ones `smoothness` and the last three; what a bound does not need may be None.

    Attributes:
      smoothness: L > 0, for which every client's loss is L-smooth.
      initial_loss: F(z_0) = F(x_0).
      num_clients: N.
      cohort_size: |S|.
      gradient_bound: G, not squared: no gradient is longer, those of minibatches included.
      noise_variance: sigma^2, the largest variance of a client's stochastic gradient.
      optimal_loss: F*.
      distance_squared: ||x_0 - x*||^2.
      gradients_squared: M, the clients' mean of ||grad f_i||^2 at the beginning.
      optimal_gradients_squared: the clients' mean of ||grad f_i(x*)||^2; 0 where they agree on x*.

    Reference:
      Kim et al. Communication-efficient federated learning with accelerated client gradient. 2024.
      Appendix A.
    """

    smoothness: Any
    initial_loss: Any = None
    num_clients: Any = None
    cohort_size: Any = None
    gradient_bound: Any = None
    noise_variance: Any = 0.0
    optimal_loss: Any = 0.0
    distance_squared: Any = None
    gradients_squared: Any = None
    optimal_gradients_squared: Any = 0.0


def fedacg_learning_rate(
    constants: FedACGConstants, scale: Any, momentum: Any, local_steps: Any, rounds: Any
) -> jax.Array:
    """The learning rate of FedACG's nonconvex bound: `min{(1-lambda)/(2 L K), C/sqrt(t+1)}`.

    Args:
      constants: the problem's `FedACGConstants`.
      scale: C > 0.
      momentum: lambda, in [0, 1).
      local_steps: K.
      rounds: t + 1.

    Returns:
      eta.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(smoothness=1.0)
      >>> eta = fo.bounds.fedacg_learning_rate(constants, 1.0, momentum=0.5, local_steps=5, rounds=400)
      >>> round(float(eta), 6)
      0.05

    Reference:
      Kim et al. Communication-efficient federated learning with accelerated client gradient. 2024.
      Appendix A.1.
    """
    _check_run(scale, momentum, local_steps, rounds)
    check_constants(constants, smoothness=POSITIVE)
    L, scale, lam, steps, rounds = as_floats(
        constants.smoothness, scale, momentum, local_steps, rounds
    )
    return jnp.minimum((1 - lam) / (2 * L * steps), scale / jnp.sqrt(rounds))


def fedacg_nonconvex(
    constants: FedACGConstants,
    scale: Any,
    momentum: Any,
    local_steps: Any,
    rounds: Any,
    as_printed: bool = False,
) -> Bound:
    """FedACG's bound on the smallest E||grad F||^2 at a look-ahead point: equation 13.

    For the learning rate `fedacg_learning_rate` and no proximal term. Its terms are 'initial', 'drift'
    (local steps), 'momentum and sampling' and 'noise'.

    Args:
      constants: the problem's `FedACGConstants`.
      scale: C > 0.
      momentum: lambda, in [0, 1).
      local_steps: K.
      rounds: t + 1.
      as_printed: as in (10) and (13), without 1/K in the first term and with the printed B''.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(
      ...     smoothness=1.0, initial_loss=1.0, num_clients=100, cohort_size=10, gradient_bound=0.1
      ... )
      >>> bound = fo.bounds.fedacg_nonconvex(
      ...     constants, 0.1, momentum=0.5, local_steps=2, rounds=10_000
      ... )
      >>> round(float(bound.value), 4)
      0.0501

    Reference:
      Kim et al. Communication-efficient federated learning with accelerated client gradient. 2024.
      Equations 10 to 13.
    """
    _check_run(scale, momentum, local_steps, rounds)
    check_constants(
        constants, smoothness=POSITIVE, initial_loss=FINITE, num_clients=AT_LEAST_ONE,
        cohort_size=AT_LEAST_ONE, gradient_bound=NOT_NEGATIVE, noise_variance=NOT_NEGATIVE,
        optimal_loss=FINITE,
    )  # fmt: skip
    constants, scale, lam, steps, rounds = as_floats(
        constants, scale, momentum, local_steps, rounds
    )
    L, G, rest = constants.smoothness, constants.gradient_bound, 1 - lam
    clients, cohort = constants.num_clients, constants.cohort_size
    size = scale / jnp.sqrt(rounds)
    gap = constants.initial_loss - constants.optimal_loss
    first = gap * jnp.maximum(4 * L / rounds, 2 * rest / (rounds * size) / steps)
    others = 4 * jnp.maximum(clients - cohort, 0) / cohort / jnp.maximum(clients - 1, 1)
    carried = lam**4 / (2 * rest**2)
    spread, noise = (1 + others) * (1 + carried), 1 + carried
    if as_printed:
        first = first * steps
        spread, noise = spread + carried, 1 + lam**4 / (2 * (1 - lam**2))
    unit = size * L * steps / rest
    terms = {
        "initial": first,
        "drift": size / steps * G**2 + (size * L * steps * G) * (L * steps * G) * (steps / 3),
        "momentum and sampling": unit * G * (G * spread),
        "noise": unit * (noise * constants.noise_variance),
    }
    assumptions = {"|S| <= N": cohort <= clients, "F(z0) >= F*": gap >= 0}
    return Bound(sum(terms.values()), terms, assumptions)


def check_constants(constants: FedACGConstants, **needed: dict[str, Any]) -> None:
    """Refuses constants that are missing, or that no problem has."""
    for name, limits in needed.items():
        value = getattr(constants, name)
        if value is None:
            raise ValueError(f"constants.{name} must be given for this bound, got None.")
        checks.number(f"constants.{name}", value, open_high=True, **limits)


def _check_run(scale, momentum, local_steps, rounds):
    positive(scale=scale, rounds=rounds)
    checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    checks.number("local_steps", local_steps, low=1.0, open_high=True)
