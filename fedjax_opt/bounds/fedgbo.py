"""Bounds of FedGBO with momentum, for smooth nonconvex losses.

The proof writes the momentum as a sum, m_t = beta m_{t-1} + g_t + e_t, with x_t = x_{t-1} - eta~ m_t:
g_t is the cohort's mean gradient at x, and e_t is what the K local steps change in it (equation 2). With
T~ = T - beta/(1-beta) and Y = 18 B^2 L^2 (R^2 + G^2 + sigma^2/K),

    E||e_t||^2 <= 18 B^2 L^2 eta~^2 (E||g_t||^2 + G^2 + sigma^2/K) <= eta~^2 Y                 (3)
    E||m_t||^2 <= 2 (R^2 + eta~^2 Y)/(1-beta)^2                                           (Lemma 1)
    F(x_t) <= F(x_{t-1}) - eta~ grad F(x_{t-1}).m_t + eta~^2 L/2 ||m_t||^2                     (16)
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

Squares are taken of products that are small, never of a large factor alone: float32 ends at 3e38.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Section 4 and appendix A.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.theorem import (
    AtLeastOne,
    Finite,
    FiniteNotNegative,
    FinitePositive,
    Momentum,
    NotNegative,
    Optimum,
    Positive,
    at_most,
    formula,
    theorem,
)
from fedjax_opt.core import checks

_NEWTON_STEPS = 8


class FedGBOConstants(NamedTuple):
    """What the bounds of FedGBO with momentum know of a problem.

    Numbers, or arrays of one shape for many problems at once.

    Attributes:
      smoothness: L > 0, for which the loss of every minibatch is L-smooth (A4).
      initial_loss: F(x_0).
      gradient_bound: R, not squared: no gradient of a minibatch is longer (A3).
      dissimilarity: G, not squared, with E_i||grad f_i - grad F||^2 <= G^2 everywhere (A2).
      noise_variance: sigma^2, the largest variance of a client's stochastic gradient (A5).
      optimal_loss: F*, or anything below F (A1).
      update_bound: B, of what the optimiser makes of a gradient; 1 for momentum.
    """

    smoothness: FinitePositive
    initial_loss: Finite
    gradient_bound: FiniteNotNegative
    dissimilarity: FiniteNotNegative = 0.0
    noise_variance: FiniteNotNegative = 0.0
    optimal_loss: Finite = 0.0
    update_bound: FiniteNotNegative = 1.0


@formula
def fedgbo_pseudo_learning_rate(
    learning_rate: Positive, momentum: Momentum, local_steps: AtLeastOne
) -> jax.Array:
    """The eta~ of the bounds for `optimizers.sgdm`: `K eta (1 - beta)`.

    The bounds' momentum is a sum of gradients, that of `sgdm` is a mean of them.

    Args:
      learning_rate: eta > 0 of `optimizers.sgdm`.
      momentum: beta, in [0, 1).
      local_steps: K.

    Example:
      >>> import fedjax_opt as fo
      >>> round(float(fo.bounds.fedgbo_pseudo_learning_rate(0.1, momentum=0.9, local_steps=10)), 6)
      0.1
    """
    return local_steps * learning_rate * (1 - momentum)


@theorem
def fedgbo(
    constants: FedGBOConstants,
    pseudo_learning_rate: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    rounds: Positive,
):
    """FedGBO's bound on E||grad F(x_t)||^2 at a random round: Theorem 1.

    Its terms are 'initial', 'perturbation' and 'momentum', in the equation's order. Where T~ <= 0 there
    is no bound: it is infinite.

    Args:
      constants: the problem's `FedGBOConstants`.
      pseudo_learning_rate: eta~ > 0; see `fedgbo_pseudo_learning_rate`.
      momentum: beta, in [0, 1).
      local_steps: K.
      rounds: T.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo(constants, 0.001, momentum=0.5, local_steps=10, rounds=10_000)
      >>> round(float(bound.value), 3), bool(bound.holds)
      (0.103, True)
      >>> fo.bounds.fedgbo(constants, 0.001, momentum=0.9, local_steps=10, rounds=5).violated()
      ('T > 1/(1-beta)', 'Y >= (L R/(1-beta))^2')
    """
    c, eta, beta = constants, pseudo_learning_rate, momentum
    effective = rounds - beta / (1 - beta)
    share = 1 / jnp.where(effective > 0, effective, 1)
    drift = _perturbation(c, eta, local_steps)
    step = eta * c.smoothness
    terms = {
        "initial": 2 * (1 - beta) * share * (_loss_gap(c) / eta),
        "perturbation": rounds * share * drift,
        "momentum": 2 * (rounds * share) * (step * (1 + beta) / (1 - beta) ** 2)
        * (c.gradient_bound**2 + drift),
    }  # fmt: skip
    terms = {name: jnp.where(effective > 0, term, jnp.inf) for name, term in terms.items()}
    return terms, _assumptions(c, beta, local_steps, rounds)


@theorem
def fedgbo_corollary(
    constants: FedGBOConstants,
    scale: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    rounds: Positive,
):
    """FedGBO's bound for many rounds, with `eta~ = 2 C (1-beta)/sqrt(T)`: Corollary 1.

    `(F(x_0) - F*)/(C sqrt(T)) + 4 C L (1+beta) (R^2 + Z/T)/((1-beta) sqrt(T)) + Z/T` with
    `Z = 4 C^2 (1-beta)^2 Y`: the terms 'initial', 'momentum' and 'perturbation'. It is Theorem 1 with T
    for T~, and so a little lower.

    Args:
      constants, momentum, local_steps, rounds: as for `fedgbo`.
      scale: C > 0.

    Returns:
      A `Bound`. Among its assumptions is that the difference to Theorem 1 is below a hundredth.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_corollary(constants, 0.1, momentum=0.5, local_steps=10, rounds=10_000)
      >>> round(float(bound.value), 3)
      0.103
    """
    c, beta, size = constants, momentum, scale / jnp.sqrt(rounds)
    drift = _perturbation(c, 2 * size * (1 - beta), local_steps)
    terms = {
        "initial": _loss_gap(c) / scale / jnp.sqrt(rounds),
        "momentum": 4 * (size * c.smoothness) * ((1 + beta) / (1 - beta))
        * (c.gradient_bound**2 + drift),
        "perturbation": drift,
    }  # fmt: skip
    near = {"T~ >= 0.99 T": beta / (1 - beta) <= 0.01 * rounds}
    return terms, _assumptions(c, beta, local_steps, rounds) | near


@theorem
def fedgbo_momentum(
    constants: FedGBOConstants,
    pseudo_learning_rate: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    normalised: bool = False,
):
    """A bound on FedGBO's momentum, E||m_t||^2 in every round: Lemma 1.

    `2 (R^2 + eta~^2 Y)/(1-beta)^2`, with the terms 'gradient' and 'perturbation'.

    Args:
      constants, pseudo_learning_rate, momentum, local_steps: as for `fedgbo`; losses do not matter.
      normalised: whether m is the mean that `optimizers.sgdm` keeps, (1-beta) times the paper's sum.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_momentum(constants, 0.001, momentum=0.5, local_steps=10)
      >>> round(float(bound.value), 3)
      2.0
    """
    c, beta = constants, momentum
    weight = jnp.where(normalised, 2.0, 2 / (1 - beta) ** 2)
    terms = {
        "gradient": weight * c.gradient_bound**2,
        "perturbation": weight * _perturbation(c, pseudo_learning_rate, local_steps),
    }
    return terms, _y_is_large_enough(c, beta, local_steps)


@theorem
def fedgbo_alignment(
    constants: FedGBOConstants,
    pseudo_learning_rate: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    gradient_norms_squared: NotNegative,
):
    """A lower bound on E[grad F(x_{t-1}).m_t], how far the momentum points downhill: Lemma 2.

    `1/2 sum_k beta^k E||grad F(x_{t-1-k})||^2 - eta~^2 Y/(2 (1-beta))
    - 2 eta~ L beta (R^2 + eta~^2 Y)/(1-beta)^3`: the terms 'gradients', 'perturbation' and 'momentum'.

    Args:
      constants, pseudo_learning_rate, momentum, local_steps: as for `fedgbo`; losses do not matter.
      gradient_norms_squared: E||grad F||^2 at x_{t-1}, x_{t-2}, .. x_0, the newest first, `[t]`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_alignment(constants, 0.001, 0.5, 10, [0.1, 0.2])
      >>> round(float(bound.value), 3)
      0.098
    """
    c, eta, beta = constants, pseudo_learning_rate, momentum
    drift = _perturbation(c, eta, local_steps)
    lag = 2 * eta * c.smoothness * beta / (1 - beta) ** 3
    terms = {
        "gradients": _discounted(beta, gradient_norms_squared) / 2,
        "perturbation": -drift / (2 * (1 - beta)),
        "momentum": -lag * (c.gradient_bound**2 + drift),
    }
    return terms, _y_is_large_enough(c, beta, local_steps)


@theorem
def fedgbo_step(
    constants: FedGBOConstants,
    pseudo_learning_rate: Positive,
    alignment: Finite,
    momentum_norm_squared: NotNegative,
):
    """The loss that a round changes, F(x_t) - F(x_{t-1}), for an L-smooth F: equation 16.

    `-eta~ grad F(x_{t-1}).m_t + eta~^2 L/2 ||m_t||^2`, with the terms 'alignment' and 'momentum'.

    Args:
      constants: the problem's `FedGBOConstants`, of which the smoothness matters.
      pseudo_learning_rate: eta~ > 0, of x_t = x_{t-1} - eta~ m_t.
      alignment: grad F(x_{t-1}).m_t.
      momentum_norm_squared: ||m_t||^2.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> round(float(fo.bounds.fedgbo_step(constants, 0.1, 1.0, 2.0).value), 3)
      -0.09
    """
    eta = pseudo_learning_rate
    curved = eta * constants.smoothness * (eta * momentum_norm_squared) / 2
    return {"alignment": -eta * alignment, "momentum": curved}, {}


@theorem
def fedgbo_descent(
    constants: FedGBOConstants,
    pseudo_learning_rate: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    gradient_norms_squared: NotNegative,
):
    """The loss that a round changes on average, E[F(x_t) - F(x_{t-1})]: equation 17.

    `-eta~/2 sum_k beta^k E||grad F(x_{t-1-k})||^2 + eta~^3 Y/(2 (1-beta))
    + eta~^2 L (1+beta) (R^2 + eta~^2 Y)/(1-beta)^3`: (16) with Lemmas 1 and 2 in it. Its terms are
    'gradients', 'perturbation' and 'momentum'.

    Args:
      constants, pseudo_learning_rate, momentum, local_steps, gradient_norms_squared: as for
        `fedgbo_alignment`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_descent(constants, 0.001, 0.5, 10, [0.1, 0.2])
      >>> round(float(bound.value), 6)
      -9.7e-05
    """
    c, eta, beta = constants, pseudo_learning_rate, momentum
    drift = _perturbation(c, eta, local_steps)
    curved = eta * c.smoothness * (1 + beta) / (1 - beta) ** 3
    terms = {
        "gradients": -eta * _discounted(beta, gradient_norms_squared) / 2,
        "perturbation": eta * (drift / (2 * (1 - beta))),
        "momentum": curved * (eta * (c.gradient_bound**2 + drift)),
    }
    return terms, _y_is_large_enough(c, beta, local_steps)


@theorem
def fedgbo_perturbation(
    constants: FedGBOConstants,
    pseudo_learning_rate: Positive,
    local_steps: AtLeastOne,
    gradient_norm_squared: NotNegative | None = None,
    momentum_norm_squared: NotNegative = 0.0,
):
    """A bound on what local steps change in the mean gradient, E||e_t||^2: equation 3.

    `18 B^2 L^2 eta~^2 (E||g_t||^2 + G^2 + sigma^2/K)`, with the terms 'gradient', 'dissimilarity' and
    'noise'. The paper has no term 'momentum', `18 L^2 eta~^2 beta^2 ||m||^2`; without it the bound is
    false where beta > 0.

    Args:
      constants, pseudo_learning_rate, local_steps: as for `fedgbo`; losses do not matter.
      gradient_norm_squared: E||g_t||^2, of the cohort's mean gradient at x; None for its bound R^2.
      momentum_norm_squared: `||beta m_{t-1}||^2`, m being the sum of gradients: for `optimizers.sgdm` it
        is `||beta m/(1-beta)||^2`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_perturbation(constants, 0.1, 10, gradient_norm_squared=0.01)
      >>> round(float(bound.value), 6), bool(bound.holds)
      (0.0018, True)
    """
    c, gradient = constants, gradient_norm_squared
    if gradient is None:
        gradient = c.gradient_bound**2
    step = pseudo_learning_rate * c.smoothness
    bounded = step * c.update_bound
    terms = {
        "gradient": 18 * bounded * (bounded * gradient),
        "dissimilarity": 18 * (bounded * c.dissimilarity) ** 2,
        "noise": 18 * bounded * (bounded * (c.noise_variance / local_steps)),
        "momentum": 18 * step * (step * momentum_norm_squared),
    }
    return terms, {"eta~ B L <= 1/2": bounded <= 0.5}


def fedgbo_optimal_learning_rate(
    constants: FedGBOConstants, momentum: Momentum, local_steps: AtLeastOne, rounds: Positive
) -> Optimum:
    """The eta~ for which Theorem 1 is smallest.

    The bound is `a/eta~ + b eta~ + c eta~^2 + d eta~^3`. With `s = sqrt(a/b)` and eta~ = s u, its
    derivative vanishes where `u^2 + p u^3 + q u^4 = 1`, for `p = 2 c s/b` and `q = 3 d s^2/b`. There is
    one positive root; Newton's method on log u finds it to rounding.

    Args:
      constants, momentum, local_steps, rounds: as for `fedgbo`, with F(x_0) > F* and R > 0.

    Returns:
      An `Optimum`: eta~, and the `Bound` there. Nothing limits it, so `unconstrained` is the same.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> best = fo.bounds.fedgbo_optimal_learning_rate(constants, 0.5, local_steps=10, rounds=10_000)
      >>> round(float(best.value), 5), round(float(best.bound.value), 4)
      (0.00572, 0.0348)
    """
    best = _optimal_learning_rate(constants, momentum, local_steps, rounds)
    R, start, least = constants.gradient_bound, constants.initial_loss, constants.optimal_loss
    checks.number("constants.gradient_bound", R, low=0.0, open_low=True)
    if not checks.is_traced(start, least):
        gap = np.asarray(start) - np.asarray(least)
        checks.number(
            "constants.initial_loss - constants.optimal_loss", gap, low=0.0, open_low=True
        )
    return best


@formula
def _optimal_learning_rate(
    constants: FedGBOConstants, momentum: Momentum, local_steps: AtLeastOne, rounds: Positive
) -> Optimum:
    c, L, R, beta = constants, constants.smoothness, constants.gradient_bound, momentum
    unit = (1 - beta) * jnp.sqrt((1 - beta) * _loss_gap(c) / (1 + beta)) / jnp.sqrt(rounds)
    unit = unit / jnp.sqrt(L) / R
    ratio = _gradient_scale(c, local_steps) / R**2
    bounded = unit * L * c.update_bound
    p = 18 * ratio * (1 - beta) ** 2 / (1 + beta) * bounded * c.update_bound
    q = 54 * ratio * bounded**2
    eta = unit * _root(p, q)
    return Optimum(eta, eta, fedgbo(constants, eta, momentum, local_steps, rounds))


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


def _discounted(beta, newest_first):
    """sum_k beta^k of rows [..., t]."""
    if not jnp.ndim(newest_first):
        raise ValueError("gradient_norms_squared must be one per round [t], got a number.")
    ages = jnp.arange(newest_first.shape[-1], dtype=newest_first.dtype)
    ages = ages.reshape((1,) * (newest_first.ndim - 1) + ages.shape)
    weights = (beta[..., None] if beta.ndim else beta) ** ages
    return jnp.sum(weights * newest_first, axis=-1)


def _loss_gap(c):
    return c.initial_loss - c.optimal_loss


def _gradient_scale(c, steps):
    """R^2 + G^2 + sigma^2/K."""
    return c.gradient_bound**2 + c.dissimilarity**2 + c.noise_variance / steps


def _perturbation(c, eta, steps):
    """eta~^2 Y."""
    bounded = eta * c.smoothness * c.update_bound
    return 18 * bounded * (bounded * _gradient_scale(c, steps))


def _y_is_large_enough(c, beta, steps):
    """Whether eta~^2 Y bounds ||e||^2 for whatever momentum there is."""
    most = jnp.sqrt(18 * _gradient_scale(c, steps)) * c.update_bound
    return {"Y >= (L R/(1-beta))^2": at_most(c.gradient_bound / (1 - beta), most)}


def _assumptions(c, beta, steps, rounds):
    return {
        "T > 1/(1-beta)": rounds * (1 - beta) > 1,
        **_y_is_large_enough(c, beta, steps),
        "F(x0) >= F*": _loss_gap(c) >= 0,
    }
