"""The swap-or-not shuffle: always a permutation, and no permutation likelier than another."""

from functools import partial
from itertools import combinations, permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedjax_opt.core.permutation import permuted

LARGEST = 4096
# A right implementation fails a test at this level once in ten thousand choices of the seed.
LEVEL = 1e-4


@jax.jit
def padded_permutation(seed, size):
    """A whole permutation of a traced size, followed by repetitions of it."""
    return permuted(jax.random.key(seed), jnp.arange(LARGEST, dtype=jnp.int32) % size, size)


@partial(jax.jit, static_argnums=(1, 2))
def many(seed, size, count):
    """Independent permutations `[count, size]`."""
    keys = jax.random.split(jax.random.key(seed), count)
    positions = jnp.arange(size, dtype=jnp.int32)
    return jax.vmap(lambda key: permuted(key, positions, jnp.int32(size)))(keys)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, LARGEST), st.integers(0, 2**31 - 1))
def test_it_is_a_permutation_for_every_size(size, seed):
    entries = np.asarray(padded_permutation(seed, jnp.int32(size)))[:size]
    assert entries.dtype == np.int32
    np.testing.assert_array_equal(np.sort(entries), np.arange(size))


def test_other_keys_give_other_permutations():
    rows = {tuple(row) for row in np.asarray(many(0, 16, 1000)).tolist()}
    # Two of a thousand among 16! = 2e13 coincide with probability 2e-8.
    assert len(rows) == 1000


def test_an_entry_depends_on_its_position_alone():
    key, size = jax.random.key(3), jnp.int32(100)
    whole = permuted(key, jnp.arange(100, dtype=jnp.int32), size)
    some = jnp.array([[7, 99], [0, 7]], jnp.int32)
    np.testing.assert_array_equal(permuted(key, some, size), whole[some])


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_are_equally_likely(size):
    outcomes = list(permutations(range(size)))
    base = size ** np.arange(size)
    codes = np.asarray(many(1, size, 200 * len(outcomes))) @ base
    observed = [np.sum(codes == np.dot(outcome, base)) for outcome in outcomes]
    assert stats.chisquare(observed).pvalue > LEVEL


def test_every_pair_of_positions_is_uniform():
    size, count = 16, 24_000
    rows = np.asarray(many(2, size, count))
    pairs = list(combinations(range(size), 2))
    different = ~np.eye(size, dtype=bool).ravel()
    for i, j in pairs:
        observed = np.bincount(rows[:, i] * size + rows[:, j], minlength=size**2)
        assert observed[~different].sum() == 0
        assert stats.chisquare(observed[different]).pvalue > LEVEL / len(pairs)


@pytest.mark.parametrize("size", [7, 64])
def test_no_position_prefers_an_entry(size):
    """Counts of (position, entry) over random permutations have a known limit.

    The centred permutation matrix has covariance (I - J/n) x (I - J/n) / (n - 1), so the squared
    deviations of the counts sum to N / (n - 1) times a chi-square of (n - 1)^2 degrees of freedom.
    """
    count = 20_000
    rows = np.asarray(many(3, size, count))
    observed = np.zeros((size, size))
    np.add.at(observed, (np.arange(size), rows), 1)
    statistic = (size - 1) / count * np.sum((observed - count / size) ** 2)
    p = stats.chi2.sf(statistic, (size - 1) ** 2)
    assert LEVEL < p < 1 - LEVEL


def test_fixed_points_follow_poisson():
    size, count = 1000, 4000
    fixed = np.sum(np.asarray(many(4, size, count)) == np.arange(size), axis=1)
    # The number of fixed points of a random permutation is Poisson(1) up to 1 / size!.
    expected = count * np.append(stats.poisson.pmf(range(5), 1), stats.poisson.sf(4, 1))
    observed = np.bincount(np.minimum(fixed, 5), minlength=6)
    assert stats.chisquare(observed, expected).pvalue > LEVEL


def test_the_largest_size_does_not_overflow():
    size = 2**31 - 1
    positions = np.concatenate([np.arange(2000), size - 1 - np.arange(2000)]).astype(np.int32)
    entries = np.asarray(permuted(jax.random.key(0), jnp.asarray(positions), jnp.int32(size)))
    assert len(np.unique(entries)) == len(entries)
    assert entries.min() >= 0 and entries.max() < size
    tenths = np.bincount(entries.astype(np.int64) * 10 // size, minlength=10)
    assert stats.chisquare(tenths).pvalue > LEVEL
