"""What a run needs of memory, before it starts; and what would fit, if it does not.

    arrays     data that stays on the device, the state and its copies: known from shapes alone
    program    what the compiled program reports beside its arguments; asked for with `memory_limit`

On CPUs all devices share the host's memory, and what is placed on each of them counts once for each.
"""

import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData, in_memory
from fedjax_opt.core.messages import array_bytes
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import changed
from fedjax_opt.engine.preparation import Prepared
from fedjax_opt.execution import strategies

_CGROUP = pathlib.Path("/sys/fs/cgroup/memory.max")

# (prepared, state) -> the compiled program of a chunk of rounds.
Compile = Callable[[Any, Any], Any]


class Memory(NamedTuple):
    """The bytes that a run needs.

    Attributes:
      data: examples that are on the device at once.
      state: server and clients, with the copies that a run keeps of them.
      program: temporary memory of the compiled program; 0 where it was not asked.
    """

    data: int
    state: int
    program: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.data + self.state + self.program

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_readable(size)}" for name, size in self._asdict().items())
        return f"{_readable(self.total)} ({parts})"


def check_memory(
    prepared: Prepared,
    state: FederatedState,
    chunk: int,
    copies: int,
    limit: Any,
    compile_chunk: Compile,
) -> None:
    """Refuses a run that does not fit, and names the largest that would.

    Args:
      prepared, state: the run.
      chunk: the rounds that are played at once.
      copies: how many copies of the state there are at once.
      limit: the bytes that the run may take, or 'device' for what there is; None to check no more than
        the arrays, against what there is.
      compile_chunk: what compiles a chunk of rounds, for shapes of these.

    Raises:
      ValueError: if the run does not fit.
    """
    arrays = _arrays(prepared, state, chunk, copies)
    there_is = available_bytes()
    if limit is None:
        if there_is is not None and arrays.total > there_is:
            raise ValueError(
                f"The run's arrays need {arrays}, but there are {_readable(there_is)}. Keep the data"
                " on the host with fo.data.store and fo.data.open_stored, or use fewer clients."
            )
        return
    if limit == "device":
        limit = there_is
        if limit is None:
            raise ValueError("memory_limit='device': this device does not tell; give it in bytes.")
    limit = checks.integer("memory_limit", limit, low=1)

    def needed(run: Prepared) -> Memory:
        analysis = compile_chunk(*_abstract(run, state, chunk)).memory_analysis()
        found = _arrays(run, state, chunk, copies)
        temporary = 0 if analysis is None else analysis.temp_size_in_bytes
        return found._replace(program=temporary * _devices(run))

    memory = needed(prepared)
    if memory.total > limit:
        if memory.data + memory.state > limit and in_memory(prepared.federation.clients):
            hint = (
                "Already the arrays do not fit, whatever the cohort: keep the data on the host with"
                " fo.data.store and fo.data.open_stored, or use a smaller model."
            )
        else:
            hint = _what_fits(prepared, lambda run: needed(run).total <= limit)
        raise ValueError(
            f"The run needs {memory}, more than memory_limit={limit}, which is {_readable(limit)}."
            f" {hint}"
        )


def available_bytes() -> int | None:
    """The memory of the first device, or of the host for a CPU; None if it does not tell."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        text = _CGROUP.read_text().strip() if _CGROUP.exists() else "max"
    except (OSError, ValueError, AttributeError):
        return None
    return min(found, int(text)) if text.isdecimal() else found


def _what_fits(prepared: Prepared, fits: Callable[[Prepared], bool]) -> str:
    """The largest chunk of clients that fits, else the largest cohort, by compiling a few."""
    smaller = []
    strategy, size = prepared.strategy, prepared.federation.cohort.size
    if strategy.name in ("vmap", "chunked"):
        now = size if strategy.name == "vmap" else min(strategy.size, size)
        options = strategies.candidates(size, num_devices=1)[1:]
        smaller = [s for s in options if s.name == "scan" or s.size < now]
    for option in smaller:
        if fits(prepared.replace(strategy=option)):
            made = f'"{option.name}"'
            if option.name == "chunked":
                made = f'fo.Strategy("chunked", size={option.size})'
            return f"strategy={made} is the largest that fits."
    prepared = prepared.replace(strategy=smaller[-1]) if smaller else prepared
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(_of_cohort(prepared, middle)) else (low, middle)
    if low == 0:
        return "Not even a cohort of one client fits: use a smaller model or batch_size."
    name = prepared.strategy.name
    return f'A cohort of {low} clients is the largest that fits, with strategy="{name}".'


def _of_cohort(prepared: Prepared, size: int) -> Prepared:
    """The same run with smaller cohorts."""
    cohort = changed(prepared.federation.cohort, size=size)
    return prepared.replace(federation=changed(prepared.federation, cohort=cohort))


def _arrays(prepared: Prepared, state: FederatedState, chunk: int, copies: int) -> Memory:
    clients: Any = prepared.federation.clients
    rows = _rows_at_once(prepared, chunk)
    leaves = jax.tree.leaves(clients.examples)
    held = sum(array_bytes(x) // max(x.shape[0], 1) * rows for x in leaves)
    kept = array_bytes(state._replace(key=()))
    devices = _devices(prepared)
    return Memory(held * devices, kept * copies * devices)


def _rows_at_once(prepared: Prepared, chunk: int) -> int:
    """How many examples are on the device; of data on the host, at most those of one chunk's cohorts."""
    clients: Any = prepared.federation.clients
    if in_memory(clients):
        return jax.tree.leaves(clients.examples)[0].shape[0]
    sizes = np.asarray(clients.sizes)
    most = min(chunk * prepared.federation.cohort.size + 1, len(sizes))
    return int(np.partition(sizes, -most)[-most:].sum(dtype=np.int64))


def _devices(prepared: Prepared) -> int:
    """How many devices share one memory."""
    mesh = prepared.strategy.mesh
    return mesh.size if mesh is not None and mesh.devices.flat[0].platform == "cpu" else 1


def _abstract(prepared: Prepared, state: FederatedState, chunk: int) -> tuple[Any, Any]:
    """Shapes of a run as its program sees it."""
    clients: Any = prepared.federation.clients
    rows = _rows_at_once(prepared, chunk)
    examples = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), clients.examples
    )
    seen = ClientData(examples, clients.offsets, clients.sizes)
    return jax.tree.map(_shape, (prepared.with_clients(seen), state))


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
