"""`fedjax-opt report`: one page, in one file, about one or several runs.

fedjax-opt report runs/compare-digits
    writes runs/compare-digits/report.html
fedjax-opt report runs/a runs/b --output both.html --plots plots
    two runs on one page, and the plots as PNG and PDF files
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from fedjax_opt.cli.experiment_options import command_line
from fedjax_opt.experiments import summary
from fedjax_opt.experiments.config import Experiment, from_toml
from fedjax_opt.experiments.facts import at_edges, edge_note
from fedjax_opt.experiments.files import explained
from fedjax_opt.experiments.playing import device_of
from fedjax_opt.experiments.report import About, Curves, save_plots, write_report
from fedjax_opt.experiments.rundir import Results, read
from fedjax_opt.experiments.specs import unknown


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="one self-contained page about one or several runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="DIR", help="run directories")
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="FILE",
        help="the page (default: report.html in the first directory)",
    )  # fmt: skip
    parser.add_argument("--plots", type=pathlib.Path, metavar="DIR", help="PNG and PDF files, too")
    parser.add_argument("--title", help="of the page")
    parser.add_argument(
        "--baseline", metavar="LABEL", help="what the others are compared with (default: fedavg)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Writes the page."""
    page = options.output or options.runs[0] / "report.html"
    print(f"Report: {write(options.runs, page, options.title, options.baseline, options.plots)}")
    return 0


def write(
    runs: Sequence[pathlib.Path],
    page: pathlib.Path,
    title: str | None = None,
    baseline: str | None = None,
    plots: pathlib.Path | None = None,
    notes: Sequence[str] = (),
    commands: Sequence[str] = (),
    beside: Sequence[Sequence[str]] = (),
) -> pathlib.Path:
    """Writes a page about the runs, with what else is given of an `About`; returns where it is."""
    found = [(path, read(path)) for path in runs]
    experiments = [from_toml(results.config, str(path / "config.toml")) for path, results in found]
    tasks = {str(experiment.task) for experiment in experiments}
    if len(tasks) > 1:
        raise ValueError(
            f"The runs of a report must be of one task, got {', '.join(sorted(tasks))}."
        )
    curves: list[Curves] = []
    edges: list[str] = []
    for experiment, (path, results) in zip(experiments, found, strict=True):
        best = summary.best_of_each(
            experiment, summary.judge(experiment, summary.outcomes(results.records))
        )
        edges += at_edges(experiment, [judged.outcome for judged in best])
        for judged in best:
            one = summary.to_curves(experiment, judged.outcome)
            if one.label in {other.label for other in curves}:
                one = one._replace(label=f"{one.label} ({path.name})")
            curves.append(one)
    if not curves:
        raise ValueError(f"{runs[0]} holds no evaluation yet: there is nothing to report on.")
    labels = [one.label for one in curves]
    if baseline is not None and baseline not in labels:
        raise unknown("--baseline", baseline, labels, f"There are {', '.join(labels)}.")
    about = _about(experiments, found, title, baseline or _baseline(curves))
    about = about._replace(
        notes=[*notes, *edge_note(edges), *about.notes],
        commands=[*commands] or about.commands,
        beside=beside,
    )
    if plots is not None:
        save_plots(plots, about, curves)
    with explained(page):
        return write_report(page, about, curves)


def _baseline(curves: Sequence[Curves]) -> str:
    labels = [one.label for one in curves]
    return next((label for label in labels if label.lower() == "fedavg"), labels[0])


def _about(
    experiments: Sequence[Experiment],
    found: Sequence[tuple[pathlib.Path, Results]],
    title: str | None,
    baseline: str,
) -> About:
    first, about = experiments[0], found[0][1].about
    notes = [
        f"{path.name} is {results.about['status']}: what it has done so far is shown."
        for path, results in found
        if results.about["status"] != "finished"
    ]
    notes.append(
        "Bytes, operations and the simulated time are derived from the algorithms: see"
        " fedjax_opt.experiments.pricing."
    )
    links = {device_of(experiment)[:2] for experiment in experiments}
    if len(links) == 1:
        notes[-1] += " The simulated link has {:g} Mbit/s down and {:g} Mbit/s up.".format(
            *links.pop()
        )
    commands = [
        command_line(_command(experiment), experiment, path.name)
        for experiment, (path, _) in zip(experiments, found, strict=True)
    ]
    machine = about["machine"]
    return About(
        title or f"{first.task.name}: {_count(sum(len(one.algorithms) for one in experiments))}",
        facts=_facts(experiments, found),
        commands=commands,
        versions={**about["versions"], "device": f"{machine['devices']} x {machine['device']}"},
        notes=notes,
        baseline=baseline,
        target=first.target,
        smoothing=first.smoothing,
    )


def _facts(
    experiments: Sequence[Experiment], found: Sequence[tuple[pathlib.Path, Results]]
) -> dict[str, str]:
    """What the runs have in common; a directory of an earlier version has only what was given."""
    told = [
        {"task": experiment.task, "seeds": len(experiment.seeds), "rounds": experiment.rounds,
         "cohort": experiment.cohort_size, "local steps": experiment.local_steps,
         "local epochs": experiment.local_epochs, "batch size": experiment.batch_size,
         **results.about.get("facts", {}), "controller": experiment.controller}
        for experiment, (_, results) in zip(experiments, found, strict=True)
    ]  # fmt: skip
    return {
        name: str(value)
        for name, value in told[0].items()
        if value is not None and all(other.get(name) == value for other in told)
    }


def _count(algorithms: int) -> str:
    return f"{algorithms} algorithm{'' if algorithms == 1 else 's'}"


def _command(experiment: Experiment) -> str:
    if len(experiment.algorithms) > 1:
        return "compare"
    return "sweep" if experiment.grid else "run"
