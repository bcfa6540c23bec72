"""Every CPU core as a JAX device: the client axis then spreads over the cores."""

import os

import jax
from jax._src import xla_bridge

from fedjax_opt.core import checks

_SINGLE_THREADED = "--xla_cpu_multi_thread_eigen=false"


def use_cpu_devices(count: int | None = None) -> int:
    """Makes each CPU core a device of its own; call it before JAX runs its first computation.

    One client per core is faster than one operation on all cores: small matrices do not fill several
    threads, and clients do not wait for each other. The 'sharded' strategy, which 'auto' chooses
    where there are several CPU devices, then uses all of them.

    Args:
      count: the number of devices; by default what `JAX_NUM_CPU_DEVICES` in the environment says, or
        the cores that this process may use.

    Returns:
      The number of devices.

    Raises:
      RuntimeError: if JAX has already started, since its devices are then settled.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.use_cpu_devices()              # doctest: +SKIP
      2
    """
    asked = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    if count is None:
        count = int(asked) if asked.isdecimal() else usable_cores()
    checks.integer("count", count, low=1)
    if xla_bridge.backends_are_initialized():
        raise RuntimeError(
            "use_cpu_devices must be called before JAX runs its first computation: its devices are"
            " already settled. Call it right after the imports."
        )
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_SINGLE_THREADED}".strip()
    jax.config.update("jax_num_cpu_devices", count)
    return count


def usable_cores() -> int:
    """The cores that this process may use; macOS and Windows do not tell, so all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
