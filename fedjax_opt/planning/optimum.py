"""The K and eta with the smallest bound under all budgets, for devices that may differ.

Theorem 1 of Mills et al. (2023) with a fixed K after R(K, N) rounds is

    B(K, eta) = 2 kappa A/(eta K R(K, N)) + eta kappa L (s + (8 + 4/N) G^2 K^2)

which is (8) where all devices are alike and only time is short. In log K and log eta, the logarithm of a
sum of monomials is convex, and so is that of a maximum or a mean of such sums. t(K, N), a mean of maxima
of c_i + beta_i K, is one; 1/R is a maximum of these; hence B is one. Its minimum over eta <= 1/(4L) is
then convex in log K: the best real K is where its slope changes sign, and the best whole K is beside it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds import Bound, Rounds, fedavg, optimal_learning_rate
from fedjax_opt.planning.setting import Setting, constants_of, round_seconds, rounds_within

_HALVINGS = 44  # of seven or eight decades: to 1e-12
_LEAST = 1e-4  # a K* so small is as good as any below 1


class Best(NamedTuple):
    """The best K and eta for one setting and cohort.

    Attributes:
      real_steps: K*, the real number with the smallest bound.
      real_rate: eta for K*, but for K = 1 where K* is below.
      local_steps: the best whole K, as a float.
      learning_rate: eta for it.
      unclipped_rate: eta for it if 1/(4L) were no limit.
      rounds: R, a real number.
      round_seconds: t.
      bound: the `Bound` with whole K, eta and real R.
    """

    real_steps: Any
    real_rate: Any
    local_steps: Any
    learning_rate: Any
    unclipped_rate: Any
    rounds: Any
    round_seconds: Any
    bound: Bound


def bound_of(setting: Setting, cohort_size: Any, local_steps: Any, learning_rate: Any) -> Bound:
    """B(K, eta)."""
    budget = Rounds(rounds_within(setting, cohort_size, local_steps))
    return fedavg(constants_of(setting, cohort_size), learning_rate, local_steps, budget)


def best_rates(setting: Setting, cohort_size: Any, local_steps: Any) -> tuple[Any, Any]:
    """The best eta for K, and what it would be without the limit 1/(4L)."""
    budget = Rounds(rounds_within(setting, cohort_size, local_steps))
    best = optimal_learning_rate(constants_of(setting, cohort_size), local_steps, budget)
    return best.value, best.unconstrained


def best_for(
    setting: Setting,
    cohort_size: Any,
    max_local_steps: Any,
    learning_rate: Any = jnp.nan,
    local_steps: Any = jnp.nan,
) -> Best:
    """The best K and the best eta, where they are not given: NaN. Pure: `vmap` makes many of it."""

    def rates(steps):
        best, unclipped = best_rates(setting, cohort_size, steps)
        free = jnp.isnan(learning_rate)
        return jnp.where(free, best, learning_rate), jnp.where(free, unclipped, learning_rate)

    def value(steps):
        # At the best eta the bound does not change with eta; at a limit eta does not change with K.
        eta = jax.lax.stop_gradient(rates(steps)[0])
        return bound_of(setting, cohort_size, steps, eta).value

    def halve(_, ends):
        low, high = ends
        middle = jnp.sqrt(low * high)  # half way between their logarithms
        fits = rounds_within(setting, cohort_size, middle) >= 1
        falls = fits & (jax.grad(value)(middle) < 0)
        return jnp.where(falls, middle, low), jnp.where(falls, high, middle)

    limit = jnp.asarray(max_local_steps, jnp.result_type(float))
    real = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.full_like(limit, _LEAST), limit))[1]
    real = jnp.where(jnp.isnan(local_steps), real, local_steps)
    # A whole K that was pushed down by rounding is still itself.
    low = jnp.maximum(jnp.floor(real * (1 + 1e-9)), 1.0)

    def whole(steps):
        eta, unclipped = rates(steps)
        rounds = rounds_within(setting, cohort_size, steps)
        bound = bound_of(setting, cohort_size, steps, eta)
        seconds = round_seconds(setting, cohort_size, steps)
        return Best(real, eta, steps, eta, unclipped, rounds, seconds, bound)

    three = jax.vmap(whole)(jnp.stack([low, low + 1, jnp.maximum(real, 1.0)]))
    allowed = (low + 1 <= limit) & (three.rounds[1] >= 1) & jnp.isnan(local_steps)
    better = allowed & (three.bound.value[1] < three.bound.value[0])
    best = jax.tree.map(lambda rows: jnp.where(better, rows[1], rows[0]), three)
    return best._replace(real_rate=three.learning_rate[2])


@jax.jit
def best_for_each(
    settings: Setting, cohort_sizes: Any, max_local_steps: Any, learning_rate: Any, local_steps: Any
) -> Best:
    """`best_for` with one setting and cohort size in each row `[n]`."""

    def one(row):
        setting, cohort_size = row
        return best_for(setting, cohort_size, max_local_steps, learning_rate, local_steps)

    # One after the other: a small program, that compiles sooner than it would gain by running at once.
    return jax.lax.map(one, (settings, cohort_sizes))


@jax.jit
def bounds_along(setting: Setting, cohort_size: Any, local_steps: Any, learning_rate: Any) -> Bound:
    """The bound for each K of `[n]`, with the best eta for it where none is given: NaN."""

    def one(steps):
        best = best_rates(setting, cohort_size, steps)[0]
        eta = jnp.where(jnp.isnan(learning_rate), best, learning_rate)
        return bound_of(setting, cohort_size, steps, eta)

    return jax.vmap(one)(local_steps)
