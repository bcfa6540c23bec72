"""Time the encoder and the decoder on one core, in MB/s of what would travel without them.

    python benchmarks/compression/encoder.py

writes benchmarks/results/encoder.json and prints a table. The process is bound to one core, and XLA to
one thread. A repeat times every row once, between two copies of the same bytes in memory: seconds depend
on what else the machine does, their ratio to a copy less. The table has the medians of the repeats.

A message is the change of a dense network, normally distributed; CE-FedAvg's has Adam's moments beside
it, whose magnitudes span seventeen orders. MB are 10^6 bytes of float32. `program` is the share of the
encoder's time that the compiled program takes to find the largest entries and their codes; the rest
makes bytes of them.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

# Before JAX starts.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt import Variables
from fedjax_opt import compression as fc
from fedjax_opt.compression import wire

RESULTS = Path(__file__).parents[1] / "results" / "encoder.json"
MODELS = {"2NN": (784, 200, 200, 10), "wide 2NN": (784, 1000, 1000, 10)}
SPARSITIES = (0.6, 0.9, 0.95)
TARGET = 50.0  # MB/s


class Row(NamedTuple):
    """What is timed.

    Attributes:
      raw: an array of as many bytes as the message has.
      sent: the bytes that are made of it.
      encode: encodes the message.
      decode: decodes it.
      program: the part of encoding that is compiled.
    """

    raw: np.ndarray
    sent: int
    encode: Callable[[], Any]
    decode: Callable[[], Any]
    program: Callable[[], Any]


def network(widths: tuple[int, ...], draw: Callable[[tuple[int, ...]], np.ndarray]) -> list:
    pairs = itertools.pairwise(widths)
    return [[jnp.asarray(draw((m, n))), jnp.asarray(draw((n,)))] for m, n in pairs]


def messages(widths: tuple[int, ...]) -> dict[str, Any]:
    """What FedAvg and CE-FedAvg send."""
    rng = np.random.default_rng(0)

    def normal(shape):
        return 0.01 * rng.standard_normal(shape, np.float32)

    def many_orders(shape):
        return np.exp(rng.uniform(-40, 0, shape)).astype(np.float32)

    change = Variables(network(widths, normal), {})
    first = network(widths, lambda shape: np.sign(normal(shape)) * many_orders(shape))
    return {"uniform 8": change, "CE-FedAvg": (change, first, network(widths, many_orders))}


def message_row(codec: fc.Codec, tree: Any) -> Row:
    data = wire.encode(codec, tree)
    size = sum(leaf.size for leaf in jax.tree.leaves(tree))
    return Row(
        np.zeros(size, np.float32),
        len(data),
        lambda: wire.encode(codec, tree),
        lambda: jax.block_until_ready(wire.decode(codec, data, tree)),
        lambda: jax.block_until_ready(wire._compressed(codec, tree, None)),
    )


def rows(models: list[str]) -> dict[str, Row]:
    found = {}
    for model in models:
        for kind, tree in messages(MODELS[model]).items():
            for s in SPARSITIES:
                codec = fc.chain(fc.top_k(sparsity=s), fc.uniform(8))
                codec = fc.ce_fedavg(s) if kind == "CE-FedAvg" else codec
                found[f"{model}, {kind}, s = {s}"] = message_row(codec, tree)
    return found


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(row: Row) -> dict[str, float]:
    """One repeat: seconds of each part, and of copies of the raw bytes before and after."""
    target = np.empty_like(row.raw)

    def copy():
        np.copyto(target, row.raw)

    before = seconds(copy)
    parts = {"encode": row.encode, "decode": row.decode, "program": row.program}
    found = {name: seconds(part) for name, part in parts.items()}
    return found | {"copy": (before + seconds(copy)) / 2}


def summary(row: Row, repeats: list[dict[str, float]]) -> dict[str, float]:
    megabytes = row.raw.nbytes / 1e6

    def median(of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(of(repeat) for repeat in repeats)

    return {
        "raw_megabytes": megabytes,
        "ratio": row.raw.nbytes / row.sent,
        "encode_megabytes_per_second": median(lambda r: megabytes / r["encode"]),
        "decode_megabytes_per_second": median(lambda r: megabytes / r["decode"]),
        "fastest_encode_megabytes_per_second": max(megabytes / r["encode"] for r in repeats),
        "fastest_decode_megabytes_per_second": max(megabytes / r["decode"] for r in repeats),
        "encode_in_copies": median(lambda r: r["encode"] / r["copy"]),
        "decode_in_copies": median(lambda r: r["decode"] / r["copy"]),
        "program_share": median(lambda r: r["program"] / r["encode"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    models = [name.strip() for name in args.models.split(",")]
    if unknown := set(models) - set(MODELS):
        parser.error(f"--models must be among {', '.join(MODELS)}; got {', '.join(unknown)}")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"The machine is busy (load {load:.1f}): look at the fastest too.", file=sys.stderr)
    timed = rows(models)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in timed}
    for row in timed.values():
        measure(row)  # compiles
    for _ in range(args.repeats):
        for name, row in timed.items():
            measured[name].append(measure(row))
    results = {name: summary(row, measured[name]) for name, row in timed.items()}
    print("| message | smaller by | encoded, MB/s | decoded, MB/s | in copies | program |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, r in results.items():
        print(
            f"| {name} | {r['ratio']:.1f} | {r['encode_megabytes_per_second']:.0f} |"
            f" {r['decode_megabytes_per_second']:.0f} | {r['encode_in_copies']:.0f} and"
            f" {r['decode_in_copies']:.0f} | {r['program_share']:.0%} |"
        )
    slow = [name for name, r in results.items() if r["encode_megabytes_per_second"] < TARGET]
    slow += [name for name, r in results.items() if r["decode_megabytes_per_second"] < TARGET]
    print(f"\nSlower than {TARGET:.0f} MB/s: {', '.join(slow) or 'none'}.")
    about = {
        "repeats": args.repeats,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_before": load,
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "numpy")},
    }
    args.output.write_text(json.dumps({**about, "messages": results}, indent=1) + "\n")


main()
