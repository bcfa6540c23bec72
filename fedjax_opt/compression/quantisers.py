"""Quantisers: each kept entry as one of a few codes, with a header of a few numbers per tensor.

    uniform      negatives to 0 .. h-1, the rest to h .. 2h-1, h = 2^(bits-1): evenly spaced between the
                 extremes of each sign, which are the header; 0 is exact
    exponential  magnitudes evenly spaced on a logarithmic scale from the largest M to the smallest m,
                 (M, m) the header: code 0 is 0, 1 .. h-1 are -M b^0 .. -M b^-(h-2), h .. 2h-2 the same
                 without the sign, b = (M / m)^(1 / (h-2))
    sign         one bit, times the mean magnitude
    ternary      -1, 0 or 1, times the largest magnitude

With `stochastic` rounding the expected value of an entry is the entry. Without it an entry goes to the
nearest code: half a step off at most in uniform (a step is 1 / (h-1) of its sign's range), a factor of
b^(1/2) at most in exponential. Arithmetic, which is in float32 or better, adds at most 2^(bits+2) eps of
that (3% at 16 bits in float32, 0.01% at 8), and four eps of the entry's own type. Differences below the
smallest normal number (1e-38 in float32) may be lost.

References:
  Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT. IEEE
  Internet of Things Journal, 2020 (uniform and exponential; as printed, magnitudes above 1 and -1 itself
  are lost, and zeros become the most negative entry: see docs/errata.md).
  Karimireddy, Rebjock, Stich, Jaggi. Error feedback fixes SignSGD and other gradient compression
  schemes. ICML 2019 (the scaled sign).
  Wen et al. TernGrad: ternary gradients to reduce communication in distributed deep learning. 2017.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.compression.agreement import Name
from fedjax_opt.compression.folding import folded
from fedjax_opt.core.algorithm import StaticInt


class Quantiser(NamedTuple):
    """How the kept entries of a tensor become codes.

    Attributes:
      name: what both ends call it.
      quantise: (values `[n]`, count, zeros, key) -> (codes `[n]`, header `[h]`). Entries that do not
        travel are 0; `count` do travel; `zeros` says whether some of those may be 0, too. Codes are
        whole numbers in floating point. The header is NaN if an entry is not finite.
      restore: (codes, header) -> values; codes in floating point, too.
      radix: the number of codes, a power of 2; or 3, of which five fit into a byte.
      random: 1 where `quantise` needs a key.
    """

    name: Name
    quantise: Any
    restore: Any
    radix: StaticInt
    random: StaticInt

    @property
    def width(self) -> int:
        """The bits of a code, where the number of codes is a power of 2."""
        return int(self.radix).bit_length() - 1


def uniform_quantiser(bits: int, stochastic: bool) -> Quantiser:
    """Evenly spaced codes between the extremes of each sign."""
    return _in_two_halves("uniform", _uniform, _uniform_restored, bits, stochastic)


def exponential_quantiser(bits: int, stochastic: bool) -> Quantiser:
    """Evenly spaced logarithms of the magnitudes."""
    return _in_two_halves("exponential", _exponential, _exponential_restored, bits, stochastic)


def _in_two_halves(name, quantise, restore, bits, stochastic) -> Quantiser:
    """A quantiser whose codes are parted in the middle, by sign."""
    half, random = StaticInt(2 ** (bits - 1)), StaticInt(stochastic)
    quantise, restore = Partial(quantise, half, random), Partial(restore, half)
    return Quantiser(Name(name), quantise, restore, StaticInt(2 * half), random)


def sign_quantiser() -> Quantiser:
    """The sign, and the mean magnitude."""
    quantise, restore = Partial(_sign), Partial(_sign_restored)
    return Quantiser(Name("sign"), quantise, restore, StaticInt(2), StaticInt(0))


def ternary_quantiser(stochastic: bool) -> Quantiser:
    """-1, 0 or 1, and the largest magnitude."""
    random = StaticInt(stochastic)
    quantise, restore = Partial(_ternary, random), Partial(_ternary_restored)
    return Quantiser(Name("ternary"), quantise, restore, StaticInt(3), random)


def code_dtype(radix: int) -> Any:
    """The smallest integers that hold all codes."""
    return jnp.uint8 if radix <= 2**8 else jnp.uint16


def _uniform(half, stochastic, values, count, zeros, key):
    del count
    half, steps = int(half), int(half) - 1
    negative = values < 0
    low, high = _extremes(values, negative)
    low_plus, high_plus = _extremes(values, ~negative if zeros else values > 0)
    start, end = jnp.where(negative, low, low_plus), jnp.where(negative, high, high_plus)
    # Divided first: the steps per unit of a tiny range would overflow.
    place = _rounded((values - start) / _or_one(end - start) * steps, stochastic, key)
    codes = jnp.clip(place, 0, steps) + jnp.where(negative, 0, half).astype(place.dtype)
    return codes, _poisoned(jnp.stack([low, high, low_plus, high_plus]))


def _uniform_restored(half, codes, header):
    half, steps = int(half), int(half) - 1
    low, high, low_plus, high_plus = header
    negative = codes < half
    share = jnp.where(negative, codes, codes - half) / steps
    start, end = jnp.where(negative, low, low_plus), jnp.where(negative, high, high_plus)
    # Weighted, not start + place * step: the extremes come back exactly.
    return start * (1 - share) + end * share


def _exponential(half, stochastic, values, count, zeros, key):
    del count, zeros
    half, steps = int(half), int(half) - 2
    magnitudes = jnp.abs(values)
    smallest, largest = _extremes(magnitudes, magnitudes != 0)
    scale, top, span = _logarithms(largest, smallest)
    step = _or_one(span / steps)
    # Below the smallest normal number logarithms are not to be trusted.
    normal = jnp.maximum(magnitudes, jnp.finfo(values.dtype).tiny)
    place = jnp.clip((top - jnp.log(normal / scale)) / step, 0, steps)
    if stochastic:
        place = _one_of_two_levels(magnitudes, scale, top, place, step, key)
    place = jnp.minimum(jnp.round(place), steps)
    codes = place + jnp.where(values < 0, 1, half).astype(place.dtype)
    return jnp.where(magnitudes == 0, 0, codes), _poisoned(jnp.stack([largest, smallest]))


def _logarithms(largest, smallest):
    """(scale, log(M / scale), log(M / m)), such that a level is scale exp(log(M / scale) - place step).

    A scale near M keeps logarithms small, and thus right to the last digit where log(M) - log(a) would
    not be. Only where a / M could underflow are magnitudes left as they are: steps are wide there.
    """
    tiny = float(jnp.finfo(largest.dtype).tiny)
    floor, ceiling = jnp.maximum(smallest, tiny), jnp.maximum(largest, tiny)
    scale = jnp.where(floor < ceiling * tiny**0.5, 1, _quarter(ceiling))
    top = jnp.log(ceiling / scale)
    return scale, top, top - jnp.log(floor / scale)


def _one_of_two_levels(magnitudes, scale, top, place, step, key):
    """One of the two levels around each magnitude, such that the expected magnitude is right."""
    above = jnp.floor(place)
    upper, lower = (scale * jnp.exp(top - level * step) for level in (above, above + 1))
    share = (upper - magnitudes) / _or_one(upper - lower)
    drawn = jax.random.uniform(key, magnitudes.shape, magnitudes.dtype)
    return jnp.where(drawn < share, above + 1, above)


def _exponential_restored(half, codes, header):
    half, steps = int(half), int(half) - 2
    largest, smallest = header
    negative = codes < half
    place = jnp.where(negative, codes - 1, codes - half)
    scale, top, span = _logarithms(largest, smallest)
    magnitude = scale * jnp.exp(top - place / steps * span)
    # The ends are sent, so they need not pass through a logarithm.
    magnitude = jnp.where(place == 0, largest, jnp.where(place == steps, smallest, magnitude))
    signed = jnp.where(negative, -magnitude, magnitude)
    return jnp.where(codes == 0, 0 * largest, signed)


def _sign(values, count, zeros, key):
    del zeros, key
    magnitudes = jnp.abs(values)
    largest = jnp.max(folded(jnp.maximum, magnitudes), initial=0)
    # Shares of the largest: the sum of the magnitudes themselves might overflow.
    mean = jnp.sum(_shares(magnitudes, largest)) / jnp.maximum(count, 1).astype(values.dtype)
    return (values >= 0).astype(values.dtype), _poisoned((largest * mean)[None])


def _sign_restored(codes, header):
    return jnp.where(codes > 0, header[0], -header[0])


def _ternary(stochastic, values, count, zeros, key):
    del count, zeros
    largest = jnp.max(jnp.abs(values), initial=0)
    place = _rounded(_shares(values, largest) + 1, stochastic, key)
    return jnp.clip(place, 0, 2), _poisoned(largest[None])


def _ternary_restored(codes, header):
    return (codes - 1) * header[0]


def _extremes(values, where):
    """The smallest and the largest of some entries; 0 if there are none."""
    low = jnp.min(folded(jnp.minimum, jnp.where(where, values, jnp.inf)), initial=jnp.inf)
    high = jnp.max(folded(jnp.maximum, jnp.where(where, values, -jnp.inf)), initial=-jnp.inf)
    nothing = (low == jnp.inf) & (high == -jnp.inf)
    return jnp.where(nothing, 0, low), jnp.where(nothing, 0, high)


def _shares(values, largest):
    """values / largest, 0 where that is 0."""
    scale = _quarter(largest)
    return values / scale / _or_one(largest / scale)


def _quarter(number):
    """What may be divided by: a compiler multiplies by 1 / number, which must be a normal number."""
    return jnp.maximum(number / 4, jnp.finfo(number.dtype).tiny)


def _or_one(number):
    return jnp.where(number == 0, 1, number)


def _rounded(place, stochastic, key):
    if not stochastic:
        return jnp.round(place)
    return jnp.floor(place + jax.random.uniform(key, place.shape, place.dtype))


def _poisoned(header):
    """NaN if a kept entry was not finite, as an extreme or a mean shows: no code may hide it."""
    return jnp.where(jnp.all(jnp.isfinite(header)), header, jnp.nan)
