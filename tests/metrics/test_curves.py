"""Reading curves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo

CURVES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(CURVES, st.floats(0.0, 0.99))
def test_smooth_is_the_weighted_sum_that_its_recursion_unrolls_to(values, decay):
    smoothed = fo.metrics.smooth(values, decay)
    for t in range(len(values)):
        weights = (1 - decay) * decay ** np.arange(t, -1, -1.0)
        weights[0] = decay**t
        np.testing.assert_allclose(smoothed[t], weights @ values[: t + 1], rtol=1e-9, atol=1e-6)
    assert min(values) - 1e-6 <= smoothed.min() and smoothed.max() <= max(values) + 1e-6


def test_smooth_leaves_its_input_alone_and_takes_integers():
    values = np.array([0, 10])
    assert fo.metrics.smooth(values, 0.75).tolist() == [0.0, 2.5]
    assert values.tolist() == [0, 10]
    assert fo.metrics.smooth([3.0, 1.0, 2.0], decay=0.0).tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_smooth_refuses(decay):
    with pytest.raises(ValueError, match=r"decay must lie in \[0\.0, 1\.0\)"):
        fo.metrics.smooth([1.0], decay)


@given(CURVES, st.floats(-1e6, 1e6), st.booleans())
def test_rounds_to_target_is_the_first_that_reaches_it(values, target, maximise):
    rounds = [10 * (i + 1) for i in range(len(values))]
    reached = [
        t for t, v in zip(rounds, values, strict=True) if (v >= target if maximise else v <= target)
    ]
    found = fo.metrics.rounds_to_target(rounds, values, target, maximise)
    assert found == (reached[0] if reached else None)
    assert found is None or isinstance(found, int)


def test_a_target_is_reached_when_it_is_met_and_nan_never_meets_it():
    assert fo.metrics.rounds_to_target([1, 2, 3], [float("nan"), 0.5, 0.9], 0.5) == 2
    assert fo.metrics.rounds_to_target([1, 2], [float("nan")] * 2, 0.5, maximise=False) is None


def test_last_mean_is_over_rounds_and_not_over_measurements():
    rounds, values = [50, 150, 250, 260], [0.1, 0.2, 0.4, 0.6]
    assert fo.metrics.last_mean(rounds, values, count=10) == 0.6
    assert fo.metrics.last_mean(rounds, values, count=11) == 0.5
    np.testing.assert_allclose(fo.metrics.last_mean(rounds, values), 0.5)
    np.testing.assert_allclose(fo.metrics.last_mean(rounds, values, 1000), np.mean(values))
    assert fo.metrics.last_mean([1, 2, 3], [0.5, np.nan, 0.7], 2) == 0.7
    assert np.isnan(fo.metrics.last_mean([1, 2], [0.5, np.nan], 1))


def test_runs_diverge_where_the_loss_is_not_finite_or_has_risen():
    fell, rose, slightly = [2.0, 3.0, 1.0], [2.0, 1.0, 4.1], [2.0, 9.0, 3.9]
    lost, endless = [2.0, np.nan, np.nan], [2.0, np.inf, 1.0]
    assert fo.metrics.share_diverged([fell, slightly]) == 0
    assert fo.metrics.share_diverged([fell, rose, lost, endless]) == 0.75
    assert fo.metrics.share_diverged([fell, slightly], rise=1.5) == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fo.metrics.last_mean([1, 2], [0.5]), r"must be \[T\] with T >= 1, got shapes"),
        (lambda: fo.metrics.last_mean([], []), r"must be \[T\] with T >= 1"),
        (lambda: fo.metrics.last_mean([1], [0.5], 0), "count must be a whole number .* got 0"),
        (lambda: fo.metrics.share_diverged([1.0, 2.0]), r"losses must be \[runs, T\]"),
        (lambda: fo.metrics.share_diverged([[1.0]], rise=0.5), r"rise must lie in \[1\.0"),
    ],
)
def test_the_last_rounds_and_divergence_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
