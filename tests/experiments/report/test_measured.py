"""Means over seeds, and what becomes of seeds that failed or are missing."""

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments.report import per_round
from fedjax_opt.experiments.report.measured import measure
from tests.experiments.report.samples import ROUNDS, curves, rising


def test_bands_are_over_seeds():
    accuracy = rising(0.6)
    found = measure(curves(accuracy=accuracy, loss=1 - accuracy))
    np.testing.assert_allclose(found.bands["accuracy"].mean, accuracy[1])
    np.testing.assert_array_equal(found.bands["accuracy"].low, accuracy[0])
    np.testing.assert_array_equal(found.bands["loss"].high, 1 - accuracy[0])
    assert (found.troubles, found.ends) == ([], [])


def test_costs_are_cumulative():
    spent = measure(curves()).spent
    np.testing.assert_array_equal(spent["bytes_up"], 2e6 * ROUNDS)
    np.testing.assert_array_equal(spent["bytes"], 4e6 * ROUNDS)
    np.testing.assert_array_equal(spent["seconds"], 40.0 * ROUNDS)
    assert measure(curves(costs=None)).spent.keys() == {"rounds"}
    assert "bytes" not in measure(curves(costs=per_round(ROUNDS, bytes_up=1.0))).spent


def test_costs_of_each_seed_are_averaged():
    seconds = np.outer([1.0, 2.0, 6.0], ROUNDS)
    spent = measure(curves(costs=fo.costs.Spent(ROUNDS, seconds=seconds))).spent
    np.testing.assert_allclose(spent["seconds"], 3.0 * ROUNDS)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_seed_whose_loss_is_not_finite_keeps_its_accuracy_and_is_named(broken):
    accuracy, loss = rising(0.6), 1 - rising(0.6)
    loss[2, 6:] = broken
    held = accuracy.copy()
    held[2, 6:] = held[2, 5]
    accuracy[2, 6:] = 0.1  # what a model of NaN guesses
    found = measure(curves(accuracy=accuracy, loss=loss))
    np.testing.assert_allclose(found.bands["accuracy"].mean, held.mean(axis=0))
    assert np.isnan(found.bands["loss"].mean[6:]).all()
    assert np.isfinite(found.bands["loss"].mean[:6]).all()
    assert found.troubles == ["seed 2 diverged by round 70"]
    assert found.ends == [(5, held[2, 5])]


def test_divergence_that_the_curves_do_not_show():
    """A run keeps its last good model, whose accuracy is what counts."""
    found = measure(curves(diverged={1: 33}))
    np.testing.assert_array_equal(found.accuracy, rising(0.6))
    assert found.troubles == ["seed 1 diverged in round 33"]
    assert found.ends == [(2, rising(0.6)[1, 2])]


def test_a_gap_is_no_divergence():
    accuracy = rising(0.6)
    accuracy[0, 3] = np.nan
    found = measure(curves(accuracy=accuracy))
    assert np.flatnonzero(np.isnan(found.bands["accuracy"].mean)).tolist() == [3]
    assert found.troubles == []


def test_rows_of_unequal_length():
    rows = [row[: 10 - 4 * i] for i, row in enumerate(rising(0.6))]
    found = measure(curves(accuracy=rows))
    assert np.flatnonzero(np.isfinite(found.bands["accuracy"].mean)).tolist() == [0, 1]
    assert found.troubles == [
        "seed 1 was not finished: it ends at round 60",
        "seed 2 was not finished: it ends at round 20",
    ]


def test_seeds_without_any_value_are_not_counted():
    accuracy = rising(0.6)
    diverged_at_once = accuracy.copy()
    diverged_at_once[1] = np.nan
    found = measure(curves(accuracy=diverged_at_once))
    np.testing.assert_allclose(found.bands["accuracy"].mean, accuracy[[0, 2]].mean(axis=0))
    assert found.troubles == ["seed 1 diverged by round 10"] and found.ends == []
    never_begun = measure(curves(accuracy=[accuracy[0], []]))
    assert never_begun.troubles == ["seed 1 has no value, and is not counted"]
    nothing = measure(curves(accuracy=np.full((2, 10), np.nan)))
    assert np.isnan(nothing.bands["accuracy"].mean).all() and len(nothing.troubles) == 2


def test_a_seed_whose_accuracy_begins_after_its_loss_has_ended():
    accuracy, loss = rising(0.6, seeds=1), rising(0.6, seeds=1)
    accuracy[0, :5] = np.nan
    loss[0, 2:] = np.nan
    found = measure(curves(accuracy=accuracy, loss=loss))
    assert np.isnan(found.bands["accuracy"].mean).all()
    assert found.troubles == ["seed 0 diverged by round 30"]


def test_smoothing_is_of_each_seed():
    accuracy = rising(0.6)
    found = measure(curves(accuracy=accuracy), smoothing=0.9)
    expected = np.stack([fo.metrics.smooth(row, 0.9) for row in accuracy])
    np.testing.assert_allclose(found.accuracy, expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": ()}, "seeds in the curves of 'FedAvg' must be one or more"),
        ({"seeds": (0, 1, 1)}, "each once"),
        ({"seeds": (0, 1)}, "for each of 2 seeds, got shapes"),
        ({"accuracy": rising(0.6)[0]}, "accuracy in the curves of 'FedAvg' must be a row"),
        ({"accuracy": 100 * rising(0.6)}, r"must lie in \[0, 1\], got"),
        ({"loss": np.ones((3, 11))}, "loss in the curves of 'FedAvg' must be a row of at most 10"),
        ({"extra": {"a b": np.ones((3, 10))}}, "named by letters, digits and _"),
        ({"extra": {"accuracy_rounds": np.ones((3, 10))}}, "neither loss nor"),
        ({"diverged": {7: 10}}, r"must name seeds among \(0, 1, 2\), got \[7\]"),
        ({"costs": fo.costs.Spent(ROUNDS, flops=np.ones(3))}, r"costs.flops .* got shape \[3\]"),
        ({"costs": fo.costs.Spent(ROUNDS, flops=-ROUNDS)}, "never falling"),
        ({"costs": fo.costs.Spent(ROUNDS, flops=ROUNDS * np.nan)}, "finite"),
    ],
)
def test_wrong_curves_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        measure(curves(**({"seeds": (0, 1, 2)} | change)))


@pytest.mark.parametrize("rounds", [[], [3, 3], [-1, 2], [[1, 2]]])
def test_wrong_rounds_are_refused(rounds):
    with pytest.raises(ValueError, match="must be increasing"):
        measure(curves()._replace(round=rounds))


def test_prices_are_checked():
    with pytest.raises(ValueError, match="bytes_up must lie in"):
        per_round([1, 2], bytes_up=-1.0)
