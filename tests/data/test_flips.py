"""Labels that are turned around."""

import numpy as np
import pytest

import fedjax_opt as fo

RNG = np.random.default_rng(0)
DATA = fo.ClientData.from_list(
    [{"x": RNG.normal(size=(n, 2)), "y": RNG.integers(7, size=n)} for n in (3, 5, 1, 4, 6)]
)


def test_some_clients_are_flipped_and_the_others_are_not():
    """Twice is never, and who attacks depends on the seed alone."""
    data, flipped = fo.data.with_flipped_labels(DATA, 7, fraction=0.4, seed=3)
    assert flipped.sum() == 2
    for i in range(5):
        expected = 6 - DATA[i]["y"] if flipped[i] else DATA[i]["y"]
        np.testing.assert_array_equal(data[i]["y"], expected)
        assert data[i]["y"].dtype == DATA[i]["y"].dtype
    assert data.examples["x"] is DATA.examples["x"]
    back, again = fo.data.with_flipped_labels(data, 7, fraction=0.4, seed=3)
    np.testing.assert_array_equal(again, flipped)
    np.testing.assert_array_equal(back.examples["y"], DATA.examples["y"])
    seeds = {tuple(fo.data.with_flipped_labels(DATA, 7, 0.4, seed)[1]) for seed in range(20)}
    assert len(seeds) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "num_classes must be a whole number of at least 2, got 1"),
        ({"num_classes": 4}, r"examples\['y'\] must lie in \[0, 3\], got 0 to 6"),
        ({"fraction": 1.5}, "fraction must lie in"),
        ({"key": "z"}, r"key must be the name of an array of examples, \['x', 'y'\], got 'z'"),
        ({"key": "x"}, r"examples\['x'\] must hold whole numbers, got float64"),
    ],
)
def test_what_cannot_be_flipped_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fo.data.with_flipped_labels(DATA, **{"num_classes": 7} | options)
