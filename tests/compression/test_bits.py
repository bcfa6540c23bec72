"""Numbers as bits and back, against Python's own integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_opt.compression import bits

pytestmark = pytest.mark.slow  # NumPy alone: another version of jax changes nothing


def as_integer(stream):
    """All bits of a stream as one integer, the first the lowest."""
    return int.from_bytes(stream.data.tobytes(), "little")


@st.composite
def numbers(draw):
    """A width and some numbers of that width, its extremes likely among them."""
    width = draw(st.integers(1, 32))
    extremes = st.sampled_from([0, 1, 2**width - 1, 2 ** (width - 1)])
    values = draw(st.lists(extremes | st.integers(0, 2**width - 1), max_size=70))
    return width, values


streams = numbers().map(lambda drawn: bits.pack(np.array(drawn[1], np.uint32), drawn[0]))


@settings(max_examples=200)
@given(numbers())
def test_numbers_stand_in_their_places(drawn):
    width, values = drawn
    stream = bits.pack(np.array(values, np.uint32), width)
    assert stream.length == len(values) * width
    assert stream.data.size == -(-stream.length // 8)
    assert as_integer(stream) == sum(value << width * i for i, value in enumerate(values))
    back = bits.unpack(stream, width)
    assert back.dtype == np.uint32
    assert back.tolist() == values


@pytest.mark.parametrize("width", range(1, 33))
def test_every_width_and_length(width):
    rng = np.random.default_rng(width)
    for size in (*range(19), 1001):
        values = rng.integers(0, 2**width, size, np.uint64).astype(np.uint32)
        values[:1], values[-1:] = 2**width - 1, 2**width - 1
        stream = bits.pack(values, width)
        bits.stream_of(*stream)
        np.testing.assert_array_equal(bits.unpack(stream, width), values)


@given(st.lists(streams, max_size=5))
def test_streams_are_joined_without_a_gap_and_taken_apart(drawn):
    joined = bits.join(drawn)
    bits.stream_of(*joined)
    whole, at = 0, 0
    for stream in drawn:
        whole |= as_integer(stream) << at
        at += stream.length
    assert joined.length == at
    assert as_integer(joined) == whole
    at = 0
    for stream in drawn:
        one = bits.part(joined, at, stream.length)
        at += stream.length
        assert one.length == stream.length
        np.testing.assert_array_equal(one.data, stream.data)


@given(streams, st.data())
def test_a_part_of_a_stream(stream, data):
    begin = data.draw(st.integers(0, stream.length))
    length = data.draw(st.integers(0, stream.length - begin))
    one = bits.part(stream, begin, length)
    bits.stream_of(*one)
    assert as_integer(one) == as_integer(stream) >> begin & (2**length - 1)


@given(st.lists(st.integers(0, 2), max_size=40))
def test_ternary_digits(digits):
    stream = bits.pack_ternary(digits)
    assert stream.length == bits.ternary_bits(len(digits)) == 8 * stream.data.size
    value = sum(int(byte) * 243**i for i, byte in enumerate(stream.data))
    assert value == sum(digit * 3**i for i, digit in enumerate(digits))
    assert bits.unpack_ternary(stream, len(digits)).tolist() == digits


@given(st.lists(st.integers(0, 2**63 - 1) | st.integers(0, 300), max_size=8))
def test_varints_follow_each_other(values):
    data = b"".join(bits.varint(value) for value in values)
    assert len(data) == sum(max(1, -(-value.bit_length() // 7)) for value in values)
    reader = bits.Reader(data)
    assert [reader.varint() for _ in values] == values
    reader.end()
    for end in range(len(data)):
        reader = bits.Reader(data[:end])
        with pytest.raises(ValueError, match="truncated"):
            [reader.varint() for _ in values]


def test_the_varints_of_the_standard():
    # The example of the DWARF specification, whose format LEB128 is.
    known = {
        2: "02",
        127: "7f",
        128: "8001",
        129: "8101",
        12857: "b964",
        2**63 - 1: "ff" * 8 + "7f",
    }
    for value, data in known.items():
        assert bits.varint(value).hex() == data


def test_a_reader():
    reader = bits.Reader(b"\x01four\x05rest")
    assert reader.varint() == 1
    assert bytes(reader.take(4)) == b"four"
    assert reader.stream(3) == (np.array([5], np.uint8), 3)
    with pytest.raises(ValueError, match="4 bytes too many, after byte 6"):
        reader.end()
    with pytest.raises(ValueError, match="truncated: 5 bytes wanted at byte 6 of 10"):
        reader.take(5)
    assert reader.remaining == 4  # A read that is refused reads nothing.
    assert bytes(reader.take(4)) == b"rest"
    reader.end()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bits.pack([8], 3), r"values must lie in \[0, 2\^3 - 1\], got 8 to 8"),
        (lambda: bits.pack([-1], 8), r"values must lie in .* got -1 to -1"),
        (lambda: bits.pack([256], 8), r"values must lie in"),
        (lambda: bits.pack([2**32], 32), r"values must lie in"),
        (lambda: bits.pack([0.5], 8), r"values must be whole numbers \[n\], got float64\[1\]"),
        (lambda: bits.pack([[1]], 8), r"values must be whole numbers \[n\], got int64\[1, 1\]"),
        (lambda: bits.pack([1], 0), "width must be a whole number of at least 1, got 0"),
        (lambda: bits.pack([1], 33), r"width must lie in \[1, 32\], got 33"),
        (lambda: bits.unpack(bits.EMPTY, 33), r"width must lie in \[1, 32\], got 33"),
        (lambda: bits.unpack(bits.pack([1, 2], 3), 4), "whole numbers of 4 bits, got 6 bits"),
        (lambda: bits.stream_of(b"\x08", 3), "stray bits"),
        (lambda: bits.stream_of(b"\x00", 9), "data must be 2 bytes for 9 bits, got 1"),
        (lambda: bits.stream_of(b"\x00\x00", 8), "data must be 1 bytes for 8 bits, got 2"),
        (lambda: bits.part(bits.pack([1], 3), 2, 2), "truncated: bits 2 to 4 of a stream of 3"),
        (lambda: bits.pack_ternary([3]), "digits must be 0, 1 or 2, got 3 to 3"),
        (lambda: bits.pack_ternary([1, -1]), "digits must be 0, 1 or 2, got -1 to 1"),
        (lambda: bits.unpack_ternary(bits.pack_ternary([1]), 6), "16 bits for 6 ternary digits"),
        (lambda: bits.unpack_ternary(bits.pack([243], 8), 5), "must be less than 243"),
        (lambda: bits.unpack_ternary(bits.pack([81], 8), 4), "stray digits"),
        (lambda: bits.varint(-1), "value must be a whole number of at least 0, got -1"),
        (lambda: bits.varint(2**63), "value must be less than 2"),
        (lambda: bits.Reader(b"\x80\x00").varint(), "must not end in a zero byte"),
        (lambda: bits.Reader(b"\xff" * 10).varint(), "must not be longer than 9 bytes"),
        (lambda: bits.Reader(b"ab").take(-1), "truncated"),
        (lambda: bits.Reader(b"\xff").stream(3), "stray bits"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
