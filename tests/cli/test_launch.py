"""`fedjax-opt launch` as a starter of processes; what runs here does not import JAX."""

import sys
import time

import pytest

from fedjax_opt.cli import launch as launching
from fedjax_opt.cli import main
from fedjax_opt.cli.launch import command_of, launch
from fedjax_opt.execution import distributed

ME = f"import os, sys, time, signal; me = int(os.environ[{distributed.INDEX!r}]); "


def started(code, processes=2, **options):
    """The status, and what was shown: (line, whether it is of standard error)."""
    shown = []
    status = launch(
        [sys.executable, "-c", ME + code], processes,
        show=lambda line, is_error: shown.append((line, is_error)), **options,
    )  # fmt: skip
    return status, shown


def test_each_process_knows_its_place_and_is_heard():
    names = (distributed.ADDRESS, distributed.COUNT, "JAX_NUM_CPU_DEVICES", "JAX_LOCAL_DEVICE_IDS")
    code = (
        f"print(*(os.environ[name] for name in {names}));"
        " print('[Gloo] Rank 0 is connected'); print('oops', file=sys.stderr)"
    )
    status, shown = started(code, 3, devices=5, gpus=2)
    assert status == 0
    said = sorted(line for line, is_error in shown if not is_error)
    assert [line.split()[0] for line in said] == ["[0]", "[1]", "[2]"]
    assert {line.split()[1] for line in said} == {said[0].split()[1]}
    assert said[0].split()[1].startswith("127.0.0.1:")
    assert [line.split()[2:] for line in said] == [
        ["3", "5", f"{2 * i},{2 * i + 1}"] for i in range(3)
    ]
    assert sorted(line for line, is_error in shown if is_error) == [f"[{i}] oops" for i in range(3)]


@pytest.mark.parametrize(
    ("fails", "status", "how"),
    [
        ("sys.exit(3)", 3, "failed with status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by SIGKILL"),
    ],
)
def test_the_others_end_when_one_fails(fails, status, how):
    """Process 0 would sleep for a minute."""
    began = time.monotonic()
    found, shown = started(f"time.sleep(60) if me == 0 else {fails}")
    assert found == status
    assert (f"fedjax-opt: process 1 of 2 {how}. The others are ended.", True) in shown
    assert time.monotonic() - began < 30


def test_nobody_is_waited_for_after_the_timeout():
    began = time.monotonic()
    status, shown = started("time.sleep(60 * me)", timeout=2)
    assert status == 124
    assert ("fedjax-opt: 1 processes still run after 2 s, and are ended.", True) in shown
    assert time.monotonic() - began < 30


def test_who_does_not_listen_is_ended(monkeypatch):
    monkeypatch.setattr(launching, "_GRACE", 0.5)
    code = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN) if me == 0 else (time.sleep(1), sys.exit(1))"
    )
    began = time.monotonic()
    status, _ = started(f"{code}; time.sleep(60)")
    assert status == 1 and time.monotonic() - began < 30


def test_scripts_and_commands_are_told_apart():
    assert command_of(["train.py", "--x"]) == [sys.executable, "train.py", "--x"]
    assert command_of(["run", "digits"]) == [
        sys.executable,
        "-m",
        "fedjax_opt.cli",
        "run",
        "digits",
    ]


def test_nothing_to_launch_is_refused(capsys):
    assert main(["launch", "-n", "2", "--"]) == 2
    assert "launch needs a command or a script to run" in capsys.readouterr().err
    assert main(["launch", "-n", "0", "--", "train.py"]) == 2
    assert "processes must be" in capsys.readouterr().err


def test_a_command_that_is_for_one_process_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("fedjax_opt.use_cpu_devices", lambda: 1)
    monkeypatch.setenv(distributed.ADDRESS, "127.0.0.1:1")
    assert main(["list"]) == 2
    assert "run, sweep, compare together, not 'list'" in capsys.readouterr().err
