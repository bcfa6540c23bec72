"""What is to be run: a task, algorithms, how long, with which seeds, and what to search.

An `Experiment` is described once, by its fields: their types say what a file and an option may hold,
what is beside the types what they mean and how large they may be.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from fedjax_opt.core import Algorithm, Federation, checks
from fedjax_opt.core.federation import BATCHINGS, WEIGHTINGS
from fedjax_opt.engine.diagnostics import NAMES
from fedjax_opt.experiments.names import (
    bind,
    build,
    controls_rate,
    hyperparameters,
    replaced,
    suggested_for,
)
from fedjax_opt.experiments.points import FIELDS as OF_FEDERATION
from fedjax_opt.experiments.points import checked_seeds, grids_of, points_of
from fedjax_opt.experiments.results import CRITERIA, read_metric
from fedjax_opt.experiments.search import Range
from fedjax_opt.experiments.specs import Spec, parse_sum, unknown
from fedjax_opt.training import simulate

#: What a page about a comparison shows of the clients' drift.
DRIFT = ("client_distance",)
#: The fields of which one takes the place of the other.
SETTINGS = ("local_steps", "local_epochs")
LABEL = re.compile(r"\w(?:[\w .+-]*[\w.+-])?")
# The learning rate of an algorithm on own data may be searched by itself: this one stands for it.
_STAND_IN = Spec("fedavg", {"learning_rate": 1.0})
_RUN = {name: p.default for name, p in inspect.signature(simulate).parameters.items()}


class Member(NamedTuple):
    """An algorithm of an experiment; `str` gives the text that `parse_member` reads.

    Attributes:
      label: what it is called in results.
      algorithm: the algorithm.
      wrappers: what is around it, the innermost first.

    Example:
      >>> from fedjax_opt.experiments import Member, Spec
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


def parse_member(text: str) -> Member:
    """Reads an algorithm, what is around it, and what it is called.

    Args:
      text: `algorithm(...) + wrapper(...)`, with `label: ` before it or without.

    Returns:
      A `Member`; without a label it is called by the names in it.

    Example:
      >>> from fedjax_opt.experiments import parse_member
      >>> parse_member("fedavg(learning_rate=0.1) + clipped(max_norm=10)").label
      'fedavg+clipped'
    """
    # A colon without a blank behind it is part of a name, package.module:function.
    match = re.fullmatch(rf"\s*(?:({LABEL.pattern})\s*:\s+)?(.*)", text, re.DOTALL)
    label, rest = match.groups() if match else (None, text)
    specs = parse_sum(rest)
    return Member(label or _names(specs), specs[0], specs[1:])


def _names(specs: tuple[Spec, ...]) -> str:
    return "+".join(spec.name.rpartition(":")[2] for spec in specs)


class Field(NamedTuple):
    """What a field of an experiment means, and may be.

    Attributes:
      help: what it means.
      choices: the words that it may be, or be made of; empty if it is no word.
      limits: of a number, as `core.checks` takes them.
    """

    help: str
    choices: Sequence[str] = ()
    limits: Mapping[str, Any] = {}


def _is(help: str, choices: Iterable[str] = (), **limits: Any) -> Field:
    return Field(help, tuple(choices), limits)


