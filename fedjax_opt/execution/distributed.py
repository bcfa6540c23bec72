"""Many processes, one run: JAX's distributed runtime is the engine, and this is how a process joins it.

Every process runs the same script. Once joined, `jax.devices()` are the devices of all processes and the
'sharded' strategy spreads clients over them; each process calls the same functions in the same order.
"""

import inspect
import json
import os
import sys
import traceback
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import checks

# JAX's own names where it has them; `fedjax-opt launch` sets them, and so may any other launcher.
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
# The index of a pod of an indexed Kubernetes job.
_JOB_INDEX = "JOB_COMPLETION_INDEX"
# What JAX says where it finds no cluster. Any other error is one of a cluster that it cannot read: taken
# for being alone too, each of n processes would play a whole run by itself.
_NO_CLUSTER = "coordinator_address should be defined"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Process(NamedTuple):
    """Which process of a run this is.

    Attributes:
      index: from 0; process 0 shows progress and writes files.
      count: how many there are.
    """

    index: int
    count: int


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = 30,
    timeout_seconds: int = 300,
) -> Process:
    """Joins this process to a run of many; call it before JAX runs its first computation.

    What is not given is read from the environment: `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` (which `fedjax-opt launch` sets; in an indexed Kubernetes job `JOB_COMPLETION_INDEX`
    is the process), or found by JAX itself on SLURM, Open MPI and TPU pods. Where there is nothing of
    all that the process runs alone, so the same script works on a laptop. CPUs talk by Gloo, other
    devices by what they have (NCCL, ICI).

    From then on a process that fails ends at once, and so do the others soon after: whoever waits for it
    gets an error from the collective, or no heartbeat from it.

    Args:
      coordinator_address: 'host:port' of process 0, which all can reach.
      num_processes: how many processes there are.
      process_id: which of them this is, from 0.
      heartbeat_seconds: after how many seconds of silence a process counts as dead.
      timeout_seconds: how long to wait for the others to join.

    Returns:
      This process's place among all.

    Raises:
      ValueError: if only a part of what is needed is known, or a cluster's settings cannot be read.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.distributed.initialize()           # doctest: +SKIP
      Process(index=0, count=1)
    """
    heartbeat = checks.integer("heartbeat_seconds", heartbeat_seconds, low=1)
    timeout = checks.integer("timeout_seconds", timeout_seconds, low=1)
    if jax.distributed.is_initialized():
        return Process(jax.process_index(), jax.process_count())
    place = _place(coordinator_address, num_processes, process_id)
    if "JAX_CPU_COLLECTIVES_IMPLEMENTATION" not in os.environ:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    options: dict[str, Any] = {
        "initialization_timeout": timeout,
        "heartbeat_timeout_seconds": heartbeat,
    }
    if place:
        options |= place
        host = place["coordinator_address"].rpartition(":")[0]
        if host in _LOOPBACK:  # nobody but this machine is meant to reach it
            options["coordinator_bind_address"] = place["coordinator_address"]
        if "KUBERNETES_SERVICE_HOST" in os.environ:  # nor has JAX to ask the cluster
            options["cluster_detection_method"] = "deactivate"
    known = inspect.signature(jax.distributed.initialize).parameters
    options = {name: value for name, value in options.items() if name in known}
    try:
        jax.distributed.initialize(**options)
    except ValueError as error:
        if place:
            raise
        if _NO_CLUSTER in str(error):
            return Process(0, 1)
        raise ValueError(
            f"This process is on a cluster whose settings JAX cannot read ({error}): set {ADDRESS},"
            f" {COUNT} and {INDEX}, or correct what the launcher has put into the environment."
        ) from error
    process = Process(jax.process_index(), jax.process_count())
    if process.count > 1:
        sys.excepthook = _end_at_once
    return process


def is_joined() -> bool:
    """Whether this process is one of several that run together; it does not start JAX.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.distributed.is_joined()
      False
    """
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this process shows progress and writes files: process 0, or the only one.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.distributed.is_first()
      True
    """
    return not is_joined() or jax.process_index() == 0


def from_first(value: Any) -> Any:
    """What process 0 holds, in all processes: whatever JSON can write.

    All processes must call it, as they do everything else. It is for decisions that only one may take:
    what a clock says, what a directory holds.

    Args:
      value: process 0's value; what the others pass is not read.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.distributed.from_first({"stop": True})
      {'stop': True}
    """
    return from_each(value if is_first() else None)[0]


def from_each(value: Any) -> list[Any]:
    """What each process holds, in all processes: whatever JSON can write.

    All processes must call it, and none returns before all have.

    Args:
      value: this process's value.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.distributed.from_each({"free": 10})
      [{'free': 10}]
    """
    if not is_joined():
        return [value]
    from jax.experimental import multihost_utils

    text = json.dumps(value).encode()
    lengths = multihost_utils.process_allgather(np.asarray(len(text), np.int32))
    room = np.zeros(lengths.max(), np.uint8)  # of a length that all processes know
    room[: len(text)] = np.frombuffer(text, np.uint8)
    found = multihost_utils.process_allgather(room)
    return [json.loads(row[:length].tobytes()) for row, length in zip(found, lengths, strict=True)]


def barrier() -> None:
    """Waits for all processes: none goes on before all have come here.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.distributed.barrier()              # nobody to wait for
    """
    from_each(None)


def _place(address: str | None, count: int | None, index: int | None) -> dict[str, Any]:
    """The three that say where a process belongs; nothing where JAX is to find out."""
    environment = os.environ
    address = address or environment.get(ADDRESS)
    count = _number(COUNT, environment.get(COUNT)) if count is None else count
    if index is None:
        index = _number(INDEX, environment.get(INDEX))
    if index is None and address is not None:
        index = _number(_JOB_INDEX, environment.get(_JOB_INDEX))
    found = {"coordinator_address": address, "num_processes": count, "process_id": index}
    missing = [name for name, value in found.items() if value is None]
    if len(missing) == 3:
        return {}
    if missing:
        given = ", ".join(f"{name}={value!r}" for name, value in found.items() if value is not None)
        raise ValueError(
            f"{' and '.join(missing)} must be given too, or be in the environment ({ADDRESS}, {COUNT},"
            f" {INDEX}): got {given} alone."
        )
    checks.integer("num_processes", count, low=1)
    checks.integer("process_id", index, low=0)
    if found["process_id"] >= found["num_processes"]:
        raise ValueError(
            f"process_id must be below num_processes, {count}, got {index}: it counts from 0."
        )
    if not str(address).rpartition(":")[2].isdecimal():
        raise ValueError(f"coordinator_address must be 'host:port', got {address!r}.")
    return found


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise ValueError(f"{name} in the environment must be a whole number, got {text!r}.")
    return int(text)


def _end_at_once(kind: Any, error: Any, trace: Any) -> None:
    """Says what failed and ends: tidying up would wait for processes that wait for this one."""
    traceback.print_exception(kind, error, trace)
    print(
        f"fedjax_opt: process {jax.process_index()} of {jax.process_count()} ends because of the error"
        " above; the others cannot go on without it. An error of Gloo, NCCL or the coordination service"
        " means most likely that another process died, whose own output says why. Start all of them"
        " again: with checkpoints, the run goes on from the newest.",
        file=sys.stderr,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)
