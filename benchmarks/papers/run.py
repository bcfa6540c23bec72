"""A table or figure of a paper, with what the paper reports beside it.

python -m benchmarks.papers.run --list
    what there is
python -m benchmarks.papers.run fedgbo-table4 --quick
    on small data, in minutes; it should still show what the paper shows
python -m benchmarks.papers.run fedgbo-table4 --only cifar100 --output runs/table4
    the paper's own task, rounds and seeds; the same command goes on where it was stopped
python -m benchmarks.papers.run fedgbo-table4 --quick --dry-run
    what would run, and about how long

Each part is a run directory of its own, as `fedjax-opt compare` leaves it. Beside them are a page for
each group of parts, and reproduced.md: the table, and which orderings of the paper hold.
"""

import argparse
import pathlib
import shlex
import sys
from collections.abc import Sequence

import fedjax_opt as fo
from benchmarks.papers import catalogue, measured
from benchmarks.papers.entry import MEASURES, Entry, Part, prepared
from fedjax_opt.cli import dry_run, experiments
from fedjax_opt.cli.files import new_directory
from fedjax_opt.cli.tables import print_paragraph
from fedjax_opt.core import Federation
from fedjax_opt.core.tables import duration, table_lines
from fedjax_opt.experiments import playing
from fedjax_opt.experiments.comparing import facts, pricer
from fedjax_opt.experiments.comparison import read, report
from fedjax_opt.experiments.names import load_task
from fedjax_opt.experiments.pricing import Device
from fedjax_opt.experiments.specs import unknown

