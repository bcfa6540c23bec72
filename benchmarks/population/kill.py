"""Runs with client states on disk, killed at random moments, end as if nothing had happened.

    python benchmarks/population/kill.py --output benchmarks/results/client_state_kills.json

One process trains SCAFFOLD for 120 rounds in chunks of 2, with checkpoints and a `ClientStore`, and is
left alone. Then the same run is begun in a new folder, and its process killed (SIGKILL) at a random
moment after its first chunk, some four times on the way to its end, and begun again, until so many kills
have met a run under way. Each time a run comes to its end, its model, its history and the states of all
clients are compared with those of the run that was left alone, and the next begins in a new folder. What
a kill has hit is told by what it left behind: the phase that the process had marked, files that are half
done, and whether the clients' states were ahead of the newest checkpoint.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import pathlib
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))

CLIENTS, ROUNDS, CHUNK, COHORT = 200, 120, 2, 8
KILLS_OF_A_RUN = 4
PHASES = {b"r": "playing rounds", b"b": "between rounds"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _train(options.worker)
        return
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        expected, seconds, _ = _play(pathlib.Path(home) / "whole", None)
        print(f"left alone: {time.perf_counter() - began:.1f} s, of which {seconds:.1f} s training")
        kills, ends, resumed, hits = 0, [], [], collections.Counter()
        while kills < options.kills:
            folder = pathlib.Path(home) / f"run-{len(ends)}"
            result = None
            while result is None:
                # After the last kill the run is left to come to its end.
                some = draw.uniform(0, 2 * seconds / (KILLS_OF_A_RUN + 1))
                delay = some if kills < options.kills else None
                result, _, first = _play(folder, delay)
                resumed.append(first)
                if result is None:
                    kills += 1
                    hits[_hit(folder)] += 1
            ends.append(result == expected)
            print(f"{kills} kills, {len(ends)} runs came to their end, {sum(ends)} identical")
            _report(options.output, kills, ends, hits, resumed)
    if not all(ends):
        raise SystemExit("a resumed run is not the one that was left alone")


def _report(output, kills, ends, hits, resumed):
    """Writes what is known so far."""
    found = {
        "kills": kills, "runs": len(ends), "identical": sum(ends), "rounds": ROUNDS, "chunk": CHUNK,
        "hits": dict(hits.most_common()), "resumed_from": resumed,
    }  # fmt: skip
    if output:
        output.write_text(json.dumps(found, indent=1) + "\n")


def _hit(folder):
    """What a process was doing when it was killed, told by what it has left."""
    mark = folder.with_suffix(".mark").read_bytes()
    found = [PHASES.get(mark[:1], "starting")]
    names = [path.name for path in (folder / "checkpoints").glob("*")]
    if any(name.startswith(".deleted") for name in names):
        found.append("deleting a checkpoint")
    elif any(name.startswith(".partial") for name in names):
        found.append("writing a checkpoint")
    clients = folder / "clients"
    journals = [path.read_bytes()[:8] for path in clients.glob("*-journal")]
    if any(any(head) for head in journals):  # it is blank when a change is done
        found.append("writing client states")
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    if _round_of(clients) > newest:
        found.append("client states ahead of the checkpoint")
    return ", ".join(found)


def _round_of(clients):
    """The round of the client states, as the next process will find them, read from a copy."""
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(clients, copied, dirs_exist_ok=True)
        for path in pathlib.Path(copied).glob("*.sqlite"):
            with contextlib.closing(sqlite3.connect(path)) as database:
                (content,) = database.execute("SELECT content FROM about").fetchone()
                return json.loads(content)["rounds"][-1]
    return 0


def _play(folder, delay):
    """A process of its own: its digest (None if it was killed), its seconds, and where it began."""
    command = [sys.executable, __file__, "--worker", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline() or "null")
        began = time.perf_counter()
        if delay is not None:
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
        rest = process.stdout.read().split()
    seconds = time.perf_counter() - began
    if process.returncode not in (0, -9):
        raise SystemExit(f"a run failed, with {process.returncode}")
    return (rest[-1] if process.returncode == 0 else None), seconds, first


def _train(folder):
    import jax
    import numpy as np
    import worker

    import fedjax_opt as fo

    worker.mark_phases(folder.with_suffix(".mark"))
    model, data, _ = fo.data.quadratics(num_clients=CLIENTS, dimension=50)
    federation = fo.Federation(model, data, cohort=COHORT, local_steps=3, batch_size=1)
    store, told = fo.ClientStore(folder / "clients"), []

    def tell(chunk):
        if not told:
            told.append(print(chunk.last - CHUNK, flush=True))

    with fo.Checkpoints(folder / "checkpoints") as checkpoints:
        result = fo.simulate(
            fo.scaffold(fo.optimizers.sgd(0.05)), federation, ROUNDS, evaluate_every=CHUNK,
            checkpoints=checkpoints, client_states=store, extensions=[tell], progress=False,
        )  # fmt: skip
    clients = store.rows(np.arange(CLIENTS)).states
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((result.state.server, result.history, clients)):
        digest.update(np.asarray(leaf).tobytes())
    print("" if told else f"{ROUNDS}\n", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
