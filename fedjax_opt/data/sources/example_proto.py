"""Serialized `tf.train.Example` messages, read from protocol buffers' wire format.

An example is a map of names to features; a feature is a list of bytes, of floats or of whole numbers.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def parse(message: Any, origin: str) -> dict[str, Any]:
    """The features of an example.

    Args:
      message: The serialized message, bytes.
      origin: Where it is from, for errors.

    Returns:
      A float32 array, an int64 array or a list of bytes for each name.
    """
    if not isinstance(message, bytes):
        raise ValueError(f"{origin} must hold serialized examples, got a {type(message).__name__}.")
    try:
        features = {}
        for field in _all(message, 1):
            for entry in _all(field, 1):
                name = b"".join(_all(entry, 1)).decode("utf-8")
                features[name] = _feature(b"".join(_all(entry, 2)))
        return features
    except (ValueError, IndexError) as error:
        raise ValueError(f"{origin} holds a damaged example: {error!s:.80}.") from error


def _feature(message: bytes) -> Any:
    for number, wire, value in _fields(message):
        if wire != _BYTES:
            raise ValueError("a list is not a message")
        if number == 1:
            return list(_all(value, 1))
        if number == 2:
            return np.concatenate([np.empty(0, "<f4"), *_packed(value, _floats, _FIXED32)])
        if number == 3:
            return np.concatenate([np.empty(0, np.int64), *_packed(value, _varints, _VARINT)])
    return np.empty(0, np.int64)


def _packed(message: bytes, read: Any, single: int) -> Iterator[np.ndarray]:
    """The values of field 1, which come packed together or one by one."""
    for number, wire, value in _fields(message):
        if number == 1 and wire in (_BYTES, single):
            yield read(value)


def _floats(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<f4")


def _varints(content: bytes) -> np.ndarray:
    """Whole numbers of 7 bits a byte, the lowest first; the last byte of each has no high bit."""
    data = np.frombuffer(content, np.uint8)
    if not data.size:
        return np.empty(0, np.int64)
    last = np.flatnonzero(data < 0x80)
    if not last.size or last[-1] != data.size - 1:
        raise ValueError("a number has no end")
    first = np.concatenate([[0], last[:-1] + 1])
    lengths = last - first + 1
    if lengths.max() > _LONGEST_VARINT:
        raise ValueError("a number is too long")
    place = np.arange(data.size) - np.repeat(first, lengths)
    parts = (data & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, first).astype(np.int64)


def _all(message: bytes, wanted: int) -> Iterator[bytes]:
    for number, wire, value in _fields(message):
        if number == wanted and wire == _BYTES:
            yield value


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Field numbers, wire types and contents."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire = key & 7
        start = at
        if wire == _VARINT:
            _, at = _varint(message, at)
        elif wire == _BYTES:
            length, start = _varint(message, at)
            at = start + length
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(message):
            raise ValueError("it ends too early")
        yield key >> 3, wire, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(_LONGEST_VARINT):
        byte = message[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number is too long")
