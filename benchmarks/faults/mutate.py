"""Random damage to checkpoints, client states, stored clients and run directories: what reading says.

    python benchmarks/faults/mutate.py --mutations 1000 --output benchmarks/results/faults_mutate.json

One file is changed at random: cut, extended, overwritten, bits flipped, bytes repeated, put in place of
another, emptied, lost. Reading must then raise a ValueError that names the place, or return exactly what
was written, where the change does not matter. Anything else fails, and so does a process that dies: each
hundred are done in a process of their own.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo
from fedjax_opt.experiments import rundir

BATCH = 100
HISTORY = {
    "rounds": {"loss": np.linspace(3.0, 1.0, 40)}, "evaluations": {}, "memory": np.arange(3.0) / 7,
}  # fmt: skip


def _state(seed):
    algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
    params = {"w": jnp.linspace(0.0, 1.0, 60).reshape(6, 10) + seed, "b": jnp.ones(10)}
    return fo.first_state(algorithm, params, 7, seed)._replace(round=jnp.int32(20))


def write_checkpoint(home):
    """A checkpoint of a state of 7 clients, with two files of history."""
    half = HISTORY | {"rounds": {"loss": HISTORY["rounds"]["loss"][:15]}}
    with fo.Checkpoints(home, keep=1) as checkpoints:
        checkpoints.save(_state(1)._replace(round=jnp.int32(10)), half)
        checkpoints.save(_state(3), HISTORY, metrics={"loss": 1.0})


def read_checkpoint(home):
    """All arrays of it, by name."""
    with fo.Checkpoints(home) as checkpoints:
        state, history = checkpoints.restore(_state(0), round=20)
    leaves = jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))
    return [np.asarray(leaf) for leaf in leaves] + [history["rounds"]["loss"], history["memory"]]


def write_clients(home):
    """Three clients, with numbers and text."""
    examples = {"x": np.arange(24, dtype=np.float32).reshape(6, 4), "t": np.array(list("abcdef"))}
    parts = [{k: v[a:b] for k, v in examples.items()} for a, b in ((0, 1), (1, 3), (3, 6))]
    fo.data.store(zip(("ann", "bob", "cleo"), parts, strict=True), home)


def read_clients(home):
    """All that they hold, and their names."""
    data = fo.data.open_stored(home, verify=True)
    examples = [np.asarray(data.examples[name]) for name in sorted(data.examples)]
    return [*examples, np.asarray(data.sizes), np.array(fo.data.stored_names(home))]


MODEL = fo.Variables({"w": jnp.linspace(0.0, 1.0, 12).reshape(3, 4)})


def write_run(home):
    """A run of ten records, and its model."""
    with rundir.RunDirectory(home, config="rounds = 10\nseeds = [0]\n") as run:
        for number in range(10):
            run.append([{"label": "fedavg", "hyperparameters": {"lr": 0.1}, "seed": 0,
                         "round": number, "loss": 1 / (number + 1)}])  # fmt: skip
        run.save_model("fedavg", MODEL)


def read_run(home):
    """Its configuration, records and model."""
    found = rundir.read(home)
    texts = [found.config, json.dumps(found.records), json.dumps(found.about), found.labels]
    model = rundir.read_model(home, "fedavg", like=MODEL)
    return [np.array(text) for text in texts] + [np.asarray(model.params["w"])]


def _store(home):
    algorithm = fo.scaffold(fo.optimizers.sgd(0.1))
    start = fo.first_state(algorithm, {"w": jnp.zeros(5_000)}, 7)
    store = fo.ClientStore(home)
    store.open(algorithm, start._replace(clients=()))
    return store


def write_states(home):
    """The states of 7 clients after each of three chunks of rounds."""
    generator = np.random.default_rng(0)
    with _store(home) as store:
        for number in (1, 2, 3):
            ids = np.sort(generator.choice(7, 4, replace=False))
            states = jax.tree.map(
                lambda x: generator.normal(size=x.shape).astype(x.dtype), store.read(ids)
            )
            store.write(number, ids, states, 1)


def read_states(home):
    """All of them, after each of these chunks."""
    found = []
    with _store(home) as store:
        for number in (3, 2, 1):
            store.roll_back(number)
            found += jax.tree.leaves(store.read(np.arange(7)))
    return found


KINDS = {
    "checkpoints": (write_checkpoint, read_checkpoint),
    "states": (write_states, read_states),
    "clients": (write_clients, read_clients),
    "runs": (write_run, read_run),
}


def mutate(folder, generator):
    """Changes one file of a folder; says which, and how."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock" != path.name
    )
    path = generator.choice(files)
    content = bytearray(path.read_bytes())
    size = len(content)
    how = generator.choice(CHANGES)
    if how == "lost":
        path.unlink()
    elif how == "replaced":
        path.write_bytes(generator.choice(files).read_bytes())
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: generator.randrange(max(size, 1))])
    elif how == "extended":
        path.write_bytes(content + generator.randbytes(generator.randint(1, 100)))
    elif how == "repeated":
        a, b = sorted(generator.randrange(size + 1) for _ in range(2))
        path.write_bytes(content[:b] + content[a:b] + content[b:])
    else:
        _overwrite(content, how, generator)
        path.write_bytes(content)
    return f"{path.relative_to(folder)} {how}"


