"""The memory, the disk and the time of a run against the number of clients that keep a state.

    python benchmarks/population/state.py --output benchmarks/results/client_state.json

For each size of the population a new process trains SCAFFOLD on a model of 10,180 parameters, 20 rounds
of 10 clients with one example each; every client's control variate is in a `ClientStore` on disk. The
table gives that process's peak memory (VmHWM), what the states would take if all were held, the blocks
that they take on disk, and the seconds of a round after the first chunk. The smallest population is
played once more with everything on the device, whose results must be the same to the last bit.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

WIDTHS, INPUTS, CLASSES = [96, 96], 4, 4
ROUNDS, CHUNK, COHORT = 20, 5, 10
LIMIT_MEGABYTES = 4096


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--directory", type=pathlib.Path, help="where there is room on disk")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path, help="where the memory curve goes, an SVG")
    parser.add_argument("--draw", type=pathlib.Path, help="draw a saved result, and run nothing")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(_train(options.worker, options.store)))
        return
    if options.draw:
        _draw(json.loads(options.draw.read_text()), options.plot)
        return
    rows = []
    with tempfile.TemporaryDirectory(dir=options.directory) as home:
        for count in options.clients:
            rows.append(_measure(count, pathlib.Path(home) / str(count)))
    on_device = _measure(options.clients[0], None)
    if on_device["digest"] != rows[0]["digest"]:
        raise SystemExit("the run with a store is not the run on the device")
    if options.output:
        saved = {"store": rows, "device": on_device}
        options.output.write_text(json.dumps(saved, indent=1) + "\n")
    if options.plot:
        _draw({"store": rows, "device": on_device}, options.plot)
    print("| clients | states, if all were held | on disk | peak memory | seconds of a round |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        print(
            f"| {row['clients']:,} | {row['dense_megabytes'] / 1e3:.3g} GB"
            f" | {row['disk_megabytes']:.1f} MB | {row['peak_megabytes']:.0f} MB"
            f" | {row['seconds_of_a_round']:.4f} |"
        )
    print(f"on the device, {on_device['clients']:,} clients: {on_device['peak_megabytes']:.0f} MB,")
    print(f"{on_device['seconds_of_a_round']:.4f} seconds of a round")
    worst = max(row["peak_megabytes"] for row in rows)
    if worst > LIMIT_MEGABYTES:
        raise SystemExit(f"peak memory is {worst:.0f} MB, above {LIMIT_MEGABYTES}")


def _measure(count, store):
    command = [sys.executable, __file__, "--worker", str(count)]
    command += ["--store", str(store)] if store else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {"clients": count, **json.loads(done.stdout.splitlines()[-1])}


def _train(count, folder):
    import jax
    import numpy as np

    import fedjax_opt as fo

    generator = np.random.default_rng(0)
    x = generator.normal(size=(count, INPUTS)).astype(np.float32)
    y = np.argmax(x @ generator.normal(size=(INPUTS, CLASSES)), axis=1).astype(np.int32)
    data = fo.ClientData.from_sizes({"x": x, "y": y}, np.ones(count, np.int32))
    store = None if folder is None else fo.ClientStore(folder)
    model, times = fo.models.mlp(WIDTHS, num_classes=CLASSES), []
    result = fo.simulate(
        fo.scaffold(fo.optimizers.sgd(0.1)),
        fo.Federation(model, data, cohort=COHORT, local_steps=5, batch_size=1),
        ROUNDS,
        evaluate_every=CHUNK,
        client_states=store,
        extensions=[lambda chunk: times.append(time.perf_counter())],
        progress=False,
    )
    status = pathlib.Path("/proc/self/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(result.variables.params))
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((result.state.server, result.history)):
        digest.update(np.asarray(leaf).tobytes())
    return {
        "parameters": parameters,
        "dense_megabytes": 4 * parameters * count / 1e6,
        "disk_megabytes": _disk_megabytes(folder) if folder else 0.0,
        "peak_megabytes": int(peak.split()[1]) / 1024,
        "seconds_of_a_round": (times[-1] - times[0]) / (ROUNDS - CHUNK),
        "loss": [float(result.history["loss"][0]), float(result.history["loss"][-1])],
        "digest": digest.hexdigest(),
    }


def _disk_megabytes(folder):
    """What is taken on disk: holes in files take nothing."""
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir()) / 1e6


def _draw(saved, path):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "client_state"
    import matplotlib.pyplot as plt

    rows = saved["store"]
    clients = [row["clients"] for row in rows]
    figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained", facecolor="white")
    for name, key, look in (
        ("all states, if they were held", "dense_megabytes", {"color": "0.55", "linestyle": "--"}),
        ("peak memory of the process", "peak_megabytes", {"color": "#0072B2", "marker": "o"}),
        ("states on disk", "disk_megabytes", {"color": "#D55E00", "marker": "s"}),
    ):
        axis.plot(clients, [row[key] for row in rows], label=name, linewidth=1.6, **look)
    axis.axhline(LIMIT_MEGABYTES, color="0.5", linewidth=1, linestyle=(0, (1, 3)))
    axis.annotate("4 GiB", (clients[0], LIMIT_MEGABYTES), xytext=(0, 3), textcoords="offset points")
    axis.set(xlabel="clients", ylabel="megabytes", xscale="log", yscale="log")
    axis.legend(fontsize=8, edgecolor="none", framealpha=0.7)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Title": "Client state", "Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
