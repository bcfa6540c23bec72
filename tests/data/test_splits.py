"""Splits: what all have in common, their limits, and their moments against theory."""

import inspect
from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_opt as fo
from fedjax_opt.data import (
    balanced_dirichlet,
    by_key,
    dirichlet,
    iid,
    label_shards,
    pachinko,
    quantity_skew,
)

SEEDS = st.integers(0, 2**40)
ALPHAS = st.one_of(
    st.sampled_from([0.0, 5e-324, 1e-300, 0.01, 0.5, 1.0, 1e300, 1.7e308, np.inf]),
    st.floats(1e-3, 1e3),
)


def by_fours(labels, num_clients, seed, **options):
    """Pachinko over classes of four fine labels each."""
    return pachinko(labels, np.arange(len(labels)) % 4, num_clients, seed=seed, **options)


# name -> (the split by labels, number of clients and seed, of an alpha; whether sizes are equal)
SPLITS = {
    "iid": (lambda y, n, seed, alpha: iid(y, n, seed), True),
    "shards": (lambda y, n, seed, alpha: label_shards(y, n, 1, seed), True),
    "dirichlet": (lambda y, n, seed, alpha: dirichlet(y, n, alpha, seed=seed), False),
    "balanced": (lambda y, n, seed, alpha: balanced_dirichlet(y, n, alpha, seed=seed), True),
    "skew": (lambda y, n, seed, alpha: quantity_skew(y, n, alpha=alpha, seed=seed), False),
    "power": (lambda y, n, seed, alpha: quantity_skew(len(y), n, power=alpha, seed=seed), False),
    "coarse": (lambda y, n, seed, alpha: by_fours(y, n, seed, coarse_alpha=alpha), True),
    "fine": (lambda y, n, seed, alpha: by_fours(y, n, seed, fine_alpha=alpha), True),
}