CHANGES = (
    "bit flipped", "bit flipped", "bits flipped", "overwritten", "zeroed", "cut", "extended",
    "repeated", "replaced", "emptied", "lost",
)  # fmt: skip


def _overwrite(content, how, generator):
    size = len(content)
    if not size:
        return
    if how in ("bit flipped", "bits flipped"):
        for _ in range(1 if how == "bit flipped" else generator.randint(2, 20)):
            content[generator.randrange(size)] ^= 1 << generator.randrange(8)
        return
    start = generator.randrange(size)
    end = min(start + generator.randint(1, 64), size)
    random_bytes = generator.randbytes(end - start)
    content[start:end] = random_bytes if how == "overwritten" else bytes(end - start)


def same(found, expected):
    """Whether two lists of arrays are the same to the bit."""
    return len(found) == len(expected) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(found, expected, strict=True)
    )


def attempt(kind, original, expected, home, seed):
    """One mutation: 'refused', 'harmless', or what went wrong."""
    _, read = KINDS[kind]
    folder = home / "mutated"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    what = mutate(folder, random.Random(seed))
    try:
        found = read(folder)
    except ValueError as error:
        return "refused" if str(folder) in str(error) else f"{what}: names no place: {error}"
    except Exception as error:
        return f"{what}: {type(error).__name__}: {error}"
    return "harmless" if same(found, expected) else f"{what}: silently wrong"


def try_all(kind, seeds):
    """Mutations by their seeds; how often each outcome came."""
    outcomes = collections.Counter()
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        write, read = KINDS[kind]
        write(home / "original")
        # Of a copy: reading may go back in time.
        expected = read(shutil.copytree(home / "original", home / "whole"))
        for seed in seeds:
            outcomes[attempt(kind, home / "original", expected, home, seed)] += 1
    return outcomes


def in_processes(kind, count):
    """The same, each batch in a process of its own; one that dies is an outcome too."""
    outcomes = collections.Counter()
    for first in range(0, count, BATCH):
        last = min(first + BATCH, count)
        command = [sys.executable, __file__, "--kind", kind, "--seeds", str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if done.returncode:
            outcomes[f"seeds {first} to {last}: the process died: {done.stderr[-300:]}"] += 1
        else:
            outcomes.update(json.loads(done.stdout.splitlines()[-1]))
        print(kind, last, dict(outcomes), flush=True)
    return outcomes


def main():
    """Reads the command line, and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(try_all(options.kind, range(*options.seeds))))
        return
    found = {kind: in_processes(kind, options.mutations) for kind in KINDS}
    print(json.dumps(found, indent=1))
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(any(set(outcomes) - {"refused", "harmless"} for outcomes in found.values()))


if __name__ == "__main__":
    main()
