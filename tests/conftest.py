"""The strict configuration of all tests; set before JAX starts."""

# ruff: noqa: E402 -- flags are set before JAX is imported.
import os
import pathlib
from importlib.metadata import version

# Programs here run for milliseconds and compile for seconds: LLVM need not try hard, and the simpler
# of two code generators, which later versions no longer have, takes half the time. An empty XLA_FLAGS
# asks for what users get; one stage of .ci/run does.
_FLAGS = ["--xla_backend_optimization_level=0"]
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))

import jax
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples on every machine, and no clock: compiling the first one may take seconds.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")


@pytest.fixture(autouse=True, scope="module")
def forget_compiled_programs():
    """Every compiled program holds memory maps, and a process may have only so many (65,530).

    Far below that, what is compiled is kept: modules share many small programs.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 5_000:
        jax.clear_caches()
