"""`fedjax-opt launch`: one run on several processes of this machine.

fedjax-opt launch -n 2 -- run digits fedavg --rounds 100
    a command of fedjax-opt, its clients over the devices of two processes
fedjax-opt launch -n 4 --devices 2 -- train.py --rounds 500
    a script of yours that calls fo.distributed.initialize() before JAX computes anything

Each line of output is shown with its process. If a process fails, the others are ended, and the status
is that of the first that failed. On several machines their own launcher starts the processes (SLURM,
Kubernetes, TPU pods): see docs/scale.md.
"""

import argparse
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from fedjax_opt.core import checks
from fedjax_opt.execution import distributed
from fedjax_opt.execution.devices import usable_cores

# Gloo announces its connections on standard output, which is for results.
_NOISE = "[Gloo] Rank "
_GRACE = 10.0  # seconds between asking a process to end and ending it


def add_parser(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "launch", help="one run on several processes of this machine", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("-n", "--processes", type=int, default=2, help="how many (default: 2)")
    parser.add_argument(
        "--devices", type=int, metavar="D",
        help="CPU devices of each process (default: the cores divided by the processes)",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", type=int, metavar="G", default=0,
        help="GPUs of each process, the next G of this machine's (default: as JAX finds them)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS",
        help="end all processes after so long, with status 124 (default: wait for them)",
    )  # fmt: skip
    parser.add_argument(
        "what", nargs=argparse.REMAINDER, metavar="-- COMMAND",
        help="a command of fedjax-opt, or a script that ends in .py, with its arguments",
    )  # fmt: skip
    parser.set_defaults(run=run, joins=False)


def run(options: argparse.Namespace) -> int:
    """Starts the processes, shows what they say, and returns the status of the run."""
    words = options.what[1:] if options.what[:1] == ["--"] else options.what
    if not words:
        raise ValueError(
            "launch needs a command or a script to run: launch -n 2 -- run digits fedavg."
        )
    return launch(
        command_of(words), options.processes, devices=options.devices, gpus=options.gpus,
        timeout=options.timeout,
    )  # fmt: skip


def command_of(words: Sequence[str]) -> list[str]:
    """What each process runs: a Python script, or a command of this command line."""
    if words[0].endswith(".py"):
        return [sys.executable, *words]
    return [sys.executable, "-m", "fedjax_opt.cli", *words]


def launch(
    command: Sequence[str],
    processes: int,
    *,
    devices: int | None = None,
    gpus: int = 0,
    timeout: float | None = None,
    show: Callable[[str, bool], Any] | None = None,
) -> int:
    """Runs a command in several processes that form one run; ends all when one fails."""
    checks.integer("processes", processes, low=1)
    devices = max(1, usable_cores() // processes) if devices is None else devices
    checks.integer("devices", devices, low=1)
    checks.integer("gpus", gpus, low=0)
    if timeout is not None:
        checks.number("timeout", timeout, low=0.0, open_low=True)
    show = show or _show
    address = f"127.0.0.1:{_free_port()}"
    ended: queue.Queue[tuple[int, int]] = queue.Queue()
    started, readers = [], []
    try:
        for index in range(processes):
            process = subprocess.Popen(
                command, env=_environment(address, processes, index, devices, gpus), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                errors="replace", bufsize=1,
            )  # fmt: skip
            started.append(process)
            for pipe, is_error in ((process.stdout, False), (process.stderr, True)):
                readers.append(_in_background(_forward, pipe, f"[{index}] ", is_error, show))
            _in_background(lambda p=process, i=index: ended.put((i, p.wait())))
        return _watch(started, ended, timeout, show)
    except KeyboardInterrupt:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        raise
    finally:
        _end(started)
        for reader in readers:
            reader.join(timeout=_GRACE)


def _watch(started: list[Any], ended: queue.Queue, timeout: float | None, show: Any) -> int:
    latest = None if timeout is None else time.monotonic() + timeout
    for left in range(len(started) - 1, -1, -1):
        try:
            index, status = ended.get(timeout=latest and max(0.0, latest - time.monotonic()))
        except queue.Empty:
            show(
                f"fedjax-opt: {left + 1} processes still run after {timeout:g} s, and are ended.",
                True,
            )
            return 124
        if status != 0:
            how = f"failed with status {status}"
            if status < 0:
                how = f"was ended by {signal.Signals(-status).name}"
            others = " The others are ended." if left else ""
            show(f"fedjax-opt: process {index} of {len(started)} {how}.{others}", True)
            return status if status > 0 else 128 - status
    return 0


def _end(started: list[Any]) -> None:
    """Asks who still runs to end, and ends who does not listen."""
    for process in started:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment(address: str, count: int, index: int, devices: int, gpus: int) -> dict[str, str]:
    added = {
        distributed.ADDRESS: address,
        distributed.COUNT: str(count),
        distributed.INDEX: str(index),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONUNBUFFERED": "1",
    }
    if gpus:
        mine = range(index * gpus, (index + 1) * gpus)
        added["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, mine))
    return os.environ | added


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _in_background(function: Callable[..., Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _forward(pipe: IO[str], prefix: str, is_error: bool, show: Callable[[str, bool], Any]) -> None:
    with pipe:
        for line in pipe:
            if not line.startswith(_NOISE):
                show(f"{prefix}{line.rstrip()}", is_error)


def _show(line: str, is_error: bool) -> None:
    # One write for a line: threads of other processes write, too.
    stream = sys.stderr if is_error else sys.stdout
    stream.write(f"{line}\n")
    stream.flush()
