"""Codecs on whole messages: what leads, what follows, what is left alone, and what it all weighs."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import compression
from fedjax_opt.compression import codec as inside
from fedjax_opt.compression.codec import layout

FILE = pathlib.Path(__file__).parents[1] / "oracles" / "cefedavg-compression.json"
SPARSIFY = json.loads(FILE.read_text(encoding="utf-8"))["sparsify"]
RNG, KEY = np.random.default_rng(0), jax.random.key(3)


def normal(*shape):
    """Numbers that do not repeat."""
    return jnp.asarray(RNG.normal(size=shape))


MODEL = fo.Variables(
    {"dense": {"kernel": normal(20, 10), "bias": normal(10)}},
    {"batch_stats": {"mean": normal(10)}, "count": jnp.int32(7)},
)


UPLOAD = (MODEL, {"m": MODEL.params, "v": jax.tree.map(jnp.square, MODEL.params)}, jnp.float32(3.0))


@pytest.mark.parametrize(
    "case", [name for name in SPARSIFY if "nan" not in name and "ties" not in name]
)
def test_the_published_sparsifier(case):
    entry = SPARSIFY[case]
    values = np.array(entry["input"])
    found = compression.lossy(compression.top_k(sparsity=entry["s"]), {"w": jnp.asarray(values)})[
        "w"
    ]
    np.testing.assert_array_equal(found, entry["dense_roundtrip"])
    np.testing.assert_array_equal(np.flatnonzero(found), entry["indexes"])


@pytest.mark.parametrize("case", [name for name in SPARSIFY if "ties" in name])
def test_ties_do_not_make_an_upload_larger(case):
    """The published code keeps every entry that equals its threshold; ours the first of them."""
    entry = SPARSIFY[case]
    values = np.array(entry["input"])
    found = np.asarray(
        compression.lossy(compression.top_k(sparsity=entry["s"]), {"w": jnp.asarray(values)})["w"]
    )
    kept = np.flatnonzero(found)
    assert set(kept) <= set(entry["indexes"])
    assert len(kept) == values.size - int(values.size * entry["s"]) <= entry["n_kept"]


def test_who_leads_and_who_follows():
    slots = layout(compression.ce_fedavg(0.9), UPLOAD)
    found = [(slot.path, slot.leader) for slot in slots]
    bias, kernel = "params/dense/bias", "params/dense/kernel"
    assert found == [
        (bias, 0), (kernel, 1), ("state/batch_stats/mean", 2), ("state/count", None),
        (bias, 0), (kernel, 1), (bias, 0), (kernel, 1), ("", None),
    ]  # fmt: skip


def test_companions_travel_at_the_weights_entries():
    codec = compression.ce_fedavg(0.9)
    model, moments, number = compression.lossy(codec, UPLOAD)
    kept = np.asarray(model.params["dense"]["kernel"]) != 0
    assert kept.sum() == 20
    largest = np.sort(np.abs(MODEL.params["dense"]["kernel"]).ravel())[-20:]
    assert np.all(np.abs(MODEL.params["dense"]["kernel"])[kept] >= largest.min())
    for name, sent in UPLOAD[1].items():
        seen = np.asarray(moments[name]["dense"]["kernel"])
        np.testing.assert_array_equal(seen != 0, kept)
        # By exponent: a relative error, where the weights' is absolute.
        exact = np.asarray(sent["dense"]["kernel"])[kept]
        spread = np.log(np.abs(exact).max() / np.abs(exact).min()) / 252
        assert np.max(np.abs(np.log(seen[kept] / exact))) <= spread * 1.001
    assert number == 3.0 and model.state["count"] == 7


def test_a_message_without_a_model_is_one():
    tree = {"a": normal(40), "b": [normal(30), jnp.arange(3)]}
    assert [slot.leader for slot in layout(compression.top_k(sparsity=0.5), tree)] == [0, 1, None]


def test_paths_that_read_the_same_are_two():
    tree = {"a": {"b": normal(4)}, "a/b": normal(6)}
    assert [slot.leader for slot in layout(compression.top_k(sparsity=0.5), tree)] == [0, 1]


def test_global_compares_numbers_of_several_types():
    tree = {"a": jnp.array([1.0, 2.0, 3.0], jnp.float64), "b": jnp.array([10.0, 0.1], jnp.float32)}
    seen = compression.lossy(compression.top_k(sparsity=0.6, scope="global"), tree)
    assert seen["a"].tolist() == [0.0, 0.0, 3.0] and seen["b"].tolist() == [10.0, 0.0]


def test_global_takes_more_of_what_is_larger():
    tree = {"large": 100 * normal(50), "small": normal(50)}
    seen = compression.lossy(compression.top_k(sparsity=0.6, scope="global"), tree)
    assert int(jnp.sum(seen["large"] != 0)) == 40 and int(jnp.sum(seen["small"] != 0)) == 0
    seen = compression.lossy(compression.top_k(sparsity=0.6), tree)
    assert int(jnp.sum(seen["large"] != 0)) == int(jnp.sum(seen["small"] != 0)) == 20


def test_excluded_leaves_travel_as_they_are():
    codec = compression.excluding(compression.ce_fedavg(0.9), ["state/**", "**/bias"])
    seen, moments, _ = compression.lossy(codec, UPLOAD)
    np.testing.assert_array_equal(seen.params["dense"]["bias"], MODEL.params["dense"]["bias"])
    np.testing.assert_array_equal(
        seen.state["batch_stats"]["mean"], MODEL.state["batch_stats"]["mean"]
    )
    np.testing.assert_array_equal(moments["m"]["dense"]["bias"], MODEL.params["dense"]["bias"])
    assert int(jnp.sum(seen.params["dense"]["kernel"] != 0)) == 20
    by_size, _, _ = compression.lossy(
        compression.excluding(compression.ce_fedavg(0.9), min_size=11), UPLOAD
    )
    np.testing.assert_array_equal(by_size.params["dense"]["bias"], MODEL.params["dense"]["bias"])


def test_what_is_excluded_stays_so():
    once = compression.excluding(compression.ce_fedavg(0.9), "state/**", min_size=5)
    twice = compression.excluding(compression.excluding(once, "**/bias"), min_size=3)
    left = [slot.path for slot in layout(twice, UPLOAD) if slot.leader is None]
    assert {"state/batch_stats/mean", "params/dense/bias"} <= set(left)
    assert len(twice.excluded) == 2 and twice.min_size == 5


@pytest.mark.parametrize("where", ["nosuch/**", lambda path, leaf: False])
def test_excluding_what_is_not_there_is_refused(where):
    codec = compression.excluding(compression.top_k(sparsity=0.5), where)
    with pytest.raises(ValueError, match="matches no leaf of the message; its leaves are a, b\\."):
        compression.lossy(codec, {"a": normal(3), "b": normal(2)})
    # Patterns are in the terms of the model, whatever else is in the message.
    with pytest.raises(ValueError, match="params/dense/bias, params/dense/kernel, state/batch"):
        compression.size(codec, UPLOAD)
    assert compression.lossy(codec, ()) == ()


def test_a_chain_keeps_what_its_links_have():
    exponential, uniform = compression.exponential(8), compression.uniform(8)
    inner = compression.chain(compression.top_k(sparsity=0.5), companions=exponential)
    codec = compression.chain(inner, uniform)
    assert codec.companion is exponential.quantiser and codec.quantiser is uniform.quantiser
    kept = compression.excluding(compression.ce_fedavg(0.9), "state/**", min_size=7)
    assert compression.chain(kept) == kept


def test_random_entries_are_fair_and_rescaled_ones_right_on_average():
    values = {"w": jnp.arange(1.0, 13.0)}
    codec = compression.random_k(sparsity=0.75, rescale=True)
    draw = jax.jit(jax.vmap(lambda key: compression.lossy(codec, values, key)["w"]))
    found = np.asarray(draw(jax.random.split(jax.random.key(0), 3000)))
    assert np.all(np.sum(found != 0, 1) == 3)
    shares = np.mean(found != 0, 0)
    assert np.all(np.abs(shares - 0.25) <= 5 * np.sqrt(0.25 * 0.75 / 3000))
    error = found.std(0) / np.sqrt(3000)
    assert np.all(np.abs(found.mean(0) - values["w"]) <= 5 * error)
    alone = compression.random_k(sparsity=0.99, rescale=True)
    one = np.asarray(compression.lossy(alone, values, KEY)["w"])
    assert np.sum(one != 0) == 1 and set(one) <= {0, *(12 * np.arange(1.0, 13.0))}


def test_the_expected_size_is_exact_where_no_positions_are_sent():
    codec, tree = compression.random_k(sparsity=0.7), {"w": normal(301), "v": normal(8)}
    assert compression.expected_bytes(codec, tree) == int(compression.size(codec, tree, KEY))


def test_sparsifiers_one_after_the_other():
    """The largest half of a random half."""
    codec = compression.chain(compression.random_k(sparsity=0.5), compression.top_k(sparsity=0.5))
    assert codec.random and not codec.by_seed
    values = normal(40)
    seen = np.asarray(compression.lossy(codec, {"w": values}, jax.random.key(3))["w"])
    assert np.sum(seen != 0) == 10
    assert not np.array_equal(
        seen, compression.lossy(compression.top_k(sparsity=0.75), {"w": values})["w"]
    )


def test_a_codec_that_draws_needs_a_key():
    for codec in (compression.random_k(sparsity=0.5), compression.uniform(8, stochastic=True)):
        with pytest.raises(ValueError, match="key"):
            compression.lossy(codec, {"w": normal(5)})


def test_sparsity_is_a_leaf():
    """A sweep over it is one program, and another value compiles nothing."""
    values, traces = {"w": normal(100)}, []

    @jax.jit
    def kept(codec):
        traces.append(None)
        return jnp.sum(compression.lossy(codec, values)["w"] != 0)

    assert [int(kept(compression.ce_fedavg(s))) for s in (0.5, 0.9, 0.99)] == [50, 10, 1]
    assert len(traces) == 1
    counts = jax.vmap(
        lambda s: jnp.sum(compression.lossy(compression.top_k(sparsity=s), values)["w"] != 0)
    )
    assert counts(jnp.array([0.5, 0.9, 0.99])).tolist() == [50, 10, 1]


@pytest.mark.parametrize(
    "codec",
    [
        compression.ce_fedavg(0.9),
        compression.top_k(sparsity=0.6),
        compression.random_k(sparsity=0.7),
        compression.uniform(5),
        compression.chain(compression.top_k(sparsity=0.8), compression.ternary(False)),
        compression.excluding(
            compression.chain(compression.top_k(sparsity=0.8), compression.sign()), "**/b"
        ),
    ],
    ids=["ce_fedavg", "top_k", "random_k", "uniform", "ternary", "excluding"],
)
def test_the_expected_size_is_the_mean_of_the_exact_one(codec):
    """Over random messages, to a hundredth: only positions vary."""

    def weigh(key):
        a, b = jax.random.split(key)
        tree = {"a": jax.random.normal(a, (1500,)), "b": jax.random.normal(b, (300,))}
        payload = inside.compress(codec, tree, key)
        return inside.size_in_bytes(codec, payload, tree)

    sizes = jax.jit(jax.vmap(weigh))(jax.random.split(jax.random.key(0), 50))
    like = {"a": jnp.zeros(1500), "b": jnp.zeros(300)}
    assert float(jnp.mean(sizes)) == pytest.approx(
        compression.expected_bytes(codec, like), rel=0.01
    )


HUGE = {"w": jax.ShapeDtypeStruct((600_000_000,), jnp.float32)}


@pytest.mark.parametrize(("codec", "wanted"), [
    (compression.Codec(), 2_400_000_007),
    (compression.uniform(16), 1_200_000_023),
    (compression.excluding(compression.ce_fedavg(0.9), "w"), 2_400_000_007),
])  # fmt: skip
def test_sizes_above_2_gigabytes(codec, wanted):
    """Of shapes: what travels whole has a size that no value changes."""
    payload = jax.eval_shape(inside.compress, codec, HUGE)
    size = inside.size_in_bytes(codec, payload, HUGE)
    assert jnp.issubdtype(size.dtype, jnp.floating)  # exact in float64, to 2^-24 in float32
    assert float(size) == compression.expected_bytes(codec, HUGE) == wanted
    traced = jax.eval_shape(compression.size, compression.ce_fedavg(0.5), HUGE)
    assert jnp.issubdtype(traced.dtype, jnp.floating)


def test_sizes_of_streams_above_2_gigabytes():
    """All that is counted is of the type in which sizes are: no product of whole numbers is left."""
    slot = layout(compression.top_k(sparsity=0.0), HUGE)[0]
    for dtype, error in ((jnp.float32, 1e-6), (jnp.float64, 0)):
        count, positions = jnp.asarray(599_999_999, dtype), jnp.asarray(600_000_001, dtype)
        found = inside._stream_bytes(slot, positions, count)
        assert found == pytest.approx((600_000_001 + 32 * 599_999_999 + 7) // 8, rel=error)
