"""Kills a run with SIGKILL at random moments, resumes it, and compares it with one that nobody killed.

    python benchmarks/faults/kill.py --kills 50 --output benchmarks/results/faults_kill.json

A run (`worker.py`) is killed some times at random moments, each time resumed by a new process, and then
let to its end. After every kill each checkpoint that is there must be whole, and hold the bits that
the uninterrupted run had in that round; at the end all arrays of the result must be the same to the bit.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import jax
import numpy as np
import worker

import fedjax_opt as fo

HERE = pathlib.Path(__file__).resolve().parent
KILLS_OF_A_RUN = 5
PHASES = {b"r": "playing rounds", b"b": "between rounds"}


class Worker:
    """A process that plays the run."""

    def __init__(self, directory, rounds, keep=3, devices=1):
        self.directory, self.output = directory, directory.with_suffix(".npz")
        self._mark = directory.with_suffix(".mark")
        self._mark.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / "worker.py"), str(directory), str(self.output)]
        command += ["--rounds", str(rounds), "--keep", str(keep), "--devices", str(devices)]
        environment = os.environ | {
            "PYTHONPATH": str(HERE.parents[1]),
            "JAX_ENABLE_X64": str(int(jax.config.jax_enable_x64)),
        }
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def phase(self):
        """What it is doing, or was when it was killed."""
        content = self._mark.read_bytes() if self._mark.exists() else b""
        return PHASES.get(content, "starting")

    def finish(self):
        """Lets it come to its end."""
        _, errors = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, errors
        return dict(np.load(self.output))

    def wait_until_it_plays(self):
        """Returns when the first rounds are done; processes take seconds to get there."""
        while self.phase() == "starting" and self.process.poll() is None:
            time.sleep(0.01)

    def kill(self, delay):
        """Kills it after some seconds; None if it was done before, else where it was hit."""
        time.sleep(delay)
        if self.process.poll() is not None:
            assert self.process.returncode == 0, self.process.stderr.read()
            return None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stderr.close()
        left = [path.name for path in self.directory.glob(".*-*")]
        writing = "writing" if any(name.startswith(".partial") for name in left) else "not writing"
        if any(name.startswith(".deleted") for name in left):
            writing = "deleting"
        return f"{self.phase()}, {writing} a checkpoint"


def states(directory):
    """The bits of every checkpoint in a directory, by round, after verifying each."""
    found, like = {}, worker.template()
    with fo.Checkpoints(directory) as checkpoints:
        for number in checkpoints.rounds:
            state, history = checkpoints.restore(like, round=number)
            result = fo.Result(state, history["rounds"], history["evaluations"], 0.0, "")
            found[number] = worker.arrays(result)
    return found


def identical(left, right):
    """Whether two mappings hold the same arrays to the bit."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


def play_and_kill(directory, kills, rounds, seconds, generator, reference):
    """One run that is killed some times; where it was hit each time, and what was there then."""
    hits = []
    while len(hits) < kills:
        process = Worker(directory, rounds)
        if generator.random() > 0.1:  # else it may be hit before it plays, or while it resumes
            process.wait_until_it_plays()
            hit = process.kill(generator.uniform(0, 1.2 * seconds / (kills + 1)))
        else:
            hit = process.kill(generator.uniform(0, 5))
        if hit is None:
            break
        found = states(directory)
        for number, arrays in found.items():
            assert identical(arrays, reference.states[number]), f"round {number} is another one"
        hits.append({"hit": hit, "newest": max(found, default=0), "verified": len(found)})
        print(f"killed {hit}; newest: round {hits[-1]['newest']}", flush=True)
    assert identical(Worker(directory, rounds).finish(), reference.result), "another result"
    return hits


class Reference(NamedTuple):
    """The run that nobody killed: its result, its state and history by round, and how long it took."""

    result: dict
    states: dict
    seconds: float


def uninterrupted(directory, rounds):
    """Plays it, with all of its checkpoints kept."""
    process = Worker(directory, rounds, keep=rounds)
    process.wait_until_it_plays()
    began = time.perf_counter()
    result = process.finish()
    seconds = time.perf_counter() - began
    return Reference(result, states(directory), seconds)


def run(kills, rounds, seed=0):
    """All of it: the uninterrupted run, and killed ones until there were enough kills."""
    generator, hits, runs = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as home:
        reference = uninterrupted(pathlib.Path(home) / "whole", rounds)
        while len(hits) < kills:
            wanted = min(KILLS_OF_A_RUN, kills - len(hits))
            directory = pathlib.Path(home) / f"run{runs}"
            hits += play_and_kill(
                directory, wanted, rounds, reference.seconds, generator, reference
            )
            runs += 1
    counts = collections.Counter(hit["hit"] for hit in hits)
    return {
        "kills": len(hits),
        "runs_identical_to_the_bit": runs,
        "rounds": rounds,
        "seconds_of_a_run": reference.seconds,
        "checkpoints_verified_after_kills": sum(hit["verified"] for hit in hits),
        "hits": dict(counts.most_common()),
        "newest_rounds": [hit["newest"] for hit in hits],
    }


def main():
    """Reads the command line, and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    found = run(options.kills, options.rounds, options.seed)
    print(json.dumps(found, indent=1))
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
