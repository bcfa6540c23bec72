"""Pachinko allocation: invariants, limits, and its moments against theory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_opt.data.pachinko import pachinko

ALPHAS = st.one_of(st.sampled_from([0.0, 1e-300, 0.1, 10.0, 1e300, np.inf]), st.floats(0.01, 100))


@st.composite
def hierarchies(draw):
    """Pairs of a coarse and a fine label, not all different, and a number of clients that fits."""
    pairs = draw(
        st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=80)
    )
    coarse, fine = np.array(pairs).T
    return coarse, fine, draw(st.integers(1, len(pairs)))


@given(hierarchies(), ALPHAS, ALPHAS, st.integers(0, 2**40))
def test_each_example_has_one_client_and_all_clients_are_equally_large(split, a, b, seed):
    coarse, fine, num_clients = split
    arguments = {"coarse_alpha": a, "fine_alpha": b, "seed": seed}
    ids = pachinko(coarse, fine, num_clients, **arguments)
    assert ids.dtype == np.int32 and ids.shape == fine.shape
    assert ids.min() >= 0 and ids.max() < num_clients
    sizes = np.bincount(ids, minlength=num_clients)
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(ids, pachinko(coarse, fine, num_clients, **arguments))


def counts_of(ids, labels, num_clients, num_labels):
    counts = np.zeros((num_clients, num_labels), int)
    np.add.at(counts, (ids, labels), 1)
    return counts


def within_errors(squares, expected, errors=4.5):
    """Whether the mean of squared deviations is the expected one, by their own standard error."""
    return abs((squares - expected).mean()) < errors * (squares - expected).std() / np.sqrt(
        len(squares)
    )


def test_counts_are_dirichlet_multinomial_on_both_levels():
    """The first clients, who find every label in stock, of many."""
    num_clients, size, first = 4000, 40, 800
    fine = np.random.default_rng(0).permutation(np.repeat(np.arange(20), num_clients * size // 20))
    coarse, a, b = fine // 4, 0.3, 2.0
    ids = pachinko(coarse, fine, num_clients, coarse_alpha=a, fine_alpha=b, seed=1)
    by_coarse = counts_of(ids, coarse, num_clients, 5)[:first]
    by_fine = counts_of(ids, fine, num_clients, 20)[:first].reshape(first, 5, 4)

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
    fine = np.repeat(np.arange(12), 50)
    coarse = fine // 3
    ids = pachinko(coarse, fine, 24, coarse_alpha=0.0, seed=5)
    assert all(len(set(coarse[ids == client])) == 1 for client in range(24))
    assert any(len(set(fine[ids == client])) == 3 for client in range(24))


def test_the_same_fine_label_under_two_coarse_ones_is_two():
    """Strings too: red apples and red cars do not share a class."""
    coarse, fine = np.repeat(["apple", "car"], 40), np.tile(["green", "red"], 40)
    ids = pachinko(coarse, fine, 8, coarse_alpha=0.0, seed=0)
    assert all(len(set(coarse[ids == client])) == 1 for client in range(8))
    assert (ids != pachinko(coarse, fine, 8, coarse_alpha=0.0, seed=1)).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fine": [0, 1]}, "coarse and fine must be equally long, got 4 and 2 labels"),
        ({"coarse": [[0]]}, r"coarse must be a vector .* got shape \[1, 1\]"),
        ({"num_clients": 5}, "num_clients must be at most 4, .* got 5"),
        ({"coarse_alpha": -1.0}, r"coarse_alpha must be a number from 0 to infinity, got -1\.0"),
        ({"fine_alpha": np.nan}, "fine_alpha must be a number from 0 to infinity, got nan"),
        ({"seed": 0.5}, r"seed must be a whole number of at least 0, got 0\.5"),
    ],
)
def test_refused(change, message):
    arguments = {"coarse": [0, 0, 1, 1], "fine": [0, 1, 2, 3], "num_clients": 2} | change
    with pytest.raises(ValueError, match=message):
        pachinko(**arguments)
