"""Quantisers: each kept entry as one of a few codes, with a header of a few numbers per tensor.

    uniform      negatives to 0 .. h-1, the rest to h .. 2h-1, h = 2^(bits-1): evenly spaced between the
                 extremes of each sign, which are the header; 0 is exact
    exponential  magnitudes evenly spaced on a logarithmic scale from the largest M to the smallest m,
                 (M, m) the header: code 0 is 0, 1 .. h-1 are -M b^0 .. -M b^-(h-2), h .. 2h-2 the same
                 without the sign, b = (M / m)^(1 / (h-2)). From one, for M = 1 and the header (m):
                 1 .. h-1 are -b^-1 .. -b^-(h-1), h .. 2h-1 are b^0 .. b^-(h-1), b = m^(-1 / (h-1))
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

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.compression.codec import Codec, Name, Quantiser
from fedjax_opt.compression.largest import folded
from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import StaticInt


def uniform(bits: int = 8, stochastic: bool = False) -> Codec:
    """Evenly spaced codes between the extremes of each sign, which are sent as four numbers.

    Args:
      bits: the width of a code, 2 to 16.
      stochastic: round at random, such that the expected value of an entry is the entry.

    Returns:
      A `Codec`. Rounded to the nearest, an entry is off by at most `r / (2^bits - 2)` with r the range
      of its sign's entries, and by rounding in its own type. 0 stays 0.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> change = {"w": jnp.array([-3.0, -1.5, 0.0, 4.0, 5.0])}
      >>> compression.lossy(compression.uniform(2), change)["w"].tolist()
      [-3.0, -1.5, 0.0, 5.0, 5.0]
    """
    radix = 2 ** checks.integer("bits", bits, low=2, high=16)
    return _quantising("uniform", _uniform, _uniform_restored, radix, 4, stochastic)


def exponential(bits: int = 8, stochastic: bool = False, from_one: bool = False) -> Codec:
    """Codes whose logarithms are evenly spaced, for numbers of very different magnitudes.

    Args:
      bits: the width of a code, 3 to 16.
      stochastic: round at random, such that the expected value of an entry is the entry.
      from_one: whether the scale begins at 1 and not at the largest magnitude, as in the thesis. It then
        sends one number less, larger magnitudes come back as 1, and -1 as the next level.

    Returns:
      A `Codec`. With M and m the largest and the smallest magnitude but 0, an entry is off by a factor
      of at most `(M / m)^(1 / (2^bits - 4))`, and by rounding in its own type. 0 stays 0, signs stay.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> moments = {"v": jnp.array([1e-20, 3e-9, -2.0])}
      >>> seen = compression.lossy(compression.exponential(8), moments)["v"]
      >>> [f"{x:.1g}" for x in seen.tolist()]
      ['1e-20', '3e-09', '-2']
    """
    radix = 2 ** checks.integer("bits", bits, low=3, high=16)
    if from_one:
        if stochastic:
            raise ValueError(
                "stochastic=True has no expected value for what from_one=True cuts off."
            )
        rules = _exponential_from_one, _from_one_restored
        return _quantising("exponential from one", *rules, radix, 1, False)
    return _quantising("exponential", _exponential, _exponential_restored, radix, 2, stochastic)


def sign() -> Codec:
    """One bit per entry: its sign, times the mean magnitude of the tensor's entries.

    Returns:
      A `Codec`; biased, so use it with error feedback.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> compression.lossy(compression.sign(), {"w": jnp.array([1.0, -3.0])})["w"].tolist()
      [2.0, -2.0]
    """
    return _quantising("sign", _sign, _sign_restored, 2, 1, False)


def ternary(stochastic: bool = True) -> Codec:
    """-1, 0 or 1 for each entry, in two bits, times the largest magnitude of the tensor.

    Args:
      stochastic: draw +-1 with probability |a| / max |a|, which is right on average (TernGrad);
        otherwise round to the nearest.

    Returns:
      A `Codec`.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt import compression
      >>> compression.lossy(compression.ternary(False), {"w": jnp.array([1.0, -3.0, 2.0])})["w"].tolist()
      [0.0, -3.0, 3.0]
    """
    return _quantising("ternary", _ternary, _ternary_restored, 3, 1, stochastic)


def _quantising(
    name: str, quantise: Callable, restore: Callable, radix: int, header_size: int, random: bool
) -> Codec:
    static = StaticInt(radix), StaticInt(bool(random))
    both = Partial(quantise, *static), Partial(restore, static[0])
    return Codec(
        quantiser=Quantiser(Name(name), *both, static[0], StaticInt(header_size), static[1])
    )


def _uniform(radix, stochastic, values, *, zeros, key, **_):
    half, steps = radix // 2, radix // 2 - 1
    negative = values < 0
    low, high = _extremes(values, negative)
    low_plus, high_plus = _extremes(values, ~negative if zeros else values > 0)
    start, end = jnp.where(negative, low, low_plus), jnp.where(negative, high, high_plus)
    # Divided first: the steps per unit of a tiny range would overflow.
    place = _rounded((values - start) / _or_one(end - start) * steps, stochastic, key)
    codes = jnp.clip(place, 0, steps) + jnp.where(negative, 0, half).astype(place.dtype)
    return codes, _poisoned(jnp.stack([low, high, low_plus, high_plus]))


def _uniform_restored(radix, codes, header):
    half, steps = radix // 2, radix // 2 - 1
    low, high, low_plus, high_plus = header
    negative = codes < half
    share = jnp.where(negative, codes, codes - half) / steps
    start, end = jnp.where(negative, low, low_plus), jnp.where(negative, high, high_plus)
    # Weighted, not start + place * step: the extremes come back exactly.
    return start * (1 - share) + end * share


def _exponential(radix, stochastic, values, *, key, **_):
    half, steps = radix // 2, radix // 2 - 2
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


def _exponential_restored(radix, codes, header):
    half, steps = radix // 2, radix // 2 - 2
    largest, smallest = header
    negative = codes < half
    place = jnp.where(negative, codes - 1, codes - half)
    scale, top, span = _logarithms(largest, smallest)
    magnitude = scale * jnp.exp(top - place / steps * span)
    # The ends are sent, so they need not pass through a logarithm.
    magnitude = jnp.where(place == 0, largest, jnp.where(place == steps, smallest, magnitude))
    signed = jnp.where(negative, -magnitude, magnitude)
    return jnp.where(codes == 0, 0 * largest, signed)


def _exponential_from_one(radix, _random, values, **_):
    half = radix // 2
    magnitudes, negative = jnp.abs(values), values < 0
    smallest, largest = _extremes(magnitudes, magnitudes != 0)
    tiny = jnp.finfo(values.dtype).tiny
    step = _or_one(jnp.log(jnp.clip(smallest, tiny, 1)) / (half - 1))
    place = jnp.round(jnp.log(jnp.clip(magnitudes, tiny, 1)) / step)
    # Code 0 is 0: a negative number has no level at 1.
    place = jnp.clip(place, jnp.where(negative, 1, 0), half - 1)
    codes = place + jnp.where(negative, 0, half).astype(place.dtype)
    return jnp.where(magnitudes == 0, 0, codes), _poisoned(jnp.stack([smallest, largest]))[:1]


def _from_one_restored(radix, codes, header):
    half, smallest = radix // 2, header[0]
    negative = codes < half
    place = jnp.where(negative, codes, codes - half)
    ceiling = jnp.maximum(smallest, jnp.finfo(smallest.dtype).tiny)
    magnitude = jnp.exp(place / (half - 1) * jnp.log(jnp.minimum(ceiling, 1)))
    signed = jnp.where(negative, -magnitude, magnitude)
    return jnp.where(codes == 0, 0 * smallest, signed)


def _sign(_radix, _random, values, *, count, **_):
    magnitudes = jnp.abs(values)
    largest = jnp.max(folded(jnp.maximum, magnitudes), initial=0)
    # Shares of the largest: the sum of the magnitudes themselves might overflow.
    mean = jnp.sum(_shares(magnitudes, largest)) / jnp.maximum(count, 1).astype(values.dtype)
    return (values >= 0).astype(values.dtype), _poisoned((largest * mean)[None])


def _sign_restored(_, codes, header):
    return jnp.where(codes > 0, header[0], -header[0])


def _ternary(_radix, stochastic, values, *, key, **_):
    largest = jnp.max(jnp.abs(values), initial=0)
    place = _rounded(_shares(values, largest) + 1, stochastic, key)
    return jnp.clip(place, 0, 2), _poisoned(largest[None])


def _ternary_restored(_, codes, header):
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
