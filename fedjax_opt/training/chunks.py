"""Brings to the devices what a chunk of rounds needs: examples from files, states from a store.

Who takes part follows from the key and the round alone, so it is known before a chunk begins: while the
devices play one chunk, a thread reads what the next one needs. Random numbers belong to clients and
rounds, so the results are those of a run with everything on the devices.
"""

import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_opt.core.algorithm import Algorithm, Scheduled
from fedjax_opt.core.client_data import ClientData, StoredClients, in_memory
from fedjax_opt.core.cohorts import Sampler
from fedjax_opt.core.controller import Controller, first_algorithm
from fedjax_opt.core.federation import Federation, initial_variables
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState, as_key, check_state, first_state
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.evaluate import evaluate_clients, evaluate_each, personal_variables
from fedjax_opt.engine.run import Prepared, seats
from fedjax_opt.execution import distributed, placement, row_exchange
from fedjax_opt.execution.client_table import ClientRows
from fedjax_opt.execution.strategies import Strategy, place
from fedjax_opt.storage.client_states import ClientStore

# How much more room is made than the largest chunk so far has needed: more room compiles anew.
_SPARE = 1.25
_EVALUATED_BYTES = 2**26  # of rows that are on the device at once where every client is evaluated
_EVALUATED_ROWS = 64


class _Ahead:
    """A thread that reads what the next chunk needs, while the devices play this one.

    What is to be read is decided by whoever asks, since a program of the thread's would wait behind that
    of the chunk which is being played. What was read is in the memory of the host: whoever takes it puts
    it on devices. So all processes do that in the same order, and settings as `jax.enable_x64` hold.
    """

    _decide: Callable[..., Any]  # the first of some rounds, and their number -> what is to be read
    _read: Callable[..., Any]  # that -> what is read

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, f"fedjax_opt {type(self).__name__}")
        self._asked: tuple[tuple[int, int], Any, Future] | None = None

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Begins to read what some rounds need, if there are any."""
        if rounds > 0:
            what = self._decide(first_round, rounds)
            self._asked = (first_round, rounds), what, self._thread.submit(self._read, what)

    def _take(self, first_round: int, rounds: int) -> tuple[Any, Any]:
        """What was decided for some rounds, and what was read."""
        if self._asked is None or self._asked[0] != (first_round, rounds):
            self.prefetch(first_round, rounds)
        assert self._asked is not None
        (_, what, reading), self._asked = self._asked, None
        return what, reading.result()

    def close(self) -> None:
        """Ends the thread after what it is doing."""
        self._thread.shutdown(cancel_futures=True)


@partial(jax.jit, static_argnums=(2, 3))
def cohort_ids(
    sampler: Sampler, key: jax.Array, chunk: int, num_clients: int, first_round: chex.Numeric
):
    """The ids of the cohorts of a chunk `[chunk, S]`; 0, as in a round, where nobody fills a slot."""

    def one(round_number):
        ids, done = sampler.draw(key, round_number, num_clients)
        return jnp.where(done.astype(bool), ids, 0)

    return jax.lax.map(one, first_round + jnp.arange(chunk, dtype=jnp.int32))


# Examples from files --------------------------------------------------------------------------


def examples_of(prepared: Prepared, key: chex.PRNGKey, chunk: int) -> "FileExamples":
    """What reads the examples of a chunk's cohorts, of each part of a mesh its own if they are known."""
    federation, mesh = prepared.federation, prepared.strategy.mesh
    clients: Any = federation.clients
    if "momentum_deviation" in prepared.diagnostics:
        raise ValueError(
            "diagnostics: 'momentum_deviation' needs all examples in every round, but those of the"
            " clients are in files, and only the cohorts' are read. Leave it out, or use data in memory."
        )
    steps = prepared.controls.local_steps
    if mesh is None or not mesh.is_multi_process or isinstance(steps, Controller):
        draw = partial(cohort_ids, federation.cohort, key, chunk, len(clients.sizes))
        return FileExamples(clients, prepared.strategy, draw)
    sizes = ClientData((), (), clients.sizes)
    read = changed(federation, clients=sizes, validation=None)
    who = changed(prepared, algorithm=(), federation=read)
    return FileExamples(
        clients, prepared.strategy, lambda t: seats(who, key, t, chunk), placement.num_parts(mesh)
    )


def largest_examples(clients: ClientData | StoredClients, most: int) -> chex.ArrayTree:
    """The examples that are on the device; of those in files, shapes of as many clients' as at most."""
    if in_memory(clients):
        return clients.examples
    rows = _most_rows(np.asarray(clients.sizes), most + 1)  # an empty slot reads client 0
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), clients.examples
    )


def _most_rows(sizes: np.ndarray, clients: int) -> int:
    """How many rows so many clients have at most."""
    clients = min(clients, len(sizes))
    return int(np.partition(sizes, -clients)[-clients:].sum(dtype=np.int64))


