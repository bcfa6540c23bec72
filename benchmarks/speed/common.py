"""What every contestant shares: the tasks, their data, first parameters, loss and protocol.

Only NumPy and the standard library, so that it runs in every contestant's environment.
"""

import argparse
import dataclasses
import json
import os
import resource
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

WORDS = 12  # in a text of W1
EMBEDDING, HIDDEN = 8, 128  # of W4
FEATURES, UNITS = (32, 64), 512  # of W3 and W5

Params = dict[str, np.ndarray]


class Product(NamedTuple):
    """A layer's matrix `inputs` x `outputs`, which meets `positions` vectors of each example."""

    positions: int
    inputs: int
    outputs: int


@dataclasses.dataclass(frozen=True)
class Task:
    """One FedAvg round: `clients` x `local_steps` SGD steps of `batch` examples.

    Attributes:
      model: 'mlp' (of `layers`), 'cnn' or 'gru'.
      shape: an example's shape: words of the vocabulary, pixels, image, or the length of a sequence.
      classes: how many classes, or symbols.
      rounds: rounds in a timed unit, unless `run.py` is told otherwise.
      words: whether examples are bags of words.
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    clients: int
    local_steps: int = 10
    batch: int = 32
    hidden: tuple[int, ...] = ()
    learning_rate: float = 0.1
    rounds: int = 1
    words: bool = False

    @property
    def examples(self) -> int:
        """Examples of a client: ten minibatches."""
        return 10 * self.batch

    @property
    def layers(self) -> tuple[int, ...]:
        return (*self.shape, *self.hidden, self.classes)

    @property
    def products(self) -> list[Product]:
        """The matrix products of one example's forward pass; a convolution is patches times a matrix."""
        if self.model == "mlp":
            return [Product(1, m, n) for m, n in zip(self.layers, self.layers[1:], strict=False)]
        if self.model == "gru":
            steps = self.shape[0]
            sizes = [EMBEDDING, HIDDEN, HIDDEN, HIDDEN]  # input and recurrent, of two layers
            gates = [Product(steps, size, 3 * HIDDEN) for size in sizes]
            return [*gates, Product(steps, HIDDEN, self.classes)]
        found, (height, width, channels) = [], self.shape
        for features in FEATURES:
            found.append(Product(height * width, 9 * channels, features))
            height, width, channels = height // 2, width // 2, features
        return [
            *found, Product(1, height * width * channels, UNITS), Product(1, UNITS, self.classes)
        ]  # fmt: skip

    @property
    def examples_per_round(self) -> int:
        return self.clients * self.local_steps * self.batch

    @property
    def matmul_flops(self) -> int:
        """2*m*n*k of every matrix product in a round: forward, weight and input gradients.

        The first layer has no input gradient, unless it stands on an embedding, which learns. Nothing
        but matrix products is counted.
        """
        sizes = [p.positions * p.inputs * p.outputs for p in self.products]
        without = 0 if self.model == "gru" else sizes[0]
        return self.examples_per_round * (6 * sum(sizes) - 2 * without)

    @property
    def six_n_flops(self) -> int:
        """The common estimate for a round: 6 for each use of a weight or bias by an example.

        In a fully connected network each is used once: 6 x parameters x examples.
        """
        uses = sum(p.positions * (p.inputs + 1) * p.outputs for p in self.products)
        return 6 * uses * self.examples_per_round

    def describe(self) -> str:
        if self.model == "mlp":
            network = f"{'-'.join(map(str, self.layers))} units"
        elif self.model == "cnn":
            image = "x".join(map(str, self.shape))
            network = f"CNN 3x3x32, 3x3x64, 512, {self.classes} on {image}"
        else:
            network = f"GRU 2x{HIDDEN}, sequence {self.shape[0]}, {self.classes} symbols"
        return f"{network}; {self.clients} clients, K={self.local_steps}, B={self.batch}"


