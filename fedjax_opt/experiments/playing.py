"""Plays an experiment: every algorithm, every point of its grid, every seed; results as they come.

Trials of one algorithm share a program, unless they differ in what decides its structure (GHBM's tau):
then there is a program for each such value.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import Algorithm, Federation, checks, epochs, scheduled
from fedjax_opt.core.federation import Epochs
from fedjax_opt.experiments.experiment import SETTINGS, Experiment, Member, grid_of
from fedjax_opt.experiments.hyperparameters import hyperparameters, replaced
from fedjax_opt.experiments.pricing import Device, Prices, priced, prices
from fedjax_opt.experiments.recipes import (
    WATCHING,
    build,
    build_controller,
    controls_rate,
    suggested_for,
)
from fedjax_opt.experiments.rundir import RunDirectory
from fedjax_opt.experiments.search import Range, expand, sample
from fedjax_opt.experiments.sweep import Progress, Trial, Trials, run_trials
from fedjax_opt.experiments.trials import finished
from fedjax_opt.experiments.unfinished import Unfinished


class Program(NamedTuple):
    """Trials of one algorithm that are played together.

    Attributes:
      member: the algorithm.
      trials: its points and seeds.
      federation: what it learns on.
      price: what a client costs in a round.
    """

    member: Member
    trials: tuple[Trial, ...]
    federation: Federation
    price: Prices


class Setup(NamedTuple):
    """An experiment that is ready to be played.

    Attributes:
      rounds: of each trial.
      federation: the task's, with what the experiment says in place of the task. What controllers
        watch is taken out of the test set. Those of the programs have the controllers in addition.
      programs: what is compiled, one after the other.
    """

    rounds: int
    federation: Federation
    programs: tuple[Program, ...]


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


def set_up(experiment: Experiment, federation: Federation, device: Device | None = None) -> Setup:
    """All that is to be compiled and played for an experiment.

    Args:
      experiment: the experiment.
      federation: its task, loaded.
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
    federation = _changed(experiment, federation)
    suggested = suggested_for(experiment.task)
    device = device or device_of(experiment)
    programs = [
        _program(experiment, federation, member, points, suggested.algorithms, device)
        for member in experiment.algorithms
        for points in _by_structure(member, points_of(experiment, member))
    ]
    rounds = suggested.rounds if experiment.rounds is None else experiment.rounds
    return Setup(rounds, federation, tuple(programs))


def play(
    experiment: Experiment,
    setup: Setup,
    directory: RunDirectory,
    on_chunk: Callable[[Progress], Any] | None = None,
) -> Iterator[tuple[Program, Trials]]:
    """Plays what the directory does not hold yet, program by program.

    Args:
      experiment: the experiment.
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
      >>> setup = ex.set_up(experiment, ex.load_task(experiment.task))
      >>> home = pathlib.Path(tempfile.mkdtemp()) / "run"
      >>> with ex.RunDirectory(home, ex.to_toml(experiment), experiment.seeds) as directory:
      ...     for program, found in ex.play(experiment, setup, directory):
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
            program.federation, program.trials, rounds=setup.rounds,
            diagnostics=experiment.diagnostics, evaluate_every=experiment.evaluate_every,
            on_chunk=noted(program), unfinished=unfinished,
        )  # fmt: skip
        yield program, found


def model_name(trial: Trial) -> str:
    """What the final model of a trial is called: the label, and the point if there is one."""
    point = ", ".join(f"{name}={value}" for name, value in trial.hyperparameters.items())
    return f"{trial.label} ({point})" if point else trial.label


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


def _by_structure(member: Member, points: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The points in groups that can share a program."""
    known = hyperparameters(member.algorithm, member.wrappers)

    def structure(point: Mapping[str, Any]) -> str:
        return repr([(k, v) for k, v in point.items() if k not in SETTINGS and known[k].fixed])

    ordered = sorted(points, key=structure)  # which keeps the order of those that are alike
    return [list(group) for _, group in itertools.groupby(ordered, structure)]


def _program(
    experiment: Experiment,
    federation: Federation,
    member: Member,
    points: Sequence[dict[str, Any]],
    suggested: Mapping[str, Algorithm],
    device: Device,
) -> Program:
    controller, every = experiment.controller, experiment.evaluate_every

    def make(point: Mapping[str, Any]) -> Any:
        specs = replaced(member.algorithm, member.wrappers, point)
        return build(*specs, suggested=suggested)

    make_trial = make
    if controller is not None and controls_rate(controller):
        rates = {_first_rate(member, point) for point in points}
        if len(rates) > 1 or None in rates:
            raise ValueError(
                f"{member.label}: controller {controller.name!r} needs one learning rate to start from,"
                f" such as {member.algorithm.name}(learning_rate=0.1), and none in the grid."
            )

        setting = build_controller(controller, rates.pop(), every)

        def make_trial(point: Mapping[str, Any]) -> Any:
            return scheduled(lambda rate: make({**point, "learning_rate": rate}), setting)

    elif controller is not None:
        if isinstance(federation.local_steps, Epochs):
            raise ValueError(
                f"controller {controller.name!r} needs local_steps to start from, but the task has"
                " local_epochs: give local_steps."
            )
        setting = build_controller(controller, federation.local_steps, every)
        federation = federation.replace(local_steps=setting)
    first = {k: v for k, v in points[0].items() if k not in SETTINGS}
    return Program(
        member,
        tuple(
            Trial(member.label, make_trial, point, seed)
            for point in points
            for seed in experiment.seeds
        ),
        federation,
        prices(make(first), federation, device),
    )


def _first_rate(member: Member, point: Mapping[str, Any]) -> Any:
    given = hyperparameters(member.algorithm, member.wrappers)["learning_rate"].value
    return point.get("learning_rate", given)
