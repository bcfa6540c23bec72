"""The bytes of messages, against a writer that makes a text of bits, and against damage."""

import itertools
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.papers import tables
from fedjax_opt import Variables
from fedjax_opt import compression as fc
from fedjax_opt.compression import golomb, wire
from fedjax_opt.compression.codec import compress, decompress, layout, size_in_bytes
from fedjax_opt.wrappers.compressed import coded

pytestmark = pytest.mark.slow  # bytes are made by NumPy, from codes that other tests ask for

KEY = jax.random.key(1)
CODECS = {
    "nothing": lambda s: fc.Codec(),
    "top_k": lambda s: fc.top_k(sparsity=s),
    "random_k": lambda s: fc.random_k(sparsity=s),
    "ce_fedavg": fc.ce_fedavg,
    "narrow": lambda s: fc.chain(
        fc.top_k(sparsity=s, scope="global"), fc.uniform(5, stochastic=True)
    ),
    "wide": lambda s: fc.chain(
        fc.random_k(sparsity=s), fc.random_k(sparsity=0.1, rescale=True), fc.exponential(11)
    ),
    "sparse ternary": lambda s: fc.excluding(
        fc.chain(fc.top_k(sparsity=s), fc.ternary()), min_size=2
    ),
    "ternary": lambda s: fc.ternary(False),
    "signs": lambda s: fc.chain(fc.random_k(sparsity=s), fc.top_k(sparsity=s), fc.sign()),
    # "0" is the first leaf of a list.
    "most raw": lambda s: fc.excluding(fc.ce_fedavg(s), ["**/w", "0"]),
}


def moments(seed=0):
    """CE-FedAvg's message: a model, two moments that are its companions, and a number."""
    rng = np.random.default_rng(seed)

    def params():
        return {"b": rng.standard_normal(1), "w": rng.standard_normal((5, 8))}

    return (
        Variables(params(), {"steps": rng.integers(9)}),
        params(),
        params(),
        rng.standard_normal(),
    )


def mixed(seed=0):
    """Several dtypes and shapes, a scalar, an empty leaf, whole numbers."""
    rng = np.random.default_rng(seed)
    return {
        "empty": np.zeros((0, 3), np.float32),
        "half": rng.standard_normal((4, 5)).astype(jnp.bfloat16),
        "long": rng.standard_normal(300),  # so that counts take one byte or two
        "scalar": np.float32(rng.standard_normal()),
        "steps": rng.integers(-9, 9, 3, np.int32),
    }


# What codecs do with companions and with dtypes does not depend on each other: one tree for most.
MESSAGES = [
    ("nothing", mixed),
    ("top_k", mixed),
    ("random_k", mixed),
    ("ce_fedavg", moments),
    ("narrow", moments),
    ("wide", moments),
    ("sparse ternary", mixed),
    ("ternary", moments),
    ("signs", mixed),
    ("most raw", moments),
]


@jax.jit
def in_the_program(codec, tree, key):
    """All of it as one program, as a round has it: payload, what the server sees, size."""
    payload = compress(codec, tree, key)
    return payload, decompress(codec, payload, tree), fc.size(codec, tree, key)


def written_slowly(codec, tree, payload):
    """The format as its module describes it, from texts of 0 and 1, without the package's writers."""

    def as_bytes(text):
        text += "0" * (-len(text) % 8)
        return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))

    def number(value, width):
        return "".join(str(value >> place & 1) for place in range(width))

    data = b"" if payload.seed is None else np.asarray(payload.seed, "<u4").tobytes()
    for i, slot in enumerate(layout(codec, tree)):
        tensor = jax.tree.map(np.asarray, payload.tensors[i])
        if slot.leader is None:
            data += tensor.codes.tobytes()
            continue
        codes, positions, quantiser = tensor.codes, "", slot.quantiser
        if tensor.kept is not None:
            indices = np.flatnonzero(tensor.kept).tolist()
            codes = codes[tensor.kept]
            if slot.leader == i:
                data += len(indices).to_bytes(4, "little")
        if tensor.parameter is not None:
            b = int(tensor.parameter)
            gaps = [j - k - 1 for j, k in zip(indices, [-1, *indices], strict=False)]
            unary = "".join("1" * (gap >> b) + "0" for gap in gaps)
            positions = unary + "".join(number(gap, b) for gap in gaps)
            data += bytes([b])
        data += tensor.header.tobytes()
        if quantiser is None:
            data += as_bytes(positions + "".join(number(byte, 8) for byte in codes.tobytes()))
        else:
            width = math.ceil(math.log2(quantiser.radix))
            data += as_bytes(positions + "".join(number(int(code), width) for code in codes))
    return sealed(codec, tree, data)


