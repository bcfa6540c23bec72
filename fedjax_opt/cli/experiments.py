"""`fedjax-opt run`, `sweep` and `compare`: an experiment, from its description to its results.

fedjax-opt run digits "scaffold(learning_rate=0.1)" --rounds 100 --seeds 0,1,2
    one algorithm on a task
fedjax-opt run digits "fedgbo-adam(learning_rate=0.02) + proximal(mu=0.01)" --controller K-error
    with a wrapper around it, and local steps that follow the training error
fedjax-opt sweep digits fedavg --grid learning_rate=0.05,0.1,0.2,0.4 --seeds 0,1,2
    a grid, all of it one program; with --samples 20 --grid "learning_rate=loguniform(0.01,1)" at random
fedjax-opt compare digits fedavg scaffold fedacg --grid learning_rate=0.1,0.2,0.4 --seeds 0,1,2
    several algorithms, each at its best point, and a page that reports on them

Results are in a directory, written as they come: config.toml, about.json (versions, seeds, status),
history.jsonl, final models. After Ctrl-C, SIGTERM or a kill the same command with the same --output goes
on where it was.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import fedjax_opt as fo
from fedjax_opt.cli import dry_run
from fedjax_opt.cli.experiment_options import add_options, command_line, read_experiment
from fedjax_opt.cli.files import new_directory
from fedjax_opt.cli.interrupts import remembered
from fedjax_opt.cli.tables import duration, print_paragraph, print_table
from fedjax_opt.cli.together import open_directory
from fedjax_opt.experiments import playing, results
from fedjax_opt.experiments.config import Experiment, to_toml
from fedjax_opt.experiments.facts import at_edges, edge_note, facts
from fedjax_opt.experiments.recipes import load_task
from fedjax_opt.experiments.rundir import RunDirectory, read
from fedjax_opt.experiments.sweep import Progress, remaining
from fedjax_opt.training.progress import round_bar

_COMMANDS = {
    "run": "one algorithm on a task, with wrappers, a controller and several seeds",
    "sweep": "search the hyperparameters of an algorithm: a grid or random points, as one program",
    "compare": "several algorithms on a task, each at its best point, and a page about it",
}
#: What is said after Ctrl-C.
KEPT = "What was done is kept."
_FINISHED_KEPT = "Runs that were finished are kept; of several processes, others begin anew."
_SHOWN = 20  # points of a sweep in the terminal; all are in the directory
_LOGGED = 30.0  # seconds between two lines of progress where they go into a file


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
    setup = playing.set_up(experiment, load_task(experiment.task))
    known = facts(experiment, setup)
    data = setup.federation.clients.summary()  # type: ignore[union-attr]
    print(f"{experiment.task.name}: {data}; {known['test examples']} test examples.")
    if setup.federation.validation is not None:
        count = len(next(iter(setup.federation.validation.values())))
        print(f"The controller watches {count} examples of the test set, which are not tested on.")
    if options.dry_run:
        dry_run.print_plan(setup)
        return 0
    output = options.output or new_directory(f"{options.command}-{experiment.task.name}")
    try:
        with open_directory(output, to_toml(experiment), experiment.seeds, known) as directory:
            play(experiment, setup, directory)
    except KeyboardInterrupt:
        if fo.distributed.is_first():
            again = command_line(options.command, experiment, output)
            kept = _FINISHED_KEPT if fo.distributed.is_joined() else KEPT
            print(f"\n{kept} To go on: {again}", file=sys.stderr)
        raise
    if fo.distributed.is_first():
        _report(options.command, experiment, output)
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


def play(experiment: Experiment, setup: playing.Setup, directory: RunDirectory) -> None:
    """Plays what is missing, and shows how far it is."""
    total = setup.rounds * sum(len(program.trials) for program in setup.programs)
    missing = [remaining(p.trials, directory.records, setup.rounds) for p in setup.programs]
    finished = total - setup.rounds * sum(map(len, missing))
    bar = round_bar(
        total=total,
        initial=finished,
        desc=experiment.task.name,
        disable=not fo.distributed.is_first(),
        mininterval=0.1 if sys.stderr.isatty() else _LOGGED,
    )

    def show(progress: Progress) -> None:
        newest = progress.records[-1] if progress.records else {}
        shown = {k: f"{newest[k]:.4f}" for k in ("train_loss", "accuracy") if k in newest}
        bar.set_postfix({"algorithm": progress.trials[0].label, **shown}, refresh=False)
        bar.update(finished + progress.done - bar.n)
        check_interrupt()

    # Of several processes each would stop after other rounds, and wait for the others.
    with bar, remembered(patient=not fo.distributed.is_joined()) as check_interrupt:
        for _, found in playing.play(experiment, setup, directory, show):
            finished += setup.rounds * len(found.trials)
            for trial, failure in zip(found.trials, found.failures, strict=True):
                if failure:
                    bar.write(f"{playing.model_name(trial)}, seed {trial.seed}: {failure}")


def _report(command: str, experiment: Experiment, output: pathlib.Path) -> None:
    found = results.curves(read(output).records)
    by = rule_of(experiment, found)
    best = results.best(found, by)
    if command == "sweep":
        _print_points(found, best, by)
    _print_best(results.compare(best, by), edge_note(at_edges(experiment, best)))
    print(f"Results: {output}")
    if command == "compare":
        from fedjax_opt.cli.report import write

        try:
            print(f"Report: {write([output], output / 'report.html')}")
        except ImportError as error:
            print(f"Report: none. {error}")


def _print_points(
    found: list[results.Curves], best: list[results.Curves], by: results.Rule
) -> None:
    names = list(dict.fromkeys(name for one in found for name in one.hyperparameters))
    scores = [results.interval(results.score(one, by)) for one in found]
    sign = -1 if by.maximise and by.criterion != "rounds_to_target" else 1
    order = np.argsort(
        [np.nan_to_num(sign * one.mean, nan=np.inf) for one in scores], kind="stable"
    )
    rows = []
    for place in order[:_SHOWN]:
        one, (mean, half) = found[place], scores[place]
        rows.append(
            [
                *(_number(one.hyperparameters.get(name)) for name in names),
                "diverged" if np.isnan(mean) else f"{mean:.4g}",
                "" if np.isnan(half) or len(one.seeds) < 3 else f"{half:.4g}",
                str(len(one.seeds)) + (" *" if any(one is other for other in best) else ""),
            ]
        )
    print_table([*names, f"{by.criterion.replace('_', ' ')} {by.metric}", "±", "seeds"], rows)
    if len(found) > _SHOWN:
        print(f"... and {len(found) - _SHOWN} more in history.jsonl.")
    print("*: the best. ±: half of the 95% interval over three seeds or more.\n")


def _print_best(comparison: results.Comparison, notes: list[str]) -> None:
    print_table(*table(comparison))
    if any(row.hyperparameters for row in comparison.rows):
        for row in comparison.rows:
            chosen = ", ".join(f"{k}={_number(v)}" for k, v in row.hyperparameters.items())
            print(f"{row.label}: {chosen or 'as given'}")
    for sentence in notes:
        print_paragraph(sentence)


def table(comparison: results.Comparison) -> tuple[list[str], list[list[str]]]:
    """The head and the lines of a table of algorithms: how good, and at what cost."""
    by = comparison.by
    unit = "%" if by.percent else ""
    header = [
        "algorithm",
        f"last {by.metric}",
        "best",
        "MB up",
        "MB down",
        "GFLOP",
        "simulated time",
    ]
    if by.target is not None:
        header.insert(3, f"rounds to {by.text(by.target, 0)}{unit}")
    rows = []
    for row in comparison.rows:
        if not row.at_best:
            rows.append([row.label, "diverged", *[""] * (len(header) - 2)])
            continue
        last = results.interval([values[np.isfinite(values)][-1] for values in row.values])
        half = f" ± {by.text(last.half_width)}" if len(row.values) > 2 else ""
        line = [row.label, f"{by.text(last.mean)}{unit}{half}", f"{by.text(row.best)}{unit}"]
        if by.target is not None:
            line.append(str(int(row.to_match["rounds"])) if row.to_match else "not reached")
        spent = {cost: column[-1] for cost, column in row.spent.items()}
        for cost, size in (("bytes_up", 1e6), ("bytes_down", 1e6), ("flops", 1e9)):
            line.append(f"{spent[cost] / size:.1f}" if cost in spent else "")
        rows.append([*line, duration(spent["seconds"]) if "seconds" in spent else ""])
    return header, rows


def rule_of(experiment: Experiment, found: Sequence[results.Curves]) -> results.Rule:
    """By what an experiment judges curves."""
    return results.rule(
        found, experiment.metric, experiment.criterion, experiment.target, experiment.smoothing
    )


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
