"""What FedACG's paper states for convex losses; `fedjax_opt.bounds.fedacg` says what is wrong with it.

Reference:
  Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient. CVPR
  2024. Appendix A, as first submitted.
"""

from typing import Any

import jax.numpy as jnp

from fedjax_opt.bounds.fedacg import NOT_NEGATIVE, POSITIVE, FedACGConstants, check_constants
from fedjax_opt.bounds.numbers import as_floats, positive, root
from fedjax_opt.bounds.result import Bound, Optimum
from fedjax_opt.core import checks


def fedacg_convex(
    constants: FedACGConstants, proximal_weight: Any, momentum: Any, rounds: Any
) -> Bound:
    """What is stated of FedACG's loss gap for convex losses: Theorem 2.

    `(beta (1-lambda) ||x_0 - x*||^2 + (lambda/beta) M)/T`, with the terms 'distance' and 'gradient', for
    the loss at the mean of the models, clients solving their local problems exactly.

    Args:
      constants: the problem's `FedACGConstants`.
      proximal_weight: beta > 0.
      momentum: lambda, in [0, 1).
      rounds: T.

    Returns:
      A `Bound`. Even where all assumptions hold, its proof rests on an approximation.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(1.0, distance_squared=1.0, gradients_squared=1.0)
      >>> bound = fo.bounds.fedacg_convex(constants, proximal_weight=2.5, momentum=0.6, rounds=100)
      >>> round(float(bound.value), 4), bool(bound.holds)
      (0.0124, True)
      >>> fo.bounds.fedacg_convex(constants, 2.5, momentum=0.9, rounds=100).violated()
      ('beta >= L/(1-lambda)', 'kappa_0 > 0')

    Reference:
      Kim et al. Communication-efficient federated learning with accelerated client gradient. 2024.
      Theorem 2.
    """
    _check(constants, momentum, rounds)
    positive(proximal_weight=proximal_weight)
    constants, beta, lam, rounds = as_floats(constants, proximal_weight, momentum, rounds)
    return _evaluate(constants, beta, lam, rounds)


def fedacg_convex_main_text(constants: FedACGConstants, momentum: Any, rounds: Any) -> Bound:
    """What the main text states of FedACG's loss gap for convex losses: Theorem 1.

    `sqrt(lambda (1-lambda)) (L ||x_0 - x*||^2 + M/L)/T`, which is Theorem 2 with the proximal weight
    beta = L sqrt(lambda/(1-lambda)). That is never allowed: it would need lambda (1-lambda) >= 1.

    Args:
      constants: the problem's `FedACGConstants`.
      momentum: lambda, in (0, 1).
      rounds: T.

    Returns:
      A `Bound`; its assumption 'beta >= L/(1-lambda)' is always violated.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(1.0, distance_squared=1.0, gradients_squared=1.0)
      >>> bound = fo.bounds.fedacg_convex_main_text(constants, momentum=0.6, rounds=100)
      >>> round(float(bound.value), 4), bound.violated()
      (0.0098, ('beta >= L/(1-lambda)', 'kappa_0 > 0'))

    Reference:
      Kim et al. Communication-efficient federated learning with accelerated client gradient. 2024.
      Theorem 1.
    """
    _check(constants, momentum, rounds)
    positive(momentum=momentum)
    constants, lam, rounds = as_floats(constants, momentum, rounds)
    return _evaluate(constants, constants.smoothness * jnp.sqrt(lam / (1 - lam)), lam, rounds)


def fedacg_optimal_proximal_weight(
    constants: FedACGConstants, momentum: Any, rounds: Any
) -> Optimum:
    """The proximal weight for which Theorem 2 states the least.

    `beta = sqrt(lambda M/((1-lambda) ||x_0 - x*||^2))`, or L/(1-lambda) where that is more. It is,
    whenever M <= L^2 ||x_0 - x*||^2, as for clients that agree on x*.

    Args:
      constants: the problem's `FedACGConstants`, with ||x_0 - x*|| > 0.
      momentum: lambda, in [0, 1).
      rounds: T.

    Returns:
      An `Optimum`: the allowed beta, the one without the condition, and the `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(1.0, distance_squared=1.0, gradients_squared=1.0)
      >>> best = fo.bounds.fedacg_optimal_proximal_weight(constants, momentum=0.6, rounds=100)
      >>> round(float(best.value), 4), round(float(best.unconstrained), 4), bool(best.clipped)
      (2.5, 1.2247, True)

    Reference:
      Kim et al. Communication-efficient federated learning with accelerated client gradient. 2024.
      Theorem 2.
    """
    _check(constants, momentum, rounds)
    positive(**{"constants.distance_squared": constants.distance_squared})
    constants, lam, rounds = as_floats(constants, momentum, rounds)
    ratio = constants.gradients_squared / constants.distance_squared
    best = root(lam / (1 - lam) * ratio)
    allowed = jnp.maximum(best, constants.smoothness / (1 - lam))
    return Optimum(allowed, best, _evaluate(constants, allowed, lam, rounds))


def _check(constants, momentum, rounds):
    check_constants(
        constants, smoothness=POSITIVE, distance_squared=NOT_NEGATIVE,
        gradients_squared=NOT_NEGATIVE, optimal_gradients_squared=NOT_NEGATIVE,
    )  # fmt: skip
    checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    positive(rounds=rounds)


def _evaluate(constants, beta, lam, rounds):
    L = constants.smoothness
    terms = {
        "distance": beta / rounds * ((1 - lam) * constants.distance_squared),
        "gradient": lam / beta * (constants.gradients_squared / rounds),
    }
    slack = 1 + 4 * jnp.finfo(L.dtype).eps
    weight = beta / L
    # kappa_0 = 2/(beta (1-lambda)) (4 (b (1+lambda) - 1)/(4 + b^2 (4 lambda^2 - 1)) - 1), b = beta/L.
    below = 4 / weight + weight * (4 * lam**2 - 1)
    positive_kappa = (below > 0) & (4 * (1 + lam) - 4 / weight > below)
    assumptions = {
        "1/2 < lambda < 1": lam > 0.5,
        "beta >= L/(1-lambda)": weight * slack >= 1 / (1 - lam),
        "kappa_0 > 0": positive_kappa,
        "grad f_i(x*) = 0": constants.optimal_gradients_squared == 0,
    }
    return Bound(sum(terms.values()), terms, assumptions)
