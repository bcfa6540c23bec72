"""Time FedAvg rounds of fedjax_opt, FedJAX and PyTorch, and the machine's matrix products, in one run.

    python benchmarks/speed/run.py --output benchmarks/results/speed.json

Every contestant is a process of its own and stays idle while another one computes. The timed
units are interleaved, in an order that rotates, so that all of them see the same machine.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from common import TASKS, Task

HERE = Path(__file__).resolve().parent
LOSS_TOLERANCE = 0.05  # relative, between contestants after the same number of rounds
PAUSE = 0.2  # seconds between two units, for thread pools to fall asleep


class Contestant(NamedTuple):
    """The worker of a contestant, its options, its environment, and the tasks it can do."""

    worker: str
    options: tuple[str, ...] = ()
    environment: str = ""  # one under .venvs; else the running interpreter
    tasks: tuple[str, ...] = tuple(TASKS)


CONTESTANTS = {
    "ours": Contestant("ours"),
    "ours-ids": Contestant("ours", ("--ids",), tasks=("w1",)),
    "fedjax": Contestant("fedjax", environment="fedjax"),
    "torch": Contestant("torch", environment="torch"),
    "torch-processes": Contestant("torch", ("--processes",), environment="torch"),
    "matmul": Contestant("matmul"),
}
PEERS = ("fedjax", "torch", "torch-processes")


class Worker:
    """A contestant's process; see `common.serve` for what it answers."""

    def __init__(self, name: str, command: list[str], checkout: Path | None = None) -> None:
        self.name = name
        env = dict(os.environ)
        if checkout is not None:  # whose library it is to import
            env["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(checkout), env.get("PYTHONPATH")])
            )
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.info = self._answer()
        self.runs: list[dict] = []

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"worker {self.name} ended with code {self.process.wait()}; see its error")
        return json.loads(line)

    def run(self) -> None:
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        self.runs.append(self._answer())

    def quit(self) -> None:
        self.process.communicate("quit\n")


def started(name: str, python: str, task: str, rounds: int) -> Worker:
    """A contestant's worker; ours imports the library of this checkout."""
    contestant = CONTESTANTS[name]
    script = f"{HERE}/worker_{contestant.worker}.py"
    command = [python, script, f"--task={task}", f"--rounds={rounds}", *contestant.options]
    return Worker(name, command, HERE.parents[1] if contestant.worker == "ours" else None)


def interpreter(environment: str, base: str) -> str:
    """The interpreter of a peer's own environment, made afresh when its pins have changed."""
    if not environment:
        return sys.executable
    requirements = HERE / f"requirements-{environment}.txt"
    folder = HERE / ".venvs" / environment
    stamp = folder / "installed.txt"
    wanted = f"{subprocess.check_output([base, '-V'], text=True)}{requirements.read_text()}"
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making the environment of {environment}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(requirements)], check=True)
        stamp.write_text(wanted)
    return str(python)


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def measure(workers: dict[str, Worker], repeats: int) -> None:
    names = list(workers)
    for i in range(repeats):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            time.sleep(PAUSE)
            workers[name].run()


def losses_agree(workers: list[Worker]) -> bool:
    """Whether training moved, and equally far for every contestant at every repeat."""
    fell = all(w.runs[-1]["loss"] < w.info["first_loss"] for w in workers)
    per_repeat = zip(*([r["loss"] for r in w.runs] for w in workers), strict=True)
    return fell and all(max(ls) - min(ls) <= LOSS_TOLERANCE * max(ls) for ls in per_repeat)


def summary(worker: Worker, rounds: int) -> dict:
    seconds = [run["seconds"] / rounds for run in worker.runs]
    return {
        "seconds": seconds,
        "median": statistics.median(seconds),
        "min": min(seconds),
        "max": max(seconds),
        "compile_seconds": worker.info["compile_seconds"],
        "peak_mib": worker.runs[-1]["peak_mib"],
        "versions": worker.info["versions"],
    }


def run_task(name: str, task: Task, pythons: dict[str, str], repeats: int, rounds: int) -> dict:
    workers = {
        c: started(c, python, name, rounds)
        for c, python in pythons.items()
        if name in CONTESTANTS[c].tasks
    }
    measure(workers, repeats)
    for worker in workers.values():
        worker.quit()
    trainers = [w for c, w in workers.items() if c != "matmul"]
    result = {
        "task": task.describe(),
        "repeats": repeats,
        "rounds_per_unit": rounds,
        "matmul_gflop_per_round": task.matmul_flops / 1e9,
        "six_n_gflop_per_round": task.six_n_flops / 1e9,
        "contestants": {w.name: summary(w, rounds) for w in trainers},
        "losses": {w.name: [r["loss"] for r in w.runs] for w in trainers},
        "losses_agree": losses_agree(trainers),
    }
    rows = result["contestants"]
    if "matmul" in workers:
        worker = workers["matmul"]
        rates = {
            kind: statistics.median(r["gflops"][kind] for r in worker.runs)
            for kind in ("numpy", "jax")
        }
        best = max(rates, key=rates.get)
        fastest = max(max(r["gflops"].values()) for r in worker.runs)
        result["matmul"] = summary(worker, 1) | {
            "gflops": rates,
            "best": best,
            "fastest_gflops": fastest,
        }
    peer = min(set(rows) & set(PEERS), key=lambda c: rows[c]["median"], default=None)
    result["best_peer"] = peer
    for row in rows.values():
        row["gflops"] = task.matmul_flops / row["median"] / 1e9
        row["six_n_gflops"] = task.six_n_flops / row["median"] / 1e9
        if "matmul" in workers:
            row["fraction_of_matmul"] = row["gflops"] / rates[best]
            row["six_n_fraction_of_matmul"] = row["six_n_gflops"] / rates[best]
            row["fastest_fraction_of_matmul"] = task.matmul_flops / row["min"] / 1e9 / fastest
        if peer:
            row["times_best_peer"] = rows[peer]["median"] / row["median"]
    return result


