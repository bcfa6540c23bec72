"""Plays an experiment: every algorithm, every point of its grid, every seed; results as they come.

Trials of one algorithm share a program, unless they differ in what decides its structure (GHBM's tau):
then there is a program for each such value.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import checks, scheduled
from fedjax_opt.experiments.experiment import SETTINGS, Experiment, Member, grid_of
from fedjax_opt.experiments.hyperparameters import hyperparameters, replaced
from fedjax_opt.experiments.pricing import Device, Prices, priced, prices
from fedjax_opt.experiments.recipes import WATCHING, build, build_controller, controls_rate
from fedjax_opt.experiments.rundir import RunDirectory
from fedjax_opt.experiments.search import Range, expand, sample
from fedjax_opt.experiments.sweep import Progress, Trial, Trials, run_trials
from fedjax_opt.experiments.trials import finished
from fedjax_opt.experiments.unfinished import Unfinished
from fedjax_opt.tasks import Task

_LOCAL_WORK = ("local_steps", "local_epochs")


class Program(NamedTuple):
    """Trials of one algorithm that are played together.

    Attributes:
      member: the algorithm.
      trials: its points and seeds.
      settings: of its federation, as those of a `Task`.
      price: what a client costs in a round.
    """

    member: Member
    trials: tuple[Trial, ...]
    settings: dict[str, Any]
    price: Prices


class Setup(NamedTuple):
    """An experiment that is ready to be played.

    Attributes:
      rounds: of each trial.
      programs: what is compiled, one after the other.
      test: the test set.
      validation: what controllers may watch, taken out of the test set; None if none does.
    """

    rounds: int
    programs: tuple[Program, ...]
    test: dict[str, Any]
    validation: dict[str, Any] | None


def points_of(experiment: Experiment, member: Member) -> list[dict[str, Any]]:
    """The hyperparameters that are tried of an algorithm; one empty point where nothing is.

    Args:
      experiment: the experiment.
      member: one of its algorithms.

    Example:
      >>> from fedjax_opt.experiments.config import Experiment, parse_member
      >>> from fedjax_opt.experiments.playing import points_of
      >>> from fedjax_opt.experiments.specs import parse
      >>> member = parse_member("fedavg")
      >>> points_of(Experiment(parse("digits"), (member,), grid={"learning_rate": (0.1, 0.3)}), member)
      [{'learning_rate': 0.1}, {'learning_rate': 0.3}]
    """
    grid = grid_of(experiment, member)
    if not grid:
        return [{}]
    if experiment.samples is None:
        return expand(grid)
    ranges = {k: v if isinstance(v, Range) else list(v) for k, v in grid.items()}
    points = sample(ranges, experiment.samples, experiment.search_seed)
    # Of lists alone the same point may be drawn twice.
    return [point for i, point in enumerate(points) if point not in points[:i]]


def set_up(experiment: Experiment, task: Task, device: Device | None = None) -> Setup:
    """All that is to be compiled and played for an experiment.

    Args:
      experiment: the experiment.
      task: its task, loaded.
      device: the clients' link and speed, for the simulated time, in place of the experiment's.

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
      >>> [len(program.trials) for program in set_up(experiment, fo.tasks.digits()).programs]
      [4]
    """
    test, validation = _test_set(experiment.test_examples, task), None
    if experiment.controller is not None and experiment.controller.name in WATCHING:
        validation = {name: array[::2] for name, array in test.items()}
        test = {name: array[1::2] for name, array in test.items()}
    settings = _settings(experiment, task, validation)
    device = device or device_of(experiment)
    programs = []
    for member in experiment.algorithms:
        for points in _by_structure(member, points_of(experiment, member)):
            programs.append(_program(experiment, task, member, points, settings, device))
    rounds = task.rounds if experiment.rounds is None else experiment.rounds
    return Setup(rounds, tuple(programs), test, validation)


def play(
    experiment: Experiment,
    task: Task,
    setup: Setup,
    directory: RunDirectory,
    on_chunk: Callable[[Progress], Any] | None = None,
) -> Iterator[tuple[Program, Trials]]:
    """Plays what the directory does not hold yet, program by program.

    Args:
      experiment: the experiment.
      task: its task, loaded.
      setup: from `set_up`.
      directory: where records and final models go, as they come.
      on_chunk: called after each chunk of rounds.

    Yields:
      Each program, with what its trials gave. One whose trials are all in the directory is left out.

    Example:
      >>> import pathlib, tempfile
      >>> import fedjax_opt as fo
      >>> from fedjax_opt import experiments as ex
      >>> experiment = ex.from_options({
      ...     "task": ["digits"], "algorithms": ["fedavg"], "rounds": ["2"], "local_steps": ["2"],
      ... })
      >>> task = ex.load_task(experiment.task)
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "run"
      >>> with ex.RunDirectory(home, ex.to_toml(experiment), experiment.seeds) as directory:
      ...     for program, found in ex.play(experiment, task, ex.set_up(experiment, task), directory):
      ...         print(program.member.label, found.rounds)
      fedavg [2]
      >>> ex.read(home).records[0]["participations"]
      10
    """
    done = finished(directory.records, setup.rounds)
    # Several processes would all have to go on from the same round: there a run begins anew.
    unfinished = Unfinished(directory.unfinished if jax.process_count() == 1 else None, done)

    def noted(program: Program) -> Callable[[Progress], None]:
        def note(progress: Progress) -> None:
            for trial, variables in progress.models:
                if trial.seed == experiment.seeds[0]:
                    directory.save_model(model_name(trial), variables)
            # Last: it says that the trials are finished.
            directory.append([priced(record, program.price) for record in progress.records])
            if on_chunk is not None:
                on_chunk(progress)

        return note

    for program in setup.programs:
        if all(trial.identity in done for trial in program.trials):
            continue
        found = run_trials(
            task.model, task.data, program.trials, rounds=setup.rounds, settings=program.settings,
            test=setup.test, client_test=task.client_test, evaluate_every=experiment.evaluate_every,
            on_chunk=noted(program), unfinished=unfinished,
        )  # fmt: skip
        yield program, found


def model_name(trial: Trial) -> str:
    """What the final model of a trial is called: the label, and the point if there is one."""
    point = ", ".join(f"{name}={value}" for name, value in trial.hyperparameters.items())
    return f"{trial.label} ({point})" if point else trial.label


def _test_set(count: int | None, task: Task) -> dict[str, Any]:
    """The examples that are evaluated: all, or so many that follow from their number alone."""
    if count is None:
        return dict(task.test)
    available = len(next(iter(task.test.values())))
    checks.integer(f"test_examples of {task.name}", count, low=1, high=available)
    rows = np.sort(np.random.default_rng(0).permutation(available)[:count])
    return {name: array[rows] for name, array in task.test.items()}


def _settings(experiment: Experiment, task: Task, validation: Any) -> dict[str, Any]:
    """What a federation is made with: the task's, and the experiment's in their place."""
    settings = dict(task.settings)
    if any(getattr(experiment, name) is not None for name in _LOCAL_WORK):
        settings = {k: v for k, v in settings.items() if k not in _LOCAL_WORK}
    if experiment.cohort_size is not None:
        settings.pop("sampler", None)
        population = len(task.data.sizes)
        if experiment.cohort_size > population:
            raise ValueError(
                f"cohort_size must not be larger than the population of {population} clients, got"
                f" {experiment.cohort_size}."
            )
    for name in ("cohort_size", "batch_size", *_LOCAL_WORK):
        if getattr(experiment, name) is not None:
            settings[name] = getattr(experiment, name)
    for name in ("weighting", "batching", "diagnostics"):
        settings[name] = getattr(experiment, name)
    if validation is not None:
        settings["validation"] = validation
    return settings


def device_of(experiment: Experiment) -> Device:
    """The clients' link and speed: what is not given is the paper's.

    Args:
      experiment: which may say some of it.
    """
    given = {name: getattr(experiment, name) for name in ("download_mbps", "upload_mbps")}
    if experiment.device_gflops is not None:
        given["flops_per_second"] = 1e9 * experiment.device_gflops
    return Device()._replace(**{name: rate for name, rate in given.items() if rate is not None})


def _by_structure(member: Member, points: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The points in groups that can share a program."""
    known = hyperparameters(member.algorithm, member.wrappers)

    def structure(point: Mapping[str, Any]) -> str:
        return repr([(k, v) for k, v in point.items() if k not in SETTINGS and known[k].fixed])

    ordered = sorted(points, key=structure)  # which keeps the order of those that are alike
    return [list(group) for _, group in itertools.groupby(ordered, structure)]


