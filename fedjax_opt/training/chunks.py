"""Brings to the devices what a chunk of rounds needs: examples from files, states from a store.

Who takes part follows from the key and the round alone, so it is known before a chunk begins: while the
devices play one chunk, a thread reads what the next one needs. Random numbers belong to clients and
rounds, so the results are those of a run with everything on the devices.

    FileExamples    examples from files
    StoreStates     clients' states from a store
"""

import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.model import Model
from fedjax_opt.core.sampler import Sampler
from fedjax_opt.core.state import FederatedState, check_state, first_state
from fedjax_opt.engine.evaluate import evaluate_clients, evaluate_each, personal_variables
from fedjax_opt.execution import distributed, placement, row_exchange
from fedjax_opt.execution.client_table import ClientRows
from fedjax_opt.execution.strategies import Strategy, place
from fedjax_opt.storage.client_states import ClientStore

# How much more room is made than the largest chunk so far has needed: more room compiles anew.
_SPARE = 1.25
_EVALUATED_BYTES = 2**26  # of rows that are on the device at once where every client is evaluated
_EVALUATED_ROWS = 64


class Ahead:
    """One thread that reads what the next chunk needs, while the devices play this one.

    Args:
      name: of the thread.
      decide: (first round, number of rounds) -> what is to be read. It is called by whoever asks, since
        a program of the thread's would wait behind that of the chunk which is being played.
      read: what is to be read -> it, in the memory of the host. Arrays are put on devices by whoever
        takes it: all processes do so in the same order, and settings as `jax.enable_x64` hold there.
    """

    def __init__(
        self, name: str, decide: Callable[[int, int], Any], read: Callable[[Any], Any]
    ) -> None:
        self._decide, self._read = decide, read
        self._thread = ThreadPoolExecutor(1, f"fedjax_opt {name}")
        self._asked: tuple[tuple[int, int], Any, Future] | None = None

    def ask(self, first_round: int, rounds: int) -> None:
        """Begins to read what some rounds need, if there are any."""
        if rounds > 0:
            what = self._decide(first_round, rounds)
            self._asked = (first_round, rounds), what, self.submit(self._read, what)

    def take(self, first_round: int, rounds: int) -> tuple[Any, Any]:
        """What was decided for some rounds, and what was read."""
        if self._asked is None or self._asked[0] != (first_round, rounds):
            self.ask(first_round, rounds)
        assert self._asked is not None
        (_, what, reading), self._asked = self._asked, None
        return what, reading.result()

    def forget(self) -> None:
        """What was asked for is not wanted any more."""
        self._asked = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        """Lets the thread do something else."""
        return self._thread.submit(function, *arguments)

    def close(self) -> None:
        """Ends the thread after what it is doing."""
        self._thread.shutdown(cancel_futures=True)


@partial(jax.jit, static_argnums=(2, 3))
def cohort_ids(sampler: Sampler, key: jax.Array, chunk: int, num_clients: int, first_round: Any):
    """The ids of the cohorts of a chunk `[chunk, S]`; 0, as in a round, where nobody fills a slot."""

    def one(round_number):
        ids, done = sampler.draw(key, round_number, num_clients)
        return jnp.where(done.astype(bool), ids, 0)

    return jax.lax.map(one, first_round + jnp.arange(chunk, dtype=jnp.int32))


