"""FedAvg's bounds against the paper's page in plain NumPy, also where numbers are extreme."""

import jax
import numpy as np

from fedjax_opt import bounds
from tests.bounds.fedavg_problems import (
    ONE,
    by_rounds,
    by_runtime,
    compiled,
    log_uniform,
    numpy_terms,
    random_constants,
    random_link,
)

COUNT = 200


def draw(low, high, seed):
    return log_uniform(np.random.default_rng(seed), low, high, COUNT)


def test_theorem_1_is_the_papers():
    """By hand, with kappa = 4, A = 11, T = 8 and sum K^3 = 80.

    2*4*11/(0.1*8) + 0.1*4*2 (0.7 + 6*2*0.3 + (8 + 4/4) 1.5^2 80/8).
    """
    bound = bounds.fedavg(ONE, 0.1, [4, 2, 2])
    expected = {"initial": 110.0, "noise": 0.56, "heterogeneity": 2.88, "local steps": 162.0}
    assert bound.terms.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(bound.terms[name], value, rtol=1e-14)
    np.testing.assert_allclose(bound.value, sum(expected.values()), rtol=1e-14)
    assert bound.holds and bound.violated() == ()


def test_theorem_1_for_random_constants_and_schedules():
    constants, eta = random_constants(COUNT, seed=0), draw(1e-12, 1.0, 1)
    generator = np.random.default_rng(2)
    schedules = np.sort(np.ceil(draw(1.0, 1e6, 3)[:, None] * generator.random((COUNT, 7))))[:, ::-1]
    bound = compiled(jax.vmap(bounds.fedavg))(constants, eta, schedules)
    total = schedules.sum(axis=1)
    typical = np.sqrt((schedules**3).sum(axis=1) / total)
    expected = sum(numpy_terms(constants, eta, (1 / total,), typical))
    np.testing.assert_allclose(bound.value, expected, rtol=1e-12)
    # The same for all at once without vmap: the rounds are the last axis.
    together = bounds.fedavg(constants, eta, schedules)
    np.testing.assert_allclose(together.value, bound.value, rtol=1e-12)
    assert together.assumptions["K_r does not increase"].all()
    upwards = bounds.fedavg(constants, eta, schedules[:, ::-1])
    level = schedules[:, 0] == schedules[:, -1]
    np.testing.assert_array_equal(upwards.assumptions["K_r does not increase"], level)
    assert 0 < level.sum() < COUNT / 4
    np.testing.assert_allclose(upwards.value, bound.value, rtol=1e-12)


def test_the_bounds_of_a_fixed_k():
    constants, link = random_constants(COUNT, seed=4), random_link(COUNT, seed=5)
    eta, K, W, R = (draw(*r) for r in ((1e-12, 1, 6), (0.1, 1e6, 7), (1e-2, 1e9, 8), (1, 1e9, 9)))
    runtime = compiled(bounds.fedavg_by_runtime)(constants, link, eta, K, W).value
    np.testing.assert_allclose(runtime, sum(by_runtime(constants, link, eta, K, W)), rtol=1e-12)
    rounds = compiled(jax.vmap(bounds.fedavg_by_rounds))(constants, eta, K, R).value
    np.testing.assert_allclose(rounds, sum(by_rounds(constants, eta, K, R)), rtol=1e-12)
    # Where local work takes no time, the seconds of R rounds are R c.
    free = link._replace(seconds_per_step=0.0)
    alike = bounds.fedavg_by_runtime(constants, free, eta, K, R * free.communication_seconds).value
    np.testing.assert_allclose(alike, rounds, rtol=1e-12)


def test_a_constant_schedule_is_a_fixed_k():
    fixed = bounds.fedavg(ONE, 0.01, 5, rounds=3)
    for schedule in ([5, 5, 5], (5.0, 5.0, 5.0), np.full(3, 5)):
        np.testing.assert_allclose(
            bounds.fedavg(ONE, 0.01, schedule).value, fixed.value, rtol=1e-14
        )
    counted = bounds.fedavg(ONE, 0.01, range(3, 0, -1))
    assert counted.value == bounds.fedavg(ONE, 0.01, [3, 2, 1]).value


def test_decaying_k_costs_less_than_the_same_steps_at_a_fixed_k():
    """At the same T the term of the local steps is that of the K with K^2 = sum K^3/sum K."""
    decaying, fixed = bounds.fedavg(ONE, 0.01, [10, 5, 5]), bounds.fedavg(ONE, 0.01, [10, 10])
    assert decaying.terms["initial"] == fixed.terms["initial"]
    np.testing.assert_allclose(
        decaying.terms["local steps"] / fixed.terms["local steps"], 62.5 / 100, rtol=1e-14
    )