W2 = Task("mlp", (784,), 62, clients=60, hidden=(200, 200), rounds=2)
W3 = Task("cnn", (28, 28, 1), 62, clients=30, learning_rate=0.05)
TASKS = {
    "w1": Task("mlp", (5000,), 2, clients=22, batch=8, rounds=20, words=True),
    "w2": W2,
    "w2-k80": dataclasses.replace(W2, local_steps=80, rounds=1),
    "w3": W3,
    "w4": Task("gru", (80,), 79, clients=7, learning_rate=0.5),
    "w5": dataclasses.replace(W3, shape=(28, 28, 3), classes=100, clients=5),
}


def client_data(task: Task, ids: bool = False) -> list[dict[str, np.ndarray]]:
    """Every client's examples, seeded; a fifth of the labels is random, so the loss never vanishes.

    Args:
      task: whose data.
      ids: for bags of words, whether `x` is the texts' token ids instead of their counts.
    """
    rng = np.random.default_rng(0)
    if task.words:
        return [_texts(task, rng, ids) for _ in range(task.clients)]
    if task.model == "gru":
        return [_sequences(task, rng) for _ in range(task.clients)]
    prototypes = rng.standard_normal((task.classes, *task.shape), dtype=np.float32)
    return [_prototypes(task, rng, prototypes) for _ in range(task.clients)]


def _prototypes(task, rng, prototypes):
    """Noisy class prototypes."""
    y = rng.integers(task.classes, size=task.examples)
    x = 0.2 * prototypes[y]
    x += 0.5 * rng.standard_normal(x.shape, dtype=np.float32)
    y = np.where(rng.random(task.examples) < 0.2, rng.integers(task.classes, size=y.shape), y)
    return {"x": x, "y": y.astype(np.int32)}


