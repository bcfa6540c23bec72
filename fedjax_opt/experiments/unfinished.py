"""Trials that are being played, on the disk: an interrupted sweep goes on with them where it was.

A wave of trials (see `waves`) is kept as a checkpoint, numbered by the chunks of rounds done. It holds
the states. What the program has told in every chunk is the history; what is noted of the trials follows
from that.
"""

import pathlib
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_opt.core import FederatedState
from fedjax_opt.experiments import files
from fedjax_opt.storage import durable
from fedjax_opt.training import Checkpoints

_SECONDS = 60.0
# A wave is played for so many times as long as it takes to be written.
_WORTH_WRITING = 20.0


class Unfinished:
    """What an earlier sweep has finished, and how far it had come with the others.

    Args:
      folder: where the wave that is being played is kept; None to keep none.
      finished: the identities of trials that are not to be played again; see `finished`. They keep
        their places in the waves, so that the others are computed as they would have been.
      every: the least seconds between two writes. An interrupted sweep writes at once.

    Example:
      >>> import pathlib, tempfile
      >>> from fedjax_opt.experiments.unfinished import Unfinished
      >>> folder = pathlib.Path(tempfile.mkdtemp()) / "unfinished"
      >>> unfinished = Unfinished(folder, every=30.0)
      >>> unfinished.save()  # nothing is being played
      >>> folder.exists()
      False
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        finished: Collection[str] = frozenset(),
        every: float = _SECONDS,
    ) -> None:
        self.finished = frozenset(finished)
        self._folder = folder
        self._every = every
        self._forget()

    def _forget(self) -> None:
        self._states: FederatedState | None = None
        self._told: list[Any] = []
        self._identity: dict[str, dict[str, str]] = {}
        self._checkpoints: Checkpoints | None = None
        self._written: int | None = None  # the number of chunks in the checkpoint
        self._due = time.monotonic() + self._every

    def begin(
        self,
        trials: Sequence[str],
        states: FederatedState,
        describe: Callable[[], dict[str, dict[str, str]]],
        shapes: Callable[[FederatedState], Any],
    ) -> tuple[FederatedState, list[Any]]:
        """The states of a wave, and what it has told so far: as they were kept, or as it begins.

        Args:
          trials: the identities of its trials.
          states: the states that it begins with.
          describe: what makes the wave the one that it is, as `fingerprint.of_run` has it.
          shapes: states -> the shapes of what a chunk tells.
        """
        self._forget()
        if self._folder is None:
            return states, []
        self._identity = describe() | {"trials": {str(i): name for i, name in enumerate(trials)}}
        self._checkpoints = Checkpoints(self._folder, keep=1, asynchronous=False)
        number = self._checkpoints.latest_round
        if number is None or self._is_finished(self._folder / str(number)):
            return states, []
        try:
            states, history = self._checkpoints.restore(states, identity=self._identity)
        except ValueError as error:
            warnings.warn(
                f"{self._folder / str(number)} is not used, and its runs begin anew: {error}",
                stacklevel=2,
            )
            return states, []
        self._written = number
        columns = history["rounds"].values()
        structure = jax.tree.structure(shapes(states))
        self._told = [
            jax.tree.unflatten(structure, [column[i] for column in columns]) for i in range(number)
        ]
        return states, list(self._told)

    def _is_finished(self, folder: pathlib.Path) -> bool:
        """Whether a wave was finished before it could be deleted."""
        try:
            trials = durable.read_json(folder / "about.json")["trials"]
        except (ValueError, KeyError):
            return False
        return self.finished.issuperset(trials.values())

    def keep(self, states: FederatedState, told: Any) -> None:
        """Takes note of a chunk that is done, and writes it down if that is due.

        Args:
          states: the states after it.
          told: what the program told of it.
        """
        if self._folder is not None:
            self._states = states
            self._told.append(told)
            if time.monotonic() >= self._due:
                self.save()

    def let_go(self) -> None:
        """To be called before the states' buffers are given up to the program."""
        self._states = None

    def save(self) -> None:
        """Writes the newest chunk down, unless it is, or another one is being played."""
        number = len(self._told)
        if self._checkpoints is None or self._states is None or number == self._written:
            return
        began = time.monotonic()
        told = jax.tree.map(lambda *chunks: np.stack(chunks), *self._told)
        columns = {f"{i:03d}": column for i, column in enumerate(jax.tree.leaves(told))}
        with files.explained(self._checkpoints.directory), self._checkpoints as checkpoints:
            if self._written is None:
                checkpoints.delete_after(-1)  # what is there could not be used
            checkpoints.save(
                self._states, {"rounds": columns}, identity=self._identity, round=number
            )
        self._written = number
        now = time.monotonic()
        self._due = now + max(self._every, _WORTH_WRITING * (now - began))

    def end(self) -> None:
        """Deletes what was kept: the wave is finished."""
        if self._folder is not None:
            clear(self._folder)
        self._forget()


def clear(folder: pathlib.Path) -> None:
    """Deletes all that is kept in a folder, and the folder; at no moment is a part of a wave there."""
    if folder.exists():
        with Checkpoints(folder) as checkpoints:
            checkpoints.delete_after(-1)
        shutil.rmtree(folder)
