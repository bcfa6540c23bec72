"""Examples on disk, each device its own; here a process with several devices takes itself for many."""

import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import fedjax_opt as fo
from fedjax_opt.training import parted
from tests.core.problems import MODEL, assert_close, ragged

SIZES = np.random.default_rng(3).integers(1, 30, 40)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    data = ragged(SIZES)
    return data, fo.data.store(data, tmp_path_factory.mktemp("parted") / "clients")


@pytest.fixture
def streams(monkeypatch):
    """As if the mesh were of several processes; a list of what then reads the examples."""
    made = []

    def make(*arguments):
        made.append(parted.Parted(*arguments))
        return made[-1]

    monkeypatch.setattr(Mesh, "is_multi_process", property(lambda mesh: True))
    monkeypatch.setattr(sys.modules["fedjax_opt.training.player"], "Parted", make)
    return made


def play(data, strategy, **changes):
    settings = {"cohort_size": 6, "local_epochs": 1} | changes
    return fo.simulate(
        fo.scaffold(fo.optimizers.sgd(0.02)), MODEL, data, 5, batch_size=4, evaluate_every=2,
        progress=False, strategy=strategy, **settings,
    )  # fmt: skip


def test_a_run_whose_devices_read_their_own_is_the_run(both, streams):
    data, stored = both
    count = 3
    mesh = Mesh(np.array(jax.devices()[:count]), ("clients",))
    expected = play(data, "scan")
    found = play(stored, fo.Strategy("sharded", mesh=mesh))
    assert_close(found.state, expected.state, 1e-10)
    assert_close(found.history, expected.history, 1e-10)
    (stream,) = streams
    # What each device of each chunk of two rounds needs, and no more: at most what the cohorts hold.
    cohorts = found.history["cohort"]
    assert 0 < stream.rows_read <= SIZES[cohorts].sum() + SIZES.max() * count * len(cohorts)
    assert stream.rows_read < SIZES[cohorts].sum() * count / 2, "not everything to everybody"


def test_a_number_of_steps_for_each_client_is_foreseen(both, streams):
    data, stored = both
    steps = {"local_epochs": None, "local_steps": np.arange(40, dtype=np.int32) % 7 + 1}
    expected, found = play(data, "scan", **steps), play(stored, "sharded", **steps)
    assert_close(found.state, expected.state, 1e-10)
    assert len(streams) == 1
