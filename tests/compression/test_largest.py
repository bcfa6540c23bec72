"""The entries of largest magnitude, against a sort; reductions of long vectors, against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedjax_opt.compression.codecs import kept_count
from fedjax_opt.compression.largest import _COUNTED_IN_16_BITS, count_true, folded, largest

compiled = jax.jit(largest)
LENGTH = 300  # one shape: one program for all examples


def by_sorting(values, count):
    """Marks of the `count` largest magnitudes, the first of equal ones, NaN above all."""
    magnitudes = np.where(np.isnan(values), np.inf, np.abs(values).astype(np.float64))
    order = np.lexsort((np.arange(values.size), -magnitudes, ~np.isnan(values)))
    marks = np.zeros(values.size, bool)
    marks[order[:count]] = True
    return marks


FEW = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e-300, -1e-45, np.inf, -np.inf, np.nan])
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, jnp.bfloat16])
@given(
    values=hnp.arrays(np.float32, LENGTH, elements=st.one_of(FEW, ANY).map(np.float32)),
    count=st.integers(0, LENGTH + 2),
)
def test_like_a_sort(dtype, values, count):
    values = np.asarray(jnp.asarray(values).astype(dtype))
    marks = compiled((jnp.asarray(values),), count)[0]
    np.testing.assert_array_equal(marks, by_sorting(values.astype(np.float64), count))


@given(
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0]), min_size=9, max_size=9),
    st.integers(1, 9),
)
def test_several_arrays_are_one(values, count):
    values = np.array(values)
    marks = compiled((jnp.asarray(values[:4]), jnp.zeros(0), jnp.asarray(values[4:])), count)
    np.testing.assert_array_equal(np.concatenate(marks), by_sorting(values, count))


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "ties", "sorted", "one value"])
def test_many_entries(kind):
    rng, size = np.random.default_rng(0), 20_011
    values = {
        "normal": rng.normal(size=size),
        "heavy tails": rng.standard_cauchy(size) ** 3,
        "ties": rng.integers(-4, 5, size).astype(float),
        # What a sample sees last is largest, and a whole stride of entries is 0.
        "sorted": np.where(np.arange(size) % 8 == 0, 0, np.arange(size) / 7.0),
        "one value": np.full(size, 2.0),
    }[kind].astype(np.float32)
    for count in (1, 7, size // 20, size // 2, size - 1, size):
        marks = compiled((jnp.asarray(values),), count)[0]
        np.testing.assert_array_equal(marks, by_sorting(values, count))


def test_clients_do_not_meet():
    """Under `vmap` the searches share a loop: each has its own count, and its own ties or none."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 700)).astype(np.float32)
    values[1] = np.round(values[1])
    values[2] = 0
    counts = jnp.array([70, 71, 350, 700], jnp.int32)
    (marks,) = jax.jit(jax.vmap(largest))((jnp.asarray(values),), counts)
    for found, one, count in zip(marks, values, counts, strict=True):
        np.testing.assert_array_equal(found, by_sorting(one, count))


def test_nothing_to_choose_from():
    assert largest((jnp.zeros(0),), 3)[0].shape == (0,) and largest((), 0) == ()


def test_the_count_is_a_ceiling_whatever_the_precision():
    """(1 - s) n that is whole must not be rounded up: 0.1f * 60 is 6.0000002."""
    for size in (1, 7, 48, 60, 1000, 40_000, 209_662, 1_250_852):
        for percent in (0, 50, 60, 75, 90, 95, 99):
            wanted = max(-(-(100 - percent) * size // 100), 1)
            for dtype in (jnp.float32, jnp.float64):
                found = int(kept_count(jnp.asarray(percent / 100, dtype), size))
                # Of a million entries a fraction of one may be lost to float32.
                whole = (100 - percent) * size % 100 == 0
                allowed = {wanted} if whole or size <= 40_000 else {wanted - 1, wanted}
                assert found in allowed, (size, percent, dtype)


def test_the_count_of_millions_is_as_exact_as_the_sparsity():
    """Of n entries float32 may lose n / 2^21, float64 none."""
    for size in (2_000_001, 12_345_678, 2**30 + 1):
        for percent in (1, 30, 90, 99):
            wanted = -(-(100 - percent) * size // 100)
            assert int(kept_count(jnp.asarray(percent / 100, jnp.float64), size)) == wanted
            found = int(kept_count(jnp.asarray(percent / 100, jnp.float32), size))
            assert wanted - size // 2**21 - 1 <= found <= wanted


@pytest.mark.parametrize("size", [0, 1, 512, 513, 4096, 4103, 9001])
def test_reductions_of_long_vectors(size):
    values = np.random.default_rng(size).normal(size=size)
    marks = values > 0.5
    assert int(count_true(jnp.asarray(marks))) == marks.sum()
    short = folded(jnp.minimum, jnp.asarray(values))
    assert short.size <= 600
    assert float(short.min(initial=np.inf)) == values.min(initial=np.inf)
    if size:  # the entries that eight parts leave over are the last
        values[-1] = np.nan
        assert np.isnan(folded(jnp.maximum, jnp.asarray(values))).sum() == 1


def test_many_are_counted_without_overflow():
    """Every sum of 16 bits is full: one fold more would not fit."""
    for size in (_COUNTED_IN_16_BITS, _COUNTED_IN_16_BITS + 8**5):
        assert int(count_true(jnp.ones(size, bool))) == size
