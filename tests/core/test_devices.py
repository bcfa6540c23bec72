"""What can only be seen in a fresh interpreter: devices before JAX starts, and what an import costs."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
CORES = len(os.sched_getaffinity(0))
REFUSED = """
try:
    fo.use_cpu_devices({})
except (RuntimeError, ValueError) as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print(fo.use_cpu_devices(), jax.local_device_count())", f"{CORES} {CORES}"),
        (
            # As on macOS, which does not say which cores may be used.
            "import os; del os.sched_getaffinity; os.cpu_count = lambda: 3\n"
            "from fedjax_opt.execution.strategies import resolve\n"
            "print(fo.use_cpu_devices(), resolve('auto').name, resolve('auto').mesh.size)",
            "3 sharded 3",
        ),
        (
            "import os; os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=false'\n"
            "fo.use_cpu_devices(2)\n"
            "print(jax.device_count(), os.environ['XLA_FLAGS'])",
            "2 --xla_cpu_enable_fast_math=false --xla_cpu_multi_thread_eigen=false",
        ),
        (
            "jax.numpy.zeros(1)" + REFUSED.format(""),
            "use_cpu_devices must be called before JAX runs its first computation: its devices are"
            " already settled. Call it right after the imports.",
        ),
        (REFUSED.format(0), "count must be a whole number of at least 1, got 0."),
        (
            "import sys; from jax._src import xla_bridge\n"
            "heavy = ('flax', 'orbax', 'matplotlib', 'tensorflow', 'scipy', 'sklearn')\n"
            "print([n for n in heavy if n in sys.modules], xla_bridge.backends_are_initialized())",
            "[] False",
        ),
    ],
    ids=["cores", "no affinity", "flags stay", "too late", "none", "an import starts nothing"],
)
def test_a_fresh_interpreter(code, said):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    code = f"import fedjax_opt as fo, jax\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr
