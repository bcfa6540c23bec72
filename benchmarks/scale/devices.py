"""Every algorithm on one device, on eight virtual ones, and on two and four processes: the same numbers.

    PYTHONPATH=. python benchmarks/scale/devices.py --output benchmarks/results/devices.json

Each row of tests/algorithms/matrix.py plays three rounds in float64: seven clients of 3 to 12 examples,
cohorts of five, two local epochs, so that neither the cohort nor the work divides evenly. Each layout
runs in processes of its own. The table gives, for each layout, the largest difference to one device of
any number of the final state (server and clients), the losses and the clients' losses.
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
# processes, devices of each
LAYOUTS = {"1 device": (1, 1), "8 devices": (1, 8), "2 processes": (2, 2), "4 processes": (4, 1)}
ALLOWED = 1e-10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", help="only these algorithms")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.rows)
        return
    found, seconds = {}, {}
    with tempfile.TemporaryDirectory() as home:
        for name, (processes, devices) in LAYOUTS.items():
            began = time.perf_counter()
            file = pathlib.Path(home) / f"{name}.npz"
            start(processes, devices, file, options.rows)
            found[name] = dict(np.load(file))
            seconds[name] = round(time.perf_counter() - began, 1)
            print(f"{name}: {seconds[name]} s", flush=True)
    differences = compare(found)
    print(
        f"| algorithm | {' | '.join(list(LAYOUTS)[1:])} |\n| --- |{' --- |' * (len(LAYOUTS) - 1)}"
    )
    for row, by_layout in differences.items():
        print(f"| {row} | {' | '.join(f'{x:.1e}' for x in by_layout.values())} |")
    largest = max(x for by_layout in differences.values() for x in by_layout.values())
    print(f"The largest difference is {largest:.1e}, allowed are {ALLOWED:.0e}.")
    if options.output:
        written = {"largest": largest, "seconds": seconds, "differences": differences}
        options.output.write_text(json.dumps(written, indent=1) + "\n")
    sys.exit(0 if largest <= ALLOWED else 1)


def start(processes, devices, file, rows):
    """Runs the worker in its layout; the first process writes the file."""
    command = [sys.executable, __file__, "--worker", str(file)]
    command += ["--rows", *rows] if rows else []
    # Programs run for milliseconds here and compile for seconds.
    flags = "--xla_backend_optimization_level=0"
    os.environ |= {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    if processes == 1:
        subprocess.run(command, env=os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}, check=True)
        return
    from fedjax_opt.cli.launch import launch

    if launch(command, processes, devices=devices):
        raise SystemExit("A process failed.")


def work(file, rows):
    """Plays all rows on whatever devices there are, and writes what came of it."""
    import jax

    import fedjax_opt as fo

    jax.config.update("jax_enable_x64", True)
    fo.distributed.initialize()
    from tests.algorithms import helpers
    from tests.algorithms.matrix import ROWS
    from tests.core import problems

    data = problems.ragged([5, 8, 3, 12, 7, 4, 9])
    arrays = {}
    for name in rows or ROWS:
        row = ROWS[name]
        algorithm = row.make(row.learning_rate)
        run = fo.run_rounds(
            algorithm, helpers.LINEAR, data, problems.start(algorithm, 7), 3, cohort_size=5,
            batch_size=1, local_epochs=2,
        )  # fmt: skip
        kept = run.state.server, run.state.clients, run.history.loss, run.history.client_loss
        leaves = [np.asarray(x) for x in jax.tree.leaves(kept) if x.dtype != jax.dtypes.float0]
        arrays |= {f"{name}/{i:03d}": leaf for i, leaf in enumerate(leaves)}
        jax.clear_caches()
    if fo.distributed.is_first():
        np.savez(file, **arrays)


def compare(found):
    """The largest difference to the first layout, by algorithm and layout."""
    reference, *others = found
    result = {}
    for key, expected in found[reference].items():
        by_layout = result.setdefault(key.split("/")[0], dict.fromkeys(others, 0.0))
        for name in others:
            if not np.all(np.isfinite(expected)):
                raise SystemExit(f"{key} is not finite.")
            difference = np.abs(found[name][key].astype(float) - expected.astype(float))
            by_layout[name] = max(by_layout[name], float(difference.max(initial=0.0)))
    return result


if __name__ == "__main__":
    main()
