"""The optimal K and eta against numerical minimisers of the bound in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import printed
from fedjax_opt import bounds
from tests.bounds.fedavg_problems import (
    by_rounds,
    by_runtime,
    compiled,
    log_uniform,
    random_constants,
    random_link,
)

COUNT = 1000
CONSTANTS, LINK = random_constants(COUNT, seed=10), random_link(COUNT, seed=11)
GENERATOR = np.random.default_rng(12)
ETA = 0.25 / CONSTANTS.smoothness * log_uniform(GENERATOR, 1e-6, 1.0, COUNT)
STEPS = log_uniform(GENERATOR, 1.0, 1e6, COUNT)
TIME = log_uniform(GENERATOR, 1.0, 1e9, COUNT)
HIGHEST = 0.25 / CONSTANTS.smoothness
BOTTOM, TOP = np.full(COUNT, -80.0), np.full(COUNT, 80.0)  # logarithms of what can be expected
# The terms of the bound as a function of what is optimised, in NumPy.
PROBLEMS = {
    "steps by runtime": lambda K: by_runtime(CONSTANTS, LINK, ETA, K, TIME),
    "steps by rounds": lambda K: by_rounds(CONSTANTS, ETA, K, TIME),
    "rate by runtime": lambda eta: by_runtime(CONSTANTS, LINK, eta, STEPS, TIME),
    "rate by rounds": lambda eta: by_rounds(CONSTANTS, eta, STEPS, TIME),
}


@compiled
@jax.vmap
def everything(constants, link, eta, steps, time):
    """What the library finds, in one program."""
    seconds, rounds = bounds.Seconds(time, link), bounds.Rounds(time)
    return {
        "best steps": bounds.best_local_steps(constants, eta, seconds),
        "best steps by rounds": bounds.best_local_steps(constants, eta, rounds),
        "best plan": bounds.best_plan(constants, seconds),
        "best plan by rounds": bounds.best_plan(constants, rounds),
        "steps by runtime": bounds.optimal_local_steps(constants, eta, seconds),
        "steps by rounds": bounds.optimal_local_steps(constants, eta, rounds),
        "rate by runtime": bounds.optimal_learning_rate(constants, steps, seconds),
        "rate by rounds": bounds.optimal_learning_rate(constants, steps, rounds),
    }


def minimise(terms, low, high):
    """Golden section on the logarithm of the argument, for all problems at once.

    Two arguments are compared by the differences of their terms, so that what does not change cancels
    exactly, however large it is. What is left resolves the argument to the root of the precision.
    """
    golden = (np.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    for _ in range(60):
        lower = (
            sum(a - b for a, b in zip(terms(np.exp(left)), terms(np.exp(right)), strict=True)) < 0
        )
        low, high = np.where(lower, low, left), np.where(lower, right, high)
        left, right = high - golden * (high - low), low + golden * (high - low)
    return np.exp((low + high) / 2)


@pytest.fixture(scope="module")
def optima():
    return jax.tree.map(np.asarray, everything(CONSTANTS, LINK, ETA, STEPS, TIME))


def test_the_minimiser_finds_minima_that_are_known():
    """x + a^2/x + 1e9 is smallest at a; between bounds, at the nearer one."""
    a = log_uniform(GENERATOR, 1e-8, 1e8, COUNT)
    huge = np.full(COUNT, 1e9)
    found = minimise(lambda x: [x, a**2 / x, huge], BOTTOM, TOP)
    np.testing.assert_allclose(found, a, rtol=1e-7)
    found = minimise(lambda x: [x, a**2 / x, huge], np.full(COUNT, 0.0), np.full(COUNT, 1.0))
    np.testing.assert_allclose(found, np.clip(a, 1.0, np.e), rtol=1e-7)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_closed_form_is_the_minimiser(optima, name):
    """Of all arguments, and of those that are allowed; what was not allowed is reported."""
    terms, best = PROBLEMS[name], optima[name]
    np.testing.assert_allclose(best.unconstrained, minimise(terms, BOTTOM, TOP), rtol=1e-6)
    low, high = (BOTTOM, np.log(HIGHEST)) if "rate" in name else (np.zeros(COUNT), TOP)
    np.testing.assert_allclose(best.value, minimise(terms, low, high), rtol=1e-6)
    assert 50 < best.clipped.sum() < COUNT - 50
    np.testing.assert_array_equal(best.clipped, best.value != best.unconstrained)
    np.testing.assert_allclose(best.bound.value, sum(terms(best.value)), rtol=1e-12)
    reported = best.bound.assumptions
    assert reported["eta <= 1/(4L)"].all()
    assert ("eta* <= 1/(4L)" in reported) == ("rate" in name)
    if "rate" in name:
        np.testing.assert_array_equal(reported["eta* <= 1/(4L)"], ~best.clipped)
        np.testing.assert_array_equal(best.bound.holds, ~best.clipped)


def test_derivatives_vanish_at_the_optima(optima):
    """In units of the terms that change: d/dlog K and d/dlog eta are sums of multiples of them."""

    def by_log_steps(constants, link, eta, log_steps, time):
        bound = bounds.fedavg(constants, eta, jnp.exp(log_steps), bounds.Seconds(time, link))
        return bound.value, bound.terms["local steps"]

    def by_log_rate(constants, link, log_eta, steps, time):
        bound = bounds.fedavg(constants, jnp.exp(log_eta), steps, bounds.Seconds(time, link))
        return bound.value, bound.terms["initial"]

    def relative_slope(function, argument, *arguments):
        slopes = jax.vmap(jax.grad(function, argnums=argument, has_aux=True))
        slope, size = compiled(slopes)(*arguments)
        return np.abs(slope / size)

    best = np.log(optima["steps by runtime"].unconstrained)
    # The part c/K of the first term is subtracted from its part beta: that loses digits.
    share = LINK.seconds_per_step * np.exp(best) / LINK.communication_seconds
    assert np.all(
        relative_slope(by_log_steps, 3, CONSTANTS, LINK, ETA, best, TIME) < 1e-12 * (1 + share)
    )
    best = np.log(optima["rate by runtime"].unconstrained)
    assert np.all(relative_slope(by_log_rate, 2, CONSTANTS, LINK, best, STEPS, TIME) < 1e-12)


# ----------------------------------------------------------------------------------------------


def test_the_printed_forms(optima):
    """(9) to (12) do not minimise the bound."""
    seconds = bounds.Seconds(TIME, LINK)
    found = {
        "steps by runtime": printed.local_steps_9(CONSTANTS, ETA, seconds),
        "steps by rounds": printed.local_steps_10(CONSTANTS, ETA, TIME),
        "rate by runtime": printed.learning_rate_11(CONSTANTS, STEPS, seconds),
        "rate by rounds": printed.learning_rate_12(CONSTANTS, STEPS, TIME),
    }
    for name, value in found.items():
        least = sum(PROBLEMS[name](optima[name].unconstrained))
        assert np.all(sum(PROBLEMS[name](value)) >= least * (1 - 1e-12))
        assert np.mean(np.abs(np.log(value / optima[name].unconstrained)) > 0.01) > 0.95


# ----------------------------------------------------------------------------------------------


LAST = 5000
TRIED = 300


@pytest.fixture(scope="module")
def moderate():
    """Problems whose best K lies between 1 and some thousands, and what the library finds."""
    generator = np.random.default_rng(20)

    def draw(low, high):
        return log_uniform(generator, low, high, COUNT)

    L = draw(0.1, 10.0)
    constants = bounds.FedAvgConstants(
        smoothness=L,
        strong_convexity=L / draw(1.0, 100.0),
        initial_loss=draw(0.01, 10.0),
        gradient_bound=draw(1e-3, 10.0),
        cohort_size=np.floor(draw(1.0, 100.0)),
        optimal_loss=np.zeros(COUNT),
        noise=np.where(generator.random(COUNT) < 0.1, 0.0, draw(1e-4, 1e4)),
        heterogeneity=np.where(generator.random(COUNT) < 0.1, 0.0, draw(1e-5, 10.0)),
    )
    link = bounds.Link(draw(0.01, 100.0), draw(1.0, 100.0), draw(1.0, 100.0), draw(1e-4, 100.0))
    problems = constants, link, 0.25 / L * draw(1e-3, 1.0), draw(1.0, 100.0), draw(0.1, 1e6)
    found = everything(*problems)
    return jax.tree.map(lambda leaf: np.asarray(leaf[:TRIED]), (problems, found))


def columns(tree):
    """For broadcasting against a row of all K."""
    return jax.tree.map(lambda leaf: leaf[:, None], tree)


def test_the_best_whole_k_is_that_of_all(moderate):
    (constants, link, eta, _, seconds), found = moderate
    best = found["best steps"]
    value = best.value
    K = np.arange(1.0, LAST + 1)[None]
    # Without what is the same for all K, so that not a digit is lost.
    first, second, _, _, _, *drift = by_runtime(
        *columns((constants, link, eta)), K, seconds[:, None]
    )
    every = first + second + sum(drift)
    inside = value < LAST
    assert inside.sum() > 200 and (value == 1).sum() > 20 and (value > 100).sum() > 20
    np.testing.assert_array_equal(value[inside], 1 + np.argmin(every, axis=1)[inside])
    expected = sum(by_runtime(constants, link, eta, value, seconds))
    np.testing.assert_allclose(best.bound.value, expected, rtol=1e-12)


def test_the_best_whole_k_of_millions(optima):
    """Neither neighbour is better, where K* is too large to try all."""
    K = optima["best steps"].value
    large = (K > LAST) & (K < 1e7)
    assert large.sum() > 50

    def changing(K):
        first, second, _, _, _, *drift = by_runtime(CONSTANTS, LINK, ETA, K, TIME)
        return first + second + sum(drift)

    for other in (np.maximum(K - 1, 1.0), K + 1):
        assert np.all((changing(K) <= changing(other) * (1 + 1e-14))[large])
    np.testing.assert_array_equal(K, np.round(K))


def test_by_rounds_is_by_runtime_without_local_work(moderate):
    """K R steps in R rounds are those of R seconds in which a round takes one and a step nothing."""
    (constants, _, _, _, time), found = moderate
    free = bounds.Seconds(
        time, bounds.Link(0.5 + 0 * time, 1.0 + 0 * time, 1.0 + 0 * time, 0 * time)
    )
    for name, by_time in (
        ("best steps", bounds.best_local_steps(constants, moderate[0][2], free)),
        ("best plan", bounds.best_plan(constants, free)),
    ):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12),
            found[f"{name} by rounds"], by_time,
        )  # fmt: skip


def smallest_over_rates(constants, link, K, seconds):
    """The smallest bound over eta in (0, 1/(4L)] of a/eta + b eta, at the root of a/b or the limit."""
    first, second, third, *others = by_runtime(constants, link, 1.0, K, seconds)
    falling, rising = first + second + third, sum(others)
    with np.errstate(divide="ignore"):
        eta = np.minimum(np.sqrt(falling / rising), 0.25 / constants.smoothness)
    return falling / eta + rising * eta, eta


def test_the_best_plan_is_that_of_all_k_and_eta(moderate):
    (constants, link, _, _, seconds), found = moderate
    plans = found["best plan"]
    K = np.arange(1.0, LAST + 1)[None]
    every, rates = smallest_over_rates(*columns((constants, link)), K, seconds[:, None])
    index = np.argmin(every, axis=1)
    smallest = every[np.arange(TRIED), index]
    inside = plans.local_steps < LAST
    limited = plans.learning_rate == 0.25 / constants.smoothness
    one = plans.local_steps == 1
    # All cases occur: whether the limit binds, and whether K would be below 1.
    for case in (limited & one, limited & ~one, ~limited & one, ~limited & ~one):
        assert (case & inside).sum() > 10
    np.testing.assert_allclose(plans.bound.value[inside], smallest[inside], rtol=1e-13)
    assert np.all(plans.bound.value <= smallest * (1 + 1e-13))
    # The same K, but where two are equally good to the last digit.
    tied = np.sort(every, axis=1)[:, 1] <= smallest * (1 + 1e-12)
    assert tied.mean() < 0.1
    sure = inside & ~tied
    np.testing.assert_array_equal(plans.local_steps[sure], 1 + index[sure])
    exact = rates[np.arange(TRIED), index]
    np.testing.assert_allclose(plans.learning_rate[sure], exact[sure], rtol=1e-12)
    assert plans.bound.holds.all()


def test_the_best_plan_of_extreme_problems(optima):
    """From K = 1 to millions: no neighbour, and no K far away, with its own best eta, is better."""
    plan = optima["best plan"]
    K = plan.local_steps
    expected, eta = smallest_over_rates(CONSTANTS, LINK, K, TIME)
    np.testing.assert_allclose(plan.bound.value, expected, rtol=1e-11)
    np.testing.assert_allclose(plan.learning_rate, eta, rtol=1e-11)
    for other in (K - 1, K + 1, *(np.round(K * f) for f in (0.01, 0.5, 0.9, 1.1, 2.0, 100.0))):
        value, _ = smallest_over_rates(CONSTANTS, LINK, np.maximum(other, 1.0), TIME)
        assert np.all(expected <= value * (1 + 1e-13))
    assert ((K > 1000) & (K < 1e7)).sum() > 50
    np.testing.assert_array_equal(K, np.round(K))
    assert np.all(K >= 1) and np.all(plan.learning_rate <= HIGHEST)
