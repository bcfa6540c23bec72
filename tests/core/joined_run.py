"""What each process of a run of several does; test_distributed.py starts it, and does the same alone."""

import json
import pathlib
import sys

import jax
import numpy as np

import fedjax_opt as fo
from tests.core import problems

SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1), option=1)
DATA = problems.ragged([5, 8, 3, 12, 7, 4, 9])
COMMON = {"cohort_size": 5, "batch_size": 4, "local_epochs": 2}


def play(strategy, data=DATA, checkpoints=None):
    """Rounds by `run_rounds`, and a simulated run with evaluations, as plain numbers."""
    start = problems.start(SCAFFOLD, 7)
    run = fo.run_rounds(SCAFFOLD, problems.MODEL, DATA, start, 3, strategy=strategy, **COMMON)
    result = fo.simulate(
        SCAFFOLD, problems.MODEL, data, 4, state=start, test=DATA.examples, client_test=DATA,
        evaluate_every=2, strategy=strategy, checkpoints=checkpoints, **COMMON,
    )  # fmt: skip
    del result.evaluations["seconds"]
    found = (
        (run.state.server, run.state.clients, run.history),
        (result.state.server, result.state.clients, result.history, result.evaluations),
    )
    return [np.asarray(x).tolist() for x in jax.tree.leaves(found)]


def main(folder):
    """Joins, plays with data on disk, goes on from its checkpoint, and leaves what it saw in a file."""
    for name, value in (("enable_x64", True), ("numpy_dtype_promotion", "strict")):
        jax.config.update(f"jax_{name}", value)
    me = fo.distributed.initialize(heartbeat_seconds=10)
    stored = fo.data.open_stored(folder / "data")
    with fo.Checkpoints(folder / "checkpoints") as checkpoints:
        found = play("auto", stored, checkpoints)
        resumed = play("auto", stored, checkpoints)
        latest = checkpoints.latest_round
    report = {
        "process": me,
        "devices": [jax.device_count(), jax.local_device_count()],
        "first": fo.distributed.from_first(f"said by {me.index}"),
        "found": found,
        "same again": resumed == found,
        "latest": latest,
    }
    (folder / f"process{me.index}.json").write_text(json.dumps(report), encoding="utf-8")
    print(f"process {me.index} is done")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
