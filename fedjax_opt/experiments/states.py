"""The state of each trial on the disk: a sweep goes on from there, after a kill or for more rounds.

A state is written while its trial is played, every minute or so, and when it ends. It stands for all
rounds before it: what a record sums up over rounds is beside it.
"""

import hashlib
import json
import pathlib
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from fedjax_opt.core import FederatedState
from fedjax_opt.experiments import arrays
from fedjax_opt.experiments.trials import Log

_SECONDS = 60.0
# Trials are played for so many times as long as it takes to write their states.
_WORTH_WRITING = 20.0


class States:
    """The states of trials in a folder.

    Args:
      folder: where; made when the first state is written.
      finished: the identities of trials that are not to be played again; see `finished`.
      reached: the last round of which each trial has a record, by its identity. A later state is not
        used: what lies between would be missing.
      every: the least seconds between two writes. An interrupted sweep writes at once.
      keep: whether the states of finished trials stay.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        finished: Collection[str],
        reached: Mapping[str, int],
        every: float = _SECONDS,
        keep: bool = True,
    ) -> None:
        self.folder, self.keep = folder, keep
        self._finished, self._reached, self._every = finished, reached, every
        self._due = time.monotonic() + every
        self._now: tuple[Sequence[Log], FederatedState, Callable[[Log], str]] | None = None

    def begin(self, log: Log, rounds: int) -> None:
        """Lets a trial's log begin in the round of its state, or at its end if it is done."""
        if log.trial.identity in self._finished:
            log.begin(rounds)
            return
        about = self._about(log)
        if about and about["round"] <= self._reached.get(log.trial.identity, 0):
            log.begin(about["round"], about["work"])

    def restore(
        self, log: Log, like: FederatedState, program: Callable[[Log], str]
    ) -> FederatedState | None:
        """The state in which a trial goes on; None, with a warning, where it cannot."""
        path = self._file(log)
        try:
            about = arrays.read_about(path)
            if about["program"] != program(log):
                raise ValueError(
                    f"{path} is of other code, data or numbers than those of {log.trial.identity}."
                )
            return arrays.read(path, like)
        except ValueError as error:
            warnings.warn(
                f"{log.trial.identity} begins anew, since its state is not used: {error}",
                stacklevel=2,
            )
            return None

    def note(
        self, logs: Sequence[Log], states: FederatedState, program: Callable[[Log], str]
    ) -> None:
        """Takes note of the states after a chunk, whose records are about to be written."""
        self._now = logs, states, program

    def let_go(self) -> None:
        """To be called before the states' buffers are given up to the program."""
        self._now = None

    def save(self) -> None:
        """Writes the newest states down, unless others are being computed."""
        if self._now is None:
            return
        (logs, states, program), began = self._now, time.monotonic()
        self._now = None
        states = jax.device_get(states._replace(key=jax.random.key_data(states.key)))
        for i, log in enumerate(logs):
            if not log.failure:
                about = {"trial": log.trial.identity, "round": log.rounds, "work": log.work}
                one = jax.tree.map(lambda x, i=i: x[i], states)
                arrays.write(self._file(log), one, about | {"program": program(log)})
        now = time.monotonic()
        self._due = now + max(self._every, _WORTH_WRITING * (now - began))

    def after(self, ended: Sequence[Log]) -> None:
        """The records of a chunk are written: so are the states, where it is due or trials ended."""
        if (ended and self.keep) or (not ended and time.monotonic() >= self._due):
            self.save()
        if ended:
            self._now = None
        for log in ended:
            if log.failure or not self.keep:
                self._file(log).unlink(missing_ok=True)

    def _about(self, log: Log) -> dict[str, Any]:
        path = self._file(log)
        try:
            return arrays.read_about(path) if path.exists() else {}
        except ValueError as error:
            warnings.warn(f"{log.trial.identity} begins anew: {error}", stacklevel=2)
            return {}

    def _file(self, log: Log) -> pathlib.Path:
        name = hashlib.sha256(log.trial.identity.encode()).hexdigest()[:24]
        return self.folder / f"{name}.npz"


def digest(texts: Any) -> str:
    """A short text for others, of any length and in any structure."""
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:32]