class FileExamples(_Ahead):
    """The examples of one chunk of rounds after the other; the program sees all clients, as ever.

    `lineup` says, by the first round of a chunk, who is computed in which place in each of its rounds
    `[chunk, places]`. The places are divided evenly over the parts of the mesh, and each part is sent
    the examples of its own clients alone; with one part, every device has all of them.
    """

    def __init__(
        self,
        data: ClientData | StoredClients,
        strategy: Strategy,
        lineup: Callable[[np.int32], chex.Array],
        parts: int = 1,
    ) -> None:
        super().__init__()
        self._data, self._strategy, self._lineup, self._parts = data, strategy, lineup, parts
        self._sizes, self._starts = np.asarray(data.sizes), np.asarray(data.offsets, np.int64)
        self._room = self.rows_read = 0
        self._own = [0]
        if parts > 1:  # those that devices of this process compute
            processes = [device.process_index for device in strategy.mesh.devices.flat]  # type: ignore[union-attr]
            mine = np.array(processes).reshape(parts, -1) == jax.process_index()
            self._own = np.flatnonzero(mine.any(axis=1)).tolist()

    def take(self, first_round: int, rounds: int) -> ClientData:
        """The data of some rounds, on the devices."""
        (clients, room), examples = self._take(first_round, rounds)
        if self._parts == 1:
            read = ClientData(examples[0], self._offsets(clients[0]), self._data.sizes)
            return place(read, self._strategy)
        mesh: Any = self._strategy.mesh
        split = NamedSharding(mesh, PartitionSpec(placement.CLIENTS))

        def put(*parts: np.ndarray) -> jax.Array:
            """An array of all parts, next to each other, from those of this process."""
            length, *tail = parts[0].shape
            here = dict(zip(self._own, parts, strict=True))

            def of_device(index: Any) -> np.ndarray:
                return here[(index[0].start or 0) // length]

            return jax.make_array_from_callback((self._parts * length, *tail), split, of_device)

        rows = jax.tree.map(put, *examples)
        offsets = put(*(self._offsets(clients[part]) for part in self._own))
        sizes = placement.put(self._sizes, mesh)
        return ClientData(placement.PerDevice(rows), placement.PerDevice(offsets), sizes)

    def _decide(self, first_round: int, rounds: int) -> tuple[list[np.ndarray], int]:
        """The clients of each part, and the room that their examples are in."""
        places = np.asarray(self._lineup(np.int32(first_round)))
        clients = [np.unique(part) for part in np.split(places[:rounds], self._parts, axis=1)]
        # Every process makes the same room, though it fills only a part of it.
        needed = max(int(self._sizes[ids].sum(dtype=np.int64)) for ids in clients)
        if needed > self._room:
            # However the cohorts fall, no chunk needs more room than this.
            enough = _most_rows(self._sizes, places.size // self._parts)
            self._room = min(int(needed * _SPARE), enough)
        return clients, self._room

    def _read(self, what: tuple[list[np.ndarray], int]) -> list[chex.ArrayTree]:
        """The examples of those parts that this process feeds."""
        clients, room = what
        found = []
        for ids in (clients[part] for part in self._own):
            sizes, starts = self._sizes[ids], self._starts[ids]
            ends = np.cumsum(sizes, dtype=np.int64)
            self.rows_read += int(ends[-1])
            # Rows that stand next to each other in the file are read at once.
            breaks = np.flatnonzero(starts[1:] != starts[:-1] + sizes[:-1]) + 1
            first, last = np.append(0, breaks), np.append(breaks, len(ids)) - 1
            runs = np.stack([(ends - sizes)[first], starts[first], (starts + sizes)[last]], axis=1)
            found.append(jax.tree.map(partial(_gathered, runs, room), self._data.examples))
        return found

    def _offsets(self, ids: np.ndarray) -> np.ndarray:
        """Where each client's rows begin among those that were read; 0 for one that has none there."""
        offsets = np.zeros(len(self._sizes), np.int32)
        offsets[ids] = np.cumsum(self._sizes[ids]) - self._sizes[ids]
        return offsets


def _gathered(runs: np.ndarray, room: int, array: np.ndarray) -> np.ndarray:
    """Rows of an array one after the other, and zeros up to a fixed length."""
    found = np.zeros((room, *array.shape[1:]), array.dtype)
    for row, start, end in runs.tolist():
        found[row : row + end - start] = array[start:end]
    # Pages that were read go back to the system: they would count as this process's memory.
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        pages.madvise(mmap.MADV_DONTNEED)
    return found


# Clients' states from a store -----------------------------------------------------------------


def without_clients(
    algorithm: Algorithm | Scheduled, federation: Federation, seed: int
) -> FederatedState:
    """The state before the first round, of clients that are not on the device."""
    key = as_key(seed)
    variables = initial_variables(federation, key)
    state = first_state(first_algorithm(algorithm), variables, 1, jax.random.fold_in(key, 1))
    return state._replace(clients=(), num_clients=jnp.int32(federation.num_clients))


class StoreStates(_Ahead):
    """Client states in a store: the devices hold the rows of one chunk of rounds.

    The rows of a chunk are copied to the host when it has been played. The thread writes them into the
    store; those that the next chunk needs too are taken from that copy. The store must be able to go
    back to each of the `keep` checkpoints of the run.
    """

    def __init__(self, store: ClientStore, chunk: int, keep: int) -> None:
        if not isinstance(store, ClientStore):
            raise ValueError(f"client_states must be a ClientStore or None, got {store!r}.")
        super().__init__()
        self._store, self._chunk, self._keep = store, chunk, keep
        self._writing: Future | None = None

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

    def part(
        self, state: FederatedState, sampler: Sampler
    ) -> tuple[FederatedState, FederatedState]:
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
        self._mesh, self._asked = strategy.mesh, None
        self._ids = np.zeros(0, np.int64)  # the clients of the chunk that is being played
        self._own = np.zeros(0, np.int64)  # those of the chunk before whose states are on the host
        self._states: chex.ArrayTree = ()
        self._store.roll_back(int(state.round))

    def put_in(self, state: FederatedState, first_round: int, rounds: int) -> FederatedState:
        """The state with the rows of the clients of some rounds, on the devices."""
        try:
            (ids, own, shared), read = self._take(first_round, rounds)
        except BaseException:
            self._flush()  # if a write has failed, that is why, and what is to be told
            raise
        from_before = np.searchsorted(self._own, own[shared])

        def joined(before, new):
            rows = np.empty((len(own), *new.shape[1:]), new.dtype)
            rows[shared], rows[~shared] = before[from_before], new
            return rows

        rows = jax.tree.map(joined, self._states, read) if shared.any() else read
        self._ids, self._own, self._states = ids, own[:0], ()
        return state._replace(clients=self._table(self._room, ids, rows))

    def take_out(self, state: FederatedState, good: int) -> FederatedState:
        """The state as the host keeps it; the rows are written back in the background."""
        self._flush()  # one chunk at a time is on its way
        # Of the newest checkpoint a part may not be on the disk yet: then one more is needed.
        oldest = min(good, *self._store.rounds[-self._keep - 1 :])
        self._own = self._held(self._ids)
        self._states = row_exchange.back(
            self._mesh, state.clients.states, self._store.holders(self._ids)
        )
        self._writing = self._thread.submit(
            self._store.write, int(state.round), self._own, self._states, oldest
        )
        return state._replace(clients=())

    def evaluate(
        self, algorithm: Algorithm, model: Model, state: FederatedState, data: ClientData
    ) -> Mapping[str, chex.Array]:
        """The metrics of each client's own model on its own examples, a block of clients at a time."""
        if algorithm.personal is None:
            return evaluate_clients(model, personal_variables(algorithm, state), data)
        self._flush()
        total = len(data.sizes)
        block = min(max(_EVALUATED_BYTES // self._store.row_bytes, 1), total)
        batch_size = min(_EVALUATED_ROWS, int(np.max(np.asarray(data.sizes), initial=1)))
        found: list[dict[str, np.ndarray]] = []
        for first in range(0, total, block):
            # The last block begins a little earlier: all have one shape.
            start = min(first, total - block)
            ids = np.arange(start, start + block)
            rows = self._table(block, ids, self._store.read(self._held(ids)))
            own = personal_variables(algorithm, state._replace(clients=rows))
            part = ClientData(data.examples, data.offsets[ids], data.sizes[ids])
            values = evaluate_each(own, part, model, batch_size, first=start)
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
            super().close()

    def _held(self, ids: np.ndarray) -> np.ndarray:
        """Those of some clients whose states this process has."""
        return ids[self._store.holders(ids) == jax.process_index()]

    def _table(self, room: int, ids: np.ndarray, own: chex.ArrayTree) -> ClientRows:
        return row_exchange.table(self._mesh, room, ids, self._store.holders(ids), own)

    def _decide(self, first_round: int, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The clients, ascending; those that this process has; which of these the chunk before has."""
        ids = np.unique(np.asarray(self._draw(jnp.int32(first_round)))[:rounds]).astype(np.int64)
        own = self._held(ids)
        # While a chunk is played its rows are those that it will bring back.
        return ids, own, np.isin(own, self._own if len(self._own) else self._ids)

    def _read(self, what: tuple[np.ndarray, np.ndarray, np.ndarray]) -> chex.ArrayTree:
        _, own, shared = what
        return self._store.read(own[~shared])

    def _flush(self) -> None:
        """Waits until the rows of the last chunk are in the store."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
