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

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.theorem import (
    AtLeastOne,
    Bound,
    Finite,
    FiniteNotNegative,
    FinitePositive,
    Limits,
    Momentum,
    NotNegative,
    Number,
    Positive,
    at_most,
    formula,
    theorem,
)

_Between0And1 = Annotated[Number, Limits(low=0.0, high=1.0, open_low=True, open_high=True)]


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
    """

    smoothness: FinitePositive
    initial_loss: Finite | None = None
    num_clients: AtLeastOne | None = None
    cohort_size: AtLeastOne | None = None
    gradient_bound: FiniteNotNegative | None = None
    noise_variance: FiniteNotNegative = 0.0
    optimal_loss: Finite = 0.0
    distance_squared: FiniteNotNegative | None = None
    gradients_squared: FiniteNotNegative | None = None
    optimal_gradients_squared: FiniteNotNegative = 0.0


@formula
def fedacg_learning_rate(
    constants: FedACGConstants,
    scale: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    rounds: Positive,
) -> jax.Array:
    """The learning rate of FedACG's nonconvex bound: `min{(1-lambda)/(2 L K), C/sqrt(t+1)}`.

    Args:
      constants: the problem's `FedACGConstants`.
      scale: C > 0.
      momentum: lambda, in [0, 1).
      local_steps: K.
      rounds: t + 1.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(smoothness=1.0)
      >>> eta = fo.bounds.fedacg_learning_rate(constants, 1.0, momentum=0.5, local_steps=5, rounds=400)
      >>> round(float(eta), 6)
      0.05
    """
    largest = (1 - momentum) / (2 * constants.smoothness * local_steps)
    return jnp.minimum(largest, scale / jnp.sqrt(rounds))


@theorem
def fedacg_nonconvex(
    constants: FedACGConstants,
    scale: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    rounds: Positive,
):
    """FedACG's bound on the smallest E||grad F||^2 at a look-ahead point: equation 13.

    For the learning rate `fedacg_learning_rate` and no proximal term. Its terms are 'initial', 'drift'
    (local steps), 'momentum and sampling' and 'noise'.

    Args:
      constants, scale, momentum, local_steps, rounds: as for `fedacg_learning_rate`.

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
    """
    c, lam, K = constants, momentum, local_steps
    (start,) = _given(c, "initial_loss")
    size, gap = scale / jnp.sqrt(rounds), start - c.optimal_loss
    first = jnp.maximum(4 * c.smoothness / rounds, 2 * (1 - lam) / (rounds * size) / K)
    terms = {"initial": gap * first, **_excess(c, size, lam, K)}
    return terms, _fits(c) | {"F(z0) >= F*": gap >= 0}


@theorem
def fedacg_descent(
    constants: FedACGConstants,
    learning_rate: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
    gradient_norm_squared: NotNegative,
):
    """The loss that a round changes, E[F(z_{t+1}) - F(z_t)], for z = x + lambda/(1-lambda) m: Lemma 1.

    `-B E||grad F||^2 + B'` with `B = eta K/(1-lambda) (1 - eta L K/(1-lambda))` and
    `B' = eta^2 K B''/(2 (1-lambda))`, B'' without what the print has twice. Its terms are 'gradient',
    and those of `fedacg_nonconvex` but the first.

    Args:
      constants: the problem's `FedACGConstants`; losses do not matter.
      learning_rate: eta > 0.
      momentum, local_steps: as for `fedacg_learning_rate`.
      gradient_norm_squared: E||grad F(x_t + lambda m_t)||^2.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(
      ...     smoothness=1.0, num_clients=100, cohort_size=10, gradient_bound=1.0
      ... )
      >>> bound = fo.bounds.fedacg_descent(constants, 0.001, 0.5, 2, gradient_norm_squared=1.0)
      >>> round(float(bound.value), 5)
      -0.00397
    """
    c, eta, lam, K = constants, learning_rate, momentum, local_steps
    step = eta * K / (1 - lam)
    gained = step * (1 - step * c.smoothness) * gradient_norm_squared
    excess = {name: step / 2 * term for name, term in _excess(c, eta, lam, K).items()}
    small = {"eta <= (1-lambda)/(L K)": at_most(step * c.smoothness, 1.0)}
    return {"gradient": -gained, **excess}, _fits(c) | small


@theorem
def fedacg_drift(constants: FedACGConstants, learning_rate: Positive, local_steps: AtLeastOne):
    """How far K local steps are from K gradients at their start, in units of eta: Lemma 2.

    `eta^2 L^2 K^4 G^2/3` bounds E||delta/eta + K grad F(x_t + lambda m_t)||^2, delta the mean of what
    all clients would have moved with exact gradients. One term, 'drift'.

    Args:
      constants, learning_rate, local_steps: as for `fedacg_descent`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(smoothness=1.0, gradient_bound=1.0)
      >>> round(float(fo.bounds.fedacg_drift(constants, 0.01, local_steps=5).value), 4)
      0.0208
    """
    (G,) = _given(constants, "gradient_bound")
    moved = learning_rate * constants.smoothness * local_steps**2 * G
    return {"drift": moved**2 / 3}, {}


@theorem
def fedacg_lookahead(
    constants: FedACGConstants,
    learning_rate: Positive,
    momentum: Momentum,
    local_steps: AtLeastOne,
):
    """How far the gradient at z_t is from that at x_t + lambda m_t, squared: Lemma 3.

    `(lambda/(1-lambda))^4 L^2 eta^2 K^2 ((1 + P) G^2 + sigma^2)`, with the terms 'gradient' and 'noise'.

    Args:
      constants, learning_rate, momentum, local_steps: as for `fedacg_descent`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(1.0, None, 10, 10, gradient_bound=1.0)
      >>> round(float(fo.bounds.fedacg_lookahead(constants, 0.01, 0.5, local_steps=5).value), 4)
      0.0025
    """
    c, lam = constants, momentum
    moved = (lam / (1 - lam)) ** 2 * c.smoothness * learning_rate * local_steps
    terms = {
        "gradient": (1 + _sampling(c)) * (moved * c.gradient_bound) ** 2,
        "noise": moved * (moved * c.noise_variance),
    }
    return terms, _fits(c)


@theorem
def fedacg_sampling(constants: FedACGConstants, learning_rate: Positive, local_steps: AtLeastOne):
    """How far the cohort's mean update is from that of all clients with exact gradients: Lemma 4.

    `eta^2 K^2 (sigma^2 + P G^2)`, with the terms 'noise' and 'sampling'.

    Args:
      constants, learning_rate, local_steps: as for `fedacg_descent`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(1.0, None, 11, 1, gradient_bound=1.0)
      >>> round(float(fo.bounds.fedacg_sampling(constants, 0.01, local_steps=5).value), 4)
      0.01
    """
    moved, P = learning_rate * local_steps, _sampling(constants)
    terms = {
        "noise": moved * (moved * constants.noise_variance),
        "sampling": P * (moved * constants.gradient_bound) ** 2,
    }
    return terms, _fits(constants)


@theorem
def fedacg_convex(
    constants: FedACGConstants, proximal_weight: Positive, momentum: Momentum, rounds: Positive
):
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
    """
    c, beta, lam = constants, proximal_weight, momentum
    distance, M = _given(c, "distance_squared", "gradients_squared")
    terms = {
        "distance": beta / rounds * ((1 - lam) * distance),
        "gradient": lam / beta * (M / rounds),
    }
    return terms, _convex_assumptions(c, beta, lam)


