"""Bounds of FedGBO with momentum, for smooth nonconvex losses.

The proof writes the momentum as a sum, m_t = beta m_{t-1} + g_t + e_t, with x_t = x_{t-1} - eta~ m_t:
g_t is the cohort's mean gradient at x, and e_t is what the K local steps change in it (equation 2). With
T~ = T - beta/(1-beta) and Y = 18 B^2 L^2 (R^2 + G^2 + sigma^2/K),

    E||e_t||^2 <= 18 B^2 L^2 eta~^2 (E||g_t||^2 + G^2 + sigma^2/K) <= eta~^2 Y                 (3)
    E||m_t||^2 <= 2 (R^2 + eta~^2 Y)/(1-beta)^2                                           (Lemma 1)
    E||grad F(x_t)||^2 <= 2 (1-beta) (F(x_0) - F*)/(eta~ T~) + T eta~^2 Y/T~
                          + 2 T eta~ L (1+beta) (R^2 + eta~^2 Y)/(T~ (1-beta)^2)        (Theorem 1)

for a round t drawn from 0 .. T-1 with probabilities in proportion to 1 - beta^(T-t). The momentum of
`optimizers.sgdm` is the mean (1-beta) m: there eta~ = K eta (1-beta), `fedgbo_pseudo_learning_rate`.

Where the print errs. The appendix states Theorem 1 with (1-beta) for (1-beta)^2 in the last term, though
its proof ends as above. (3) lacks the 18 that Y has. And (3) asks for updates with ||U(g)|| <= B ||g||,
which beta m + g is not: where g vanishes and m does not, e_t is not small. What holds for momentum is

    E||e_t||^2 <= 18 L^2 eta~^2 (beta^2 ||m_{t-1}||^2 + E||g_t||^2 + G^2 + sigma^2/K)  if eta~ L <= 1/2
    ||e_t|| <= eta~ L R/(1-beta)                                                       always

and the second carries Lemma 1 and Theorem 1 where Y >= (L R/(1-beta))^2, an assumption that is reported.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Section 4 and appendix A.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.fedgbo_constants import (
    FACTOR,
    FedGBOConstants,
    check_constants,
    check_round,
    gradient_scale,
    largest_perturbation,
    y_is_large_enough,
)
from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Bound, Optimum
from fedjax_opt.core import checks

_NEWTON_STEPS = 8


def fedgbo(
    constants: FedGBOConstants,
    pseudo_learning_rate: Any,
    momentum: Any,
    local_steps: Any,
    rounds: Any,
    as_printed: bool = False,
) -> Bound:
    """FedGBO's bound on E||grad F(x_t)||^2 at a random round: Theorem 1.

    Its terms are 'initial', 'perturbation' and 'momentum', in the equation's order. Where T~ <= 0 there
    is no bound: it is infinite.

    Args:
      constants: the problem's `FedGBOConstants`.
      pseudo_learning_rate: eta~ > 0; see `fedgbo_pseudo_learning_rate`.
      momentum: beta, in [0, 1).
      local_steps: K.
      rounds: T.
      as_printed: with (1-beta) for (1-beta)^2, as the appendix states it.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo(constants, 0.001, momentum=0.5, local_steps=10, rounds=10_000)
      >>> round(float(bound.value), 3), bool(bound.holds)
      (0.103, True)
      >>> fo.bounds.fedgbo(constants, 0.001, momentum=0.9, local_steps=10, rounds=5).violated()
      ('T > 1/(1-beta)', 'Y >= (L R/(1-beta))^2')

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Theorem 1.
    """
    check_constants(constants)
    check_round(momentum, local_steps)
    positive(pseudo_learning_rate=pseudo_learning_rate, rounds=rounds)
    constants, eta, beta, steps, rounds = as_floats(
        constants, pseudo_learning_rate, momentum, local_steps, rounds
    )
    return _evaluate(constants, eta, beta, steps, rounds, power=1 if as_printed else 2)


def fedgbo_corollary(
    constants: FedGBOConstants, scale: Any, momentum: Any, local_steps: Any, rounds: Any
) -> Bound:
    """FedGBO's bound for many rounds, with `eta~ = 2 C (1-beta)/sqrt(T)`: Corollary 1.

    `(F(x_0) - F*)/(C sqrt(T)) + 4 C L (1+beta) (R^2 + Z/T)/((1-beta) sqrt(T)) + Z/T` with
    `Z = 4 C^2 (1-beta)^2 Y`: the terms 'initial', 'momentum' and 'perturbation'. It is Theorem 1 with T
    for T~, and so a little lower.

    Args:
      constants: the problem's `FedGBOConstants`.
      scale: C > 0.
      momentum: beta, in [0, 1).
      local_steps: K.
      rounds: T.

    Returns:
      A `Bound`. Among its assumptions is that the difference to Theorem 1 is below a hundredth.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_corollary(constants, 0.1, momentum=0.5, local_steps=10, rounds=10_000)
      >>> round(float(bound.value), 3)
      0.103

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Corollary 1.
    """
    check_constants(constants)
    check_round(momentum, local_steps)
    positive(scale=scale, rounds=rounds)
    constants, scale, beta, steps, rounds = as_floats(
        constants, scale, momentum, local_steps, rounds
    )
    root = jnp.sqrt(rounds)
    eta = 2 * (scale / root) * (1 - beta)
    drift = largest_perturbation(constants, eta, steps)
    R2, step = constants.gradient_bound**2, scale / root * constants.smoothness
    terms = {
        "initial": loss_gap(constants) / scale / root,
        "momentum": 4 * step * ((1 + beta) / (1 - beta)) * (R2 + drift),
        "perturbation": drift,
    }
    assumptions = _assumptions(constants, beta, steps, rounds)
    assumptions["T~ >= 0.99 T"] = beta / (1 - beta) <= 0.01 * rounds
    return Bound(sum(terms.values()), terms, assumptions)


def fedgbo_optimal_learning_rate(
    constants: FedGBOConstants, momentum: Any, local_steps: Any, rounds: Any
) -> Optimum:
    """The eta~ for which Theorem 1 is smallest.

    The bound is `a/eta~ + b eta~ + c eta~^2 + d eta~^3`. With `s = sqrt(a/b)` and eta~ = s u, its
    derivative vanishes where `u^2 + p u^3 + q u^4 = 1`, for `p = 2 c s/b` and `q = 3 d s^2/b`. There is
    one positive root, which Newton's method finds in the logarithm of u. T~ cancels.

    Args:
      constants: the problem's `FedGBOConstants`, with F(x_0) > F* and R > 0.
      momentum: beta, in [0, 1).
      local_steps: K.
      rounds: T.

    Returns:
      An `Optimum`: eta~, and the `Bound` there. Nothing limits it, so `unconstrained` is the same.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> best = fo.bounds.fedgbo_optimal_learning_rate(constants, 0.5, local_steps=10, rounds=10_000)
      >>> round(float(best.value), 5), round(float(best.bound.value), 4)
      (0.00572, 0.0348)

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Theorem 1.
    """
    check_constants(constants)
    check_round(momentum, local_steps)
    positive(rounds=rounds)
    positive(**{"constants.gradient_bound": constants.gradient_bound})
    if not checks.is_traced(constants.initial_loss, constants.optimal_loss):
        gap = np.asarray(constants.initial_loss) - np.asarray(constants.optimal_loss)
        positive(**{"constants.initial_loss - constants.optimal_loss": gap})
    constants, beta, steps, rounds = as_floats(constants, momentum, local_steps, rounds)
    rest, L, R = 1 - beta, constants.smoothness, constants.gradient_bound
    unit = rest * jnp.sqrt(rest * loss_gap(constants) / (1 + beta)) / jnp.sqrt(rounds)
    unit = unit / jnp.sqrt(L) / R
    step = unit * L
    ratio = gradient_scale(constants, steps) / R**2
    bounded = step * constants.update_bound
    p = FACTOR * ratio * rest**2 / (1 + beta) * bounded * constants.update_bound
    q = 3 * FACTOR * ratio * bounded**2
    eta = unit * _root(p, q)
    return Optimum(eta, eta, _evaluate(constants, eta, beta, steps, rounds, power=2))


@jax.jit
def _root(p, q):
    """The positive u with u^2 + p u^3 + q u^4 = 1."""
    tiny = jnp.finfo(p.dtype).tiny
    logs = jnp.log(jnp.maximum(p, tiny)), jnp.log(jnp.maximum(q, tiny))
    known = jax.lax.stop_gradient(logs)
    # Here no term exceeds 1 and one of them is 1, so the root is near, and below.
    near = jnp.minimum(jnp.minimum(0.0, -known[0] / 3), -known[1] / 4)
    found = jax.lax.fori_loop(0, _NEWTON_STEPS, lambda _, v: _newton_step(v, known), near)
    # One step more, at the root: its derivative is that of the root.
    return jnp.exp(_newton_step(found, logs))


def _newton_step(v, logs):
    """Towards log(u^2 + p u^3 + q u^4) = 0, for v = log(u): convex, with a slope from 2 to 4."""
    parts = jnp.stack([2 * v, logs[0] + 3 * v, logs[1] + 4 * v])
    excess = jax.nn.logsumexp(parts, axis=0)
    shares = jax.lax.stop_gradient(jnp.exp(parts - excess[None]))
    return v - excess / (2 * shares[0] + 3 * shares[1] + 4 * shares[2])


def loss_gap(constants: FedGBOConstants) -> Any:
    """F(x_0) - F*."""
    return constants.initial_loss - constants.optimal_loss


def _evaluate(constants, eta, beta, steps, rounds, power):
    rest = 1 - beta
    effective = rounds - beta / rest
    enough = effective > 0
    share = 1 / jnp.where(enough, effective, 1)
    per_round = rounds * share
    drift = largest_perturbation(constants, eta, steps)
    step = eta * constants.smoothness
    terms = {
        "initial": 2 * rest * share * (loss_gap(constants) / eta),
        "perturbation": per_round * drift,
        "momentum": 2
        * per_round
        * (step * (1 + beta) / rest**power)
        * (constants.gradient_bound**2 + drift),
    }
    terms = {name: jnp.where(enough, term, jnp.inf) for name, term in terms.items()}
    return Bound(sum(terms.values()), terms, _assumptions(constants, beta, steps, rounds))


def _assumptions(constants, beta, steps, rounds):
    return {
        "T > 1/(1-beta)": rounds * (1 - beta) > 1,
        **y_is_large_enough(constants, beta, steps),
        "F(x0) >= F*": loss_gap(constants) >= 0,
    }
