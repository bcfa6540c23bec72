"""Golomb-Rice codes: which entries of a sparse vector are sent, in a few bits each.

    gap        g_j = i_j - i_(j-1) - 1 for kept indices i_1 < i_2 < ..., i_0 = -1
    code       g >> b ones and a zero (the quotient, in unary), then the b lowest bits of g
    parameter  b* = max(0, 1 + floor(log2(ln(phi - 1) / ln(s)))), phi the golden ratio, s the sparsity
    expected   g_s = b* + 1 / (1 - s^(2^b*)) bits an index, if each entry is kept with probability 1 - s

The unary parts of all indices are one stream and the remainders another, rather than taking turns: the
same number of bits, and both are then written and read by whole arrays. Two neighbours are at least one
apart, so the gap less one is what is coded, and (3.3) is the expectation of that. For s of at least a
half it is at most 0.12 bits, 4.3%, above the entropy.

Erratum: (3.4) of the thesis prints (phi - 1) / s inside the logarithm.

Reference:
  Golomb. Run-length encodings. 1966. Rice. Some practical universal noiseless coding techniques. 1979.
  Mills. Federated machine learning in edge computing. PhD thesis, University of Exeter, section 3.2.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_opt.compression import bits
from fedjax_opt.core import checks

LARGEST_PARAMETER = 30  # of one entry kept among 2^31 - 1
_LOG = -math.log((math.sqrt(5) - 1) / 2)  # -ln(phi - 1)
_WORD = 32


def parameter(sparsity: float) -> int:
    """The best Rice parameter: `b* = max(0, 1 + floor(log2(ln(phi - 1) / ln(s))))`.

    Args:
      sparsity: s, the fraction of entries that are not sent, in [0, 1).

    Returns:
      b*.

    Example:
      >>> [parameter(s) for s in (0.0, 0.6, 0.9, 0.95, 0.999)]
      [0, 0, 3, 4, 9]

    Reference:
      Thesis, (3.4), corrected.
    """
    s = float(checks.number("sparsity", sparsity, low=0.0, high=1.0, open_high=True))
    if s == 0:
        return 0
    # frexp writes a number as m 2^e with 1/2 <= m < 1: then e is 1 + floor(log2), without rounding.
    return max(0, math.frexp(_LOG / -math.log(s))[1])


def expected_bits(sparsity: float) -> float:
    """The expected bits of one index: `g_s = b* + 1 / (1 - s^(2^b*))`.

    Args:
      sparsity: s, the fraction of entries that are not sent, in [0, 1).

    Returns:
      g_s.

    Example:
      >>> [round(expected_bits(s), 3) for s in (0.0, 0.6, 0.9, 0.95)]
      [1.0, 2.5, 4.756, 5.786]

    Reference:
      Thesis, (3.3).
    """
    b = parameter(sparsity)
    return b + 1 / (1 - float(sparsity) ** (2**b))


def parameter_of(count: Any, size: Any) -> jax.Array:
    """The Rice parameter for `count` of `size` entries, inside a program; s = 1 - count / size.

    In float32 the parameter may be the neighbour of `parameter`'s where the two cost the same to six
    digits. It is sent, so nobody computes it again.

    Args:
      count: how many are sent, int32, from 0 to size.
      size: how many there are.

    Returns:
      int32, from 0 to 30; 0 for count = 0 and for count = size.

    Example:
      >>> int(parameter_of(jnp.int32(10), 100))
      3
    """
    count, size = jnp.asarray(count, jnp.int32), jnp.asarray(size, jnp.int32)
    some = (count > 0) & (count < size)
    kept = jnp.where(some, count, 1).astype(jnp.float32)
    kept = kept / jnp.where(some, size, 2).astype(jnp.float32)
    # Of 2^24 entries and more, all but one of them may round to all: then 1 - s is 1, and b is 0.
    kept = jnp.minimum(kept, jnp.float32(1 - 2**-24))
    exponent = jnp.frexp(jnp.float32(_LOG) / -jnp.log1p(-kept))[1].astype(jnp.int32)
    return jnp.where(some, jnp.maximum(exponent, 0), 0)


def size_in_bits(kept: jax.Array, b: Any) -> jax.Array:
    """The length of the unary stream of the indices at which `kept` is true, inside a program.

    The count of the indices and the sum of their quotients, exactly; the remainders take count * b more.

    Each index needs the one before it. A cumulative maximum would give that; it takes ten times as long
    as looking for the next lower bit among 32 entries read as one number (a million entries, one
    core).

    Args:
      kept: bool `[n]`, n < 2^31.
      b: the Rice parameter, int32.

    Returns:
      int32.

    Example:
      >>> int(size_in_bits(jnp.array([False, False, True, True]), 1))
      3
    """
    rows = -(-kept.size // _WORD)
    if not rows:
        return jnp.zeros((), jnp.int32)
    kept = jnp.pad(kept, (0, rows * _WORD - kept.size)).reshape(rows, _WORD)
    place = jnp.arange(_WORD, dtype=jnp.uint32)[None, :]
    bit = jnp.left_shift(jnp.ones_like(place), place)
    word = jnp.sum(jnp.where(kept, bit, 0), axis=1, keepdims=True, dtype=jnp.uint32)
    begin = _WORD * jnp.arange(rows, dtype=jnp.int32)[:, None]
    # The last kept index of all earlier words, for an index that is the first of its own.
    earlier = lax.cummax(jnp.where(word > 0, begin + _highest(word), -1))
    earlier = jnp.concatenate([jnp.full((1, 1), -1, jnp.int32), earlier[:-1]])
    lower = word & (bit - 1)
    previous = jnp.where(lower > 0, begin + _highest(lower), earlier)
    gap = begin + place.astype(jnp.int32) - previous - 1
    code = jnp.right_shift(gap, jnp.asarray(b, jnp.int32)) + 1
    return jnp.sum(jnp.where(kept, code, 0), dtype=jnp.int32)


def _highest(word):
    """The place of the highest bit that is set."""
    return 31 - lax.clz(word).astype(jnp.int32)


def encode(indices: Any, b: int) -> tuple[bits.Stream, bits.Stream]:
    """The Rice codes of indices.

    Args:
      indices: whole numbers `[count]`, strictly increasing from at least 0.
      b: the Rice parameter, 0 to 30.

    Returns:
      The unary stream, whose length has to be sent, and the stream of remainders, count * b bits.

    Example:
      >>> unary, remainders = encode([2, 3, 9], b=1)
      >>> unary.length, remainders.length
      (6, 3)

    Reference:
      Golomb. Run-length encodings. 1966.
    """
    b, indices = _parameter(b), np.asarray(indices)
    if indices.size == 0:
        return bits.EMPTY, bits.EMPTY
    gaps = np.diff(indices.astype(np.int64), prepend=-1) - 1
    if gaps.min() < 0:
        raise ValueError("indices must be strictly increasing and not negative.")
    ends = np.cumsum((gaps >> b) + 1, dtype=np.int64) - 1
    ones = np.ones(int(ends[-1]) + 1, np.bool_)
    ones[ends] = False
    unary = bits.Stream(np.packbits(ones, bitorder="little"), ones.size)
    return unary, bits.pack(gaps & ((1 << b) - 1), b) if b else bits.EMPTY


def decode(
    unary: bits.Stream, remainders: bits.Stream, b: int, count: int, size: int
) -> np.ndarray:
    """The indices of `encode`.

    Streams that are not the codes of `count` indices below `size` raise a ValueError.

    Args:
      unary: the unary stream.
      remainders: the stream of remainders.
      b: the Rice parameter, 0 to 30.
      count: the number of indices.
      size: what they are less than.

    Returns:
      int64 `[count]`.

    Example:
      >>> decode(*encode([2, 3, 9], b=1), b=1, count=3, size=10).tolist()
      [2, 3, 9]

    Reference:
      Golomb. Run-length encodings. 1966.
    """
    b = _parameter(b)
    for stream in (unary, remainders):
        bits.stream_of(*stream)
    if remainders.length != count * b:
        raise ValueError(
            f"the remainders of {count} codes must be {count * b} bits, got {remainders.length}."
        )
    if unary.length < count:
        raise ValueError(f"{count} unary codes do not fit into {unary.length} bits.")
    rest = bits.unpack(remainders, b) if b else np.zeros(count, np.uint32)
    # The last index, in Python's integers: bytes from a stranger must not overflow anything below.
    last = ((unary.length - count) << b) + int(rest.sum(dtype=np.int64)) + count - 1
    if last >= size:
        raise ValueError(f"indices must be less than {size}, got {last}.")
    ones = np.unpackbits(unary.data, count=unary.length, bitorder="little").view(np.bool_)
    ends = np.flatnonzero(~ones)
    if ends.size != count or (count and ends[-1] != unary.length - 1) or (not count and ones.size):
        raise ValueError(f"the unary stream must hold {count} codes, got {ends.size} ends of one.")
    gaps = ((np.diff(ends, prepend=-1) - 1) << b) + rest.astype(np.int64)
    return np.cumsum(gaps + 1) - 1


def _parameter(b):
    return checks.integer("b", b, low=0, high=LARGEST_PARAMETER)