@st.composite
def splits(draw):
    """Labels with any class sizes, and a number of clients and a smallest size that fit them."""
    labels = np.asarray(draw(st.lists(st.integers(-3, 6), min_size=1, max_size=120)))
    num_clients = draw(st.integers(1, len(labels)))
    return labels, num_clients, draw(st.integers(1, len(labels) // num_clients))


def histograms(labels, ids, num_clients):
    """Counts `[num_clients, num_classes]` of the labels of each client."""
    classes, index = np.unique(labels, return_inverse=True)
    counts = np.zeros((num_clients, len(classes)), int)
    np.add.at(counts, (ids, index), 1)
    return counts


@pytest.mark.parametrize("name", SPLITS)
@settings(deadline=None)
@given(splits(), ALPHAS, SEEDS)
def test_each_example_has_one_client_and_each_client_enough(name, case, alpha, seed):
    split, equal = SPLITS[name]
    labels, num_clients, _ = case
    before = labels.copy()
    ids = split(labels, num_clients, seed, alpha)
    assert ids.dtype == np.int32 and ids.shape == labels.shape
    sizes = np.bincount(ids, minlength=num_clients)
    assert ids.min() >= 0 and len(sizes) == num_clients and sizes.min() >= 1
    assert not equal or sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(labels, before)
    np.testing.assert_array_equal(ids, split(labels, num_clients, seed, alpha))


@pytest.mark.parametrize("name", SPLITS)
def test_strings_are_labels_seeds_matter_and_numbers_may_be_of_numpy(name):
    split, _ = SPLITS[name]
    labels = np.asarray(["cat", "dog", "emu", "fox"] * 20)
    first, second = (split(labels, 5, seed, 0.5) for seed in (0, 1))
    assert (first != second).any()
    for number in (np.int64(5), np.uint8(5)):
        found = split(labels, number, 0, 0.5)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, first)


@settings(deadline=None)
@given(splits(), SEEDS)
def test_dirichlet_of_zero_gives_one_class_per_client(case, seed):
    labels, num_clients, _ = case
    counts = histograms(labels, dirichlet(labels, num_clients, 0, seed=seed), num_clients)
    by_client = num_clients >= counts.shape[1]
    assert ((counts > 0).sum(1 if by_client else 0) == 1).all()


@pytest.mark.parametrize("skewed", [True, False])
@settings(deadline=None)
@given(splits(), SEEDS)
def test_only_as_many_are_moved_as_needed_and_from_the_largest(skewed, case, seed):
    labels, num_clients, min_size = case
    if skewed:
        split = partial(quantity_skew, labels, num_clients, power=2.0, seed=seed)
    else:
        split = partial(dirichlet, labels, num_clients, 0.3, seed=seed)
    free, ids = split(min_size=0), split(min_size=min_size)
    expected = np.bincount(free, minlength=num_clients)
    missing = np.maximum(min_size - expected, 0)
    if not skewed:  # its ids are shuffled before the moves, by the same draws
        assert (ids != free).sum() == missing.sum()
    for _ in range(missing.sum()):
        expected[expected.argmax()] -= 1
    np.testing.assert_array_equal(np.bincount(ids, minlength=num_clients), expected + missing)
    if not skewed:
        givers = free[ids != free]
        assert set(givers.tolist()) <= set(np.flatnonzero(missing == 0).tolist())


def test_who_is_moved_is_drawn():
    """Of a client's examples, all are as likely to go."""
    labels = np.repeat([0, 1], [20, 2])
    free = np.array([dirichlet(labels, 4, 0, seed=seed, min_size=0) for seed in range(200)])
    moved = np.array([dirichlet(labels, 4, 0, seed=seed, min_size=4) for seed in range(200)])
    gone = (free != moved)[:, :20].sum(0)
    assert gone.sum() == (free != moved).sum() > 100 and stats.chisquare(gone).pvalue > 1e-3


@settings(deadline=None)
@given(st.integers(2, 10), st.sampled_from([1e8, 1e300]), SEEDS)
def test_large_alpha_gives_every_client_the_same_mixture(num_clients, alpha, seed):
    labels = np.random.default_rng(seed).choice(5, 600, p=[0.4, 0.3, 0.2, 0.08, 0.02])
    for split in (dirichlet, balanced_dirichlet):
        counts = histograms(labels, split(labels, num_clients, alpha, seed=seed), num_clients)
        # Rounding alone moves a count by less than 1, of a class or of a client's amounts.
        assert np.abs(counts - counts.sum(0) / num_clients).max() < 2


def test_infinite_alpha_is_iid():
    labels = np.repeat([0, 1], [40, 7])
    np.testing.assert_array_equal(
        dirichlet(labels, 5, np.inf, seed=3), iid(np.zeros(47), 5, seed=3)
    )


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.9, 3.0])
def test_shares_of_classes_have_the_moments_of_a_dirichlet_distribution(alpha):
    """By the formulas for small and for large alpha. Of K shares, one has (K-1) / (K^2 (K alpha+1))."""
    num_clients, size, num_classes = 4, 500, 10_000
    labels = np.repeat(np.arange(num_classes), size)
    ids = dirichlet(labels, num_clients, alpha, min_size=0)
    cells = np.bincount(labels * num_clients + ids, minlength=num_classes * num_clients)
    shares = cells.reshape(num_classes, num_clients) / size
    np.testing.assert_allclose(shares.mean(0), 1 / num_clients, rtol=0.03)
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    np.testing.assert_allclose(shares.var(0).mean(), variance, rtol=0.02)


@settings(deadline=None)
@given(splits(), SEEDS)
def test_label_shards_deals_whole_shards_of_the_sorted_data(case, seed):
    labels, num_clients, per_client = case
    ids = label_shards(labels, num_clients, per_client, seed)
    # Sorted by (label, place in the data), which no other order of the data can hide.
    in_order = sorted(range(len(labels)), key=lambda i: (labels[i], i))
    shards = np.array_split(ids[in_order], num_clients * per_client)
    owners = [set(shard.tolist()) for shard in shards]
    assert all(len(owner) == 1 for owner in owners)
    dealt = np.bincount([owner.pop() for owner in owners], minlength=num_clients)
    np.testing.assert_array_equal(dealt, per_client)
    # A test set of other size gets the same deal.
    larger = np.repeat(labels, 3)
    again = label_shards(larger, num_clients, per_client, seed)
    again = np.array_split(again[np.argsort(larger, kind="stable")], num_clients * per_client)
    for mine, theirs in zip(shards, again, strict=True):
        assert set(mine.tolist()) == set(theirs.tolist())


