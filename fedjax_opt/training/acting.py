"""What goes on between the chunks of a run that someone watches, saves or stops.

act       every extension, in the order of the list; of several processes, what they agree on
go back   if one asks for it: state, history and memories of an earlier round; or else
save      state, history and memories; then the run ends, if anyone wants it to
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from fedjax_opt.execution import distributed
from fedjax_opt.training.extensions import Chunk, Extension, GoBack, Memory, RunFacts, Stop
from fedjax_opt.training.history import LOGGER, Course, describe_failure
from fedjax_opt.training.interruption import Signals
from fedjax_opt.training.saves import Copies, OnDisk


class Ended(NamedTuple):
    """How a run ended: for extensions, for people, and by which signal."""

    status: str
    why: str
    signal: str | None = None


class Answers(NamedTuple):
    """What the extensions of a run want, put together.

    Attributes:
      stops: the reasons to stop by the name of who has one.
      back: where to go back to, and with what step; None to go on.
      askers: who wants to go back: they keep the memory that they have.
    """

    stops: dict[str, str]
    back: GoBack | None
    askers: tuple[str, ...]


class Acting:
    """Extensions, saves and signals of a run.

    Args:
      extensions: in order.
      course: the run.
      saves: where its states are kept.
      names: the metrics that are evaluated.
      rounds: how many there are to be.
      restart: takes the devices to the course's state.
    """

    def __init__(
        self,
        extensions: Iterable[Extension | Callable[[Chunk], str | None]],
        course: Course,
        saves: Copies | OnDisk,
        names: tuple[str, ...],
        rounds: int,
        restart: Callable[[], None],
    ) -> None:
        self._by_name: dict[str, Extension] = {}
        for extension in map(_as_extension, extensions):
            if extension.name in self._by_name:
                raise ValueError(
                    f"extensions must have different names, but {extension.name!r} comes twice."
                )
            self._by_name[extension.name] = extension
        self._course, self._saves, self._signals = course, saves, Signals()
        self._names, self._rounds, self._restart = names, rounds, restart

    def enter(self, stack: contextlib.ExitStack) -> None:
        """Takes up the run where it is; what can never act refuses."""
        course = self._course
        if isinstance(self._saves, OnDisk):
            self._saves.resume(course)
        self.begin()
        course.may_go_back = bool(course.keeps)
        rows = course.history.rounds  # they have the same columns from the first one on
        course.tells_scale = "step_scale" in rows if rows else course.may_go_back
        if isinstance(self._saves, OnDisk):
            stack.enter_context(self._signals)
            stack.enter_context(self._saves)

    @property
    def copies(self) -> int:
        """How many copies of the state there are on the devices."""
        return 0 if isinstance(self._saves, OnDisk) else len(self._course.keeps)

    def start(self) -> None:
        """Keeps the state before the first chunk, if it may be gone back to."""
        if self._course.keeps and not self._course.resumed:
            self.save()

    def begin(self) -> None:
        """Lets the extensions begin: in a new run, a resumed one, or after it went back."""
        course = self._course
        facts = RunFacts(
            course.round, self._rounds, self._names, course.seconds, distributed.is_first()
        )
        known, course.memories = course.memories, {}
        for name, one in self._by_name.items():
            course.memories[name] = memory = one.begin(facts, known.get(name))
            if course.resumed and memory and name not in known:
                warnings.warn(
                    f"The checkpoint holds no memory of the extension {name!r}: it begins anew at"
                    f" round {course.round}.",
                    stacklevel=2,
                )
        course.stops = {name: why for name, why in course.stops.items() if name in self._by_name}
        self._find_keeps()

    def save(self, scalars: Mapping[str, float] | None = None) -> None:
        """Keeps the state, if it is needed, with what is remembered."""
        self._find_keeps()
        self._saves.save(self._course, scalars)

    def after(self, chunk: Chunk) -> Ended | None:
        """Lets the extensions act; how the run ends, if it does."""
        course = self._course
        memories, answers = self.ask(chunk)
        answers, signal = agreed(answers, self._signals.taken)
        if answers.back is not None:
            self._go_back(answers.back, {name: memories[name] for name in answers.askers})
        else:
            course.memories, course.stops = memories, answers.stops
            if not chunk.finite:
                why = describe_failure(chunk.infos)
                return Ended(f"failed: {why}", why)
            self.save(chunk.metrics)
        if signal is not None and not course.stops:
            why = f"{signal} after round {course.round} of {self._rounds}"
            return Ended(f"interrupted: {signal}", why, signal)
        return None

    def ask(self, chunk: Chunk) -> tuple[dict[str, Memory], Answers]:
        """The memories after a chunk, and what the extensions want."""
        new, stops, backs = {}, {}, {}
        for name, one in self._by_name.items():
            new[name], answer = one.after(self._course.memories[name], chunk)
            if isinstance(answer, Stop):
                stops[name] = answer.reason
            elif isinstance(answer, GoBack):
                backs[name] = answer
            elif answer is not None:
                raise ValueError(
                    f"extension {name!r} must return a Stop, a GoBack or None, got {answer!r}."
                )
        if not backs:
            return new, Answers(stops, None, ())
        earliest = GoBack(
            min(back.round for back in backs.values()),
            min(back.step_scale for back in backs.values()),
            " ".join(back.reason for back in backs.values()),
            any(back.stop for back in backs.values()),
        )
        return new, Answers({}, earliest, tuple(backs))

    def end(self, status: str) -> None:
        """Tells all extensions, even if one of them raises an error."""
        with contextlib.ExitStack() as stack:
            for name, memory in self._course.memories.items():
                if name in self._by_name:
                    stack.callback(self._by_name[name].end, memory, status)

    def _go_back(self, back: GoBack, asked: dict[str, Memory]) -> None:
        """One step: a run that is killed was either here before it, or is after it."""
        self._saves.go_back(self._course, back, asked)
        if not back.stop:
            told = "%s Back to round %d, with the step times %g."
            LOGGER.warning(told, back.reason, back.round, back.step_scale)
        self._restart()
        self.begin()

    def _find_keeps(self) -> None:
        memories = self._course.memories
        self._course.keeps = {
            number for name, one in self._by_name.items() for number in one.keeps(memories[name])
        }


def agreed(answers: Answers, signal: str | None) -> tuple[Answers, str | None]:
    """What all processes do: any reason to stop and any signal counts; going back, that of the first."""
    if not distributed.is_joined():
        return answers, signal
    told = distributed.from_each([answers, signal])
    stops = {name: reason for (stops, *_), _ in told for name, reason in stops.items()}
    (_, back, askers), _ = told[0]
    signals = [its for _, its in told if its is not None]
    found = Answers(stops, GoBack(*back) if back else None, tuple(askers))
    return found, signals[0] if signals else None


class _Function(Extension):
    """A function of a chunk that returns a reason to stop, or None."""

    def __init__(self, function: Callable[[Chunk], str | None]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        return getattr(self._function, "__name__", type(self._function).__name__)

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, Stop | GoBack | None]:
        reason = self._function(chunk)
        if reason is not None and not isinstance(reason, str):
            raise ValueError(
                f"extension {self.name!r} must return a reason to stop, a text, or None, got"
                f" {reason!r}."
            )
        return memory, Stop(reason) if reason else None


def _as_extension(extension: object) -> Extension:
    if not isinstance(extension, type):
        if callable(getattr(extension, "after", None)):
            return cast(Extension, extension)
        if callable(extension):
            return _Function(cast(Callable[[Chunk], str | None], extension))
    raise ValueError(
        f"extensions must hold Extensions, or functions of a Chunk, got {extension!r}."
    )