class FileExamples:
    """The examples of one chunk of rounds after the other; the program sees all clients, as ever.

    Args:
      data: the federated data on the host.
      strategy: where the examples go.
      lineup: the first round of a chunk -> who is computed in which place in each of its rounds
        `[chunk, places]`.
      parts: over how many parts of the mesh the places are divided evenly. Each part is sent the
        examples of its own clients alone; with one part, every device has all of them.
    """

    def __init__(
        self, data: Any, strategy: Strategy, lineup: Callable[[int], Any], parts: int = 1
    ) -> None:
        self._data, self._strategy, self._lineup, self._parts = data, strategy, lineup, parts
        self._sizes, self._starts = np.asarray(data.sizes), np.asarray(data.offsets, np.int64)
        mesh = strategy.mesh
        self._own = range(1) if mesh is None or parts == 1 else _own_parts(mesh)
        self._room = 0
        self._ahead = Ahead("examples", self._decide, self._read)
        self.rows_read = 0

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Begins to read what some rounds need, if there are any."""
        self._ahead.ask(first_round, rounds)

    def take(self, first_round: int, rounds: int) -> Any:
        """The data of some rounds, on the devices."""
        (clients, room), examples = self._ahead.take(first_round, rounds)
        if self._parts == 1:
            read = ClientData(examples[0], self._offsets(clients[0]), self._data.sizes)
            return place(read, self._strategy)
        return self._placed(clients, examples, room)

    def close(self) -> None:
        """Ends the thread after what it is reading."""
        self._ahead.close()

    def _decide(self, first_round: int, rounds: int) -> tuple[list[np.ndarray], int]:
        """The clients of each part, and the room that their examples are in."""
        places = np.asarray(self._lineup(first_round))
        clients = [np.unique(part) for part in np.split(places[:rounds], self._parts, axis=1)]
        # Every process makes the same room, though it fills only a part of it.
        needed = max(int(self._sizes[ids].sum(dtype=np.int64)) for ids in clients)
        if needed > self._room:
            # However the cohorts fall, no chunk needs more room than this.
            most = min(places.size // self._parts, len(self._sizes))
            enough = int(np.partition(self._sizes, -most)[-most:].sum(dtype=np.int64))
            self._room = min(int(needed * _SPARE), enough)
        return clients, self._room

    def _read(self, what: tuple[list[np.ndarray], int]) -> dict[int, Any]:
        """The examples of those parts that this process feeds."""
        clients, room = what
        return {part: self._read_part(clients[part], room) for part in self._own}

    def _read_part(self, ids: np.ndarray, room: int) -> Any:
        sizes, starts = self._sizes[ids], self._starts[ids]
        ends = np.cumsum(sizes, dtype=np.int64)
        self.rows_read += int(ends[-1])
        # Rows that stand next to each other in the file are read at once.
        breaks = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
        first, last = np.append(0, breaks), np.append(breaks, len(ids)) - 1
        runs = [
            (int(ends[a] - sizes[a]), int(starts[a]), int(starts[b] + sizes[b]))
            for a, b in zip(first, last, strict=True)
        ]
        return jax.tree.map(partial(_gathered, runs, room), self._data.examples)

    def _offsets(self, ids: np.ndarray) -> np.ndarray:
        """Where each client's rows begin among those that were read; 0 for one that has none there."""
        offsets = np.zeros(len(self._sizes), np.int32)
        offsets[ids] = np.cumsum(self._sizes[ids]) - self._sizes[ids]
        return offsets

    def _placed(self, clients: list[np.ndarray], examples: dict[int, Any], room: int) -> Any:
        """Each device's own part on it, and where in it each client's rows begin."""
        mesh = self._strategy.mesh
        assert mesh is not None  # there are parts
        split = NamedSharding(mesh, PartitionSpec(placement.CLIENTS))

        def put(length, tail, block):
            """An array of all parts, next to each other, from a function of the part."""

            def part(index):
                return block((index[0].start or 0) // length)

            return jax.make_array_from_callback((self._parts * length, *tail), split, part)

        def put_rows(*blocks):
            by_part = dict(zip(examples, blocks, strict=True))
            return put(room, blocks[0].shape[1:], by_part.__getitem__)

        population = len(self._sizes)
        offsets = put(population, (), lambda part: self._offsets(clients[part]))
        rows = placement.PerDevice(jax.tree.map(put_rows, *examples.values()))
        return ClientData(rows, placement.PerDevice(offsets), placement.put(self._sizes, mesh))


def _own_parts(mesh: Mesh) -> list[int]:
    """The parts of the clients' axis that devices of this process compute."""
    by_part = mesh.devices.reshape(placement.num_parts(mesh), -1)
    me = jax.process_index()
    return [i for i, devices in enumerate(by_part) if any(d.process_index == me for d in devices)]


def _gathered(runs: list[tuple[int, int, int]], room: int, array: Any) -> np.ndarray:
    """Rows of an array one after the other, and zeros up to a fixed length."""
    found = np.zeros((room, *array.shape[1:]), array.dtype)
    for row, start, end in runs:
        found[row : row + end - start] = array[start:end]
    # Pages that were read go back to the system: they would count as this process's memory.
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
    return found


class _Next(NamedTuple):
    """Which rows the next chunk needs, of those that this process holds among them.

    Attributes:
      ids: the clients, ascending.
      own: those whose states this process holds.
      shared: those of them whose states the chunk before brings back.
    """

    ids: np.ndarray
    own: np.ndarray
    shared: np.ndarray


class StoreStates:
    """Client states in a store: the devices hold the rows of one chunk of rounds.

    The rows of a chunk are copied to the host when it has been played. A thread writes them into the
    store; those that the next chunk needs too are taken from that copy.

    Args:
      store: where they are.
      chunk: the largest number of rounds in a chunk.
      keep: how many checkpoints the run keeps, to each of which the store must be able to go back.
    """

    def __init__(self, store: ClientStore, chunk: int, keep: int) -> None:
        self._store, self._chunk, self._keep = store, chunk, keep
        self._ahead = Ahead("client states", self._decide, self._read)
        self._ids = np.zeros(0, np.int64)  # the clients of the chunk that is being played
        self._own = np.zeros(0, np.int64)  # those of the chunk before whose states are on the host
        self._states: chex.ArrayTree = ()
        self._writing: Future | None = None

    def first_state(
        self, algorithm: Algorithm, variables: Any, num_clients: int, key: jax.Array
    ) -> FederatedState:
        """The state before the first round, without the clients."""
        state = first_state(algorithm, variables, 1, key)
        return state._replace(clients=(), num_clients=jnp.asarray(num_clients, jnp.int32))

    def open(
        self, algorithm: Algorithm, state: FederatedState
    ) -> tuple["StoreStates | None", FederatedState]:
        """Itself, and the state as it is to be checked: with the shapes of what all clients keep."""
        if not jax.tree.leaves(jax.eval_shape(algorithm.init_client, state.variables)):
            self.close()
            return None, state  # clients that keep nothing need no store
        if jax.tree.leaves(state.clients):
            check_state(algorithm, state)
        self._store.open(algorithm, state)
        return self, state._replace(clients=self._store.shapes(int(state.num_clients)))

    def part(self, state: FederatedState, sampler: Sampler) -> tuple[FederatedState, Any]:
        """What the host keeps between chunks, and the shapes that a round sees."""
        num_clients = int(state.num_clients)
        # One more than all cohorts together: an empty slot reads the state of client 0.
        self._room = min(self._chunk * sampler.size + 1, num_clients)
        self._draw = partial(cohort_ids, sampler, state.cohort_key, self._chunk, num_clients)
        ids: Any = jax.ShapeDtypeStruct((self._room,), jnp.int32)
        seen = ClientRows(ids, self._store.shapes(self._room))
        return state._replace(clients=()), state._replace(clients=seen)

    def begin(self, state: FederatedState, strategy: Strategy) -> None:
        """Takes the store to the round of a state, from which the run goes on."""
        self._flush()
        self._mesh = strategy.mesh
        self._forget()
        self._store.roll_back(int(state.round))

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Begins to read the rows that some rounds need and the ones before them do not."""
        self._ahead.ask(first_round, rounds)

    def put_in(self, state: FederatedState, first_round: int, rounds: int) -> FederatedState:
        """The state with the rows of the clients of some rounds, on the devices."""
        try:
            needed, read = self._ahead.take(first_round, rounds)
        except BaseException:
            self._flush()  # if a write has failed, that is why, and what is to be told
            raise
        from_before = np.searchsorted(self._own, needed.shared)
        is_shared = np.isin(needed.own, needed.shared)

        def joined(before, new):
            rows = np.empty((len(needed.own), *new.shape[1:]), new.dtype)
            rows[is_shared], rows[~is_shared] = before[from_before], new
            return rows

        own = jax.tree.map(joined, self._states, read) if len(needed.shared) else read
        self._ids, self._own, self._states = needed.ids, self._own[:0], ()
        holders = self._store.holders(needed.ids)
        rows = row_exchange.table(self._mesh, self._room, needed.ids, holders, own)
        return state._replace(clients=rows)

    def take_out(self, state: FederatedState, good: int) -> FederatedState:
        """The state as the host keeps it; the rows are written back in the background.

        Args:
          state: the state after a chunk of rounds.
          good: the earliest round that the run would go back to if it diverged.
        """
        self._flush()  # one chunk at a time is on its way
        # Of the newest checkpoint a part may not be on the disk yet: then one more is needed.
        oldest = min(good, *self._store.rounds[-self._keep - 1 :])
        holders = self._store.holders(self._ids)
        self._own = self._ids[holders == jax.process_index()]
        self._states = row_exchange.back(self._mesh, state.clients.states, holders)
        self._writing = self._ahead.submit(
            self._store.write, int(state.round), self._own, self._states, oldest
        )
        return state._replace(clients=())

    def evaluate(self, algorithm: Algorithm, model: Model, state: FederatedState, data: Any) -> Any:
        """The metrics of each client's own model on its own examples, a block of clients at a time."""
        if algorithm.personal is None:
            return evaluate_clients(model, personal_variables(algorithm, state), data)
        self._flush()
        total, row_bytes = len(data.sizes), self._store.row_bytes
        block = min(max(_EVALUATED_BYTES // row_bytes, 1), total)
        batch_size = min(_EVALUATED_ROWS, int(np.max(np.asarray(data.sizes), initial=1)))
        found = []
        for first in range(0, total, block):
            # The last block begins a little earlier: all have one shape.
            start = min(first, total - block)
            ids = np.arange(start, start + block)
            holders = self._store.holders(ids)
            read = self._store.read(ids[holders == jax.process_index()])
            rows = row_exchange.table(self._mesh, block, ids, holders, read)
            own = personal_variables(algorithm, state._replace(clients=rows))
            some = slice(start, start + block)
            part = ClientData(data.examples, data.offsets[some], data.sizes[some])
            shifted = Partial(_shifted, own, jnp.int32(start))
            values = evaluate_each(shifted, part, model, batch_size)
            found.append({k: np.asarray(v)[first - start :] for k, v in values.items()})
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def flush_all(self) -> None:
        """Waits until the rows of the last chunk are in the store, those of all processes."""
        self._flush()
        distributed.barrier()

    def close(self) -> None:
        """Ends the thread, after what it is writing."""
        try:
            self._flush()
        finally:
            self._ahead.close()

    def _decide(self, first_round: int, rounds: int) -> _Next:
        ids = np.unique(np.asarray(self._draw(jnp.int32(first_round)))[:rounds]).astype(np.int64)
        own = ids[self._store.holders(ids) == jax.process_index()]
        # While a chunk is played its rows are those that it will bring back.
        before = self._own if len(self._own) else self._ids
        return _Next(ids, own, own[np.isin(own, before)])

    def _read(self, needed: _Next) -> chex.ArrayTree:
        return self._store.read(np.setdiff1d(needed.own, needed.shared))

    def _forget(self) -> None:
        self._ahead.forget()
        self._ids, self._own, self._states = np.zeros(0, np.int64), np.zeros(0, np.int64), ()

    def _flush(self) -> None:
        """Waits until the rows of the last chunk are in the store."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def states_of(store: ClientStore, chunk: int, keep: int) -> StoreStates:
    """What brings the clients' states to the devices, in chunks of rounds."""
    if not isinstance(store, ClientStore):
        raise ValueError(f"client_states must be a ClientStore or None, got {store!r}.")
    return StoreStates(store, chunk, keep)


def _shifted(own: Partial, first: jax.Array, client: jax.Array) -> Any:
    return own(first + client)
