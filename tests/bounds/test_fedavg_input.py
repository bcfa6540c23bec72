"""What FedAvg's bounds and optima say of bad, odd and limiting input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt import bounds
from tests.bounds.fedavg_problems import LINK, ONE

RATE, STEPS, TIME = 0.1, 4, 60.0


def calculators(c=ONE, link=LINK, eta=RATE, K=STEPS, time=TIME):
    """Every bound there is, to be called; all arguments are allowed unless they are given."""
    return {
        "fedavg": lambda: bounds.fedavg(c, eta, K, rounds=time),
        "by_runtime": lambda: bounds.fedavg_by_runtime(c, link, eta, K, time),
        "by_rounds": lambda: bounds.fedavg_by_rounds(c, eta, K, time),
        "steps": lambda: bounds.optimal_local_steps(c, link, eta, time).bound,
        "steps_by_rounds": lambda: bounds.optimal_local_steps_by_rounds(c, eta, time).bound,
        "rate": lambda: bounds.optimal_learning_rate(c, link, K, time).bound,
        "rate_by_rounds": lambda: bounds.optimal_learning_rate_by_rounds(c, K, time).bound,
        "best_steps": lambda: bounds.best_local_steps(c, link, eta, time).bound,
        "best_plan": lambda: bounds.best_plan(c, link, time).bound,
    }


ALL = tuple(calculators())
WITH_LINK = ("by_runtime", "steps", "rate", "best_steps", "best_plan")
WITH_RATE = ("fedavg", "by_runtime", "by_rounds", "steps", "steps_by_rounds", "best_steps")
WITH_STEPS = ("fedavg", "by_runtime", "by_rounds", "rate", "rate_by_rounds")


@pytest.mark.parametrize("name", ALL)
def test_good_input_holds(name):
    bound = calculators()[name]()
    assert bound.holds and bound.violated() == ()
    np.testing.assert_allclose(bound.value, sum(bound.terms.values()), rtol=1e-14)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("smoothness", 0.0),
        ("smoothness", np.inf),
        ("strong_convexity", np.nan),
        ("initial_loss", np.inf),
        ("gradient_bound", -1.0),
        ("cohort_size", 0),
        ("optimal_loss", np.nan),
        ("noise", -0.1),
        ("heterogeneity", [0.1, -0.1]),
    ],
)
def test_constants_that_cannot_be_are_refused(field, value):
    for calculate in calculators(c=ONE._replace(**{field: value})).values():
        with pytest.raises(ValueError, match=rf"constants\.{field} must lie in"):
            calculate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("megabits", 0.0),
        ("download_mbps", -20.0),
        ("upload_mbps", 0.0),
        ("seconds_per_step", -1e-9),
    ],
)
def test_links_that_cannot_be_are_refused(field, value):
    known = calculators(link=LINK._replace(**{field: value}))
    for name in WITH_LINK:
        with pytest.raises(ValueError, match=rf"link\.{field} must lie in"):
            known[name]()


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_arguments_that_cannot_be_are_refused(value):
    for argument, names, said in (
        ("eta", WITH_RATE, "learning_rate"),
        ("K", WITH_STEPS, "local_steps"),
        ("time", ALL, "(runtime|rounds)"),
    ):
        known = calculators(**{argument: value})
        for name in names:
            with pytest.raises(ValueError, match=rf"{said} must lie in \(0.0, inf\], got"):
                known[name]()


def test_schedules_that_cannot_be_are_refused():
    for schedule in (5, [], np.zeros((3, 0))):
        with pytest.raises(ValueError, match="local_steps must be a schedule"):
            bounds.fedavg(ONE, 0.1, schedule)
    with pytest.raises(ValueError, match="local_steps must be one number where rounds are given"):
        bounds.fedavg(ONE, 0.1, [3, 2], rounds=2)
    with pytest.raises(ValueError, match="local_steps must lie in"):
        bounds.fedavg(ONE, 0.1, [3, 0])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"strong_convexity": 2.5}, {"kappa >= 1"}),
        ({"optimal_loss": -0.5}, {"F* >= 0"}),
        ({"optimal_loss": 3.5}, {"F(x0) >= F*"}),
    ],
)
def test_assumptions_that_fail_are_named(changes, expected):
    for calculate in calculators(c=ONE._replace(**changes)).values():
        bound = calculate()
        assert set(bound.violated()) - {"eta* <= 1/(4L)"} == expected
        assert not bound.holds
    # No learning rate is known to be allowed where the formulas have no value.
    for calculate in calculators(c=ONE._replace(strong_convexity=-0.5)).values():
        assert {"kappa >= 1", "mu > 0"} <= set(calculate().violated())


def test_a_learning_rate_that_is_too_large_is_named():
    known = calculators(eta=0.126)
    for name in WITH_RATE:
        assert known[name]().violated() == ("eta <= 1/(4L)",)
    # The limit itself is allowed, also if it was rounded to float32 on its way.
    for L in np.random.default_rng(0).uniform(0.1, 10.0, 50):
        narrow = ONE._replace(smoothness=np.float32(L), strong_convexity=np.float32(0.1))
        assert bounds.fedavg_by_rounds(narrow, np.float32(1 / (4 * L)), 4, 10).holds


def test_it_is_one_program_for_traced_values():
    """What is traced is trusted, and compiles once."""
    traces = []

    @jax.jit
    def value(constants, eta):
        traces.append(None)
        return bounds.fedavg(constants, eta, 4, rounds=60.0)

    for eta in (0.1, 0.05, -0.1):
        value(ONE, eta)
    assert len(traces) == 1
    with pytest.raises(ValueError, match="needs known values"):
        jax.jit(lambda c: bounds.fedavg(c, 0.1, 4, rounds=60.0).violated())(ONE)


def test_nothing_to_gain_and_nothing_to_drift():
    """At the optimum, where F* = 0, the best step is none; without gradients K may grow for ever."""
    settled = ONE._replace(initial_loss=0.0, optimal_loss=0.0)
    best = bounds.optimal_learning_rate(settled, LINK, 4, 60.0)
    assert best.value == 0 and best.bound.value == 0
    assert bounds.optimal_local_steps(settled, LINK, 0.1, 60.0).value == 1
    assert bounds.best_local_steps(settled, LINK, 0.1, 60.0).value == 1
    still = ONE._replace(gradient_bound=0.0)
    for best in (
        bounds.optimal_local_steps(still, LINK, 0.1, 60.0),
        bounds.best_local_steps(still, LINK, 0.1, 60.0),
    ):
        assert np.isinf(best.value) and np.isfinite(best.bound.value)
    plan = bounds.best_plan(still, LINK, 60.0)
    assert np.isinf(plan.local_steps) and np.isfinite(plan.bound.value)
    assert plan.bound.value < bounds.best_plan(ONE, LINK, 60.0).bound.value


def test_communication_that_takes_no_time():
    """Then nothing speaks for more than one step a round."""
    fast = LINK._replace(download_mbps=np.inf, upload_mbps=np.inf)
    for constants in (ONE, ONE._replace(noise=0.0, heterogeneity=0.0)):
        assert bounds.best_local_steps(constants, fast, 0.1, 60.0).value == 1
        plan = bounds.best_plan(constants, fast, 60.0)
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
