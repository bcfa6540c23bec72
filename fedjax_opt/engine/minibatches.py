"""Where a client's minibatches come from: its own examples, drawn inside the program by index."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import StaticInt
from fedjax_opt.core.aliases import Batch, Examples, Number, Tree
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.federation import BATCHINGS, REMAINDERS
from fedjax_opt.core.permutation import permuted
from fedjax_opt.execution.placement import PerDevice

# Keeps the stream that chooses rows apart from the one that a model's dropout uses.
_ROWS = 2**31 - 3


# And which of its rows count; None: all.
Minibatch = tuple[Batch, jax.Array | None]


class Feed(NamedTuple):
    """What one client learns from; `feed` makes one of its examples.

    Attributes:
      draw: (key, step) -> (batch, mask): the next minibatch. The mask says which rows count; None: all.
      chunk: index -> (batch, mask): a part of all examples, for a pass over them.
      num_chunks: how many of these there are; a Python int if that is known beforehand.
      extra: key -> (batch, mask): one more minibatch, for a probe.
      num_examples: n_i.
    """

    draw: Callable[[chex.PRNGKey, Number], Minibatch]
    chunk: Callable[[Number], Minibatch]
    num_chunks: jax.Array | int
    extra: Callable[[chex.PRNGKey], Minibatch]
    num_examples: Number


class Feeds(NamedTuple):
    """The feeds of a cohort: how one is made of what all clients share and of its own, `[S, ...]`."""

    of: Callable[[Tree, Tree], Feed]
    shared: Tree
    own: Tree


def feed(
    examples: Examples, batch_size: int = 32, batching: str = "shuffled", remainder: str = "exact"
) -> Feed:
    """A client's own examples as what `client_update` learns from.

    The minibatches are those that the client would draw in a simulation with the same key.

    Args:
      examples: a pytree of arrays `[n, ...]`.
      batch_size: B.
      batching: 'shuffled' epochs, or 'replacement'; see `Federation`.
      remainder: what becomes of the last examples of an epoch, 'exact' or 'drop'; see `Federation`.

    Returns:
      A `Feed`, a pytree: it may be an argument of a compiled function.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> own = fo.feed({"x": jnp.arange(10.0)}, batch_size=4)
      >>> batch, mask = own.draw(jax.random.key(0), 2)     # of 4, 4 and 2 rows, the third
      >>> batch["x"].shape, int(mask.sum())
      ((4,), 2)
    """
    (size,) = checks.leading_axes("examples", examples, (None,), "n")
    if size == 0:
        raise ValueError("examples must hold at least one example to learn from, got none.")
    batch_size = checks.integer("batch_size", batch_size, low=1)
    checks.choice("batching", batching, BATCHINGS)
    checks.choice("remainder", remainder, REMAINDERS)
    if remainder == "drop" and size < batch_size:
        raise ValueError(
            f"examples must fill a minibatch of {batch_size} with remainder='drop', got {size}."
        )
    examples, place = jax.tree.map(jnp.asarray, examples), (jnp.int32(0), jnp.int32(size))
    full = remainder == "drop" or size % batch_size == 0
    chunks = steps_per_epoch(size, batch_size, full)
    return rows_feed(batch_size, batching, full, chunks, examples, place)


def feeds_from_data(
    data: ClientData,
    cohort: jax.Array,
    batch_size: int,
    batching: str,
    full: bool,
    num_chunks: int | None = None,
) -> Feeds:
    """How the clients of a cohort draw their minibatches."""
    of = partial(rows_feed, batch_size, batching, full, num_chunks)
    sizes, offsets = jnp.asarray(data.sizes)[cohort], data.offsets
    if isinstance(data.examples, PerDevice) and isinstance(offsets, PerDevice):
        # Each device has its own part of the examples, so it looks up itself where a client's begin.
        own = PerDevice((data.examples.tree, offsets.tree))
        return Feeds(partial(_of_this_device, of), own, (cohort, sizes))
    return Feeds(of, data.examples, (jnp.asarray(offsets)[cohort], sizes))


def steps_per_epoch(sizes: Any, batch_size: int, full: bool = False) -> Any:
    """How many minibatches hold all of a client's rows once; only full ones, if nothing else may be."""
    return sizes // batch_size if full else -(-sizes // batch_size)


def rows_feed(
    batch_size: int,
    batching: str,
    full: bool,
    num_chunks: int | None,
    examples: Examples,
    place: tuple[Number, Number],
) -> Feed:
    """The feed of a client whose rows are `size` of the examples, from `offset` on: (offset, size)."""
    # Numbers that are compiled in, also where the feed is an argument of a compiled function.
    rows, whole = StaticInt(batch_size), StaticInt(full)
    draw = _shuffled if batching == "shuffled" else _with_replacement
    known = rows, whole, examples, place
    chunks = steps_per_epoch(place[1], batch_size, full)
    if num_chunks is not None:
        chunks = StaticInt(num_chunks)
    next_rows = Partial(draw, *known)
    return Feed(next_rows, Partial(_chunk, *known), chunks, Partial(_first, next_rows), place[1])


def _of_this_device(of, own, client_and_size):
    examples, offsets = own.tree
    client, size = client_and_size
    return of(examples, (offsets[client], size))


def _with_replacement(batch_size, full, examples, place, key, step):
    del full
    batch_size, (offset, size) = int(batch_size), place
    key = jax.random.fold_in(jax.random.fold_in(key, _ROWS), step)
    rows = jax.random.randint(key, (batch_size,), 0, size, jnp.int32)
    return _gather(examples, offset + rows), None


def _shuffled(batch_size, full, examples, place, key, step):
    batch_size, (offset, size) = int(batch_size), place
    per_epoch = steps_per_epoch(size, batch_size, bool(full))
    epoch, turn = step // per_epoch, step % per_epoch
    positions = turn * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
    key = jax.random.fold_in(jax.random.fold_in(key, _ROWS), epoch)
    rows = permuted(key, positions % size, size)
    return _gather(examples, offset + rows), None if full else positions < size


def _chunk(batch_size, full, examples, place, index):
    batch_size, (offset, size) = int(batch_size), place
    positions = index * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
    rows = offset + positions % jnp.maximum(size, 1)  # a test set may be empty
    return _gather(examples, rows), None if full else positions < size


def _first(draw, key):
    return draw(key, jnp.zeros((), jnp.int32))


def _gather(examples, rows):
    # Rows are in bounds by construction, so the gather need not check them.
    return jax.tree.map(lambda x: jnp.asarray(x).at[rows].get(mode="promise_in_bounds"), examples)
