"""Examples that stay on the host: each chunk of rounds is sent those of its own cohorts, ahead of time.

A cohort follows from the key and the round alone, so it is known before its round begins: while the
device plays one chunk of rounds, a thread reads what the next one needs. The program sees a `ClientData`
of the same clients as ever, whose examples are only some; random numbers belong to clients and rounds,
so the results are those of a run with everything on the device.
"""

import mmap
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.client_data import ClientData, in_memory
from fedjax_opt.core.sampler import Sampler
from fedjax_opt.execution.strategies import Strategy, place

# How much more room is made than the largest chunk so far has needed: more room compiles anew.
_SPARE = 1.25


def on_host(data: Any) -> bool:
    """Whether examples are memory-mapped, and so are not meant to be read as a whole."""
    return not in_memory(data)


class Resident:
    """Data that is on the device all the time."""

    def __init__(self, data: Any, strategy: Strategy) -> None:
        self._data = place(data, strategy)

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Nothing is to be read."""

    def take(self, first_round: int, rounds: int) -> Any:
        """The data of some rounds: all of it."""
        del first_round, rounds
        return self._data

    def close(self) -> None:
        """Nothing is to be ended."""


class Stream:
    """The examples of one chunk of rounds after the other, read in the background.

    Args:
      data: the federated data on the host.
      strategy: where the examples go.
      sampler: how cohorts are drawn.
      key: what the cohorts are drawn with.
      chunk: the largest number of rounds in a chunk.
    """

    def __init__(
        self, data: Any, strategy: Strategy, sampler: Sampler, key: jax.Array, chunk: int
    ) -> None:
        self._data, self._strategy = data, strategy
        self._sizes = np.asarray(data.sizes)
        self._draw = partial(cohort_ids, sampler, key, chunk, len(self._sizes))
        # However the cohorts fall, no chunk needs more room than this.
        most = min(chunk * sampler.size + 1, len(self._sizes))
        self._enough = int(np.partition(self._sizes, -most)[-most:].sum(dtype=np.int64))
        self._room = 0
        self._reader = ThreadPoolExecutor(1, "fedjax_opt examples")
        self._pending: tuple[int, int, Future] | None = None

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Begins to read what some rounds need, if there are any."""
        if rounds < 1:
            return
        # Drawn here: while a chunk is played, a program of the thread's would wait behind it.
        ids = np.unique(np.asarray(self._draw(jnp.int32(first_round)))[:rounds])
        self._pending = first_round, rounds, self._reader.submit(self._read, ids)

    def take(self, first_round: int, rounds: int) -> Any:
        """The data of some rounds, on the device: the same clients, the examples of the cohorts."""
        if self._pending is None or self._pending[:2] != (first_round, rounds):
            self.prefetch(first_round, rounds)
        assert self._pending is not None
        found, self._pending = self._pending[2].result(), None
        return found

    def close(self) -> None:
        """Ends the thread after what it is reading."""
        self._reader.shutdown(cancel_futures=True)

    def _read(self, ids: np.ndarray) -> Any:
        sizes = self._sizes[ids]
        ends = np.cumsum(sizes, dtype=np.int64)
        self._make_room(int(ends[-1]))
        offsets = np.zeros(len(self._sizes), np.int32)
        offsets[ids] = ends - sizes
        # Rows that stand next to each other in the file are read at once.
        starts = np.asarray(self._data.offsets)[ids].astype(np.int64)
        breaks = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
        first, last = np.append(0, breaks), np.append(breaks, len(ids)) - 1
        runs = [
            (int(ends[a] - sizes[a]), int(starts[a]), int(starts[b] + sizes[b]))
            for a, b in zip(first, last, strict=True)
        ]
        examples = jax.tree.map(partial(_gathered, runs, self._room), self._data.examples)
        return place(ClientData(examples, offsets, self._data.sizes), self._strategy)

    def _make_room(self, rows: int) -> None:
        if rows > self._room:
            self._room = min(max(int(rows * _SPARE), self._room), self._enough)


@partial(jax.jit, static_argnums=(2, 3))
def cohort_ids(sampler: Sampler, key: jax.Array, chunk: int, num_clients: int, first_round: Any):
    """The ids of the cohorts of a chunk `[chunk, S]`; 0, as in a round, where nobody fills a slot."""

    def one(round_number):
        ids, done = sampler.draw(key, round_number, num_clients)
        return jnp.where(done.astype(bool), ids, 0)

    return jax.lax.map(one, first_round + jnp.arange(chunk, dtype=jnp.int32))


def _gathered(runs: list[tuple[int, int, int]], room: int, array: Any) -> np.ndarray:
    """Rows of an array one after the other, and zeros up to a fixed length."""
    found = np.zeros((room, *array.shape[1:]), array.dtype)
    for row, start, end in runs:
        found[row : row + end - start] = array[start:end]
    _forget(array)
    return found


def _forget(array: Any) -> None:
    """Gives pages that were read back to the system: they would count as this process's memory."""
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
