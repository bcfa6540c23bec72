"""Weak scaling: as many clients for each device, on more and more devices; of one process and of many.

    PYTHONPATH=. python benchmarks/scale/weak.py --output benchmarks/results/weak.json

FedAvg on an MLP 64-128-10, four clients for each device, 20 local steps of 32 examples each. A layout
runs in processes of its own; a round's seconds are the median over rounds after the first two, from one
state to the next. On as many cores as devices the seconds would stay the same; with fewer cores they
grow with the devices per core, so the last column divides by what that alone would give.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAYOUTS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2))  # processes, devices of each
EACH, STEPS, BATCH, ROUNDS, WARM = 4, 20, 32, 12, 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    os.environ |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    cores, rows = len(os.sched_getaffinity(0)), []
    with tempfile.TemporaryDirectory() as home:
        for processes, devices in LAYOUTS:
            seconds = measure(pathlib.Path(home) / "seconds.json", processes, devices)
            total = processes * devices
            relative = seconds / (rows[0]["seconds_of_a_round"] if rows else seconds)
            rows.append(
                {
                    "processes": processes,
                    "devices": total,
                    "clients": EACH * total,
                    "seconds_of_a_round": seconds,
                    "relative": relative,
                    "over_the_cores": relative / max(1, total / cores),
                }
            )
    print(
        "| processes | devices | clients | seconds of a round | relative | per device of a core |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['processes']} | {row['devices']} | {row['clients']}"
            f" | {row['seconds_of_a_round']:.4f} | {row['relative']:.2f}"
            f" | {row['over_the_cores']:.2f} |"
        )
    if options.output:
        written = {"cores": cores, "rows": rows}
        options.output.write_text(json.dumps(written, indent=1) + "\n")


def measure(file, processes, devices):
    """The seconds of a round in a layout."""
    command = [sys.executable, __file__, "--worker", str(file)]
    if processes == 1:
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
        subprocess.run(command, env=environment, check=True)
    else:
        from fedjax_opt.cli.launch import launch

        if launch(command, processes, devices=devices):
            raise SystemExit("A process failed.")
    return json.loads(file.read_text())


def work(file):
    """Plays rounds on all devices there are; the first process notes the median."""
    import jax
    import jax.numpy as jnp

    import fedjax_opt as fo

    fo.distributed.initialize()
    count = EACH * jax.device_count()
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(4 * BATCH, 64)).astype(np.float32),
            "y": rng.integers(0, 10, size=4 * BATCH),
        }
        for _ in range(count)
    ]
    data = fo.place(fo.ClientData.from_list(clients))
    model = fo.models.mlp([128], num_classes=10)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.05))
    sample = {"x": jnp.zeros((BATCH, 64)), "y": jnp.zeros(BATCH, int)}
    variables = model.init(jax.random.key(0), sample)
    state = fo.place(fo.init_state(algorithm, variables, count))
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        state = fo.run_rounds(
            algorithm, model, data, state, 1, cohort_size=count, batch_size=BATCH,
            local_steps=jnp.int32(STEPS),
        ).state  # fmt: skip
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - began)
    if fo.distributed.is_first():
        file.write_text(json.dumps(float(np.median(seconds[WARM:]))))


if __name__ == "__main__":
    main()
