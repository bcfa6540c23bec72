"""Sparsifiers: which entries of a message travel."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.compression.agreement import Name
from fedjax_opt.compression.folding import count_true
from fedjax_opt.compression.select import largest
from fedjax_opt.core.algorithm import StaticInt
from fedjax_opt.core.permutation import permuted


class Sparsifier(NamedTuple):
    """Which entries travel.

    Attributes:
      name: what both ends call it.
      select: (values, a tuple of vectors; kept, marks of each or None for all; key) -> (kept, factors):
        new marks, and what the kept entries of each vector are multiplied by.
      sparsity: the share of the entries that do not travel.
      by_seed: 1 where the marks follow from a key alone, which is sent in place of positions.
      rescales: 1 where factors may be other than 1.
    """

    name: Name
    select: Any
    sparsity: Any
    by_seed: StaticInt
    rescales: StaticInt


def by_magnitude(sparsity: Any, of_all: bool) -> Sparsifier:
    """The largest entries of each vector, or of all vectors together."""
    name, select = ("top_k global", _largest_of_all) if of_all else ("top_k", _largest_of_each)
    return Sparsifier(Name(name), Partial(select, sparsity), sparsity, StaticInt(0), StaticInt(0))


def at_random(sparsity: Any, rescale: bool) -> Sparsifier:
    """Entries of each vector at random."""
    rescales = StaticInt(rescale)
    select = Partial(_some, sparsity, rescales)
    return Sparsifier(Name("random_k"), select, sparsity, StaticInt(1), rescales)


def kept_count(sparsity: Any, size: Any) -> Any:
    """k = ceil((1 - s) n), at least 1 if there is any entry; s is what it is to twice its eps."""
    size, sparsity = jnp.asarray(size, jnp.int32), jnp.asarray(sparsity)
    dtype = jnp.result_type(float)
    known_as = sparsity.dtype if jnp.issubdtype(sparsity.dtype, jnp.floating) else dtype
    entries = size.astype(dtype)
    # 0.9 is a little less in float32, and 0.1 n must not become one more than it is.
    doubt = 2 * float(jnp.finfo(known_as).eps) * entries
    count = jnp.ceil((1 - sparsity.astype(dtype)) * entries - doubt).astype(jnp.int32)
    return jnp.clip(count, jnp.minimum(size, 1), size)


def _largest_of_each(sparsity, vectors, marks, key):
    del key
    return _largest(sparsity, [(vector,) for vector in vectors], [(mark,) for mark in marks])


def _largest_of_all(sparsity, vectors, marks, key):
    del key
    return _largest(sparsity, [vectors], [marks])


def _largest(sparsity, groups, marks):
    """The largest entries of each group, among those that are marked already."""
    counts, candidates = [], []
    for group, marked in zip(groups, marks, strict=True):
        pairs = list(zip(group, marked, strict=True))
        sizes = [v.size if m is None else count_true(m) for v, m in pairs]
        counts.append(kept_count(sparsity, sum(sizes)))
        candidates.append(tuple(v if m is None else jnp.where(m, v, 0) for v, m in pairs))
    found = largest(tuple(candidates), counts)
    kept = [
        _also(k, m)
        for group, marked in zip(found, marks, strict=True)
        for k, m in zip(group, marked, strict=True)
    ]
    return kept, [1.0] * len(kept)


def _some(sparsity, rescale, vectors, marks, key):
    kept, factors = [], []
    for index, (vector, mark) in enumerate(zip(vectors, marks, strict=True)):
        count = kept_count(sparsity, vector.size)
        places = jnp.arange(vector.size, dtype=jnp.int32)
        order = permuted(jax.random.fold_in(key, index), places, jnp.int32(max(vector.size, 1)))
        kept.append(_also(order < count, mark))
        factor = vector.size / jnp.maximum(count, 1).astype(vector.dtype)
        factors.append(factor if rescale else 1.0)
    return kept, factors


def _also(kept, mark):
    return kept if mark is None else kept & mark
