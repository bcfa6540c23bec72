"""Where a run is, and what it may resume from or go back to: checkpoints, or copies in memory.

A checkpoint holds the state, the history, what extensions remember and the scale of the step. Going back
must change three of these for a checkpoint that is never written again: so they are in a file beside the
checkpoints, which is replaced in one step. A kill before that step repeats the chunk that diverged, one
after it goes on from there:

    went_back.json    how often the run went back; the last round that it went back to; and for each
                      such round the scale and the memories that count instead of the checkpoint's

A checkpoint says after how many returns it was written. One of a later round with fewer returns than the
file belongs to a way that was given up, and is deleted.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.storage import durable
from fedjax_opt.training import memories
from fedjax_opt.training.checkpoints import Checkpoints
from fedjax_opt.training.extensions import GoBack, Memory
from fedjax_opt.training.history import History

_WENT_BACK = "went_back.json"


class Course:
    """How far a run has come, between two chunks.

    Attributes:
      state: the state.
      history: the rows so far.
      memories: what extensions remember, by name.
      stops: why extensions have ended it, by name.
      step_scale: what its step is multiplied by.
      returns: how often it went back.
      resumed: whether it was begun by an earlier call.
    """

    def __init__(self, state: FederatedState) -> None:
        self.state, self.history = state, History()
        self.memories: dict[str, Memory] = {}
        self.stops: dict[str, str] = {}
        self.step_scale, self.returns, self.resumed = 1.0, 0, False
        self._began = time.perf_counter()

    @property
    def round(self) -> int:
        """The rounds done."""
        return int(self.state.round)

    @property
    def seconds(self) -> float:
        """How long it has taken, also before it was interrupted."""
        return time.perf_counter() - self._began

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._began = time.perf_counter() - seconds

    def decisions(self) -> str:
        """What going back changes in an earlier checkpoint: memories, stops and scale, as text."""
        kept = {
            name: memory
            for name, memory in self.memories.items()
            if not isinstance(memory, tuple) or memory
        }
        content = {"step_scale": self.step_scale, "stops": self.stops, "memories": kept}
        return memories.as_text(content)

    def decide(self, decisions: str) -> None:
        """Takes up what `decisions` returned."""
        found = memories.from_text(decisions)
        self.step_scale, self.stops = found["step_scale"], found["stops"]
        self.memories = found["memories"]

    def go_back(
        self, state: FederatedState, decisions: str, back: GoBack, asked: Mapping[str, Memory]
    ) -> None:
        """Takes the place of an earlier round, but for the scale and what the askers remember."""
        self.decide(decisions)
        self.state, self.step_scale = state, back.step_scale
        self.memories |= asked
        self.stops = {next(iter(asked)): back.reason} if back.stop else {}
        self.returns += 1
        self.history.go_back(back.round)


class Copies:
    """Copies of the states that extensions keep, with what they remembered then."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[FederatedState, str]] = {}

    def resume(self, course: Course) -> None:
        """There is nothing to resume from."""

    def save(self, course: Course, scalars: Mapping[str, float] | None, keeps: set[int]) -> None:
        """Lets go of what is not of these rounds, and copies what is."""
        del scalars
        self._kept = {number: kept for number, kept in self._kept.items() if number in keeps}
        if course.round in keeps and course.round not in self._kept:
            self._kept[course.round] = jax.tree.map(jnp.copy, course.state), course.decisions()

    def go_back(self, course: Course, back: GoBack, asked: Mapping[str, Memory]) -> None:
        """Takes the run back."""
        if back.round not in self._kept:
            raise ValueError(
                f"GoBack.round must be one that the extension keeps, {sorted(self._kept)}, got"
                f" {back.round}."
            )
        state, decisions = self._kept[back.round]
        course.go_back(state, decisions, back, asked)
        self._kept = {number: kept for number, kept in self._kept.items() if number <= back.round}
        self._kept[back.round] = state, course.decisions()

    def __enter__(self) -> "Copies":
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to wait for."""


class OnDisk:
    """The checkpoints that a run writes.

    Args:
      checkpoints: where they are.
      like: a state of the run.
      identity: what makes it the run that it is.
      flush: waits until the clients' states are where they are kept, in all processes.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        like: FederatedState,
        identity: Mapping[str, Any],
        flush: Callable[[], None],
    ) -> None:
        self._checkpoints, self._like, self._identity = checkpoints, like, identity
        self._flush = flush
        self._path = checkpoints.directory / _WENT_BACK
        self._instead: dict[str, str] = {}  # by round, of checkpoints that the run went back to

    def resume(self, course: Course) -> None:
        """Takes up the newest checkpoint, if there is one."""
        # The first process writes them, and is the one to know which are whole by now.
        newest, went_back = distributed.from_first(self._there())
        if newest is None or (went_back and newest < went_back["round"]):
            if distributed.is_first():  # where it went back to is gone
                self._path.unlink(missing_ok=True)
            went_back = None
        if newest is None:
            return
        state, saved = self._restored(newest)
        if went_back:
            self._instead = went_back["instead"]
            given_up = int(saved["returns"]) < went_back["returns"]
            if given_up and newest > went_back["round"]:
                newest = went_back["round"]
                self._checkpoints.delete_after(newest)
                state, saved = self._restored(newest)
        course.state, course.resumed = state, True
        course.seconds = float(saved["seconds"])
        course.returns = went_back["returns"] if went_back else int(saved["returns"])
        course.history.resume(saved["rounds"], saved["evaluations"])
        course.decide(self._instead.get(str(newest), _text(saved["memories"])))

    def save(self, course: Course, scalars: Mapping[str, float] | None, keeps: set[int]) -> None:
        """Begins to write a checkpoint; the state may be given up when it returns."""
        self._flush()  # never behind a checkpoint: what is ahead of one can be taken back
        history = {
            "rounds": course.history.rounds,
            "evaluations": course.history.evaluations,
            "memories": np.frombuffer(course.decisions().encode(), np.uint8),
            "step_scale": np.float64(course.step_scale),
            "seconds": np.float64(course.seconds),
            "returns": np.int32(course.returns),
        }
        self._checkpoints.save(
            course.state, history, identity=self._identity, metrics=scalars, protect=keeps
        )

    def go_back(self, course: Course, back: GoBack, asked: Mapping[str, Memory]) -> None:
        """Takes the run back; later checkpoints are deleted."""
        self._checkpoints.wait()
        number = distributed.from_first(
            back.round
        )  # which is when the first process has written it
        state, saved = self._restored(number)
        decisions = self._instead.get(str(number), _text(saved["memories"]))
        course.go_back(state, decisions, back, asked)
        self._instead = {t: text for t, text in self._instead.items() if int(t) < number}
        self._instead[str(number)] = course.decisions()
        self._write({"round": number, "returns": course.returns, "instead": self._instead})
        self._checkpoints.delete_after(number)

    def _write(self, content: dict[str, Any]) -> None:
        if distributed.is_first():
            durable.write_json(self._path, content)

    def _there(self) -> tuple[int | None, dict[str, Any] | None]:
        if not distributed.is_first():
            return None, None
        went_back = durable.read_json(self._path) if self._path.exists() else None
        return self._checkpoints.latest_round, went_back

    def _restored(self, number: int) -> tuple[FederatedState, dict[str, Any]]:
        return self._checkpoints.restore(self._like, identity=self._identity, round=number)

    def __enter__(self) -> "OnDisk":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._checkpoints.close()  # another run of this process may want the directory
        except Exception as error:
            if kind is None:
                raise
            warnings.warn(f"The last checkpoint was not written: {error}", stacklevel=2)


def _text(array: Any) -> str:
    return np.asarray(array).tobytes().decode()
