"""The numbers of the table."""

import numpy as np
import pytest

from fedjax_opt.experiments.report import About, compare, per_round
from tests.experiments.report.samples import ROUNDS, curves, rising

ABOUT = About("A comparison")


def test_best_accuracy_is_that_of_the_mean_with_student_s_interval():
    accuracy = np.zeros((3, 10))
    accuracy[:, 4] = 0.5, 0.6, 0.7
    accuracy[:, 5] = 0.1, 0.2, 0.9  # a higher seed in a lower mean
    row = compare(ABOUT, [curves(accuracy=accuracy)]).rows[0]
    assert row.best == pytest.approx(0.6)
    # t of 95% with two degrees of freedom, from any table, times 0.1 / sqrt(3).
    assert row.half_width == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert row.to_best["rounds"] == 50 and row.to_best["bytes_up"] == 2e6 * 50


def test_costs_to_match_and_factors():
    slow = np.minimum(ROUNDS / 200, 0.4)  # 0.4 at round 80
    fast = np.minimum(ROUNDS / 100, 0.6)  # 0.4 at round 40
    found = compare(
        ABOUT,
        [curves(accuracy=[slow]), curves("Fast", accuracy=[fast], price=3.0)],
    )
    assert (found.baseline, found.target) == ("FedAvg", 0.4)
    assert found.goal == "match FedAvg at 40.0%"
    own, other = found.rows
    assert own.to_match["rounds"] == 80 and set(own.factors.values()) == {1.0}
    assert other.to_match["rounds"] == 40 and other.to_match["bytes_up"] == 6e6 * 40
    assert other.factors["rounds"] == 0.5
    assert other.factors["bytes_up"] == other.factors["flops"] == other.factors["seconds"] == 1.5
    assert other.factors["bytes"] == 1.0


def test_who_never_matches_has_no_cost():
    found = compare(ABOUT, [curves(), curves("Weak", best=0.3)])
    assert found.rows[1].to_match == found.rows[1].factors == {}


def test_a_target_of_one_s_own():
    found = compare(ABOUT._replace(target=0.3), [curves(), curves("Weak", best=0.1)])
    assert (found.target, found.goal) == (0.3, "reach 30.0%")
    first = ROUNDS[np.argmax(rising(0.6)[1] >= 0.3)]
    assert found.rows[0].to_match["rounds"] == first and found.rows[1].to_match == {}


def test_the_baseline():
    two = [curves("FedProx"), curves("fedavg")]
    assert compare(ABOUT, two).baseline == "fedavg"
    assert compare(ABOUT, two[:1]).baseline == "FedProx"
    assert compare(ABOUT._replace(baseline="FedProx"), two).baseline == "FedProx"


def test_prices_that_only_some_have():
    found = compare(
        ABOUT, [curves(costs=per_round(ROUNDS, bytes_up=1.0)), curves("Priced", best=0.7)]
    )
    assert found.rows[1].factors.keys() == {"rounds", "bytes_up"}


def test_a_baseline_that_has_no_value():
    found = compare(ABOUT, [curves(accuracy=np.full((3, 10), np.nan)), curves("FedACG")])
    assert (
        np.isnan(found.target)
        and np.isnan(found.rows[0].best)
        and np.isnan(found.rows[0].half_width)
    )
    assert all(row.to_match == {} for row in found.rows)
    assert found.goal == "match FedAvg, which has no value"


def test_one_seed_has_no_interval():
    assert np.isnan(compare(ABOUT, [curves(accuracy=rising(0.6, seeds=1))]).rows[0].half_width)


@pytest.mark.parametrize(
    ("about", "labels", "words"),
    [
        (ABOUT, [], "curves must be one or more"),
        (ABOUT, ["a", "a"], "a label of its own"),
        (ABOUT, [""], "a label of its own"),
        (ABOUT._replace(baseline="b"), ["a"], "baseline must be one of 'a', got 'b'"),
        (ABOUT._replace(target=60.0), ["a"], r"target must lie in \[0.0, 1.0\], got 60.0"),
        (ABOUT._replace(smoothing=1.0), ["a"], "decay must lie in"),
    ],
)
def test_wrong_comparisons_are_refused(about, labels, words):
    with pytest.raises(ValueError, match=words):
        compare(about, [curves(label) for label in labels])
