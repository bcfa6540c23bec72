"""A run that may be killed at any moment: SCAFFOLD on the digits, K set by a controller, checkpoints.

It resumes from what is in its directory, and when it is done writes all arrays of its result to a file.
The first byte of DIRECTORY.mark says what it is doing: 's' starts, 'r' plays rounds, 'b' is between
chunks; the second one is '1' as soon as all is compiled.
"""

import mmap
import os

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint  # noqa: F401 -- once, before processes are forked

import fedjax_opt as fo
from fedjax_opt.training import player
from fedjax_opt.training.history import Columns

CLIENTS, CHUNK = 20, 3


def problem(local_steps):
    """What the run learns on."""
    train, test = (
        dict(examples, x=examples["x"].astype(jnp.result_type(float)))  # float64, if that is on
        for examples in fo.data.load_digits()
    )
    owners = fo.data.dirichlet(train["y"], num_clients=CLIENTS, alpha=0.5)
    data = fo.ClientData.from_arrays(train, owners)
    return fo.Federation(
        fo.models.mlp([32], num_classes=10), data, cohort=5, batch_size=16,
        local_steps=local_steps, test=test,
    )  # fmt: skip


def method(steps=300):
    """The algorithm, and the controller of its local steps."""
    return fo.scaffold(fo.optimizers.sgd(0.05)), fo.controllers.steps_by_error(steps, window=5)


def template():
    """A state like the run's own."""
    algorithm, steps = method()
    return fo.init_state(algorithm, problem(steps))


def play(directory, rounds, strategy, keep, steps):
    """The run, resumed if it was begun before."""
    algorithm, steps = method(steps)
    with fo.Checkpoints(directory, keep=keep, keep_every=30, best_metric="loss") as checkpoints:
        return fo.simulate(
            algorithm, problem(steps), rounds, strategy=strategy, evaluate_every=CHUNK,
            checkpoints=checkpoints, progress=False,
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
    path.write_bytes(b"s0")
    with open(path, "rb+") as file:
        mark = mmap.mmap(file.fileno(), 2)
    rounds, add = player._play, Columns.append

    def marked_rounds(*args, **kwargs):
        if mark[:1] == b"b":  # the first ones are compiled
            mark[:] = b"r1"
        return rounds(*args, **kwargs)

    def marked_add(*args, **kwargs):
        add(*args, **kwargs)  # waits for the rounds to be played
        mark[:1] = b"b"

    player._play, Columns.append = marked_rounds, marked_add


def run(directory, output, rounds=60, keep=3, devices=1, steps=300, x64=False):
    """Plays it, and writes the result when it is done."""
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_enable_x64", x64)
    mark_phases(directory.with_suffix(".mark"))
    result = play(directory, rounds, "scan" if devices == 1 else "sharded", keep, steps)
    partial = output.with_suffix(".partial.npz")
    np.savez(partial, **arrays(result))
    os.replace(partial, output)