def show(name: str, task: Task, result: dict) -> None:
    print(
        f"\n{name}: {task.describe()}; {task.matmul_flops / 1e9:.2f} GFLOP of matrix products a "
        f"round (6N: {task.six_n_flops / 1e9:.2f})"
    )
    print(
        f"{'':16}{'median s':>10}{'min':>9}{'max':>9}{'x peer':>8}{'GFLOP/s':>9}"
        f"{'(6N)':>8}{'of matmul':>11}{'(6N)':>8}{'compile s':>11}{'peak MiB':>10}"
    )
    for contestant, row in result["contestants"].items():
        times, fraction = row.get("times_best_peer"), row.get("fraction_of_matmul")
        six_n = row.get("six_n_fraction_of_matmul")
        print(
            f"{contestant:16}{row['median']:10.4f}{row['min']:9.4f}{row['max']:9.4f}"
            f"{'-' if times is None else format(times, '.2f'):>8}"
            f"{row['gflops']:9.1f}{row['six_n_gflops']:8.1f}"
            f"{'-' if fraction is None else format(fraction, '.1%'):>11}"
            f"{'-' if six_n is None else format(six_n, '.1%'):>8}"
            f"{row['compile_seconds']:11.2f}{row['peak_mib']:10.0f}"
        )
    if "matmul" in result:
        rates = result["matmul"]["gflops"]
        print(
            f"matmul 1536, float32, all cores, median GFLOP/s: numpy {rates['numpy']:.1f}, "
            f"jax {rates['jax']:.1f}; fastest {result['matmul']['fastest_gflops']:.1f}"
        )
    last = ", ".join(f"{c} {losses[-1]:.3f}" for c, losses in result["losses"].items())
    print(f"train loss at the end: {last}{'' if result['losses_agree'] else '  DO NOT AGREE'}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tasks", default=",".join(TASKS), help=f"comma-separated, of {', '.join(TASKS)} (all)"
    )
    parser.add_argument(
        "--contestants",
        default=",".join(CONTESTANTS),
        help=f"comma-separated, of {', '.join(CONTESTANTS)} (default: all)",
    )
    parser.add_argument(
        "--repeats", type=int, default=7, help="timed units of each contestant (default: 7)"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds in one timed unit (default: 20 of w1, 2 of w2, else 1)"
    )
    parser.add_argument(
        "--output", type=Path, help="JSON file to write, such as benchmarks/results/speed.json"
    )
    parser.add_argument(
        "--merge", action="store_true", help="keep what the file has of other tasks"
    )
    parser.add_argument(
        "--peer-python",
        default=sys.executable,
        help="interpreter the peers' environments are made with (default: the one running this)",
    )
    args = parser.parse_args()
    tasks, contestants = args.tasks.split(","), args.contestants.split(",")
    if unknown := (set(tasks) - set(TASKS)) | (set(contestants) - set(CONTESTANTS)):
        parser.error(f"unknown task or contestant: {', '.join(sorted(unknown))}")
    if args.repeats < 1 or (args.rounds is not None and args.rounds < 1):
        parser.error("--repeats and --rounds are at least 1")
    if not set(contestants) - {"matmul"}:
        parser.error("--contestants needs one that trains")
    if args.merge and not args.output:
        parser.error("--merge needs --output")

    pythons = {c: interpreter(CONTESTANTS[c].environment, args.peer_python) for c in contestants}
    report = {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "tasks": {},
    }
    if args.merge and args.output.exists():
        saved = json.loads(args.output.read_text())
        if saved["machine"] != report["machine"]:
            parser.error(f"--merge: {args.output} is of another machine")
        report["tasks"] = saved["tasks"]
    print(f"{report['machine']['cpu']}, {os.cpu_count()} cores; {args.repeats} repeats")
    if os.getloadavg()[0] > 0.5:
        print(f"the machine is busy: load average {os.getloadavg()[0]:.2f}")
    for name in tasks:
        load = os.getloadavg()[0]
        rounds = args.rounds or TASKS[name].rounds
        result = run_task(name, TASKS[name], pythons, args.repeats, rounds)
        report["tasks"][name] = result | {"load_average_before": load}
        show(name, TASKS[name], result)
        if args.output:  # after each task, so that what is done is kept
            args.output.parent.mkdir(parents=True, exist_ok=True)
            done = {task: report["tasks"][task] for task in TASKS if task in report["tasks"]}
            args.output.write_text(json.dumps(report | {"tasks": done}, indent=2) + "\n")
    if not all(report["tasks"][name]["losses_agree"] for name in tasks):
        print("the contestants' losses do not agree: they did not do the same work")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
