"""Client states that outgrow the device: in the memory of the host, or in a folder."""

import contextlib
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import meshes, row_exchange
from fedjax_opt.execution.client_rows import ClientRows
from fedjax_opt.storage import new_parts, store_parts
from fedjax_opt.storage.hot_rows import HotRows
from fedjax_opt.storage.row_format import RowFormat
from fedjax_opt.storage.store_parts import Parts

_HOT_BYTES = 2**28


class ClientStore:
    """The states of all clients of one run, kept on the host, by client.

    Give it to `simulate` as `client_state`: the device then holds no more than the rows of the clients
    of one chunk of rounds. Clients that never took part cost nothing, and have their initial state.

    In a folder, a chunk of rounds is applied as a whole or not at all, and can be taken back for a
    while: a run that was killed goes on from its checkpoint, whichever of the two was ahead. Files that
    are damaged, of another run or of another model are refused by name.

    In a run of several processes each holds the states of a part of the clients, and reads and writes
    no others; the folder may be on a disk that all see, or on each machine's own. Every process makes
    the same calls. A run may go on with another number of processes if they see all parts.

    Args:
      directory: a folder, missing or empty, or with the states of the run that is to go on; None for
        the memory of the host.
      hot: of how many clients, those met last, the rows stay in memory as well; by default as many as
        256 MiB hold. Without a folder all rows are in memory.
      undo: how many of the newest chunks of rounds can be taken back, at least 2, since the states may
        be so far ahead of a checkpoint that is being written. More than there are checkpoints makes
        each of them one to resume from.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> store = fo.ClientStore()
      >>> federation = fo.Federation(model, data, cohort=5, local_steps=5, batch_size=1)
      >>> algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
      >>> result = fo.simulate(algorithm, federation, 20, client_state=store, progress=False)
      >>> result.state.clients, store.round
      ((), 20)
      >>> store.rows([3, 7])[7].control["x"].shape
      (3,)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        hot: int | None = None,
        undo: int = 8,
    ) -> None:
        self.directory = None if directory is None else pathlib.Path(directory).absolute()
        self._room = None if hot is None else checks.integer("hot", hot, low=0)
        self._undo = checks.integer("undo", undo, low=2)
        self._hot = HotRows(0)
        self._parts: Parts | None = None
        self._about: dict[str, Any] = {}
        self._format: RowFormat | None = None
        self._busy = threading.RLock()  # a run's thread and its callbacks may ask at once

    def open(self, algorithm: Algorithm, state: FederatedState) -> None:
        """Says whose states these are; `simulate` does so by itself.

        Args:
          algorithm: the algorithm of the run.
          state: a state of the run. If its `clients` are not empty, a store that is still empty takes
            them over.

        Raises:
          ValueError: if the store holds the states of another run, algorithm or model; the message says
            what differs.
        """
        row_format = RowFormat(jax.eval_shape(algorithm.init_client, state.variables))
        about = {
            "num_clients": int(state.num_clients),
            "key": np.asarray(jax.random.key_data(state.key)).tolist(),
        } | row_format.leaves
        if self._parts is None:
            folder = self.directory
            self._parts = store_parts.in_folder(folder) if folder else store_parts.in_memory()
        for there in self._parts.abouts:
            self._check_about(there, about)
        self._format, self._about = row_format, about
        if self._parts.missing:
            with self._all_or_nothing():
                first = new_parts.First(self.directory, about, row_format, algorithm, state)
                new_parts.make(self._parts, first)
        elif jax.tree.leaves(state.clients):
            raise ValueError(
                f"state.clients must be () where client_state already holds the clients, as"
                f" {self._name} does; got {jax.tree.structure(state.clients)}."
            )
        if self.directory is not None:
            room = _HOT_BYTES // row_format.num_bytes if self._room is None else self._room
            self._hot = HotRows(room)

    @property
    def reach(self) -> int:
        """How many chunks of rounds a run can go back for sure, though it was killed and resumed."""
        return self._undo - 2

    @property
    def round(self) -> int:
        """The number of rounds after which the clients have the states that are here."""
        return self._opened.round

    def roll_back(self, round_number: int) -> None:
        """Takes the states back to what they were after an earlier round.

        Args:
          round_number: the number of rounds done then.

        Raises:
          ValueError: if the store never was there, or no longer knows how to get there.
        """
        parts = self._opened
        round_number = checks.integer("round_number", round_number, low=0)
        for shelf in parts.here.values():
            held = f"{self._name} holds the client states of round {shelf.round}"
            if round_number > shelf.round:
                raise ValueError(
                    f"{held}, but the run is at round {round_number}: the states that its clients have"
                    " then were kept elsewhere."
                )
            reachable = shelf.reachable()
            if round_number not in reachable:
                raise ValueError(
                    f"{held}, and can go back to those of {reachable[1:]}, but the run is at round"
                    f" {round_number}. Resume it with its checkpoints, or begin anew with an empty"
                    " store."
                )
        with self._all_or_nothing():
            self._hot.clear()
            parts.go_back(round_number)

    def rows(self, ids: Any) -> ClientRows:
        """The states of some clients.

        Args:
          ids: their numbers, in any order; the same in every process.

        Returns:
          Their states by id, on the device, or on all devices of all processes.
        """
        num_clients = self._opened and self._about["num_clients"]
        ids = np.unique(np.asarray(ids, np.int64))
        if ids.size and (ids[0] < 0 or ids[-1] >= num_clients):
            raise ValueError(f"ids must lie in [0, {num_clients - 1}], got {ids[0]} to {ids[-1]}.")
        mesh = meshes.over_all_devices() if jax.process_count() > 1 else None
        return row_exchange.rows_of(mesh, ids, self.holders(ids), self.read_states)

    @property
    def row_format(self) -> RowFormat:
        """How a client's state is laid out in a row of bytes."""
        assert self._opened and self._format is not None
        return self._format

    def holders(self, ids: np.ndarray) -> np.ndarray:
        """Which process has the rows of clients."""
        return self._opened.holders(ids)

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The rows of clients that this process has, `[n, num_bytes]`."""
        with self._busy:
            return self._find(ids)[0]

    def read_states(self, ids: np.ndarray) -> Any:
        """The states of clients that this process has, stacked `[n, ...]`, on the host."""
        return self.row_format.unpack(self.read(ids))

    def write(self, round_number: int, ids: np.ndarray, rows: np.ndarray) -> None:
        """Applies rounds: the rows of the clients that took part, as they are after a round.

        Args:
          round_number: the number of rounds done.
          ids: the clients, each once; of all of them, those that this process has.
          rows: their rows; those that did not change cost nothing.
        """
        with self._all_or_nothing():
            before, known = self._find(ids)
            changed = np.flatnonzero((before != rows).any(axis=1))
            ids, rows, old, known = ids[changed], rows[changed], before[changed], known[changed]
            self._opened.apply(round_number, ids, rows, old, known, self._undo)
            self._hot.keep(ids, rows)

    def close(self) -> None:
        """Lets go of the folder. A store in memory stays what it is."""
        with self._busy:
            if self.directory is not None and self._parts is not None:
                self._parts.close()
                self._parts = None
                self._hot.clear()

    def __enter__(self) -> "ClientStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _name(self) -> str:
        return "client_state in memory" if self.directory is None else str(self.directory)

    @property
    def _opened(self) -> Parts:
        if self._parts is None:
            raise ValueError(f"{self._name} is not open: no run has used it yet, or it was closed.")
        return self._parts

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Closes the folder where something fails: opening it again brings it to a whole round."""
        with self._busy:
            try:
                yield
            except BaseException:
                self.close()
                raise

    def _check_about(self, there: dict[str, Any], here: dict[str, Any]) -> None:
        differences = [
            f"{name} is {there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
            for name in sorted(there.keys() | here.keys())
            if there.get(name) != here.get(name)
        ]
        if differences:
            shown = "; ".join(differences[:5]) + ("; ..." if len(differences) > 5 else "")
            self.close()
            raise ValueError(
                f"{self._name} holds the client states of another run, model or algorithm: {shown}."
            )

    def _find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows of clients, from memory where they are hot, and who has one of its own."""
        rows = np.empty((len(ids), self.row_format.num_bytes), np.uint8)
        known = np.ones(len(ids), bool)
        cold = ~self._hot.read(ids, rows)
        rows[cold], known[cold] = self._opened.read(ids[cold], rows.shape[1])
        self._hot.keep(ids[known], rows[known])
        return rows, known
