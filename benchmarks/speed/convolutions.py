"""Time a round of a CNN with the convolution as patches times a matrix, and with XLA's own.

    python benchmarks/speed/convolutions.py --output benchmarks/results/convolutions.json

The task is W5: FedAvg, 5 clients, 10 local steps of 32 images of 28x28x3, and the CNN 32-64-512-100.
Four models differ in their layers alone:

    patches   fo.models.cnn as it comes: convolutions replaced, pooling by reshaping
    lax conv  the same with XLA's convolutions
    flax      the same with those and Flax's own pooling and dense layers
    replaced  an ordinary Flax model, whose convolutions are replaced as they are by default

A repeat times every model once, in an order that rotates, each between two rounds of `patches`, and
divides their mean by its time, so that a machine whose speed changes disturbs little. The table gives
the median of those ratios and their quartiles. The models' losses must agree.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

import fedjax_opt as fo

fo.use_cpu_devices()  # before JAX starts

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402

CLIENTS, STEPS, BATCH, EXAMPLES, CLASSES = 5, 10, 32, 320, 100
SHAPE = (28, 28, 3)


class FlaxCNN(nn.Module):
    """The layers of `fo.models.cnn` as a user of Flax would write them."""

    @nn.compact
    def __call__(self, x):
        for features in (32, 64):
            x = nn.relu(nn.Conv(features, (3, 3), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(512)(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES)(x), x


MODELS = {
    "patches": lambda: fo.models.cnn(CLASSES),
    "lax conv": lambda: dataclasses.replace(fo.models.cnn(CLASSES), fast_convolutions=False),
    "flax": lambda: dataclasses.replace(
        fo.models.from_linen(FlaxCNN(), features=1), fast_convolutions=False
    ),
    "replaced": lambda: fo.models.from_linen(FlaxCNN(), features=1),
}


def client_data() -> fo.ClientData:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CLIENTS * EXAMPLES, *SHAPE), dtype=np.float32)
    y = rng.integers(CLASSES, size=len(x)).astype(np.int32)
    return fo.ClientData.from_arrays({"x": x, "y": y}, np.arange(len(x)) % CLIENTS)


def contestant(name: str, data: fo.ClientData):
    """A function that plays a round, always the same, and returns its seconds and loss; warm."""
    model, algorithm = MODELS[name](), fo.fedavg(fo.optimizers.sgd(0.01))
    images = fo.Federation(model, data, cohort=CLIENTS, local_steps=STEPS, batch_size=BATCH)
    state = fo.place(fo.init_state(algorithm, images))

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        result = fo.run_rounds(algorithm, images, state, 1, strategy="sharded")
        jax.block_until_ready(result.state)
        return time.perf_counter() - start, float(result.history.loss[-1])

    run()
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, help="where to write the numbers as JSON")
    args = parser.parse_args()
    if args.repeats < 2:
        sys.exit("--repeats must be at least 2: quartiles need two times.")
    data = fo.place(client_data())
    runs = {name: contestant(name, data) for name in MODELS}
    losses = {name: run()[1] for name, run in runs.items()}
    if not np.allclose(list(losses.values()), losses["patches"], rtol=1e-4):
        sys.exit(f"the models disagree: {losses}")
    others = [name for name in MODELS if name != "patches"]
    ratios: dict[str, list[float]] = {name: [] for name in others}
    seconds: dict[str, list[float]] = {name: [] for name in MODELS}
    for repeat in range(args.repeats):
        before = runs["patches"]()[0]
        seconds["patches"].append(before)
        for name in others[repeat % len(others) :] + others[: repeat % len(others)]:
            taken, after = runs[name]()[0], runs["patches"]()[0]
            ratios[name].append((before + after) / 2 / taken)
            seconds[name].append(taken)
            seconds["patches"].append(after)
            before = after
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print("| model | seconds a round | time of patches / its time | quartiles |")
    print("| --- | --- | --- | --- |")
    print(f"| patches | {medians['patches']:.2f} | 1 | |")
    rows = {"patches": {"median_seconds": medians["patches"]}}
    for name in others:
        low, middle, high = statistics.quantiles(ratios[name], n=4)
        print(f"| {name} | {medians[name]:.2f} | {middle:.3f} | {low:.3f} to {high:.3f} |")
        rows[name] = {
            "median_seconds": medians[name],
            "patches_over_this": middle,
            "quartiles": [low, high],
        }
    if args.output:
        about = {
            "task": "W5: FedAvg, 5 clients, K=10, B=32, 28x28x3, CNN 32-64-512-100",
            "repeats": args.repeats,
            "devices": jax.device_count(),
            "python": platform.python_version(),
        }
        versions = {name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")}
        args.output.write_text(json.dumps({**about, **versions, "models": rows}, indent=1) + "\n")


main()
