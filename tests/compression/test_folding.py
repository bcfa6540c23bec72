"""Folded reductions: the same numbers, whatever the length."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt.compression import folding


@pytest.mark.parametrize("size", [0, 1, 512, 513, 4096, 4103, 9001])
def test_extremes_and_counts_are_numpy_s(size):
    values = np.random.default_rng(size).normal(size=size)
    marks = values > 0.5
    assert int(folding.count_true(jnp.asarray(marks))) == marks.sum()
    short = folding.folded(jnp.minimum, jnp.asarray(values))
    assert short.size <= 600
    assert float(short.min(initial=np.inf)) == values.min(initial=np.inf)


@pytest.mark.parametrize("place", [0, 511, 512, 4095, 4100, 4102])
def test_no_entry_is_left_out(place):
    values = np.zeros(4103)
    values[place] = np.nan
    assert np.isnan(folding.folded(jnp.maximum, jnp.asarray(values))).sum() == 1


def test_many_are_counted_without_overflow():
    """Every sum of 16 bits is full: one fold more would not fit."""
    size = folding._COUNTED_IN_16_BITS
    assert int(folding.count_true(jnp.ones(size, bool))) == size
    assert int(folding.count_true(jnp.ones(size + 8, bool))) == size + 8
