"""What is to be run: a task, algorithms, how long, with which seeds, and what to search."""

import inspect
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_opt.core import Algorithm, Federation
from fedjax_opt.experiments.names import build, hyperparameters, replaced
from fedjax_opt.experiments.search import Range
from fedjax_opt.experiments.specs import Spec, parse_sum
from fedjax_opt.training import simulate

#: What a grid may vary beside the hyperparameters of algorithms.
SETTINGS = ("local_steps", "local_epochs")
#: What a page about a comparison shows of the clients' drift.
DRIFT = ("client_distance",)
LABEL = re.compile(r"\w(?:[\w .+-]*[\w.+-])?")
_NUMBER = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*"
RANGE = re.compile(rf"\s*(uniform|loguniform)\({_NUMBER},{_NUMBER}\)\s*", re.ASCII)
_RUN = {name: p.default for name, p in inspect.signature(simulate).parameters.items()}


class Member(NamedTuple):
    """An algorithm of an experiment; `str` gives the text that `parse_member` reads.

    Attributes:
      label: what it is called in results.
      algorithm: the algorithm.
      wrappers: what is around it, the innermost first.

    Example:
      >>> from fedjax_opt.experiments.config import Member
      >>> from fedjax_opt.experiments.specs import Spec
      >>> str(Member("slow", Spec("fedavg", {"learning_rate": 0.01}), (Spec("private"),)))
      'slow: fedavg(learning_rate=0.01) + private'
    """

    label: str
    algorithm: Spec
    wrappers: tuple[Spec, ...] = ()

    @property
    def hyperparameters(self) -> list[str]:
        """The names of all that a grid may vary: with them it is a family of algorithms."""
        return list(hyperparameters(self.algorithm, self.wrappers))

    def __call__(self, **point: Any) -> Algorithm:
        """The algorithm with some hyperparameters.

        Args:
          **point: values by name.
        """
        return build(*replaced(self.algorithm, self.wrappers, point))

    def __str__(self) -> str:
        specs = (self.algorithm, *self.wrappers)
        text = " + ".join(map(str, specs))
        return text if self.label == _names(specs) else f"{self.label}: {text}"


class Experiment(NamedTuple):
    """All that decides what is run, but for where results go.

    Attributes:
      task: the task, as a spec of `names.KINDS`.
      algorithms: what is run on it.
      rounds: of each run; None for the task's.
      seeds: one run for each of them.
      cohort_size: clients in a round; None for the task's.
      batch_size: examples in a local step; None for the task's.
      local_steps: K; None for the task's.
      local_epochs: E in place of K; None for the task's.
      controller: what sets K or eta from round to round, as a spec of `names.KINDS`.
      evaluate_every: the rounds between evaluations.
      test_examples: how many examples of the test set are evaluated, the same in all runs; None for all.
      weighting: aggregate by 'samples' or 'uniform'.
      batching: 'shuffled' epochs, or with 'replacement'.
      diagnostics: what to measure of the clients' drift, as for `fo.run_rounds`.
      grid: values to try by hyperparameter, a tuple or, in a random search, a `Range`.
      validation: the share of each client's training examples by which points are chosen; None for the
        task's validation examples, else its test set.
      samples: how many points of the grid to draw at random; None for all.
      search_seed: of that draw.
      metric: what is compared, and 'max' or 'min' before it where its name does not say what is better;
        None for 'accuracy', or 'loss' where there is none.
      criterion: by what the best hyperparameters are chosen, one of `results.CRITERIA`.
      smoothing: the decay of the moving average of a curve before it is judged; 0 for none.
      target: a value of the metric to reach.
      download_mbps: megabits per second to a client, for the simulated time; None for those of `Device`.
      upload_mbps: megabits per second from a client; None likewise.
      device_gflops: billions of operations a second of a client; None likewise.

    Example:
      >>> from fedjax_opt.experiments.config import Experiment, parse_member
      >>> from fedjax_opt.experiments.specs import parse
      >>> experiment = Experiment(
      ...     parse("digits"), (parse_member("fedavg"), parse_member("fedprox(mu=0.1)")),
      ...     seeds=(0, 1, 2), grid={"learning_rate": (0.1, 0.3)},
      ... )
    """

    task: Spec
    algorithms: tuple[Member, ...]
    rounds: int | None = None
    seeds: tuple[int, ...] = (0,)
    cohort_size: int | None = None
    batch_size: int | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    controller: Spec | None = None
    evaluate_every: int = _RUN["evaluate_every"]
    test_examples: int | None = None
    weighting: str = "samples"
    batching: str = Federation.batching
    diagnostics: tuple[str, ...] = _RUN["diagnostics"]
    grid: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
    validation: float | None = None
    samples: int | None = None
    search_seed: int = 0
    metric: str | None = None
    criterion: str = "best"
    smoothing: float = 0.0
    target: float | None = None
    download_mbps: float | None = None
    upload_mbps: float | None = None
    device_gflops: float | None = None

    @property
    def grids(self) -> dict[str, Any]:
        """The grid as `compare` takes it: `label:name` is meant for one algorithm alone."""
        found: dict[str, Any] = {}
        for name, values in self.grid.items():
            label, _, own = name.rpartition(":")
            if label:
                found.setdefault(label, {})[own] = values
            else:
                found[name] = values
        return found


def parse_member(text: str) -> Member:
    """Reads an algorithm, what is around it, and what it is called.

    Args:
      text: `algorithm(...) + wrapper(...)`, with `label: ` before it or without.

    Returns:
      A `Member`; without a label it is called by the names in it.

    Example:
      >>> from fedjax_opt.experiments.config import parse_member
      >>> parse_member("fedavg(learning_rate=0.1) + clipped(max_norm=10)").label
      'fedavg+clipped'
    """
    # A colon without a blank behind it is part of a name, package.module:function.
    match = re.fullmatch(rf"\s*(?:({LABEL.pattern})\s*:\s+)?(.*)", text, re.DOTALL)
    label, rest = match.groups() if match else (None, text)
    specs = parse_sum(rest)
    return Member(label or _names(specs), specs[0], specs[1:])


def parse_range(text: str) -> Range:
    """Reads a range."""
    match = RANGE.fullmatch(text)
    if not match:
        raise ValueError(
            f"A range is written uniform(low, high) or loguniform(low, high), got {text!r}."
        )
    return Range(float(match[2]), float(match[3]), logarithmic=match[1] == "loguniform")


def format_range(values: Range) -> str:
    """The text of a range, as `parse_range` reads it."""
    kind = "loguniform" if values.logarithmic else "uniform"
    return f"{kind}({float(values.low)!r}, {float(values.high)!r})"


def _names(specs: tuple[Spec, ...]) -> str:
    return "+".join(spec.name.rpartition(":")[2] for spec in specs)
