"""What a run with 10^8 clients on 64 GPUs would take, by the library's own cost model.

    PYTHONPATH=. python benchmarks/scale/estimate.py --output benchmarks/results/estimate.json

Operations and bytes are derived from the algorithms and the model (`fo.costs`); nothing is run. What a
GPU sustains, and the links between GPUs and to the disks, are assumptions, printed with the result.
"""

import argparse
import json
import pathlib

import jax
import jax.numpy as jnp

import fedjax_opt as fo

CLIENTS, GPUS, GPUS_PER_HOST = 10**8, 64, 8
COHORT, STEPS, BATCH, EXAMPLES = 6_400, 10, 20, 50
BYTES_PER_EXAMPLE = 28 * 28 + 1  # as stored: one byte a pixel
# Assumptions: operations per second that small models sustain on a GPU, the all-reduce between hosts,
# reading from a host's disks, in bytes per second, and the memory of a GPU.
FLOPS, LINK, DISK, MEMORY = 5e12, 20e9, 4e9, 80e9
SECONDS_TO_START = 1e-4  # of a collective over all GPUs
ALGORITHMS = {
    "FedAvg": lambda: fo.fedavg(fo.optimizers.sgd(0.1)),
    "FedGBO (Adam)": lambda: fo.fedgbo(fo.optimizers.adam(0.01)),
    "SCAFFOLD": lambda: fo.scaffold(fo.optimizers.sgd(0.1)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    rows = {name: estimate(make()) for name, make in ALGORITHMS.items()}
    columns = list(next(iter(rows.values())))
    print(f"| | {' | '.join(rows)} |\n| --- |{' --- |' * len(rows)}")
    for column in columns:
        print(f"| {column} | {' | '.join(f'{row[column]:.3g}' for row in rows.values())} |")
    if options.output:
        assumed = {"clients": CLIENTS, "gpus": GPUS, "cohort": COHORT, "steps": STEPS,
                   "batch": BATCH, "examples": EXAMPLES, "flops": FLOPS, "link": LINK,
                   "disk": DISK}  # fmt: skip
        options.output.write_text(json.dumps({"assumed": assumed, "rows": rows}, indent=1) + "\n")


def estimate(algorithm):
    """Seconds of a round and of a pass over the population, memory and disk, for one algorithm."""
    model = fo.models.mnist_cnn()
    batch = {
        "x": jax.ShapeDtypeStruct((BATCH, 28, 28, 1), jnp.float32),
        "y": jax.ShapeDtypeStruct((BATCH,), jnp.int32),
    }
    variables = jax.eval_shape(model.init, jax.random.key(0), batch)
    cost = fo.costs.of(algorithm, variables, COHORT)
    each = fo.costs.client_flops(algorithm, model, batch, EXAMPLES).client(STEPS)
    compute = COHORT / GPUS * each / FLOPS
    # A ring all-reduce sends every byte of the mean upload twice, but for one part in n.
    reduce = 2 * (GPUS - 1) / GPUS * cost.bytes_up / LINK + SECONDS_TO_START
    hosts = GPUS // GPUS_PER_HOST
    read = COHORT / hosts * (EXAMPLES * BYTES_PER_EXAMPLE + cost.client_state) / DISK
    write = COHORT / hosts * cost.client_state / DISK
    # Examples are read, and states written, while the round before and after computes.
    round_seconds = max(compute + reduce, read + write)
    rounds = CLIENTS / COHORT
    return {
        "parameters": sum(x.size for x in jax.tree.leaves(variables.params)),
        "GFLOP of a client": each / 1e9,
        "s to compute a round": compute,
        "s to reduce": reduce,
        "s to read and write": read + write,
        "s of a round": round_seconds,
        "rounds until all took part": rounds,
        "days until then": rounds * round_seconds / 86_400,
        "GB of tables on each GPU": 8 * CLIENTS / 1e9,
        "GB of a cohort's work on each GPU": COHORT / GPUS * cost.client_memory / 1e9,
        "TB of examples on disk": CLIENTS * EXAMPLES * BYTES_PER_EXAMPLE / 1e12,
        "TB of client states on disk": CLIENTS * cost.client_state / 1e12,
        "share of a GPU's memory": (8 * CLIENTS + COHORT / GPUS * cost.client_memory) / MEMORY,
    }


if __name__ == "__main__":
    main()
