"""Invariants of the splits over clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt.data import draws, partition

ALPHAS = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-300, 0.01, 0.5, 1.0, 1e300, 1e308, np.inf]),
    st.floats(1e-3, 1e3),
)


@st.composite
def splits(draw):
    """Labels with any class sizes, and a number of clients and a smallest size that fit them."""
    labels = np.asarray(draw(st.lists(st.integers(-3, 6), min_size=1, max_size=120)))
    num_clients = draw(st.integers(1, len(labels)))
    min_size = draw(st.integers(0, len(labels) // num_clients))
    return labels, num_clients, min_size


def histograms(labels, ids, num_clients):
    """Counts `[num_clients, num_classes]` of the labels of each client."""
    classes, index = np.unique(labels, return_inverse=True)
    counts = np.zeros((num_clients, len(classes)), int)
    np.add.at(counts, (ids, index), 1)
    return counts


@settings(deadline=None)
@given(splits(), ALPHAS, st.integers(0, 2**40))
def test_dirichlet_gives_each_example_one_client_and_each_client_enough(split, alpha, seed):
    labels, num_clients, min_size = split
    before = labels.copy()
    ids = partition.dirichlet(labels, num_clients, alpha, seed=seed, min_size=min_size)
    assert ids.dtype == np.int32 and ids.shape == labels.shape
    assert ids.min() >= 0 and ids.max() < num_clients
    assert np.bincount(ids, minlength=num_clients).min() >= min_size
    np.testing.assert_array_equal(labels, before)
    again = partition.dirichlet(labels, num_clients, alpha, seed=seed, min_size=min_size)
    np.testing.assert_array_equal(ids, again)


@settings(deadline=None)
@given(splits(), st.integers(0, 2**40))
def test_alpha_zero_gives_one_class_per_client(split, seed):
    labels, num_clients, _ = split
    counts = histograms(labels, partition.dirichlet(labels, num_clients, 0, seed=seed), num_clients)
    if num_clients >= counts.shape[1]:
        assert ((counts > 0).sum(1) == 1).all()
    else:
        assert ((counts > 0).sum(0) == 1).all()


@settings(deadline=None)
@given(splits(), st.integers(0, 2**40))
def test_moves_are_only_those_needed(split, seed):
    labels, num_clients, min_size = split
    free = partition.dirichlet(labels, num_clients, 0.3, seed=seed, min_size=0)
    ids = partition.dirichlet(labels, num_clients, 0.3, seed=seed, min_size=min_size)
    sizes = np.bincount(free, minlength=num_clients)
    assert (ids != free).sum() == np.maximum(min_size - sizes, 0).sum()


@settings(deadline=None)
@given(st.integers(2, 10), st.sampled_from([1e8, 1e300]), st.integers(0, 2**40))
def test_large_alpha_gives_every_client_the_same_mixture(num_clients, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 5, 500)
    counts = histograms(
        labels, partition.dirichlet(labels, num_clients, alpha, seed=seed), num_clients
    )
    # Rounding alone moves a count by less than 1; the draw of the shares adds well under 1 here.
    assert np.abs(counts - counts.sum(0) / num_clients).max() < 2


def test_infinite_alpha_is_iid():
    labels = np.repeat([0, 1], [40, 7])
    np.testing.assert_array_equal(
        partition.dirichlet(labels, 5, np.inf, seed=3), partition.iid(labels, 5, seed=3)
    )


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.9, 3.0])
def test_every_share_has_the_moments_of_a_dirichlet_distribution(alpha):
    """To 1%, about three standard errors, by the formulas for small and for large alpha."""
    num_clients = 4
    shares = draws.dirichlet_shares(200_000, num_clients, alpha, np.random.default_rng(0))
    np.testing.assert_allclose(shares.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(shares.mean(0), 1 / num_clients, rtol=0.01)
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    np.testing.assert_allclose(shares.var(0), variance, rtol=0.01)


def test_shares_follow_the_dirichlet_distribution():
    # With symmetric alpha over K clients a share has variance (K - 1) / (K^2 (K alpha + 1)).
    num_clients, size = 4, 1000
    labels = np.repeat(np.arange(2000), size)
    for alpha in (0.2, 3.0):
        ids = partition.dirichlet(labels, num_clients, alpha, seed=1)
        shares = histograms(labels, ids, num_clients) / size
        np.testing.assert_allclose(shares.mean(0), 1 / num_clients, atol=0.03)
        variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
        np.testing.assert_allclose(shares[0].var(), variance, rtol=0.1)


def test_dirichlet_takes_strings_and_seeds_matter():
    labels = np.asarray(["cat", "dog"] * 50)
    first, second = (partition.dirichlet(labels, 5, 0.5, seed=seed) for seed in (0, 1))
    assert (first != second).any()


@st.composite
def shard_splits(draw):
    """Labels, and numbers of clients and of shards per client that fit them."""
    labels = np.asarray(draw(st.lists(st.integers(-3, 6), min_size=1, max_size=120)))
    num_clients = draw(st.integers(1, len(labels)))
    return labels, num_clients, draw(st.integers(1, len(labels) // num_clients))


@settings(deadline=None)
@given(shard_splits(), st.integers(0, 2**40))
def test_label_shards_deals_whole_shards_of_the_sorted_data(split, seed):
    labels, num_clients, per_client = split
    before = labels.copy()
    ids = partition.label_shards(labels, num_clients, per_client, seed)
    assert ids.dtype == np.int32 and ids.shape == labels.shape
    np.testing.assert_array_equal(labels, before)
    np.testing.assert_array_equal(
        ids, partition.label_shards(labels, num_clients, per_client, seed)
    )
    # Sorted by (label, place in the data), which no other order of the data can hide.
    in_order = sorted(range(len(labels)), key=lambda i: (labels[i], i))
    shards = np.array_split(ids[in_order], num_clients * per_client)
    owners = [set(shard.tolist()) for shard in shards]
    assert all(len(owner) == 1 for owner in owners)
    dealt = np.bincount([owner.pop() for owner in owners], minlength=num_clients)
    np.testing.assert_array_equal(dealt, per_client)
    sizes = np.bincount(ids, minlength=num_clients)
    assert sizes.min() >= per_client and sizes.max() - sizes.min() <= per_client
    # Each border between classes cuts at most one shard.
    classes = (histograms(labels, ids, num_clients) > 0).sum()
    assert classes <= num_clients * per_client + len(set(labels.tolist())) - 1


@given(shard_splits(), st.integers(1, 4), st.integers(0, 2**40))
def test_label_shards_gives_a_test_set_the_same_deal(split, times, seed):
    labels, num_clients, per_client = split
    larger = np.repeat(labels, times)
    ids = partition.label_shards(labels, num_clients, per_client, seed)
    test_ids = partition.label_shards(larger, num_clients, per_client, seed)
    shards = num_clients * per_client
    for mine, theirs in zip(
        np.array_split(ids[np.argsort(labels, kind="stable")], shards),
        np.array_split(test_ids[np.argsort(larger, kind="stable")], shards),
        strict=True,
    ):
        assert set(mine.tolist()) == set(theirs.tolist())


def test_label_shards_depends_on_the_seed_and_gives_few_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    first, second = (partition.label_shards(labels, 50, seed=seed) for seed in (0, 1))
    assert (first != second).any()
    classes = (histograms(labels, first, 50) > 0).sum(1)
    assert classes.max() == 2  # a class is 10 shards, so no shard holds two of them
    # Two of a client's shards are of one class with probability 9 / 99.
    assert 0 < (classes == 1).sum() < 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clients": 4}, r"num_clients \* shards_per_client must be at most 6, .* 4 \* 2 = 8"),
        ({"num_clients": 0}, "num_clients must be a whole number of at least 1, got 0"),
        ({"shards_per_client": 0}, "shards_per_client must be .* at least 1, got 0"),
        ({"shards_per_client": 1.5}, r"shards_per_client must be .* got 1\.5"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"labels": [[0, 1]]}, r"labels must be a vector .* got shape \[1, 2\]"),
    ],
)
def test_label_shards_refuses(change, message):
    arguments = {"labels": [0, 0, 1, 1, 2, 2], "num_clients": 3} | change
    with pytest.raises(ValueError, match=message):
        partition.label_shards(**arguments)


@settings(deadline=None)
@given(st.integers(1, 200), st.data(), st.integers(0, 2**40))
def test_iid_is_balanced_and_deterministic(n, data, seed):
    num_clients = data.draw(st.integers(1, n))
    ids = partition.iid(n, num_clients, seed)
    sizes = np.bincount(ids, minlength=num_clients)
    assert ids.dtype == np.int32 and ids.shape == (n,) and len(sizes) == num_clients
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(ids, partition.iid(np.zeros(n), num_clients, seed))


POWERS = st.one_of(st.sampled_from([0.0, 1e-300, 1.0, 1e300, np.inf]), st.floats(0.1, 4.0))
SKEWS = st.fixed_dictionaries({"alpha": ALPHAS}) | st.fixed_dictionaries({"power": POWERS})


@given(splits(), SKEWS, st.integers(0, 2**40))
def test_quantity_skew_gives_each_example_one_client_and_each_client_enough(split, skew, seed):
    labels, num_clients, min_size = split
    arguments = {"seed": seed, "min_size": min_size} | skew
    ids = partition.quantity_skew(labels, num_clients, **arguments)
    assert ids.dtype == np.int32 and ids.shape == labels.shape
    assert ids.min() >= 0 and ids.max() < num_clients
    assert np.bincount(ids, minlength=num_clients).min() >= min_size
    again = partition.quantity_skew(len(labels), num_clients, **arguments)
    np.testing.assert_array_equal(ids, again)


@given(st.integers(1, 30), st.integers(1, 500), st.floats(0, 4), st.integers(0, 2**40))
def test_sizes_follow_the_power_law_within_rounding(num_clients, n, power, seed):
    ids = partition.quantity_skew(
        max(n, num_clients), num_clients, power=power, seed=seed, min_size=0
    )
    weights = np.arange(1, num_clients + 1) ** -power
    exact = len(ids) * weights / weights.sum()
    sizes = np.sort(np.bincount(ids, minlength=num_clients))[::-1]
    assert np.abs(sizes - exact).max() < 1 + 1e-9


def test_quantity_skew_limits_and_moments():
    sizes = [
        np.sort(np.bincount(partition.quantity_skew(90, 9, **skew), minlength=9)).tolist()
        for skew in ({"power": 0}, {"alpha": np.inf}, {"power": np.inf}, {"alpha": 0})
    ]
    assert sizes == [[10] * 9, [10] * 9, [1] * 8 + [82], [1] * 8 + [82]]
    # With symmetric alpha over K clients a share has variance (K - 1) / (K^2 (K alpha + 1)).
    num_clients, n, alpha = 2000, 10**6, 0.5
    ids = partition.quantity_skew(n, num_clients, alpha=alpha, min_size=0)
    shares = np.bincount(ids, minlength=num_clients) / n
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    # A gamma(1/2) variable has excess kurtosis 12, so a variance is off by sqrt(14 / K) of itself.
    np.testing.assert_allclose(shares.var(), variance, rtol=4 * np.sqrt(14 / num_clients))


@given(splits(), st.integers(0, 2**40))
def test_moves_are_drawn_from_the_examples_of_each_giver(split, seed):
    """By a loop that looks for them among all examples."""
    labels, num_clients, min_size = split
    ids = np.random.default_rng(seed).integers(0, num_clients, len(labels)).astype(np.int32)
    sizes = np.bincount(ids, minlength=num_clients)
    missing, kept = np.maximum(min_size - sizes, 0), sizes.copy()
    for _ in range(missing.sum()):
        kept[kept.argmax()] -= 1
    rng, expected = np.random.default_rng(seed), ids.copy()
    moved = [
        rng.choice(np.flatnonzero(ids == client), sizes[client] - kept[client], replace=False)
        for client in np.flatnonzero(kept < sizes)
    ]
    if moved:
        expected[rng.permutation(np.concatenate(moved))] = np.repeat(
            np.arange(num_clients), missing
        )
    found = draws.fill(ids.copy(), num_clients, min_size, np.random.default_rng(seed))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "split",
    [
        lambda y, n: partition.iid(20, n),
        lambda y, n: partition.dirichlet(y, n, alpha=np.inf),
        lambda y, n: partition.dirichlet(y, n, alpha=0.3),
        lambda y, n: partition.label_shards(y, n),
        lambda y, n: partition.quantity_skew(20, n, power=1.0),
        lambda y, n: fo.data.balanced_dirichlet(y, n, alpha=0.3),
        lambda y, n: fo.data.pachinko(y // 2, y, n),
    ],
)
def test_ids_are_int32_however_the_number_of_clients_is_given(split):
    labels = np.arange(20) % 4
    for number in (np.int64(3), np.uint8(3)):
        found = split(labels, number)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, split(labels, 3))


def test_quantity_skew_does_not_look_at_the_labels():
    """The mixture of a client is that of a random sample: hypergeometric counts."""
    labels = np.repeat([0, 1], 5000)
    ids = partition.quantity_skew(labels, 10, power=1.0, seed=2)
    counts = histograms(labels, ids, 10)
    sizes = counts.sum(1)
    deviation = np.sqrt(sizes / 4 * (1 - (sizes - 1) / 9999))
    assert (np.abs(counts[:, 0] - sizes / 2) < 4.5 * deviation).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": None}, "either alpha or power, .* got alpha=None and power=None"),
        ({"power": 1.0}, r"either alpha or power, .* got alpha=1\.0 and power=1\.0"),
        ({"alpha": None, "power": -1}, "power must be a number from 0 to infinity, got -1"),
        ({"alpha": np.nan}, "alpha must be a number from 0 to infinity, got nan"),
        ({"num_clients": 7}, "num_clients must be at most 6, .* got 7"),
        ({"min_size": -1}, "min_size must be a whole number of at least 0, got -1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_quantity_skew_refuses(change, message):
    arguments = {"labels_or_n": 6, "num_clients": 3, "alpha": 1.0} | change
    with pytest.raises(ValueError, match=message):
        partition.quantity_skew(**arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": -0.5}, r"alpha must be a number from 0 to infinity, got -0\.5"),
        ({"alpha": float("nan")}, "alpha must be .* got nan"),
        ({"alpha": "much"}, "alpha must be .* got 'much'"),
        ({"num_clients": 0}, "num_clients must be a whole number of at least 1, got 0"),
        ({"num_clients": 2.5}, r"num_clients must be .* got 2\.5"),
        ({"num_clients": True}, "num_clients must be .* got True"),
        ({"num_clients": 7}, "num_clients must be at most 6, .* got 7"),
        ({"min_size": 3}, "num_clients must be at most 2, .* got 3"),
        ({"min_size": -1}, "min_size must be a whole number of at least 0, got -1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"labels": [[0, 1]]}, r"labels must be a vector .* got shape \[1, 2\]"),
        ({"labels": []}, r"labels must be a vector .* got shape \[0\]"),
        ({"labels": np.array([0, "a"] * 3, object)}, "labels must be all integers or all strings"),
    ],
)
def test_dirichlet_refuses(change, message):
    arguments = {"labels": [0, 0, 1, 1, 2, 2], "num_clients": 3, "alpha": 1.0} | change
    with pytest.raises(ValueError, match=message):
        partition.dirichlet(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "labels_or_n must be a whole number of at least 1, got 0"),
        ((2.5, 1), r"labels_or_n must be .* got 2\.5"),
        (([[1]], 1), r"labels_or_n must be a vector .* got shape \[1, 1\]"),
        ((3, 4), "num_clients must be at most 3, .* got 4"),
        ((3, 2, -1), "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_iid_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        partition.iid(*arguments)
