"""What `compare` is called with for an experiment that is written down."""

import hashlib
import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, Controller, Federation, checks, epochs, scheduled
from fedjax_opt.core.algorithm import Scheduled
from fedjax_opt.core.federation import Epochs
from fedjax_opt.experiments.comparing import Source, compare
from fedjax_opt.experiments.comparison import Comparison
from fedjax_opt.experiments.config import to_toml
from fedjax_opt.experiments.experiment import (
    SETTINGS,
    Experiment,
    Member,
    with_suggestions,
)
from fedjax_opt.experiments.names import (
    WATCHING,
    build_controller,
    controls_rate,
    hyperparameters,
    is_own,
    suggested_for,
)
from fedjax_opt.experiments.points import grids_of, trials_of
from fedjax_opt.experiments.pricing import Device
from fedjax_opt.experiments.specs import Spec
from fedjax_opt.experiments.trials import Trial
from fedjax_opt.tasks.own import ROUNDS, Loaded

#: Tried where nobody says a learning rate, and the task suggests none.
RATES = (0.01, 0.03, 0.1, 0.3)


class Rated:
    """A member whose learning rate a controller sets from round to round, as a family.

    Args:
      member: the algorithm.
      controller: the controller, as a spec; it starts from the member's learning rate.
      every: the rounds between evaluations.
    """

    def __init__(self, member: Member, controller: Spec, every: int) -> None:
        self._member, self._controller, self._every = member, controller, every
        self.hyperparameters = member.hyperparameters

    def __call__(self, **point: Any) -> Scheduled:
        """The algorithm with some hyperparameters."""
        known = hyperparameters(self._member.algorithm, self._member.wrappers)
        first = point.pop("learning_rate", known["learning_rate"].value)
        fixed = {k: v for k, v in point.items() if known[k].fixed}
        numbers = {k: v for k, v in point.items() if k not in fixed}
        made = build_controller(self._controller, first, self._every)
        return scheduled(Partial(_AtRate(self._member, fixed), numbers), made)

    def __str__(self) -> str:
        return str(self._member)


class _AtRate:
    """(numbers, learning rate) -> algorithm. Those of the same words are equal, and share a program."""

    def __init__(self, member: Member, fixed: Mapping[str, Any]) -> None:
        self._member, self._fixed = member, fixed
        self._text = repr((str(member), sorted(map(str, fixed.items()))))
        self.__name__ = self.__qualname__ = "at_rate"

    def __call__(self, numbers: Mapping[str, Any], rate: Any) -> Algorithm:
        return self._member(**self._fixed, **numbers, learning_rate=rate)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AtRate) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class Setup(NamedTuple):
    """An experiment that is ready to be played.

    Attributes:
      algorithms: the families by label.
      federation: the task's, with what the experiment says in place of the task. What controllers
        watch is taken out of the test set.
      rounds: of each trial.
      trials: all of them.
      device: the clients' link and speed.
    """

    algorithms: dict[str, Member | Rated]
    federation: Federation
    rounds: int
    trials: list[Trial]
    device: Device


def set_up(experiment: Experiment, federation: Federation) -> Setup:
    """All that is to be played for an experiment."""
    experiment = with_suggestions(experiment)
    federation = _changed(experiment, federation)
    rounds = experiment.rounds or suggested_for(experiment.task).rounds
    controller, every = experiment.controller, experiment.evaluate_every
    algorithms: dict[str, Any] = {member.label: member for member in experiment.algorithms}
    if controller is not None and controls_rate(controller):
        algorithms = {k: Rated(member, controller, every) for k, member in algorithms.items()}
    elif controller is not None:
        if isinstance(federation.local_steps, Epochs):
            raise ValueError(
                f"controller {controller.name!r} needs local_steps to start from, but the task has"
                " local_epochs: give local_steps."
            )
        made: Controller = build_controller(controller, federation.local_steps, every)
        federation = federation.replace(local_steps=made)
    grids = grids_of(algorithms, experiment.grids)
    trials = trials_of(
        algorithms, federation, grids, experiment.seeds, experiment.samples, experiment.search_seed
    )
    return Setup(algorithms, federation, rounds, trials, device_of(experiment))


