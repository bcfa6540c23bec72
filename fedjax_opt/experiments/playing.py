"""What `compare` is called with for an experiment that is written down."""

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
from fedjax_opt.experiments.experiment import Experiment, Member
from fedjax_opt.experiments.hyperparameters import hyperparameters, replaced
from fedjax_opt.experiments.points import grids_of, trials_of
from fedjax_opt.experiments.pricing import Device
from fedjax_opt.experiments.recipes import (
    WATCHING,
    build,
    build_controller,
    controls_rate,
    suggested_for,
)
from fedjax_opt.experiments.trials import Trial


class Named:
    """A family by its text: an algorithm, what is around it, and which of it may vary.

    Args:
      member: the text, read.
      suggested: algorithms of a task: where the member has no arguments at all, and is one of them.
      rate: what sets the learning rate from round to round, from the first one.
    """

    def __init__(
        self,
        member: Member,
        suggested: Mapping[str, Algorithm],
        rate: "Rate | None" = None,
    ) -> None:
        self._member, self._suggested, self._rate = member, suggested, rate

    @property
    def hyperparameters(self) -> list[str]:
        """Their names."""
        return list(hyperparameters(self._member.algorithm, self._member.wrappers))

    def __call__(self, **point: Any) -> Algorithm | Scheduled:
        if self._rate is None:
            return self._built(point)
        known = hyperparameters(self._member.algorithm, self._member.wrappers)
        first = point.pop("learning_rate", known["learning_rate"].value)
        if first is None:
            raise ValueError(
                f"controller {self._rate.controller.name!r} starts from a learning rate: write"
                f" {self._member.algorithm.name}(learning_rate=...)."
            )
        fixed = {k: v for k, v in point.items() if known[k].fixed}
        numbers = {k: v for k, v in point.items() if k not in fixed}
        made = build_controller(self._rate.controller, first, self._rate.every)
        return scheduled(Partial(_AtRate(self, fixed), numbers), made)

    def _built(self, point: Mapping[str, Any]) -> Algorithm:
        specs = replaced(self._member.algorithm, self._member.wrappers, point)
        return build(*specs, suggested=self._suggested)

    def __str__(self) -> str:
        return str(self._member)


class Rate(NamedTuple):
    """What sets the learning rate: a controller as a spec, and the rounds between evaluations."""

    controller: Any
    every: int


class _AtRate:
    """(numbers, learning rate) -> algorithm. Those of the same words are equal, and share a program."""

    def __init__(self, family: Named, fixed: Mapping[str, Any]) -> None:
        self._family, self._fixed = family, fixed
        self._text = repr((str(family), sorted(map(str, fixed.items()))))
        self.__name__ = self.__qualname__ = "at_rate"

    def __call__(self, numbers: Mapping[str, Any], rate: Any) -> Algorithm:
        return self._family._built({**self._fixed, **numbers, "learning_rate": rate})

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

    algorithms: dict[str, Named]
    federation: Federation
    rounds: int
    trials: list[Trial]
    device: Device


def set_up(experiment: Experiment, federation: Federation) -> Setup:
    """All that is to be played for an experiment.

    Args:
      experiment: the experiment.
      federation: its task, loaded.

    Returns:
      A `Setup`.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.experiments.config import from_options
      >>> from fedjax_opt.experiments.playing import set_up
      >>> experiment = from_options({
      ...     "task": ["digits"], "algorithms": ["fedavg"], "seeds": ["0,1"],
      ...     "grid": ["learning_rate=0.1,0.2"],
      ... })
      >>> len(set_up(experiment, fo.tasks.digits()).trials)
      4
    """
    federation = _changed(experiment, federation)
    suggested = suggested_for(experiment.task)
    rounds = suggested.rounds if experiment.rounds is None else experiment.rounds
    controller, rate = experiment.controller, None
    if controller is not None and controls_rate(controller):
        rate = Rate(controller, experiment.evaluate_every)
    elif controller is not None:
        if isinstance(federation.local_steps, Epochs):
            raise ValueError(
                f"controller {controller.name!r} needs local_steps to start from, but the task has"
                " local_epochs: give local_steps."
            )
        made: Controller = build_controller(
            controller, federation.local_steps, experiment.evaluate_every
        )
        federation = federation.replace(local_steps=made)
    algorithms = {
        member.label: Named(member, suggested.algorithms, rate) for member in experiment.algorithms
    }
    grids = grids_of(algorithms, grid_of(experiment))
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
    """Plays an experiment into a run directory: `compare` with its fields.

    Args:
      experiment: the experiment.
      setup: from `set_up`.
      output: the directory.
      command: what runs it.
      about: what else `about.json` says.
    """
    return compare(
        setup.algorithms, setup.federation, setup.rounds, grid=grid_of(experiment),
        seeds=experiment.seeds, samples=experiment.samples, search_seed=experiment.search_seed,
        metric=experiment.metric, criterion=experiment.criterion, target=experiment.target,
        smoothing=experiment.smoothing, evaluate_every=experiment.evaluate_every,
        diagnostics=experiment.diagnostics, device=setup.device, output=output,
        source=Source(to_toml(experiment), command, about),
    )  # fmt: skip


def grid_of(experiment: Experiment) -> dict[str, Any]:
    """An experiment's grid as `compare` takes it."""
    found: dict[str, Any] = {}
    for name, values in experiment.grid.items():
        label, colon, own = name.rpartition(":")
        if colon:
            found.setdefault(label, {})[own] = values
        else:
            found[name] = values
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
    """The clients' link and speed: what is not given is the paper's.

    Args:
      experiment: which may say some of it.
    """
    given = {name: getattr(experiment, name) for name in ("download_mbps", "upload_mbps")}
    if experiment.device_gflops is not None:
        given["flops_per_second"] = 1e9 * experiment.device_gflops
    return Device()._replace(**{name: rate for name, rate in given.items() if rate is not None})
