"""One process of two is killed: how soon the other ends, what it says, and where a restart begins.

    PYTHONPATH=. python benchmarks/scale/killed.py --output benchmarks/results/killed.json

Two processes train SCAFFOLD with a checkpoint every two rounds. Once some are done one of them is killed
(SIGKILL): first the second, then the first, which is the coordinator; in a third case the second is
stopped (SIGSTOP), as a machine that hangs would be. Nothing ends the survivor from outside: the
processes are started without the launcher. The same command is then started again, goes on from the
newest checkpoint, and must end with the numbers of a run that nobody disturbed.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS, EVERY, HEARTBEAT = 60, 2, 10
CASES = {
    "process 1 killed": (1, signal.SIGKILL),
    "process 0 killed": (0, signal.SIGKILL),
    "process 1 hangs": (1, signal.SIGSTOP),
}
ALLOWED_SECONDS = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(pathlib.Path(options.worker[0]), float(options.worker[1]))
        return
    rows = []
    with tempfile.TemporaryDirectory() as home:
        expected = finish(pathlib.Path(home) / "undisturbed")["params"]
        for name, (victim, how) in CASES.items():
            row = disturb(pathlib.Path(home) / name.replace(" ", "_"), victim, how)
            resumed = finish(pathlib.Path(home) / name.replace(" ", "_"))
            row["resumed_from"] = resumed["resumed_from"]
            row["difference"] = float(np.max(np.abs(np.subtract(resumed["params"], expected))))
            rows.append({"case": name, **row})
            print(json.dumps(rows[-1], indent=1), flush=True)
    good = all(
        row["seconds"] < ALLOWED_SECONDS
        and row["difference"] <= 1e-10
        and row["resumed_from"]
        and row["said"]
        for row in rows
    )
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0 if good else 1)


def start(folder, delay):
    """Two processes that know each other; their outputs are files."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = []
    for index in range(2):
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1",
            "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2",
            "JAX_PROCESS_ID": str(index), "XLA_FLAGS": "--xla_backend_optimization_level=0",
        }  # fmt: skip
        with open(folder / f"output{index}.txt", "w", encoding="utf-8") as file:
            command = [sys.executable, __file__, "--worker", str(folder), str(delay)]
            processes.append(
                subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            )
    return processes


def disturb(folder, victim, how):
    """Kills one process after some checkpoints; how long the other lives on, and its last words."""
    processes = start(folder, delay=0.2)
    try:
        wait_for(lambda: "round 10" in (folder / "output0.txt").read_text(), 300)
        processes[victim].send_signal(how)
        began = time.monotonic()
        wait_for(lambda: processes[1 - victim].poll() is not None, 2 * ALLOWED_SECONDS)
        seconds = time.monotonic() - began
    finally:
        for process in processes:
            process.kill()
            process.wait()
    text = (folder / f"output{1 - victim}.txt").read_text()
    marks = ("fedjax_opt: process", "Terminating process because")
    said = [line[:400] for line in text.splitlines() if any(mark in line for mark in marks)]
    return {"seconds": seconds, "status": processes[1 - victim].returncode, "said": said}


def finish(folder):
    """Starts the same run (again) and lets it end."""
    processes = start(folder, delay=0)
    for process in processes:
        process.wait(timeout=600)
    if any(process.returncode for process in processes):
        raise SystemExit((folder / "output0.txt").read_text())
    return json.loads((folder / "result.json").read_text())


def wait_for(condition, seconds):
    """Looks ten times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Nothing happened within {seconds} s.")
        time.sleep(0.1)


def work(folder, delay):
    """What each of the two processes does."""
    import jax

    import fedjax_opt as fo

    jax.config.update("jax_enable_x64", True)
    fo.distributed.initialize(heartbeat_seconds=HEARTBEAT)
    model, data, _ = fo.data.quadratics(num_clients=8, dimension=5, seed=0)
    quadratics = fo.Federation(model, data, cohort=5, local_steps=3, batch_size=1)
    algorithm = fo.scaffold(fo.optimizers.sgd(0.1))

    def tell(chunk):
        print(f"round {chunk.last}", flush=True)
        time.sleep(delay)

    with fo.Checkpoints(folder / "checkpoints") as checkpoints:
        began_at = checkpoints.latest_round
        result = fo.simulate(
            algorithm,
            quadratics,
            ROUNDS,
            evaluate_every=EVERY,
            checkpoints=checkpoints,
            extensions=[tell],
            progress=False,
        )
    params = np.asarray(result.variables.params["x"]).tolist()
    if fo.distributed.is_first():
        found = {"resumed_from": began_at, "params": params}
        (folder / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
