"""Wrong labels and noise: on the clients that are drawn, and on nobody else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt.data import with_flipped_labels, with_noise


def federation(sizes, dtype=np.float64, width=3):
    """Clients whose inputs name their client and row, so that a mix-up would show."""
    return fo.ClientData.from_list(
        [
            {"x": np.arange(n * width, dtype=dtype).reshape(n, width) + i, "y": np.full(n, i)}
            for i, n in enumerate(sizes)
        ]
    )


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=20),
    st.floats(0.0, 1.0),
    st.integers(0, 2**32),
    st.sampled_from([np.float32, np.float64]),
)
def test_only_the_chosen_clients_change(sizes, fraction, seed, dtype):
    data = federation(sizes, dtype)
    x, y = data.examples["x"].copy(), data.examples["y"].copy()
    noisy, who = with_noise(data, 2.0, fraction, seed)
    flipped, attackers = with_flipped_labels(data, len(sizes) + 1, fraction, seed)
    np.testing.assert_array_equal(data.examples["x"], x)
    np.testing.assert_array_equal(data.examples["y"], y)
    np.testing.assert_array_equal(who, attackers)
    assert who.dtype == bool and who.shape == (len(sizes),)
    assert who.sum() == round(fraction * len(sizes))
    rows = np.repeat(who, sizes)
    np.testing.assert_array_equal((noisy.examples["x"] != x).all(axis=1), rows)
    np.testing.assert_array_equal(flipped.examples["y"], np.where(rows, len(sizes) - y, y))
    assert noisy.examples["x"].dtype == dtype and flipped.examples["y"].dtype == y.dtype
    assert noisy.examples["y"] is data.examples["y"] and flipped.examples["x"] is data.examples["x"]
    np.testing.assert_array_equal(noisy.sizes, data.sizes)
    again = with_noise(data, 2.0, fraction, seed)[0].examples["x"]
    np.testing.assert_array_equal(again, noisy.examples["x"])


def test_the_noise_is_gaussian_of_that_deviation_and_independent_between_clients():
    data = federation([500] * 4, width=40)
    noisy_data, noisy = with_noise(data, 3.0, 0.5)
    noise = (noisy_data.examples["x"] - data.examples["x"]).reshape(4, -1)[noisy]
    # 20,000 draws each: standard errors are 0.021 of the mean and 0.015 of the deviation.
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.1)
    np.testing.assert_allclose(noise.std(axis=1), 3.0, atol=0.08)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.03
    np.testing.assert_allclose((np.abs(noise) < 3.0).mean(), 0.6827, atol=0.02)


def test_seeds_choose_clients_and_noise():
    data = federation([2] * 30)
    masks = [with_noise(data, 1.0, 0.2, seed)[1] for seed in range(5)]
    assert len({mask.tobytes() for mask in masks}) == 5
    everyone = [with_noise(data, 1.0, 1.0, seed)[0].examples["x"] for seed in (0, 1)]
    assert (everyone[0] != everyone[1]).all()


def test_clip_bounds_the_noisy_and_leaves_the_others_alone():
    data = federation([4] * 5)
    noisy_data, noisy = with_noise(data, 30.0, 0.4, clip=(0.0, 1.0))
    rows, x = np.repeat(noisy, 4), noisy_data.examples["x"]
    assert x[rows].min() == 0.0 and x[rows].max() == 1.0
    np.testing.assert_array_equal(x[~rows], data.examples["x"][~rows])
    for std, fraction in ((0.0, 1.0), (3.0, 0.0)):
        same, _ = with_noise(data, std, fraction)
        np.testing.assert_array_equal(same.examples["x"], data.examples["x"])


GOOD = {
    with_noise: {"data": federation([1, 2]), "std": 1.0},
    with_flipped_labels: {"data": federation([1, 2, 1, 1]), "num_classes": 7},
}
NAMELESS = fo.ClientData.from_list([np.ones(2)])


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        *(
            (function, change, message)
            for function in GOOD
            for change, message in [
                ({"fraction": 1.5}, r"fraction must lie in \[0\.0, 1\.0\], got 1\.5"),
                ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
                ({"key": "z"}, r"key must be the name of an array .* \['x', 'y'\], got 'z'"),
                ({"data": NAMELESS}, "key must be .* no names, got '[xy]'"),
            ]
        ),
        (with_noise, {"std": -1.0}, r"std must lie in \[0\.0, inf\), got -1\.0"),
        (with_noise, {"key": "y"}, r"examples\['y'\] must be floating .* got int64\. Convert it"),
        (with_noise, {"clip": 5}, r"clip must be \(lowest, highest\) .* got 5"),
        (with_noise, {"clip": (1, 0)}, r"clip must be \(lowest, highest\) .* got \(1, 0\)"),
        (with_flipped_labels, {"num_classes": 1}, "num_classes must be .* at least 2, got 1"),
        (with_flipped_labels, {"num_classes": 3}, r"examples\['y'\] must lie in \[0, 2\], got .*3"),
        (with_flipped_labels, {"key": "x"}, r"examples\['x'\] must hold whole .* got float64"),
    ],
)
def test_refused(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(**GOOD[function] | change)