_POSITIVE = {"low": 0.0, "open_low": True, "open_high": True}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """All that decides what is run, but for where results go; what is None is left to the task.

    `to_toml` writes what each field means, and so does `fedjax-opt compare --help`.

    Example:
      >>> from fedjax_opt.experiments import Experiment, parse, parse_member
      >>> experiment = Experiment(
      ...     parse("digits"), (parse_member("fedavg"), parse_member("fedprox(mu=0.1)")),
      ...     seeds=(0, 1, 2), grid={"learning_rate": (0.1, 0.3)},
      ... )
    """

    # fmt: off
    task: Annotated[Spec, _is("Data, split and model: `fedjax-opt list tasks` shows all.")]
    algorithms: Annotated[tuple[Member, ...], _is(
        "What is run, each as 'algorithm(argument=value) + wrapper(argument=value)', and 'label:' before"
        " it if it is to be called otherwise. `fedjax-opt list algorithms` shows all, and `fedjax-opt"
        " list wrappers` what may be put around them. Without any arguments it is as the task suggests."
    )]
    rounds: Annotated[int | None, _is("Rounds of each run (left out: the task's).", low=1)] = None
    seeds: Annotated[tuple[int, ...], _is(
        "One run for each: of the initial model and of all that is drawn."
    )] = (0,)
    cohort_size: Annotated[int | None, _is(
        "Clients in each round (left out: the task's).", low=1
    )] = None
    batch_size: Annotated[int | None, _is(
        "Examples in a local step (left out: the task's).", low=1
    )] = None
    local_steps: Annotated[int | None, _is(
        "Local steps of a client in a round (left out: the task's).", low=1
    )] = None
    local_epochs: Annotated[int | None, _is(
        "Local epochs, in place of local steps (left out: the task's).", low=1
    )] = None
    controller: Annotated[Spec | None, _is(
        "What changes the local steps or the learning rate from round to round (left out: nothing);"
        " `fedjax-opt list controllers` shows all."
    )] = None
    evaluate_every: Annotated[int, _is(
        "Rounds between evaluations on the test set.", low=1
    )] = _RUN["evaluate_every"]
    test_examples: Annotated[int | None, _is(
        "How many examples of the test set are evaluated, drawn once (left out: all).", low=1
    )] = None
    weighting: Annotated[str, _is("What the mean over clients weighs them by.", WEIGHTINGS)] = "samples"
    batching: Annotated[str, _is(
        "How a client draws its minibatches.", BATCHINGS
    )] = Federation.batching
    diagnostics: Annotated[tuple[str, ...], _is(
        "What to measure of the clients' drift, and of what they send.", NAMES
    )] = _RUN["diagnostics"]
    validation: Annotated[float | None, _is(
        "The share of each client's training examples that is taken out of it, to choose points of the"
        " grid by (left out: none, and points are chosen on the test set).",
        low=0.0, high=1.0, open_low=True, open_high=True,
    )] = None
    samples: Annotated[int | None, _is(
        "How many points of the grid to draw at random (left out: all of them are tried).", low=1
    )] = None
    search_seed: Annotated[int, _is("Of the draw of these points.", low=0)] = 0
    metric: Annotated[str | None, _is(
        "What is compared: a metric of the model, and which way is better where its name does not say"
        " it: 'accuracy', 'min rmse' (left out: accuracy, else loss)."
    )] = None
    criterion: Annotated[str, _is("By what the best hyperparameters are chosen.", CRITERIA)] = "best"
    smoothing: Annotated[float, _is(
        "The decay of the moving average of a curve before it is judged (0: as it is; FedACG: 0.9).",
        low=0.0, high=1.0, open_high=True,
    )] = 0.0
    target: Annotated[float | None, _is("A value of the metric to reach.")] = None
    download_mbps: Annotated[float | None, _is(
        "Megabits per second to a client, for the simulated time (left out: 20).", **_POSITIVE
    )] = None
    upload_mbps: Annotated[float | None, _is(
        "Megabits per second from a client (left out: 5).", **_POSITIVE
    )] = None
    device_gflops: Annotated[float | None, _is(
        "Billions of operations per second of a client (left out: 2.4, a Raspberry Pi 3B+).", **_POSITIVE
    )] = None
    grid: Annotated[Mapping[str, tuple[Any, ...] | Range], _is(
        "Values to try by hyperparameter: learning_rate = [0.1, 0.3]; of a wrapper,"
        ' "clipped.max_norm"; of one algorithm alone, "label:learning_rate"; or local_steps,'
        ' local_epochs. With samples, also a range: learning_rate = "loguniform(0.001, 1)".'
    )] = dataclasses.field(default_factory=dict)
    # fmt: on

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

    def replace(self, **changes: Any) -> "Experiment":
        """The same with some fields changed.

        Args:
          **changes: fields by name.
        """
        return dataclasses.replace(self, **changes)


_HINTS = get_type_hints(Experiment, include_extras=True)
#: The fields by name, in the order in which a file has them.
FIELDS: dict[str, Field] = {name: hint.__metadata__[0] for name, hint in _HINTS.items()}
#: What a field is where it is left out; two have no default.
DEFAULTS = {
    field.name: {} if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(Experiment)
    if field.name not in ("task", "algorithms")
}


def kind_of(name: str) -> tuple[Any, bool]:
    """The type of a field, or of what it holds several of."""
    hint = get_args(_HINTS[name])[0]
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    if get_origin(hint) is Mapping:
        return Mapping, False
    options = [option for option in get_args(hint) if option is not NoneType]
    return (options[0] if options else hint), False


def check(experiment: Experiment) -> Experiment:
    """Returns the experiment with what its task suggests, or refuses it with what to do.

    All is checked that is known before data are loaded.
    """
    bind("task", experiment.task)
    experiment = with_suggestions(experiment)
    _check_fields(experiment)
    _check_local_work(experiment)
    _check_labels(experiment.algorithms)
    grids = _check_search(experiment)
    for member in experiment.algorithms:
        try:
            grid = grids[member.label]
            _check_member(member, grid)
            _check_first_rate(member, grid, experiment.controller)
        except ValueError as error:
            raise ValueError(f"{member.label}: {error}") from None
    return experiment


