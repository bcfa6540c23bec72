"""A run whose checkpoint is written on some devices and resumed on others, against whole runs on each.

    python benchmarks/faults/devices.py --output benchmarks/results/faults_devices.json

In float64, each part in a process of its own with that many virtual devices, clients spread over them.
"""

import argparse
import json
import pathlib
import tempfile

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from kill import Worker, identical  # noqa: E402 -- the precision is set before anything is made

HALF, WHOLE = 15, 30


def difference(left, right):
    """The largest difference between two runs, relative to the largest number of each array."""
    assert left.keys() == right.keys()
    return max(
        float(np.max(np.abs(left[name] - right[name])) / max(np.max(np.abs(right[name])), 1e-300))
        for name in left
        if left[name].size and np.issubdtype(left[name].dtype, np.floating)
    )


def histories(arrays, rounds):
    """What a run wrote down in its first rounds."""
    return {name: rows[:rounds] for name, rows in arrays.items() if name.startswith("history/")}


def main():
    """Reads the command line, and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        whole = {n: Worker(home / f"whole{n}", WHOLE, devices=n).finish() for n in (1, 2, 4)}
        for first, second in ((4, 1), (1, 4), (4, 2), (4, 4)):
            directory = home / f"from{first}to{second}"
            written = Worker(directory, HALF, devices=first).finish()
            resumed = Worker(directory, WHOLE, devices=second).finish()
            kept = identical(histories(resumed, HALF), histories(written, HALF))
            found.append(
                {
                    "written_on": first,
                    "resumed_on": second,
                    "rounds_before_kept_to_the_bit": kept,
                    "identical_to_a_whole_run": identical(resumed, whole[second]),
                    "relative_difference_from_a_whole_run": difference(resumed, whole[1]),
                }
            )
            print(json.dumps(found[-1]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
