"""Which states of a run are good ones to go back to.

A state is known by the losses around it: the mean loss of the chunk of rounds that led to it, and the
loss that the next chunk began with, which is its own. The first is known at once, the second when the
next chunk has been played. So at most two states are of interest: the newest that has passed both, and
one that has passed the first.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.state import FederatedState
from fedjax_opt.training.log import Log


class Losses(NamedTuple):
    """What a chunk of rounds has shown; NaN where no round of it counts.

    Attributes:
      mean: over its rounds.
      first: of the model that it began with.
      mean_first: of the models that its rounds began with.
    """

    mean: float
    first: float
    mean_first: float


def losses(log: Log) -> Losses:
    """Those of the newest chunk; rounds in which nobody counted say nothing."""
    rows = log.newest()
    counted = np.any(rows["num_steps"] > 0, axis=1)
    if "skipped" in rows:
        counted &= ~rows["skipped"]
    if not counted.any():
        return Losses(np.nan, log.failed_first_loss, np.nan)
    first = rows["first_loss"][counted]
    return Losses(
        float(np.mean(rows["loss"][counted])), float(first[0]), float(np.mean(first, dtype=float))
    )


class Record(NamedTuple):
    """What a run remembers of its past in order to go back; a checkpoint holds it.

    Attributes:
      good: the rounds of the states that it may go back to, in order.
      ages: how many chunks ago those were.
      returns: how often it went back.
      scale: of the step.
      lowest: the lowest mean loss of a chunk.
      lowest_first: the lowest mean of the losses that the rounds of a chunk began with.
    """

    good: tuple[int, ...]
    ages: tuple[int, ...] = (0,)
    returns: int = 0
    scale: float = 1.0
    lowest: float = np.inf
    lowest_first: float = np.inf

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Record":
        """From the arrays that a checkpoint holds."""
        found: dict[str, Any] = {name: np.asarray(saved[name]).tolist() for name in cls._fields}
        found |= {name: tuple(found[name]) for name in ("good", "ages")}
        return cls(**found)

    def saved(self) -> dict[str, np.ndarray]:
        """As arrays, for a checkpoint."""
        return {name: np.asarray(value) for name, value in self._asdict().items()}

    def begun(self, found: Losses) -> "Record":
        """With the initial model as the measure of the first chunk."""
        if np.isfinite(self.lowest) or not np.isfinite(found.first):
            return self
        return self._replace(lowest=found.first, lowest_first=found.first)

    def tried(self, done: int, found: Losses, factor: float) -> "Record":
        """After a chunk was played from the state after `done` rounds: was that one good?"""
        if found.first <= factor * self.lowest_first:
            return self._replace(good=self.good[-1:], ages=self.ages[-1:])
        if self.good[-1] == done and len(self.good) > 1:
            return self._replace(good=self.good[:-1], ages=self.ages[:-1])
        return self

    def advanced(self, done: int, found: Losses, near: float, reach: float) -> "Record":
        """After a chunk that is no divergence, whose last state may be a good one.

        Args:
          done: the rounds done.
          found: its losses.
          near: a mean loss of at most so many times the lowest is good.
          reach: how many chunks can be taken back. Before a good state gets out of reach, the newest
            one is taken instead.
        """
        lowest = np.fmin(self.lowest, found.mean)
        kept = [(r, age + 1) for r, age in zip(self.good, self.ages, strict=True) if age < reach]
        if found.mean <= near * lowest or not kept or kept[-1][1] >= reach:
            kept.append((done, 0))
        good, ages = zip(*kept, strict=True)
        first = float(np.fmin(self.lowest_first, found.mean_first))
        return self._replace(good=good, ages=ages, lowest=float(lowest), lowest_first=first)

    def returned(self, shrink: float) -> "Record":
        """Back at the newest good state, with a smaller step."""
        return self._replace(
            good=self.good[-1:], ages=(0,), returns=self.returns + 1, scale=self.scale * shrink
        )


class Copies:
    """Good states in the memory of the device."""

    def __init__(self) -> None:
        self._kept: dict[int, FederatedState] = {}

    def keep(self, state: FederatedState, rounds: Iterable[int]) -> None:
        """Lets go of what is not of these rounds, and copies a state that is."""
        self._kept = {number: old for number, old in self._kept.items() if number in rounds}
        if int(state.round) in rounds:
            self._kept.setdefault(int(state.round), jax.tree.map(jnp.copy, state))

    def take(self, number: int) -> FederatedState:
        """The state of a round, to be given up to the program."""
        return jax.tree.map(jnp.copy, self._kept[number])
