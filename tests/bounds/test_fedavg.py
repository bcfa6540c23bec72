"""FedAvg's bounds by hand, where numbers are odd, and what they report; the rest is in test_theorems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt import bounds
from fedjax_opt.bounds import Rounds, Seconds
from tests.bounds.fedavg_problems import LINK, ONE, compiled, numpy_terms

MINUTE = Seconds(60.0, LINK)


def test_theorem_1_is_the_papers():
    """By hand, with kappa = 4, A = 11, T = 8 and sum K^3 = 80.

    2*4*11/(0.1*8) + 0.1*4*2 (0.7 + 6*2*0.3 + (8 + 4/4) 1.5^2 80/8).
    """
    bound = bounds.fedavg(ONE, 0.1, [4, 2, 2])
    expected = {"initial": 110.0, "noise": 0.56, "heterogeneity": 2.88, "local steps": 162.0}
    assert list(bound.terms) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(bound.terms[name], value, rtol=1e-14)
    assert bound.holds and bound.violated() == ()


def test_schedules():
    fixed = bounds.fedavg(ONE, 0.01, 5, Rounds(3))
    for schedule in ([5, 5, 5], (5.0, 5.0, 5.0), np.full(3, 5)):
        same = bounds.fedavg(ONE, 0.01, schedule).value
        np.testing.assert_allclose(same, fixed.value, rtol=1e-14)
    assert bounds.fedavg(ONE, 0.01, range(3, 0, -1)) == bounds.fedavg(ONE, 0.01, [3, 2, 1])
    # Where local work takes no time, the seconds of R rounds are R c.
    free = LINK._replace(seconds_per_step=0.0)
    alike = bounds.fedavg(ONE, 0.01, 5, Seconds(3 * free.communication_seconds, free))
    np.testing.assert_allclose(alike.value, fixed.value, rtol=1e-12)
    # At the same T the term of the local steps is that of the K with K^2 = sum K^3/sum K.
    decaying, level = bounds.fedavg(ONE, 0.01, [10, 5, 5]), bounds.fedavg(ONE, 0.01, [10, 10])
    assert decaying.terms["initial"] == level.terms["initial"]
    ratio = decaying.terms["local steps"] / level.terms["local steps"]
    np.testing.assert_allclose(ratio, 62.5 / 100, rtol=1e-14)
    upwards = bounds.fedavg(ONE, 0.01, [[5, 5, 10], [10, 5, 5], [7, 7, 7]])
    assert upwards.assumptions["K_r does not increase"].tolist() == [False, True, True]
    assert upwards.value[0] == upwards.value[1]


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
        [1.0, 1e9],  # W, R
        [1.0, 1e6],  # K
        [1e-4, 1.0],  # eta in units of 1/(4L)
    )
).reshape(9, -1)


def optima_at_the_extremes(dtype):
    L, kappa, F0, G, noise, gamma, time, K, share = EXTREMES.astype(dtype)
    constants = bounds.FedAvgConstants(L, L / kappa, F0, G, 10 + 0 * L, F0 / 2, noise, gamma)
    link = bounds.Link(*np.full((3, len(L)), [[40], [20], [5]], dtype), 0.3 + 0 * L)

    @compiled
    def evaluate(constants, eta, K, *budgets):
        return [
            {
                "steps": bounds.optimal_local_steps(constants, eta, budget),
                "best steps": bounds.best_local_steps(constants, eta, budget),
                "rate": bounds.optimal_learning_rate(constants, K, budget),
                "plan": bounds.best_plan(constants, budget),
            }
            for budget in budgets
        ]

    eta = share * (dtype(0.25) / L)
    return jax.tree.map(np.asarray, evaluate(constants, eta, K, Rounds(time), Seconds(time, link)))


def test_optima_in_float32_agree_with_float64_at_the_extremes():
    for narrow, wide in zip(*map(optima_at_the_extremes, (np.float32, np.float64)), strict=True):
        for name, found in narrow.items():
            other, bound = wide[name], found.bound
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
            assert found.bound.value.dtype == np.float32
            np.testing.assert_allclose(bound.value, other.bound.value, rtol=1e-4, err_msg=name)
            np.testing.assert_array_equal(bound.holds, other.bound.holds, err_msg=name)
            # Two whole numbers may have the same bound, to float32.
            slack = 1.0 if name in ("best steps", "plan") else 0.0
            np.testing.assert_allclose(found[0], other[0], rtol=1e-4, atol=slack, err_msg=name)
            if name != "plan":
                np.testing.assert_allclose(found.unconstrained, other.unconstrained, rtol=1e-4)


def test_communication_seconds():
    assert bounds.Link(40.0, 20.0, 5.0, 0.31).communication_seconds == 10.0


def calculators(c=ONE, eta=0.1, budget=MINUTE):
    """Every bound there is; all arguments are allowed unless they are given."""
    return {
        "bound": bounds.fedavg(c, eta, 4, budget),
        "schedule": bounds.fedavg(c, eta, [4, 2, 2]),
        "steps": bounds.optimal_local_steps(c, eta, budget).bound,
        "best steps": bounds.best_local_steps(c, eta, budget).bound,
        "rate": bounds.optimal_learning_rate(c, 4, budget).bound,
        "plan": bounds.best_plan(c, budget).bound,
    }


@pytest.mark.parametrize("budget", [Rounds(60.0), MINUTE])
def test_assumptions_that_fail_are_named(budget):
    assert all(bound.violated() == () for bound in calculators(budget=budget).values())
    for changes, expected in [
        ({"strong_convexity": 2.5}, {"kappa >= 1"}),
        ({"optimal_loss": -0.5}, {"F* >= 0"}),
        ({"optimal_loss": 3.5}, {"F(x0) >= F*"}),
    ]:
        for bound in calculators(ONE._replace(**changes), budget=budget).values():
            assert set(bound.violated()) - {"eta* <= 1/(4L)"} == expected
            assert not bound.holds
    # No learning rate is known to be allowed where the formulas have no value.
    for bound in calculators(ONE._replace(strong_convexity=-0.5), budget=budget).values():
        assert {"kappa >= 1", "mu > 0"} <= set(bound.violated())
    for name, bound in calculators(eta=0.126, budget=budget).items():
        given = name not in ("rate", "plan")
        assert bound.violated() == (("eta <= 1/(4L)",) if given else ())


def test_a_limit_that_was_rounded_is_allowed():
    for L in np.random.default_rng(0).uniform(0.1, 10.0, 50):
        narrow = ONE._replace(smoothness=np.float32(L), strong_convexity=np.float32(0.1))
        assert bounds.fedavg(narrow, np.float32(1 / (4 * L)), 4, Rounds(10)).holds


def test_what_is_traced_is_trusted_and_compiles_once():
    traces = []

    @jax.jit
    def value(constants, eta):
        traces.append(None)
        return bounds.fedavg(constants, eta, 4, Rounds(60.0))

    for eta in (0.1, 0.05, -0.1):
        value(ONE, eta)
    assert len(traces) == 1
    with pytest.raises(ValueError, match="needs known values"):
        jax.jit(lambda c: bounds.fedavg(c, 0.1, 4, Rounds(60.0)).violated())(ONE)


def test_nothing_to_gain_and_nothing_to_drift():
    """At the optimum, where F* = 0, the best step is none; without gradients K may grow for ever."""
    settled = ONE._replace(initial_loss=0.0, optimal_loss=0.0)
    best = bounds.optimal_learning_rate(settled, 4, MINUTE)
    assert best.value == 0 and best.bound.value == 0
    assert bounds.optimal_local_steps(settled, 0.1, MINUTE).value == 1
    assert bounds.best_local_steps(settled, 0.1, MINUTE).value == 1
    still = ONE._replace(gradient_bound=0.0)
    for best in (
        bounds.optimal_local_steps(still, 0.1, MINUTE),
        bounds.best_local_steps(still, 0.1, MINUTE),
    ):
        assert np.isinf(best.value) and np.isfinite(best.bound.value)
    plan = bounds.best_plan(still, MINUTE)
    assert np.isinf(plan.local_steps) and np.isfinite(plan.bound.value)
    assert plan.bound.value < bounds.best_plan(ONE, MINUTE).bound.value


def test_communication_that_takes_no_time():
    """Then nothing speaks for more than one step a round."""
    fast = Seconds(60.0, LINK._replace(download_mbps=np.inf, upload_mbps=np.inf))
    for constants in (ONE, ONE._replace(noise=0.0, heterogeneity=0.0)):
        assert bounds.best_local_steps(constants, 0.1, fast).value == 1
        plan = bounds.best_plan(constants, fast)
        assert plan.local_steps == 1 and np.isfinite(plan.bound.value)


def test_precision_is_that_of_the_arrays():
    """Plain numbers take on the precision of what they meet; integers have none."""
    narrow = jax.tree.map(np.float32, ONE)
    for expected, arguments in (
        (np.float32, (narrow, 0.1, [4, 2, 2])),
        (np.float32, (ONE, jnp.float32(0.1), np.array([4, 2, 2]))),
        (np.float32, (ONE, jnp.bfloat16(0.1), [4, 2, 2])),
        (np.float64, (ONE, 0.1, [4, 2, 2])),
        (np.float64, (narrow, np.float64(0.1), [4, 2, 2])),
    ):
        shape = jax.eval_shape(lambda arguments=arguments: bounds.fedavg(*arguments))
        assert shape.value.dtype == expected
