"""Every example runs, and says something."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    """As its docstring says to run it, in a process and a folder of its own."""
    finished = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_says_how_to_run_it(path):
    """The first thing in the file is what it shows, and the command."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert f"python examples/{path.name}" in text.split('"""')[1]
