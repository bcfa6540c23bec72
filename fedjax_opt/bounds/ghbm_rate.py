"""GHBM's rate and the step sizes that reach it: Theorem 4.7 and equation 122.

What the theorem says, and where its proof errs, is in `fedjax_opt.bounds.ghbm`. All of it is up to a
constant.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Section 4.3 and appendix B.4.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.ghbm import GHBMConstants, check_constants
from fedjax_opt.bounds.numbers import as_floats, positive, root
from fedjax_opt.bounds.result import Bound
from fedjax_opt.core import checks


class GHBMStepSizes(NamedTuple):
    """The step sizes of GHBM's Theorem 4.7.

    Attributes:
      gradient_weight: beta, the weight of the gradient in the momentum.
      server_learning_rate: eta, of x_t = x_{t-1} - eta m_{t+1}; for `ghbm_theory` it is eta_s eta_l K.
      local_learning_rate: eta_l, up to a constant.
    """

    gradient_weight: Any
    server_learning_rate: Any
    local_learning_rate: Any


def ghbm_rate(constants: GHBMConstants, local_steps: Any, rounds: Any) -> Bound:
    """GHBM's rate with tau = 1/C, up to a constant: Theorem 4.7.

    `L D/T + sqrt(L D sigma^2/(|S| J T))` with `D = f(x_0) - f*`: the terms 'initial' and 'noise'. It is
    the order of the mean E||grad f||^2 over the rounds, if clients take turns and the steps are those of
    `ghbm_step_sizes`. The assumption `beta (tau - 1) <= 1`, itself up to a constant, is not in the
    paper: the proof needs it because gradients are old. Where it fails, GHBM may even diverge.

    Args:
      constants: the problem's `GHBMConstants`.
      local_steps: J, the local steps in a round.
      rounds: T.

    Returns:
      A `Bound`, up to a constant.

    Example:
      A tenth of the clients in each round counts as much as all of them:

      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(
      ...     1.0, 1.0, num_clients=100, participation=0.1, noise_variance=4.0
      ... )
      >>> round(float(fo.bounds.ghbm_rate(constants, local_steps=10, rounds=40_000).value), 6)
      0.000341

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Theorem 4.7.
    """
    check_constants(constants)
    checks.number("local_steps", local_steps, low=1.0, open_high=True)
    positive(rounds=rounds)
    constants, steps, rounds = as_floats(constants, local_steps, rounds)
    gap, C = _gap_per_round(constants, rounds), constants.participation
    noise = constants.noise_variance / constants.num_clients / steps
    terms = {"initial": gap, "noise": root(gap * noise)}
    period = 1 / C
    slack = 4 * jnp.finfo(C.dtype).eps
    assumptions = {
        "1/C is whole": jnp.abs(period - jnp.round(period)) <= slack * period,
        "C |S| >= 1": C * constants.num_clients >= 1 - slack,
        "beta (tau - 1) <= 1": _gradient_weight(gap, noise) * (period - 1) <= 1 + slack,
        "f(x0) >= f*": gap >= 0,
    }
    return Bound(sum(terms.values()), terms, assumptions)


def ghbm_step_sizes(
    constants: GHBMConstants,
    local_steps: Any,
    rounds: Any,
    first_gradients_squared: Any,
    as_printed: bool = False,
) -> GHBMStepSizes:
    """The step sizes with which GHBM's rate is proved, for tau = 1/C: equation 122.

    `beta = min{1, sqrt(|S| J L D/(sigma^2 T))}`, `eta = min{1/(24 L), beta/(sqrt(8) L)}`, and up to a
    constant `eta_l J L = min{1, 1/(beta eta L sqrt(tau) T), sqrt(L D/(beta^3 tau G_tau T)),
    1/sqrt(beta |S|), (beta^3 |S| J)^(-1/4)}`.

    Args:
      constants: the problem's `GHBMConstants`, with f(x_0) > f*.
      local_steps: J, the local steps in a round.
      rounds: T.
      first_gradients_squared: G_tau, the largest over the first tau rounds of the mean of
        E||grad f_i||^2 over the clients of the round.
      as_printed: with beta/sqrt(8 L) in eta.

    Returns:
      A `GHBMStepSizes`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(
      ...     1.0, 1.0, num_clients=100, participation=0.1, noise_variance=4.0
      ... )
      >>> beta, eta, _ = fo.bounds.ghbm_step_sizes(
      ...     constants, local_steps=10, rounds=40_000, first_gradients_squared=1.0
      ... )
      >>> round(float(beta), 4), round(float(eta), 4)
      (0.0791, 0.028)

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Equation 122.
    """
    check_constants(constants)
    checks.number("local_steps", local_steps, low=1.0, open_high=True)
    checks.number("first_gradients_squared", first_gradients_squared, low=0.0)
    positive(rounds=rounds)
    constants, steps, rounds, first = as_floats(
        constants, local_steps, rounds, first_gradients_squared
    )
    L, clients = constants.smoothness, constants.num_clients
    gap = _gap_per_round(constants, rounds)
    noise = constants.noise_variance / clients / steps
    beta = _gradient_weight(gap, noise)
    slowest = jnp.sqrt(8 * L) if as_printed else math.sqrt(8) * L
    eta = jnp.minimum(1 / (24 * L), beta / slowest)
    root_tau = 1 / jnp.sqrt(constants.participation)
    limits = [
        1 / (beta * (eta * L) * root_tau * rounds),
        _sqrt_ratio(gap, beta**3 * first) / root_tau,
        1 / jnp.sqrt(beta * clients),
        (beta**3 * clients * steps) ** -0.25,
    ]
    smallest = jnp.ones_like(beta)
    for limit in limits:
        smallest = jnp.minimum(smallest, limit)
    return GHBMStepSizes(beta, eta, smallest / steps / L)


def _gap_per_round(constants: GHBMConstants, rounds: jax.Array) -> jax.Array:
    """L D/T."""
    return constants.smoothness * ((constants.initial_loss - constants.optimal_loss) / rounds)


def _gradient_weight(gap, noise):
    """beta = min{1, sqrt(L D/T / (sigma^2/(|S| J)))}."""
    return jnp.minimum(1.0, _sqrt_ratio(gap, noise))


def _sqrt_ratio(top, bottom):
    """sqrt(top/bottom), infinite where the bottom is 0."""
    return jnp.where(bottom > 0, root(top / jnp.where(bottom > 0, bottom, 1)), jnp.inf)
