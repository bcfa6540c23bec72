"""What a run needs of memory, asked before it starts, and the strategy that fits.

    data, state   arrays, with the copies that a run keeps: known from shapes alone
    program       the temporary memory that a compiled program reports beside its arguments

On CPUs all devices share the host's memory, and what is placed on each of them counts once for each.
"""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.execution.strategies import Strategy, resolve

Option = TypeVar("Option")

# A share of the device is left for the program's other arrays and for fragmentation.
_USABLE = 0.8
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_CGROUP = pathlib.Path("/proc/self/cgroup")


class Memory(NamedTuple):
    """The bytes that a run needs: of examples, of the federation's state, of the program itself."""

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


def fit(
    strategy: Strategy,
    cohort_size: int,
    compiled: Callable[[Strategy], jax.stages.Compiled],
    data: object = (),
    state: object = (),
) -> Strategy:
    """The strategy that a run is played with: 'auto' settled, a limit kept.

    Args:
      strategy: a resolved strategy; without a `memory_limit`, any but 'auto' is returned as it is.
      cohort_size: S.
      compiled: a strategy -> the run's program, compiled for shapes.
      data: the examples that are on a device at once, or shapes of them.
      state: all that is kept of states there.

    Raises:
      ValueError: if there is a limit and the run does not fit.
    """
    limit, strategy = strategy.memory_limit, strategy._replace(memory_limit=None)
    is_auto = strategy.name == "auto"
    if not is_auto and limit is None:
        return strategy
    options = candidates(cohort_size, jax.device_count()) if is_auto else [strategy]
    there_is = available_bytes((data, state))

    def needed(option: Strategy) -> Memory:
        analysis = compiled(option).memory_analysis()
        temporary = 0 if analysis is None else analysis.temp_size_in_bytes
        return arrays(option, data, state)._replace(program=temporary * _sharing(option))

    if limit is None:
        free = float("inf") if there_is is None else there_is
        return first_that_fits(options, lambda option: needed(option).total, free)
    if limit == "device" and there_is is None:
        raise ValueError("memory_limit='device': this device does not tell; give it in bytes.")
    most = int(there_is if limit == "device" else limit)  # type: ignore[arg-type]
    for option in options:
        if (needs := needed(option)).total <= most:
            return option
    smaller = [] if is_auto else smaller_than(strategy, cohort_size)
    found = next((option for option in smaller if needed(option).total <= most), None)
    raise ValueError(
        f"{_written(options[-1])} needs {needs}, more than memory_limit={limit}, which is"
        f" {_readable(most)}. {_advice(found)}"
    )


def check_arrays(strategy: Strategy, data: object, state: object) -> None:
    """Refuses arrays that are larger than what there is: nothing is compiled to know."""
    needs, there_is = arrays(strategy, data, state), available_bytes((data, state))
    if there_is is not None and needs.total > there_is:
        raise ValueError(
            f"The run's arrays need {needs}, but there are {_readable(there_is)}. {_advice(None)}"
        )


def first_that_fits(
    options: Sequence[Option], needed_bytes: Callable[[Option], float], available: float
) -> Option:
    """The first option, of the fastest to the smallest, that fits into the device, or else the last.

    The last is not asked what it needs: there is nothing else to take.
    """
    for option in options[:-1]:
        if needed_bytes(option) <= _USABLE * available:
            return option
    return options[-1]


def candidates(cohort_size: int, num_devices: int) -> list[Strategy]:
    """The strategies of this backend from the fastest to the smallest."""
    on_cpu = jax.default_backend() == "cpu"
    if num_devices > 1:
        fastest = resolve(Strategy("sharded", inner="scan" if on_cpu else "vmap"))
    else:
        fastest = Strategy("scan" if on_cpu else "vmap")
    return [fastest, *smaller_than(fastest, cohort_size)]


def smaller_than(strategy: Strategy, cohort_size: int) -> list[Strategy]:
    """The strategies that need less memory than this one, the fastest first."""
    if strategy.mesh is not None:
        if strategy.inner == "vmap":
            return [strategy._replace(inner="scan")]
        # Each device has a copy of all arrays: where they share the host's memory, one is less.
        alone = jax.default_backend() == "cpu" and not strategy.mesh.is_multi_process
        return [Strategy("scan")] if alone else []
    at_once = {"scan": 1, "vmap": cohort_size}.get(strategy.name, strategy.size)
    halves = [cohort_size >> k for k in range(1, cohort_size.bit_length())]
    chunks = [Strategy("chunked", size=size) for size in halves if 1 < size < at_once]
    return chunks + [Strategy("scan")] * (at_once > 1)


def arrays(strategy: Strategy, data: object, state: object) -> Memory:
    """What the arrays of a run need, or shapes of them."""
    return Memory(*(_num_bytes(jax.tree.leaves(x)) * _sharing(strategy) for x in (data, state)))


def available_bytes(mine: object = ()) -> int | None:
    """The memory of the first device beside other programs', or of the host for a CPU.

    Args:
      mine: arrays of the run; those that are on the device already are not in its way.

    Returns:
      Bytes; None if the device does not tell.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        found = device.memory_stats() or {}
        if "bytes_limit" not in found:
            return None
        placed = {id(x): x for x in jax.tree.leaves(mine) if isinstance(x, jax.Array)}
        others = found.get("bytes_in_use", 0) - _num_bytes(placed.values())
        return found["bytes_limit"] - max(others, 0)
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
    return min([total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """The limits of this process's control group and of those around it, of either version."""
    found = []
    try:
        for line in _OWN_CGROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root, name = _CGROUPS, "memory.max"
            if controllers:
                root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
                if "memory" not in controllers.split(","):
                    continue
            folder = root / path.lstrip("/")
            # In a container the path may be the host's, whose folders are not seen: the root is there.
            for around in (folder, *folder.parents):
                file = around / name
                if around.is_relative_to(root) and file.exists():
                    text = file.read_text().strip()
                    found += [int(text)] if text.isdecimal() else []
    except (OSError, ValueError):
        return found
    return found


def _num_bytes(leaves) -> int:
    """Keys of random numbers, whose type is no number's, are left out: they are a few bytes."""
    dtypes = ((np.size(x) if np.isscalar(x) else x.size, jnp.result_type(x)) for x in leaves)
    return sum(n * d.itemsize for n, d in dtypes if not jnp.issubdtype(d, jax.dtypes.extended))


def _sharing(strategy: Strategy) -> int:
    """How many devices share one memory."""
    mesh = strategy.mesh
    return mesh.size if mesh is not None and mesh.devices.flat[0].platform == "cpu" else 1


def _written(strategy: Strategy) -> str:
    """A strategy as a program would give it."""
    if strategy.name == "chunked":
        return f'strategy=fo.Strategy("chunked", size={strategy.size})'
    if strategy.mesh is not None and strategy.inner == "vmap":
        return 'strategy=fo.Strategy("sharded", inner="vmap")'
    return f'strategy="{strategy.name}"'


def _advice(option: Strategy | None) -> str:
    if option is not None:
        return f"{_written(option)} would fit."
    return (
        "Keep the data on the host with fo.data.store and fo.data.open_stored, or use a smaller model,"
        " batch_size or cohort."
    )


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
