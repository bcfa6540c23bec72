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

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.storage import durable
from fedjax_opt.training import memories
from fedjax_opt.training.checkpoints import Checkpoints
from fedjax_opt.training.extensions import GoBack, Memory
from fedjax_opt.training.history import Course

_WENT_BACK = "went_back.json"


def decisions(course: Course) -> str:
    """What going back changes in an earlier checkpoint: memories, stops and scale, as text."""
    kept = {
        name: memory
        for name, memory in course.memories.items()
        if not isinstance(memory, tuple) or memory
    }
    content = {"step_scale": course.step_scale, "stops": course.stops, "memories": kept}
    return memories.as_text(content)


def decide(course: Course, text: str) -> None:
    """Takes up what `decisions` returned."""
    found = memories.from_text(text)
    course.step_scale, course.stops = found["step_scale"], found["stops"]
    course.memories = found["memories"]


def take_back(
    course: Course, state: FederatedState, text: str, back: GoBack, asked: Mapping[str, Memory]
) -> None:
    """Takes a run to an earlier round, but for the scale and what the askers remember."""
    decide(course, text)
    course.state, course.step_scale = state, back.step_scale
    course.memories |= asked
    course.stops = {next(iter(asked)): back.reason} if back.stop else {}
    course.returns += 1
    course.history.go_back(back.round)


class Copies:
    """Copies of the states that extensions keep, with what they remembered then."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[FederatedState, str]] = {}

    def save(self, course: Course, scalars: Mapping[str, float] | None) -> None:
        """Lets go of what is not needed, and copies what is."""
        del scalars
        keeps, number = course.keeps, course.round
        self._kept = {t: kept for t, kept in self._kept.items() if t in keeps}
        if number in keeps and number not in self._kept:
            self._kept[number] = jax.tree.map(jnp.copy, course.state), decisions(course)

    def go_back(self, course: Course, back: GoBack, asked: Mapping[str, Memory]) -> None:
        """Takes the run back."""
        if back.round not in self._kept:
            raise ValueError(
                f"GoBack.round must be one that the extension keeps, {sorted(self._kept)}, got"
                f" {back.round}."
            )
        state, text = self._kept[back.round]
        take_back(course, state, text, back, asked)
        self._kept = {t: kept for t, kept in self._kept.items() if t < back.round}
        self._kept[back.round] = state, decisions(course)


class OnDisk:
    """The checkpoints that a run writes.

    Args:
      checkpoints: where they are.
      like: a state of the run.
      identity: what makes it the run that it is.
      flush: waits until the clients' states are where they are kept, in all processes; None if they are
        part of the state.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        like: FederatedState,
        identity: Mapping[str, Any],
        flush: Callable[[], None] | None,
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
        course.began -= float(saved["seconds"])
        course.returns = went_back["returns"] if went_back else int(saved["returns"])
        course.history.resume(saved["rounds"], saved["evaluations"])
        decide(course, self._instead.get(str(newest)) or saved["decisions"])

    def save(self, course: Course, scalars: Mapping[str, float] | None) -> None:
        """Begins to write a checkpoint; the state may be given up when it returns."""
        if (
            self._flush is not None
        ):  # never behind a checkpoint: what is ahead of one can be taken back
            self._flush()
        history = {
            "rounds": course.history.rounds,
            "evaluations": course.history.evaluations,
            "decisions": decisions(course),
            "seconds": course.seconds,
            "returns": course.returns,
        }
        self._checkpoints.save(
            course.state, history, identity=self._identity, metrics=scalars, protect=course.keeps
        )

    def go_back(self, course: Course, back: GoBack, asked: Mapping[str, Memory]) -> None:
        """Takes the run back; later checkpoints are deleted."""
        self._checkpoints.wait()
        number = distributed.from_first(back.round)  # when the first process has written it
        state, saved = self._restored(number)
        text = self._instead.get(str(number)) or saved["decisions"]
        take_back(course, state, text, back, asked)
        self._instead = {t: text for t, text in self._instead.items() if int(t) < number}
        self._instead[str(number)] = decisions(course)
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
