"""What goes on between the chunks of a run that someone watches, saves or stops.

act       every extension, in the order of the list; of several processes, what they agree on
go back   if one asks for it: state, history and memories of an earlier round; or else
save      state, history and memories; then the run ends, if anyone wants it to

Going back replaces what the checkpoint of that round remembers, in one step, after the later checkpoints
have been deleted. A kill before that step repeats what diverged, since a run follows from its
checkpoint; one after it goes on from there.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed
from fedjax_opt.training import fingerprint
from fedjax_opt.training.checkpoints import Checkpoints, as_text, from_text
from fedjax_opt.training.extensions import Chunk, Extension, GoBack, Memory, RunFacts, Stop
from fedjax_opt.training.history import LOGGER, describe_failure
from fedjax_opt.training.interruption import Signals
from fedjax_opt.training.player import Player


class Ended(NamedTuple):
    """How a run ended: for extensions, for people, and by which signal."""

    status: str
    why: str
    signal: str | None = None


class Acting:
    """Extensions, checkpoints and signals of a run; entered, it takes up the run where it is.

    Without checkpoints it keeps copies of the states that the run may go back to. `status` is what it
    tells the extensions in the end; an error tells itself.
    """

    def __init__(
        self,
        player: Player,
        extensions: Iterable[Extension | Callable[[Chunk], str | None]],
        checkpoints: Checkpoints | None,
        names: tuple[str, ...],
        rounds: int,
    ) -> None:
        self._player, self._names, self._rounds = player, names, rounds
        self._by_name: dict[str, Extension] = {}
        for extension in map(_as_extension, extensions):
            if extension.name in self._by_name:
                raise ValueError(
                    f"extensions must have different names, but {extension.name!r} comes twice."
                )
            self._by_name[extension.name] = extension
        self._saves = _Copies() if checkpoints is None else checkpoints
        self._on_disk, self._resumed = checkpoints is not None, False
        self._signals, self._identity, self.status = Signals(), None, ""
        if checkpoints is not None:
            checkpoints.check_metrics(names)
            self._identity = fingerprint.of_run(
                player.prepared, player.start, player.algorithm, measured=", ".join(names)
            )

    def __enter__(self) -> "Acting":
        player = self._player
        if self._on_disk:
            # Of the first process, which writes them, and knows which are whole by now.
            newest = distributed.from_first(self._saves.latest_round)
            if newest is not None:
                saved = self._restore(newest)
                self._resumed = True
                player.began -= saved["seconds"]
                player.rounds.append(saved["rounds"])
                player.evaluations.append(saved["evaluations"])
        self._begin()
        player.may_go_back = bool(player.keeps)
        rows = player.rounds.views  # they have the same columns from the first one on
        player.tells_scale = "step_scale" in rows if rows else player.may_go_back
        if player.may_go_back and not self._resumed:
            self._save()
        if self._on_disk:
            self._signals.take()
        else:
            player.copies = len(player.keeps)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_) -> None:
        status = self.status if kind is None else f"failed: {kind.__name__}: {error}"
        with contextlib.ExitStack() as stack:  # all of it, even if a part of it raises an error
            stack.callback(self._signals.give_back)
            stack.callback(self._close, kind is not None)
            for name, memory in self._player.memories.items():
                if name in self._by_name:
                    stack.callback(self._by_name[name].end, memory, status)

    def after(self, chunk: Chunk) -> Ended | None:
        """Lets the extensions act; how the run ends, if it does."""
        player = self._player
        memories, stops, backs = self._ask(chunk)
        stops, backs, signal = agreed(stops, backs, self._signals.taken)
        if backs:
            self._go_back(backs, memories)
        else:
            player.memories, player.stops = memories, stops
            if not chunk.finite:
                why = describe_failure(chunk.infos)
                return Ended(f"failed: {why}", why)
            self._save(chunk.metrics)
        if signal is not None and not player.stops:
            why = f"{signal} after round {player.round} of {self._rounds}"
            return Ended(f"interrupted: {signal}", why, signal)
        return None

    def _begin(self) -> None:
        """Lets the extensions begin: in a new run, a resumed one, or after it went back."""
        player = self._player
        facts = RunFacts(
            player.round, self._rounds, self._names, player.seconds, distributed.is_first()
        )
        known, player.memories = player.memories, {}
        for name, one in self._by_name.items():
            player.memories[name] = memory = one.begin(facts, known.get(name))
            if self._resumed and memory and name not in known:
                warnings.warn(
                    f"The checkpoint holds no memory of the extension {name!r}: it begins anew at"
                    f" round {player.round}.",
                    stacklevel=2,
                )
        player.stops = {name: why for name, why in player.stops.items() if name in self._by_name}
        self._find_keeps()

    def _ask(self, chunk: Chunk) -> tuple[dict[str, Memory], dict[str, str], dict[str, GoBack]]:
        """What the extensions remember after a chunk, why to stop, and where to go back to."""
        memories, stops, backs = {}, {}, {}
        for name, one in self._by_name.items():
            memories[name], answer = one.after(self._player.memories[name], chunk)
            if isinstance(answer, Stop):
                stops[name] = answer.reason
            elif isinstance(answer, GoBack):
                backs[name] = answer
            elif answer is not None:
                raise ValueError(
                    f"extension {name!r} must return a Stop, a GoBack or None, got {answer!r}."
                )
        return memories, stops, backs

    def _go_back(self, backs: Mapping[str, GoBack], memories: Mapping[str, Memory]) -> None:
        """The earliest round and the smallest step; who asked keeps the memory that it has."""
        player = self._player
        self._saves.wait()
        # When the first process has written it.
        number = distributed.from_first(min(back.round for back in backs.values()))
        why = " ".join(back.reason for back in backs.values())
        self._restore(number)
        player.step_scale = min(back.step_scale for back in backs.values())
        player.memories |= {name: memories[name] for name in backs}
        player.stops = {}
        if any(back.stop for back in backs.values()):
            player.stops = {next(iter(backs)): why}
        else:
            told = "%s Back to round %d, with the step times %g."
            LOGGER.warning(told, why, number, player.step_scale)
        player.rounds.cut(number - 1)
        player.evaluations.cut(number)
        self._saves.delete_after(number, remember=self._decisions())
        player.go_on_from(player.state)
        self._begin()

    def _restore(self, number: int) -> dict[str, Memory]:
        """Takes up the state and the decisions of a checkpoint; what else it holds."""
        player = self._player
        player.state, saved = self._saves.restore(
            player.start, identity=self._identity, round=number
        )
        player.round = number
        player.step_scale, player.stops = saved["step_scale"], saved["stops"]
        player.memories = saved["memories"]
        return saved

    def _decisions(self) -> dict[str, Memory]:
        """What going back changes in an earlier checkpoint."""
        player = self._player
        return {
            "step_scale": player.step_scale,
            "stops": player.stops,
            "memories": player.memories,
        }

    def _save(self, metrics: Mapping[str, float] | None = None) -> None:
        """Keeps the state, if it is needed, with what is remembered; it may be given up then."""
        player = self._player
        self._find_keeps()
        if self._on_disk and player.states is not None:
            player.states.flush_all()  # never behind a checkpoint: what is ahead can be taken back
        history = self._decisions() | {
            "rounds": player.rounds.views,
            "evaluations": player.evaluations.views,
            "seconds": player.seconds,
        }
        self._saves.save(
            player.state, history, identity=self._identity, metrics=metrics, protect=player.keeps
        )

    def _find_keeps(self) -> None:
        memories = self._player.memories
        self._player.keeps = {
            number for name, one in self._by_name.items() for number in one.keeps(memories[name])
        }

    def _close(self, failed: bool) -> None:
        """Lets go of the checkpoints: another run of this process may want the directory."""
        try:
            self._saves.close()
        except Exception as error:
            if not failed:
                raise
            warnings.warn(f"The last checkpoint was not written: {error}", stacklevel=2)


def agreed(
    stops: dict[str, str], backs: dict[str, GoBack], signal: str | None
) -> tuple[dict[str, str], dict[str, GoBack], str | None]:
    """What all processes do: any reason to stop and any signal counts; going back, that of the first."""
    if not distributed.is_joined():
        return stops, backs, signal
    told = distributed.from_each([stops, backs, signal])
    stops = {name: reason for their, _, _ in told for name, reason in their.items()}
    backs = {name: GoBack(*back) for name, back in told[0][1].items()}
    return stops, backs, next((its for _, _, its in told if its is not None), None)


class _Copies:
    """What `Checkpoints` do, in memory, for the states that extensions keep."""

    latest_round = None

    def __init__(self) -> None:
        self._kept: dict[int, tuple[FederatedState, str]] = {}

    def save(self, state, history, *, identity, metrics, protect) -> None:
        del identity, metrics
        self._kept = {number: kept for number, kept in self._kept.items() if number in protect}
        if (number := int(state.round)) in protect:
            history = {k: x for k, x in history.items() if k not in ("rounds", "evaluations")}
            self._kept[number] = jax.tree.map(jnp.copy, state), as_text(history)

    def restore(self, state, *, identity, round):
        del identity
        if round not in self._kept:
            raise ValueError(
                f"GoBack.round must be one that the extension keeps, {sorted(self._kept)}, got"
                f" {round}."
            )
        state, text = self._kept[round]
        return state, from_text(text)

    def delete_after(self, round_number: int, remember: Memory) -> None:
        state, _ = self._kept[round_number]
        self._kept = {number: kept for number, kept in self._kept.items() if number < round_number}
        self._kept[round_number] = state, as_text(remember)

    def wait(self) -> None:
        pass

    close = wait


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
