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

- Lemma B.5 cannot be had as it is printed: (66) drops the noise of old rounds, on which the momentum
  depends, from the cross term; (70) has 1 + 1/beta for the 1 + 4/beta of its inequality; (62) forgets
  to divide its last term by 5 beta/8. `ghbm_update_errors` takes what holds, and in every single run:
  ||f' - m+||^2 <= (1-beta) ||f' - m||^2 + beta ||f' - g~||^2, convexity, and the rest of the proof.
- Lemma B.6 holds where gradients are taken, before each local step; (11) counts the last model instead
  of the first.
- (115) needs T >= 2 tau + 1, and Lemma B.7's condition has eta_l for the eta of (116).

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Section 4 and appendix B.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.coverage import expected_unseen_share_squared
from fedjax_opt.bounds.theorem import (
    AtLeastOne,
    Finite,
    FiniteNotNegative,
    FinitePositive,
    NotNegative,
    Positive,
    Probability,
    Share,
    at_most,
    formula,
    root,
    theorem,
)


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
    """

    smoothness: FinitePositive
    initial_loss: Finite
    num_clients: AtLeastOne
    participation: Share = 1.0
    noise_variance: FiniteNotNegative = 0.0
    dissimilarity: FiniteNotNegative = 0.0
    optimal_loss: Finite = 0.0


class GHBMStepSizes(NamedTuple):
    """The step sizes of GHBM's Theorem 4.7.

    Attributes:
      gradient_weight: beta, the weight of the gradient in the momentum.
      server_learning_rate: eta, of x_t = x_{t-1} - eta m_{t+1}; for `ghbm_theory` it is eta_s eta_l K.
      local_learning_rate: eta_l, up to a constant.
    """

    gradient_weight: jax.Array
    server_learning_rate: jax.Array
    local_learning_rate: jax.Array


@theorem
def ghbm_momentum_deviation(
    constants: GHBMConstants,
    tau: Positive,
    gradient_norm_squared: NotNegative,
    unseen_share_squared: Probability | None = None,
):
    """How far the mean gradient of the last tau cohorts is from that of all clients: Lemma 4.4.

    `8 E[((|S| - |S_tau|)/|S|)^2] (G^2 + ||grad f||^2)`, with the terms 'dissimilarity' and 'gradient'.
    Cohorts are drawn at random, and gradients are taken at the same model.

    Args:
      constants: the problem's `GHBMConstants`.
      tau: rounds, positive.
      gradient_norm_squared: ||grad f||^2.
      unseen_share_squared: the expected square of the share of clients that are not in S_tau; None for
        uniform cohorts, `expected_unseen_share_squared`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 100, participation=0.1, dissimilarity=1.0)
      >>> bounds = [fo.bounds.ghbm_momentum_deviation(constants, tau, 0.0) for tau in (1, 10, 50)]
      >>> [round(float(bound.value), 2) for bound in bounds]
      [6.48, 0.98, 0.0]
    """
    unseen = unseen_share_squared
    if unseen is None:
        clients = constants.num_clients
        unseen = expected_unseen_share_squared(clients, constants.participation * clients, tau)
    return _deviation(unseen, constants.dissimilarity, gradient_norm_squared), {}


@theorem
def ghbm_cyclic_deviation(
    constants: GHBMConstants, tau: Positive, gradient_norm_squared: NotNegative
):
    """How far the mean gradient of the last tau cohorts is, if clients take turns: Corollary 4.5.

    `8 (1 - tau C)^2 (G^2 + ||grad f||^2)`, with the terms 'dissimilarity' and 'gradient'. It vanishes
    for tau = 1/C. With G a bound of the clients' mean, as defined, it is true for every order of the
    clients only where the second assumption holds.

    Args:
      constants, tau, gradient_norm_squared: as for `ghbm_momentum_deviation`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 100, participation=0.1, dissimilarity=1.0)
      >>> bounds = [fo.bounds.ghbm_cyclic_deviation(constants, tau, 0.0) for tau in (1, 5, 10)]
      >>> [round(float(bound.value), 2) for bound in bounds]
      [6.48, 2.0, 0.0]
      >>> fo.bounds.ghbm_cyclic_deviation(constants, 1, 0.0).violated()
      ('G^2 (1 - tau C)/(tau C) <= bound',)
    """
    share, G = tau * constants.participation, constants.dissimilarity
    # tau = 1/C should be 1, whatever the rounding of 1/C.
    unseen = jnp.where(jnp.abs(share - 1) <= 4 * jnp.finfo(share.dtype).eps, 0.0, 1 - share)
    terms = _deviation(unseen**2, G, gradient_norm_squared)
    worst = G * (G * jnp.maximum(unseen, 0.0) / share)
    return terms, {
        "tau C <= 1": at_most(share, 1.0),
        "G^2 (1 - tau C)/(tau C) <= bound": at_most(worst, sum(terms.values())),
    }


@theorem
def ghbm_momentum_error(
    constants: GHBMConstants,
    local_steps: Positive,
    server_learning_rate: Positive,
    drifts: NotNegative,
    gradient_norms_squared: NotNegative,
    update_errors: NotNegative,
):
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

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 8, participation=0.25, noise_variance=1.0)
      >>> bound = fo.bounds.ghbm_momentum_error(constants, 2, 0.1, [0.1] * 4, [1.0] * 3, [0.0] * 3)
      >>> {name: round(float(value), 4) for name, value in bound.terms.items()}
      {'noise': 0.1875, 'drift': 0.3, 'lag': 0.27}
    """
    c, L, eta = constants, constants.smoothness, server_learning_rate
    tau = drifts.shape[0] if drifts.ndim == 1 else 0
    shapes = [list(x.shape) for x in (drifts, gradient_norms_squared, update_errors)]
    if tau < 1 or shapes[1:] != [[tau - 1]] * 2:
        raise ValueError(
            "drifts must have the shape [tau], gradient_norms_squared and update_errors [tau - 1], got"
            f" {shapes[0]}, {shapes[1]} and {shapes[2]}."
        )
    share = tau * c.participation
    lag = jnp.sum(gradient_norms_squared + update_errors)
    terms = {
        "noise": 3 * (c.noise_variance / (share * c.num_clients) / local_steps),
        "drift": 3 * L * (L * jnp.mean(drifts)),
        "lag": 3 * (tau - 1) * (eta * L) * (eta * L * lag),
    }
    return terms, {"tau C <= 1": at_most(share, 1.0)}