_TABLE = "reproduced.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the options, and runs; what cannot be done is said in a sentence."""
    fo.use_cpu_devices()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to reproduce; see --list")
    parser.add_argument("--list", action="store_true", help="print what there is, and end")
    parser.add_argument("--quick", action="store_true", help="small data, in a few minutes")
    parser.add_argument("--only", metavar="PART", help="only parts whose name starts with this")
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="DIR",
        help="where results go: a new directory, or one in which the same is to be continued"
        " (default: a new one in runs/)",
    )  # fmt: skip
    parser.add_argument(
        "--leaf", default="leaf", metavar="DIR",
        help="LEAF's repository with its data, which some tasks of full size read (default: leaf)",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true",
        help="print what would run, its memory, operations, bytes and an estimate of its time, and end",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except (ValueError, OSError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Plays the parts, and prints what came of them beside the paper's numbers."""
    if options.list:
        _print_list()
        return 0
    if options.name is None:
        raise ValueError("Say what to reproduce: --list shows what there is.")
    entry = catalogue.find(options.name)
    parts = _chosen(entry.parts(options.quick, options.leaf), options.only)
    print_paragraph(f"{entry.paper} {entry.where}. {entry.finds}")
    print_paragraph(entry.quick_differs if options.quick else entry.differs)
    output = options.output or new_directory(f"{entry.name}{'-quick' if options.quick else ''}")
    if not options.dry_run:
        _check_output(output, entry.parts(options.quick, options.leaf))
    federation, loaded, seconds, missing = None, None, 0.0, []
    for part in parts:
        if federation is None or loaded != part.experiment.task:
            try:
                federation, loaded = _load(options, part), part.experiment.task
            except (ValueError, OSError, ImportError) as error:
                # A plan of the other parts is better than none.
                missing.append(f"{part.name}: cannot be planned without its data. {error}")
                if not options.dry_run or len(missing) == len(parts):
                    raise
                print(missing[-1])
                continue
        seconds += _play(options, part, federation, output / part.name)
    if not options.dry_run:
        _report(options, entry, parts, output)
    elif len(parts) > 1:
        planned = f"{len(parts) - len(missing)} of {len(parts)}" if missing else f"All {len(parts)}"
        print(f"{planned} parts: about {duration(seconds)}, and compilation.")
    return 0


def _load(options: argparse.Namespace, part: Part) -> Federation:
    try:
        return load_task(part.experiment.task).federation
    except (ValueError, OSError) as error:
        if str(part.experiment.task.arguments.get("folder", "")).startswith(options.leaf):
            raise ValueError(
                f"{error} Give LEAF's repository, with this data set made in it, by --leaf DIR."
            ) from error
        raise


def _chosen(parts: Sequence[Part], only: str | None) -> list[Part]:
    if only is None:
        return list(parts)
    chosen = [part for part in parts if part.name.startswith(only)]
    if not chosen:
        names = [part.name for part in parts]
        raise unknown("part", only, names, f"There are {', '.join(names)}.")
    return chosen


def _play(
    options: argparse.Namespace, part: Part, federation: Federation, output: pathlib.Path
) -> float:
    """Plays a part; or says what it would take, and returns a guess at its seconds."""
    federation = prepared(part, federation)
    data = federation.clients.summary()  # type: ignore[union-attr]
    # At once: to derive what a large model costs takes a while.
    print(f"{part.name}: {data}", end="", flush=True)
    setup = playing.set_up(part.experiment, federation)
    if part.seconds_per_step is not None:
        first = setup.trials[0]
        rate = pricer([first], setup.device)(first).flops_per_step / part.seconds_per_step
        setup = setup._replace(device=Device(flops_per_second=rate))
    known = facts(setup.trials, setup.rounds)
    print(f"; {known['test examples']} test examples.")
    if options.dry_run:
        return dry_run.print_plan(setup)
    command = _command(options, output.parent)
    try:
        playing.play(part.experiment, setup, output, command)
    except KeyboardInterrupt:
        print(f"\n{experiments.KEPT} To go on: {command}", file=sys.stderr)
        raise
    return 0.0


def _report(
    options: argparse.Namespace,
    entry: Entry,
    parts: Sequence[Part],
    output: pathlib.Path,
) -> None:
    rows = measured.measure(entry, [(part, read(output / part.name).records) for part in parts])
    found = measured.verdicts(rows)
    header, lines = _table(entry, rows)
    table = table_lines(header, lines, (0, 1))
    print("\n".join(table))
    for sentence in found:
        print_paragraph(sentence)
    command = _command(options, output)
    for group in dict.fromkeys(part.group for part in parts):
        own = [part for part in parts if part.group == group]
        page = report(
            [read(output / part.name) for part in own],
            output / f"{group}.html",
            f"{entry.name}: {group}",
            next((row.label for row in rows if row.label == entry.baseline), None),
            notes=_notes(options, entry, group, found),
            commands=[command],
            beside=_beside(entry, [row for row in rows if row.part in own]),
        )
        print(f"Report: {page}")
    text = "\n".join(
        [
            f"# {entry.name}", "", f"{entry.paper} {entry.where}. {entry.finds}", "",
            entry.quick_differs if options.quick else entry.differs, "", f"    {command}", "",
            "```text", *table, "```", "", *(f"- {line}" for line in found),
        ]
    )  # fmt: skip
    (output / _TABLE).write_text(f"{text}\n", encoding="utf-8")
    print(f"Results: {output}")


def _table(entry: Entry, rows: Sequence[measured.Row]) -> tuple[list[str], list[list[str]]]:
    """A row for each algorithm; a measure of which the paper says nothing has one column."""
    told = [
        any(measured.cells(entry, row)[i][0] for row in rows) for i in range(len(entry.measures))
    ]
    header = ["part", "algorithm"]
    for name, any_told in zip(entry.measures, told, strict=True):
        header += [f"paper: {MEASURES[name]}", "here"] if any_told else [f"here: {MEASURES[name]}"]
    lines = []
    for row in rows:
        line = [row.part.group, row.label]
        for (paper, here), any_told in zip(measured.cells(entry, row), told, strict=True):
            line += [paper.replace("±", " ± "), here] if any_told else [here]
        lines.append(line)
    return header, lines


def _notes(
    options: argparse.Namespace, entry: Entry, group: str, found: Sequence[str]
) -> list[str]:
    """What a page says: the paper's finding, what differs here, and whether its orderings hold."""
    notes = [f"{entry.paper} {entry.where}: {entry.finds}"]
    notes += [entry.quick_differs if options.quick else entry.differs]
    return [*filter(None, notes), *(line for line in found if line.startswith(f"{group}: "))]


def _beside(entry: Entry, rows: Sequence[measured.Row]) -> list[list[str]]:
    """The lines of a page's own table: without the group, and with where the paper has its numbers."""
    header, lines = _table(entry, rows)
    cited = [row.part.beside if row.label in row.part.reported else "" for row in rows]
    return [
        [*line[1:], where]
        for line, where in zip([header, *lines], ["in the paper", *cited], strict=True)
    ]


def _command(options: argparse.Namespace, output: pathlib.Path) -> str:
    words = [
        "python",
        "-m",
        "benchmarks.papers.run",
        options.name,
        *(["--quick"] if options.quick else []),
    ]
    words += ["--only", options.only] if options.only else []
    words += [] if options.leaf == "leaf" else ["--leaf", options.leaf]
    return shlex.join([*words, "--output", str(output)])


def _check_output(output: pathlib.Path, parts: Sequence[Part]) -> None:
    """Refuses a directory that holds anything else."""
    pages = (f"{part.group}{ending}" for part in parts for ending in (".html", ".csv"))
    known = {_TABLE, *(part.name for part in parts), *pages}
    there = {path.name for path in output.iterdir()} if output.exists() else set()
    if there - known:
        raise ValueError(
            f"{output} must be empty, or hold the same to be continued, but it holds other files,"
            f" {min(there - known)} among them. Choose another directory."
        )


def _print_list() -> None:
    rows = [
        [
            name,
            entry.where,
            ", ".join(
                size for size, made in (("full", entry.full), ("--quick", entry.quick)) if made
            ),
        ]
        for name, entry in catalogue.ENTRIES.items()
    ]
    print("\n".join(table_lines(["name", "table or figure", "sizes"], rows, (0, 1, 2))))
    for paper in dict.fromkeys(entry.paper for entry in catalogue.ENTRIES.values()):
        own = [entry for entry in catalogue.ENTRIES.values() if entry.paper == paper]
        print()
        print_paragraph(paper)
        for entry in own:
            print_paragraph(f"{entry.name}: {entry.finds}", "  ", "    ")


if __name__ == "__main__":
    sys.exit(main())
