"""Making the parts of a store of client states, each by the process that holds it."""

import contextlib
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core.algorithm import Algorithm
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed, meshes
from fedjax_opt.storage import disk_shelf, store_parts
from fedjax_opt.storage.disk_shelf import DiskShelf
from fedjax_opt.storage.row_format import RowFormat
from fedjax_opt.storage.shelves import MemoryShelf
from fedjax_opt.storage.store_parts import Parts, Shelf

_BLOCK_BYTES = 2**26  # of rows that are looked at together


class First(NamedTuple):
    """What a store begins with.

    Attributes:
      directory: where it is; None for memory.
      about: whose states it holds.
      row_format: how they are laid out.
      algorithm: says what a client begins with.
      state: the run's state. If its clients are not empty, the store takes them over.
    """

    directory: pathlib.Path | None
    about: dict[str, Any]
    row_format: RowFormat
    algorithm: Algorithm
    state: FederatedState


def make(parts: Parts, first: First) -> None:
    """Makes the parts that nobody has: all of them where the store is new.

    A run that was killed while it made its store leaves some. They are of its first round, as those
    that are missing will be. All processes must call it.

    Raises:
      ValueError: if the missing parts were there once, and what they held is lost.
    """
    start, clients = int(first.state.round), first.state.clients
    _check_lost(parts, first, start)
    one = meshes.fetched(first.algorithm.init_client(first.state.variables))
    initial = first.row_format.pack(jax.tree.map(lambda x: x[None], one))[0]
    made: dict[int, Shelf] = {}
    with contextlib.ExitStack() as stack:
        for part in parts.to_make:
            made[part] = _shelf(stack, first, (part, parts.count), initial, start)
        if jax.tree.leaves(clients):
            _take_over(made, parts.count, first)
    if first.directory is not None:
        for part in made:
            folder = store_parts.part_folder(first.directory, part, parts.count)
            made[part] = DiskShelf(folder, (part, parts.count))
    distributed.barrier()  # nobody goes on before all parts are there
    parts.add(made, start)


def _check_lost(parts: Parts, first: First, start: int) -> None:
    name = "client_state in memory" if first.directory is None else str(first.directory)
    known = start == 0 or bool(jax.tree.leaves(first.state.clients))
    if not parts.rounds and not known:
        raise ValueError(
            f"{name} is empty, but the run is at round {start}: the states that its clients have then"
            " were kept elsewhere."
        )
    if set(parts.rounds.values()) - {start} or not known:
        raise ValueError(
            f"{name} holds the client states of round {parts.round} without part {parts.missing[0]} of"
            f" {parts.count}: no process sees its folder. Bring it back, or begin anew with an empty"
            " store."
        )


def _shelf(
    stack: contextlib.ExitStack, first: First, part: tuple[int, int], initial: Any, start: int
) -> Shelf:
    """An empty part; one in a folder appears there when the stack is left."""
    if first.directory is None:
        return MemoryShelf(first.about, initial, start)
    folder = store_parts.part_folder(first.directory, *part)
    total = first.about["num_clients"]
    return stack.enter_context(disk_shelf.created(folder, first.about, total, initial, start, part))


def _take_over(made: dict[int, Shelf], count: int, first: First) -> None:
    """Puts states that a run has had on its devices into their parts."""
    row_format, total = first.row_format, first.about["num_clients"]
    each = max(_BLOCK_BYTES // row_format.num_bytes, 1)
    for begin in range(0, total, each):
        some = slice(begin, min(begin + each, total))
        block = jax.tree.map(lambda x, some=some: x[some], first.state.clients)
        # Together, in all processes: each may have but a part of every array.
        rows, ids = row_format.pack(meshes.fetched(block)), np.arange(some.start, some.stop)
        for part, shelf in made.items():
            own = np.flatnonzero((ids % count == part) & (rows != shelf.initial).any(axis=1))
            shelf.put(ids[own], rows[own], np.ones(len(own), bool))
