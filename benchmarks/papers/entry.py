"""A table or figure of a paper: experiments, and what the paper reports of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_opt.core import Federation, Sampler
from fedjax_opt.experiments.experiment import DRIFT, Experiment, check, parse_member
from fedjax_opt.experiments.specs import Spec, parse

#: What the papers' numbers are called in tables.
MEASURES = {
    "accuracy": "accuracy, %",
    "rounds": "rounds to target",
    "upload": "MB up to target",
    "minutes": "simulated minutes to target",
    "match": "MB up to match FedAvg",
    "steps": "steps, share of fixed",
}


class Claim(NamedTuple):
    """An ordering that a paper reports, to be looked for in what is measured.

    Attributes:
      better: the label of the one that is ahead.
      worse: the label of the other.
      measure: by what, of `MEASURES`; more is better of an accuracy, less of all others.
    """

    better: str
    worse: str
    measure: str = "accuracy"


class Part(NamedTuple):
    """One experiment of a table or figure.

    Attributes:
      name: the directory that its results go to.
      group: parts of one group are on one page, and are compared; they are of one task.
      experiment: what is run.
      beside: which cells of the paper `reported` is from.
      reported: what the paper reports, texts by label and measure.
      claims: what is ahead of what, by labels of the group.
      sampler: in place of cohorts that are drawn uniformly.
      seconds_per_step: of a client's device; None for what its model's operations take.
    """

    name: str
    group: str
    experiment: Experiment
    beside: str
    reported: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    claims: tuple[Claim, ...] = ()
    sampler: Sampler | None = None
    seconds_per_step: float | None = None


class Entry(NamedTuple):
    """A table or figure that can be reproduced.

    Attributes:
      name: what it is called in commands.
      paper: who wrote it, and its title.
      where: the table or figure.
      finds: what it shows, in a sentence.
      measures: what is compared, of `MEASURES`; the first is what matters most.
      full: (LEAF's folder) -> the paper's experiments; None if there is no task for them.
      quick: () -> small ones that should show the same.
      differs: what differs from the paper at full size.
      quick_differs: what the small ones are.
      baseline: the label that others are measured against.
    """

    name: str
    paper: str
    where: str
    finds: str
    measures: tuple[str, ...] = ("accuracy",)
    full: Callable[[str], Sequence[Part]] | None = None
    quick: Callable[[], Sequence[Part]] | None = None
    differs: str = ""
    quick_differs: str = ""
    baseline: str = "fedavg"

    def parts(self, quick: bool = False, leaf: str = "leaf") -> tuple[Part, ...]:
        """The experiments of one size.

        Args:
          quick: the small ones.
          leaf: the folder of LEAF's repository, for tasks that read its files.
        """
        if quick:
            assert self.quick is not None
            return tuple(self.quick())
        if self.full is None:
            raise ValueError(f"{self.name} has no full size here. {self.differs} Use --quick.")
        return tuple(self.full(leaf))


def experiment(task: str | Spec, members: Iterable[str], **fields: Any) -> Experiment:
    """An experiment whose page shows the clients' drift, checked.

    Args:
      task: the task, or its text.
      members: texts of algorithms.
      **fields: of `Experiment`.
    """
    spec = parse(task) if isinstance(task, str) else task
    fields = {"diagnostics": DRIFT, **fields}
    return check(Experiment(spec, tuple(map(parse_member, members)), **fields))


def columns(text: str, *names: str) -> dict[str, dict[str, str]]:
    """A paper's table: a line for each label, of which the last cells are measures.

    Args:
      text: the lines; `-` is an empty cell.
      *names: the measures of the last columns; '' leaves a column out.

    Example:
      >>> from benchmarks.papers.entry import columns
      >>> columns("fedavg 40.2±0.9 -", "accuracy", "match")
      {'fedavg': {'accuracy': '40.2±0.9'}}
    """
    found = {}
    for line in filter(str.strip, text.splitlines()):
        cells = line.rsplit(maxsplit=len(names))
        pairs = zip(names, cells[1:], strict=True)
        found[cells[0].strip()] = {name: cell for name, cell in pairs if name and cell != "-"}
    return found


def prepared(part: Part, federation: Federation) -> Federation:
    """The federation with the cohorts of a part."""
    return federation if part.sampler is None else federation.replace(cohort=part.sampler)
