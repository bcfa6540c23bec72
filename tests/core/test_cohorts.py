"""Samplers: who is drawn, how often, and that nothing but the key and the round matters."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedjax_opt as fo

KEY = jax.random.key(5)
LEVEL = 1e-4  # A right implementation fails at this level once in ten thousand seeds.


@partial(jax.jit, static_argnums=2)
def _draws(sampler, num_clients, rounds):
    numbers = jnp.arange(rounds, dtype=jnp.int32)
    return jax.vmap(lambda t: sampler.draw(KEY, t, num_clients))(numbers)


def draws(sampler, num_clients, rounds):
    """Ids and presence of many rounds, `[rounds, S]`."""
    return jax.tree.map(np.asarray, _draws(sampler, jnp.int32(num_clients), rounds))


def every_sampler():
    return {
        "uniform": fo.cohorts.uniform(3),
        "cyclic": fo.cohorts.cyclic(3),
        "weighted": fo.cohorts.weighted(3, np.arange(1.0, 9.0)),
        "dynamic_pool": fo.cohorts.dynamic_pool(3, pool_size=5, every=4),
        "available": fo.cohorts.available(3, np.full(8, 0.5)),
    }


@pytest.mark.parametrize("name", every_sampler())
def test_a_cohort_is_a_pure_function_of_key_and_round(name):
    sampler = every_sampler()[name]
    ids, present = draws(sampler, 8, 40)
    again, present_again = sampler.draw(KEY, jnp.int32(17), jnp.int32(8))
    np.testing.assert_array_equal(again, ids[17])
    np.testing.assert_array_equal(present_again, present[17])
    assert ids.dtype == np.int32 and present.dtype == bool
    for row, filled in zip(ids, present, strict=True):
        assert len(set(row[filled])) == filled.sum()
        assert row[filled].min(initial=0) >= 0 and row[filled].max(initial=0) < 8
    other, _ = sampler.draw(jax.random.key(6), jnp.int32(17), jnp.int32(8))
    assert len({tuple(row) for row in ids}) > 1
    assert name == "cyclic" or not np.array_equal(other, ids[17])


@pytest.mark.parametrize(("size", "num_clients"), [(1, 7), (3, 10), (9, 10)])
def test_uniform_includes_every_client_alike(size, num_clients):
    rounds = 6000
    ids, present = draws(fo.cohorts.uniform(size), num_clients, rounds)
    assert present.all()
    counts = np.bincount(ids.ravel(), minlength=num_clients)
    # Inclusion without replacement has the covariance of C (1 - C) N / (N - 1) (I - J / N).
    share = size / num_clients
    spread = rounds * share * (1 - share) * num_clients / (num_clients - 1)
    statistic = np.sum((counts - rounds * share) ** 2) / spread
    assert stats.chi2.sf(statistic, num_clients - 1) > LEVEL


def test_uniform_serves_a_million_clients():
    num_clients = 1_000_000
    ids, present = draws(fo.cohorts.uniform(100), num_clients, 50)
    assert present.all() and ids.min() >= 0 and ids.max() < num_clients
    assert all(len(set(row)) == 100 for row in ids.tolist())
    tenths = np.bincount(ids.ravel() * 10 // num_clients, minlength=10)
    assert stats.chisquare(tenths).pvalue > LEVEL


def test_weighted_draws_one_after_the_other_in_proportion():
    weights = np.array([1.0, 0.0, 2.0, 3.0, 4.0])
    ids, present = draws(fo.cohorts.weighted(2, weights), 5, 20_000)
    assert present.all() and not np.any(ids == 1)
    p = weights / weights.sum()
    pairs = [(i, j) for i in range(5) for j in range(5) if i != j and p[i] * p[j] > 0]
    # After i, the others are drawn in proportion to what is left.
    expected = np.array([p[i] * p[j] / (1 - p[i]) for i, j in pairs])
    observed = [np.sum((ids[:, 0] == i) & (ids[:, 1] == j)) for i, j in pairs]
    assert stats.chisquare(observed, len(ids) * expected).pvalue > LEVEL
    first = np.bincount(ids[:, 0], minlength=5)[weights > 0]
    assert stats.chisquare(first, len(ids) * p[weights > 0]).pvalue > LEVEL


def test_cyclic_covers_everyone_and_wraps():
    ids, present = draws(fo.cohorts.cyclic(3), 7, 7)
    assert present.all()
    np.testing.assert_array_equal(ids.ravel(), np.arange(21) % 7)


@pytest.mark.parametrize("largest", [2**16, 2**30, 2**31 - 1])
def test_cyclic_does_not_overflow(largest):
    """Rounds and populations whose products, and sums on the way, do not fit into 32 bits."""
    size, generator = 999, np.random.default_rng(0)
    rounds = np.append(generator.integers(0, 2**31, 200), [0, 1, 2**31 - 1, 2**31 - 1])
    populations = np.append(generator.integers(size, largest, 200), [largest] * 3 + [size])
    draw = jax.vmap(lambda t, n: fo.cohorts.cyclic(size).draw(KEY, t, n)[0])
    ids = np.asarray(draw(jnp.asarray(rounds, jnp.int32), jnp.asarray(populations, jnp.int32)))
    for row, t, n in zip(ids, rounds.tolist(), populations.tolist(), strict=True):
        assert row[[0, -1]].tolist() == [t * size % n, (t * size + size - 1) % n]
        assert np.all((np.diff(row) == 1) | (row[1:] == 0))


def test_a_pool_stays_for_its_period():
    every, pool_size = 50, 6
    ids, present = draws(fo.cohorts.dynamic_pool(3, pool_size, every), 40, 4 * every)
    assert present.all()
    pools = [set(period.ravel().tolist()) for period in ids.reshape(4, every, 3)]
    # A member of the pool escapes fifty cohorts of half the pool with probability 2^-50.
    assert [len(pool) for pool in pools] == [pool_size] * 4
    assert len({frozenset(pool) for pool in pools}) == 4
    counts = [np.bincount(ids[:every].ravel(), minlength=40)[i] for i in sorted(pools[0])]
    assert stats.chisquare(counts).pvalue > LEVEL


def test_pools_include_every_client_alike():
    sampler = fo.cohorts.dynamic_pool(1, pool_size=2, every=1)
    counts = np.bincount(draws(sampler, 8, 4000)[0].ravel(), minlength=8)
    assert stats.chisquare(counts).pvalue > LEVEL


def test_only_available_clients_are_drawn_and_slots_stay_empty():
    chances = np.array([0.0, 1.0, 0.0, 0.5, 0.0])
    ids, present = draws(fo.cohorts.available(3, chances), 5, 4000)
    assert set(ids[present]) == {1, 3}
    assert np.all(np.any((ids == 1) & present, axis=1))
    often = np.any((ids == 3) & present, axis=1).sum()
    assert stats.binomtest(int(often), 4000, 0.5).pvalue > LEVEL
    np.testing.assert_array_equal(present.sum(1), 1 + np.any((ids == 3) & present, axis=1))


def test_available_clients_are_drawn_alike():
    chances = np.array([1.0, 0.0, 1.0, 1.0, 1.0])
    ids, present = draws(fo.cohorts.available(1, chances), 5, 4000)
    assert present.all()
    assert stats.chisquare(np.bincount(ids.ravel(), minlength=5)[chances > 0]).pvalue > LEVEL


def test_a_trace_of_availability_is_read_by_round_and_repeats():
    trace = np.eye(4)[:3]
    ids, present = draws(fo.cohorts.available(2, trace), 4, 9)
    np.testing.assert_array_equal(present, [[True, False]] * 9)
    np.testing.assert_array_equal(ids[:, 0], np.arange(9) % 3)


def test_availability_may_be_a_function_of_the_round():
    def chances(t):
        return jnp.where(jnp.arange(4, dtype=jnp.int32) == t % 4, 1.0, 0.0)

    sampler = fo.cohorts.available(1, chances)
    ids, present = draws(sampler, 4, 8)
    assert present.all()
    np.testing.assert_array_equal(ids[:, 0], np.arange(8) % 4)


def test_nobody_may_be_available():
    _, present = draws(fo.cohorts.available(2, np.zeros(4)), 4, 5)
    assert not present.any()


def test_the_first_to_report_are_the_fastest_of_those_asked():
    seconds = np.random.default_rng(0).permutation(8).astype(float)
    asked, _ = draws(fo.cohorts.uniform(5), 8, 500)
    for size in (1, 3, 5, 0.5):
        ids, present = draws(
            fo.cohorts.first_to_report(fo.cohorts.uniform(5), size, seconds), 8, 500
        )
        kept = 3 if size == 0.5 else size
        assert present.all() and ids.shape == (500, kept)
        for ours, all_asked in zip(ids, asked, strict=True):
            assert list(ours) == sorted(all_asked, key=lambda i: seconds[i])[:kept]


def test_who_never_reports_is_not_waited_for_whatever_the_order_of_the_wrappers():
    seconds = np.arange(8.0)
    lost = np.where(np.arange(8) < 4, 1.0, 0.0)
    inside = fo.cohorts.first_to_report(
        fo.cohorts.unreliable(fo.cohorts.uniform(7), lost), 4, seconds
    )
    outside = fo.cohorts.unreliable(
        fo.cohorts.first_to_report(fo.cohorts.uniform(7), 4, seconds), lost
    )
    ids, done = draws(inside, 8, 300)
    for found, same in zip(draws(outside, 8, 300), (ids, done), strict=True):
        np.testing.assert_array_equal(found, same)
    # Of seven, three or four have not dropped out; the slot that is left stays empty.
    assert set(done.sum(1)) == {3, 4}
    assert np.all(ids[done > 0] >= 4)
    assert np.all(np.diff(np.where(done > 0, ids, 99), axis=1) >= 0)


def test_a_run_with_the_first_to_report_is_one_with_a_cohort_of_their_number():
    model, data, _ = fo.data.quadratics(num_clients=6, dimension=2)
    seconds = np.array([3.0, 1.0, 5.0, 0.0, 4.0, 2.0])
    sampler = fo.cohorts.first_to_report(fo.cohorts.uniform(6), 3, seconds)
    federation = fo.Federation(model, data, cohort=sampler, local_steps=2, batch_size=1)
    algorithm = fo.localghbm(fo.optimizers.sgd(0.1))
    run = fo.run_rounds(algorithm, federation, fo.init_state(algorithm, federation), 3)
    np.testing.assert_array_equal(run.history.cohort, [[3, 1, 5]] * 3)
    np.testing.assert_array_equal(run.history.num_steps, [[2] * 3] * 3)


def _first(size=2, seconds=(1.0, 2.0, 3.0), sampler=None):
    return fo.cohorts.first_to_report(sampler or fo.cohorts.uniform(3), size, np.array(seconds))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _first(size=4), "size must be a whole number from 1 to 3, got 4"),
        (lambda: _first(size=1.5), r"size must be a whole number from 1 to 3, got 1\.5"),
        (lambda: _first(seconds=2.0), r"seconds must be one per client \[N\], got shape \(\)"),
        (lambda: _first(seconds=(1.0, 2.0)), "sampler must ask at most all 2 clients .* got 3"),
        (lambda: _first(seconds=(1.0, -2.0, 1.0)), r"seconds must lie in \[0\.0"),
        (lambda: _first(sampler=_first()), "sampler must not be one of first_to_report already"),
        (
            lambda: _first(1, sampler=fo.cohorts.weighted(1, [1, 1])),
            r"seconds must be one .* \[N=2\]",
        ),
        (lambda: fo.cohorts.first_to_report(3, 2, [1.0]), "sampler must be a Sampler"),
        (lambda: fo.cohorts.uniform(0), "size must be .*at least 1, got 0"),
        (lambda: fo.cohorts.uniform(2.0), r"size must be a whole number .* got 2\.0"),
        (lambda: fo.cohorts.cyclic(-1), "size must be .*at least 1, got -1"),
        (lambda: fo.cohorts.weighted(1, [[1.0]]), r"weights must be .* got shape \(1, 1\)"),
        (lambda: fo.cohorts.weighted(1, [1.0, -2.0]), r"weights must lie in \[0\.0, inf\)"),
        (lambda: fo.cohorts.weighted(1, [1.0, np.nan]), "weights must lie in .* nan"),
        (lambda: fo.cohorts.weighted(1, [1.0, np.inf]), "weights must lie in .* inf"),
        (lambda: fo.cohorts.weighted(2, [1.0, 0.0]), "at least size=2 positive entries, got 1"),
        (lambda: fo.cohorts.dynamic_pool(4, 3, 1), "pool_size must be .*at least 4, got 3"),
        (lambda: fo.cohorts.dynamic_pool(2, 3, 0), "every must be .*at least 1, got 0"),
        (lambda: fo.cohorts.available(1, 0.5), r"availability must be .* got shape \(\)"),
        (lambda: fo.cohorts.available(1, [0.5, 1.5]), r"availability must lie in \[0\.0, 1\.0\]"),
        (lambda: fo.cohorts.available(1, [-0.5]), r"availability must lie in \[0\.0, 1\.0\]"),
    ],
)
def test_samplers_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
