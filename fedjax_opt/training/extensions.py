"""What acts between the chunks of a simulated run: it watches, writes files, stops it or goes back.

An extension is a value; what it remembers of a run is a `Memory` that the loop hands to it and saves in
every checkpoint. So a run that was killed and resumed ends as one that was not, and one extension
serves many runs. A plain function of a `Chunk` that returns a reason to stop, or None, is an extension
that remembers nothing.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution import distributed

# Mappings, lists, numbers, texts, None and arrays; `()` for nothing.
Memory = Any


class RunFacts(NamedTuple):
    """What an extension is told when its part of a run begins.

    Attributes:
      round: the rounds done by now: 0, or where a resumed run goes on, or where it went back to.
      rounds: the rounds that there are to be.
      names: the metrics that `Chunk.metrics` will have; none if nothing is evaluated.
      seconds: how long the run has taken so far.
      is_first: whether this process is the one that writes files.
      can_go_back: whether a `GoBack` is obeyed.
      trial: which trial of a sweep this is; None in `simulate`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.RunFacts(round=0, rounds=20, names=("loss",)).can_go_back
      True
    """

    round: int
    rounds: int
    names: tuple[str, ...] = ()
    seconds: float = 0.0
    is_first: bool = True
    can_go_back: bool = True
    trial: str | None = None


class Chunk(NamedTuple):
    """What an extension sees after each chunk of rounds of one run; the same in every process.

    Attributes:
      first: the rounds done before it.
      last: the rounds done after it; fewer than were asked for if one was not finite.
      infos: an `Info` of arrays of NumPy with the rounds on their leading axis. A round that was not
        finite is the last of them, and was not applied.
      metrics: the evaluation after it, scalars by name; empty if it was not finite.
      finite: whether all losses and updates were.
      seconds: since the run began, also before it was interrupted and resumed.
      step_scale: what the step was multiplied by; 1 unless the run went back.
      state: makes a copy of the state after it. With several processes all must call it, or none.

    Example:
      >>> import fedjax_opt as fo
      >>> def stop_late(chunk: fo.Chunk):
      ...     return "an hour is enough" if chunk.seconds > 3600 else None
    """

    first: int
    last: int
    infos: Info
    metrics: Mapping[str, float]
    finite: bool
    seconds: float
    step_scale: float
    state: Callable[[], FederatedState]


class Stop(NamedTuple):
    """The answer that ends a run.

    Attributes:
      reason: becomes `Result.stopped`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.Stop("the loss is low enough").reason
      'the loss is low enough'
    """

    reason: str


class GoBack(NamedTuple):
    """The answer that takes a run back to an earlier state, and on from there with another step.

    Attributes:
      round: the rounds done then; one that the extension `keeps`, or where the run began.
      step_scale: what the step is multiplied by from then on: the learning rate, where the algorithm is
        `scheduled`, else the change of the global parameters in each round.
      reason: for the log.
      stop: whether the run ends there.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.GoBack(round=20, step_scale=0.5, reason="it diverged").round
      20
    """

    round: int
    step_scale: float
    reason: str
    stop: bool = False


class Extension(Protocol):
    """What acts between the chunks of a run. Inherit from it, and write the methods that you need.

    The list of extensions is their order. `name` tells memories apart in a checkpoint; by default it is
    the name of the class.

    Example:
      >>> import fedjax_opt as fo
      >>> class Budget(fo.Extension):
      ...     def begin(self, run, memory):
      ...         return memory or {"steps": 0}
      ...     def after(self, memory, chunk):
      ...         steps = memory["steps"] + int(chunk.infos.num_steps.sum())
      ...         return {"steps": steps}, fo.Stop("no steps left") if steps > 100 else None
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3)
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=2, batch_size=1)
      >>> result = fo.simulate(
      ...     fo.fedavg(fo.optimizers.sgd(0.1)), federation, 40, evaluate_every=5,
      ...     extensions=[Budget()], progress=False,
      ... )
      >>> result.stopped, int(result.state.round)
      ('no steps left', 15)
    """

    @property
    def name(self) -> str:
        """What its memory is called; no two extensions of a run may have the same."""
        return type(self).__name__

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        """When a run begins, when it is resumed, and after it went back.

        It refuses what can never act, by a ValueError, and cuts files to what belongs to the rounds
        before `run.round`.

        Args:
          run: where the run is.
          memory: what `after` returned last; None in a new run.

        Returns:
          The memory that the first `after` gets.
        """
        del run
        return () if memory is None else memory

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, Stop | GoBack | None]:
        """After each chunk of rounds. It may be called again for the same chunk if the run is killed.

        Args:
          memory: what it returned last.
          chunk: what has happened since.

        Returns:
          What to remember, and what the run is to do.
        """
        del chunk
        return memory, None

    def keeps(self, memory: Memory) -> tuple[int, ...]:
        """The rounds whose states must stay, for a `GoBack`.

        Args:
          memory: what it returned last.
        """
        del memory
        return ()

    def end(self, memory: Memory, status: str) -> None:
        """When the run ends, however it does.

        Args:
          memory: what it returned last.
          status: 'done', 'stopped: <reason>', 'interrupted: <signal>' or 'failed: <error>'.
        """
        del memory, status


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


class Extensions:
    """The extensions of a run, one after the other. Memories are passed in and returned, by name."""

    def __init__(self, extensions: Iterable[Extension | Callable[[Chunk], str | None]]) -> None:
        found = [_as_extension(extension) for extension in extensions]
        self._by_name = {extension.name: extension for extension in found}
        names = [extension.name for extension in found]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"extensions must have different names, but {twice[0]!r} comes twice.")

    @property
    def names(self) -> tuple[str, ...]:
        """In order."""
        return tuple(self._by_name)

    def begin(self, run: RunFacts, memories: Mapping[str, Memory]) -> dict[str, Memory]:
        """Their memories at the beginning; those without one begin anew."""
        return {name: one.begin(run, memories.get(name)) for name, one in self._by_name.items()}

    def after(
        self, memories: Mapping[str, Memory], chunk: Chunk
    ) -> tuple[dict[str, Memory], Answers]:
        """Their memories after a chunk, and what they want."""
        new, stops, backs = {}, {}, {}
        for name, one in self._by_name.items():
            new[name], answer = one.after(memories[name], chunk)
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
        return new, Answers({}, _earliest(list(backs.values())), tuple(backs))

    def keeps(self, memories: Mapping[str, Memory]) -> set[int]:
        """The rounds whose states must stay."""
        return {t for name, one in self._by_name.items() for t in one.keeps(memories[name])}

    def end(self, memories: Mapping[str, Memory], status: str) -> None:
        """Tells those that have begun, even if one of them raises an error."""
        with contextlib.ExitStack() as stack:
            for name, memory in memories.items():
                stack.callback(self._by_name[name].end, memory, status)


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


def _earliest(backs: list[GoBack]) -> GoBack:
    return GoBack(
        min(back.round for back in backs),
        min(back.step_scale for back in backs),
        " ".join(back.reason for back in backs),
        any(back.stop for back in backs),
    )


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


def _as_extension(extension: Any) -> Extension:
    if not isinstance(extension, type):
        if callable(getattr(extension, "after", None)):
            return extension
        if callable(extension):
            return _Function(cast(Callable[[Chunk], str | None], extension))
    raise ValueError(
        f"extensions must hold Extensions, or functions of a Chunk, got {extension!r}."
    )


def early_stopping(metric: str = "loss", patience: int = 10, maximise: bool = False) -> Extension:
    """Stops when a metric has not become better in so many evaluations.

    Args:
      metric: the name of an evaluated metric.
      patience: how many evaluations without a new best are accepted.
      maximise: whether larger is better.

    Returns:
      An extension.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.early_stopping("accuracy", patience=5, maximise=True).name
      'early_stopping(accuracy)'
    """
    return _EarlyStopping(metric, checks.integer("patience", patience, low=1), maximise)


def stop_at(metric: str, target: float, maximise: bool = True) -> Extension:
    """Stops when a metric reaches a target.

    Args:
      metric: the name of an evaluated metric.
      target: the value to reach.
      maximise: whether larger is better.

    Returns:
      An extension.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.stop_at("accuracy", 0.9).name
      'stop_at(accuracy, 0.9)'
    """
    return _StopAt(metric, target, maximise)


class _EarlyStopping(Extension):
    def __init__(self, metric: str, patience: int, maximise: bool) -> None:
        self._metric, self._patience = metric, patience
        self._sign = 1 if maximise else -1

    @property
    def name(self) -> str:
        return f"early_stopping({self._metric})"

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        _check_metric(self._metric, run)
        return memory or {"best": -np.inf, "waited": 0}

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, Stop | None]:
        if not chunk.finite:
            return memory, None
        value, best = self._sign * chunk.metrics[self._metric], memory["best"]
        waited = 0 if value > best else memory["waited"] + 1
        memory = {"best": value if value > best else best, "waited": waited}
        if waited < self._patience:
            return memory, None
        return memory, Stop(f"{self._metric} has not improved in {self._patience} evaluations")


class _StopAt(Extension):
    def __init__(self, metric: str, target: float, maximise: bool) -> None:
        self._metric, self._target, self._maximise = metric, target, maximise

    @property
    def name(self) -> str:
        return f"stop_at({self._metric}, {self._target})"

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        _check_metric(self._metric, run)
        return ()

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, Stop | None]:
        if not chunk.finite:
            return memory, None
        value = chunk.metrics[self._metric]
        reached = value >= self._target if self._maximise else value <= self._target
        return memory, Stop(f"{self._metric} reached {self._target}") if reached else None


def _check_metric(metric: str, run: RunFacts) -> None:
    if metric in run.names:
        return
    why = "" if run.names else " Nothing is evaluated: give a test set, or measurements."
    raise ValueError(
        f"metric must be one of the evaluated {sorted(run.names)}, got {metric!r}.{why}"
    )