def test_label_shards_gives_few_classes_and_not_one():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    classes = (histograms(labels, label_shards(labels, 50), 50) > 0).sum(1)
    assert classes.max() == 2  # a class is 10 shards, so no shard holds two of them
    # Two of a client's shards are of one class with probability 9 / 99.
    assert 0 < (classes == 1).sum() < 15


@given(st.integers(1, 30), st.integers(1, 500), st.floats(0, 4), SEEDS)
def test_sizes_follow_the_power_law_within_rounding(num_clients, n, power, seed):
    ids = quantity_skew(max(n, num_clients), num_clients, power=power, seed=seed, min_size=0)
    weights = np.arange(1, num_clients + 1) ** -power
    exact = len(ids) * weights / weights.sum()
    sizes = np.sort(np.bincount(ids, minlength=num_clients))[::-1]
    assert np.abs(sizes - exact).max() < 1 + 1e-9


def test_quantity_skew_limits_moments_and_mixtures():
    sizes = [
        np.sort(np.bincount(quantity_skew(90, 9, **skew), minlength=9)).tolist()
        for skew in ({"power": 0}, {"alpha": np.inf}, {"power": np.inf}, {"alpha": 0})
    ]
    assert sizes == [[10] * 9, [10] * 9, [1] * 8 + [82], [1] * 8 + [82]]
    num_clients, n, alpha = 2000, 10**6, 0.5
    shares = np.bincount(quantity_skew(n, num_clients, alpha=alpha, min_size=0)) / n
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    # A gamma(1/2) variable has excess kurtosis 12, so a variance is off by sqrt(14 / K) of itself.
    np.testing.assert_allclose(shares.var(), variance, rtol=4 * np.sqrt(14 / num_clients))
    # The mixture of a client is that of a random sample: hypergeometric counts.
    labels = np.repeat([0, 1], 5000)
    counts = histograms(labels, quantity_skew(labels, 10, power=1.0, seed=2), 10)
    sizes = counts.sum(1)
    deviation = np.sqrt(sizes / 4 * (1 - (sizes - 1) / 9999))
    assert (np.abs(counts[:, 0] - sizes / 2) < 4.5 * deviation).all()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 8), st.integers(0, 99))
def test_balanced_zero_gives_one_class_where_class_sizes_allow_it(clients_of_class, size, seed):
    labels = np.repeat(np.arange(len(clients_of_class)), np.array(clients_of_class) * size)
    labels = np.random.default_rng(seed).permutation(labels)
    num_clients = sum(clients_of_class)
    for alpha in (0.0, 1e-300):
        ids = balanced_dirichlet(labels, num_clients, alpha, seed=seed)
        assert ((histograms(labels, ids, num_clients) > 0).sum(1) == 1).all()


@given(splits(), SEEDS)
def test_balanced_limits(case, seed):
    labels, num_clients, _ = case
    zero, infinite = (
        histograms(labels, balanced_dirichlet(labels, num_clients, alpha, seed=seed), num_clients)
        for alpha in (0, np.inf)
    )
    assert (zero > 0).sum() <= num_clients + zero.shape[1] - 1  # a class more at the borders only
    assert np.abs(infinite - infinite.sum(0) / num_clients).max() < 1


@pytest.mark.parametrize("alpha", [0.1, 0.6])
@pytest.mark.parametrize("proportions", [[0.25] * 4, [0.4, 0.3, 0.2, 0.1]])
def test_balanced_mixtures_follow_the_dirichlet_distribution(alpha, proportions):
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


def test_balanced_clients_keep_to_their_own_classes():
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
    assert lacking.sum() > 40
    # A client may lack several classes at once: at most three, which triples a binomial's variance.
    assert abs(lacking[:20].sum() - lacking.sum() / 2) < 4 * np.sqrt(3 * lacking.sum() / 4)


def within_errors(squares, expected, errors=4.5):
    """Whether the mean of squared deviations is the expected one, by their own standard error."""
    error = (squares - expected).std() / np.sqrt(len(squares))
    return abs((squares - expected).mean()) < errors * error


