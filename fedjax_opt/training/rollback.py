"""When a run diverges: back to the last state that has proved itself, and on with a smaller step.

loss        of a model: what the first local steps of a round measure of it, `first_loss`
diverged    the mean loss of a chunk of rounds is not finite, or above `factor` times the lowest such
            mean so far; or a guard skipped every round of it for what clients sent
proven      a state from which the next chunk began with a loss of at most `factor` times the lowest
go back     to the newest proven state, with `shrink` times the step; what came after it is forgotten
"""

import dataclasses

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.guard import Fault
from fedjax_opt.core.info import Info
from fedjax_opt.training.extensions import Chunk, Extension, GoBack, Memory, RunFacts
from fedjax_opt.training.history import describe_failure

# Codes below it say that a client did not answer, which a smaller step does not change.
_SENT_SOMETHING = Fault.LOSS_NOT_FINITE


@dataclasses.dataclass(frozen=True)
class Rollback(Extension):
    """Goes back and takes smaller steps when a run diverges; an extension of `simulate`.

    It judges after each chunk of `evaluate_every` rounds. The state that it goes back to is a checkpoint
    where the run has `checkpoints`, else a copy: there are two, of the newest state and of the newest
    one that has proved itself.

    Attributes:
      factor: a mean loss above so many times the lowest so far is divergence, more than 1.
      shrink: what the step is multiplied by each time, in (0, 1).
      limit: how often, at most; then the run stops with the last proven state.

    Example:
      A learning rate that is far too large, and is halved until it is not:

      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3)
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=2, batch_size=1)
      >>> result = fo.simulate(
      ...     fo.scheduled(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), 50.0), federation, 40,
      ...     evaluate_every=5, extensions=[fo.Rollback(limit=10)], progress=False,
      ... )
      >>> len(result.history["loss"]), bool(result.history["step_scale"][-1] < 1)
      (40, True)
    """

    factor: float = 10.0
    shrink: float = 0.5
    limit: int = 5

    def __post_init__(self) -> None:
        checks.number("factor", self.factor, low=1.0, open_low=True)
        checks.number("shrink", self.shrink, low=0.0, high=1.0, open_low=True, open_high=True)
        checks.integer("limit", self.limit, low=1)

    def begin(self, run: RunFacts, memory: Memory | None) -> Memory:
        """A new run may go back to where it begins."""
        if not run.can_go_back:
            raise ValueError(
                "Rollback cannot go back in a sweep, whose trials are played together. Use"
                " fo.simulate for this run, or leave Rollback out of the extensions."
            )
        return memory or {"proven": run.round, "newest": run.round, "lowest": None, "returns": 0}

    def keeps(self, memory: Memory) -> tuple[int, ...]:
        """The newest proven state, and the newest, which may prove itself."""
        return memory["proven"], memory["newest"]

    def after(self, memory: Memory, chunk: Chunk) -> tuple[Memory, GoBack | None]:
        """Judges the state that the chunk began from, and then the chunk."""
        first, mean = _losses(chunk.infos)
        lowest = first if memory["lowest"] is None else memory["lowest"]
        if first <= self.factor * lowest:
            memory = memory | {"proven": memory["newest"]}
        why = self._divergence(chunk, mean, lowest)
        if why is None:
            lowest = np.fmin(lowest, mean)
            known = None if np.isnan(lowest) else float(lowest)
            return memory | {"newest": chunk.last, "lowest": known}, None
        return self._back(memory, chunk.step_scale, why)

    def _divergence(self, chunk: Chunk, mean: float, lowest: float) -> str | None:
        if not chunk.finite:
            return describe_failure(chunk.infos)
        faults = chunk.infos.faults
        if faults and faults.skipped.all() and (faults.code >= _SENT_SOMETHING).any(axis=1).all():
            return "Every round was skipped for what clients sent."
        if mean > self.factor * lowest:
            return (
                f"Rounds {chunk.first} to {chunk.last - 1}: the mean loss {mean:.4g} is more than"
                f" {self.factor:g} times the lowest so far, {lowest:.4g}."
            )
        return None

    def _back(self, memory: Memory, scale: float, why: str) -> tuple[Memory, GoBack]:
        proven, returns = memory["proven"], memory["returns"]
        if returns == self.limit:
            told = f"{why} Gone back {returns} times; the last good state is kept."
            return memory, GoBack(proven, scale, told, stop=True)
        memory = memory | {"newest": proven, "returns": returns + 1}
        return memory, GoBack(proven, scale * self.shrink, why)


def _losses(infos: Info) -> tuple[float, float]:
    """The loss that a chunk began with, and the mean over those that its rounds began with."""
    says = (infos.num_steps > 0).any(axis=1)
    if infos.faults:
        says &= ~infos.faults.skipped
    first, finite = infos.first_loss[says], infos.first_loss[says & infos.finite]
    return (
        float(first[0]) if len(first) else np.nan,
        float(np.mean(finite, dtype=float)) if len(finite) else np.nan,
    )
