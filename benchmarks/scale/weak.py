"""Weak scaling: as many clients for each device, on more and more devices; of one process and of many.

    PYTHONPATH=. python benchmarks/scale/weak.py --output benchmarks/results/weak.json
    PYTHONPATH=. python benchmarks/scale/weak.py --draw benchmarks/results/weak.json    (runs nothing)

FedAvg, four clients for each device, minibatches of 32 examples; five rounds in a call of `run_rounds`.
Two sizes: an MLP 784-200-200-62 with 80 local steps, whose rounds are work, and an MLP 64-128-10 with
one local step, whose rounds are little more than what any round costs. A layout runs in processes of its
own; the seconds of a round are the median over calls after the first two.

On as many cores as devices the seconds would stay the same; with fewer cores they grow with the devices
per core, so the last column divides by what that alone would give. The table goes into the page beside
this script, the plot to docs/images/weak.svg.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import pages  # noqa: E402

ROOT = HERE.parents[1]
FIGURE = ROOT / "docs" / "images" / "weak.svg"
LAYOUTS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1), (2, 2))  # processes, devices of each
EACH, BATCH, ROUNDS, CALLS, WARM = 4, 32, 5, 9, 2
# inputs, hidden layers, classes, local steps
SIZES = {"work": (784, (200, 200), 62, 80), "fixed": (64, (128,), 10, 1)}
TITLES = {"work": "a round that is work", "fixed": "what any round costs"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--draw", type=pathlib.Path, help="draw a saved result, and run nothing")
    parser.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    if options.draw:
        show(json.loads(options.draw.read_text()))
        return
    saved = measure_all()
    for line in tables(saved).values():
        print(line)
    if options.output:
        options.output.write_text(json.dumps(saved, indent=1) + "\n")
        show(saved)


def measure_all():
    """The seconds of a round by size and layout, and what they are relative to one device."""
    os.environ |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    cores = len(os.sched_getaffinity(0))
    saved = {"cores": cores, "sizes": {name: [] for name in SIZES}}
    with tempfile.TemporaryDirectory() as home:
        for processes, devices in LAYOUTS:
            found = measure(pathlib.Path(home) / "seconds.json", processes, devices)
            total = processes * devices
            for name, rows in saved["sizes"].items():
                seconds = found[name]
                relative = seconds / (rows[0]["seconds_of_a_round"] if rows else seconds)
                rows.append(
                    {
                        "processes": processes,
                        "devices": total,
                        "clients": EACH * total,
                        "seconds_of_a_round": seconds,
                        "relative": relative,
                        "over_the_cores": relative / max(1, total / cores),
                    }
                )
            print(f"{processes} x {devices}: {found}", flush=True)
    return saved


def measure(file, processes, devices):
    """The seconds of a round in a layout, by size."""
    command = [sys.executable, __file__, "--worker", str(file)]
    if processes == 1:
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices)}
        subprocess.run(command, env=environment, check=True)
    else:
        from fedjax_opt.cli.launch import launch

        if launch(command, processes, devices=devices):
            raise SystemExit("A process failed.")
    return json.loads(file.read_text())


def work(file):
    """Plays rounds on all devices there are; the first process notes the medians."""
    import fedjax_opt as fo

    fo.distributed.initialize()
    found = {name: seconds_of_a_round(*size) for name, size in SIZES.items()}
    if fo.distributed.is_first():
        file.write_text(json.dumps(found))


def seconds_of_a_round(inputs, hidden, classes, steps):
    """The median over calls, each of several rounds."""
    import jax
    import jax.numpy as jnp

    import fedjax_opt as fo

    count = EACH * jax.device_count()
    rng = np.random.default_rng(0)
    clients = [
        {
            "x": rng.normal(size=(4 * BATCH, inputs)).astype(np.float32),
            "y": rng.integers(0, classes, size=4 * BATCH),
        }
        for _ in range(count)
    ]
    data, model = fo.ClientData.from_list(clients), fo.models.mlp(list(hidden), num_classes=classes)
    federation = fo.place(
        fo.Federation(model, data, cohort=count, local_steps=jnp.int32(steps), batch_size=BATCH)
    )
    algorithm = fo.fedavg(fo.optimizers.sgd(0.05))
    state = fo.place(fo.init_state(algorithm, federation))
    seconds = []
    for _ in range(CALLS):
        began = time.perf_counter()
        state = fo.run_rounds(algorithm, federation, state, ROUNDS).state
        jax.block_until_ready(state)
        seconds.append((time.perf_counter() - began) / ROUNDS)
    return float(np.median(seconds[WARM:]))


def tables(saved):
    """A table for each size."""
    found = {}
    for name, rows in saved["sizes"].items():
        lines = [
            f"{TITLES[name].capitalize()}, on {saved['cores']} cores:\n",
            "| processes | devices | clients | seconds of a round | relative | per device of a core |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['processes']} | {row['devices']} | {row['clients']}"
            f" | {row['seconds_of_a_round']:.3g} | {row['relative']:.2f}"
            f" | {row['over_the_cores']:.2f} |"
            for row in rows
        ]
        found[name] = "\n".join(lines) + "\n"
    return found


def show(saved):
    """Writes the tables into the page, and draws the plot that stands above them."""
    draw(saved)
    plot = f"![Seconds of a round against devices]({os.path.relpath(FIGURE, HERE)})\n"
    text = "\n".join([plot, *tables(saved).values()])
    pages.fill(HERE / "README.md", {"weak": f"\n{text}"})


def draw(saved):
    """Seconds of a round against devices, of one process and of many."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "weak"
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(SIZES), figsize=(9, 3.8), layout="constrained", facecolor="white"
    )
    looks = {
        "devices of one process": ({"color": "#0072B2", "marker": "o"}, lambda p, d: p == 1),
        "processes of one device": ({"color": "#D55E00", "marker": "s"}, lambda p, d: p == d),
    }
    for axis, (name, rows) in zip(axes, saved["sizes"].items(), strict=True):
        for label, (look, belongs) in looks.items():
            some = [row for row in rows if belongs(row["processes"], row["devices"])]
            points = zip(*((r["devices"], r["seconds_of_a_round"]) for r in some), strict=True)
            axis.plot(*points, label=label, linewidth=1.6, **look)
        devices = sorted({row["devices"] for row in rows})
        ideal = [rows[0]["seconds_of_a_round"] * max(1, d / saved["cores"]) for d in devices]
        axis.plot(
            devices,
            ideal,
            color="0.55",
            linestyle="--",
            label=f"the work on {saved['cores']} cores",
        )
        axis.set(xlabel="devices, of four clients each", title=TITLES[name])
        axis.set_xscale("log", base=2)
        axis.set_xticks(devices, map(str, devices))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds of a round")
    axes[0].legend(fontsize=8, edgecolor="none", framealpha=0.7)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Title": "Weak scaling", "Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
