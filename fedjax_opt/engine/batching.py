"""Minibatches drawn inside the program from flat client data, by index."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.permutation import permuted
from fedjax_opt.engine.feeding import Feeding
from fedjax_opt.execution.meshes import PerDevice, located

# Keeps the stream that chooses rows apart from the one that a model's dropout uses.
_ROWS = 2**31 - 3


def feeding_from_data(
    data: Any,
    cohort: jax.Array,
    batch_size: int,
    batching: str,
    full: bool,
    num_chunks: int | None = None,
) -> Any:
    """How the clients of a cohort draw their minibatches.

    'replacement' draws each row independently. 'shuffled' walks through a random permutation of the
    client's rows, a new one in every epoch and round; the last minibatch of an epoch holds what is
    left. Its empty rows repeat rows of the same client, so that batch statistics stay sensible, and are
    masked out of the loss.

    Args:
      data: has `examples` (flat), `offsets` and `sizes`.
      cohort: ids `[S]`.
      batch_size: B.
      batching: 'shuffled' or 'replacement'.
      full: whether every client's size is a multiple of B, so that nothing has to be masked.
      num_chunks: how many minibatches hold all of a client's rows, if that is the same for all: a pass
        over them is then a loop of known length, which can be differentiated.
    """
    draw = _shuffled if batching == "shuffled" else _with_replacement
    if isinstance(data.examples, PerDevice):
        own = PerDevice((data.examples.tree, data.offsets.tree))
        return Feeding(
            draw=located(draw, batch_size, full),
            full=located(_all_rows, batch_size, num_chunks),
            extra=located(_extra, partial(draw, batch_size, full)),
            shared=own,
            feed=(cohort, jnp.asarray(data.sizes)[cohort]),
        )
    sizes, offsets = jnp.asarray(data.sizes), jnp.asarray(data.offsets)
    return Feeding(
        draw=partial(draw, batch_size, full),
        full=partial(_all_rows, batch_size, num_chunks),
        extra=partial(_extra, partial(draw, batch_size, full)),
        shared=data.examples,
        feed=(offsets[cohort], sizes[cohort]),
    )


def steps_per_epoch(sizes: Any, batch_size: int) -> Any:
    """How many minibatches hold all of a client's rows once."""
    return -(-sizes // batch_size)


def _with_replacement(batch_size, full, examples, feed, key, step):
    del full
    offset, size = feed
    key = jax.random.fold_in(jax.random.fold_in(key, _ROWS), step)
    rows = jax.random.randint(key, (batch_size,), 0, size, jnp.int32)
    return _gather(examples, offset + rows), None


def _shuffled(batch_size, full, examples, feed, key, step):
    offset, size = feed
    per_epoch = steps_per_epoch(size, batch_size)
    epoch, place = step // per_epoch, step % per_epoch
    positions = place * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
    key = jax.random.fold_in(jax.random.fold_in(key, _ROWS), epoch)
    rows = permuted(key, positions % size, size)
    return _gather(examples, offset + rows), None if full else positions < size


def _all_rows(batch_size, num_chunks, examples, feed):
    offset, size = feed

    def chunk_of(chunk):
        positions = chunk * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        return _gather(examples, offset + positions % size), positions < size

    return chunk_of, num_chunks or steps_per_epoch(size, batch_size)


def _extra(draw, examples, feed, key):
    return draw(examples, feed, key, jnp.zeros((), jnp.int32))


def _gather(examples, rows):
    # Rows are in bounds by construction, so the gather need not check them.
    return jax.tree.map(lambda x: jnp.asarray(x).at[rows].get(mode="promise_in_bounds"), examples)
