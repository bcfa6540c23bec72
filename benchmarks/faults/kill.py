"""Kills a run with SIGKILL at random moments, resumes it, and compares it with one that nobody killed.

    python benchmarks/faults/kill.py --kills 50 --output benchmarks/results/faults_kill.json

A run (`worker.py`) is killed some times at random moments, each time resumed by a new process, and then
let to its end. After every kill each checkpoint that is there must be whole, and hold the bits that
the uninterrupted run had in that round; at the end all arrays of the result must be the same to the bit.
"""

import argparse
import collections
import json
import multiprocessing
import os
import pathlib
import random
import tempfile
import time
from typing import NamedTuple

import jax
import numpy as np
import worker

import fedjax_opt as fo

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["worker"])
# The process that the others are forked from looks for modules nowhere else.
HERE = pathlib.Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
KILLS_OF_A_RUN = 5
PHASES = {b"r": "playing rounds", b"b": "between rounds"}


class Worker:
    """A process that plays the run; forked from one that has imported everything, to save time."""

    def __init__(self, directory, rounds, keep=3, devices=1, steps=300):
        self.directory, self.output = directory, directory.with_suffix(".npz")
        self._mark = directory.with_suffix(".mark")
        self._mark.unlink(missing_ok=True)
        self._began = time.time()
        arguments = (directory, self.output, rounds, keep, devices, steps)
        x64 = bool(jax.config.jax_enable_x64)
        self.process = FORKS.Process(target=worker.run, args=(*arguments, x64))
        self.process.start()

    def _marked(self):
        return self._mark.read_bytes() if self._mark.exists() else b""

    def phase(self):
        """What it is doing, or was when it was killed."""
        return PHASES.get(self._marked()[:1], "starting")

    def finish(self):
        """Lets it come to its end."""
        self.process.join()
        assert self.process.exitcode == 0, "the run failed; see above"
        return dict(np.load(self.output))

    def wait_until_it_plays(self):
        """Returns when all is compiled, and the second chunk begins."""
        while self._marked()[1:] != b"1" and self.process.is_alive():
            time.sleep(0.01)

    def kill(self, delay):
        """Kills it after some seconds; None if it was done before, else where it was hit."""
        time.sleep(delay)
        if not self.process.is_alive():
            assert self.process.exitcode == 0, "the run failed; see above"
            return None
        self.process.kill()
        self.process.join()
        return f"{self.phase()}, {self._writing()} a checkpoint"

    def _writing(self):
        """What it has left unfinished; what is older was left by a process before it."""
        left = [p.name for p in self.directory.glob(".*-*") if p.stat().st_mtime > self._began]
        if any(name.startswith(".deleted") for name in left):
            return "deleting"
        return "writing" if left else "not writing"


def states(directory):
    """The bits of the checkpoints in a directory, by round."""
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


def play_and_kill(directory, kills, rounds, generator, reference, **options):
    """One run that is killed some times; where it was hit each time, and what was there then."""
    hits = []
    while len(hits) < kills:
        process = Worker(directory, rounds, **options)
        if generator.random() > 0.1:  # else it may be hit before it plays, or while it resumes
            process.wait_until_it_plays()
            hit = process.kill(generator.uniform(0, 1.2 * reference.seconds / (kills + 1)))
        else:
            hit = process.kill(generator.uniform(0, 5))
        if hit is None:
            break
        there = states(directory)
        for number, arrays in there.items():
            assert identical(arrays, reference.states[number]), f"round {number} is another one"
        hits.append({"hit": hit, "newest": max(there, default=0), "verified": len(there)})
        print(f"killed {hit}; newest: round {hits[-1]['newest']}", flush=True)
    result = Worker(directory, rounds, **options).finish()
    assert identical(result, reference.result), "another result"
    return hits


class Reference(NamedTuple):
    """The run that nobody killed: its result, its state and history by round, and how long it took."""

    result: dict
    states: dict
    seconds: float


def uninterrupted(directory, rounds, **options):
    """Plays it, with all of its checkpoints kept."""
    process = Worker(directory, rounds, keep=rounds, **options)
    process.wait_until_it_plays()
    began = time.perf_counter()
    result = process.finish()
    seconds = time.perf_counter() - began
    return Reference(result, states(directory), seconds)


def run(kills, rounds, seed=0):
    """The uninterrupted run, and killed ones until there were enough kills; a summary after each."""
    generator, hits, runs = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as home:
        reference = uninterrupted(pathlib.Path(home) / "whole", rounds)
        while len(hits) < kills:
            wanted = min(KILLS_OF_A_RUN, kills - len(hits))
            directory = pathlib.Path(home) / f"run{runs}"
            hits += play_and_kill(directory, wanted, rounds, generator, reference)
            runs += 1
            yield summary(hits, runs, rounds, reference.seconds)


def summary(hits, runs, rounds, seconds):
    """What is known when all of these runs have ended well."""
    counts = collections.Counter(hit["hit"] for hit in hits)
    return {
        "kills": len(hits),
        "runs_identical_to_the_bit": runs,
        "rounds": rounds,
        "seconds_of_a_run": seconds,
        "checkpoints_verified_after_kills": sum(hit["verified"] for hit in hits),
        "hits": dict(counts.most_common()),
        "newest_rounds": [hit["newest"] for hit in hits],
    }


def main():
    """Reads the command line, and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    for found in run(options.kills, options.rounds, options.seed):
        print(json.dumps(found, indent=1), flush=True)
        if options.output:
            options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
