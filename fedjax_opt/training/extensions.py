"""What acts between the chunks of a simulated run: it watches, writes files, stops it or goes back.

What an extension remembers of a run is a `Memory` that the loop hands to it and saves in every
checkpoint. So a run that was killed and resumed ends as one that was not, and one extension serves many
runs.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState

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