def with_suggestions(experiment: Experiment) -> Experiment:
    """An experiment in which a bare name is what the task suggests, before anything else looks at it."""
    texts = suggested_for(experiment.task).texts

    def full(member: Member) -> Member:
        if member.algorithm.arguments or member.algorithm.name not in texts:
            return member
        algorithm, *around = parse_sum(texts[member.algorithm.name])
        own = {wrapper.name for wrapper in member.wrappers}
        kept = [wrapper for wrapper in around if wrapper.name not in own]
        return Member(member.label, algorithm, (*kept, *member.wrappers))

    return experiment.replace(algorithms=tuple(map(full, experiment.algorithms)))


def _check_fields(experiment: Experiment) -> None:
    for name, (_, choices, limits) in FIELDS.items():
        value = getattr(experiment, name)
        if choices:
            for word in (value,) if isinstance(value, str) else value:
                if word not in choices:
                    raise unknown(name, word, choices, f"There are {', '.join(choices)}.")
        if limits and value is not None:
            check_number = checks.integer if kind_of(name)[0] is int else checks.number
            check_number(name, value, **limits)
    checked_seeds(experiment.seeds)
    if experiment.target is not None:
        # Without a name the metric is the accuracy, or a loss: a target above 1 would never be reached.
        share = experiment.metric is None or experiment.metric.endswith("accuracy")
        low, high = (0.0, 1.0) if share else (-math.inf, math.inf)
        checks.number("target", experiment.target, low=low, high=high)
    if experiment.metric is not None:
        read_metric(experiment.metric)
    if experiment.criterion == "rounds_to_target" and experiment.target is None:
        raise ValueError("criterion 'rounds_to_target' needs a target: give one, such as 0.9.")


def _check_local_work(experiment: Experiment) -> None:
    in_grid = {name.rpartition(":")[2] for name in experiment.grid}
    steps, epochs = (getattr(experiment, n) is not None or n in in_grid for n in SETTINGS)
    if steps and epochs:
        raise ValueError("Give local_steps or local_epochs, and leave the other out; got both.")
    if experiment.controller is None:
        return
    bind("controller", experiment.controller)
    if not controls_rate(experiment.controller) and (epochs or "local_steps" in in_grid):
        clash = "local_epochs" if epochs else "local_steps in the grid"
        raise ValueError(
            f"controller {experiment.controller.name!r} sets the local steps: leave {clash} out;"
            " local_steps is what it starts from."
        )


def _check_labels(members: tuple[Member, ...]) -> None:
    if not members:
        raise ValueError("algorithms must hold at least one, such as 'fedavg', got none.")
    for member in members:
        if not LABEL.fullmatch(member.label):
            raise ValueError(
                "A label is made of letters, digits, spaces and . _ + -, and neither begins nor ends"
                f" with a space; got {member.label!r}."
            )
    labels = [member.label for member in members]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(
                f"The labels of algorithms must differ, but {label} comes twice. Give each its own, as"
                " in 'slow: fedavg(learning_rate=0.01)'."
            )


def _check_search(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The grid of each algorithm."""
    if experiment.samples is not None and not experiment.grid:
        raise ValueError("samples are drawn from a grid: give one, or leave samples out.")
    grids = grids_of({m.label: m for m in experiment.algorithms}, experiment.grids)
    for label, grid in grids.items():
        points_of(label, grid, experiment.samples, experiment.search_seed)
    return grids


def _check_member(member: Member, grid: Mapping[str, Any]) -> None:
    """Builds the algorithm with every value that is to be tried, the others at their first."""
    ends = {
        name: (values.low, values.high) if isinstance(values, Range) else values
        for name, values in grid.items()
    }
    for name in OF_FEDERATION:
        for value in ends.pop(name, ()):
            if name not in ("batching", "weighting"):
                checks.integer(f"grid: {name}", value, low=1)
    known = hyperparameters(member.algorithm, member.wrappers)
    for name in ends:
        if known[name].fixed and isinstance(grid[name], Range):
            raise ValueError(f"{name} is no number that may be drawn: give a list of values.")
    first = {name: values[0] for name, values in ends.items()}
    points = [first, *({**first, name: v} for name, values in ends.items() for v in values[1:])]
    for point in points:
        algorithm, wrappers = replaced(member.algorithm, member.wrappers, point)
        build(algorithm if algorithm.arguments else _STAND_IN, wrappers)


def _check_first_rate(member: Member, grid: Mapping[str, Any], controller: Spec | None) -> None:
    if controller is None or not controls_rate(controller):
        return
    if "learning_rate" not in {*member.algorithm.arguments, *grid}:
        raise ValueError(
            f"controller {controller.name!r} starts from a learning rate: write"
            f" {member.algorithm.name}(learning_rate=...)."
        )
