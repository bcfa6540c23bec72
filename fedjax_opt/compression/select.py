"""Which entries to keep: the k of largest magnitude, exactly, without sorting.

The magnitude of a floating-point number grows with its bit pattern, read as an integer. So the k-th
largest is found by a search over integers: guess a threshold, count the entries at or above it, and
interpolate. A pass that counts costs a hundredth of a sort, ten passes are enough, k may be traced, and
entries that are equal are taken in the order of their indices.

A group is a tuple of vectors whose entries compete with each other. All groups are searched in one loop:
for small ones its overhead is what costs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Group = tuple[jax.Array, ...]

# So few entries are compared each with each, which needs no loop.
_FEW = 256


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
    found = _search(groups, counts, _start(groups, counts))
    # Where entries tie at the threshold, those above it are fewer than wanted: the rest by index.
    tied = [tuple(p == low for p in group) for group, low in zip(groups, found.low, strict=True)]
    cuts = _cuts(tied, counts - found.count_high, found.count_low <= counts)
    marks = []
    for group, ties, low, cut in zip(groups, tied, found.low, cuts, strict=True):
        pairs = zip(group, ties, _places(group), strict=True)
        marks.append(tuple((p > low) | (tie & (place < cut)) for p, tie, place in pairs))
    return marks


def _places(group: Group) -> list[jax.Array]:
    """The index of each entry among all of its group."""
    firsts = [_size(group[:i]) for i in range(len(group))]
    return [
        first + jnp.arange(p.size, dtype=jnp.int32) for first, p in zip(firsts, group, strict=True)
    ]


def _at_least(groups: list[Group], thresholds: jax.Array) -> jax.Array:
    """How many entries of each group are at or above its threshold."""

    def of(group, threshold):
        return sum(jnp.sum(p >= threshold, dtype=jnp.int32) for p in group)

    return jnp.stack([of(g, t) for g, t in zip(groups, thresholds, strict=True)])


def _start(groups: list[Group], counts: jax.Array) -> _Bracket:
    """The part of all patterns in which samples say that the thresholds must be."""
    totals = jnp.array([_size(group) for group in groups], jnp.int32)
    dtype = groups[0][0].dtype
    bracket = _Bracket(
        jnp.zeros(len(groups), dtype),
        jnp.full(len(groups), jnp.iinfo(dtype).max, dtype),
        totals,
        jnp.zeros(len(groups), jnp.int32),
    )
    samples = jnp.stack([_sample(group) for group in groups])
    ranks = jax.vmap(_ranks)(samples)
    shares = counts.astype(jnp.float32) / totals.astype(jnp.float32)
    # Two standard deviations of a quantile's rank in a sample: a wrong guess costs time, not truth.
    margins = 2 * jnp.sqrt(jnp.maximum(_FEW * shares * (1 - shares), 1.0))
    for places in (shares * _FEW + margins, shares * _FEW - margins):
        places = jnp.clip(places, 0, _FEW - 1).astype(jnp.int32)
        there = ranks == places[:, None]
        guesses = jnp.sum(jnp.where(there, samples, 0), axis=1, dtype=dtype)
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
    """Narrows until exactly as many as wanted are at or above the lower end, or nothing is between."""

    def unfinished(carry):
        bracket, _ = carry
        return jnp.any((bracket.count_low > counts) & (bracket.high - bracket.low > 1))

    def narrow(carry):
        bracket, turn = carry
        span = bracket.high - bracket.low
        inside = (bracket.count_low - bracket.count_high).astype(jnp.float32)
        share = (bracket.count_low - counts).astype(jnp.float32) / jnp.maximum(inside, 1)
        # Interpolation is fast on smooth distributions; every third time, halving bounds the worst.
        share = jnp.where(turn % 3 == 2, jnp.float32(0.5), share)
        step = (span.astype(jnp.float32) * share).astype(span.dtype)
        thresholds = bracket.low + jnp.clip(step, 1, jnp.maximum(span - 1, 1))
        # A group that is done stays as it is.
        thresholds = jnp.where(bracket.count_low > counts, thresholds, bracket.low)
        found = _at_least(groups, thresholds)
        return _narrowed(bracket, thresholds, found, counts), turn + 1

    return jax.lax.while_loop(unfinished, narrow, (bracket, jnp.int32(0)))[0]


def _cuts(tied: list[Group], missing: jax.Array, exact: jax.Array) -> jax.Array:
    """The index below which `missing` of a group's ties lie; above all where all ties are kept."""
    totals = jnp.array([_size(ties) for ties in tied], jnp.int32)
    places = [_places(ties) for ties in tied]

    def below(cuts):
        def of(ties, places, cut):
            pairs = zip(ties, places, strict=True)
            return sum(jnp.sum(tie & (place < cut), dtype=jnp.int32) for tie, place in pairs)

        return jnp.stack([of(*one) for one in zip(tied, places, cuts, strict=True)])

    def halve(carry):
        low, high = carry
        middle = low + (high - low) // 2
        enough = below(middle) >= missing
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    start = (jnp.where(exact, totals, -1), totals)
    return jax.lax.while_loop(lambda c: jnp.any(c[1] - c[0] > 1), halve, start)[1]
