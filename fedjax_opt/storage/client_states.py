"""Client states that outgrow the device: in the memory of the host, or in a folder.

A run of n processes makes n parts, each a file that one process has open. Client i is in part i mod n;
`part-00001-of-00002.sqlite` is the second of two. Each part is whole by itself. A run that was killed
may leave its parts a chunk apart: a checkpoint is written only when all parts have reached its round, so
all of them can go back to it.
"""

import os
import pathlib
import re
import threading
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed, placement, row_exchange
from fedjax_opt.execution.client_table import ClientRows
from fedjax_opt.storage.row_file import RowFile

_NAME = re.compile(r"part-(\d{5})-of-(\d{5})\.sqlite(-journal|\.new|\.new-journal)?")
_LOCK = re.compile(r"part-\d{5}-of-\d{5}\.lock")
_BLOCK_BYTES = 2**26  # of rows that are taken over together


class ClientStore:
    """The states of all clients of one run, kept on the host, by client.

    Give it to `simulate` as `client_states`: the device then holds no more than the rows of the clients
    of one chunk of rounds. Clients that never took part cost nothing, and have their initial state.

    In a folder, a chunk of rounds is applied as a whole or not at all, and the states can go back to
    each of the newest checkpoints, as many as `Checkpoints` keeps: a run that was killed goes on from
    its checkpoint, whichever of the two was ahead. Files that are damaged, or of another run or model,
    are refused by name.

    In a run of several processes each holds the states of a part of the clients, and reads and writes no
    others; the folder may be on a disk that all see, or on each machine's own. Every process makes the
    same calls. A run may go on with another number of processes if they see all parts.

    Args:
      directory: a folder, missing or empty, or with the states of the run that is to go on; None for
        the memory of the host.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> store = fo.ClientStore()
      >>> federation = fo.Federation(model, data, cohort=5, local_steps=5, batch_size=1)
      >>> algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
      >>> result = fo.simulate(algorithm, federation, 20, client_states=store, progress=False)
      >>> result.state.clients, store.round
      ((), 20)
      >>> store.rows([3, 7])[7].control["x"].shape
      (3,)
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = None if directory is None else pathlib.Path(directory).absolute()
        self._files: dict[int, RowFile] = {}  # the parts that this process holds
        self._holders = np.zeros(0, np.int64)  # which process has each part; none until it is open
        self._round = 0
        self._num_clients = 0
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
        row_format = _RowFormat(jax.eval_shape(algorithm.init_client, state.variables))
        num_clients = int(state.num_clients)
        whose = {
            "num_clients": num_clients,
            "key": np.asarray(jax.random.key_data(state.key)).tolist(),
        } | row_format.leaves
        if not len(self._holders):
            self._open_parts()
        for file in self._files.values():
            self._check_whose(file.whose, whose)
        self._row_format, self._num_clients = row_format, num_clients
        found = distributed.from_each([[part, file.round] for part, file in self._files.items()])
        rounds = {part: number for some in found for part, number in some}
        self._round = min(rounds.values(), default=int(state.round))
        if len(rounds) < len(self._holders):
            try:
                self._make_missing(algorithm, state, whose, rounds)
            except BaseException:
                self._let_go()
                raise
        elif jax.tree.leaves(state.clients):
            raise ValueError(
                f"state.clients must be () where client_states already holds the clients, as"
                f" {self._name} does; got {jax.tree.structure(state.clients)}."
            )

    @property
    def round(self) -> int:
        """The number of rounds after which the clients have the states that are here."""
        self._check_open()
        return self._round

    @property
    def rounds(self) -> list[int]:
        """The rounds that the states can be taken back to; the last one is that of the states."""
        return next((file.rounds for file in self._files.values()), [self.round])

    def roll_back(self, round_number: int) -> None:
        """Takes the states back to what they were after an earlier round.

        Args:
          round_number: the number of rounds done then.

        Raises:
          ValueError: if the store never was there, or no longer knows how to get there.
        """
        self._check_open()
        round_number = checks.integer("round_number", round_number, low=0)
        with self._busy:
            for file in self._files.values():
                if round_number not in file.rounds:
                    raise ValueError(
                        f"{self._name} holds the client states of round {file.round}, and can go back to"
                        f" those of {file.rounds[:-1]}, but the run is at round {round_number}. Resume"
                        " it with its checkpoints, or begin anew with an empty store."
                    )
            for file in self._files.values():
                if round_number < file.round:
                    file.roll_back(round_number)
            self._round = round_number

    def rows(self, ids: Sequence[int] | chex.Array) -> ClientRows:
        """The states of some clients.

        Args:
          ids: their numbers, in any order; the same in every process.

        Returns:
          Their states by id, on the device, or on all devices of all processes.
        """
        self._check_open()
        found = np.unique(np.asarray(ids, np.int64))
        if found.size and (found[0] < 0 or found[-1] >= self._num_clients):
            raise ValueError(
                f"ids must lie in [0, {self._num_clients - 1}], got {found[0]} to {found[-1]}."
            )
        mesh = placement.over_all_devices() if jax.process_count() > 1 else None
        holders = self.holders(found)
        own = self.read(found[holders == jax.process_index()])
        return row_exchange.table(mesh, len(found), found, holders, own)

    @property
    def row_bytes(self) -> int:
        """How many bytes a client's state takes."""
        self._check_open()
        return self._row_format.num_bytes

    def shapes(self, count: int) -> chex.ArrayTree:
        """The shapes and dtypes of the states of so many clients, stacked."""
        self._check_open()
        return self._row_format.shapes(count)

    def holders(self, ids: np.ndarray) -> np.ndarray:
        """Which process has the states of clients."""
        self._check_open()
        return self._holders[ids % len(self._holders)]

    def read(self, ids: np.ndarray) -> chex.ArrayTree:
        """The states of clients that this process has, stacked `[n, ...]`, on the host."""
        self._check_open()
        rows = np.empty((len(ids), self.row_bytes), np.uint8)
        with self._busy:
            for file, members in self._members(ids):
                rows[members] = file.read(ids[members])
        return self._row_format.unpack(rows)

    def write(
        self, round_number: int, ids: np.ndarray, states: chex.ArrayTree, oldest: int
    ) -> None:
        """Applies rounds: the states of the clients that took part, as they are after a round.

        Args:
          round_number: the number of rounds done; where it is that of the store, nothing is to be done.
          ids: the clients, each once; of all of them, those that this process has.
          states: their states, stacked `[n, ...]`.
          oldest: the earliest round that the run may go back to. Rounds that were written from then on
            stay in reach of `roll_back`.
        """
        self._check_open()
        with self._busy:
            rows = self._row_format.pack(states)
            for file, members in self._members(ids):
                if round_number < file.round:
                    raise ValueError(
                        f"round_number must be at least {file.round}, of which {self._name} holds the"
                        f" client states, got {round_number}."
                    )
                if round_number > file.round:
                    file.write(round_number, ids[members], rows[members], oldest)
            self._round = round_number

    def close(self) -> None:
        """Lets go of the folder. A store in memory stays what it is."""
        if self.directory is not None:
            self._let_go()

    def __enter__(self) -> "ClientStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _name(self) -> str:
        return "client_states in memory" if self.directory is None else str(self.directory)

    def _let_go(self) -> None:
        with self._busy:
            for file in self._files.values():
                file.close()
            self._files, self._holders = {}, np.zeros(0, np.int64)

    def _check_open(self) -> None:
        if not len(self._holders):
            raise ValueError(f"{self._name} is not open: no run has used it yet, or it was closed.")

    def _check_whose(self, there: dict[str, Any], here: dict[str, Any]) -> None:
        if differs := checks.differences(there, here):
            shown = "; ".join(differs[:5]) + ("; ..." if len(differs) > 5 else "")
            self.close()
            raise ValueError(
                f"{self._name} holds the client states of another run, model or algorithm: {shown}."
            )

    def _members(self, ids: np.ndarray) -> list[tuple[RowFile, np.ndarray]]:
        """Each file of this process, and which of the clients are in it."""
        parts = ids % len(self._holders)
        return [(file, np.flatnonzero(parts == part)) for part, file in self._files.items()]

    def _path(self, part: int) -> pathlib.Path | None:
        name = f"part-{part:05d}-of-{len(self._holders):05d}.sqlite"
        return None if self.directory is None else self.directory / name

    def _open_parts(self) -> None:
        """Finds out who sees which parts, and opens those that are this process's."""
        processes = jax.process_count()
        if self.directory is None:
            self._holders = np.arange(processes)
            return
        seen = distributed.from_each(_parts_in(self.directory))
        self._holders, present = _dealt(self.directory, seen, processes)
        try:
            for part in present:
                path = self._path(part)
                if path is not None and self._holders[part] == jax.process_index():
                    self._files[part] = RowFile.opened(path, (part, len(self._holders)))
        except BaseException:
            self._let_go()
            raise

    def _make_missing(
        self,
        algorithm: Algorithm,
        state: FederatedState,
        whose: dict[str, Any],
        rounds: dict[int, int],
    ) -> None:
        """Makes the parts that nobody has: all of them where the store is new."""
        # A run that was killed while it made its store leaves some: of its first round, as those that
        # are missing will be.
        start, count, total = int(state.round), len(self._holders), whose["num_clients"]
        missing = [part for part in range(count) if part not in rounds]
        known = start == 0 or bool(jax.tree.leaves(state.clients))
        if not rounds and not known:
            raise ValueError(
                f"{self._name} is empty, but the run is at round {start}: the states that its clients"
                " have then were kept elsewhere."
            )
        if set(rounds.values()) - {start} or not known:
            raise ValueError(
                f"{self._name} holds the client states of round {self._round} without part {missing[0]}"
                f" of {count}: no process sees its file. Bring it back, or begin anew with an empty"
                " store."
            )
        one = placement.fetched(algorithm.init_client(state.variables))
        initial = self._row_format.pack(jax.tree.map(lambda x: x[None], one))[0]
        made = [part for part in missing if self._holders[part] == jax.process_index()]
        for part in made:
            where = self._path(part), (part, count)
            self._files[part] = RowFile.created(*where, whose, initial, start)
        each = max(_BLOCK_BYTES // max(len(initial), 1), 1)
        for begin in range(0, total, each) if jax.tree.leaves(state.clients) else ():
            ids = np.arange(begin, min(begin + each, total))
            block = jax.tree.map(lambda x, ids=ids: x[ids[0] : ids[-1] + 1], state.clients)
            # In all processes at once: each may have but a part of every array.
            rows = self._row_format.pack(placement.fetched(block))
            for part in made:
                own = np.flatnonzero((ids % count == part) & (rows != initial).any(axis=1))
                self._files[part].put_first(ids[own], rows[own])
        for part in made:
            self._files[part].complete()
        distributed.barrier()  # nobody goes on before all parts are there


def _parts_in(directory: pathlib.Path) -> list[list[int]]:
    """The parts that this process sees, each with the number that there are of them."""
    if not directory.exists():
        return []
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else [""]
    found = [_NAME.fullmatch(name) for name in names if not _LOCK.fullmatch(name)]
    if None in found:
        raise ValueError(
            f"directory must be empty, or hold nothing but client states, but there is something else"
            f" in {directory}."
        )
    return sorted([int(name[1]), int(name[2])] for name in found if name and not name[3])


def _dealt(
    directory: pathlib.Path, seen: list[list[list[int]]], processes: int
) -> tuple[np.ndarray, list[int]]:
    """Which process holds each part, and which parts there are."""
    counts = {count for some in seen for _, count in some}
    if len(counts) > 1:
        raise ValueError(
            f"{directory} must hold the parts of one store, but there are some of"
            f" {' and of '.join(map(str, sorted(counts)))} parts: move those away that do not belong to"
            " the run."
        )
    count = counts.pop() if counts else processes
    parts = [{part for part, _ in some} for some in seen]
    present = sorted(set().union(*parts))
    if count != processes and any(some != set(present) for some in parts):
        raise ValueError(
            f"{directory} has {count} parts, of which not every process sees all, so that {count}"
            f" processes must go on with it, got {processes}. Bring all parts to a disk that all"
            " processes see, or start as many processes as there are parts."
        )
    holders = np.arange(count) % processes
    for part in present:
        seers = [process for process, some in enumerate(parts) if part in some]
        if holders[part] not in seers:
            holders[part] = seers[0]
    return holders, present


class _RowFormat:
    """How a client's state is laid out in a row of bytes: all its arrays, one behind the other."""

    def __init__(self, one_client: chex.ArrayTree) -> None:
        named = {jax.tree_util.keystr(p): x for p, x in jax.tree.leaves_with_path(one_client)}
        for name, leaf in named.items():
            if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
                raise ValueError(
                    f"A client's state must hold arrays of numbers to be stored, but its part {name}"
                    f" has dtype {leaf.dtype}."
                )
        self.leaves = {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in named.items()}
        self._one_client = one_client
        # Numbers for names: a state that is one array has no path.
        self._row = np.dtype([(str(i), x.dtype, x.shape) for i, x in enumerate(named.values())])
        self.num_bytes = self._row.itemsize

    def pack(self, states: chex.ArrayTree) -> np.ndarray:
        """Stacked states `[n, ...]` as rows of bytes `[n, num_bytes]`."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(states)]
        found = [(leaf.dtype, leaf.shape[1:]) for leaf in leaves]
        expected = [(leaf.dtype, leaf.shape) for leaf in jax.tree.leaves(self._one_client)]
        if found != expected:
            raise ValueError(f"states must have leaves {expected} for each client, got {found}.")
        rows = np.empty(len(leaves[0]), self._row)
        for i, leaf in enumerate(leaves):
            rows[str(i)] = leaf
        return rows.view(np.uint8).reshape(len(rows), self.num_bytes)

    def unpack(self, rows: np.ndarray) -> chex.ArrayTree:
        """Rows of bytes `[n, num_bytes]` as stacked states `[n, ...]`, in memory of their own."""
        found = rows.reshape(-1).view(self._row)
        leaves = [found[str(i)].copy() for i in range(len(self.leaves))]
        return jax.tree.unflatten(jax.tree.structure(self._one_client), leaves)

    def shapes(self, count: int) -> chex.ArrayTree:
        """The shapes and dtypes of so many states, stacked."""
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), self._one_client
        )
