"""What the device holds of the clients' states while a run is played: all of it, or a chunk's rows.

A cohort follows from the key and the round alone, so the clients of a chunk of rounds are known before
it begins. While the device plays one chunk, a thread writes back the rows of the last one and reads
those that the next one needs; rows that both need stay on the device. Random numbers belong to clients
and rounds, so the results are those of a run with everything on the device.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.model import Model
from fedjax_opt.core.sampler import Sampler
from fedjax_opt.core.state import FederatedState, check_state, first_state
from fedjax_opt.engine.evaluate import evaluate_clients, evaluate_each, personal_variables
from fedjax_opt.execution import distributed, row_exchange
from fedjax_opt.execution.client_rows import ClientRows
from fedjax_opt.execution.strategies import Strategy
from fedjax_opt.storage.client_store import ClientStore
from fedjax_opt.training.streaming import cohort_ids

_EVALUATED_BYTES = 2**26  # of rows that are on the device at once where every client is evaluated
_EVALUATED_ROWS = 64


class Resident:
    """Client states that are on the device all the time."""

    reach = float("inf")  # how many chunks they can be taken back: they are a part of the state
    first_state = staticmethod(first_state)

    def open(self, algorithm: Algorithm, state: FederatedState) -> tuple[Any, FederatedState]:
        """Itself, and the state as it is to be checked."""
        del algorithm
        return self, state

    def part(self, state: FederatedState, sampler: Sampler) -> tuple[FederatedState, Any]:
        """What the host keeps between chunks, and the shapes that a round sees."""
        del sampler
        return state, state

    def begin(self, state: FederatedState, strategy: Strategy) -> None:
        """Nothing is to be fetched."""

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Nothing is to be fetched."""

    def put_in(self, state: FederatedState, first_round: int, rounds: int) -> FederatedState:
        """The state with the clients of some rounds: all are there."""
        del first_round, rounds
        return state

    def take_out(self, state: FederatedState) -> FederatedState:
        """The state as the host keeps it: as it is."""
        return state

    def evaluate(self, algorithm: Algorithm, model: Model, state: FederatedState, data: Any) -> Any:
        """The metrics of each client's own model on its own examples."""
        return evaluate_clients(model, personal_variables(algorithm, state), data)

    def flush(self) -> None:
        """Nothing is being written."""

    def flush_all(self) -> None:
        """Nothing is being written, by no process."""

    def close(self) -> None:
        """Nothing is to be ended."""


class _Coming(NamedTuple):
    """The rows of a chunk that are being read."""

    rounds: tuple[int, int]
    ids: np.ndarray
    source: np.ndarray  # where a row stands in the table before; -1 if it is read
    read: Future