def _texts(task, rng, ids):
    """Words, the first tenth of them frequent; even ones are good, and the majority is the label."""
    vocabulary = task.shape[0]
    frequent = rng.random((task.examples, WORDS)) < 0.8
    words = np.where(
        frequent,
        rng.integers(vocabulary // 10, size=frequent.shape),
        rng.integers(vocabulary, size=frequent.shape),
    )
    y = (np.mean(words % 2 == 0, axis=1) > 0.5).astype(np.int32)
    y = np.where(rng.random(task.examples) < 0.2, 1 - y, y).astype(np.int32)
    if ids:
        return {"x": words.astype(np.int32), "y": y}
    x = np.zeros((task.examples, vocabulary), np.float32)
    np.add.at(x, (np.arange(task.examples)[:, None], words), 1)
    return {"x": x, "y": y}


def _sequences(task, rng):
    """Symbols of which four fifths follow from the one before; each one's label is the next."""
    symbols, length = task.classes, task.shape[0]
    text = rng.integers(symbols, size=(task.examples, length + 1))
    for i in range(1, length + 1):
        follows = rng.random(task.examples) < 0.8
        text[:, i] = np.where(follows, (3 * text[:, i - 1] + 1) % symbols, text[:, i])
    return {"x": text[:, :-1].astype(np.int32), "y": text[:, 1:].astype(np.int32)}


def first_params(task: Task) -> Params:
    """The first parameters, the same for every contestant; dense and convolutional layers are HWIO.

    Layer i of an MLP or CNN has `w{i}` and `b{i}`, He-normal and zero. A GRU has `embedding`, for
    each layer `input_kernel{i}`, `input_bias{i}`, `recurrent_kernel{i}` and `recurrent_bias{i}` with
    the gates reset, update, new; and `w`, `b`.
    """
    rng = np.random.default_rng(1)

    def he(*shape):
        fan_in = int(np.prod(shape[:-1]))
        return rng.standard_normal(shape, dtype=np.float32) * np.float32((2 / fan_in) ** 0.5)

    def uniform(*shape):
        return rng.uniform(-(HIDDEN**-0.5), HIDDEN**-0.5, shape).astype(np.float32)

    if task.model == "gru":
        found = {"embedding": rng.standard_normal((task.classes, EMBEDDING), dtype=np.float32)}
        for i, size in enumerate((EMBEDDING, HIDDEN)):
            found |= {
                f"input_kernel{i}": uniform(size, 3 * HIDDEN),
                f"input_bias{i}": uniform(3 * HIDDEN),
                f"recurrent_kernel{i}": uniform(HIDDEN, 3 * HIDDEN),
                f"recurrent_bias{i}": uniform(3 * HIDDEN),
            }
        return found | {"w": uniform(HIDDEN, task.classes), "b": uniform(task.classes)}
    found = {}
    for i, product in enumerate(task.products):
        conv = product.positions > 1
        shape = (3, 3, product.inputs // 9) if conv else (product.inputs,)
        found[f"w{i}"] = he(*shape, product.outputs)
        found[f"b{i}"] = np.zeros(product.outputs, np.float32)
    return found


def train_loss(task: Task, params: Params, clients: list[dict[str, np.ndarray]]) -> float:
    """Mean cross-entropy over the first 32 examples of every client, in NumPy, in any environment.

    Args:
      task: the task.
      params: named and shaped as in `first_params`.
      clients: the data, with dense bags of words.
    """
    params = {name: np.asarray(value) for name, value in params.items()}
    forward = {"mlp": _mlp, "cnn": _cnn, "gru": _gru}[task.model]
    losses = []
    for client in clients:
        logits, y = forward(params, client["x"][:32]), client["y"][:32]
        logits = logits - logits.max(axis=-1, keepdims=True)
        right = np.take_along_axis(logits, y[..., None], axis=-1)[..., 0]
        losses.append(np.mean(np.log(np.exp(logits).sum(axis=-1)) - right))
    return float(np.mean(losses))


def _mlp(params, h, first=0):
    for i in range(first, len(params) // 2):
        h = (np.maximum(h, 0) if i > first else h) @ params[f"w{i}"] + params[f"b{i}"]
    return h


def _cnn(params, x):
    for i in range(len(FEATURES)):
        kernel, (count, height, width, _) = params[f"w{i}"], x.shape
        padded = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
        offsets = [(a, b) for a in range(3) for b in range(3)]
        patches = [padded[:, a : a + height, b : b + width] for a, b in offsets]
        y = np.concatenate(patches, axis=-1) @ kernel.reshape(-1, kernel.shape[-1])
        y = np.maximum(y + params[f"b{i}"], 0)
        x = y.reshape(count, height // 2, 2, width // 2, 2, -1).max(axis=(2, 4))
    return _mlp(params, x.reshape(len(x), -1), first=len(FEATURES))


def _gru(params, ids):
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    x = params["embedding"][ids]
    for i in range(2):
        given = x @ params[f"input_kernel{i}"] + params[f"input_bias{i}"]
        h, x = np.zeros((len(ids), HIDDEN), np.float32), []
        for step in range(ids.shape[1]):
            own = h @ params[f"recurrent_kernel{i}"] + params[f"recurrent_bias{i}"]
            both = sigmoid(given[:, step, : 2 * HIDDEN] + own[:, : 2 * HIDDEN])
            reset, update = both[:, :HIDDEN], both[:, HIDDEN:]
            new = np.tanh(given[:, step, 2 * HIDDEN :] + reset * own[:, 2 * HIDDEN :])
            h = (1 - update) * new + update * h
            x.append(h)
        x = np.stack(x, axis=1)
    return x @ params["w"] + params["b"]


def peak_mib() -> float:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def worker_parser(doc: str | None) -> argparse.ArgumentParser:
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
        print(json.dumps({"peak_mib": peak_mib()} | message), file=out, flush=True)

    info, run = setup()
    answer({"ready": True} | info)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        answer(run())
