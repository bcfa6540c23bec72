"""Results: curves out of records, scores by hand, who wins, and the numbers of a comparison."""

import numpy as np
import pytest
import scipy.stats

from fedjax_opt.experiments import Curves, best, interval, measure, rule, score
from fedjax_opt.experiments import curves as read_curves
from fedjax_opt.experiments.results import CRITERIA, read_metric
from tests.experiments.report.samples import ROUNDS, curves, rising

E = [10, 20, 40]
TWO = [[0.2, 0.6, 0.4], [0.1, 0.3, 0.5]]
NAN = float("nan")


def given(values, label="a", metric="accuracy", **point):
    values = np.asarray(values, float)
    rounds = np.array(E[: values.shape[1]])
    return Curves(label, point, tuple(range(len(values))), rounds, {metric: values}, {})


def scores(values, criterion, metric="accuracy", **rest):
    found = given(values, metric=metric)
    return score(found, rule([found], None, criterion, **rest))


@pytest.mark.parametrize(
    ("criterion", "expected", "of_loss"),
    [
        ("best", [0.6, 0.5], [0.2, 0.1]),
        ("final", [0.4, 0.5], [0.4, 0.5]),
        ("rounds_to_target", [20, 40], [10, 10]),
        # Trapezoids of 10 and 20 rounds.
        ("mean", [(4 + 10) / 30, (2 + 8) / 30], [(4 + 10) / 30, (2 + 8) / 30]),
    ],
)
def test_scores(criterion, expected, of_loss):
    np.testing.assert_allclose(scores(TWO, criterion, target=0.45), expected, rtol=1e-12)
    np.testing.assert_allclose(scores(TWO, criterion, "loss", target=0.45), of_loss, rtol=1e-12)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_curves_are_smoothed_first(criterion):
    """s_0 = v_0, s_t = (s_{t-1} + v_t) / 2."""
    smoothed = [[0.2, 0.4, 0.4], [0.1, 0.2, 0.35]]
    np.testing.assert_allclose(
        scores(TWO, criterion, target=0.3, smoothing=0.5),
        scores(smoothed, criterion, target=0.3),
        rtol=1e-12,
    )


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_run_that_diverged_has_no_score(criterion):
    found = scores([[0.9, 0.9, NAN], [0.1, 0.3, 0.5]], criterion, target=0.1)
    assert np.isnan(found).tolist() == [True, False]


def test_a_target_may_never_be_reached():
    assert scores(TWO, "rounds_to_target", target=0.55).tolist() == [20, np.inf]


def test_one_evaluation_has_a_mean():
    assert scores([[0.3]], "mean").tolist() == [0.3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy", ("accuracy", True)), ("global_accuracy", ("global_accuracy", True)),
        ("loss", ("loss", False)), ("rmse", ("rmse", False)), ("min bleu", ("bleu", False)),
        ("max loss", ("loss", True)), ("max my metric", ("metric", None)),
    ],
)  # fmt: skip
def test_a_metric_says_which_way_is_better(text, expected):
    if expected[1] is None:
        with pytest.raises(ValueError, match="such as 'max metric'"):
            read_metric(text)
    else:
        assert read_metric(text) == expected


def test_a_metric_that_nothing_is_known_of_is_refused():
    with pytest.raises(ValueError, match="'max bleu' or 'min bleu'"):
        read_metric("bleu")
    with pytest.raises(ValueError, match="metric must be one of accuracy, got 'rmse'"):
        rule([given(TWO)], "rmse")
    with pytest.raises(ValueError, match="criterion must be one of"):
        rule([given(TWO)], None, "best_accuracy")
    with pytest.raises(ValueError, match="needs a target"):
        rule([given(TWO)], None, "rounds_to_target")


def test_accuracy_is_looked_at_where_there_is_one_else_the_loss():
    assert rule([given(TWO)]).metric == "accuracy"
    by = rule([given(TWO, metric="loss")])
    assert (by.metric, by.maximise) == ("loss", False)


def test_the_point_with_the_smallest_loss_wins():
    points = [
        given([[3.0, value]], metric="loss", learning_rate=value) for value in (2.0, 1.0, 2.5)
    ]
    assert best(points, rule(points))[0].hyperparameters == {"learning_rate": 1.0}


def test_a_point_that_lacks_a_seed_or_an_evaluation_never_wins():
    points = [given([[0.9]]), given([[0.5, 0.6]], rate=1), given([[0.9, NAN]], rate=2)]
    assert best(points, rule(points))[0].hyperparameters == {"rate": 1}


def test_where_no_point_finished_the_first_is_taken():
    points = [given([[NAN, NAN]], rate=1), given([[0.9, NAN]], rate=2)]
    assert best(points, rule(points))[0].hyperparameters == {"rate": 1}


def test_where_nobody_reached_the_target_the_best_value_decides():
    points = [given([[0.1, 0.2]], rate=1), given([[0.1, 0.3]], rate=2)]
    by = rule(points, None, "rounds_to_target", target=0.9)
    assert best(points, by)[0].hyperparameters == {"rate": 2}


