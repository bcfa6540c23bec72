"""Golomb-Rice codes: which entries of a sparse vector are sent, in a few bits each.

    gap        g_j = i_j - i_(j-1) - 1 for kept indices i_1 < i_2 < ..., i_0 = -1
    code       g >> b ones and a zero (the quotient, in unary), then the b lowest bits of g
    parameter  b* = max(0, 1 + floor(log2(ln(phi - 1) / ln(s)))), phi the golden ratio, s the sparsity
    expected   g_s = b* + 1 / (1 - s^(2^b*)) bits an index, if each entry is kept with probability 1 - s

The unary parts of all indices come first and all remainders after them, rather than taking turns: the
same number of bits, and both are then written and read by whole arrays. Two neighbours are at least one
apart, so the gap less one is what is coded, and (3.3) of the thesis is the expectation of that. For s of
at least a half it is at most 0.12 bits, 4.3%, above the entropy. (3.4) is printed with (phi - 1) / s
inside the logarithm.

Bits are arrays of 0 and 1 in uint8; a number's lowest bit comes first.

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

LARGEST_PARAMETER = 30  # of one entry kept among 2^31 - 1
_LOG = -math.log((math.sqrt(5) - 1) / 2)  # -ln(phi - 1)
_WORD = 32


def parameter(sparsity: float) -> int:
    """The best Rice parameter b* for a sparsity in [0, 1)."""
    if sparsity == 0:
        return 0
    # frexp writes a number as m 2^e with 1/2 <= m < 1: then e is 1 + floor(log2), without rounding.
    return max(0, math.frexp(_LOG / -math.log(sparsity))[1])


def expected_bits(sparsity: float) -> float:
    """The expected bits g_s of one index, for a sparsity in [0, 1)."""
    b = parameter(sparsity)
    return b + 1 / (1 - sparsity ** (2**b))


def parameter_of(count: Any, size: Any) -> jax.Array:
    """The Rice parameter for `count` of `size` entries, inside a program; s = 1 - count / size.

    In float32 the parameter may be the neighbour of `parameter`'s where the two cost the same to six
    digits. It is sent, so nobody computes it again. It is 0 where all entries are sent, or none.
    """
    count, size = jnp.asarray(count, jnp.int32), jnp.asarray(size, jnp.int32)
    some = (count > 0) & (count < size)
    kept = jnp.where(some, count, 1).astype(jnp.float32)
    kept = kept / jnp.where(some, size, 2).astype(jnp.float32)
    # Of 2^24 entries and more, all but one of them may round to all: then 1 - s is 1, and b is 0.
    kept = jnp.minimum(kept, jnp.float32(1 - 2**-24))
    exponent = jnp.frexp(jnp.float32(_LOG) / -jnp.log1p(-kept))[1].astype(jnp.int32)
    return jnp.where(some, jnp.maximum(exponent, 0), 0)


def unary_bits(kept: Any, b: Any) -> jax.Array:
    """The bits of the unary parts of the indices at which `kept` is true, inside a program.

    The count of the indices and the sum of their quotients, exactly; the remainders take count * b more.
    """
    # Each index needs the one before it. A cumulative maximum would give that; it takes ten times as
    # long as looking for the next lower bit among 32 entries read as one number.
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


def encode(indices: Any, b: int) -> np.ndarray:
    """The Rice codes of increasing indices, as bits: the quotients in unary, then the remainders."""
    gaps = np.diff(np.asarray(indices, np.int64), prepend=-1) - 1
    ends = np.cumsum((gaps >> b) + 1) - 1
    unary = np.ones(int(ends[-1]) + 1 if ends.size else 0, np.uint8)
    unary[ends] = 0
    return np.concatenate([unary, as_bits(gaps & ((1 << b) - 1), b)])


def decode(bits: np.ndarray, b: int, count: int, size: int) -> tuple[np.ndarray, int]:
    """The `count` indices of `encode`, all less than `size`, and how many bits their codes have.

    The size is below 2^31, so that nothing here overflows, whoever sent the bits.
    """
    if b > LARGEST_PARAMETER:
        raise ValueError(f"the Golomb parameter must be at most {LARGEST_PARAMETER}, got {b}.")
    ends = np.flatnonzero(bits == 0)[:count]
    unary = int(ends[-1]) + 1 if ends.size else 0
    remainders = bits[unary : unary + count * b]
    if ends.size < count or remainders.size < count * b:
        raise ValueError(f"truncated: {bits.size} bits do not hold {count} positions.")
    gaps = ((np.diff(ends, prepend=-1) - 1) << b) + (as_numbers(remainders, b) if b else 0)
    indices = np.cumsum(gaps + 1) - 1
    if count and indices[-1] >= size:
        raise ValueError(f"positions must be less than {size}, got {indices[-1]}.")
    return indices, unary + count * b


def as_bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Whole numbers `[n]` from 0 to 2^width - 1, the width at most 32, as n * width bits."""
    whole = _integers(width)
    bits = np.unpackbits(numbers.astype(whole).view(np.uint8), bitorder="little")
    return bits.reshape(-1, 8 * whole.itemsize)[:, :width].reshape(-1)


def as_numbers(bits: np.ndarray, width: int) -> np.ndarray:
    """The numbers of `as_bits`, int64 `[n]`."""
    whole = _integers(width)
    # Filled up to whole integers: to pack the bits of each number by itself would be many times slower.
    padded = np.zeros((bits.size // width, 8 * whole.itemsize), np.uint8)
    padded[:, :width] = bits.reshape(-1, width)
    return np.packbits(padded, bitorder="little").view(whole).astype(np.int64)


def _integers(width: int) -> np.dtype:
    return np.dtype("<u1" if width <= 8 else "<u2" if width <= 16 else "<u4")
