"""Bits, and numbers as bits, in NumPy alone and without a Python loop per value.

The first bit of a stream is the lowest of its first byte, and a number's lowest bit comes first. The
bits that fill up the last byte are zero, and a reader checks it: one value has one encoding.

    packed     n numbers of w bits each, 1 <= w <= 32: n w bits
    ternary    five digits 0, 1, 2 to a byte: 3^5 = 243 of its 256 values
    varint     LEB128: seven bits to a byte, the lowest first, the highest bit set in all but the last

Eight numbers of w bits fill w bytes. Number j of each eight begins in byte j w // 8 of its w, at bit
j w mod 8, so that one strided view of the bytes as 64-bit words holds all of them: eight passes over an
eighth of the numbers each, whatever w is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks

_DIGITS_PER_BYTE = 5
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
# Row v: the five digits of the byte v.
_DIGITS = (np.arange(243)[:, None] // _POWERS % 3).astype(np.uint8)
_LONGEST_VARINT = 9  # 63 bits


class Stream(NamedTuple):
    """Some bits: the first is the lowest of the first byte.

    Attributes:
      data: uint8, no longer than the bits need; the bits after the last are zero.
      length: the number of bits.
    """

    data: np.ndarray
    length: int


EMPTY = Stream(np.zeros(0, np.uint8), 0)


def stream_of(data: Any, length: int) -> Stream:
    """The stream of that many bits that some bytes hold; refused if they do not hold exactly it.

    Example:
      >>> stream_of(b"\\x05", 3).length
      3
      >>> stream_of(b"\\x05", 2)
      Traceback (most recent call last):
      ValueError: stray bits: those after the last of a stream must be zero.
    """
    length = checks.integer("length", length, low=0)
    data = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if data.size != _bytes(length):
        raise ValueError(f"data must be {_bytes(length)} bytes for {length} bits, got {data.size}.")
    if length % 8 and data[-1] >> (length % 8):
        raise ValueError("stray bits: those after the last of a stream must be zero.")
    return Stream(data, length)


def pack(values: Any, width: int) -> Stream:
    """Whole numbers `[n]` from 0 to 2^width - 1 as n * width bits, the width from 1 to 32.

    Example:
      >>> pack([1, 2, 3], 4).data.tobytes().hex()
      '2103'
    """
    width, values = _width(width), np.asarray(values)
    if values.size == 0:
        return EMPTY
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(
            f"values must be whole numbers [n], got {values.dtype}{list(values.shape)}."
        )
    if int(values.max()) >> width or int(values.min()) < 0:
        raise ValueError(
            f"values must lie in [0, 2^{width} - 1], got {values.min()} to {values.max()}."
        )
    length = values.size * width
    if width in (8, 16, 32):
        return Stream(values.astype(f"<u{width // 8}").view(np.uint8), length)
    eights = -(-values.size // 8)
    padded = np.zeros((eights, 8), np.uint32)
    padded.reshape(-1)[: values.size] = values
    if width < 8:
        # The views below would overlap themselves; here all eight fit into one word.
        words = np.zeros(eights, "<u8")
        for j in range(8):
            words |= padded[:, j].astype(np.uint64) << np.uint64(j * width)
        data = words.view(np.uint8).reshape(eights, 8)[:, :width].reshape(-1)
    else:
        data = np.zeros(eights * width + 8, np.uint8)
        for view, shift, lane in _lanes(data, width, padded):
            view |= lane.astype(np.uint64) << shift
    return Stream(data[: _bytes(length)], length)


def unpack(stream: Stream, width: int) -> np.ndarray:
    """The numbers of a stream that `pack` made, uint32 `[n]`.

    Example:
      >>> unpack(pack([1, 2, 3], 11), 11).tolist()
      [1, 2, 3]
    """
    width, (data, length) = _width(width), stream
    size, rest = divmod(length, width)
    if rest:
        raise ValueError(f"stream must hold whole numbers of {width} bits, got {length} bits.")
    if width in (8, 16, 32):
        # A copy: the bytes may lie at any address, and belong to somebody else.
        return np.frombuffer(data.tobytes(), f"<u{width // 8}").astype(np.uint32)
    eights = -(-size // 8)
    padded = np.zeros(eights * width + 8, np.uint8)
    padded[: data.size] = data
    values = np.empty((eights, 8), np.uint32)
    mask = np.uint64((1 << width) - 1)
    for view, shift, lane in _lanes(padded, width, values):
        lane[:] = (view >> shift) & mask
    return values.reshape(-1)[:size]


def _lanes(data, width, values):
    """For each of the eight: a view of the words that hold them, their place in it, and they."""
    rows = len(values)
    for j in range(8 if rows else 0):
        begin, shift = divmod(j * width, 8)
        view = np.ndarray((rows,), "<u8", data.data, offset=begin, strides=(width,))
        yield view, np.uint64(shift), values[:, j]


def pack_ternary(digits: Any) -> Stream:
    """Digits 0, 1 and 2, five to a byte: 1.6 bits each, 1% more than log2(3).

    Example:
      >>> pack_ternary([2, 2, 2, 2, 2, 1]).data.tolist()
      [242, 1]
    """
    digits = np.asarray(digits)
    if digits.size == 0:
        return EMPTY
    if digits.min() < 0 or digits.max() > 2:
        raise ValueError(f"digits must be 0, 1 or 2, got {digits.min()} to {digits.max()}.")
    padded = np.zeros((-(-digits.size // _DIGITS_PER_BYTE), _DIGITS_PER_BYTE), np.uint8)
    padded.reshape(-1)[: digits.size] = digits
    return Stream(padded @ _POWERS, 8 * len(padded))


def unpack_ternary(stream: Stream, size: int) -> np.ndarray:
    """The digits of a stream that `pack_ternary` made, uint8 `[size]`.

    Example:
      >>> unpack_ternary(pack_ternary([0, 1, 2]), 3).tolist()
      [0, 1, 2]
    """
    if stream.length != ternary_bits(size):
        raise ValueError(
            f"stream must be {ternary_bits(size)} bits for {size} ternary digits,"
            f" got {stream.length}."
        )
    if np.any(stream.data >= len(_DIGITS)):
        raise ValueError("a byte of ternary digits must be less than 243.")
    digits = _DIGITS[stream.data].reshape(-1)
    if digits[size:].any():
        raise ValueError("stray digits: those after the last of a stream must be zero.")
    return digits[:size]


def ternary_bits(size: int) -> int:
    """The bits of that many ternary digits: 8 ceil(size / 5)."""
    return 8 * -(-size // _DIGITS_PER_BYTE)


def join(streams: Sequence[Stream]) -> Stream:
    """One stream after the other, without padding between them.

    Example:
      >>> join([pack([1], 3), pack([1], 7)])
      Stream(data=array([9, 0], dtype=uint8), length=10)
    """
    length = sum(stream.length for stream in streams)
    joined = np.zeros(_bytes(length) + 1, np.uint8)  # One more, for a carry that is zero.
    at = 0
    for data, size in streams:
        begin, shift = divmod(at, 8)
        joined[begin : begin + data.size] |= data << np.uint8(shift)
        if shift:
            joined[begin + 1 : begin + 1 + data.size] |= data >> np.uint8(8 - shift)
        at += size
    return Stream(joined[: _bytes(length)], length)


def part(stream: Stream, begin: int, length: int) -> Stream:
    """Some consecutive bits of a stream.

    Example:
      >>> unpack(part(join([pack([5], 3), pack([9], 7)]), 3, 7), 7).tolist()
      [9]
    """
    if not 0 <= begin <= begin + length <= stream.length:
        raise ValueError(
            f"truncated: bits {begin} to {begin + length} of a stream of {stream.length}."
        )
    first, shift = divmod(begin, 8)
    size = _bytes(length)
    data = stream.data[first : first + size] >> np.uint8(shift)
    if shift:
        carry = stream.data[first + 1 : first + 1 + size]
        data[: carry.size] |= carry << np.uint8(8 - shift)
    if length % 8:
        data[-1] &= (1 << length % 8) - 1
    return Stream(data, length)


def varint(value: int) -> bytes:
    """A whole number as LEB128: one byte below 128, two below 16384.

    Example:
      >>> varint(300).hex()
      'ac02'
    """
    value = checks.integer("value", value, low=0)
    if value >> 7 * _LONGEST_VARINT:
        raise ValueError(f"value must be less than 2^63, got {value}.")
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(data) + bytes([value])


class Reader:
    """Reads bytes from the first to the last, and refuses to read past the end.

    Example:
      >>> reader = Reader(varint(300) + b"rest")
      >>> reader.varint(), bytes(reader.take(4)), reader.remaining
      (300, b'rest', 0)
      >>> reader.take(1)
      Traceback (most recent call last):
      ValueError: truncated: 1 bytes wanted at byte 6 of 6.
    """

    def __init__(self, data: bytes | memoryview):
        self._data = memoryview(data)
        self._at = 0

    @property
    def remaining(self) -> int:
        """The bytes that are left."""
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        if not 0 <= size <= self.remaining:
            raise ValueError(
                f"truncated: {size} bytes wanted at byte {self._at} of {len(self._data)}."
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        """The next number, as `varint` writes it: the shortest form and no other."""
        value = 0
        for place in range(_LONGEST_VARINT):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if byte == 0 and place:
                    raise ValueError("a varint must not end in a zero byte.")
                return value
        raise ValueError(f"a varint must not be longer than {_LONGEST_VARINT} bytes.")

    def stream(self, length: int) -> Stream:
        """The next `length` bits, padded with zeros to a byte."""
        return stream_of(self.take(_bytes(length)), length)

    def end(self) -> None:
        """Refuses bytes that nobody read."""
        if self.remaining:
            raise ValueError(f"{self.remaining} bytes too many, after byte {self._at}.")


def _bytes(length):
    return -(-length // 8)


def _width(width):
    if checks.integer("width", width, low=1) > 32:
        raise ValueError(f"width must lie in [1, 32], got {width}.")
    return int(width)
