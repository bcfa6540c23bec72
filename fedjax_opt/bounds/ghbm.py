"""Bounds of GHBM, the momentum of the last tau rounds; beta weighs the gradient, as in its proofs.

|S| clients, C of them in a round, J local steps (K elsewhere in this package), T rounds, learning rates
eta of the server and eta_l of the clients, D = f(x_0) - f*, S_tau the clients of the last tau rounds:

    E||g_tau - f'||^2 <= 8 E[((|S| - |S_tau|)/|S|)^2] (G^2 + ||f'||^2)                     (Lemma 4.4)
      ||g_tau - f'||^2 <= 8 (1 - tau C)^2 (G^2 + ||f'||^2)                              (Corollary 4.5)
    E||g~_tau - g_tau||^2 <= 3 (sigma^2/(|S_tau| J) + L^2 mean of U_k
                                + (tau - 1) L^2 eta^2 sum of (E||f'_k||^2 + E_k))         (Lemma 4.6)
    (1/T) sum E||f'||^2 <~ L D/T + sqrt(L D sigma^2/(|S| J T))                           (Theorem 4.7)

g_tau is the mean gradient of S_tau at x, g~_tau what the server has of it, U_k the mean square by which
the clients of round k drifted, E_k = E||f'(x_{k-1}) - m_{k+1}||^2; <~ is "up to a constant".

Where the print errs:
- (122) has beta/sqrt(8 L) for beta/(sqrt(8) L), which the proof needs: eta^2 <= beta^2/(8 L^2).
- Lemma 4.6 has 2 for tau - 1 in the lag. (56) bounds ||x_{k-1} - x_{t-1}||^2 by (t-k) times the square
  of one step; it is at most (t-k) times the sum of the squares of all steps between. Gradient descent
  on a quadratic breaks the printed form for tau > 25.
- U_k is defined over all clients, but those of round k are what (51) needs.
- Corollary 4.5 takes G, a bound of the mean over all clients, for those of S_tau. In a fixed order of
  clients, ||g_tau - f'||^2 can be G^2 (1 - tau C)/(tau C), which is more for tau C below 0.146 or above
  0.854. It holds if G bounds every single client, or on average over the order.
- From (60) to (61) the lag's eta becomes eta_l, and Theorem 4.7 has no condition on eta tau. With eta
  kept, its proof needs beta (tau - 1) <~ 1. Without that the theorem is false: with equal quadratics, no
  noise and so beta = 1, GHBM with the steps of (122) diverges for tau >= 119.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Section 4 and appendix B.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from fedjax_opt.bounds.coverage import expected_unseen_share_squared
from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Bound
from fedjax_opt.core import checks


class GHBMConstants(NamedTuple):
    """What the bounds of GHBM know of a problem.

    Numbers, or arrays of one shape for many problems at once.

    Attributes:
      smoothness: L > 0, for which every client's loss is L-smooth.
      initial_loss: f(x_0).
      num_clients: |S|.
      participation: C, the share of the clients in a round, in (0, 1].
      noise_variance: sigma^2, the largest variance of a client's stochastic gradient.
      dissimilarity: G, not squared, with mean_i ||grad f_i - grad f||^2 <= G^2 everywhere.
      optimal_loss: the smallest value of f.

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Section 4.1.
    """

    smoothness: Any
    initial_loss: Any
    num_clients: Any
    participation: Any = 1.0
    noise_variance: Any = 0.0
    dissimilarity: Any = 0.0
    optimal_loss: Any = 0.0


def ghbm_momentum_deviation(
    constants: GHBMConstants,
    tau: Any,
    gradient_norm_squared: Any,
    unseen_share_squared: Any = None,
) -> Bound:
    """How far the mean gradient of the last tau cohorts is from that of all clients: Lemma 4.4.

    `8 E[((|S| - |S_tau|)/|S|)^2] (G^2 + ||grad f||^2)`, with the terms 'dissimilarity' and 'gradient'.
    Cohorts are drawn at random, and gradients are taken at the same model.

    Args:
      constants: the problem's `GHBMConstants`.
      tau: rounds, positive.
      gradient_norm_squared: ||grad f||^2.
      unseen_share_squared: the expected square of the share of clients that are not in S_tau; None for
        uniform cohorts, `expected_unseen_share_squared`.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(
      ...     1.0, 1.0, num_clients=100, participation=0.1, dissimilarity=1.0
      ... )
      >>> bounds = [fo.bounds.ghbm_momentum_deviation(constants, tau, 0.0) for tau in (1, 10, 50)]
      >>> [round(float(bound.value), 2) for bound in bounds]
      [6.48, 0.98, 0.0]

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Lemma 4.4.
    """
    check_constants(constants)
    positive(tau=tau)
    checks.number("gradient_norm_squared", gradient_norm_squared, low=0.0)
    if unseen_share_squared is None:
        cohort = constants.participation * constants.num_clients
        unseen_share_squared = expected_unseen_share_squared(constants.num_clients, cohort, tau)
    checks.number("unseen_share_squared", unseen_share_squared, low=0.0, high=1.0)
    constants, gradient, unseen = as_floats(constants, gradient_norm_squared, unseen_share_squared)
    return _deviation(unseen, constants.dissimilarity, gradient, {})


def ghbm_cyclic_deviation(constants: GHBMConstants, tau: Any, gradient_norm_squared: Any) -> Bound:
    """How far the mean gradient of the last tau cohorts is, if clients take turns: Corollary 4.5.

    `8 (1 - tau C)^2 (G^2 + ||grad f||^2)`, with the terms 'dissimilarity' and 'gradient'. It vanishes
    for tau = 1/C. With G a bound of the clients' mean, as defined, it is true for every order of the
    clients only where the second assumption holds.

    Args:
      constants: the problem's `GHBMConstants`.
      tau: rounds, positive.
      gradient_norm_squared: ||grad f||^2.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(
      ...     1.0, 1.0, num_clients=100, participation=0.1, dissimilarity=1.0
      ... )
      >>> bounds = [fo.bounds.ghbm_cyclic_deviation(constants, tau, 0.0) for tau in (1, 5, 10)]
      >>> [round(float(bound.value), 2) for bound in bounds]
      [6.48, 2.0, 0.0]
      >>> fo.bounds.ghbm_cyclic_deviation(constants, 1, 0.0).violated()
      ('G^2 (1 - tau C)/(tau C) <= bound',)

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Corollary 4.5.
    """
    check_constants(constants)
    positive(tau=tau)
    checks.number("gradient_norm_squared", gradient_norm_squared, low=0.0)
    constants, tau, gradient = as_floats(constants, tau, gradient_norm_squared)
    slack = 1 + 4 * jnp.finfo(tau.dtype).eps
    share, G = tau * constants.participation, constants.dissimilarity
    # tau = 1/C should be 1, whatever the rounding of 1/C.
    unseen = jnp.where(jnp.abs(share - 1) <= slack - 1, 0.0, 1 - share)
    bound = _deviation(unseen**2, G, gradient, {"tau C <= 1": share <= slack})
    worst = G * (G * jnp.maximum(unseen, 0.0) / share)
    assumptions = {"G^2 (1 - tau C)/(tau C) <= bound": worst <= bound.value * slack}
    return bound._replace(assumptions=bound.assumptions | assumptions)


def ghbm_momentum_error(
    constants: GHBMConstants,
    local_steps: Any,
    server_learning_rate: Any,
    drifts: Any,
    gradient_norms_squared: Any,
    update_errors: Any,
    as_printed: bool = False,
) -> Bound:
    """How far what the server has is from the mean gradient of the last tau cohorts: Lemma 4.6.

    Its terms are 'noise', 'drift' and 'lag', each with the factor 3. tau is the number of `drifts`.

    Args:
      constants: the problem's `GHBMConstants`.
      local_steps: J, the local steps in a round.
      server_learning_rate: eta > 0, of x_t = x_{t-1} - eta m_{t+1}.
      drifts: U_k for the last tau rounds, `[tau]`: E||y - x||^2, mean over local steps and the clients
        of that round.
      gradient_norms_squared: E||grad f(x_{k-1})||^2 for these rounds without the last, `[tau - 1]`.
      update_errors: E_k = E||grad f(x_{k-1}) - m_{k+1}||^2 for the same, `[tau - 1]`.
      as_printed: with 2 for tau - 1 in the lag.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(
      ...     1.0, 1.0, num_clients=8, participation=0.25, noise_variance=1.0
      ... )
      >>> bound = fo.bounds.ghbm_momentum_error(constants, 2, 0.1, [0.1] * 4, [1.0] * 3, [0.0] * 3)
      >>> {name: round(float(value), 4) for name, value in bound.terms.items()}
      {'noise': 0.1875, 'drift': 0.3, 'lag': 0.27}

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Lemma 4.6.
    """
    check_constants(constants)
    positive(local_steps=local_steps, server_learning_rate=server_learning_rate)
    drifts, gradients, errors = map(jnp.asarray, (drifts, gradient_norms_squared, update_errors))
    window = drifts.shape[0] if drifts.ndim == 1 else 0
    if window < 1 or gradients.shape != (window - 1,) or errors.shape != (window - 1,):
        raise ValueError(
            "drifts must have the shape [tau], gradient_norms_squared and update_errors [tau - 1], got"
            f" {list(drifts.shape)}, {list(gradients.shape)} and {list(errors.shape)}."
        )
    named = {"drifts": drifts, "gradient_norms_squared": gradients, "update_errors": errors}
    for name, value in named.items():
        checks.number(name, value, low=0.0)
    constants, steps, eta, drifts, gradients, errors = as_floats(
        constants, local_steps, server_learning_rate, drifts, gradients, errors
    )
    L, share = constants.smoothness, window * constants.participation
    movement = 2 if as_printed else window - 1
    terms = {
        "noise": 3 * (constants.noise_variance / (share * constants.num_clients) / steps),
        "drift": 3 * L * (L * jnp.mean(drifts)),
        "lag": 3 * movement * (eta * L) * (eta * L * jnp.sum(gradients + errors)),
    }
    slack = 1 + 4 * jnp.finfo(L.dtype).eps
    return Bound(sum(terms.values()), terms, {"tau C <= 1": share <= slack})


def check_constants(constants: GHBMConstants) -> None:
    """Refuses constants that no problem has; what merely breaks an assumption is not refused."""
    limits = {
        "smoothness": {"low": 0.0, "open_low": True, "open_high": True},
        "initial_loss": {"open_low": True, "open_high": True},
        "num_clients": {"low": 1.0, "open_high": True},
        "participation": {"low": 0.0, "open_low": True, "high": 1.0},
        "noise_variance": {"low": 0.0, "open_high": True},
        "dissimilarity": {"low": 0.0, "open_high": True},
        "optimal_loss": {"open_low": True, "open_high": True},
    }
    for name, limit in limits.items():
        checks.number(f"constants.{name}", getattr(constants, name), **limit)


def _deviation(unseen_squared, G, gradient, assumptions):
    terms = {
        "dissimilarity": 8 * unseen_squared * G**2,
        "gradient": 8 * unseen_squared * gradient,
    }
    return Bound(sum(terms.values()), terms, assumptions)