def test_records_become_curves():
    records = [
        {"label": "a", "hyperparameters": {"x": x}, "seed": s, "round": r, "loss": x * r + s}
        for x in (1, 2) for s in (3, 4) for r in (10, 20) if (x, s, r) != (2, 4, 20)
    ]  # fmt: skip
    records.append(
        {"label": "a", "hyperparameters": {"x": 2}, "seed": 4, "round": 12, "diverged": "why"}
    )
    first, second = read_curves(records)
    assert first.values("loss").tolist() == [[13, 23], [14, 24]] and first.seeds == (3, 4)
    assert second.diverged == {4: 12} and np.isnan(second.values("loss")[1, 1])
    assert np.isnan(second.values("accuracy")).all()


@pytest.mark.parametrize("n", [2, 3, 10])
def test_intervals_are_student_s(n):
    values = np.random.default_rng(n).normal(size=n)
    low, high = scipy.stats.t.interval(0.9, n - 1, values.mean(), scipy.stats.sem(values))
    mean, half = interval(values, 0.9)
    np.testing.assert_allclose((mean - half, mean + half), (low, high), rtol=1e-9)
    assert np.isnan(interval(values[:1]).half_width)


# --- a comparison -------------------------------------------------------------------------------------


def compared(*found, **options):
    baseline = options.pop("baseline", None)
    return measure(found, rule(found, **options), baseline)


def test_the_best_mean_with_student_s_interval():
    accuracy = np.zeros((3, 10))
    accuracy[:, 4] = 0.5, 0.6, 0.7
    accuracy[:, 5] = 0.1, 0.2, 0.9  # a higher seed in a lower mean
    row = compared(curves(accuracy=accuracy)).rows[0]
    assert row.best == pytest.approx(0.6)
    # t of 95% with two degrees of freedom, from any table, times 0.1 / sqrt(3).
    assert row.half_width == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert row.to_best["rounds"] == 50 and row.to_best["bytes_up"] == 2e6 * 50


def test_costs_to_match_and_factors():
    slow = np.minimum(ROUNDS / 200, 0.4)  # 0.4 at round 80
    fast = np.minimum(ROUNDS / 100, 0.6)  # 0.4 at round 40
    found = compared(curves(accuracy=[slow]), curves("Fast", accuracy=[fast], price=3.0))
    assert (found.baseline, found.target) == ("FedAvg", 0.4)
    assert found.goal == "match FedAvg at 40.0%"
    own, other = found.rows
    assert own.to_match["rounds"] == 80 and set(own.factors.values()) == {1.0}
    assert other.to_match["rounds"] == 40 and other.to_match["bytes_up"] == 6e6 * 40
    assert other.factors["rounds"] == 0.5
    assert other.factors["bytes_up"] == other.factors["flops"] == other.factors["seconds"] == 1.5
    assert other.factors["bytes"] == 1.0


def test_who_never_matches_has_no_cost():
    found = compared(curves(), curves("Weak", best=0.3))
    assert found.rows[1].to_match == found.rows[1].factors == {}


def test_a_target_of_one_s_own():
    found = compared(curves(), curves("Weak", best=0.1), target=0.3)
    assert (found.target, found.goal) == (0.3, "reach 30.0%")
    first = ROUNDS[np.argmax(rising(0.6)[1] >= 0.3)]
    assert found.rows[0].to_match["rounds"] == first and found.rows[1].to_match == {}


def test_the_baseline():
    two = [curves("FedProx"), curves("fedavg")]
    assert compared(*two).baseline == "fedavg"
    assert compared(two[0]).baseline == "FedProx"
    assert compared(*two, baseline="FedProx").baseline == "FedProx"
    with pytest.raises(ValueError, match="baseline must be one of"):
        compared(*two, baseline="b")
    with pytest.raises(ValueError, match="a label of its own"):
        compared(two[0], two[0])


def test_a_baseline_that_has_no_value():
    found = compared(curves(accuracy=np.full((3, 10), NAN)), curves("FedACG"))
    assert np.isnan([found.target, found.rows[0].best, found.rows[0].half_width]).all()
    assert all(row.to_match == {} for row in found.rows)
    assert found.goal == "match FedAvg, which has no value"


def test_a_seed_that_diverged_keeps_its_last_value():
    accuracy = rising(0.6, seeds=2)
    accuracy[1, 5:] = NAN
    row = compared(curves(accuracy=accuracy, diverged={1: 55})).rows[0]
    assert row.values[1, 5:].tolist() == [accuracy[1, 4]] * 5
    assert row.ends == [(4, accuracy[1, 4])] and row.troubles == ["seed 1 diverged in round 55"]


def test_a_seed_that_was_not_finished_counts_as_far_as_it_goes():
    accuracy = rising(0.6, seeds=2)
    accuracy[1, 5:] = NAN
    row = compared(curves(accuracy=accuracy)).rows[0]
    assert np.isnan(row.bands["accuracy"].mean).tolist() == [False] * 5 + [True] * 5
    assert "after round 50" in row.troubles[0]


def test_less_is_better_of_a_loss():
    losses = 1 - rising(0.6)
    found = [
        Curves(label, {}, (0, 1, 2), ROUNDS, {"loss": losses - shift}, {})
        for label, shift in (("FedAvg", 0.0), ("b", 0.2))
    ]
    first, second = compared(*found).rows
    assert first.best == pytest.approx(losses[1].min()) and second.lead.mean == pytest.approx(-0.2)
    assert second.to_match["rounds"] < first.to_match["rounds"]
