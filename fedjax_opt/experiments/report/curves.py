"""What a report is made of: the curves of each algorithm, what they cost, and what to say of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.costs.spending import Spent

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Curves(NamedTuple):
    """What was measured of one algorithm.

    Attributes:
      label: its name in plots and tables.
      hyperparameters: those it was run with, by name.
      seeds: one for each row of the curves.
      round: the evaluated rounds `[E]`, increasing.
      accuracy: `[seeds, E]` in [0, 1]; a shorter row is a seed that was not finished.
      loss: `[seeds, E]`, or None.
      extra: other quantities by name, `[seeds, E]`: the diagnostics of drift.
      costs: what was spent up to each evaluated round, `[E]` or `[seeds, E]`; see `per_round`.
      diverged: seed -> the round at which it left the finite numbers, for curves that do not show it.
    """

    label: str
    hyperparameters: Mapping[str, Any]
    seeds: Sequence[int]
    round: Any
    accuracy: Any
    loss: Any = None
    extra: Mapping[str, Any] = _NOTHING
    costs: Spent | None = None
    diverged: Mapping[int, int] = _NOTHING


class About(NamedTuple):
    """What a report says besides the curves.

    Attributes:
      title: the page's.
      task: a description of the data, the split and the model; blank lines part paragraphs.
      facts: what holds for all runs, by name: clients, cohort, local steps, ...
      commands: the exact command lines.
      versions: of Python and of packages, by name.
      notes: what a reader should know, such as where a paper's ordering does not hold.
      baseline: the label that the others are measured against; None for the one called FedAvg, else
        the first.
      target: an accuracy to reach; None for the baseline's best.
      metric: what the accuracy is.
      smoothing: the decay of the moving average of each seed's accuracy; 0 leaves it as measured.
      beside: what a paper reports beside what was measured, as lines of a table, its head first.
    """

    title: str
    task: str = ""
    facts: Mapping[str, Any] = _NOTHING
    commands: Sequence[str] = ()
    versions: Mapping[str, Any] = _NOTHING
    notes: Sequence[str] = ()
    baseline: str | None = None
    target: float | None = None
    metric: str = "test accuracy"
    smoothing: float = 0.0
    beside: Sequence[Sequence[str]] = ()


def per_round(
    rounds: Any,
    *,
    bytes_up: float | None = None,
    bytes_down: float | None = None,
    flops: float | None = None,
    seconds: float | None = None,
) -> Spent:
    """What has been spent after each of some rounds, if every round costs the same.

    Args:
      rounds: the evaluated rounds `[E]`.
      bytes_up: uploaded in a round by all clients together.
      bytes_down: downloaded.
      flops: operations.
      seconds: simulated time.

    Returns:
      A `fedjax_opt.costs.Spent` of cumulative arrays `[E]`; None for what was not given.

    Example:
      >>> from fedjax_opt.experiments.report import per_round
      >>> per_round([10, 20], bytes_up=5.0).bytes_up.tolist()
      [50.0, 100.0]
    """
    rounds = np.asarray(rounds)
    prices = {"seconds": seconds, "bytes_down": bytes_down, "bytes_up": bytes_up, "flops": flops}
    return Spent(
        rounds,
        **{
            name: rounds * checks.number(name, price, low=0.0)
            for name, price in prices.items()
            if price is not None
        },
    )
