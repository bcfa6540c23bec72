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
from fedjax_opt.cli.experiments import rule_of
from fedjax_opt.experiments.config import Experiment, from_toml
from fedjax_opt.experiments.facts import at_edges, edge_note
from fedjax_opt.experiments.files import explained
from fedjax_opt.experiments.playing import device_of
from fedjax_opt.experiments.report import About, save_plots, write_report
from fedjax_opt.experiments.results import Curves, Rule, compare, settings_differ
from fedjax_opt.experiments.results import best as best_of
from fedjax_opt.experiments.results import curves as all_curves
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
    rules: list[Rule] = []
    owners: list[int] = []
    for place, (experiment, (path, results)) in enumerate(zip(experiments, found, strict=True)):
        own = all_curves(results.records)
        rules.append(rule_of(experiment, own))
        chosen = best_of(own, rules[-1])
        edges += at_edges(experiment, chosen)
        for one in chosen:
            if one.label in {other.label for other in curves}:
                one = one._replace(label=f"{one.label} ({path.name})")
            curves.append(one)
            owners.append(place)
    if not any(len(one.rounds) for one in curves):
        raise ValueError(f"{runs[0]} holds no evaluation yet: there is nothing to report on.")
    if len({one._replace(criterion="best") for one in rules}) > 1:
        raise ValueError(
            "The runs of a report must have one metric, target and smoothing, got"
            f" {'; '.join(dict.fromkeys(str(tuple(one)) for one in rules))}."
        )
    labels = [one.label for one in curves]
    if baseline is not None and baseline not in labels:
        raise unknown("--baseline", baseline, labels, f"There are {', '.join(labels)}.")
    about = _about(experiments, found, owners, title, baseline)
    about = about._replace(
        notes=[*notes, *edge_note(edges), *about.notes],
        commands=[*commands] or about.commands,
        beside=beside,
    )
    if plots is not None:
        save_plots(plots, compare(curves, rules[0], baseline))
    with explained(page):
        return write_report(page, about, curves, rules[0])


def _about(
    experiments: Sequence[Experiment],
    found: Sequence[tuple[pathlib.Path, Results]],
    owners: Sequence[int],
    title: str | None,
    baseline: str | None,
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
        command_line(_command(experiment, path), experiment, path.name)
        for experiment, (path, _) in zip(experiments, found, strict=True)
    ]
    machine = about["machine"]
    same, differing = settings_differ(_told(experiments, found))
    return About(
        title or f"{first.task.name}: {_count(sum(len(one.algorithms) for one in experiments))}",
        facts=same,
        commands=commands,
        versions={**about["versions"], "device": f"{machine['devices']} x {machine['device']}"},
        notes=notes,
        baseline=baseline,
        differing={name: [values[i] for i in owners] for name, values in differing.items()},
    )


def _told(
    experiments: Sequence[Experiment], found: Sequence[tuple[pathlib.Path, Results]]
) -> list[dict[str, Any]]:
    """The settings of each run; a directory of an earlier version has only what was given."""
    return [
        {"task": str(experiment.task), "seeds": len(experiment.seeds), "rounds": experiment.rounds,
         "cohort": experiment.cohort_size, "local steps": experiment.local_steps,
         "local epochs": experiment.local_epochs, "batch size": experiment.batch_size,
         **results.about.get("facts", {}),
         "controller": experiment.controller and str(experiment.controller),
         "weighting": experiment.weighting, "batching": experiment.batching}
        for experiment, (_, results) in zip(experiments, found, strict=True)
    ]  # fmt: skip


def _count(algorithms: int) -> str:
    return f"{algorithms} algorithm{'' if algorithms == 1 else 's'}"


def _command(experiment: Experiment, path: pathlib.Path) -> str:
    """The command that made a run, as far as its directory tells."""
    if len(experiment.algorithms) > 1 or (path / "report.html").exists():
        return "compare"
    return "sweep" if experiment.grid else "run"
