"""What can only be seen in a fresh interpreter: devices before JAX starts, and what an import costs."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def fresh(code):
    """Runs code in a new interpreter that knows nothing of this one's JAX; returns what it prints."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    }
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_core_is_a_device():
    code = (
        "import fedjax_opt as fo, jax\n"
        "count = fo.use_cpu_devices()\n"
        "print(count, jax.local_device_count())"
    )
    cores = len(os.sched_getaffinity(0))
    assert fresh(code) == f"{cores} {cores}"


def test_where_the_system_does_not_say_which_cores_may_be_used():
    code = (
        "import os\n"
        "del os.sched_getaffinity\n"  # as on macOS
        "os.cpu_count = lambda: 3\n"
        "import fedjax_opt as fo, jax\n"
        "print(fo.use_cpu_devices(), jax.local_device_count())"
    )
    assert fresh(code) == "3 3"


def test_the_number_of_devices_may_be_given_and_auto_uses_them():
    code = (
        "import fedjax_opt as fo, jax\n"
        "fo.use_cpu_devices(3)\n"
        "from fedjax_opt.execution.strategies import resolve\n"
        "print(jax.local_device_count(), resolve('auto').name, resolve('auto').mesh.size)"
    )
    assert fresh(code) == "3 sharded 3"


def test_flags_that_are_set_stay():
    code = (
        "import os\n"
        "os.environ['XLA_FLAGS'] = '--xla_cpu_enable_fast_math=false'\n"
        "import fedjax_opt as fo, jax\n"
        "fo.use_cpu_devices(2)\n"
        "print(jax.device_count(), os.environ['XLA_FLAGS'])"
    )
    count, *flags = fresh(code).split()
    assert count == "2"
    assert flags == ["--xla_cpu_enable_fast_math=false", "--xla_cpu_multi_thread_eigen=false"]


def test_it_is_too_late_once_jax_runs():
    code = (
        "import fedjax_opt as fo, jax.numpy as jnp\n"
        "jnp.zeros(1)\n"
        "try:\n"
        "    fo.use_cpu_devices()\n"
        "except RuntimeError as error:\n"
        "    print(error)"
    )
    message = fresh(code)
    assert message.startswith(
        "use_cpu_devices must be called before JAX runs its first computation"
    )


def test_a_number_of_devices_that_makes_no_sense_is_refused():
    code = (
        "import fedjax_opt as fo\n"
        "try:\n"
        "    fo.use_cpu_devices(0)\n"
        "except ValueError as error:\n"
        "    print(error)"
    )
    message = fresh(code)
    assert message.startswith("count must be ") and message.endswith("at least 1, got 0.")


def test_an_import_does_not_start_jax_nor_load_what_is_optional():
    code = (
        "import sys\n"
        "import fedjax_opt\n"
        "from jax._src import xla_bridge\n"
        "heavy = ('flax', 'orbax', 'matplotlib', 'tensorflow', 'scipy', 'sklearn')\n"
        "print([name for name in heavy if name in sys.modules], xla_bridge.backends_are_initialized())"
    )
    assert fresh(code) == "[] False"