def sealed(codec, tree, content):
    """The content in an envelope of its own."""
    start = zlib.crc32(wire.description(codec, tree).encode())
    checksum = zlib.crc32(b"fo\x03" + content, start)
    return b"fo\x03" + checksum.to_bytes(4, "little") + content


def check_message(codec, tree, key):
    tree = jax.tree.map(jnp.asarray, tree)
    payload, seen, size = in_the_program(codec, tree, key)
    data = wire.bytes_of(codec, payload, tree)
    assert len(data) == int(size)
    assert data == written_slowly(codec, tree, payload)
    read = wire.payload_of(codec, data, tree)
    for found, wanted in zip(read.tensors, payload.tensors, strict=True):
        np.testing.assert_array_equal(found.header, wanted.header)
        everywhere = np.ones(wanted.codes.size, bool)
        kept = everywhere if wanted.kept is None else np.asarray(wanted.kept)
        np.testing.assert_array_equal(everywhere if found.kept is None else found.kept, kept)
        assert found.codes.dtype == wanted.codes.dtype
        np.testing.assert_array_equal(found.codes[kept], np.asarray(wanted.codes)[kept])
    back = wire.decode(codec, data, tree)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for found, wanted, like in zip(*map(jax.tree.leaves, (back, seen, tree)), strict=True):
        assert (found.shape, found.dtype) == (like.shape, like.dtype)
        assert_close(found, wanted)


def assert_close(found, wanted):
    """Equal but for the last bit, which may depend on what the compiler fuses."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if jnp.issubdtype(found.dtype, jnp.floating):
        epsilon = float(jnp.finfo(found.dtype).eps)
        wide = found.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=epsilon, atol=0)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("name", "tree"), MESSAGES)
def test_bytes_are_what_the_program_computes(name, tree):
    @settings(max_examples=10)
    @given(st.floats(0, 0.999), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-30, 1.0, 1e4]))
    def check(sparsity, seed, scale):
        scaled = jax.tree.map(
            lambda x: np.asarray(x * scale).astype(np.asarray(x).dtype), tree(seed)
        )
        check_message(CODECS[name](sparsity), scaled, jax.random.key(seed))

    check()


shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
dtypes = st.sampled_from([np.float32, np.float64, jnp.bfloat16, np.float16, np.int8, np.bool_])


@pytest.mark.slow
@settings(max_examples=10, phases=[Phase.explicit, Phase.generate])  # every tree compiles
@given(
    st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=3),
    st.sampled_from(sorted(CODECS)),
    st.floats(0, 0.999),
    st.data(),
)
def test_random_trees(leaves, codec, sparsity, data):
    # Few different numbers: ties, zeros and tensors of one value are likely.
    numbers = st.sampled_from([0, 1, -1, 2, 100])

    def leaf(shape, dtype):
        size = math.prod(shape)
        values = data.draw(st.lists(numbers, min_size=size, max_size=size))
        return np.array(values).reshape(shape).astype(dtype)

    tree = [leaf(shape, dtype) for shape, dtype in leaves]
    check_message(CODECS[codec](sparsity), tree, jax.random.key(0))


def test_shapes_and_other_numbers_will_do():
    codec = fc.ce_fedavg(0.5)
    data = wire.encode(codec, {"w": [1.0, 2.0], "n": 3})
    like = {"w": [jax.ShapeDtypeStruct((), jnp.float64)] * 2, "n": jax.ShapeDtypeStruct((), int)}
    assert wire.decode(codec, data, like) == {"w": [1.0, 2.0], "n": 3}


SMALL = {"a": np.float32([0.5, -2, 3, 1, 0, 7, -1]), "b": np.float32([1, -1, 4])}
SMALL_ARRAYS = jax.tree.map(jnp.asarray, SMALL)
SMALL_CODECS = {
    "positions": fc.chain(fc.top_k(sparsity=0.4), fc.uniform(3)),
    "seed": fc.chain(fc.random_k(sparsity=0.4), fc.ternary(False)),
}


@pytest.mark.parametrize("name", SMALL_CODECS)
def test_every_truncation_is_refused(name):
    codec = SMALL_CODECS[name]
    data = wire.encode(codec, SMALL, KEY)
    for end in range(len(data)):
        with pytest.raises(ValueError, match="truncated"):
            wire.decode(codec, data[:end], SMALL)
    with pytest.raises(ValueError, match=r"checksum of data is not"):
        wire.decode(codec, data + b"\0", SMALL)


@pytest.mark.parametrize("name", SMALL_CODECS)
def test_every_flipped_bit_is_refused(name):
    codec = SMALL_CODECS[name]
    data = wire.encode(codec, SMALL, KEY)
    wire.decode(codec, data, SMALL)
    for place in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        wanted = "must begin with b'fo'" if place < 16 else "checksum of data is not"
        if 16 <= place < 24:
            wanted = f"version of data must be 3, got {flipped[2]}"
        with pytest.raises(ValueError, match=wanted):
            wire.decode(codec, bytes(flipped), SMALL)


@pytest.mark.parametrize("name", SMALL_CODECS)
def test_forged_bytes_are_refused_or_mean_something(name):
    """With a right checksum, only what the format allows is read: nothing but a ValueError is raised."""
    codec = SMALL_CODECS[name]
    content = wire.encode(codec, SMALL, KEY)[7:]
    rng = np.random.default_rng(0)
    refused, accepted = 0, 0
    for _ in range(300):
        forged = bytearray(
            content[: rng.integers(len(content)) + 1] if rng.random() < 0.2 else content
        )
        for _ in range(rng.integers(1, 4)):
            forged[rng.integers(min(len(forged), 24))] = rng.integers(256)
        data = sealed(codec, SMALL, bytes(forged))
        try:
            payload = wire.payload_of(codec, data, SMALL)
        except ValueError:
            refused += 1
            continue
        back = decompress(codec, payload, SMALL)
        assert [leaf.shape for leaf in jax.tree.leaves(back)] == [(7,), (3,)]
        accepted += 1
    assert refused > 50 and accepted > 20


def test_other_codecs_and_other_trees_are_refused():
    codec, like = SMALL_CODECS["positions"], SMALL
    data = wire.encode(codec, SMALL)
    others = [
        (fc.chain(fc.top_k(sparsity=0.4), fc.uniform(4)), like),
        (fc.chain(fc.top_k(sparsity=0.4), fc.exponential(3)), like),
        (fc.chain(fc.top_k(sparsity=0.4, scope="global"), fc.uniform(3)), like),
        (fc.chain(fc.top_k(sparsity=0.4), fc.uniform(3), companions=fc.sign()), like),
        (fc.excluding(codec, "a"), like),
        (fc.uniform(3), like),
        (fc.random_k(sparsity=0.4), like),
        (fc.Codec(), like),
        (codec, like | {"a": np.zeros((7, 1), np.float32)}),
        (codec, like | {"a": np.zeros(8, np.float32)}),
        (codec, like | {"b": np.zeros(3, np.float64)}),
        (codec, like | {"b": np.zeros(3, np.int32)}),
        (codec, like | {"c": np.zeros(0, np.float32)}),
        (codec, {"a": like["a"]}),
        (codec, {"a": like["a"], "c": like["b"]}),
        (codec, {}),
    ]
    for other, tree in others:
        with pytest.raises(ValueError, match=r"checksum .* of another codec or other shapes"):
            wire.decode(other, data, tree)
    # Numbers are no part of what must agree.
    other = fc.chain(fc.top_k(sparsity=0.9), fc.uniform(3))
    np.testing.assert_array_equal(
        wire.decode(other, data, like)["a"], wire.decode(codec, data, like)["a"]
    )


def test_what_the_checksum_starts_from():
    """It must be the same in every process: no addresses, no hashes, no order of a set."""
    codec = fc.excluding(fc.ce_fedavg(0.9, bits=4), "b")
    assert wire.description(codec, SMALL) == (
        "top_k\nuniform 16\nexponential 16\n['a'] [7] float32 0\n['b'] [3] float32 None"
    )
    others = fc.chain(fc.random_k(sparsity=0.5), fc.random_k(sparsity=0.1, rescale=True), fc.sign())
    assert wire.description(others, SMALL) == (
        "random_k\nrandom_k\nsign 2\nnone\nthreefry_partitionable True\n"
        "['a'] [7] float32 0\n['b'] [3] float32 1"
    )
    others = fc.chain(
        fc.top_k(sparsity=0.5, scope="global"), fc.random_k(sparsity=0.1), fc.ternary()
    )
    assert wire.description(others, {"a": SMALL["a"]}) == (
        "top_k global\nrandom_k\nternary 3\nnone\n['a'] [7] float32 0"
    )


def test_a_seed_needs_the_senders_generator():
    """The two settings draw other numbers, so the other one's bytes would decode to garbage."""
    codec = SMALL_CODECS["seed"]
    with jax.threefry_partitionable(False):
        other = wire.encode(codec, SMALL, KEY)
        assert_close(wire.decode(codec, other, SMALL)["a"], fc.lossy(codec, SMALL_ARRAYS, KEY)["a"])
    with pytest.raises(ValueError, match=r"checksum .* setting of jax_threefry_partitionable"):
        wire.decode(codec, other, SMALL)


