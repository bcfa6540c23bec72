"""Golomb-Rice codes against a coder that writes one character per bit, and published streams."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_opt.compression import golomb
from tests.oracles.reference import TRAJECTORIES

pytestmark = pytest.mark.slow  # bytes are made by NumPy, from codes that other tests ask for

PUBLISHED = json.loads((TRAJECTORIES.parent / "cefedavg-compression.json").read_text())["golomb"]
SPARSITIES = [0.001, 0.1, 0.3, 0.5, 0.6, 0.618, 0.619, 0.7, 0.9, 0.95, 0.99, 0.999, 1 - 1e-9]


def slow_codes(indices, b):
    """(unary, remainders) as texts of 0 and 1, a number's lowest bit first."""
    unary, remainders, previous = "", "", -1
    for index in indices:
        gap = index - previous - 1
        unary += "1" * (gap // 2**b) + "0"
        remainders += "".join(str(gap // 2**place % 2) for place in range(b))
        previous = index
    return unary, remainders


index_sets = st.lists(st.integers(0, 300), unique=True, max_size=60).map(sorted)


@settings(max_examples=200)
@given(index_sets, st.integers(0, 12))
def test_codes(indices, b):
    bits = golomb.encode(indices, b)
    assert "".join(map(str, bits.tolist())) == "".join(slow_codes(indices, b))
    back, length = golomb.decode(np.append(bits, [1, 0, 1]), b, len(indices), 301)
    assert (back.tolist(), length) == (indices, bits.size)


@given(index_sets)
def test_extreme_parameters_and_indices(indices):
    far = [*indices, 2**31 - 2]
    for b in (20, 30):
        bits = golomb.encode(far, b)
        assert golomb.decode(bits, b, len(far), 2**31 - 1)[0].tolist() == far


@given(st.integers(1, 32), st.data())
def test_numbers_as_bits(width, data):
    numbers = data.draw(st.lists(st.integers(0, 2**width - 1) | st.just(2**width - 1), max_size=70))
    bits = golomb.as_bits(np.array(numbers, np.uint32), width)
    assert bits.tolist() == [number >> place & 1 for number in numbers for place in range(width)]
    assert golomb.as_numbers(bits, width).tolist() == numbers


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: f"s={entry['s']}")
def test_published_codes(entry):
    """Indices that the authors' code encoded.

    It codes the gap and not the gap less one, so that with the same parameter no index takes more bits
    here than there. It rounds the logarithm of the parameter towards zero and not down, which differs
    for s from 0.38 to 0.618, where its parameter is 1 and the right one 0.
    """
    indices, b = entry["indexes"], entry["bstar"]
    assert golomb.encode(indices, b).size <= len(entry["bits"])
    # Their stream, read as they write it: it is theirs that we compare with.
    differences = np.diff(indices, prepend=0)
    there = "".join(
        "1" * (d >> b) + "0" + format(d, "b").zfill(b)[-b:] * (b > 0) for d in differences
    )
    # For b = 0 it writes a remainder of one bit, 0, which its own decoder does not expect.
    assert (there if b else there.replace("0", "00")) == entry["bits"]
    logarithm = math.log2(math.log((math.sqrt(5) - 1) / 2) / math.log(entry["s"]))
    if logarithm >= 0 or logarithm < -1:
        assert golomb.parameter(entry["s"]) == b
    else:
        assert (golomb.parameter(entry["s"]), b) == (0, 1)


def exact_expectation(s, b):
    """E[b + 1 + floor(G / 2^b)] for P(G = k) = (1 - s) s^k, summed."""
    k = np.arange(200_000)
    return float(np.sum((1 - s) * s**k * (b + 1 + (k >> b))))


@pytest.mark.parametrize("s", [s for s in SPARSITIES if s <= 0.999])
def test_the_parameter_is_the_best_and_the_expectation_that_of_its_codes(s):
    b = golomb.parameter(s)
    costs = {other: exact_expectation(s, other) for other in range(max(0, b - 2), b + 3)}
    assert math.isclose(golomb.expected_bits(s), costs[b], rel_tol=1e-9)
    assert costs[b] == min(costs.values())


in_program = jax.jit(golomb.unary_bits)


@settings(max_examples=60)
@given(
    st.sampled_from([0, 1, 31, 32, 33, 64, 300]),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    st.integers(0, 10),
    st.integers(0, 2**32 - 1),
)
def test_the_size_inside_a_program(size, share, b, seed):
    kept = np.random.default_rng(seed).random(size) < share
    indices = np.flatnonzero(kept)
    unary = golomb.encode(indices, b).size - b * indices.size
    found = in_program(kept, jnp.int32(b))
    assert found.dtype == jnp.int32
    assert int(found) == unary


parameters = jax.jit(jax.vmap(golomb.parameter_of, (0, None)))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 4097, 40_000, 2**24 + 3, 2**31 - 1])
def test_the_parameter_inside_a_program(size):
    rng = np.random.default_rng(size)
    few = np.floor(size ** rng.random(200))
    edges = np.clip([0, 1, 2, 3, size // 2, size - 2, size - 1, size], 0, size)
    counts = np.concatenate([edges, few, size - few]).astype(np.int32)
    found = np.asarray(parameters(counts, jnp.int32(size)))
    assert found.dtype == np.int32
    assert found.min() >= 0 and found.max() <= golomb.LARGEST_PARAMETER
    for count, b in zip(counts.tolist(), found.tolist(), strict=True):
        if count in (0, size):
            assert b == 0
            continue
        # -1 / expm1 is 1 / (1 - s^(2^b)) without the loss of digits.
        log_s = math.log1p(-count / size)
        costs = [other - 1 / math.expm1(2**other * log_s) for other in (b, b + 1, max(b - 1, 0))]
        assert costs[0] <= min(costs) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("bits", "b", "count", "size", "message"),
    [
        ("110100010", 1, 3, 9, "positions must be less than 9, got 9"),
        ("110100", 1, 3, 12, "truncated: 6 bits do not hold 3 positions"),
        ("1101", 0, 3, 12, "truncated: 4 bits do not hold 3 positions"),
        ("1" * 999 + "0" * 31, 30, 1, 12, "got 1072668082176"),
        ("0" * 40, 31, 1, 12, "the Golomb parameter must be at most 30, got 31"),
    ],
)
def test_damaged_codes_are_refused(bits, b, count, size, message):
    assert golomb.decode(np.array([*map(int, "110100010")]), 1, 3, 12)[0].tolist() == [4, 8, 9]
    with pytest.raises(ValueError, match=message):
        golomb.decode(np.array([*map(int, bits)]), b, count, size)
