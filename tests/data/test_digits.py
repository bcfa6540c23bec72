"""The digits that come with the package."""

import numpy as np
import pytest

from fedjax_opt.data.digits import load_digits


def sorted_rows(*sets):
    """All examples of the sets with their labels, in an order that forgets the split."""
    rows = np.concatenate([np.column_stack([s["y"], s["x"]]) for s in sets])
    return rows[np.lexsort(rows.T)]


def test_shapes_types_and_range():
    for data in load_digits():
        assert data["x"].dtype == np.float32 and data["y"].dtype == np.int32
        assert data["x"].shape == (len(data["y"]), 64)
        assert data["x"].min() == 0.0 and data["x"].max() == 1.0


@pytest.mark.parametrize("test_fraction", [1e-9, 0.2, 0.5, 1 - 1e-9])
def test_both_sets_together_are_the_whole_data(test_fraction):
    train, test = load_digits(test_fraction, seed=5)
    assert len(train["y"]) + len(test["y"]) == 1797
    assert set(train["y"]) == set(test["y"]) == set(range(10))
    np.testing.assert_array_equal(sorted_rows(train, test), sorted_rows(*load_digits()))


def test_digits_keep_their_proportions():
    train, test = load_digits(0.2)
    in_test = np.bincount(test["y"])
    all_digits = in_test + np.bincount(train["y"])
    np.testing.assert_array_equal(all_digits, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert np.abs(in_test - 0.2 * all_digits).max() <= 0.5


def test_split_is_seeded_and_shuffled():
    (first, _), (again, _), (other, _) = load_digits(), load_digits(), load_digits(seed=1)
    np.testing.assert_array_equal(first["x"], again["x"])
    assert (first["y"] != other["y"]).any()
    assert (np.diff(first["y"]) < 0).any()


def test_pixels_identify_the_digit():
    # Nearest neighbours reach 98% on these images; a wrong pairing of labels would reach 10%.
    train, test = load_digits()
    distances = (
        (test["x"] ** 2).sum(1)[:, None] - 2 * test["x"] @ train["x"].T + (train["x"] ** 2).sum(1)
    )
    assert (train["y"][distances.argmin(1)] == test["y"]).mean() > 0.95


@pytest.mark.parametrize("test_fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_bad_fraction_is_named(test_fraction):
    with pytest.raises(ValueError, match=f"test_fraction must .* got {test_fraction}"):
        load_digits(test_fraction)


@pytest.mark.parametrize("seed", [-1, 0.5, True])
def test_bad_seed_is_named(seed):
    with pytest.raises(ValueError, match=f"seed must .* got {seed}"):
        load_digits(seed=seed)