def test_a_seed_needs_the_senders_sparsity():
    data = wire.encode(fc.random_k(sparsity=0.4), SMALL, KEY)
    with pytest.raises(ValueError, match=r"leaf 0, 'a': the seed marks 2 entries .* not 5"):
        wire.decode(fc.random_k(sparsity=0.8), data, SMALL)


@pytest.mark.parametrize("name", ["nothing", "random_k", "ce_fedavg", "most raw"])
def test_what_is_not_finite_is_refused_by_its_path(name):
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, moments()))
    for place, path in {
        0: "[0].params['b']",
        1: "[0].params['w']",
        6: "[2]['w']",
        7: "[3]",
    }.items():
        for bad in (math.nan, math.inf, -math.inf):
            broken = list(leaves)
            broken[place] = np.where(np.arange(leaves[place].size) == 0, bad, 1.0)
            broken[place] = broken[place].reshape(leaves[place].shape)
            with pytest.raises(ValueError) as error:
                wire.encode(CODECS[name](0.7), jax.tree.unflatten(structure, broken), KEY)
            wanted = f"tree{path} and its codes must be finite, got NaN or infinity."
            assert str(error.value) == wanted


def test_what_becomes_infinite_is_refused():
    large = jnp.full(100, 6e4, jnp.float16)
    wire.encode(fc.random_k(sparsity=0.9), {"w": large}, KEY)
    with pytest.raises(ValueError, match=r"tree\['w'\] and its codes must be finite"):
        wire.encode(fc.random_k(sparsity=0.9, rescale=True), {"w": large}, KEY)


