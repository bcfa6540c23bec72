"""What a run may resume from or go back to: checkpoints, or copies in memory.

A checkpoint holds the state, the history, what extensions remember and the scale of the step. Going back
changes the last two for a checkpoint that is never written again. So they are in a file beside the
checkpoints, which is replaced in one step when the later checkpoints have been deleted:

    went_back.json    by round that the run went back to, what counts instead of the checkpoint's own

A kill before that step repeats what diverged, since a run follows from its checkpoint; one after it goes
on from there.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.storage import durable
from fedjax_opt.training import fingerprint
from fedjax_opt.training.checkpoints import Checkpoints, as_text, from_text
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
    return as_text({"step_scale": course.step_scale, "stops": course.stops, "memories": kept})


def decide(course: Course, text: str) -> None:
    """Takes up what `decisions` returned."""
    found = from_text(text)
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
        identity: fingerprint.Texts,
        flush: Callable[[], None] | None,
    ) -> None:
        self._checkpoints, self._like, self._identity = checkpoints, like, identity
        self._flush, self._path = flush, checkpoints.directory / _WENT_BACK
        self._instead: dict[str, str] = {}

    def resume(self, course: Course) -> None:
        """Takes up the newest checkpoint, if there is one."""
        newest, instead = None, {}
        if distributed.is_first():  # which writes them, and knows which are whole by now
            newest = self._checkpoints.latest_round
            instead = durable.read_json(self._path) if self._path.exists() else {}
        newest, instead = distributed.from_first([newest, instead])
        if newest is None:
            self._keep({})
            return
        # What it went back to may be gone by a person's hand.
        self._keep({t: text for t, text in instead.items() if int(t) <= newest})
        course.state, saved, text = self._restored(newest)
        course.resumed = True
        course.began -= saved["seconds"]
        course.history.resume(saved["rounds"], saved["evaluations"])
        decide(course, text)

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
        }
        self._checkpoints.save(
            course.state, history, identity=self._identity, metrics=scalars, protect=course.keeps
        )

    def go_back(self, course: Course, back: GoBack, asked: Mapping[str, Memory]) -> None:
        """Takes the run back; later checkpoints are deleted."""
        self._checkpoints.wait()
        number = distributed.from_first(back.round)  # when the first process has written it
        state, _, text = self._restored(number)
        take_back(course, state, text, back, asked)
        self._checkpoints.delete_after(number)
        earlier = {t: text for t, text in self._instead.items() if int(t) < number}
        self._keep(earlier | {str(number): decisions(course)})

    def _keep(self, instead: dict[str, str]) -> None:
        if distributed.is_first() and (instead or self._path.exists()):
            durable.write_json(self._path, instead)
        self._instead = instead

    def _restored(self, number: int) -> tuple[FederatedState, dict[str, Any], str]:
        """A checkpoint's state, what else it holds, and the decisions that count there."""
        state, saved = self._checkpoints.restore(self._like, identity=self._identity, round=number)
        return state, saved, self._instead.get(str(number)) or saved["decisions"]

    def __enter__(self) -> "OnDisk":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._checkpoints.close()  # another run of this process may want the directory
        except Exception as error:
            if kind is None:
                raise
            warnings.warn(f"The last checkpoint was not written: {error}", stacklevel=2)
