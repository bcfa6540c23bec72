"""Bounds of FedAvg whose number of local steps may fall during training, and the best K and eta.

With kappa = L/mu, A = kappa F(x_0) - F*, T = sum_r K_r, strongly convex clients and eta <= 1/(4L),

    min_t E||grad F(xbar_t)||^2 <= 2 kappa A/(eta T) + eta kappa L [
        sum_c p_c^2 sigma_c^2 + 6 L Gamma + (8 + 4/N) G^2 sum_r K_r^3 / sum_r K_r ]        (Theorem 1)

where xbar_t is the mean of the clients' models after t local steps, not only at the end of rounds. The
proof bounds the mean over t = 0 .. T-1, of which the smallest is no larger. For a fixed K, with
c = |x|/D + |x|/U and Z = sum_c p_c^2 sigma_c^2 + 6 L Gamma + (8 + 4/N) G^2 K^2,

    T = W K/(c + beta K) after W seconds, which makes it (8), or T = K R after R rounds
    K*^3   = A c/(eta^2 L (8 + 4/N) G^2 W)                                                 (Theorem 2)
    eta*^2 = 2 A (c + beta K)/(L Z W K)                                                (corollary 2.1)

Rounds are seconds in which a round takes one and a step none: c = 1, beta = 0, W = R.

With a learning rate for each round, the same proof divides Lemma 2 by sum_r eta_r K_r:

    2 kappa A/sum_r eta_r K_r + kappa L [(sum_c p_c^2 sigma_c^2 + 6 L Gamma) sum_r eta_r^2 K_r
        + (8 + 4/N) G^2 sum_r eta_r^2 K_r^3]/sum_r eta_r K_r

From the strong convexity the first term follows as 2 kappa^2 (F(x_0) - F*)/(eta T); that it is at most
the term above is where F* >= 0 and kappa >= 1 are needed. That K_r never increases is a condition of the
theorem, and is reported; its proof does not use it.

(8) is a sum of monomials in K and eta with positive coefficients, so it is convex in (log K, log eta),
and eta <= 1/(4L) is a convex set. Hence the smallest bound over the allowed eta is convex in log K, and
the best whole K is next to its minimum, or 1. If the minimum over both is allowed, both derivatives
vanish there, which leaves one cubic, K^2 (1 + 2 K beta/c) = (Z without G)/((8 + 4/N) G^2). If it is not,
eta = 1/(4L), and K is Theorem 2's for it. So `best_plan` searches nothing.

Products are ordered for float32: no factor is formed that is larger than the terms.

Reference:
  Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Section 3.3.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.theorem import (
    AtLeastOne,
    Bound,
    Finite,
    FiniteNotNegative,
    FinitePositive,
    NotNegative,
    Number,
    Optimum,
    Positive,
    at_most,
    formula,
    theorem,
)


class FedAvgConstants(NamedTuple):
    """What the bounds of FedAvg with decaying local steps know of a problem.

    Numbers, or arrays of one shape for many problems at once; F is the mean of the f_c, weighted by p_c.

    Attributes:
      smoothness: L > 0, for which every f_c is L-smooth.
      strong_convexity: mu, for which every f_c is mu-strongly convex.
      initial_loss: F(x_0), the loss of the model from which the bound looks forward.
      gradient_bound: G, not squared, with E||g||^2 <= G^2 for the stochastic gradients of all clients.
        The paper takes G = L ||x_1 - x*||, which bounds the gradient of F. The lemma that it builds on
        needs the clients' own, which do not vanish at x* where Gamma > 0.
      cohort_size: N, the clients in a round.
      optimal_loss: F*, the smallest value of F.
      noise: sum_c p_c^2 sigma_c^2, with sigma_c^2 the variance of client c's stochastic gradient.
      heterogeneity: Gamma = F* - sum_c p_c f_c*.
    """

    smoothness: FinitePositive
    strong_convexity: Finite
    initial_loss: Finite
    gradient_bound: FiniteNotNegative
    cohort_size: AtLeastOne
    optimal_loss: Finite = 0.0
    noise: FiniteNotNegative = 0.0
    heterogeneity: FiniteNotNegative = 0.0


class Link(NamedTuple):
    """How long a round takes a client: `|x|/D + K beta + |x|/U` seconds (equation 3); all are alike.

    Attributes:
      megabits: |x|, the size of the model in Mbit.
      download_mbps: D, in Mbit/s; infinite where it takes no time.
      upload_mbps: U, likewise.
      seconds_per_step: beta, the seconds that a minibatch takes.
    """

    megabits: FinitePositive
    download_mbps: Positive
    upload_mbps: Positive
    seconds_per_step: FiniteNotNegative

    @property
    def communication_seconds(self) -> Number:
        """The seconds c = |x|/D + |x|/U that a round takes beside its local steps."""
        return self.megabits / self.download_mbps + self.megabits / self.upload_mbps


class Rounds(NamedTuple):
    """A budget of rounds.

    Attributes:
      rounds: R.
    """

    rounds: Positive


class Seconds(NamedTuple):
    """A budget of time.

    Attributes:
      seconds: W. From any moment of a run it is the time that is left.
      link: the clients' `Link`, which says how long a round takes.
    """

    seconds: Positive
    link: Link


class FedAvgPlan(NamedTuple):
    """How to spend a budget: the local steps and the learning rate with the smallest bound.

    Attributes:
      local_steps: K, a whole number of at least 1, as a float.
      learning_rate: eta, at most 1/(4L).
      bound: the `Bound` with both.
    """

    local_steps: jax.Array
    learning_rate: jax.Array
    bound: Bound


@theorem
def fedavg(
    constants: FedAvgConstants,
    learning_rate: Positive,
    local_steps: Positive,
    budget: Rounds | Seconds | None = None,
):
    """FedAvg's bound on the smallest E||grad F(xbar_t)||^2 over the local steps t: Theorem 1.

    Its terms are 'initial', 'noise', 'heterogeneity' and 'local steps', in the equation's order. It
    looks forward from any moment of a run: F(x_0) is then the loss at that moment.

    Args:
      constants: the problem's `FedAvgConstants`.
      learning_rate: eta > 0; or a schedule of the shape of that of K_r. What is bounded is then the
        smallest as well, by the mean with the weights eta_r.
      local_steps: K > 0, not necessarily a whole number; with no budget, the schedule of K_r, `[R]` or,
        for many at once, `[..., R]`.
      budget: the `Rounds` or `Seconds` in which the same K is used; None for a schedule.

    Example:
      As many steps in all, from 10 a round to 1 rather than 10 to the end:

      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(1.0, 0.5, 1.0, gradient_bound=0.1, cohort_size=10)
      >>> fixed = fo.bounds.fedavg(constants, 0.01, 10, fo.bounds.Rounds(100))
      >>> falling = fo.bounds.fedavg(constants, 0.01, [10] * 50 + [1] * 500)
      >>> round(float(fixed.value), 3), round(float(falling.value), 3)
      (0.968, 0.885)
      >>> bool(falling.terms["local steps"] < fixed.terms["local steps"]), bool(falling.holds)
      (True, True)
      >>> fo.bounds.fedavg(constants, 0.5, [1, 2]).violated()
      ('eta <= 1/(4L)', 'K_r does not increase')
      >>> link = fo.bounds.Link(6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> hour = fo.bounds.Seconds(3600.0, link)
      >>> round(float(fo.bounds.fedavg(constants, 0.01, 10, hour).value), 3)
      0.209
    """
    c, eta, L, mu = constants, learning_rate, constants.smoothness, constants.strong_convexity
    if budget is None:
        iterations, steps, eta = _schedule(local_steps, learning_rate)
    else:
        iterations, steps = _iterations(budget, local_steps), local_steps
    kappa, gap = L / mu, _loss_gap(c)
    scale, drift = eta * L * kappa, _drift(c, steps)
    terms = {
        # Where there is nothing to gain, the best step is 0, and the term's limit is 0, too.
        "initial": jnp.where(gap == 0, 0.0, 2 * kappa / iterations * (gap / eta)),
        "noise": scale * c.noise,
        "heterogeneity": scale * (6 * L * c.heterogeneity),
        "local steps": drift * (scale * (8 + 4 / c.cohort_size)) * drift,
    }
    assumptions = _assumptions(c, learning_rate, local_steps if budget is None else None)
    if budget is None:
        never_grows = jnp.all(local_steps[..., 1:] <= local_steps[..., :-1], axis=-1)
        assumptions["K_r does not increase"] = never_grows
    return terms, assumptions


@theorem
def fedavg_distance(
    constants: FedAvgConstants,
    learning_rate: Positive,
    local_steps: AtLeastOne,
    distance_squared: NotNegative,
    num_clients: AtLeastOne | None = None,
):
    """E||xbar_{t+1} - x*||^2 after one more local step: Lemma 1.

    `(1 - eta mu) E||xbar_t - x*||^2 + eta^2 (sum p^2 sigma^2 + 6 L Gamma + 8 (K-1)^2 G^2
    + (C - N)/(C - 1) (4/N) K^2 G^2)`: the terms 'distance', 'noise', 'heterogeneity', 'local steps' and
    'sampling'. The print has N - 1 for C - 1.

    Args:
      constants: the problem's `FedAvgConstants`; losses do not matter.
      learning_rate: eta > 0.
      local_steps: K, of the round in which the step is taken.
      distance_squared: E||xbar_t - x*||^2.
      num_clients: C, of whom the N are drawn; None for very many.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(1.0, 0.5, 1.0, gradient_bound=0.1, cohort_size=10)
      >>> round(float(fo.bounds.fedavg_distance(constants, 0.1, 5, distance_squared=1.0).value), 4)
      0.9638
    """
    c, eta, L = constants, learning_rate, constants.smoothness
    N, step = c.cohort_size, learning_rate * c.gradient_bound
    share = 1.0 if num_clients is None else (num_clients - N) / jnp.maximum(num_clients - 1, 1)
    terms = {
        "distance": (1 - eta * c.strong_convexity) * distance_squared,
        "noise": eta * (eta * c.noise),
        "heterogeneity": eta * (6 * L * eta * c.heterogeneity),
        "local steps": 8 * (step * (local_steps - 1)) ** 2,
        "sampling": share * 4 / N * (step * local_steps) ** 2,
    }
    assumptions = {"eta <= 1/(4L)": at_most(eta, 0.25 / L), "mu > 0": c.strong_convexity > 0}
    if num_clients is not None:
        assumptions["N <= C"] = num_clients >= N
    return terms, assumptions


@theorem
def fedavg_gradients(constants: FedAvgConstants, learning_rate: Positive, local_steps: AtLeastOne):
    """The sum over all local steps of eta_t E||grad F(xbar_t)||^2: Lemma 2.

    `2 kappa A + kappa L sum_r eta_r^2 K_r (sum p^2 sigma^2 + 6 L Gamma + 8 (K_r-1)^2 G^2
    + (4/N) K_r^2 G^2)`: the terms 'initial', 'noise', 'heterogeneity', 'local steps' and 'sampling'.

    Args:
      constants: the problem's `FedAvgConstants`.
      learning_rate: eta > 0, or a schedule of the shape of that of K_r.
      local_steps: the schedule of K_r, `[..., R]`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(1.0, 0.5, 1.0, gradient_bound=0.1, cohort_size=10)
      >>> bound = fo.bounds.fedavg_gradients(constants, [0.1, 0.05], [10, 10])
      >>> round(float(bound.value), 3)
      9.72
    """
    c, L, K = constants, constants.smoothness, local_steps
    _check_schedule(K)
    eta = learning_rate if _is_schedule(learning_rate, K) else _column(learning_rate)
    kappa, G = L / c.strong_convexity, _column(c.gradient_bound)

    def total(each):
        return kappa * L * jnp.sum(eta * (eta * K * each), axis=-1)

    terms = {
        "initial": 2 * kappa * _loss_gap(c),
        "noise": total(1.0) * c.noise,
        "heterogeneity": total(1.0) * (6 * L * c.heterogeneity),
        "local steps": 8 * total((G * (K - 1)) ** 2),
        "sampling": 4 / c.cohort_size * total((G * K) ** 2),
    }
    return terms, _assumptions(c, learning_rate, local_steps)


@formula
def optimal_local_steps(
    constants: FedAvgConstants, learning_rate: Positive, budget: Rounds | Seconds
) -> Optimum:
    """The K that minimises the bound: Theorem 2.

    `K*^3 = A c/(eta^2 L (8 + 4/N) G^2 W)`, or with 1/R for c/W, raised to 1 where it is below. It is a
    real number; `best_local_steps` is the best whole one. Without gradients (G = 0) it is infinite.

    Args:
      constants: the problem's `FedAvgConstants`.
      learning_rate: eta > 0.
      budget: the `Rounds` or `Seconds`. The seconds of a step, beta, do not matter to K*.

    Example:
      An eighth of the time, twice the steps:

      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(1.0, 0.5, 1.0, gradient_bound=0.1, cohort_size=10)
      >>> link = fo.bounds.Link(6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> budgets = fo.bounds.Seconds(3600.0, link), fo.bounds.Seconds(450.0, link)
      >>> best = [fo.bounds.optimal_local_steps(constants, 0.01, budget) for budget in budgets]
      >>> [round(float(optimum.value), 2) for optimum in best]
      [4.81, 9.61]
      >>> best = fo.bounds.optimal_local_steps(constants, 0.01, fo.bounds.Rounds(100))
      >>> round(float(best.value), 2), bool(best.clipped)
      (13.35, False)
    """
    best = _closed_form_steps(constants, learning_rate, budget)
    allowed = jnp.maximum(best, 1.0)
    return Optimum(allowed, best, fedavg(constants, learning_rate, allowed, budget))


@formula
def best_local_steps(
    constants: FedAvgConstants, learning_rate: Positive, budget: Rounds | Seconds
) -> Optimum:
    """The whole K >= 1 that minimises the bound.

    The bound is convex in K, so it is one of the two whole numbers around Theorem 2's K*, or 1. By the
    bound's difference from K to K + 1, it is K + 1 if and only if K*^3 > K (K + 1/2) (K + 1).

    Args:
      constants, learning_rate, budget: as for `optimal_local_steps`.

    Returns:
      An `Optimum`, whose value is a float that is a whole number.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(1.0, 0.5, 1.0, gradient_bound=0.1, cohort_size=10)
      >>> link = fo.bounds.Link(6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> best = fo.bounds.best_local_steps(constants, 0.01, fo.bounds.Seconds(3600.0, link))
      >>> int(best.value), round(float(best.unconstrained), 2)
      (5, 4.81)
    """
    best = _closed_form_steps(constants, learning_rate, budget)
    low = jnp.maximum(jnp.floor(best), 1.0)
    between = low * jnp.cbrt((1 + 0.5 / low) * (1 + 1 / low))
    whole = jnp.where(best > between, low + 1, low)
    return Optimum(whole, best, fedavg(constants, learning_rate, whole, budget))


@formula
def optimal_learning_rate(
    constants: FedAvgConstants, local_steps: Positive, budget: Rounds | Seconds
) -> Optimum:
    """The eta that minimises the bound: corollary 2.1.

    `eta*^2 = 2 A (c + beta K)/(L Z W K)`, or with 1/R for (c + beta K)/W, lowered to 1/(4L) where it is
    above: the bound holds up to there, and falls until eta*. Whether eta* itself was allowed is reported
    as the assumption 'eta* <= 1/(4L)'.

    Args:
      constants: the problem's `FedAvgConstants`.
      local_steps: K > 0.
      budget: the `Rounds` or `Seconds`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(1.0, 0.5, 1.0, gradient_bound=0.1, cohort_size=10)
      >>> best = fo.bounds.optimal_learning_rate(constants, 10, fo.bounds.Rounds(100))
      >>> round(float(best.value), 4), bool(best.clipped)
      (0.0218, False)
      >>> link = fo.bounds.Link(6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> best = fo.bounds.optimal_learning_rate(constants, 1, fo.bounds.Seconds(60.0, link))
      >>> round(float(best.value), 4), best.bound.violated()
      (0.25, ('eta* <= 1/(4L)',))
    """
    best, highest = _closed_form_rate(constants, local_steps, budget), 0.25 / constants.smoothness
    allowed = jnp.minimum(best, highest)
    bound = fedavg(constants, allowed, local_steps, budget)
    reported = bound.assumptions | {"eta* <= 1/(4L)": best <= highest}
    return Optimum(allowed, best, bound._replace(assumptions=reported))


@formula
def best_plan(constants: FedAvgConstants, budget: Rounds | Seconds) -> FedAvgPlan:
    """The whole K >= 1 and the eta <= 1/(4L) that together minimise the bound.

    The minimum is found in closed form, from the only stationary point of a convex function.

    Args:
      constants: the problem's `FedAvgConstants`.
      budget: the `Rounds` or `Seconds`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=1.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=0.1, cohort_size=10,
      ...     noise=5.0,
      ... )
      >>> link = fo.bounds.Link(6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017)
      >>> plan = fo.bounds.best_plan(constants, fo.bounds.Seconds(3600.0, link))
      >>> int(plan.local_steps), round(float(plan.learning_rate), 4), bool(plan.bound.holds)
      (7, 0.0056, True)
    """
    limit = 0.25 / constants.smoothness

    def plan(steps):
        eta = jnp.minimum(_closed_form_rate(constants, steps, budget), limit)
        return FedAvgPlan(steps, eta, fedavg(constants, eta, steps, budget))

    free = _stationary_steps(constants, budget)
    allowed = _closed_form_rate(constants, free, budget) <= limit
    # Where K tends to 0, no rate may be a number; there the limit binds.
    best = jnp.where(allowed, free, _closed_form_steps(constants, limit, budget))
    low = jnp.maximum(jnp.floor(best), 1.0)
    below, above = plan(low), plan(low + 1)
    return jax.tree.map(
        lambda b, a: jnp.where(above.bound.value < below.bound.value, a, b), below, above
    )


def _round_and_step(budget):
    """(c/W, beta/W): the shares of the budget that a round takes without its local steps, and a step."""
    if isinstance(budget, Rounds):
        return 1 / budget.rounds, jnp.zeros_like(budget.rounds)
    link, seconds = budget.link, budget.seconds
    return link.communication_seconds / seconds, link.seconds_per_step / seconds


def _iterations(budget, steps):
    """T, the local steps that the budget lasts for."""
    a_round, a_step = _round_and_step(budget)
    return 1 / (a_round / steps + a_step)


def _assumptions(c, eta, steps):
    L, mu = c.smoothness, c.strong_convexity
    highest = jnp.max(eta, axis=-1) if _is_schedule(eta, steps) else eta
    return {
        "eta <= 1/(4L)": at_most(highest, 0.25 / L),
        "mu > 0": mu > 0,
        "kappa >= 1": (mu > 0) & at_most(mu, L),
        "F* >= 0": c.optimal_loss >= 0,
        "F(x0) >= F*": c.initial_loss >= c.optimal_loss,
    }


def _is_schedule(eta, steps):
    return steps is not None and jnp.ndim(eta) > 0 and jnp.shape(eta) == jnp.shape(steps)


def _column(x):
    """A number of each problem beside its rounds."""
    return x[..., None] if jnp.ndim(x) else x


def _check_schedule(steps):
    if not jnp.ndim(steps) or not jnp.size(steps):
        raise ValueError(
            "local_steps must be a schedule [R] of one or more rounds where no budget is given, got"
            f" shape {list(jnp.shape(steps))} and budget=None."
        )


def _schedule(steps, eta):
    """The T, K and eta with T eta = sum eta_r K_r, T eta^2 = sum eta_r^2 K_r and so for K^2 eta^2.

    With one eta for all they are sum K_r, the root of sum K_r^3/sum K_r, and eta.
    """
    _check_schedule(steps)
    # In units of the largest, neither the sum nor the cubes of a long schedule overflow.
    most, highest, e = jnp.max(steps, axis=-1), eta, 1.0
    if _is_schedule(eta, steps):
        highest = jnp.max(eta, axis=-1)
        e = eta / highest[..., None]
    k = steps / most[..., None]
    total, square = jnp.sum(e * k, axis=-1), jnp.sum(e**2 * k, axis=-1)
    cubes = jnp.sum(e**2 * k**3, axis=-1)
    return most * total**2 / square, most * jnp.sqrt(cubes / square), highest * square / total


def _loss_gap(c):
    """A = kappa F(x_0) - F*, as a sum of what is not negative: nothing cancels for kappa near 1."""
    L, mu, start = c.smoothness, c.strong_convexity, c.initial_loss
    return (L - mu) / mu * start + (start - c.optimal_loss)


def _drift(c, steps):
    """G K. Without gradients there is no drift, however many the steps: 0 times infinity is 0 here."""
    return c.gradient_bound * jnp.where(c.gradient_bound > 0, steps, 0.0)


def _closed_form_steps(c, eta, budget):
    """K*: the roots of factors stay in the range of float32 where their product would not."""
    above = jnp.cbrt(_loss_gap(c)) * jnp.cbrt(_round_and_step(budget)[0])
    below = jnp.cbrt(eta * c.smoothness) * jnp.cbrt(eta) * jnp.cbrt(8 + 4 / c.cohort_size)
    return above / (below * jnp.cbrt(c.gradient_bound) ** 2)


def _closed_form_rate(c, steps, budget):
    """eta*, with T for W K/(c + beta K)."""
    L, iterations = c.smoothness, _iterations(budget, steps)
    Z = c.noise + 6 * L * c.heterogeneity + (8 + 4 / c.cohort_size) * _drift(c, steps) ** 2
    return jnp.sqrt(2 * _loss_gap(c) / L) / (jnp.sqrt(Z) * jnp.sqrt(iterations))


def _stationary_steps(c, budget):
    """The positive root of K^2 (1 + 2 K beta/c) = s/g.

    For 1/K the cubic is Chebyshev's, 4 C^3 - 3 C = z with z = (beta/c) sqrt(27 s/g) and
    K = sqrt(3 s/g)/(2 C).
    """
    G, (a_round, a_step) = c.gradient_bound, _round_and_step(budget)
    spread = jnp.sqrt(c.noise + 6 * c.smoothness * c.heterogeneity)
    ratio = spread / (jnp.sqrt(8 + 4 / c.cohort_size) * jnp.where(G > 0, G, 1.0))
    z = 27**0.5 * (a_step / a_round) * ratio
    trigonometric = jnp.cos(jnp.arccos(jnp.minimum(z, 1.0)) / 3)
    hyperbolic = jnp.cosh(jnp.arccosh(jnp.maximum(z, 1.0)) / 3)
    best = 3**0.5 * ratio / (2 * jnp.where(z < 1, trigonometric, hyperbolic))
    return jnp.where(G > 0, best, jnp.inf)