@theorem
def fedacg_convex_drift(
    constants: FedACGConstants,
    proximal_weight: Positive,
    momentum: Momentum,
    last_drift: NotNegative,
    loss_gap: NotNegative,
):
    """The drift eps_t, all clients' mean of E||y_i - x_{t-1}||^2, y_i exact solutions: Lemma 9.

    `(1 - 4 L^2/beta^2) eps_t <= 4 lambda^2 eps_{t-1} + 8 L/beta^2 E[f(x_{t-1}) - f*] + 4/beta^2 M*` with
    M* the clients' mean of ||grad f_i(x*)||^2, which the print leaves out. Its terms are 'drift', 'loss'
    and 'disagreement'. By Lemma 7 E||x_t - x_{t-1}||^2 <= eps_t, so it bounds a round's step, too.

    Args:
      constants: the problem's `FedACGConstants`, with `optimal_gradients_squared`.
      proximal_weight: beta > 2 L; below, there is no bound: it is infinite.
      momentum: lambda, in [0, 1).
      last_drift: eps_{t-1}.
      loss_gap: E[f(x_{t-1}) - f*].

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(smoothness=1.0)
      >>> bound = fo.bounds.fedacg_convex_drift(constants, 4.0, 0.6, last_drift=0.1, loss_gap=0.2)
      >>> round(float(bound.value), 4)
      0.3253
    """
    c, beta = constants, proximal_weight
    b = beta / c.smoothness
    left = 1 - 4 / b**2
    terms = {
        "drift": 4 * momentum**2 * last_drift,
        "loss": 8 / b * (loss_gap / beta),
        "disagreement": 4 / beta * (c.optimal_gradients_squared / beta),
    }
    share = 1 / jnp.where(left > 0, left, 1)
    bounded = {name: jnp.where(left > 0, share * term, jnp.inf) for name, term in terms.items()}
    return bounded, {"beta > 2 L": b > 2}


