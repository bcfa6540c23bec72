"""Invariants of the balanced Dirichlet split, its limits, and its moments against theory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_opt.data.balanced import balanced_dirichlet

ALPHAS = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-300, 0.01, 0.5, 1.0, 1e300, 1.7e308, np.inf]),
    st.floats(1e-3, 1e3),
)


@st.composite
def splits(draw):
    """Labels with any class sizes, and a number of clients that fits them."""
    labels = np.asarray(draw(st.lists(st.integers(-3, 6), min_size=1, max_size=120)))
    return labels, draw(st.integers(1, len(labels)))


def histograms(labels, ids, num_clients):
    """Counts `[num_clients, num_classes]` of the labels of each client."""
    classes, index = np.unique(labels, return_inverse=True)
    counts = np.zeros((num_clients, len(classes)), int)
    np.add.at(counts, (ids, index), 1)
    return counts


@given(splits(), ALPHAS, st.integers(0, 2**40))
def test_each_example_has_one_client_and_all_clients_are_equally_large(split, alpha, seed):
    labels, num_clients = split
    before = labels.copy()
    ids = balanced_dirichlet(labels, num_clients, alpha, seed=seed)
    assert ids.dtype == np.int32 and ids.shape == labels.shape
    assert ids.min() >= 0 and ids.max() < num_clients
    sizes = np.bincount(ids, minlength=num_clients)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(labels, before)
    np.testing.assert_array_equal(ids, balanced_dirichlet(labels, num_clients, alpha, seed=seed))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 8), st.integers(0, 99))
def test_alpha_zero_gives_one_class_where_class_sizes_allow_it(clients_of_class, size, seed):
    labels = np.repeat(np.arange(len(clients_of_class)), np.array(clients_of_class) * size)
    labels = np.random.default_rng(seed).permutation(labels)
    num_clients = sum(clients_of_class)
    for alpha in (0.0, 1e-300):
        ids = balanced_dirichlet(labels, num_clients, alpha, seed=seed)
        assert ((histograms(labels, ids, num_clients) > 0).sum(1) == 1).all()


@given(splits(), st.integers(0, 2**40))
def test_alpha_zero_adds_a_class_only_at_the_borders(split, seed):
    labels, num_clients = split
    counts = histograms(labels, balanced_dirichlet(labels, num_clients, 0, seed=seed), num_clients)
    assert (counts > 0).sum() <= num_clients + counts.shape[1] - 1


@given(splits(), st.integers(0, 2**40))
def test_infinite_alpha_gives_equal_parts_of_each_class_within_rounding(split, seed):
    labels, num_clients = split
    ids = balanced_dirichlet(labels, num_clients, np.inf, seed=seed)
    counts = histograms(labels, ids, num_clients)
    assert np.abs(counts - counts.sum(0) / num_clients).max() < 1


@pytest.mark.parametrize("alpha", [1e12, 1e300])
def test_large_alpha_gives_every_client_nearly_the_same_mixture(alpha):
    labels = np.random.default_rng(0).choice(5, 6000, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    counts = histograms(labels, balanced_dirichlet(labels, 50, alpha, seed=1), 50)
    # One for the rounding of a client's amounts, one for that of the classes.
    assert np.abs(counts - counts.sum(0) / 50).max() < 2


@pytest.mark.parametrize("alpha", [0.1, 0.6])
@pytest.mark.parametrize("proportions", [[0.25] * 4, [0.4, 0.3, 0.2, 0.1]])
def test_mixtures_follow_the_dirichlet_distribution(alpha, proportions):
    """A class of proportion p has shares Beta(alpha C p, alpha C (1 - p)) in the clients."""
    num_clients, size = 2000, 200
    p = np.array(proportions)
    labels = np.repeat(np.arange(4), np.rint(p * num_clients * size).astype(int))
    counts = histograms(labels, balanced_dirichlet(labels, num_clients, alpha, seed=3), num_clients)
    shares = counts / size
    np.testing.assert_allclose(shares.mean(0), p, atol=1e-12)  # exactly: all is dealt out
    laws = [stats.beta(4 * alpha * q, 4 * alpha * (1 - q)) for q in p]
    variances = np.array([law.var() for law in laws])
    # The variance of a sample variance is (m4 - m2^2) / n. Classes that were asked for too often lose
    # what the others gain: that nearly cancels in the mean over classes.
    fourth = np.array([(law.stats("k") + 3) * law.var() ** 2 for law in laws])
    error = np.sqrt(((fourth - variances**2) / num_clients).mean())
    assert abs(shares.var(0).mean() - variances.mean()) < 4 * error
    # A share x of a class is rounded down to none with probability 1 - size x, for x < 1 / size. Of the
    # clients, as many come too late as demand exceeds supply: by its standard deviation in each class.
    absent = np.mean(
        [
            law.expect(lambda x: 1 - size * x, ub=1 / size) if law.cdf(1 / size) else 0
            for law in laws
        ]
    )
    late = np.sqrt(variances / num_clients).sum()
    deviation = np.sqrt(absent * (1 - absent) / num_clients)
    assert abs((counts == 0).mean() - absent) < 4 * deviation + late


def test_clients_keep_to_their_own_classes():
    """With few classes per client, the rounding and the supply add few others."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    counts = histograms(labels, balanced_dirichlet(labels, 100, 0.001, seed=0), 100)
    shares = np.sort(counts / 60, axis=1)[:, ::-1]
    # Draws of 100 clients from 10 classes miss 10 per class by about 3, half of them by too many: some
    # 12 of 100 clients come too late, and up to 9 get the last of a class and need another.
    assert (shares[:, 0] == 1).mean() > 0.75
    assert (counts > 0).sum(1).mean() < 1.5


def test_who_comes_too_late_for_a_class_is_drawn():
    """With a large alpha only they lack a class: as often the first clients by number as the last."""
    labels, lacking = np.repeat(np.arange(4), 1000), np.zeros(40)
    for seed in range(40):
        ids = balanced_dirichlet(labels, 40, 3.0, seed=seed)
        lacking += (histograms(labels, ids, 40) == 0).sum(1)
    half = lacking[:20].sum()
    assert lacking.sum() > 40
    # A client may lack several classes at once: at most three, which triples a binomial's variance.
    assert abs(half - lacking.sum() / 2) < 4 * np.sqrt(3 * lacking.sum() / 4)


def test_seeds_matter_and_strings_are_labels():
    labels = np.asarray(["cat", "dog"] * 50)
    for alpha in (0, 0.5, np.inf):
        first, second = (balanced_dirichlet(labels, 5, alpha, seed=seed) for seed in (0, 1))
        assert (first != second).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": -0.5}, r"alpha must be a number from 0 to infinity, got -0\.5"),
        ({"alpha": float("nan")}, "alpha must be .* got nan"),
        ({"num_clients": 0}, "num_clients must be a whole number of at least 1, got 0"),
        ({"num_clients": 7}, "num_clients must be at most 6, .* got 7"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"labels": []}, r"labels must be a vector .* got shape \[0\]"),
    ],
)
def test_refused(change, message):
    arguments = {"labels": [0, 0, 1, 1, 2, 2], "num_clients": 3, "alpha": 1.0} | change
    with pytest.raises(ValueError, match=message):
        balanced_dirichlet(**arguments)
