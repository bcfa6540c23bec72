"""Time two checkouts of the library in turns: W1 to W5, and a round of every algorithm on W2.

    python benchmarks/speed/before_after.py ../before . --output benchmarks/results/before_after.json

Each checkout has a process of its own for each row, and stays idle while the other one computes. Who
comes first changes from repeat to repeat. A row gives both medians of a round, the median of the ratios
of neighbours in time (after / before), and the same of compiling, for which processes are started afresh
and nothing is read from a cache.
"""

import argparse
import ast
import json
import os
import statistics
import sys
from pathlib import Path

from common import TASKS
from run import HERE, Worker, measure

SIDES = ("before", "after")


def algorithm_names() -> list[str]:
    """The rows of `algorithms.py`, read: importing it would start JAX here."""
    for node in ast.parse((HERE / "algorithms.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENTRIES":
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise ValueError("algorithms.py has no ENTRIES.")


def command_of(name: str, rounds: int | None) -> tuple[list[str], int]:
    """What runs a row, and how many rounds it times at once."""
    if name in TASKS:
        rounds = rounds or TASKS[name].rounds
        return [
            sys.executable,
            f"{HERE}/worker_ours.py",
            f"--task={name}",
            f"--rounds={rounds}",
        ], rounds
    rounds = rounds or 5
    return [
        sys.executable,
        f"{HERE}/algorithms.py",
        f"--worker={name}",
        f"--rounds={rounds}",
    ], rounds


def row(name: str, checkouts: dict[str, Path], args: argparse.Namespace) -> dict:
    """One row of the table."""
    command, rounds = command_of(name, args.rounds)
    compiled: dict[str, list[float]] = {side: [] for side in SIDES}
    workers: dict[str, Worker] = {}
    for repeat in range(args.compiles if name in TASKS else 1):
        for worker in workers.values():
            worker.quit()
        for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
            workers[side] = Worker(f"{name} {side}", command, checkouts[side])
            compiled[side].append(workers[side].info["compile_seconds"])
    workers = {side: workers[side] for side in SIDES}
    measure(workers, args.repeats)
    for worker in workers.values():
        worker.quit()
    seconds = {s: [run["seconds"] / rounds for run in workers[s].runs] for s in SIDES}
    return {
        "seconds": seconds,
        "compile_seconds": compiled,
        "ratio": ratio(seconds),
        "compile_ratio": ratio(compiled),
    }


def ratio(times: dict[str, list[float]]) -> float:
    pairs = zip(times["before"], times["after"], strict=True)
    return statistics.median(after / before for before, after in pairs)


def main() -> None:
    names = algorithm_names()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--only", default=",".join([*TASKS, *names]), help="tasks or algorithms (all)"
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed units of each (default: 9)")
    parser.add_argument("--compiles", type=int, default=5, help="of each task (default: 5)")
    parser.add_argument("--rounds", type=int, help="rounds in one timed unit")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    chosen = [name.strip() for name in args.only.split(",") if name.strip()]
    if unknown := set(chosen) - {*TASKS, *names}:
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}")
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    checkouts = {side: getattr(args, side).resolve() for side in SIDES}
    found = {}
    print(f"{'':16}{'before s':>11}{'after s':>11}{'ratio':>8}{'compile s':>18}{'ratio':>8}")
    for name in chosen:
        found[name] = row(name, checkouts, args)
        before, after = (statistics.median(found[name]["seconds"][s]) for s in SIDES)
        compiled = [statistics.median(found[name]["compile_seconds"][s]) for s in SIDES]
        print(
            f"{name:16}{before:11.4f}{after:11.4f}{found[name]['ratio']:8.3f}"
            f"{compiled[0]:9.2f}{compiled[1]:9.2f}{found[name]['compile_ratio']:8.3f}",
            flush=True,
        )
        if args.output:  # after each row, so that what is done is kept
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(json.dumps({"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