@theorem
def fedacg_convex_descent(
    constants: FedACGConstants,
    proximal_weight: Positive,
    momentum: Momentum,
    distance_squared: NotNegative,
    last_drift: NotNegative,
    loss_gap: NotNegative,
):
    """What is stated of E||x_t - x*||^2 + kappa eps_t: Lemma 6.

    `E||x_{t-1} - x*||^2 + kappa eps_{t-1} - kappa_0 E[f(x_{t-1}) - f*]`, with the terms 'distance',
    'drift' and 'loss'.

    Args:
      constants, proximal_weight, momentum, last_drift, loss_gap: as for `fedacg_convex_drift`.
      distance_squared: E||x_{t-1} - x*||^2.

    Returns:
      A `Bound`, with Theorem 2's assumptions: it is not proved where they hold, and false at a fixed
      point of clients that disagree.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(smoothness=1.0)
      >>> bound = fo.bounds.fedacg_convex_descent(constants, 2.5, 0.6, 1.0, 0.1, 0.2)
      >>> round(float(bound.value), 3), bool(bound.holds)
      (1.089, True)
    """
    c, beta, lam = constants, proximal_weight, momentum
    kappa, kappa_0 = _kappas(c, beta, lam)
    terms = {
        "distance": distance_squared,
        "drift": kappa * last_drift,
        "loss": -kappa_0 * loss_gap,
    }
    return terms, _convex_assumptions(c, beta, lam)


@formula
def fedacg_convex_main_text(
    constants: FedACGConstants, momentum: _Between0And1, rounds: Positive
) -> Bound:
    """What the main text states of FedACG's loss gap for convex losses: Theorem 1.

    `sqrt(lambda (1-lambda)) (L ||x_0 - x*||^2 + M/L)/T`, which is Theorem 2 with the proximal weight
    beta = L sqrt(lambda/(1-lambda)). That is never allowed: it would need lambda (1-lambda) >= 1.

    Args:
      constants, rounds: as for `fedacg_convex`.
      momentum: lambda, in (0, 1).

    Returns:
      A `Bound`; its assumption 'beta >= L/(1-lambda)' is always violated.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedACGConstants(1.0, distance_squared=1.0, gradients_squared=1.0)
      >>> bound = fo.bounds.fedacg_convex_main_text(constants, momentum=0.6, rounds=100)
      >>> round(float(bound.value), 4), bound.violated()
      (0.0098, ('beta >= L/(1-lambda)', 'kappa_0 > 0'))
    """
    weight = constants.smoothness * jnp.sqrt(momentum / (1 - momentum))
    return fedacg_convex(constants, weight, momentum, rounds)


def _fits(c):
    N, S = _given(c, "num_clients", "cohort_size")
    return {"|S| <= N": S <= N}


def _sampling(c):
    """P."""
    N, S, _ = _given(c, "num_clients", "cohort_size", "gradient_bound")
    return 4 * jnp.maximum(N - S, 0) / S / jnp.maximum(N - 1, 1)


def _excess(c, size, lam, K):
    """eta B'' term by term, eta being `size`."""
    sampling = _sampling(c)
    L, G = c.smoothness, c.gradient_bound
    carried = 1 + lam**4 / (2 * (1 - lam) ** 2)
    unit = size * L * K / (1 - lam)
    return {
        "drift": size / K * G**2 + (size * L * K * G) * (L * K * G) * (K / 3),
        "momentum and sampling": unit * G * (G * ((1 + sampling) * carried)),
        "noise": unit * (carried * c.noise_variance),
    }


def _kappas(c, beta, lam):
    """Lemma 6's kappa and kappa_0, with b = beta/L."""
    b = beta / c.smoothness
    ratio = (b * (1 + lam) - 1) / (4 / b + b * (4 * lam**2 - 1))
    kappa = 4 * lam**2 * ratio / (1 - lam)
    return kappa, 2 / (beta * (1 - lam)) * (4 * ratio / b - 1)


def _convex_assumptions(c, beta, lam):
    b = beta / c.smoothness
    below = 4 / b + b * (4 * lam**2 - 1)
    return {
        "1/2 < lambda < 1": lam > 0.5,
        "beta >= L/(1-lambda)": at_most(1 / (1 - lam), b),
        # kappa_0 > 0, without the differences of large numbers in it.
        "kappa_0 > 0": (below > 0) & (4 * (1 + lam) - 4 / b > below),
        "grad f_i(x*) = 0": c.optimal_gradients_squared == 0,
    }


def _given(constants, *names):
    for name in names:
        if getattr(constants, name) is None:
            raise ValueError(f"constants.{name} must be given for this bound, got None.")
    return [getattr(constants, name) for name in names]
