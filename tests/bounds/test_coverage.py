"""The batched coupon collector against enumeration in exact fractions, and against simulation."""

import decimal
import itertools
from fractions import Fraction
from math import comb

import jax
import numpy as np
import pytest

from fedjax_opt.bounds import (
    expected_rounds_to_see_all,
    expected_unseen_share_squared,
)


def enumerated(num_clients, cohort_size, rounds):
    """P(T = t) for t up to `rounds`, by following every set of clients through every cohort."""
    cohorts = [frozenset(c) for c in itertools.combinations(range(num_clients), cohort_size)]
    everyone = frozenset(range(num_clients))
    distribution, ended = {frozenset(): Fraction(1)}, []
    for _ in range(rounds):
        following = {}
        for seen, probability in distribution.items():
            for cohort in cohorts:
                after = seen | cohort
                share = probability / len(cohorts)
                following[after] = following.get(after, Fraction(0)) + share
        ended.append(following.pop(everyone, Fraction(0)))
        distribution = following
    return ended


def missed(num_clients, cohort_size, j):
    return Fraction(comb(num_clients - j, cohort_size), comb(num_clients, cohort_size))


def inclusion_exclusion(num_clients, cohort_size):
    """E[T] as a fraction: exact, and hopeless in floating point."""
    return sum(
        (-1) ** (j + 1) * comb(num_clients, j) / (1 - missed(num_clients, cohort_size, j))
        for j in range(1, num_clients + 1)
    )


def assert_near(found, exact, rtol):
    """To so many digits; what is below 1e-36 need not have any."""
    assert isinstance(found, float)
    assert abs(Fraction(found) - exact) <= Fraction(rtol) * exact + Fraction(1e-36)


@pytest.mark.parametrize(("num_clients", "cohort_size"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_expectations_are_those_of_enumeration(num_clients, cohort_size):
    """Up to some round by enumeration; after it, by the probability of a round more, which is exact."""
    ended = enumerated(num_clients, cohort_size, 12)
    expected = inclusion_exclusion(num_clients, cohort_size)
    partial = sum((t + 1) * p for t, p in enumerate(ended))
    # Beyond: sum of P(T > t) from t = 12 on, plus 12 P(T > 12), in geometric series.
    tail = sum(
        (-1) ** (j + 1) * comb(num_clients, j) * q**12 * (12 + 1 / (1 - q))
        for j in range(1, num_clients + 1)
        for q in [missed(num_clients, cohort_size, j)]
    )
    assert partial + tail == expected
    assert_near(expected_rounds_to_see_all(num_clients, cohort_size), expected, 1e-14)


@pytest.mark.parametrize(
    ("num_clients", "cohort_size"), [(10, 3), (30, 1), (100, 10), (100, 37), (120, 99), (150, 2)]
)
def test_larger_ones_are_exact_too(num_clients, cohort_size):
    found = expected_rounds_to_see_all(num_clients, cohort_size)
    assert_near(found, inclusion_exclusion(num_clients, cohort_size), 1e-13)


@pytest.mark.parametrize("cohort_size", [3, 40, 500])
def test_a_thousand_clients_are_exact_too(cohort_size):
    with decimal.localcontext() as context:
        context.prec = 400  # the largest of the alternating terms has 300 digits
        exact = decimal.Decimal(0)
        for j in range(1, 1001):
            q = decimal.Decimal(comb(1000 - j, cohort_size)) / comb(1000, cohort_size)
            exact += (-1) ** (j + 1) * comb(1000, j) / (1 - q)
        assert_near(expected_rounds_to_see_all(1000, cohort_size), Fraction(exact), 1e-13)


def test_one_at_a_time_is_the_classical_collector():
    harmonic = sum(Fraction(1, k) for k in range(1, 201))
    assert_near(expected_rounds_to_see_all(200, 1), 200 * harmonic, 1e-13)


def test_the_share_of_the_unseen_is_that_of_enumeration():
    for num_clients, cohort_size, rounds in [(4, 1, 3), (5, 2, 2), (5, 4, 1), (3, 3, 2)]:
        cohorts = list(itertools.combinations(range(num_clients), cohort_size))
        draws = list(itertools.product(cohorts, repeat=rounds))
        unseen = [num_clients - len(set().union(*draw)) for draw in draws]
        exact = Fraction(sum(u**2 for u in unseen), len(draws) * num_clients**2)
        found = expected_unseen_share_squared(num_clients, cohort_size, rounds)
        np.testing.assert_allclose(found, float(exact), rtol=1e-14)
    assert expected_unseen_share_squared(1, 1, 1) == 0


def test_the_share_of_the_unseen_transforms():
    sizes = np.array([1.0, 10.0, 99.0])
    batched = jax.jit(jax.vmap(expected_unseen_share_squared, (None, 0, None)))(100, sizes, 3.0)
    alone = [expected_unseen_share_squared(100, size, 3.0) for size in sizes]
    np.testing.assert_allclose(batched, alone, rtol=1e-12)
    slope = jax.grad(expected_unseen_share_squared, 1)(100.0, 10.0, 3.0)
    ends = [expected_unseen_share_squared(100.0, 10.0 + d, 3.0) for d in (1e-5, -1e-5)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-7)


def test_bad_input_is_refused():
    for sizes, name in [((0, 1), "num_clients"), ((5, 0), "cohort_size"), ((5, 6), "cohort_size"),
                        ((5.0, 1), "num_clients"), ((5, True), "cohort_size")]:  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must be"):
            expected_rounds_to_see_all(*sizes)
