"""The memory and the time of a run against the number of clients, with the examples on disk.

    python benchmarks/population/run.py --output benchmarks/results/population.json

For each size of the population, clients of synthetic data (20 examples of 64 bytes each) are stored in
a temporary directory, and a new process trains FedAvg on them for 100 rounds of 20 clients. The table
gives that process's peak memory (VmHWM, which counts memory-mapped pages too), the seconds of a round
after the first ten, and both relative to the smallest population.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

EXAMPLES, WIDTH, CLASSES = 20, 64, 10
ROUNDS, WARM, COHORT = 100, 10, 20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 1_000_000])
    parser.add_argument("--directory", type=pathlib.Path, help="where there is room on disk")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_train(options.worker)))
        return
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as home:
        for count in options.clients:
            folder = pathlib.Path(home) / str(count)
            began = time.perf_counter()
            _store(count, folder)
            stored = time.perf_counter() - began
            gigabytes = sum(file.stat().st_size for file in folder.iterdir()) / 1e9
            command = [sys.executable, __file__, "--worker", str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            rows.append(
                {"clients": count, "gigabytes": gigabytes, "seconds_to_store": stored, **found}
            )
    print("| clients | on disk | peak memory | relative | seconds of a round | relative |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        memory, seconds = row["peak_megabytes"], row["seconds_of_a_round"]
        print(
            f"| {row['clients']:,} | {row['gigabytes']:.3g} GB | {memory:.0f} MB"
            f" | {memory / rows[0]['peak_megabytes']:.2f} | {seconds:.4f}"
            f" | {seconds / rows[0]['seconds_of_a_round']:.2f} |"
        )
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


def _store(count, folder):
    import fedjax_opt as fo

    generator = np.random.default_rng(0)
    pool = generator.integers(0, 256, (10_000, WIDTH), np.uint8)
    weights = generator.normal(size=(WIDTH, CLASSES))
    labels = np.argmax(pool @ weights, axis=1).astype(np.int32)

    def clients():
        for client in range(count):
            rows = generator.integers(0, len(pool), EXAMPLES)
            yield str(client), {"x": pool[rows], "y": labels[rows]}

    fo.data.store(clients(), folder)


def _train(folder):
    import fedjax_opt as fo

    fo.use_cpu_devices()
    times = []
    model = fo.models.preprocessed(fo.models.mlp([32], num_classes=CLASSES), fo.data.scale())
    clients = fo.data.open_stored(folder)
    result = fo.simulate(
        fo.fedavg(fo.optimizers.sgd(0.1)),
        fo.Federation(model, clients, cohort=COHORT, local_steps=fo.epochs(2), batch_size=10),
        ROUNDS,
        evaluate_every=WARM,
        extensions=[lambda chunk: times.append(time.perf_counter())],
        progress=False,
    )
    status = pathlib.Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {
        "peak_megabytes": int(peak.split()[1]) / 1024,
        "seconds_of_a_round": (times[-1] - times[0]) / (ROUNDS - WARM),
        "loss": [float(result.history["loss"][0]), float(result.history["loss"][-1])],
    }


if __name__ == "__main__":
    main()
