"""Who wins: scores by hand, and intervals by SciPy."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedjax_opt.experiments import criteria
from fedjax_opt.experiments.criteria import interval, score, student_t, winner

ROUNDS = [10, 20, 40]
CURVES = [[0.2, 0.6, 0.4], [0.1, 0.3, 0.5]]
NAN = float("nan")


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ("best_accuracy", [0.6, 0.5]),
        ("final_accuracy", [0.4, 0.5]),
        ("rounds_to_target", [20, 40]),
        # Trapezoids of 10 and 20 rounds.
        ("area_under_curve", [(4 + 10) / 30, (2 + 8) / 30]),
    ],
)
def test_scores_without_smoothing(criterion, expected):
    found = score(criterion, ROUNDS, CURVES, target=0.45, decay=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("criterion", criteria.CRITERIA)
def test_curves_are_smoothed_first(criterion):
    """s_0 = v_0, s_t = (s_{t-1} + v_t) / 2."""
    smoothed = [[0.2, 0.4, 0.4], [0.1, 0.2, 0.35]]
    np.testing.assert_allclose(
        score(criterion, ROUNDS, CURVES, target=0.3, decay=0.5),
        score(criterion, ROUNDS, smoothed, target=0.3, decay=0.0),
        rtol=1e-12,
    )


def test_the_default_is_the_average_of_fedacg():
    assert criteria.final_accuracy([[0.0, 1.0]]).tolist() == pytest.approx([0.1])


def test_a_target_may_never_be_reached():
    assert criteria.rounds_to_target(ROUNDS, CURVES, 0.55, decay=0.0).tolist() == [20, np.inf]


def test_one_evaluation_has_an_area():
    assert criteria.area_under_curve([10], [[0.3]]).tolist() == [0.3]


@pytest.mark.parametrize("criterion", criteria.CRITERIA)
def test_a_run_that_diverged_has_no_score(criterion):
    curves = [[0.9, 0.9, NAN], [0.1, 0.3, 0.5]]
    assert np.isnan(score(criterion, ROUNDS, curves, target=0.1)).tolist() == [True, False]


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [("best_accuracy", 1), ("final_accuracy", 2), ("rounds_to_target", 1), ("area_under_curve", 0)],
)
def test_winners(criterion, expected):
    candidates = [[[0.5, 0.5, 0.5]], [[0.0, 0.7, 0.2]], [[0.0, 0.0, 0.6]]]
    assert winner(ROUNDS, candidates, criterion, target=0.55, decay=0.0) == expected


def test_the_mean_over_seeds_wins():
    candidates = [[[0.9], [0.1]], [[0.6], [0.6]], [[0.7], [NAN]]]
    assert winner([10], candidates) == 1


def test_equal_scores_go_by_accuracy_and_then_by_order():
    nobody = [[[0.1, 0.2, 0.2]], [[0.1, 0.3, 0.1]], [[0.3, 0.1, 0.1]]]
    assert winner(ROUNDS, nobody, "rounds_to_target", target=0.9, decay=0.0) == 1


def test_nobody_wins_where_all_diverged():
    with pytest.raises(
        ValueError, match=r"None of the 2 candidates has finished .* learning rates"
    ):
        winner([10], [[[NAN]], [[0.3], [NAN]]])


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9, 0.95, 0.99, 0.999999])
@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 30, 999, 1000, 30001])
def test_quantiles_are_those_of_scipy(level, freedom):
    expected = scipy.stats.t.ppf((1 + level) / 2, freedom)
    assert student_t(level, freedom) == pytest.approx(expected, rel=1e-8)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30),
    st.floats(0.01, 0.999),
)
def test_intervals_are_those_of_scipy(values, level):
    mean, half_width = interval(values, level)
    assert mean == pytest.approx(np.mean(values), rel=1e-12)
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    quantile = scipy.stats.t.ppf((1 + level) / 2, len(values) - 1)
    assert half_width == pytest.approx(quantile * error, rel=1e-8, abs=1e-300)


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    found = [interval(values) for values in rng.normal(size=(4000, 3))]
    share = np.mean([abs(mean) <= half_width for mean, half_width in found])
    assert abs(share - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)


def test_a_single_value_has_no_interval():
    found = interval([0.7])
    assert found.mean == 0.7 and np.isnan(found.half_width)
    never = interval([20.0, np.inf])
    assert never.mean == np.inf and np.isnan(never.half_width)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: score("best", ROUNDS, CURVES),
            "criterion must be one of 'best_accuracy', .*'best'",
        ),
        (lambda: score("rounds_to_target", ROUNDS, CURVES), "target must be given"),
        (lambda: criteria.best_accuracy([0.1, 0.2]), r"curves must be .*\[seeds, E\], got shape"),
        (lambda: criteria.best_accuracy(np.zeros((0, 3))), r"curves must be .*got shape \(0, 3\)"),
        (lambda: criteria.best_accuracy(CURVES, decay=1.0), r"decay must lie in \[0.0, 1.0\)"),
        (lambda: criteria.area_under_curve([1, 2], CURVES), "rounds must be 3 rising numbers"),
        (lambda: criteria.area_under_curve([1, 3, 2], CURVES), "rounds must be 3 rising numbers"),
        (lambda: winner(ROUNDS, []), "candidates must hold at least one"),
        (lambda: interval([]), "values must be a list of at least one number"),
        (lambda: interval([[0.1]]), "values must be a list of at least one number"),
        (lambda: interval([0.1, 0.2], 1.0), r"level must lie in \(0.0, 1.0\)"),
        (lambda: student_t(0.9, 0), "freedom must be .*at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
