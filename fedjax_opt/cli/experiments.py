"""`fedjax-opt run`, `sweep` and `compare`: an experiment, from its description to its results.

fedjax-opt run digits "scaffold(learning_rate=0.1)" --rounds 100 --seeds 0,1,2
    one algorithm on a task
fedjax-opt run digits "fedgbo-adam(learning_rate=0.02) + proximal(mu=0.01)" --controller K-error
    with a wrapper around it, and local steps that follow the training error
fedjax-opt sweep digits fedavg --grid learning_rate=0.05,0.1,0.2,0.4 --seeds 0,1,2
    a grid, all of it one program; with --samples 20 --grid "learning_rate=loguniform(0.01,1)" at random
fedjax-opt compare digits fedavg scaffold fedacg --grid learning_rate=0.1,0.2,0.4 --seeds 0,1,2
    several algorithms, each at its best point, and a page that reports on them
fedjax-opt compare --data letters.csv --client user --label y fedavg scaffold
    the same on data of one's own: natural clients, or --split "dirichlet(0.3)" --num-clients 100

Results are in a directory, written as they come: config.toml, about.json (versions, seeds, status),
history.jsonl, final models. After Ctrl-C, SIGTERM or a kill the same command with the same --output goes
on where it was.
"""

import argparse
import pathlib
import sys
from typing import Any

import fedjax_opt as fo
from fedjax_opt.cli import dry_run
from fedjax_opt.cli.experiment_options import add_options, command_line, read_experiment
from fedjax_opt.cli.files import new_directory
from fedjax_opt.cli.tables import print_paragraph
from fedjax_opt.experiments import playing
from fedjax_opt.experiments.comparing import facts
from fedjax_opt.experiments.config import to_toml
from fedjax_opt.experiments.experiment import Experiment
from fedjax_opt.experiments.names import load_task
from fedjax_opt.experiments.playing import sources_of

_COMMANDS = {
    "run": "one algorithm on a task, with wrappers, a controller and several seeds",
    "sweep": "search the hyperparameters of an algorithm: a grid or random points, as one program",
    "compare": "several algorithms on a task, each at its best point, and a page about it",
}
#: What is said after Ctrl-C.
KEPT = "What was done is kept."
_FINISHED_KEPT = "Runs that were finished are kept; of several processes, others begin anew."


def add_parser(commands: Any) -> None:
    """Adds the three commands."""
    for name, about in _COMMANDS.items():
        parser = commands.add_parser(
            name, help=about, description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add_options(parser, name)
        parser.set_defaults(run=run, command=name)


def run(options: argparse.Namespace) -> int:
    """Plays the experiment and prints what came of it."""
    experiment = read_experiment(options)
    _check(options.command, experiment)
    if options.print_config:
        print(to_toml(experiment), end="")
        return 0
    task = load_task(experiment.task)
    experiment, unsaid = playing.settled(experiment, task.federation)
    setup = playing.set_up(experiment, task.federation)
    known = facts(setup.trials, setup.rounds)
    for line in task.said:
        print(line)
    data = setup.federation.clients.summary()  # type: ignore[union-attr]
    print(f"{experiment.task.name}: {data}; {known.get('test examples', 'no')} test examples.")
    for line in unsaid:
        print_paragraph(line)
    if setup.federation.validation is not None and experiment.controller is not None:
        count = known["validation examples"]
        print(f"The controller watches {count} examples of the test set, which are not tested on.")
    if options.dry_run:
        dry_run.print_plan(setup)
        return 0
    name = experiment.task.name.rpartition(":")[2]
    if "path" in experiment.task.arguments:
        name = pathlib.Path(experiment.task.arguments["path"]).stem
    output = options.output or new_directory(f"{options.command}-{name}")
    command = command_line(options.command, experiment, output)
    try:
        said = [" ".join(line.split()).rstrip(".") for line in task.said]
        about = {
            "said": "\n\n".join(["; ".join(said), *unsaid]),
            "sources": sources_of(experiment, task),
            "title": name,
        }
        found = playing.play(experiment, setup, output, command, about)
    except KeyboardInterrupt:
        if fo.distributed.is_first():
            kept = _FINISHED_KEPT if fo.distributed.is_joined() else KEPT
            print(f"\n{kept} To go on: {command}", file=sys.stderr)
        raise
    if fo.distributed.is_first():
        print(found.table())
        print(f"Results: {output}")
        if options.command == "compare":
            try:
                print(f"Report: {found.report()}")
            except ImportError as error:
                print(f"Report: none. {error}")
    return 0


def _check(command: str, experiment: Experiment) -> None:
    if command == "run" and experiment.grid:
        raise ValueError("run has no grid: use `fedjax-opt sweep`, or leave the grid out.")
    if command == "sweep" and not experiment.grid:
        raise ValueError(
            "sweep needs a grid of at least one hyperparameter, such as --grid learning_rate=0.1,0.3."
        )
    if command != "compare" and len(experiment.algorithms) > 1:
        raise ValueError(
            f"{command} takes one algorithm, got {len(experiment.algorithms)}: use `fedjax-opt compare`."
        )
