"""`--dry-run`: what an experiment would need, from shapes alone, and a guess at its time."""

import time
from typing import Any

import jax
import numpy as np

from fedjax_opt.cli.tables import duration, megabytes, print_table
from fedjax_opt.core import Federation, Objective
from fedjax_opt.experiments.playing import Program, Setup
from fedjax_opt.experiments.pricing import minibatch
from fedjax_opt.tasks import Task

# Rounds reach this share of the rate of large matrix products, give or take a factor of two.
_EFFICIENCY = 0.4
_BATCH_SIZE = Federation.batch_size


def print_plan(task: Task, setup: Setup) -> float:
    """Prints the programs that would run, their memory, operations, bytes, and a guess at their time.

    Returns:
      That guess, in seconds.
    """
    rate = _EFFICIENCY * _matrix_rate()
    batch_size = setup.programs[0].settings.get("batch_size", _BATCH_SIZE)
    rows, flops, step = [], 0.0, _step_memory(task, batch_size)
    for program in setup.programs:
        clients, steps = _work(task, program, setup.rounds)
        trials = len(program.trials)
        each = clients * program.price.flops + steps * program.price.flops_per_step
        flops += trials * each
        rows.append(
            [
                program.member.label,
                str(trials),
                megabytes(program.price.memory + step),
                f"{trials * each / 1e9:.4g}",
                megabytes(trials * clients * program.price.bytes_up),
                megabytes(trials * clients * program.price.bytes_down),
                duration(trials * each / rate),
            ]
        )
    header = ["program", "runs", "MB of a run", "GFLOP", "MB up", "MB down", "about"]
    print_table(header, rows)
    data = sum(x.nbytes for x in jax.tree.leaves(task.data.examples))
    print(
        f"{_count(sum(len(p.trials) for p in setup.programs), 'run')} of"
        f" {_count(setup.rounds, 'round')} as {_count(len(rows), 'program')};"
        f" {megabytes(data)} MB of examples beside them."
        f" About {duration(flops / rate)} at {rate / 1e9:.3g} GFLOP/s, which is"
        f" {_EFFICIENCY:.0%} of what large matrix products reach here; compilation comes on top."
    )
    return flops / rate


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _work(task: Task, program: Program, rounds: int) -> tuple[float, float]:
    """How many clients take part in a run, and how many steps they take; a controller takes K_0."""
    settings = program.settings
    cohort = settings["cohort_size"] if "cohort_size" in settings else settings["sampler"].size
    steps: Any = settings.get("local_steps")
    if "local_epochs" in settings and steps is None:
        per_epoch = np.ceil(np.asarray(task.data.sizes) / settings.get("batch_size", _BATCH_SIZE))
        steps = settings["local_epochs"] * float(np.mean(per_epoch))
    elif not isinstance(steps, (int, float)):
        steps = task.settings.get("local_steps", 1)
    return float(rounds * cohort), float(rounds * cohort * steps)


def _step_memory(task: Task, batch_size: int) -> int:
    """Bytes that a local step keeps between its forward and its backward pass."""

    def kept(batch):
        key = jax.random.key(0)
        variables = task.model.init(key, batch)

        def loss(params):
            now = variables._replace(params=params)
            return Objective(task.model, key).evaluate(now, batch).loss

        return jax.vjp(loss, variables.params)[1]

    shapes = jax.eval_shape(kept, minibatch(task, batch_size))
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
