"""Every algorithm on one device, on eight virtual ones, and on two and four processes: the same numbers.

    PYTHONPATH=. python benchmarks/scale/devices.py --output benchmarks/results/devices.json

Each row of tests/algorithms/matrix.py plays three rounds in float64: seven clients of 3 to 12 examples,
cohorts of five, two local epochs, so that neither the cohort nor the work divides evenly; linear
regression with 32 x 32 parameters, which "4 x 2 devices" divide between two. Each layout runs in
processes of its own. The table gives, for each layout, the largest difference to one device of
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
# processes, devices of each, devices that share a model
LAYOUTS = {
    "1 device": (1, 1, 1),
    "8 devices": (1, 8, 1),
    "4 x 2 devices": (1, 8, 2),
    "2 processes": (2, 2, 1),
    "4 processes": (4, 1, 1),
}
CLIENTS, SIDE = 7, 32
ALLOWED = 1e-10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", help="only these algorithms")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument(
        "--directory",
        type=pathlib.Path,
        help="keeps what each layout gave; rows that it has are done",
    )
    parser.add_argument("--sharing", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.sharing, options.rows)
        return
    found = {}
    with tempfile.TemporaryDirectory() as home:
        home = options.directory or pathlib.Path(home)
        home.mkdir(exist_ok=True)
        for name in options.layouts:
            processes, devices, sharing = LAYOUTS[name]
            began = time.perf_counter()
            file = home / f"{name}.npz"
            start(processes, devices, sharing, file, options.rows)
            found[name] = dict(np.load(file))
            print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    differences = compare(found)
    others = options.layouts[1:]
    print(f"| algorithm | {' | '.join(others)} |\n| --- |{' --- |' * len(others)}")
    for row, by_layout in differences.items():
        print(f"| {row} | {' | '.join(f'{x:.1e}' for x in by_layout.values())} |")
    largest = max(x for by_layout in differences.values() for x in by_layout.values())
    print(f"The largest difference is {largest:.1e}, allowed are {ALLOWED:.0e}.")
    if options.output:
        written = {"largest": largest, "differences": differences}
        options.output.write_text(json.dumps(written, indent=1) + "\n")
    sys.exit(0 if largest <= ALLOWED else 1)


def start(processes, devices, sharing, file, rows):
    """Runs the worker in its layout; the first process writes the file."""
    command = [sys.executable, __file__, "--worker", str(file), "--sharing", str(sharing)]
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


def work(file, sharing, rows):
    """Plays all rows on whatever devices there are, and writes what came of it."""
    import jax

    import fedjax_opt as fo

    jax.config.update("jax_enable_x64", True)
    fo.distributed.initialize()
    strategy = "auto"
    if sharing > 1:
        devices = np.array(jax.devices()).reshape(-1, sharing)
        strategy = fo.Strategy("sharded", mesh=jax.sharding.Mesh(devices, ("clients", "model")))
    from tests.algorithms.matrix import ROWS

    arrays = dict(np.load(file)) if file.exists() else {}
    done = fo.distributed.from_first(sorted({name.split("/")[0] for name in arrays}))
    for name in rows or ROWS:
        if name not in done:
            arrays |= play([name], strategy)
            if fo.distributed.is_first():
                np.savez(file, **arrays)


def play(rows, strategy):
    """The final states and the losses of some rows, as arrays by name."""
    import jax

    import fedjax_opt as fo
    from tests.algorithms.matrix import ROWS

    model, data, first = problem()
    federation = fo.Federation(
        model, data, cohort=5, local_steps=fo.epochs(2), batch_size=1, initial={"w": first}
    )
    arrays = {}
    for name in rows:
        algorithm = ROWS[name].make(ROWS[name].learning_rate)
        state = fo.init_state(algorithm, federation)
        run = fo.run_rounds(algorithm, federation, state, 3, strategy=strategy)
        kept = run.state.server, run.state.clients, run.history.loss, run.history.client_loss
        leaves = enumerate(map(np.asarray, jax.tree.leaves(kept)))
        arrays |= {f"{name}/{i:03d}": leaf for i, leaf in leaves}
        jax.clear_caches()
    return arrays


def problem():
    """Linear regression on a few clients of unequal sizes, in one square array of parameters."""
    import jax.numpy as jnp

    import fedjax_opt as fo

    def loss(variables, batch, key):
        del key
        features = (batch["x"] * variables.params["w"][None]).reshape(len(batch["x"]), -1)
        losses = (jnp.sum(features, axis=1) - batch["y"]) ** 2 / 2
        return jnp.mean(losses), fo.Aux(losses=losses, features=features)

    rng = np.random.default_rng(0)
    clients = [
        {"x": rng.normal(size=(n, SIDE, SIDE)) / SIDE, "y": rng.normal(size=n)}
        for n in (5, 8, 3, 12, 7, 4, 9)
    ]
    first = jnp.asarray(rng.normal(size=(SIDE, SIDE)))
    return fo.Model(init=None, loss=loss), fo.ClientData.from_list(clients), first


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