def test_pachinko_counts_are_dirichlet_multinomial_on_both_levels():
    """The first clients, who find every label in stock, of many."""
    num_clients, size, first = 4000, 40, 800
    fine = np.random.default_rng(0).permutation(np.repeat(np.arange(20), num_clients * size // 20))
    coarse, a, b = fine // 4, 0.3, 2.0
    ids = pachinko(coarse, fine, num_clients, coarse_alpha=a, fine_alpha=b, seed=1)
    by_coarse = histograms(coarse, ids, num_clients)[:first]
    by_fine = histograms(fine, ids, num_clients)[:first].reshape(first, 5, 4)

    def variance(total, concentration, labels):
        """Of one of so many equally likely labels in a Dirichlet-multinomial total."""
        p = 1 / labels
        return total * p * (1 - p) * (total + labels * concentration) / (1 + labels * concentration)

    assert within_errors(((by_coarse - size / 5) ** 2)[:, 0], variance(size, a, 5))
    total = by_coarse[:, 2]
    assert within_errors(((by_fine[:, 2, 1] - total / 4) ** 2), variance(total, b, 4))


def test_a_fine_label_that_has_run_out_leaves_its_coarse_label_as_likely():
    fine = np.repeat([0, 1, 2, 3], [1, 499, 250, 250])
    coarse = fine // 2
    ids = pachinko(coarse, fine, 10, coarse_alpha=np.inf, fine_alpha=np.inf, seed=0)
    drawn = (coarse[ids < 5] == 0).sum()
    assert abs(drawn - 250) < 4.5 * np.sqrt(500 / 4)  # 500 fair draws


def test_coarse_alpha_zero_gives_one_coarse_label_while_it_lasts():
    """The same fine label under two coarse ones is two: red apples and red cars share no class."""
    fine = np.tile(["green", "red", "blue"], 200)
    coarse = np.repeat(["apple", "car", "book", "cup"], 150)
    ids = pachinko(coarse, fine, 24, coarse_alpha=0.0, seed=5)
    assert all(len(set(coarse[ids == client])) == 1 for client in range(24))
    assert any(len(set(fine[ids == client])) == 3 for client in range(24))


KEYS = st.one_of(
    st.lists(st.integers(-3, 3), min_size=1),
    st.lists(st.text(max_size=2), min_size=1),
    st.lists(st.one_of(st.integers(0, 2), st.sampled_from(["0", "1", ("a", 1)])), min_size=1),
)


@given(KEYS, st.integers(1, 4))
def test_clients_are_their_keys(keys, min_size):
    counts = Counter(keys)
    kept = [key for key in dict.fromkeys(keys) if counts[key] >= min_size]
    if not kept:
        with pytest.raises(ValueError, match=f"at most {max(counts.values())}, .* got {min_size}"):
            by_key(keys, min_size)
        return
    ids, names = by_key(keys, min_size)
    assert ids.dtype == np.int32 and list(names) == kept
    assert ids.tolist() == [kept.index(key) if key in kept else -1 for key in keys]
    if all(isinstance(key, type(keys[0])) and not isinstance(key, tuple) for key in keys):
        for array in (np.array(keys, object), np.array(keys)):
            if array.tolist() == keys:  # strings of NumPy lose zeros at their end
                assert by_key(array, min_size)[0].tolist() == ids.tolist()
                assert by_key(array, min_size)[1] == names


def test_dropped_examples_cannot_slip_in():
    keys, x = np.array(["ann", "bob", "ann"]), np.arange(3.0)
    ids, names = by_key(keys, min_size=2)
    with pytest.raises(ValueError, match="client_ids must lie in"):
        fo.ClientData.from_arrays({"x": x}, ids)
    data = fo.ClientData.from_arrays({"x": x[ids >= 0]}, ids[ids >= 0], len(names))
    assert data.sizes.tolist() == [2]


LABELS = [0, 0, 1, 1, 2, 2]
GOOD = {
    iid: {"labels_or_n": 6, "num_clients": 3},
    label_shards: {"labels": LABELS, "num_clients": 3},
    dirichlet: {"labels": LABELS, "num_clients": 3, "alpha": 1.0},
    balanced_dirichlet: {"labels": LABELS, "num_clients": 3, "alpha": 1.0},
    pachinko: {"coarse": LABELS, "fine": LABELS, "num_clients": 3},
    quantity_skew: {"labels_or_n": 6, "num_clients": 3, "alpha": 1.0},
    by_key: {"keys": ["ann", "bob"]},
}
# An argument -> values that every split that has it must refuse, and the words of the refusal.
REFUSED = {
    "num_clients": (
        (0, "num_clients must be a whole number of at least 1, got 0"),
        (2.5, r"num_clients must be .* got 2\.5"),
        (True, "num_clients must be .* got True"),
        (7, r"num_clients must be at most \d, .* of the 6 examples, got 7"),
    ),
    "seed": ((-1, "seed must be a whole number of at least 0, got -1"),),
    "min_size": ((-1, "min_size must be a whole number of at least [01], got -1"),),
    "labels": (
        ([[0, 1]], r"labels must be a vector .* got shape \[1, 2\]"),
        ([], r"labels must be a vector .* got shape \[0\]"),
        (np.array([0, "a"] * 3, object), "labels must be all integers or all strings"),
    ),
    "labels_or_n": (
        (0, "labels_or_n must be a whole number of at least 1, got 0"),
        (2.5, r"labels_or_n must be .* got 2\.5"),
        ([[1]], r"labels_or_n must be a vector .* got shape \[1, 1\]"),
    ),
    **{
        name: (
            (-0.5, rf"{name} must be a number from 0 to infinity, got -0\.5"),
            (np.nan, f"{name} must be .* got nan"),
            ("much", f"{name} must be .* got 'much'"),
        )
        for name in ("alpha", "coarse_alpha", "fine_alpha")
    },
}
ALSO_REFUSED = [
    (label_shards, {"num_clients": 4}, "must be at most 3, .* each client can have 2 of the 6"),
    (label_shards, {"shards_per_client": 0}, "shards_per_client must be .* at least 1, got 0"),
    (label_shards, {"shards_per_client": 1.5}, r"shards_per_client must be .* got 1\.5"),
    (dirichlet, {"min_size": 3}, "num_clients must be at most 2, .* got 3"),
    (pachinko, {"fine": [0, 1]}, "coarse and fine must be equally long, got 6 and 2 labels"),
    (pachinko, {"coarse": [[0]]}, r"coarse must be a vector .* got shape \[1, 1\]"),
    (quantity_skew, {"alpha": None}, "either alpha or power, .* alpha=None and power=None"),
    (quantity_skew, {"power": 1.0}, r"either alpha or power, .* alpha=1\.0 and power=1\.0"),
    (quantity_skew, {"alpha": None, "power": -1}, "power must be a number from 0 .* got -1"),
    (by_key, {"keys": []}, "keys must hold at least one key, got none"),
    (by_key, {"keys": "ann"}, "keys must be a sequence with one key per example, got 'ann'"),
    (by_key, {"keys": 3}, "keys must be a sequence with one key per example, got 3"),
    (by_key, {"keys": {"ann"}}, "keys must be a sequence"),
    (by_key, {"keys": np.zeros((2, 2))}, r"keys must be a vector, got shape \[2, 2\]"),
    (by_key, {"keys": ["ann", None]}, r"keys must not be missing, but keys\[1\] is None"),
    (by_key, {"keys": np.array([1, np.nan])}, r"keys must not be missing, but keys\[1\] is nan"),
    (by_key, {"keys": [1, [2]]}, r"keys must be hashable, but keys\[1\] is \[2\]"),
    (by_key, {"keys": [np.zeros(2)]}, r"keys must be hashable, but keys\[0\] is array"),
    (by_key, {"min_size": 0}, "min_size must be a whole number of at least 1, got 0"),
]
ALL_REFUSED = ALSO_REFUSED + [
    (function, {name: value}, message)
    for function in GOOD
    for name, cases in REFUSED.items()
    if name in inspect.signature(function).parameters
    for value, message in cases
]


@pytest.mark.parametrize(("function", "change", "message"), ALL_REFUSED)
def test_refused(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(**GOOD[function] | change)
