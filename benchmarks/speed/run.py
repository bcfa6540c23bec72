"""Time FedAvg rounds of fedjax_opt and of FedJAX, and the machine's matrix products, in one run.

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

from common import TASKS, Task

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements-fedjax.txt"
CONTESTANTS = ("ours", "fedjax", "matmul")
LOSS_TOLERANCE = 0.05  # relative, between contestants after the same number of rounds
PAUSE = 0.2  # seconds between two units, for thread pools to fall asleep


class Worker:
    """A contestant's process; see `common.serve` for what it answers."""

    def __init__(self, name: str, python: str, task: str, rounds: int) -> None:
        self.name = name
        command = [python, f"{HERE}/worker_{name}.py", f"--task={task}", f"--rounds={rounds}"]
        env = dict(os.environ)
        if name == "ours":  # the library of this checkout
            env["PYTHONPATH"] = os.pathsep.join(
                filter(None, [str(HERE.parents[1]), env.get("PYTHONPATH")])
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


def fedjax_python(base: str) -> str:
    """The interpreter of FedJAX's own environment, made afresh when its pins have changed."""
    folder = HERE / ".venvs" / "fedjax"
    stamp = folder / "installed.txt"
    wanted = f"{subprocess.check_output([base, '-V'], text=True)}{REQUIREMENTS.read_text()}"
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("making FedJAX's environment", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS)], check=True)
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


def run_task(name: str, task: Task, pythons: dict[str, str], args: argparse.Namespace) -> dict:
    workers = {c: Worker(c, python, name, args.rounds) for c, python in pythons.items()}
    measure(workers, args.repeats)
    for worker in workers.values():
        worker.quit()
    trainers = [w for c, w in workers.items() if c != "matmul"]
    result = {
        "matmul_gflop_per_round": task.matmul_flops / 1e9,
        "six_n_gflop_per_round": task.six_n_flops / 1e9,
        "contestants": {w.name: summary(w, args.rounds) for w in trainers},
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
    for row in rows.values():
        row["gflops"] = task.matmul_flops / row["median"] / 1e9
        row["six_n_gflops"] = task.six_n_flops / row["median"] / 1e9
        if "matmul" in workers:
            row["fraction_of_matmul"] = row["gflops"] / rates[best]
            row["fastest_fraction_of_matmul"] = task.matmul_flops / row["min"] / 1e9 / fastest
        if "fedjax" in rows:
            row["times_fedjax"] = rows["fedjax"]["median"] / row["median"]
    return result


def show(name: str, task: Task, result: dict) -> None:
    print(
        f"\n{name}: {task.clients} clients, K={task.local_steps}, batch {task.batch}, "
        f"MLP {'-'.join(map(str, task.layers))}; {task.matmul_flops / 1e9:.2f} GFLOP of matrix "
        f"products a round (6N: {task.six_n_flops / 1e9:.2f})"
    )
    print(
        f"{'':8}{'median s':>10}{'min':>9}{'max':>9}{'x FedJAX':>10}{'GFLOP/s':>9}"
        f"{'(6N)':>8}{'of matmul':>11}{'compile s':>11}{'peak MiB':>10}"
    )
    for contestant, row in result["contestants"].items():
        times, fraction = row.get("times_fedjax"), row.get("fraction_of_matmul")
        print(
            f"{contestant:8}{row['median']:10.4f}{row['min']:9.4f}{row['max']:9.4f}"
            f"{'-' if times is None else format(times, '.2f'):>10}"
            f"{row['gflops']:9.1f}{row['six_n_gflops']:8.1f}"
            f"{'-' if fraction is None else format(fraction, '.1%'):>11}"
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
        "--tasks", default="w2", help=f"comma-separated, of {', '.join(TASKS)} (default: w2)"
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
        "--rounds", type=int, default=5, help="rounds in one timed unit (default: 5)"
    )
    parser.add_argument(
        "--output", type=Path, help="JSON file to write, such as benchmarks/results/speed.json"
    )
    parser.add_argument(
        "--fedjax-python",
        default=sys.executable,
        help="interpreter FedJAX's environment is made with (default: the one running this)",
    )
    args = parser.parse_args()
    tasks, contestants = args.tasks.split(","), args.contestants.split(",")
    if unknown := (set(tasks) - set(TASKS)) | (set(contestants) - set(CONTESTANTS)):
        parser.error(f"unknown task or contestant: {', '.join(sorted(unknown))}")
    if args.repeats < 1 or args.rounds < 1:
        parser.error("--repeats and --rounds are at least 1")
    if not {"ours", "fedjax"} & set(contestants):
        parser.error("--contestants needs ours or fedjax")

    pythons = dict.fromkeys(contestants, sys.executable)
    if "fedjax" in pythons:
        pythons["fedjax"] = fedjax_python(args.fedjax_python)
    report = {
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "repeats": args.repeats,
        "rounds_per_unit": args.rounds,
        "load_average_before": os.getloadavg()[0],
        "tasks": {},
    }
    print(f"{report['machine']['cpu']}, {os.cpu_count()} cores; {args.repeats} repeats")
    if report["load_average_before"] > 0.5:
        print(f"the machine is busy: load average {report['load_average_before']:.2f}")
    for name in tasks:
        report["tasks"][name] = run_task(name, TASKS[name], pythons, args)
        show(name, TASKS[name], report["tasks"][name])
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(report, indent=2) + "\n")
        print(f"\nwrote {args.output}")
    if not all(result["losses_agree"] for result in report["tasks"].values()):
        print("the contestants' losses do not agree: they did not do the same work")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
