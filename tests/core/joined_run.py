"""What each process of a run of several does; test_distributed.py starts it, and does the same alone."""

import json
import pathlib
import sys

import jax
import numpy as np

import fedjax_opt as fo
from fedjax_opt.execution import placement
from tests.core import problems, test_model_axis

SCAFFOLD = fo.scaffold(fo.optimizers.sgd(0.1), option=1)
DATA = problems.ragged([5, 8, 3, 12, 7, 4, 9])
# Runs with a store: a small model that every device holds, and one that two processes share.
KEPT = {
    "small": (problems.MODEL, DATA),
    "shared": (test_model_axis.MODEL, test_model_axis.data()),
}


def base(**changes):
    """What most runs learn on; made in the processes that have joined, since it has arrays."""
    federation = fo.Federation(
        problems.MODEL, DATA, cohort=5, local_steps=fo.epochs(2), batch_size=4
    )
    return federation.replace(**changes)


def play(strategy, data=DATA, checkpoints=None):
    """Rounds by `run_rounds`, and a simulated run with evaluations, as plain numbers."""
    run = fo.run_rounds(SCAFFOLD, base(), problems.start(SCAFFOLD, 7), 3, strategy=strategy)
    rounds = numbers((run.state.server, run.state.clients, run.history))
    return rounds + simulate(strategy, 4, data, checkpoints)


def simulate(strategy, rounds, data=DATA, checkpoints=None):
    """A simulated run with evaluations, as plain numbers."""
    federation = base(clients=data, test=DATA.examples, client_test=DATA)
    result = fo.simulate(
        SCAFFOLD, federation, rounds, state=problems.start(SCAFFOLD, 7), evaluate_every=2,
        strategy=strategy, checkpoints=checkpoints,
    )  # fmt: skip
    del result.evaluations["seconds"]
    state = result.state
    return numbers((state.server, state.clients, result.history, result.evaluations))


def keep(name, strategy, rounds, folder=None):
    """A run whose clients are in a store, or with no folder on the device: who took part, and states."""
    model, data = KEPT[name]
    federation = fo.Federation(model, data, cohort=2, local_steps=2, batch_size=4)
    setting = {"evaluate_every": 2, "strategy": strategy, "progress": False}
    if folder is None:
        result = fo.simulate(SCAFFOLD, federation, rounds, **setting)
        return numbers((result.history["cohort"], result.state.server, result.state.clients))
    with (
        fo.Checkpoints(folder / "checkpoints") as checkpoints,
        fo.ClientStore(folder / "store") as store,
    ):
        result = fo.simulate(
            SCAFFOLD, federation, rounds, checkpoints=checkpoints, client_states=store, **setting
        )
        clients = store.rows(np.arange(7)).states
    return numbers((result.history["cohort"], result.state.server, clients))


def go_back(strategy, folder):
    """A run whose step is far too large, and which goes back to its checkpoints until it is not."""
    algorithm = fo.scheduled(lambda rate: fo.scaffold(fo.optimizers.sgd(rate)), 4.0)
    with (
        fo.Checkpoints(folder / "checkpoints") as checkpoints,
        fo.ClientStore(folder / "store") as store,
    ):
        result = fo.simulate(
            algorithm, base(local_steps=2), 6, evaluate_every=2, strategy=strategy,
            checkpoints=checkpoints, client_states=store,
            extensions=[fo.Rollback(factor=3.0, limit=20)], progress=False,
        )  # fmt: skip
        clients = store.rows(np.arange(7)).states
    assert result.history["step_scale"][-1] < 1
    return numbers((result.history, result.state.server, clients))


def messages():
    """How many collectives there are in a round of FedAvg, whose model has six arrays."""
    algorithm, mesh = fo.fedavg(fo.optimizers.sgd(0.1)), placement.over_all_devices()
    data = fo.data.quadratics(num_clients=8, dimension=2)[1]
    parts = {name: jax.numpy.ones(2) for name in "abcdef"}

    def loss(variables, batch, key):
        del key
        return sum(jax.numpy.sum(x**2) for x in variables.params.values()) / 2, fo.Aux()

    model, start = fo.Model(lambda key, batch: None, loss), fo.first_state(algorithm, parts, 8)
    start = fo.place(start)
    federation = fo.Federation(model, data, cohort=8, local_steps=2, batch_size=1)

    def some_rounds(state):
        return fo.run_rounds(
            algorithm, federation, state, 3, strategy=fo.Strategy("sharded", mesh=mesh)
        )

    text = jax.jit(some_rounds).lower(start).compile().as_text()
    kinds = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
    return sum(f" {kind}(" in line for line in text.splitlines() for kind in kinds)


def numbers(tree):
    """The arrays of a tree as lists, wherever they are."""
    return [np.asarray(x).tolist() for x in jax.tree.leaves(placement.fetched(tree))]


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
    with fo.Checkpoints(folder / "begun_by_one") as checkpoints:
        continued = simulate("auto", 4, stored, checkpoints)
    # The parts of a model are in different processes: the first axis is that of devices of one.
    devices = np.array(jax.devices()).reshape(2, 2).T
    mesh = jax.sharding.Mesh(devices, ("clients", "model"))
    shared = fo.Strategy("sharded", mesh=mesh)
    kept = {}
    for name, strategy in (("small", "auto"), ("shared", shared)):
        begun = keep(name, strategy, 2, folder / name / "begun_by_two")
        kept[name] = begun, keep(name, strategy, 4, folder / name / "begun_by_one")
    report = {
        "process": me,
        "gone back": go_back("auto", folder / "gone_back"),
        "messages": messages(),
        "devices": [jax.device_count(), jax.local_device_count()],
        "first": fo.distributed.from_first(f"said by {me.index}"),
        "each": fo.distributed.from_each("said by" + me.index * " me"),
        "found": found,
        "same again": resumed == found,
        "latest": latest,
        "continued": continued,
        "kept": kept,
    }
    (folder / f"process{me.index}.json").write_text(json.dumps(report), encoding="utf-8")
    print(f"process {me.index} is done")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
