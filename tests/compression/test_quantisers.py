"""Quantisers: within their stated errors, right on average, and right at every edge."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedjax_opt import compression

FILE = pathlib.Path(__file__).parents[1] / "oracles" / "cefedavg-compression.json"
PUBLISHED = json.loads(FILE.read_text(encoding="utf-8"))["quantisers"]
LENGTH = 16
DETERMINISTIC = {
    "uniform": compression.uniform(8),
    "exponential": compression.exponential(8),
    "sign": compression.sign(),
    "ternary": compression.ternary(stochastic=False),
}
STOCHASTIC = {
    "uniform": compression.uniform(3, stochastic=True),
    "exponential": compression.exponential(4, stochastic=True),
    "ternary": compression.ternary(),
}


@jax.jit
def _seen(codec, values, key):
    return compression.lossy(codec, {"w": values}, key)["w"]


def seen(codec, values, key=None):
    """What the receiver sees of a vector."""
    return np.asarray(_seen(codec, jnp.asarray(values), jax.random.key(0) if key is None else key))


def vectors(low=-(2.0**60), high=2.0**60):
    """Vectors of one length with all that may happen in them: equal entries, zeros, one sign."""
    entries = st.floats(low, high, allow_subnormal=False)
    few = st.lists(entries, min_size=1, max_size=3).flatmap(st.sampled_from)
    return hnp.arrays(np.float64, LENGTH, elements=st.one_of(entries, st.just(0.0), few))


def range_of_sign(values):
    """For each entry, the range of the entries of its sign; zeros are with the positive ones."""
    negative, rest = values[values < 0], values[values >= 0]
    return np.where(
        values < 0, np.ptp(negative) if negative.size else 0, np.ptp(rest) if rest.size else 0
    )


# Shorter types are computed in float32.
SHORT = {"float32": np.float32, "float16": np.float16, "bfloat16": jnp.bfloat16}
TYPES = SHORT | {"float64": np.float64}


def vectors_of(dtype):
    """Vectors of a type, as float64: of all magnitudes, of one, and far from 0 and near each other."""
    info = jnp.finfo(dtype)
    largest = float(info.max)
    entries = st.floats(-largest, largest, allow_subnormal=False)
    exponents = st.integers(int(info.minexp) + 12, int(info.maxexp) - 1)
    near = st.tuples(exponents, st.floats(0.0, 0.2)).map(
        lambda pair: hnp.arrays(np.float64, LENGTH, elements=st.floats(1.0, 1 + pair[1])).map(
            lambda values: values * 2.0 ** pair[0]
        )
    )
    spread = hnp.arrays(
        np.float64,
        LENGTH,
        elements=st.tuples(exponents, st.floats(-1, 1)).map(lambda p: p[1] * 2.0 ** p[0]),
    )
    plain = hnp.arrays(np.float64, LENGTH, elements=entries)
    drawn = st.one_of(plain, spread, near.flatmap(lambda vectors: vectors))
    return drawn.map(lambda values: _normal(values, dtype))


def _normal(values, dtype):
    """As the type has them; what it could only have as a denormal is 0."""
    values = np.asarray(jnp.asarray(values).astype(dtype), np.float64)
    return np.where(np.abs(values) < float(jnp.finfo(dtype).tiny), 0, values)


def seen_as(codec, values, dtype):
    return np.asarray(seen(codec, jnp.asarray(values).astype(dtype)), np.float64)


def stated(bound, size, bits, dtype):
    """An error as it is stated: half a step, and what arithmetic and the type add."""
    own = jnp.finfo(dtype)
    computed = own if own.bits >= 32 else jnp.finfo(np.float32)
    return bound * (1 + 2 ** (bits + 2) * float(computed.eps)) + 4 * float(own.eps) * size


@pytest.mark.parametrize("bits", [2, 5, 8, 12, 16])
@pytest.mark.parametrize("name", TYPES)
def test_uniform_is_off_by_half_a_step(name, bits):
    tiny = float(jnp.finfo(np.float64 if name == "float64" else np.float32).tiny)

    @given(vectors_of(TYPES[name]))
    def check(values):
        found = seen_as(compression.uniform(bits), values, TYPES[name])
        bound = stated(range_of_sign(values) / (2**bits - 2), np.abs(values), bits, TYPES[name])
        assert np.all(np.abs(found - values) <= bound + tiny)
        assert np.all(np.sign(found) * np.sign(values) >= 0)
        assert np.all(found[values == 0] == 0)
        # The extremes of each sign are sent, so they come back exactly, if XLA tells them apart: on CPUs
        # a difference below the smallest normal number is 0.
        for part in (values[values < 0], values[values >= 0]):
            if part.size and not 0 < part.max() - part.min() < tiny:
                assert {part.min(), part.max()} <= set(found.tolist())

    check()


@pytest.mark.parametrize("bits", [3, 5, 8, 12, 16])
@pytest.mark.parametrize("name", TYPES)
def test_exponential_is_off_by_half_a_step_of_its_logarithm(name, bits):
    @given(vectors_of(TYPES[name]))
    def check(values):
        found = seen_as(compression.exponential(bits), values, TYPES[name])
        np.testing.assert_array_equal(np.sign(found), np.sign(values))
        size = np.abs(values[values != 0])
        assume(size.size)
        bound = (np.log(size.max()) - np.log(size.min())) / (2**bits - 4)
        off = np.abs(np.log(np.abs(found[values != 0])) - np.log(size))
        assert np.all(off <= stated(bound, 1, bits, TYPES[name]))
        assert {size.min(), size.max()} <= set(np.abs(found).tolist())

    check()


@pytest.mark.parametrize("name", SHORT)
def test_signs_of_the_largest_numbers(name):
    """Their mean is a number of their type, though their sum is none, nor the reciprocal of one."""
    largest = float(jnp.finfo(SHORT[name]).max)
    values = np.array([largest, -largest, largest / 2] * 4)
    found = seen_as(compression.sign(), values, SHORT[name])
    np.testing.assert_allclose(found, np.sign(values) * largest * 5 / 6, rtol=2**-8)
    found = seen_as(compression.ternary(stochastic=False), values, SHORT[name])
    np.testing.assert_array_equal(found[:2], values[:2])


@given(values=vectors(-1e3, 1e3))
def test_sign_and_ternary(values):
    scale = np.mean(np.abs(values))
    np.testing.assert_allclose(
        seen(compression.sign(), values), np.where(values >= 0, scale, -scale), rtol=1e-12
    )
    largest = np.max(np.abs(values))
    found = seen(compression.ternary(stochastic=False), values)
    assert np.all(np.abs(found - values) <= largest / 2 * (1 + 1e-12))
    assert np.all(np.isin(np.abs(found), [0, largest]))


@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_rounding_is_right_on_average(name):
    """The mean over many draws, within five of its own standard errors; and it does vary."""
    values = np.array([-3.0, -0.7, -0.2, -0.01, 0.0, 0.003, 0.4, 1.1, 2.0])
    draw = jax.jit(
        jax.vmap(
            lambda key: compression.lossy(STOCHASTIC[name], {"w": jnp.asarray(values)}, key)["w"]
        )
    )
    found = np.asarray(draw(jax.random.split(jax.random.key(1), 4000)))
    error = found.std(0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(0) - values) <= 5 * error + 1e-12)
    assert np.sum(error > 0) >= 4
    # Neighbouring levels only: an entry never moves further than a whole step.
    assert np.ptp(found, axis=0).max() <= {"uniform": 1.0, "exponential": 2.9, "ternary": 6.0}[name]


@pytest.mark.parametrize("case", PUBLISHED)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_within_one_bin_of_the_published_code(case, precision):
    values = np.array(PUBLISHED[case]["input"], precision)
    theirs = PUBLISHED[case][precision]
    step = range_of_sign(values) / 127
    ours = seen(compression.uniform(8), values)
    apart = np.abs(ours - np.array(theirs["uni_dq"]))
    # Their zeros become the most negative entry; ours stay.
    assert np.all((apart <= step * 1.001 + 1e-6) | (values == 0))
    assert np.all(ours[values == 0] == 0)
    assert np.all(np.abs(ours - values) <= step / 2 * 1.001 + 1e-6)
    # Their magnitudes above 1 all decode to 1 / b; below, both are within a bin of each other.
    ours, theirs_back = seen(compression.exponential(8), values), np.array(theirs["exp_dq"])
    np.testing.assert_array_equal(np.sign(ours), np.sign(values))
    inner = (values != 0) & (np.abs(values) < 1)
    log_ratio = np.abs(np.log(np.abs(ours[inner]) / np.abs(theirs_back[inner])))
    size = np.abs(values[values != 0])
    ours_bin = np.log(size.max() / size.min()) / 126
    assert np.all(log_ratio <= np.log(theirs["exp_q"]["b"]) + ours_bin / 2 + 1e-5)


@pytest.mark.parametrize("case", PUBLISHED)
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_from_one_is_the_published_scale_rounded_to_the_nearest(case, precision):
    values, theirs = np.array(PUBLISHED[case]["input"], precision), PUBLISHED[case][precision]
    base = np.log(theirs["exp_q"]["b"])
    ours = seen(compression.exponential(8, from_one=True), values)
    np.testing.assert_array_equal(np.sign(ours), np.sign(values))
    here = values != 0
    levels = -np.log(np.abs(ours[here])) / base
    lowest = np.where(values[here] < 0, 1, 0)
    exact = -np.log(np.minimum(np.abs(values[here]), 1)) / base
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
    assert np.all(np.abs(levels - np.clip(exact, lowest, 127)) <= 0.5 + 1e-3)
    # Theirs is rounded to one side.
    apart = -np.log(np.abs(np.array(theirs["exp_dq"]))[here]) / base - levels
    assert np.all(np.abs(apart) <= 1.001)


def test_from_one_sends_one_number_and_refuses_what_it_cannot_be():
    like = {"w": jnp.zeros(LENGTH)}
    codecs = compression.exponential(8, from_one=True), compression.exponential(8)
    fewer, more = (compression.expected_bytes(codec, like) for codec in codecs)
    assert more - fewer == 8
    np.testing.assert_array_equal(seen(codecs[0], np.array([3.0, 0.0, 2.0])), [1, 0, 1])
    with pytest.raises(ValueError, match=r"stochastic=True .* from_one=True"):
        compression.exponential(8, stochastic=True, from_one=True)


EDGES = {
    "one sign missing": [1.0, 2.0, 5.0],
    "the other one": [-1.0, -2.0, -5.0],
    "one value": [0.3, 0.3, 0.3],
    "minus one": [-1.0, 0.5, -1.0],
    "one entry": [-7.5],
    "zeros": [0.0, 0.0],
    "zeros among negatives": [0.0, -2.0, 0.0, -1.0],
    "above one": [1e10, -3e20, 5.0],
    "extremes of the type": [3e38, -3e38, 1e-37],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
@pytest.mark.parametrize("name", ["uniform", "exponential"])
@pytest.mark.parametrize("case", EDGES)
def test_edges_come_back_exactly(name, case, dtype):
    """So few values of one sign are its extremes, or near enough to a level."""
    values = jnp.asarray(EDGES[case]).astype(dtype)
    found = np.asarray(seen(DETERMINISTIC[name], values), np.float64)
    exact = np.asarray(values, np.float64)
    bound = range_of_sign(exact) / 254 if name == "uniform" else np.abs(exact) * 0.8
    if len(set(np.abs(EDGES[case]))) <= 2:
        bound = np.zeros_like(exact)
    rounding = 1e-6 if dtype != jnp.bfloat16 else 2**-8
    assert np.all(np.abs(found - exact) <= bound + rounding * np.abs(exact))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_denormals_stay_harmless(name):
    """They may be flushed to zero or to the smallest normal number, on any machine; no NaN, no jump."""
    tiny = float(np.finfo(np.float32).tiny)
    values = np.array([tiny / 8, -tiny / 2, 3e-45, 0.5], np.float32)
    found = seen(DETERMINISTIC[name], values)
    assert np.all(np.isfinite(found))
    if name in ("uniform", "exponential"):
        assert found[3] == 0.5
        assert np.all(np.abs(found[:3]) <= max(tiny, 0.5 / 127 if name == "uniform" else tiny))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [*DETERMINISTIC, "ce_fedavg"])
def test_what_is_not_finite_is_never_hidden(name, bad):
    """Inside a program nothing can be raised: what the server sees is then not finite either."""
    codec = DETERMINISTIC.get(name, compression.ce_fedavg(0.5))
    values = np.array([0.1, bad, -2.0, 0.3])
    assert not np.all(np.isfinite(seen(codec, values)))
    assert not np.all(np.isfinite(seen(compression.exponential(8, from_one=True), values)))


TOP_K, UNIFORM = compression.top_k(sparsity=0.5), compression.uniform(8)
ALONE = "companions must be a quantiser alone"


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: compression.uniform(1), "bits"),
        (lambda: compression.uniform(17), "bits"),
        (lambda: compression.exponential(2), "bits"),
        (lambda: compression.uniform(8.0), "bits"),
        (lambda: compression.top_k(sparsity=1.0), "sparsity"),
        (lambda: compression.top_k(sparsity=-0.1), "sparsity"),
        (lambda: compression.random_k(sparsity=float("nan")), "sparsity"),
        (lambda: compression.top_k(sparsity=0.5, scope="model"), "scope"),
        (lambda: compression.excluding(UNIFORM, min_size=-1), "min_size"),
        (lambda: compression.excluding("sign"), "codec"),
        (lambda: compression.excluding(UNIFORM, ""), "where"),
        (lambda: compression.chain(), "codecs"),
        (lambda: compression.chain("top_k"), r"codecs\[0\]"),
        (lambda: compression.chain(TOP_K, companions="sign"), "companions must be a Codec"),
        (lambda: compression.chain(UNIFORM, TOP_K), "must come last"),
        (lambda: compression.chain(TOP_K, companions=TOP_K), ALONE),
        (lambda: compression.chain(TOP_K, companions=compression.Codec()), ALONE),
        (lambda: compression.chain(TOP_K, companions=compression.excluding(UNIFORM, "a")), ALONE),
        (
            lambda: compression.chain(TOP_K, companions=compression.excluding(UNIFORM, min_size=9)),
            ALONE,
        ),
        (
            lambda: compression.chain(
                TOP_K, companions=compression.chain(UNIFORM, companions=UNIFORM)
            ),
            ALONE,
        ),
        (
            lambda: compression.chain(compression.excluding(TOP_K, "state/**"), UNIFORM),
            "excluding goes around a chain",
        ),
        (
            lambda: compression.chain(TOP_K, compression.excluding(UNIFORM, min_size=9)),
            "excluding goes around a chain",
        ),
        (
            lambda: compression.chain(
                compression.chain(TOP_K, companions=UNIFORM), UNIFORM, companions=UNIFORM
            ),
            "companions must be given once",
        ),
    ],
)
def test_what_is_refused(make, word):
    with pytest.raises(ValueError, match=word):
        make()
