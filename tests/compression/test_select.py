"""The entries of largest magnitude, against a sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedjax_opt.compression.select import largest
from fedjax_opt.compression.sparsifiers import kept_count

LENGTH = 300  # more than are compared each with each; one shape: one program for all examples


@jax.jit
def compiled(arrays, count):
    """One group."""
    return largest((arrays,), (count,))[0]


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


@given(hnp.arrays(np.float32, 24, elements=FEW.map(np.float32)), st.integers(0, 26))
def test_few_entries_like_a_sort(values, count):
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


def test_groups_do_not_meet():
    """Several, large and small and of two types, in one search."""
    rng = np.random.default_rng(0)
    groups = tuple(
        (jnp.asarray(rng.normal(size=size).astype(dtype) * scale),)
        for size, dtype, scale in [
            (700, np.float64, 1), (5, np.float64, 1e3), (900, np.float64, 1e-3), (800, np.float32, 1),
        ]
    )  # fmt: skip
    counts = (70, 2, 1, 400)
    for (values,), (marks,), count in zip(
        groups, jax.jit(largest)(groups, counts), counts, strict=True
    ):
        np.testing.assert_array_equal(marks, by_sorting(np.asarray(values), count))


def test_nothing_to_choose_from():
    assert largest(((jnp.zeros(0),), ()), (3, 0))[0][0].shape == (0,)


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
