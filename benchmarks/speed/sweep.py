"""Time a sweep as one program against the same runs one after the other.

    python benchmarks/speed/sweep.py --output benchmarks/results/speed_sweep.json

16 learning rates x 4 seeds on W1, 100 rounds each, with texts as token ids (or --dense bags of words).
Every way is a command of its own, timed from its start to its end, imports and compilation included:

    one program    `fedjax_opt.experiments.run_trials`
    one process    `fo.simulate` 64 times, which share the compiled program
    separate       `fo.simulate` once; --sample of the 64 commands are measured, and their mean counts
                   64 times

The final losses of the first two must agree for every trial.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import common

RATES = [0.001 * 2 ** (0.6 * i) for i in range(16)]  # 0.001 to 0.5
SEEDS = range(4)
ROUNDS = 100
HERE = pathlib.Path(__file__).resolve().parent


def build(hyperparameters):
    import fedjax_opt as fo

    return fo.fedavg(fo.optimizers.sgd(hyperparameters["learning_rate"]))


def worker(kind: str, ids: bool, first: int) -> dict:
    """What one command does; `first` is the trial of a separate one."""
    import fedjax_opt as fo

    fo.use_cpu_devices()  # before JAX starts
    import ours

    from fedjax_opt.experiments import Trial, run_trials

    task = common.TASKS["w1"]
    data, model = fo.ClientData.from_list(common.client_data(task, ids)), ours.model_of(task, ids)
    federation = fo.Federation(
        model, data, cohort=task.clients, local_steps=task.local_steps, batch_size=task.batch
    )
    points = [({"learning_rate": rate}, seed) for rate in RATES for seed in SEEDS]
    start = time.perf_counter()
    if kind == "program":
        trials = [Trial("fedavg", build(point), federation, seed, point) for point, seed in points]
        found = run_trials(trials, ROUNDS, evaluate_every=ROUNDS)
        losses = [float(history["loss"][-1]) for history in found.history]
    else:
        chosen = points if kind == "process" else points[first : first + 1]
        federation = federation.replace(clients=fo.place(data))
        losses = []
        for point, seed in chosen:
            result = fo.simulate(
                build(point), federation, ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False
            )
            losses.append(float(result.history["loss"][-1]))
    return {"losses": losses, "seconds_without_imports": time.perf_counter() - start}


def command(kind: str, ids: bool, first: int = 0) -> dict:
    words = [sys.executable, __file__, "--worker", kind, "--first", str(first)]
    paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    start = time.perf_counter()
    done = subprocess.run(
        words + ([] if ids else ["--dense"]), check=True, capture_output=True, text=True, env=env
    )
    seconds = time.perf_counter() - start
    return {"seconds": seconds} | json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dense", action="store_true", help="bags of words of 5,000 numbers")
    parser.add_argument("--sample", type=int, default=4, help="separate commands measured")
    parser.add_argument("--repeats", type=int, default=1, help="of the first two")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument(
        "--worker", choices=("program", "process", "separate"), help=argparse.SUPPRESS
    )
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(worker(args.worker, not args.dense, args.first)))
        return
    total, ids = len(RATES) * len(SEEDS), not args.dense
    runs = {"program": [], "process": []}
    separate = []
    for i in range(max(args.repeats, args.sample)):  # interleaved
        for kind in runs if i < args.repeats else ():
            runs[kind].append(command(kind, ids))
        if i < args.sample:
            separate.append(command("separate", ids, first=i * total // args.sample)["seconds"])
    seconds = {k: statistics.median(r["seconds"] for r in found) for k, found in runs.items()}
    seconds["separate"] = total * statistics.mean(separate)
    pairs = zip(runs["program"][0]["losses"], runs["process"][0]["losses"], strict=True)
    agree = all(abs(a - b) <= 1e-3 * abs(b) for a, b in pairs)
    report = {
        "rates": len(RATES),
        "seeds": len(SEEDS),
        "rounds": ROUNDS,
        "seconds": seconds,
        "measured": {k: [r["seconds"] for r in f] for k, f in runs.items()}
        | {"separate": separate},
        "losses_agree": agree,
    }
    name = "w1-ids" if ids else "w1"
    print("| way | seconds | times the program's |")
    print("| --- | --- | --- |")
    for kind, label in {
        "program": "one program", "process": "one process", "separate": "separate commands",
    }.items():  # fmt: skip
        print(f"| {label} | {seconds[kind]:.1f} | {seconds[kind] / seconds['program']:.2f} |")
    print(f"{name}; separate: {total} times the mean of {args.sample} commands")
    if args.output:
        saved = json.loads(args.output.read_text()) if args.output.exists() else {}
        args.output.write_text(json.dumps(saved | {name: report}, indent=1) + "\n")
    if not agree:
        sys.exit("the final losses of one program and of one process do not agree")


if __name__ == "__main__":
    main()
