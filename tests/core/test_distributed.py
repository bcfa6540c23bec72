"""Several processes, one run: the same numbers as alone; and what a process may say about its place."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.cli.launch import launch
from fedjax_opt.core import distributed
from tests.core import joined_run

ROOT = pathlib.Path(__file__).parents[2]
VARIABLES = (distributed.ADDRESS, distributed.COUNT, distributed.INDEX, "JOB_COMPLETION_INDEX")


def test_two_processes_give_the_numbers_of_one(tmp_path, monkeypatch):
    """Rounds, a simulation of data on disk with both kinds of evaluation, and its continuation."""
    fo.data.store(joined_run.DATA, tmp_path / "data")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    said = []
    command = [sys.executable, "-m", "tests.core.joined_run", str(tmp_path)]
    status = launch(
        command, 2, devices=2, timeout=240, show=lambda line, is_error: said.append(line)
    )
    assert status == 0, "\n".join(said)
    assert sorted(line for line in said if "done" in line) == [
        f"[{i}] process {i} is done" for i in range(2)
    ]
    expected = joined_run.play("scan")
    for index in range(2):
        report = json.loads((tmp_path / f"process{index}.json").read_text(encoding="utf-8"))
        assert report["process"] == [index, 2] and report["devices"] == [4, 2]
        assert report["first"] == "said by 0"
        assert report["same again"] and report["latest"] == 4
        assert len(report["found"]) == len(expected)
        for found, alone in zip(report["found"], expected, strict=True):
            np.testing.assert_allclose(found, alone, rtol=1e-10, atol=1e-10)


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


def test_last_words_say_whose_fault_it_is(monkeypatch, capsys):
    """An error of a collective is another process's; any other is this one's own. Both end at once."""
    ended = []
    monkeypatch.setattr(distributed.os, "_exit", ended.append)
    try:
        try:
            raise ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")
        except ValueError as cause:
            raise RuntimeError("the checkpoint was not written") from cause
    except RuntimeError as error:
        distributed._end_at_once(RuntimeError, error, error.__traceback__)
    said = capsys.readouterr().err
    assert "Connection closed" in said and "most likely because another process died" in said
    distributed._end_at_once(ZeroDivisionError, ZeroDivisionError("of mine"), None)
    said = capsys.readouterr().err
    assert "of mine" in said and "process 0 of 1 ends because of the error above" in said
    distributed._end_at_once(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert ended == [1, 1, 130]
