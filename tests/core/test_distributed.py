"""Several processes, one run: the same numbers as alone; and what a process may say about its place."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.cli.launch import launch
from fedjax_opt.execution import distributed
from fedjax_opt.storage.row_file import RowFile
from tests.core import joined_run, problems

ROOT = pathlib.Path(__file__).parents[2]
VARIABLES = (distributed.ADDRESS, distributed.COUNT, distributed.INDEX, "JOB_COMPLETION_INDEX")


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A folder in which two processes have played joined_run, and what each of them saw.

    Some of their runs were begun before, by one process.
    """
    folder = tmp_path_factory.mktemp("joined")
    stored = fo.data.store(joined_run.DATA, folder / "data")
    with fo.Checkpoints(folder / "begun_by_one") as checkpoints:
        joined_run.simulate("scan", 2, stored, checkpoints)
    for name in joined_run.KEPT:
        joined_run.keep(name, "scan", 2, folder / name / "begun_by_one")
    said = []
    command = [sys.executable, "-m", "tests.core.joined_run", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        status = launch(
            command, 2, devices=2, timeout=400, show=lambda line, is_error: said.append(line)
        )
    assert status == 0, "\n".join(said)
    assert sorted(line for line in said if "done" in line) == [
        f"[{i}] process {i} is done" for i in range(2)
    ]
    reports = [(folder / f"process{i}.json").read_text(encoding="utf-8") for i in range(2)]
    return folder, [json.loads(report) for report in reports]


def assert_all_close(found, expected, tolerance=1e-12):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_two_processes_give_the_numbers_of_one(joined):
    """Rounds, a simulation of data on disk with both kinds of evaluation, and its continuation."""
    expected = joined_run.play("scan")
    for index, report in enumerate(joined[1]):
        assert report["process"] == [index, 2] and report["devices"] == [4, 2]
        assert report["first"] == "said by 0" and report["each"] == ["said by", "said by me"]
        assert report["same again"] and report["latest"] == 4
        # One of real numbers and one of integers: sums, and with them each client's own numbers.
        assert report["messages"] == 2
        assert_all_close(report["found"], expected)


def test_a_run_goes_on_with_more_processes_or_with_fewer(joined):
    """From 1 to 2 in round 2, and from 2 to 1 in round 4."""
    folder, reports = joined
    for report in reports:
        assert_all_close(report["continued"], joined_run.simulate("scan", 4))
    with fo.Checkpoints(folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_round == 4
        found = joined_run.simulate("scan", 6, fo.data.open_stored(folder / "data"), checkpoints)
    assert_all_close(found, joined_run.simulate("scan", 6))


def test_two_processes_go_back_together(joined, tmp_path):
    """To checkpoints, with clients in a store of two parts, as one process does."""
    expected = joined_run.go_back("scan", tmp_path)
    for report in joined[1]:
        assert_all_close(report["gone back"], expected)


def run_ahead(path):
    """Rows of rounds that no checkpoint knows, as if the other process had died in between."""
    part = RowFile.opened(path, (1, 2))
    ids = np.array([1, 5])
    assert part.round == 2
    part.write(4, ids, np.full_like(part.read(ids), 7), 0)
    part.close()


@pytest.mark.parametrize("name", joined_run.KEPT)
def test_stores_and_checkpoints_of_many_processes(joined, name, tmp_path):
    """Each process has the rows of its own clients, and what it holds of a model that both share."""
    folder, reports = joined
    expected = joined_run.keep(name, "scan", 2), joined_run.keep(name, "scan", 4)
    for report in reports:
        for found, alone in zip(report["kept"][name], expected, strict=True):
            assert_all_close(found, alone)
    home = folder / name / "begun_by_two"
    store = home / "store"
    took_part = np.unique(expected[0][0])
    for part in range(2):
        alone = tmp_path / str(part)
        alone.mkdir()
        shutil.copy(store / f"part-{part:05d}-of-00002.sqlite", alone)
        np.testing.assert_array_equal(
            problems.stored_clients(alone), took_part[took_part % 2 == part]
        )
    written = (home / "checkpoints" / "2" / "state").glob("ocdbt.process_*")
    assert len(list(written)) == (2 if name == "shared" else 1)
    run_ahead(store / "part-00001-of-00002.sqlite")
    assert_all_close(joined_run.keep(name, "scan", 4, home), expected[1])


def test_a_store_with_a_part_that_is_not_its_own_is_refused(joined):
    store = joined[0] / "small" / "begun_by_two" / "store"
    parts = [store / f"part-{part:05d}-of-00002.sqlite" for part in range(2)]
    parts[1].rename(store.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"without part 1 of 2: no process sees its file"):
        joined_run.keep("small", "scan", 6, store.parent)
    shutil.copy(parts[0], parts[1])
    with pytest.raises(ValueError, match=r"must hold part 1 of 2, .*got part 0 of 2"):
        joined_run.keep("small", "scan", 6, store.parent)
    parts[1].unlink()
    shutil.copy(parts[0], store / "part-00001-of-00003.sqlite")
    with pytest.raises(ValueError, match=r"there are some of 2 and of 3 parts"):
        joined_run.keep("small", "scan", 6, store.parent)


@pytest.fixture
def alone(monkeypatch):
    """An environment that says nothing, and a JAX that notes how it was to be initialised."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    calls = []
    taken = distributed.inspect.signature(jax.distributed.initialize)

    def initialize(**options):
        calls.append(options)
        if "coordinator_address" not in options:
            raise ValueError("coordinator_address should be defined.")

    initialize.__signature__ = taken
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax.config, "update", lambda name, value: calls.append({name: value}))
    return calls


def test_without_a_word_the_process_is_alone(alone):
    assert fo.distributed.initialize() == (0, 1)
    assert alone[0] == {"jax_cpu_collectives_implementation": "gloo"}
    assert alone[1] == {"initialization_timeout": 300, "heartbeat_timeout_seconds": 30}
    assert fo.distributed.is_first() and fo.distributed.from_first([1]) == [1]


SLURM = {"JOB_ID": "7", "STEP_NODELIST": "here", "NTASKS": "2", "PROCID": "0", "LOCALID": "0"}


@pytest.mark.parametrize(("tasks", "answer"), [(None, "Process(index=0, count=1)"), ("2x", "2x")])
def test_a_cluster_that_cannot_be_read_is_no_lone_process(tasks, answer):
    """JAX's own words decide, so this asks the real one."""
    code = (
        "import fedjax_opt as fo\n"
        "try: print(fo.distributed.initialize(timeout_seconds=5))\n"
        "except ValueError as error: print(error)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES}
    if tasks is not None:
        environment |= {f"SLURM_{k}": v for k, v in (SLURM | {"NTASKS": tasks}).items()}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert answer in found
    assert ("on a cluster whose settings JAX cannot read" in found) == (tasks is not None)


def test_arguments_and_the_environment_are_read(alone, monkeypatch):
    monkeypatch.setenv(distributed.ADDRESS, "run-0.run:1234")
    monkeypatch.setenv(distributed.COUNT, "4")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    fo.distributed.initialize(heartbeat_seconds=7)
    place = {"coordinator_address": "run-0.run:1234", "num_processes": 4, "process_id": 3}
    assert alone[-1] == {**place, "initialization_timeout": 300, "heartbeat_timeout_seconds": 7}
    fo.distributed.initialize("127.0.0.1:5678", 2, 1)
    assert alone[-1]["coordinator_address"] == alone[-1]["coordinator_bind_address"]
    assert (alone[-1]["num_processes"], alone[-1]["process_id"]) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("host:1",),
            r"num_processes and process_id must be given too, .*got coordinator_address='h",
        ),
        ((None, 2, 0), "coordinator_address must be given too"),
        (("host:1", 2, 2), "process_id must be below num_processes, 2, got 2"),
        (("host:1", 0, 0), "num_processes must be .*at least 1, got 0"),
        (("host", 2, 0), "coordinator_address must be 'host:port', got 'host'"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(alone, arguments, message):
    with pytest.raises(ValueError, match=message):
        fo.distributed.initialize(*arguments)
    assert not alone


def test_a_number_in_the_environment_must_be_one(alone, monkeypatch):
    monkeypatch.setenv(distributed.COUNT, "two")
    with pytest.raises(ValueError, match=r"JAX_NUM_PROCESSES in the environment .*got 'two'"):
        fo.distributed.initialize()
    with pytest.raises(ValueError, match=r"heartbeat_seconds must be .*at least 1, got 0"):
        fo.distributed.initialize(heartbeat_seconds=0)


def test_last_words_and_the_end(monkeypatch, capsys):
    """Of any error: whoever waits for this process would wait for ever."""
    ended = []
    monkeypatch.setattr(distributed.os, "_exit", ended.append)
    distributed._end_at_once(ZeroDivisionError, ZeroDivisionError("of mine"), None)
    said = capsys.readouterr().err
    assert "of mine" in said and "process 0 of 1 ends because of the error above" in said
    distributed._end_at_once(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert ended == [1, 130]
