"""Whether an experiment can be run, as far as that is known before its data are loaded."""

import math
from collections.abc import Mapping
from typing import Any

from fedjax_opt.core import checks
from fedjax_opt.experiments.experiment import LABEL, SETTINGS, Experiment, Member
from fedjax_opt.experiments.keys import KEYS
from fedjax_opt.experiments.names import (
    bind,
    build,
    controls_rate,
    hyperparameters,
    replaced,
    suggested_for,
)
from fedjax_opt.experiments.points import FIELDS, checked_seeds, grids_of, points_of
from fedjax_opt.experiments.results import read_metric
from fedjax_opt.experiments.search import Range
from fedjax_opt.experiments.specs import Spec, parse_sum, unknown

_AT_LEAST = {
    "rounds": 1,
    "cohort_size": 1,
    "batch_size": 1,
    "local_steps": 1,
    "local_epochs": 1,
    "evaluate_every": 1,
    "test_examples": 1,
    "samples": 1,
    "search_seed": 0,
}
# The learning rate of an algorithm on own data may be searched by itself: this one stands for it.
_STAND_IN = Spec("fedavg", {"learning_rate": 1.0})


def check(experiment: Experiment) -> Experiment:
    """Returns the experiment, or refuses it with what to do."""
    bind("task", experiment.task)
    experiment = with_suggestions(experiment)
    _check_numbers(experiment)
    _check_words(experiment)
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

    return experiment._replace(algorithms=tuple(map(full, experiment.algorithms)))


def _check_numbers(experiment: Experiment) -> None:
    for name, low in _AT_LEAST.items():
        value = getattr(experiment, name)
        if value is not None:
            checks.integer(name, value, low=low)
    checked_seeds(experiment.seeds)
    checks.number("smoothing", experiment.smoothing, low=0.0, high=1.0, open_high=True)
    if experiment.target is not None:
        # Without a name the metric is the accuracy, or a loss: a target above 1 would never be reached.
        share = experiment.metric is None or experiment.metric.endswith("accuracy")
        low, high = (0.0, 1.0) if share else (-math.inf, math.inf)
        checks.number("target", experiment.target, low=low, high=high)
    if experiment.metric is not None:
        read_metric(experiment.metric)
    if experiment.validation is not None:
        checks.number(
            "validation", experiment.validation, low=0.0, high=1.0, open_low=True, open_high=True
        )
    for name in ("download_mbps", "upload_mbps", "device_gflops"):
        value = getattr(experiment, name)
        if value is not None:
            checks.number(name, value, low=0.0, open_low=True, open_high=True)


def _check_words(experiment: Experiment) -> None:
    for name, (_, _, _, choices) in KEYS.items():
        value = getattr(experiment, name) if choices else ()
        for word in (value,) if isinstance(value, str) else value:
            if word not in choices:
                raise unknown(name, word, choices, f"There are {', '.join(choices)}.")
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
    for name in FIELDS:
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
