"""A run that is killed ends as one that is not; files that are damaged are refused. A few of each.

The scripts in benchmarks/faults do the same many times.
"""

import importlib
import pathlib
import random
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "faults"


@pytest.fixture(scope="module")
def scripts():
    """The modules of the scripts, whose folder is on the path only when they run."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        yield {name: importlib.import_module(name) for name in ("kill", "mutate")}
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_to_the_bit_as_one_that_is_not(scripts, tmp_path):
    kill = scripts["kill"]
    reference = kill.uninterrupted(tmp_path / "whole", rounds=15, steps=20)
    assert len(reference.states) == 5
    hits = kill.play_and_kill(tmp_path / "killed", 2, 15, random.Random(0), reference, steps=20)
    assert hits


@pytest.mark.parametrize("kind", ["checkpoints", "states", "clients", "runs"])
def test_damaged_files_are_refused_or_right(scripts, kind):
    outcomes = scripts["mutate"].try_all(kind, range(40))
    assert outcomes.keys() <= {"refused", "harmless"}, outcomes
    assert outcomes["refused"] >= 20