def _program(
    experiment: Experiment,
    task: Task,
    member: Member,
    points: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    device: Device | None,
) -> Program:
    controller = experiment.controller

    def make(point: Mapping[str, Any]) -> Any:
        specs = replaced(member.algorithm, member.wrappers, point)
        return build(*specs, suggested=task.algorithms)

    chosen = dict(settings)
    make_trial = make
    if controller is not None and controls_rate(controller):
        rates = {_first_rate(member, point) for point in points}
        if len(rates) > 1 or None in rates:
            raise ValueError(
                f"{member.label}: controller {controller.name!r} needs one learning rate to start from,"
                f" such as {member.algorithm.name}(learning_rate=0.1), and none in the grid."
            )

        setting = build_controller(controller, rates.pop(), experiment.evaluate_every)

        def make_trial(point: Mapping[str, Any]) -> Any:
            return scheduled(lambda rate: make({**point, "learning_rate": rate}), setting)

    elif controller is not None:
        if "local_steps" not in settings:
            raise ValueError(
                f"controller {controller.name!r} needs local_steps to start from, but the task has"
                " local_epochs: give local_steps."
            )
        every = experiment.evaluate_every
        chosen["local_steps"] = build_controller(controller, settings["local_steps"], every)
    first = {k: v for k, v in points[0].items() if k not in SETTINGS}
    batch_size = checks.integer("batch_size", chosen.get("batch_size", 32), low=1)
    return Program(
        member,
        tuple(
            Trial(member.label, make_trial, point, seed)
            for point in points
            for seed in experiment.seeds
        ),
        chosen,
        prices(make(first), task, batch_size, device),
    )


def _first_rate(member: Member, point: Mapping[str, Any]) -> Any:
    given = hyperparameters(member.algorithm, member.wrappers)["learning_rate"].value
    return point.get("learning_rate", given)