@theorem
def ghbm_rate(constants: GHBMConstants, local_steps: AtLeastOne, rounds: Positive):
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
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 100, participation=0.1, noise_variance=4.0)
      >>> round(float(fo.bounds.ghbm_rate(constants, local_steps=10, rounds=40_000).value), 6)
      0.000341
    """
    C, N = constants.participation, constants.num_clients
    gap, noise = _gap_and_noise(constants, local_steps, rounds)
    period = 1 / C
    beta = jnp.minimum(1.0, _sqrt_ratio(gap, noise))
    terms = {"initial": gap, "noise": root(gap * noise)}
    return terms, {
        "1/C is whole": jnp.abs(period - jnp.round(period)) <= 4 * jnp.finfo(C.dtype).eps * period,
        "C |S| >= 1": at_most(1.0, C * N),
        "beta (tau - 1) <= 1": at_most(beta * (period - 1), 1.0),
        "f(x0) >= f*": gap >= 0,
    }


@formula
def ghbm_step_sizes(
    constants: GHBMConstants,
    local_steps: AtLeastOne,
    rounds: Positive,
    first_gradients_squared: NotNegative,
) -> GHBMStepSizes:
    """The step sizes with which GHBM's rate is proved, for tau = 1/C: equation 122.

    `beta = min{1, sqrt(|S| J L D/(sigma^2 T))}`, `eta = min{1/(24 L), beta/(sqrt(8) L)}`, and up to a
    constant `eta_l J L = min{1, 1/(beta eta L sqrt(tau) T), sqrt(L D/(beta^3 tau G_tau T)),
    1/sqrt(beta |S|), (beta^3 |S| J)^(-1/4)}`.

    Args:
      constants, local_steps, rounds: as for `ghbm_rate`, with f(x_0) > f*.
      first_gradients_squared: G_tau, the largest over the first tau rounds of the mean of
        E||grad f_i||^2 over the clients of the round.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 100, participation=0.1, noise_variance=4.0)
      >>> beta, eta, _ = fo.bounds.ghbm_step_sizes(
      ...     constants, local_steps=10, rounds=40_000, first_gradients_squared=1.0
      ... )
      >>> round(float(beta), 4), round(float(eta), 4)
      (0.0791, 0.028)
    """
    L, clients = constants.smoothness, constants.num_clients
    gap, noise = _gap_and_noise(constants, local_steps, rounds)
    beta = jnp.minimum(1.0, _sqrt_ratio(gap, noise))
    eta = jnp.minimum(1 / (24 * L), beta / (8**0.5 * L))
    root_tau = 1 / jnp.sqrt(constants.participation)
    limits = [
        1 / (beta * (eta * L) * root_tau * rounds),
        _sqrt_ratio(gap, beta**3 * first_gradients_squared) / root_tau,
        1 / jnp.sqrt(beta * clients),
        (beta**3 * clients * local_steps) ** -0.25,
    ]
    smallest = functools.reduce(jnp.minimum, limits, jnp.ones_like(beta))
    return GHBMStepSizes(beta, eta, smallest / local_steps / L)


@formula
def ghbm_heavy_ball(
    models: Finite, pseudo_gradient: Finite, learning_rate: Positive, momentum: NotNegative
) -> jax.Array:
    """The next model by the heavy-ball form of the momentum over tau rounds: Lemma B.3.

    `x_{t-1} + beta/tau (x_{t-1} - x_{t-tau-1}) - eta g`, which is x_{t-1} - eta m_t with the momentum
    `m_t = beta/tau (m_{t-1} + .. + m_{t-tau}) + g`. With tau = 1 it is Lemma B.2, the classical one.

    Args:
      models: x_{t-tau-1} .. x_{t-1}, `[tau + 1, ...]`; before the first round it is x_0.
      pseudo_gradient: g, of the shape of a model.
      learning_rate: eta > 0.
      momentum: beta.

    Example:
      >>> import fedjax_opt as fo
      >>> float(fo.bounds.ghbm_heavy_ball([3.0, 2.0, 1.0], 1.0, learning_rate=0.5, momentum=0.5))
      0.0
    """
    if jnp.ndim(models) < 1 or models.shape[0] < 2:
        raise ValueError(
            f"models must have the shape [tau + 1, ...], got {list(jnp.shape(models))}."
        )
    last, tau = models[-1], models.shape[0] - 1
    return last + momentum / tau * (last - models[0]) - learning_rate * pseudo_gradient


@theorem
def ghbm_update_errors(
    constants: GHBMConstants,
    gradient_weight: Share,
    server_learning_rate: Positive,
    first_error: NotNegative,
    gradient_norms_squared: NotNegative,
    deviations: NotNegative,
):
    """The sum of E_t = E||grad f(x_{t-1}) - m_{t+1}||^2 over T rounds: Lemma B.5.

    `(c E_0 + v sum E||grad f(x_{t-2})||^2 + beta sum D_t)/(1 - c)` with `v = 2 (1-beta) (1 + 2/beta)
    eta^2 L^2`, `c = (1-beta) (1 + beta/2) + v`: the terms 'first', 'gradient' and 'deviation'.

    Args:
      constants: the problem's `GHBMConstants`, of which the smoothness matters.
      gradient_weight: beta, in (0, 1].
      server_learning_rate: eta > 0; `eta <= beta/(4 L)` is enough for a bound.
      first_error: E_0, with x_{-1} = x_0.
      gradient_norms_squared: E||grad f||^2 at x_{-1}, x_0, .. x_{T-2}, `[T]`.
      deviations: D_t = E||grad f(x_{t-1}) - g~_tau||^2 for t = 1 .. T, `[T]`: at most twice what
        `ghbm_cyclic_deviation` and `ghbm_momentum_error` bound.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 8)
      >>> bound = fo.bounds.ghbm_update_errors(constants, 0.5, 0.1, 1.0, [1.0, 0.9], [0.1, 0.1])
      >>> round(float(bound.value), 3), bool(bound.holds)
      (2.677, True)
    """
    beta, step = gradient_weight, server_learning_rate * constants.smoothness
    carried = 2 * (1 - beta) * (1 + 2 / beta) * step**2
    kept = (1 - beta) * (1 + beta / 2) + carried
    share = 1 / jnp.where(kept < 1, 1 - kept, 1)
    terms = {
        "first": share * kept * first_error,
        "gradient": share * carried * jnp.sum(gradient_norms_squared, axis=-1),
        "deviation": share * beta * jnp.sum(deviations, axis=-1),
    }
    bounded = {name: jnp.where(kept < 1, term, jnp.inf) for name, term in terms.items()}
    return bounded, {"c < 1": kept < 1}


@theorem
def ghbm_drift(
    constants: GHBMConstants,
    local_steps: AtLeastOne,
    local_learning_rate: Positive,
    gradient_weight: Share,
    first_steps_squared: NotNegative,
):
    """U_t, the mean E||y - x||^2 where a round's gradients are taken: Lemma B.6.

    `2 e^2 J^2 Xi_t + J eta_l^2 beta^2 sigma^2 (1 + 2 J^3 eta_l^2 L^2 beta^2)`, with the terms
    'first step' and 'noise'.

    Args:
      constants: the problem's `GHBMConstants`; losses do not matter.
      local_steps: J.
      local_learning_rate: eta_l > 0.
      gradient_weight: beta, in (0, 1].
      first_steps_squared: Xi_t, the clients' mean of the square of their expected first local step.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 8, noise_variance=1.0)
      >>> round(float(fo.bounds.ghbm_drift(constants, 5, 0.01, 0.5, 1e-4).value), 5)
      0.03707
    """
    c, J = constants, local_steps
    step = local_learning_rate * gradient_weight
    curved = 2 * J * (J * step * c.smoothness) ** 2
    terms = {
        "first step": 2 * np.e**2 * J**2 * first_steps_squared,
        "noise": J * (step * (step * c.noise_variance)) * (1 + curved),
    }
    return terms, {"eta_l L <= 1/(beta J)": at_most(step * c.smoothness * J, 1.0)}


@theorem
def ghbm_first_steps(
    constants: GHBMConstants,
    tau: AtLeastOne,
    server_learning_rate: Positive,
    local_learning_rate: Positive,
    gradient_weight: Share,
    first_gradients_squared: NotNegative,
    gradient_norms_squared: NotNegative,
    update_errors: NotNegative,
):
    """The sum of Xi_t over T rounds, if clients take turns: Lemma B.7, as its proof ends (116).

    `4 eta_l^2 ((1-beta)^2 + e (beta eta L T)^2) sum (E_t + E||grad f(x_{t-1})||^2)
    + 2 e eta_l^2 beta^2 tau T G_tau`: the terms 'momentum' and 'gradient'.

    Args:
      constants: the problem's `GHBMConstants`, of which the smoothness matters.
      tau: 1/C.
      server_learning_rate: eta > 0.
      local_learning_rate: eta_l > 0.
      gradient_weight: beta, in (0, 1].
      first_gradients_squared: G_tau, as for `ghbm_step_sizes`.
      gradient_norms_squared: E||grad f(x_{t-1})||^2 for t = 0 .. T-1, `[T]`.
      update_errors: E_t for the same rounds, `[T]`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 8, participation=0.5)
      >>> bound = fo.bounds.ghbm_first_steps(constants, 2, 0.1, 0.01, 0.5, 1.0, [1.0] * 5, [0.5] * 5)
      >>> round(float(bound.value), 5), bool(bound.holds)
      (0.00262, True)
    """
    beta, step = gradient_weight, local_learning_rate
    if jnp.shape(gradient_norms_squared) != jnp.shape(update_errors) or not jnp.ndim(update_errors):
        raise ValueError(
            "gradient_norms_squared and update_errors must have one shape [T], got"
            f" {list(jnp.shape(gradient_norms_squared))} and {list(jnp.shape(update_errors))}."
        )
    rounds = update_errors.shape[-1]
    moved = beta * server_learning_rate * constants.smoothness * rounds
    seen = jnp.sum(gradient_norms_squared + update_errors, axis=-1)
    terms = {
        "momentum": 4 * ((1 - beta) ** 2 + np.e * moved**2) * (step * (step * seen)),
        "gradient": 2 * np.e * tau * rounds * (step * beta) ** 2 * first_gradients_squared,
    }
    return terms, {
        "tau C = 1": jnp.abs(tau * constants.participation - 1) <= 1e-6,
        "T >= 2 tau + 1": rounds >= 2 * tau + 1,
    }


@theorem
def ghbm_descent(
    constants: GHBMConstants,
    server_learning_rate: Positive,
    gradient_norm_squared: NotNegative,
    update_error: NotNegative,
):
    """The loss that a round changes, E[f(x_t) - f(x_{t-1})]: Lemma B.8.

    `-11/24 eta E||grad f(x_{t-1})||^2 + 13/24 eta E_t`, with the terms 'gradient' and 'error'.

    Args:
      constants: the problem's `GHBMConstants`, of which the smoothness matters.
      server_learning_rate: eta > 0, of x_t = x_{t-1} - eta m_{t+1}.
      gradient_norm_squared: E||grad f(x_{t-1})||^2.
      update_error: E_t = E||grad f(x_{t-1}) - m_{t+1}||^2.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.GHBMConstants(1.0, 1.0, 8)
      >>> round(float(fo.bounds.ghbm_descent(constants, 0.024, 1.0, 0.5).value), 4)
      -0.0045
    """
    eta = server_learning_rate
    terms = {
        "gradient": -11 / 24 * eta * gradient_norm_squared,
        "error": 13 / 24 * eta * update_error,
    }
    return terms, {"eta <= 1/(24 L)": at_most(eta * constants.smoothness, 1 / 24)}


def _deviation(unseen_squared, G, gradient):
    return {"dissimilarity": 8 * unseen_squared * G**2, "gradient": 8 * unseen_squared * gradient}


def _gap_and_noise(c, steps, rounds):
    """L D/T and sigma^2/(|S| J)."""
    gap = c.smoothness * ((c.initial_loss - c.optimal_loss) / rounds)
    return gap, c.noise_variance / c.num_clients / steps


def _sqrt_ratio(top, bottom):
    """sqrt(top/bottom), infinite where the bottom is 0."""
    return jnp.where(bottom > 0, root(top / jnp.where(bottom > 0, bottom, 1)), jnp.inf)