@pytest.mark.parametrize("name", ["nothing", "random_k", "ce_fedavg", "most raw"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_coded_upload_that_is_not_finite_has_no_bytes(name, bad):
    """Neither where numbers travel as they are, nor where codes would hide it."""
    codec, tree = CODECS[name](0.5), {"w": jnp.ones(40), "v": jnp.full(40, bad)}
    sent = coded(codec, tree, KEY)
    with pytest.raises(ValueError, match=r"tree\['v'\] and its codes must be finite"):
        fc.bytes_of_coded(sent)


def test_what_else_is_refused():
    with pytest.raises(ValueError, match="key must be given"):
        wire.encode(fc.random_k(sparsity=0.5), SMALL)
    with pytest.raises(ValueError, match="codec must be a Codec, got None"):
        wire.encode(None, SMALL)  # pyright: ignore
    with pytest.raises(ValueError, match="codec must be a Codec, got None"):
        wire.decode(None, b"", SMALL)  # pyright: ignore
    with pytest.raises(ValueError, match="truncated: 2 bytes wanted, and 0 are left"):
        wire.decode(fc.Codec(), b"", SMALL)
    with pytest.raises(ValueError, match=r"tree\['k'\] must be an array of numbers, got key<fry>"):
        wire.encode(fc.top_k(sparsity=0.5), {"a": SMALL["a"], "k": KEY})
    with pytest.raises(ValueError, match=r"tree\['k'\] must be an array of numbers, got <U4"):
        wire.encode(fc.top_k(sparsity=0.5), {"k": "text"})
    with pytest.raises(ValueError, match=r"like\['k'\] must be an array of numbers, got key<fry>"):
        wire.decode(fc.top_k(sparsity=0.5), b"", {"k": KEY})


def moments_of(params):
    """Numbers beside the parameters whose magnitudes differ by many orders."""
    rng = np.random.default_rng(9)
    wide = [np.exp(rng.uniform(-40, 0, p.shape)).astype(np.float32) for p in params]
    return [w * np.sign(p) for w, p in zip(wide, params, strict=True)], wide


@jax.jit
def compressed(codec, tree):
    payload = compress(codec, tree)
    return payload, size_in_bytes(codec, payload, tree)


def message_bits(codec, params, with_moments):
    """The bits of the messages of FedAvg and CE-FedAvg, as counted and as written."""
    tree = Variables(params, {})
    tree = (tree, *moments_of(params)) if with_moments else tree
    payload, size = compressed(codec, tree)
    assert len(wire.bytes_of(codec, payload, tree)) == int(size)
    return 8 * int(size)


PRINTED = {
    False: {0.6: 7.6, 0.9: 25.1, 0.95: 46.4},
    True: {0.6: 9.1, 0.9: 33.4, 0.95: 64.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("with_moments", [False, True], ids=["fedavg", "ce-fedavg"])
@pytest.mark.parametrize("widths", [(784, 200, 200, 10), (784, 500, 500, 10)], ids=str)
def test_ratios_by_bytes(widths, with_moments):
    """How much smaller messages are, for real.

    The bytes may differ from the printed ratio by half of its last digit; by headers, which are more for
    more tensors; by one entry per tensor, as counts are rounded up; and by the chance in positions: four
    standard deviations of the sum of quotients, each of variance p / (1 - p)^2 with p = s^(2^b).
    """
    rng = np.random.default_rng(0)
    shapes = [shape for m, n in itertools.pairwise(widths) for shape in ((m, n), (n,))]
    params = [rng.standard_normal(shape, np.float32) for shape in shapes]
    streams, total = 3 if with_moments else 1, sum(p.size for p in params)
    for s, printed in PRINTED[with_moments].items():
        assert round(tables.upload_ratio(s, with_moments), 1) == printed
        bits = message_bits(fc.ce_fedavg(s), params, with_moments)
        # The envelope; for each tensor its count, the parameter and four floats, and two floats for
        # each moment; the padding of each stream; one entry.
        header = 8 * (4 + 1 + 16 + 8 * (streams - 1)) + 7 * streams
        entry = 8 * streams + math.ceil(golomb.expected_bits(s))
        allowed = 8 * 7 + len(params) * (header + entry)
        p = s**2 ** golomb.parameter(s)
        chance = 4 * math.sqrt((1 - s) * total * p) / (1 - p)
        formula = tables.upload_bits(Variables(params, {}), s, with_moments)
        assert bits == pytest.approx(formula, rel=0.02)
        raw = 32 * streams * total
        assert raw / (printed + 0.05) - chance <= bits <= raw / (printed - 0.05) + chance + allowed
        # What is allowed is little: less than two in a hundred.
        assert chance + allowed < 0.02 * bits
