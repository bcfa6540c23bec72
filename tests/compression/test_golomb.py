"""Golomb-Rice codes against a coder that writes one character per bit, and published streams."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_opt.compression import bits, golomb
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


def text(stream):
    values = np.unpackbits(stream.data, bitorder="little", count=stream.length)
    return "".join(map(str, values.tolist()))


def stream(characters):
    ones = np.array([int(c) for c in characters], np.uint8)
    return bits.Stream(np.packbits(ones, bitorder="little"), ones.size)


index_sets = st.lists(st.integers(0, 300), unique=True, max_size=60).map(sorted)


@settings(max_examples=200)
@given(index_sets, st.integers(0, 12))
def test_codes(indices, b):
    unary, remainders = golomb.encode(indices, b)
    assert (text(unary), text(remainders)) == slow_codes(indices, b)
    size = indices[-1] + 1 if indices else 0
    back = golomb.decode(unary, remainders, b, len(indices), size)
    assert back.tolist() == indices


@given(index_sets)
def test_extreme_parameters_and_indices(indices):
    far = [*indices, 2**31 - 2]
    for b in (20, 30):
        streams = golomb.encode(np.array(far, np.int32), b)
        assert golomb.decode(*streams, b, len(far), 2**31 - 1).tolist() == far


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: f"s={entry['s']}")
def test_published_codes(entry):
    """Indices that the authors' code encoded.

    It codes the gap and not the gap less one, so that with the same parameter no index takes more bits
    here than there. It rounds the logarithm of the parameter towards zero and not down, which differs
    for s from 0.38 to 0.618, where its parameter is 1 and the right one 0.
    """
    indices, b = entry["indexes"], entry["bstar"]
    unary, remainders = golomb.encode(indices, b)
    assert golomb.decode(unary, remainders, b, len(indices), 400).tolist() == indices
    assert unary.length + remainders.length <= len(entry["bits"])
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


def test_what_is_printed():
    """The bits of chapter 3 of the thesis, (3.3) with (3.4) corrected."""
    ratio = {s: 32 / ((1 - s) * (8 + golomb.expected_bits(s))) for s in (0.6, 0.9, 0.95)}
    assert {s: round(value, 1) for s, value in ratio.items()} == {0.6: 7.6, 0.9: 25.1, 0.95: 46.4}
    ratio = {s: 96 / ((1 - s) * (24 + golomb.expected_bits(s))) for s in (0.6, 0.9, 0.95)}
    assert {s: round(value, 1) for s, value in ratio.items()} == {0.6: 9.1, 0.9: 33.4, 0.95: 64.5}
    assert golomb.parameter(0.0) == 0 and golomb.expected_bits(0.0) == 1.0


@pytest.mark.parametrize("s", [0.0, 0.6, 0.9, 0.95, 0.999])
def test_random_indices_take_the_expected_bits(s):
    kept = np.random.default_rng(0).random(200_000) >= s
    indices = np.flatnonzero(kept)
    streams = golomb.encode(indices, golomb.parameter(s))
    total = sum(stream.length for stream in streams)
    # Quotients have a standard deviation of at most 1.3 bits: four of the mean's.
    tolerance = 4 * 1.3 / math.sqrt(indices.size)
    assert abs(total / indices.size - golomb.expected_bits(s)) <= tolerance
    back = golomb.decode(*streams, golomb.parameter(s), indices.size, kept.size)
    np.testing.assert_array_equal(back, indices)


@jax.jit
def size_by_a_running_maximum(kept, b):
    """The plain way: the index before each is a running maximum."""
    index = jnp.arange(kept.size, dtype=jnp.int32)
    last = jax.lax.cummax(jnp.where(kept, index, -1))
    previous = jnp.concatenate([jnp.full((1,), -1, jnp.int32), last[:-1]])
    return jnp.sum(jnp.where(kept, ((index - previous - 1) >> b) + 1, 0), dtype=jnp.int32)


in_program = jax.jit(golomb.size_in_bits)


@settings(max_examples=60)
@given(
    st.sampled_from([1, 31, 32, 33, 64, 300]),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    st.integers(0, 10),
    st.integers(0, 2**32 - 1),
)
def test_the_size_inside_a_program(size, share, b, seed):
    kept = np.random.default_rng(seed).random(size) < share
    unary, _ = golomb.encode(np.flatnonzero(kept), b)
    found = in_program(kept, jnp.int32(b))
    assert found.dtype == jnp.int32
    assert int(found) == unary.length == int(size_by_a_running_maximum(kept, jnp.int32(b)))


def test_the_size_of_every_small_set():
    size = 9
    sets = np.array(list(itertools.product([False, True], repeat=size)))
    found = jax.jit(jax.vmap(golomb.size_in_bits, (0, None)))(sets, jnp.int32(1))
    wanted = [golomb.encode(np.flatnonzero(kept), 1)[0].length for kept in sets]
    assert found.tolist() == wanted
    assert int(golomb.size_in_bits(jnp.zeros(0, bool), 3)) == 0


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


def damaged(unary="110100", remainders="010", b=1, count=3, size=12):
    return lambda: golomb.decode(stream(unary), stream(remainders), b, count, size)


def test_the_undamaged_streams_of_the_next_test_are_codes():
    assert damaged()().tolist() == [4, 8, 9]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (damaged(size=9), "indices must be less than 9, got 9"),
        (damaged(unary="110101"), "must hold 3 codes, got 2 ends of one"),
        (damaged(unary="110000"), "must hold 3 codes, got 4 ends of one"),
        (damaged(unary="01001"), "must hold 3 codes, got 3 ends of one"),
        (damaged(unary="1", remainders="", b=0, count=0), "must hold 0 codes, got 0 ends of one"),
        (damaged(unary="00"), "3 unary codes do not fit into 2 bits"),
        (damaged(remainders="01"), "remainders of 3 codes must be 3 bits, got 2"),
        (damaged(remainders="0101"), "remainders of 3 codes must be 3 bits, got 4"),
        (damaged(b=2), "remainders of 3 codes must be 6 bits, got 3"),
        (damaged(unary="1" * 2000, remainders="", b=0, count=0), "indices must be less than 12"),
        (
            lambda: golomb.decode(bits.Stream(np.uint8([64]), 6), stream(""), 0, 6, 9),
            "stray bits",
        ),
        (
            lambda: golomb.decode(stream("0"), bits.Stream(np.uint8([8]), 3), 3, 1, 9),
            "stray bits",
        ),
        (damaged(unary="1" * 999 + "0", remainders="0" * 30, b=30, count=1), "got 1072668082176"),
        (lambda: golomb.encode([1, 1], 0), "indices must be strictly increasing"),
        (lambda: golomb.encode([2, 1], 0), "indices must be strictly increasing"),
        (lambda: golomb.encode([-1, 1], 0), "indices must be strictly increasing and not negative"),
        (lambda: golomb.encode([1], -1), "b must be a whole number from 0 to 30, got -1"),
        (lambda: golomb.encode([1], 31), "b must be a whole number from 0 to 30, got 31"),
        (lambda: golomb.parameter(1.0), r"sparsity must lie in \[0.0, 1.0\), got 1.0"),
        (lambda: golomb.expected_bits(-0.1), r"sparsity must lie in \[0.0, 1.0\), got -0.1"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
