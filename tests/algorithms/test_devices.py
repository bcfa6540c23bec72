"""A few algorithms on eight virtual devices; benchmarks/scale/devices.py asks all, and processes."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "scale" / "devices.py"
ROWS = ("scaffold-1", "mime")


def test_eight_devices_give_the_numbers_of_one(tmp_path):
    spec = importlib.util.spec_from_file_location("scale_devices", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    file = tmp_path / "eight.npz"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--worker", file, "--sharing", "1", "--rows", *ROWS],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "8"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected, found = script.play(ROWS, "scan"), dict(np.load(file))
    assert expected.keys() == found.keys() and len(found) > 3 * len(ROWS)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-10, err_msg=name)
