"""The shift of batch-normalised outputs by aggregation, against the outputs themselves."""

import numpy as np
import pytest

import fedjax_opt as fo


def layer(rng, units):
    mean, scale, shift = rng.normal(0, 1, (3, units))
    return fo.metrics.BatchNorm(mean, rng.uniform(0.5, 2, units), scale, shift)


def put_out(z, of):
    return of.scale * (z - of.mean) / np.sqrt(of.variance) + of.shift


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_change_of_mean_and_variance_of_what_the_layer_puts_out(seed):
    rng = np.random.default_rng(seed)
    before, own, shared = rng.normal(1, 2, (50, 3)), layer(rng, 3), layer(rng, 3)
    after = before + rng.normal(0.3, 0.5, (50, 3))
    moved = fo.metrics.activation_shift(before, after, own, shared)
    start = put_out(before, own)
    for name, end in (("private", put_out(after, own)), ("shared", put_out(after, shared))):
        mean, variance = getattr(moved, f"{name}_mean"), getattr(moved, f"{name}_variance")
        np.testing.assert_allclose(mean, end.mean(0) - start.mean(0), rtol=1e-9)
        np.testing.assert_allclose(variance, end.var(0) - start.var(0), rtol=1e-9)


def test_it_is_4_8_and_4_9_where_the_statistics_are_those_of_the_examples():
    rng = np.random.default_rng(7)
    before = rng.normal(1, 2, (40, 3))
    after = 1.2 * before + 0.1
    own = layer(rng, 3)._replace(mean=before.mean(0), variance=before.var(0))
    mu, square, gamma, beta = shared = layer(rng, 3)
    moved = fo.metrics.activation_shift(before, after, own, shared)
    delta, more = after.mean(0) - before.mean(0), after.var(0) - before.var(0)
    np.testing.assert_allclose(moved.private_mean, own.scale * delta / np.sqrt(own.variance))
    np.testing.assert_allclose(moved.private_variance, own.scale**2 * more / own.variance)
    there = gamma * (own.mean + delta - mu) / np.sqrt(square) + beta
    np.testing.assert_allclose(moved.shared_mean, there - own.shift)
    spread = gamma**2 * (own.variance + more) / square
    np.testing.assert_allclose(moved.shared_variance, spread - own.scale**2)
    left = np.abs(moved.private_mean) < np.abs(moved.shared_mean)
    right = np.abs(moved.private_variance) < np.abs(moved.shared_variance)
    assert moved.smaller.tolist() == (left & right).tolist()


def test_a_layer_that_is_the_same_for_all_moves_alike():
    rng = np.random.default_rng(3)
    before, own = rng.normal(0, 1, (20, 2)), layer(rng, 2)
    moved = fo.metrics.activation_shift(before, before + 1, own, own)
    np.testing.assert_array_equal(moved.private_mean, moved.shared_mean)
    assert not moved.smaller.any()


def test_examples_must_be_the_same():
    own = layer(np.random.default_rng(0), 2)
    for after in (np.zeros((3, 2)), np.zeros(2)):
        with pytest.raises(ValueError, match="before and after must be"):
            fo.metrics.activation_shift(np.zeros((4, 2)), after, own, own)