def play(
    experiment: Experiment,
    setup: Setup,
    output: Any,
    command: str = "",
    about: Mapping[str, Any] = {},
) -> Comparison:
    """Plays an experiment into a run directory: `compare` with its fields."""
    return compare(
        setup.algorithms, setup.federation, setup.rounds, grid=experiment.grids,
        seeds=experiment.seeds, samples=experiment.samples, search_seed=experiment.search_seed,
        metric=experiment.metric, criterion=experiment.criterion, target=experiment.target,
        smoothing=experiment.smoothing, evaluate_every=experiment.evaluate_every,
        validation=experiment.validation, diagnostics=experiment.diagnostics, device=setup.device,
        output=output,
        source=Source(to_toml(experiment), command, about),
    )  # fmt: skip


def settled(experiment: Experiment, federation: Federation) -> tuple[Experiment, list[str]]:
    """An experiment on own data with what nobody said, and a sentence for each such thing.

    Where data suggest nothing: 100 rounds, the cohort and the local work of the federation, and each
    algorithm's learning rate from a grid of four, chosen on a fifth of each client's training examples.
    """
    if not is_own(experiment.task):
        return experiment, []
    changes: dict[str, Any] = {}
    if experiment.rounds is None:
        changes["rounds"] = ROUNDS
    if experiment.cohort_size is None and federation.cohort is not None:
        changes["cohort_size"] = federation.cohort.size
    if experiment.batch_size is None:
        changes["batch_size"] = federation.batch_size
    given = experiment.local_steps, experiment.local_epochs
    varied = {name.rpartition(":")[2] for name in experiment.grid}
    if given == (None, None) and not varied & {*SETTINGS} and experiment.controller is None:
        steps = federation.local_steps
        if isinstance(steps, Epochs):
            changes["local_epochs"] = int(steps.count)
    said = [f"{name.replace('_', ' ')} {value}" for name, value in changes.items()]
    grid = dict(experiment.grid)
    for member in experiment.algorithms:
        known = hyperparameters(member.algorithm, member.wrappers)
        tried = {"learning_rate", f"{member.label}:learning_rate"} & grid.keys()
        if "learning_rate" in known and known["learning_rate"].value is None and not tried:
            grid[f"{member.label}:learning_rate"] = RATES
    if len(grid) > len(experiment.grid):
        changes["grid"] = grid
        said.append(f"learning rates {', '.join(map(str, RATES))}")
        if experiment.validation is None and federation.validation is None:
            changes["validation"] = 0.2
            said.append("the best chosen on a fifth of each client's training examples")
    return experiment.replace(**changes), [f"Not said, so: {'; '.join(said)}."] if said else []


def sources_of(experiment: Experiment, task: Loaded) -> dict[str, str]:
    """The SHA-256 of own data, and of each file that own functions are from."""
    found = {"data": task.sha256} if task.sha256 else {}
    specs = [experiment.task, *(spec for member in experiment.algorithms for spec in member[1:2])]
    names = [spec.name for spec in specs]
    names += [v for v in experiment.task.arguments.values() if isinstance(v, str)]
    for name in names:
        module = sys.modules.get(name.partition(":")[0]) if ":" in name else None
        path = getattr(module, "__file__", None)
        if path:
            found[name] = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    return found


def _changed(experiment: Experiment, federation: Federation) -> Federation:
    """The task's federation, with what the experiment says in its place."""
    changes: dict[str, Any] = {
        "cohort": experiment.cohort_size,
        "batch_size": experiment.batch_size,
        "local_steps": experiment.local_steps,
    }
    if experiment.local_epochs is not None:
        changes["local_steps"] = epochs(experiment.local_epochs)
    test = _some(federation.test, experiment.test_examples)
    if experiment.controller is not None and experiment.controller.name in WATCHING:
        changes["validation"] = jax.tree.map(lambda x: x[::2], test)
        test = jax.tree.map(lambda x: x[1::2], test)
    return federation.replace(
        weighting=experiment.weighting,
        batching=experiment.batching,
        test=test,
        **{name: value for name, value in changes.items() if value is not None},
    )


def _some(examples: Any, count: int | None) -> Any:
    """All examples, or so many that follow from their number alone."""
    if count is None:
        return examples
    available = len(jax.tree.leaves(examples)[0])
    checks.integer("test_examples", count, low=1, high=available)
    rows = np.sort(np.random.default_rng(0).permutation(available)[:count])
    return jax.tree.map(lambda x: x[rows], examples)


def device_of(experiment: Experiment) -> Device:
    """The clients' link and speed: what is not given is the paper's."""
    given = {name: getattr(experiment, name) for name in ("download_mbps", "upload_mbps")}
    if experiment.device_gflops is not None:
        given["flops_per_second"] = 1e9 * experiment.device_gflops
    return Device()._replace(**{name: rate for name, rate in given.items() if rate is not None})
