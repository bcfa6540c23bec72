"""A run that may be killed at any moment: SCAFFOLD on the digits, K set by a controller, checkpoints.

    python benchmarks/faults/worker.py DIRECTORY OUTPUT [--rounds 120] [--devices 1]

It resumes from what is in DIRECTORY, and when it is done writes all arrays of its result to OUTPUT. The
first byte of DIRECTORY.mark says what it is doing: 's' starts, 'r' plays rounds, 'b' is between chunks.
"""

import argparse
import importlib
import mmap
import os
import pathlib

import jax
import numpy as np

import fedjax_opt as fo
from fedjax_opt.core.log import Log

CLIENTS, CHUNK = 20, 3


def problem():
    """The arguments of the run."""
    train, test = fo.data.load_digits()
    owners = fo.data.dirichlet(train["y"], num_clients=CLIENTS, alpha=0.5)
    data = fo.ClientData.from_arrays(train, owners)
    return fo.models.mlp([32], num_classes=10), data, test


def method():
    """The algorithm, and the controller of its local steps."""
    return fo.scaffold(fo.optimizers.sgd(0.05)), fo.controllers.steps_by_error(300, window=5)


def template():
    """A state like the run's own."""
    (model, data, _), (algorithm, steps) = problem(), method()
    state = fo.init_state(algorithm, model.init(jax.random.key(0), data[0]), CLIENTS)
    return fo.with_controllers(state, local_steps=steps)


def play(directory, rounds, strategy="scan", keep=3):
    """The run, resumed if it was begun before."""
    (model, data, test), (algorithm, steps) = problem(), method()
    with fo.Checkpoints(directory, keep=keep, keep_every=30, best_metric="loss") as checkpoints:
        return fo.simulate(
            algorithm, model, data, rounds, cohort_size=5, batch_size=16, local_steps=steps,
            strategy=strategy, test=test,
            evaluate_every=CHUNK, checkpoints=checkpoints, progress=False,
        )  # fmt: skip


def arrays(result):
    """All that must be the same to the bit, by name; the seconds are a clock's."""
    leaves = jax.tree_util.tree_leaves_with_path(result.state._replace(key=()))
    found = {f"state{jax.tree_util.keystr(path)}": np.asarray(leaf) for path, leaf in leaves}
    found["key"] = np.asarray(jax.random.key_data(result.state.key))
    found |= {f"history/{name}": rows for name, rows in result.history.items()}
    evaluations = {name: rows for name, rows in result.evaluations.items() if name != "seconds"}
    return found | {f"evaluations/{name}": rows for name, rows in evaluations.items()}


def mark_phases(path):
    """Lets the run say what it is doing in memory that is shared, and so outlives it."""
    path.write_bytes(b"s")
    with open(path, "rb+") as file:
        mark = mmap.mmap(file.fileno(), 1)
    driving = importlib.import_module("fedjax_opt.core.simulate")  # the module, not the function
    rounds, add = driving._play, Log.add_rounds

    def marked_rounds(*args, **kwargs):
        if mark[:1] == b"b":  # the first ones are compiled
            mark[:1] = b"r"
        return rounds(*args, **kwargs)

    def marked_add(*args, **kwargs):
        add(*args, **kwargs)  # waits for the rounds to be played
        mark[:1] = b"b"

    driving._play, Log.add_rounds = marked_rounds, marked_add


def main():
    """Reads the command line, and plays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--keep", type=int, default=3)
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", options.devices)
    mark_phases(options.directory.with_suffix(".mark"))
    strategy = "scan" if options.devices == 1 else "sharded"
    result = play(options.directory, options.rounds, strategy, options.keep)
    partial = options.output.with_suffix(".partial.npz")
    np.savez(partial, **arrays(result))
    os.replace(partial, options.output)


if __name__ == "__main__":
    main()
