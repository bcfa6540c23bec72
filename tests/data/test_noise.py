"""Noise on some clients, and on nobody else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo


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
    before = data.examples["x"].copy()
    noisy_data, noisy = fo.data.with_noise(data, 2.0, fraction, seed)
    np.testing.assert_array_equal(data.examples["x"], before)
    assert noisy.dtype == bool and noisy.shape == (len(sizes),)
    assert noisy.sum() == round(fraction * len(sizes))
    changed = (noisy_data.examples["x"] != before).all(axis=1)
    np.testing.assert_array_equal(changed, np.repeat(noisy, sizes))
    assert noisy_data.examples["x"].dtype == dtype
    assert noisy_data.examples["y"] is data.examples["y"]
    np.testing.assert_array_equal(noisy_data.sizes, data.sizes)
    again, _ = fo.data.with_noise(data, 2.0, fraction, seed)
    np.testing.assert_array_equal(again.examples["x"], noisy_data.examples["x"])


def test_the_noise_is_gaussian_of_that_deviation_and_independent_between_clients():
    data = federation([500] * 4, width=40)
    noisy_data, noisy = fo.data.with_noise(data, 3.0, 0.5)
    noise = (noisy_data.examples["x"] - data.examples["x"]).reshape(4, -1)[noisy]
    # 20,000 draws each: standard errors are 0.021 of the mean and 0.015 of the deviation.
    np.testing.assert_allclose(noise.mean(axis=1), 0.0, atol=0.1)
    np.testing.assert_allclose(noise.std(axis=1), 3.0, atol=0.08)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.03
    np.testing.assert_allclose((np.abs(noise) < 3.0).mean(), 0.6827, atol=0.02)


def test_seeds_choose_clients_and_noise():
    data = federation([2] * 30)
    masks = [fo.data.with_noise(data, 1.0, 0.2, seed)[1] for seed in range(5)]
    assert len({mask.tobytes() for mask in masks}) == 5
    everyone = [fo.data.with_noise(data, 1.0, 1.0, seed)[0].examples["x"] for seed in (0, 1)]
    assert (everyone[0] != everyone[1]).all()


def test_clip_bounds_the_noisy_and_leaves_the_others_alone():
    data = federation([4] * 5)
    noisy_data, noisy = fo.data.with_noise(data, 30.0, 0.4, clip=(0.0, 1.0))
    rows = np.repeat(noisy, 4)
    x = noisy_data.examples["x"]
    assert x[rows].min() == 0.0 and x[rows].max() == 1.0
    np.testing.assert_array_equal(x[~rows], data.examples["x"][~rows])


def test_no_deviation_and_no_clients_change_nothing():
    data = federation([2, 3])
    for std, fraction in ((0.0, 1.0), (3.0, 0.0)):
        same, _ = fo.data.with_noise(data, std, fraction)
        np.testing.assert_array_equal(same.examples["x"], data.examples["x"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"std": -1.0}, r"std must lie in \[0\.0, inf\), got -1\.0"),
        ({"fraction": 1.5}, r"fraction must lie in \[0\.0, 1\.0\], got 1\.5"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"key": "z"}, r"key must be .* \['x', 'y'\], got 'z'"),
        ({"key": "y"}, r"examples\['y'\] must be floating point .* got int64\. Convert"),
        ({"clip": 5}, r"clip must be \(lowest, highest\) .* got 5"),
        ({"clip": (1.0, 0.0)}, r"clip must be \(lowest, highest\) .* got \(1\.0, 0\.0\)"),
        ({"data": fo.ClientData.from_list([np.ones(2)])}, "key must be .* no names, got 'x'"),
    ],
)
def test_with_noise_refuses(change, message):
    arguments = {"data": federation([1, 2]), "std": 1.0} | change
    with pytest.raises(ValueError, match=message):
        fo.data.with_noise(**arguments)


def test_bytes_are_refused_with_advice():
    images = fo.ClientData.from_list([{"x": np.zeros((2, 3), np.uint8)}])
    with pytest.raises(ValueError, match=r"got uint8\. Convert it first"):
        fo.data.with_noise(images, 1.0)
