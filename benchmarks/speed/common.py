"""What every contestant shares: the tasks, their data, first parameters, loss and protocol.

Only NumPy and the standard library, so that it runs in FedJAX's environment and in ours.
"""

import argparse
import dataclasses
import json
import os
import resource
import sys
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Task:
    """One FedAvg round: `clients` x `local_steps` SGD steps of `batch` examples on an MLP."""

    local_steps: int
    clients: int = 60
    examples: int = 320  # per client
    batch: int = 32
    layers: tuple[int, ...] = (784, 200, 200, 62)
    learning_rate: float = 0.1

    @property
    def parameters(self) -> int:
        return sum(m * n + n for m, n in zip(self.layers, self.layers[1:], strict=False))

    @property
    def matmul_flops(self) -> int:
        """2*m*n*k of every matrix product in a round: forward, weight and input gradients.

        The first layer has no input gradient. Nothing but matrix products is counted.
        """
        sizes = [m * n for m, n in zip(self.layers, self.layers[1:], strict=False)]
        per_step = self.batch * (4 * sum(sizes) + 2 * sum(sizes[1:]))
        return self.clients * self.local_steps * per_step

    @property
    def six_n_flops(self) -> int:
        """The common estimate, 6 x parameters x examples, for a round."""
        return 6 * self.parameters * self.batch * self.local_steps * self.clients


TASKS = {"w2": Task(local_steps=10), "w2-k80": Task(local_steps=80)}


def client_data(task: Task) -> list[dict[str, np.ndarray]]:
    """Noisy class prototypes; a fifth of the labels is random, so the loss never vanishes."""
    rng = np.random.default_rng(0)
    classes = task.layers[-1]
    prototypes = rng.standard_normal((classes, task.layers[0]), dtype=np.float32)
    clients = []
    for _ in range(task.clients):
        y = rng.integers(classes, size=task.examples)
        x = 0.2 * prototypes[y]
        x += 0.5 * rng.standard_normal(x.shape, dtype=np.float32)
        y = np.where(rng.random(task.examples) < 0.2, rng.integers(classes, size=y.shape), y)
        clients.append({"x": x, "y": y.astype(np.int32)})
    return clients


def first_params(task: Task) -> list[tuple[np.ndarray, np.ndarray]]:
    """He-normal weights and zero biases, the same for every contestant."""
    rng = np.random.default_rng(1)
    return [
        (
            rng.standard_normal((m, n), dtype=np.float32) * np.float32((2 / m) ** 0.5),
            np.zeros(n, np.float32),
        )
        for m, n in zip(task.layers, task.layers[1:], strict=False)
    ]


def train_loss(params, clients) -> float:
    """Mean cross-entropy over the first 32 examples of every client, in NumPy."""
    h = np.concatenate([c["x"][:32] for c in clients])
    y = np.concatenate([c["y"][:32] for c in clients])
    for i, (w, b) in enumerate(params):
        h = (np.maximum(h, 0) if i else h) @ np.asarray(w) + np.asarray(b)
    h = h - h.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(h).sum(axis=1)) - h[np.arange(len(y)), y]))


def peak_mib() -> float:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def worker_parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--task", choices=TASKS, default="w2", help="the task (default: w2)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="rounds in one timed unit (default: 1)"
    )
    return parser


def serve(setup: Callable[[], tuple[dict, Callable[[], dict]]]) -> None:
    """Speak the worker protocol: one JSON object a line, on the real standard output.

    `setup` compiles and warms up, and returns what to report and the timed unit. Every line
    "run" on standard input is answered by one timed unit; "quit" or end of input ends.
    Anything a library prints goes to standard error.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict) -> None:
        print(json.dumps(message | {"peak_mib": peak_mib()}), file=out, flush=True)

    info, run = setup()
    answer({"ready": True} | info)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        answer(run())
