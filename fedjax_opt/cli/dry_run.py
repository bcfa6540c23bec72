"""`--dry-run`: what an experiment would need, from shapes alone, and a guess at its time."""

import time
from typing import Any

import jax
import numpy as np

from fedjax_opt.cli.tables import megabytes, print_table
from fedjax_opt.core import Federation, Objective
from fedjax_opt.core.tables import duration
from fedjax_opt.experiments.comparing import pricer
from fedjax_opt.experiments.playing import Setup
from fedjax_opt.experiments.sweep import together
from fedjax_opt.planning.problem import mean_steps, minibatch

# Rounds reach this share of the rate of large matrix products, give or take a factor of two.
_EFFICIENCY = 0.4


def print_plan(setup: Setup) -> float:
    """Prints the programs that would run, their memory, operations, bytes, and a guess at their time."""
    rate = _EFFICIENCY * _matrix_rate()
    price = pricer(setup.trials, setup.device)
    rows, flops, step = [], 0.0, _step_memory(setup.federation)
    for program in together(setup.trials):
        clients = float(setup.rounds * program[0].federation.cohort.size)
        steps = [clients * (mean_steps(trial.federation) or 1.0) for trial in program]
        prices = [price(trial) for trial in program]
        work = sum(
            clients * p.flops + own * p.flops_per_step for p, own in zip(prices, steps, strict=True)
        )
        flops += work
        rows.append(
            [
                program[0].label,
                str(len(program)),
                megabytes(max(p.memory for p in prices) + step),
                f"{work / 1e9:.4g}",
                megabytes(clients * sum(p.bytes_up for p in prices)),
                megabytes(clients * sum(p.bytes_down for p in prices)),
                duration(work / rate),
            ]
        )
    header = ["program", "runs", "MB of a run", "GFLOP", "MB up", "MB down", "about"]
    print_table(header, rows)
    clients: Any = setup.federation.clients
    data = sum(x.nbytes for x in jax.tree.leaves(clients.examples))
    print(
        f"{_count(len(setup.trials), 'run')} of"
        f" {_count(setup.rounds, 'round')} as {_count(len(rows), 'program')};"
        f" {megabytes(data)} MB of examples beside them."
        f" About {duration(flops / rate)} at {rate / 1e9:.3g} GFLOP/s, which is"
        f" {_EFFICIENCY:.0%} of what large matrix products reach here; compilation comes on top."
    )
    return flops / rate


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _step_memory(federation: Federation) -> int:
    """Bytes that a local step keeps between its forward and its backward pass."""
    model = federation.model

    def kept(batch):
        key = jax.random.key(0)
        variables = model.init(key, batch)

        def loss(params):
            now = variables._replace(params=params)
            return Objective(model, key).evaluate(now, batch).loss

        return jax.vjp(loss, variables.params)[1]

    shapes = jax.eval_shape(kept, minibatch(federation))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def _matrix_rate(size: int = 768, seconds: float = 0.3) -> float:
    """Operations per second of a large matrix product: the fastest of many, as others may be at work."""
    matrix = np.ones((size, size), np.float32)
    began = last = time.perf_counter()
    fastest = float("inf")
    while last - began < seconds:
        np.matmul(matrix, matrix)
        now = time.perf_counter()
        fastest, last = min(fastest, now - last), now
    return 2 * size**3 / fastest
