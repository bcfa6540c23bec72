"""What a run needs of memory, asked before it starts, and the strategy that fits.

    data, state   arrays, with the copies that a run keeps: known from shapes alone
    program       the temporary memory that a compiled program reports beside its arguments

On CPUs all devices share the host's memory, and what is placed on each of them counts once for each.
"""

import contextlib
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.execution.strategies import Strategy, resolve

Option = TypeVar("Option")

# A share of the device is left for the program's other arrays and for fragmentation.
_USABLE = 0.8
_CGROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_CGROUP = pathlib.Path("/proc/self/cgroup")


def fit(
    strategy: Strategy,
    cohort_size: int,
    compiled: Callable[[Strategy], jax.stages.Compiled],
    data: object = (),
    state: object = (),
) -> Strategy:
    """The strategy that a run is played with: 'auto' settled, a limit kept."""
    limit, strategy = strategy.memory_limit, strategy._replace(memory_limit=None)
    is_auto = strategy.name == "auto"
    if not is_auto and limit is None:
        return strategy
    options = candidates(cohort_size, jax.device_count()) if is_auto else [strategy]
    there_is = available_bytes((data, state))

    def parts(option: Strategy) -> dict[str, int]:
        program = getattr(compiled(option).memory_analysis(), "temp_size_in_bytes", 0)
        on_cpus = option.mesh is not None and option.mesh.devices.flat[0].platform == "cpu"
        copies = option.mesh.size if on_cpus and option.mesh is not None else 1
        found = {"data": _num_bytes(data), "state": _num_bytes(state), "program": program}
        return {name: size * copies for name, size in found.items()}

    def needed(option: Strategy) -> int:
        return sum(parts(option).values())

    if limit is None:
        return first_that_fits(options, needed, float("inf") if there_is is None else there_is)
    if limit == "device" and there_is is None:
        raise ValueError("memory_limit='device': this device does not tell; give it in bytes.")
    most = int(there_is if limit == "device" else limit)  # type: ignore[arg-type]
    fits = (option for option in options if needed(option) <= most)
    if (found := next(fits, None)) is not None:
        return found
    needs = parts(options[-1])
    shown = ", ".join(f"{name} {_readable(size)}" for name, size in needs.items())
    advice = (
        "Keep the data on the host with fo.data.store and fo.data.open_stored, or use a smaller model,"
        " batch_size or cohort."
    )
    for option in [] if is_auto else smaller_than(strategy, cohort_size):
        if needed(option) <= most:
            advice = f"{_written(option)} would fit."
            break
    raise ValueError(
        f"{_written(options[-1])} needs {_readable(sum(needs.values()))} ({shown}), more than"
        f" memory_limit={limit}, which is {_readable(most)}. {advice}"
    )


def first_that_fits(
    options: Sequence[Option], needed_bytes: Callable[[Option], float], available: float
) -> Option:
    """The first option, of the fastest to the smallest, that fits into the device, or else the last."""
    # The last is not asked what it needs: there is nothing else to take.
    fits = (option for option in options[:-1] if needed_bytes(option) <= _USABLE * available)
    return next(fits, options[-1])


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


def available_bytes(mine: object = ()) -> int | None:
    """The memory of the first device beside other programs', or of the host for a CPU."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        found = device.memory_stats() or {}
        if "bytes_limit" not in found:
            return None
        placed = {id(x): x for x in jax.tree.leaves(mine) if isinstance(x, jax.Array)}
        others = found.get("bytes_in_use", 0) - _num_bytes(list(placed.values()))
        return found["bytes_limit"] - max(others, 0)
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
    return min([total, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    """The limits of this process's control group and of those around it, of either version."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_CGROUP.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = _CGROUPS, "memory.max"
            if controllers:
                root, name = _CGROUPS / "memory", "memory.limit_in_bytes"
            # In a container the path may be the host's, whose folders are not seen: the root is there.
            folder = root / path.lstrip("/")
            for around in (folder, *folder.parents):
                file = around / name
                there = around.is_relative_to(root) and file.exists()
                text = file.read_text().strip() if there else ""
                found += [int(text)] if text.isdecimal() else []
    return found


def _num_bytes(tree: object) -> int:
    """Keys of random numbers, whose type is no number's, are left out: they are a few bytes."""
    dtypes = [(np.prod(np.shape(x)), jnp.result_type(x)) for x in jax.tree.leaves(tree)]
    return sum(int(n) * d.itemsize for n, d in dtypes if not jnp.issubdtype(d, jax.dtypes.extended))


def _written(strategy: Strategy) -> str:
    """A strategy as a program would give it."""
    if strategy.name == "chunked":
        return f'strategy=fo.Strategy("chunked", size={strategy.size})'
    if strategy.mesh is not None and strategy.inner == "vmap":
        return 'strategy=fo.Strategy("sharded", inner="vmap")'
    return f'strategy="{strategy.name}"'


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
