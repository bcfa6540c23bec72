"""Runs with client states on disk, killed at random moments, end as if nothing had happened.

    python benchmarks/population/kill.py --output client_state_kills.json

One process trains SCAFFOLD for 120 rounds in chunks of 2, with checkpoints and a `ClientStore`, and is
left alone. Then the same run is begun in a new folder, and its process killed (SIGKILL) at a random
moment between its first chunk and its end, and begun again, until so many kills have met a run under
way. Each time a run comes to its end, its model, its history and the states of all clients are compared
with those of the run that was left alone, and the next begins in a new folder.
"""

import argparse
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

CLIENTS, ROUNDS, CHUNK, COHORT = 200, 120, 2, 8


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
        kills, ends, resumed = 0, [], []
        while kills < options.kills:
            folder = pathlib.Path(home) / f"run-{len(ends)}"
            result = None
            while result is None:
                # After the last kill the run is left to come to its end.
                delay = draw.uniform(0, seconds) if kills < options.kills else None
                result, _, first = _play(folder, delay)
                resumed.append(first)
                if result is None:
                    kills += 1
            ends.append(result == expected)
            print(f"{kills} kills, {len(ends)} runs came to their end, {sum(ends)} identical")
    found = {"kills": kills, "runs": len(ends), "identical": sum(ends), "resumed_from": resumed}
    if options.output:
        options.output.write_text(json.dumps(found) + "\n")
    if not all(ends):
        raise SystemExit("a resumed run is not the one that was left alone")


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

    import fedjax_opt as fo

    model, data, _ = fo.data.quadratics(num_clients=CLIENTS, dimension=50)
    store, told = fo.ClientStore(folder / "clients"), []

    def tell(event):
        if not told:
            told.append(print(event.round - CHUNK, flush=True))

    with fo.Checkpoints(folder / "checkpoints") as checkpoints:
        result = fo.simulate(
            fo.scaffold(fo.optimizers.sgd(0.05)), model, data, ROUNDS, cohort_size=COHORT,
            batch_size=1, local_steps=3, evaluate_every=CHUNK, checkpoints=checkpoints,
            client_state=store, callbacks=[tell], progress=False,
        )  # fmt: skip
    clients = store.rows(np.arange(CLIENTS)).states
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((result.state.server, result.history, clients)):
        digest.update(np.asarray(leaf).tobytes())
    print("" if told else f"{ROUNDS}\n", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