def test_long_schedules_do_not_overflow():
    """sum K^3 is above int32 and, times other factors, above float32."""
    steps = np.ceil(10_000 * np.arange(1, 1_000_001) ** (-1 / 3)).astype(np.int32)
    constants = ONE._replace(gradient_bound=1e6)
    wide = bounds.fedavg(constants, 1e-6, np.asarray(steps, np.float64)).value
    narrow = bounds.fedavg(jax.tree.map(np.float32, constants), np.float32(1e-6), steps).value
    assert wide.dtype == np.float64 and narrow.dtype == np.float32
    exact = steps.astype(np.int64)
    typical = np.sqrt((exact**3).sum() / exact.sum())
    expected = sum(numpy_terms(constants, 1e-6, (1 / exact.sum(),), typical))
    np.testing.assert_allclose(wide, expected, rtol=1e-12)
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


EXTREMES = np.array(
    np.meshgrid(
        [1e-4, 1e8],  # L
        [1.0, 1e8],  # kappa
        [1e-3, 1e6],  # F(x_0)
        [1e-4, 1e6],  # G
        [0.0, 1e8],  # noise
        [0.0, 1e6],  # Gamma
        [1.0, 1e9],  # T, W, R
        [1.0, 1e6],  # K
        [1e-4, 1.0],  # eta in units of 1/(4L)
    )
).reshape(9, -1)


def at_the_extremes(dtype):
    """Everything there is, where the constants are extreme; one program."""
    L, kappa, F0, G, noise, gamma, time, K, share = EXTREMES.astype(dtype)
    constants = bounds.FedAvgConstants(L, L / kappa, F0, G, 10 + 0 * L, F0 / 2, noise, gamma)
    link = bounds.Link(*np.full((3, len(L)), [[40], [20], [5]], dtype), 0.3 + 0 * L)
    eta = share * (dtype(0.25) / L)
    schedule = np.stack([K, np.ceil(K / 2), np.ones_like(K)], axis=1)

    @compiled
    @jax.vmap
    def evaluate(constants, link, eta, K, time, schedule):
        return {
            "fedavg": bounds.fedavg(constants, eta, schedule),
            "runtime": bounds.fedavg_by_runtime(constants, link, eta, K, time),
            "rounds": bounds.fedavg_by_rounds(constants, eta, K, time),
            "steps": bounds.optimal_local_steps(constants, link, eta, time),
            "steps by rounds": bounds.optimal_local_steps_by_rounds(constants, eta, time),
            "rate": bounds.optimal_learning_rate(constants, link, K, time),
            "rate by rounds": bounds.optimal_learning_rate_by_rounds(constants, K, time),
            "best steps": bounds.best_local_steps(constants, link, eta, time),
            "plan": bounds.best_plan(constants, link, time),
        }

    return evaluate(constants, link, eta, K, time, schedule)


def test_float32_agrees_with_float64_at_the_extremes():
    narrow, wide = (jax.tree.map(np.asarray, at_the_extremes(t)) for t in (np.float32, np.float64))
    assert len(narrow) == 9
    for leaf, other in zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True):
        assert leaf.dtype in (np.float32, bool) and other.dtype in (np.float64, bool)
        assert np.isfinite(leaf).all()
    for name, found in narrow.items():
        bound = getattr(found, "bound", found)
        other = getattr(wide[name], "bound", wide[name])
        np.testing.assert_allclose(bound.value, other.value, rtol=1e-4, err_msg=name)
        np.testing.assert_array_equal(bound.holds, other.holds, err_msg=name)
        # Two whole numbers may have the same bound, to float32; then their terms differ.
        if name not in ("best steps", "plan"):
            for term, value in bound.terms.items():
                np.testing.assert_allclose(value, other.terms[term], rtol=1e-4, err_msg=name)
        if isinstance(found, bounds.Optimum):
            np.testing.assert_allclose(found.unconstrained, wide[name].unconstrained, rtol=1e-4)
            slack = 1.0 if name == "best steps" else 0.0
            np.testing.assert_allclose(found.value, wide[name].value, rtol=1e-4, atol=slack)
    plan, other = narrow["plan"], wide["plan"]
    np.testing.assert_allclose(plan.local_steps, other.local_steps, rtol=1e-4, atol=1.0)


def test_derivatives():
    """d/deta of Theorem 1, by hand: the first term falls, the others are proportional to eta."""
    bound = bounds.fedavg_by_rounds(ONE, 0.1, 4, 60.0)
    others = sum(value for name, value in bound.terms.items() if name != "initial")
    slope = compiled(jax.grad(lambda eta: bounds.fedavg_by_rounds(ONE, eta, 4, 60.0).value))(0.1)
    np.testing.assert_allclose(slope, (others - bound.terms["initial"]) / 0.1, rtol=1e-12)
    slopes = compiled(jax.grad(lambda c: bounds.fedavg(c, 0.1, [4, 2, 2]).value))(
        jax.tree.map(float, ONE)
    )
    assert all(np.isfinite(slope) for slope in slopes)
    np.testing.assert_allclose(slopes.noise, 0.1 * 4 * 2, rtol=1e-12)


def test_communication_seconds():
    assert bounds.Link(40.0, 20.0, 5.0, 0.31).communication_seconds == 10.0
