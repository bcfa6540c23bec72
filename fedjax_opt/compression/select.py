"""Which entries to keep: the k of largest magnitude, exactly, without sorting.

The magnitude of a floating-point number grows with its bit pattern, read as an integer. So the k-th
largest is found by a search over integers: guess a threshold, count the entries at or above it, and
interpolate; first over the highest 16 bits, then over the 15 that are left (of a double, three times as
many), since short integers are counted three times as fast. A pass that counts costs a five hundredth of
a sort, a dozen are enough, k may be traced, and entries that are equal are taken in the order of their
indices.

A group is a tuple of vectors whose entries compete with each other. All groups are searched in one loop:
for small ones its overhead is what costs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.compression.folding import count_true
from fedjax_opt.core import trees

Group = tuple[jax.Array, ...]

# So few entries are compared each with each, which needs no loop.
_FEW = 128
# The bits of a pattern that one search is over.
_DIGIT = 16


class _Bracket(NamedTuple):
    """By group `[G]`: thresholds below and above the one sought, and the entries at or above each."""

    low: jax.Array
    high: jax.Array
    count_low: jax.Array
    count_high: jax.Array


def largest(groups: tuple[Group, ...], counts: Any) -> tuple[Group, ...]:
    """Marks the entries of largest magnitude of each group.

    Args:
      groups: tuples of vectors of floating point.
      counts: int32 for each group, may be traced: how many to mark; all, if there are no more.

    Returns:
      A boolean vector for each vector. Of equal entries those with lower indices are marked; NaN counts
      as larger than infinity, so that it is kept and seen.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt.compression.select import largest
      >>> ((marks,),) = largest(((jnp.array([0.5, -2.0, 0.5, 1.0]),),), [3])
      >>> marks.tolist()
      [True, True, False, True]
    """
    counts = [jnp.asarray(count, jnp.int32) for count in counts]
    patterns = [_patterns(group) for group in groups]
    many = [i for i, group in enumerate(patterns) if _size(group) > _FEW]
    marks: dict[int, Group] = {
        i: _of_few(group, counts[i]) for i, group in enumerate(patterns) if i not in many
    }
    # Groups of one type are searched together.
    for dtype in {patterns[i][0].dtype for i in many}:
        alike = [i for i in many if patterns[i][0].dtype == dtype]
        found = _of_many([patterns[i] for i in alike], jnp.stack([counts[i] for i in alike]))
        marks |= zip(alike, found, strict=True)
    return tuple(marks[i] for i in range(len(groups)))


def _size(group: Group) -> int:
    return sum(pattern.size for pattern in group)


def _patterns(group: Group) -> Group:
    """Integers in the order of the magnitudes, of one type for the whole group."""
    double = any(array.dtype == jnp.float64 for array in group)
    number, integer = (jnp.float64, jnp.int64) if double else (jnp.float32, jnp.int32)
    return tuple(
        jax.lax.bitcast_convert_type(jnp.abs(array.astype(number)), integer) for array in group
    )


def _ranks(patterns: jax.Array) -> jax.Array:
    """How many entries come before each: those that are larger, and equal ones with a lower index."""
    places = jnp.arange(patterns.size, dtype=jnp.int32)
    larger = patterns[None, :] > patterns[:, None]
    earlier = (patterns[None, :] == patterns[:, None]) & (places[None, :] < places[:, None])
    return jnp.sum(larger | earlier, axis=1, dtype=jnp.int32)


def _of_few(group: Group, count: jax.Array) -> Group:
    if not group:
        return ()
    marks = _ranks(jnp.concatenate(group)) < count
    ends = [_size(group[: i + 1]) for i in range(len(group) - 1)]
    return tuple(jnp.split(marks, ends))


def _of_many(groups: list[Group], counts: jax.Array) -> list[Group]:
    found = _thresholds(groups, counts)
    # Where entries tie at a threshold there may be more of them than wanted: the first are taken.
    exact = found.count_low <= counts
    missing = counts - found.count_high
    cuts = jax.lax.cond(jnp.all(exact), _no_cuts, _cuts, groups, found.low, missing, exact)
    marks = []
    for group, low, cut in zip(groups, found.low, cuts, strict=True):
        pairs = zip(group, _places(group), strict=True)
        marks.append(tuple((p > low) | ((p == low) & (place < cut)) for p, place in pairs))
    return marks


def _no_cuts(groups: list[Group], low: jax.Array, missing: jax.Array, exact: jax.Array) -> Any:
    """All ties are kept."""
    del low, missing, exact
    return jnp.array([_size(group) for group in groups], jnp.int32)


def _places(group: Group) -> list[jax.Array]:
    """The index of each entry among all of its group."""
    firsts = [_size(group[:i]) for i in range(len(group))]
    return [
        first + jnp.arange(p.size, dtype=jnp.int32) for first, p in zip(firsts, group, strict=True)
    ]


def _thresholds(groups: list[Group], counts: jax.Array) -> _Bracket:
    """The largest pattern of each group that at least as many entries reach as are wanted."""
    dtype = groups[0][0].dtype
    totals = jnp.array([_size(group) for group in groups], jnp.int32)
    low, count_low, count_high = jnp.zeros(len(groups), dtype), totals, jnp.zeros_like(totals)
    above = jnp.iinfo(dtype).bits - 1  # patterns are not negative
    while above:
        width = min(_DIGIT, above)
        above -= width
        digits = [_digits(group, base, above) for group, base in zip(groups, low, strict=True)]
        start = jnp.zeros(len(groups), jnp.int32)
        bracket = _Bracket(start, start + 2**width, count_low, count_high)
        if above == jnp.iinfo(dtype).bits - 1 - width:
            samples = jnp.stack([_sample(group) for group in groups]) >> above
            bracket = _narrowed_by_sample(digits, samples.astype(jnp.int32), counts, bracket)
        bracket = _search(digits, counts, bracket)
        low = low + (bracket.low.astype(dtype) << above)
        count_low, count_high = bracket.count_low, bracket.count_high
    return _Bracket(low, low + 1, count_low, count_high)


def _digits(group: Group, base: jax.Array, shift: int) -> Group:
    """How far entries lie above a base, in units of 2^shift; 0 below it."""
    largest = 2**_DIGIT - 1
    return tuple(jnp.clip((p - base) >> shift, 0, largest).astype(jnp.uint16) for p in group)


def _at_least(groups: list[Group], thresholds: jax.Array) -> jax.Array:
    """How many digits of each group are at or above its threshold, which is at least 1."""
    pairs = zip(groups, thresholds.astype(jnp.uint16), strict=True)
    return jnp.stack(
        [sum(count_true(digits >= limit) for digits in group) for group, limit in pairs]
    )


def _narrowed_by_sample(groups, samples, counts, bracket) -> _Bracket:
    """The part of the bracket in which samples say that the thresholds must be."""
    ranks = jax.vmap(_ranks)(samples)
    shares = counts.astype(jnp.float32) / bracket.count_low.astype(jnp.float32)
    # Two standard deviations of a quantile's rank in a sample: a wrong guess costs time, not truth.
    margins = 2 * jnp.sqrt(jnp.maximum(_FEW * shares * (1 - shares), 1.0))
    for places in (shares * _FEW + margins, shares * _FEW - margins):
        places = jnp.clip(places, 0, _FEW - 1).astype(jnp.int32)
        there = ranks == places[:, None]
        guesses = jnp.maximum(jnp.sum(jnp.where(there, samples, 0), axis=1, dtype=jnp.int32), 1)
        bracket = _narrowed(bracket, guesses, _at_least(groups, guesses), counts)
    return bracket


def _sample(group: Group) -> jax.Array:
    """Some entries of a group, from all over it."""
    stride = _size(group) // _FEW
    return jnp.concatenate([p[::stride] for p in group])[:_FEW]


def _narrowed(bracket: _Bracket, thresholds: Any, found: Any, counts: Any) -> _Bracket:
    """The bracket with one more threshold counted."""
    inside = (thresholds > bracket.low) & (thresholds < bracket.high)
    low, high = inside & (found >= counts), inside & (found < counts)
    return _Bracket(
        jnp.where(low, thresholds, bracket.low),
        jnp.where(high, thresholds, bracket.high),
        jnp.where(low, found, bracket.count_low),
        jnp.where(high, found, bracket.count_high),
    )


def _search(groups: list[Group], counts: jax.Array, bracket: _Bracket) -> _Bracket:
    """Narrows until exactly as many as wanted are at or above the lower end, or nothing is between.

    By the Illinois rule: a guess is interpolated, and an end that stayed twice weighs half as much.
    """

    def unfinished(carry):
        bracket, *_ = carry
        return jnp.any(_open(bracket))

    def _open(bracket):
        return (bracket.count_low > counts) & (bracket.high - bracket.low > 1)

    def narrow(carry):
        bracket, weight, turn = carry
        # Of the m entries inside, the lowest j are too many: the threshold is after the j-th of them.
        below = (bracket.count_low - counts).astype(jnp.float32) + 0.5
        above = (counts - bracket.count_high).astype(jnp.float32) + 0.5
        share = below / (below + above * weight)
        # On strange distributions interpolation may crawl; halving bounds the worst.
        share = jnp.where(turn % 6 == 5, jnp.float32(0.5), share)
        span = bracket.high - bracket.low
        step = (span.astype(jnp.float32) * share).astype(span.dtype)
        thresholds = bracket.low + jnp.clip(step, 1, jnp.maximum(span - 1, 1))
        found = _at_least(groups, thresholds)
        # The weight of the upper end against the lower: below 1 while the lower one moves, else above.
        rises = found >= counts
        again = jnp.where(rises, jnp.minimum(weight, 1) / 2, jnp.maximum(weight, 1) * 2)
        first = jnp.where(rises, weight > 1, weight < 1)
        weight = jnp.where(first, 1.0, again).astype(jnp.float32)
        narrower = _narrowed(bracket, thresholds, found, counts)
        # A group that is done stays as it is.
        return trees.select(_open(bracket), narrower, bracket), weight, turn + 1

    start = (bracket, jnp.ones(len(groups), jnp.float32), jnp.int32(0))
    return jax.lax.while_loop(unfinished, narrow, start)[0]


def _cuts(groups: list[Group], low: jax.Array, missing: jax.Array, exact: jax.Array) -> Any:
    """The index below which `missing` of a group's ties lie; above all where all ties are kept."""
    totals = jnp.array([_size(group) for group in groups], jnp.int32)

    def below(cuts):
        def of(group, threshold, cut):
            pairs = zip(group, _places(group), strict=True)
            ties = [(p == threshold) & (place < cut) for p, place in pairs]
            return sum(jnp.sum(tie, dtype=jnp.int32) for tie in ties)

        return jnp.stack([of(*one) for one in zip(groups, low, cuts, strict=True)])

    def halve(carry):
        start, end = carry
        middle = start + (end - start) // 2
        enough = below(middle) >= missing
        return jnp.where(enough, start, middle), jnp.where(enough, middle, end)

    start = (jnp.where(exact, totals, -1), totals)
    return jax.lax.while_loop(lambda c: jnp.any(c[1] - c[0] > 1), halve, start)[1]