class FromStore:
    """Client states in a store: the device holds the rows of one chunk of rounds.

    Args:
      store: where they are.
      chunk: the largest number of rounds in a chunk.
    """

    def __init__(self, store: ClientStore, chunk: int) -> None:
        self._store, self._chunk = store, chunk
        self._worker = ThreadPoolExecutor(1, "fedjax_opt client state")
        self._ids = np.zeros(0, np.int64)
        self._before: Any = None
        self._coming: _Coming | None = None
        self._writing: Future | None = None

    @property
    def reach(self) -> float:
        """How many chunks they can be taken back."""
        return self._store.reach

    def first_state(
        self, algorithm: Algorithm, variables: Any, num_clients: int, key: jax.Array
    ) -> FederatedState:
        """The state before the first round, without the clients."""
        state = first_state(algorithm, variables, 1, key)
        return state._replace(clients=(), num_clients=jnp.asarray(num_clients, jnp.int32))

    def open(self, algorithm: Algorithm, state: FederatedState) -> tuple[Any, FederatedState]:
        """Itself, and the state as it is to be checked: with the shapes of what all clients keep."""
        if not jax.tree.leaves(jax.eval_shape(algorithm.init_client, state.variables)):
            self.close()
            return Resident(), state  # clients that keep nothing need no store
        if jax.tree.leaves(state.clients):
            check_state(algorithm, state)
        self._store.open(algorithm, state)
        shapes = self._store.row_format.shapes(int(state.num_clients))
        return self, state._replace(clients=shapes)

    def part(self, state: FederatedState, sampler: Sampler) -> tuple[FederatedState, Any]:
        """What the host keeps between chunks, and the shapes that a round sees."""
        num_clients = int(state.num_clients)
        # One more than all cohorts together: an empty slot reads the state of client 0.
        self._room = min(self._chunk * sampler.size + 1, num_clients)
        self._draw = partial(cohort_ids, sampler, state.cohort_key, self._chunk, num_clients)
        ids = jax.ShapeDtypeStruct((self._room,), jnp.int32)
        seen = ClientRows(ids, self._store.row_format.shapes(self._room))
        return state._replace(clients=()), state._replace(clients=seen)

    def begin(self, state: FederatedState, strategy: Strategy) -> None:
        """Takes the store to the round of a state, from which the run goes on."""
        self.flush()
        self._mesh = strategy.mesh
        self._exchange = row_exchange.between(strategy.mesh, self._room)
        self._ids, self._before, self._coming = np.zeros(0, np.int64), None, None
        self._store.roll_back(int(state.round))

    def prefetch(self, first_round: int, rounds: int) -> None:
        """Begins to read the rows that some rounds need and the ones before them do not."""
        if rounds < 1:
            return
        # Drawn here: while a chunk is played, a program of the thread's would wait behind it.
        drawn = np.asarray(self._draw(jnp.int32(first_round)))[:rounds]
        ids = np.unique(drawn).astype(np.int64)
        place_before = np.searchsorted(self._ids, ids)
        source = np.where(np.isin(ids, self._ids), place_before, -1).astype(np.int32)
        holders = self._store.holders(ids)
        read = self._worker.submit(
            self._exchange.read, ids, source, holders, self._store.read_states
        )
        self._coming = _Coming((first_round, rounds), ids, source, read)

    def put_in(self, state: FederatedState, first_round: int, rounds: int) -> FederatedState:
        """The state with the rows of the clients of some rounds, on the device."""
        if self._coming is None or self._coming.rounds != (first_round, rounds):
            self._before, self._ids = None, np.zeros(0, np.int64)
            self.prefetch(first_round, rounds)
        assert self._coming is not None
        coming, self._coming = self._coming, None
        try:
            sent = coming.read.result()
        except BaseException:
            self.flush()  # if a write has failed, that is why, and what is to be told
            raise
        # Made here, in the order in which all processes do everything.
        clients = self._exchange.table(coming.ids, self._before, coming.source, sent)
        self._before, self._ids = None, coming.ids
        return state._replace(clients=clients)

    def take_out(self, state: FederatedState) -> FederatedState:
        """The state as the host keeps it; the rows are written back in the background."""
        self.flush()  # one chunk at a time is on its way
        self._before = state.clients.states
        holders = self._store.holders(self._ids)
        own = self._ids[holders == jax.process_index()]
        back = self._exchange.back(self._before, holders)
        self._writing = self._worker.submit(self._write, int(state.round), own, back)
        return state._replace(clients=())

    def evaluate(self, algorithm: Algorithm, model: Model, state: FederatedState, data: Any) -> Any:
        """The metrics of each client's own model on its own examples, a block of clients at a time."""
        if algorithm.personal is None:
            return evaluate_clients(model, personal_variables(algorithm, state), data)
        total, row_bytes = len(data.sizes), self._store.row_format.num_bytes
        block = min(max(_EVALUATED_BYTES // row_bytes, 1), total)
        batch_size = min(_EVALUATED_ROWS, int(np.max(np.asarray(data.sizes), initial=1)))
        found = []
        for first in range(0, total, block):
            # The last block begins a little earlier: all have one shape.
            start = min(first, total - block)
            rows = self._rows(np.arange(start, start + block))
            own = personal_variables(algorithm, state._replace(clients=rows))
            some = slice(start, start + block)
            part = ClientData(data.examples, data.offsets[some], data.sizes[some])
            shifted = Partial(_shifted, own, jnp.int32(start))
            values = evaluate_each(shifted, part, model, batch_size)
            found.append({k: np.asarray(v)[first - start :] for k, v in values.items()})
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def flush(self) -> None:
        """Waits until the rows of the last chunk are in the store."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def flush_all(self) -> None:
        """Waits until the rows of the last chunk are in the store, those of all processes."""
        self.flush()
        distributed.barrier()

    def close(self) -> None:
        """Ends the thread, after what it is writing."""
        try:
            self.flush()
        finally:
            self._worker.shutdown(cancel_futures=True)

    def _rows(self, ids: np.ndarray) -> ClientRows:
        """The states of clients as they are now, on the devices."""

        def read(some: np.ndarray) -> Any:
            # By the thread: it has written the last chunk by then.
            return self._worker.submit(self._store.read_states, some).result()

        return row_exchange.rows_of(self._mesh, ids, self._store.holders(ids), read)

    def _write(self, done: int, ids: np.ndarray, back: Callable[[], Any]) -> None:
        self._store.write(done, ids, self._store.row_format.pack(back()))


def of(store: ClientStore | None, chunk: int) -> Resident | FromStore:
    """What holds the clients' states for the device, in chunks of rounds."""
    if store is None:
        return Resident()
    if not isinstance(store, ClientStore):
        raise ValueError(f"client_state must be a ClientStore or None, got {store!r}.")
    return FromStore(store, chunk)


def _shifted(own: Partial, first: jax.Array, client: jax.Array) -> Any:
    return own(first + client)
