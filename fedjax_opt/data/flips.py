"""Clients whose labels are wrong: an attack on the data, which no upload betrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData


def with_flipped_labels(
    data: ClientData,
    num_classes: int,
    fraction: float = 0.2,
    seed: int = 0,
    key: Any = "y",
) -> tuple[ClientData, np.ndarray]:
    """Turns the labels of some clients around: class c becomes `num_classes - 1 - c`.

    Args:
      data: the federated data; its examples are a mapping, its labels whole numbers.
      num_classes: C, how many classes there are, at least 2; labels lie in [0, C - 1].
      fraction: the share of the clients that attack, rounded to a whole number of them, in [0, 1].
      seed: of the choice of clients.
      key: the name of the labels in the examples.

    Returns:
      The data, whose other arrays are shared with the original, and which clients attack, bool `[N]`.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> clients = [{"x": np.zeros((3, 2)), "y": np.array([0, 1, 9])} for _ in range(10)]
      >>> data, flipped = fo.data.with_flipped_labels(fo.ClientData.from_list(clients), 10)
      >>> int(flipped.sum()), data[int(np.argmax(flipped))]["y"].tolist()
      (2, [9, 8, 0])

    Reference:
      Tolpegin, Truex, Gursoy, Liu. Data poisoning attacks against federated learning systems. ESORICS
      2020.
    """
    num_classes = checks.integer("num_classes", num_classes, low=2)
    checks.number("fraction", fraction, low=0.0, high=1.0)
    checks.integer("seed", seed, low=0)
    if not isinstance(data.examples, Mapping) or key not in data.examples:
        names = sorted(data.examples) if isinstance(data.examples, Mapping) else "no names"
        raise ValueError(f"key must be the name of an array of examples, {names}, got {key!r}.")
    labels = np.asarray(data.examples[key])
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"examples[{key!r}] must hold whole numbers, got {labels.dtype}.")
    if labels.size and not (labels.min() >= 0 and labels.max() < num_classes):
        raise ValueError(
            f"examples[{key!r}] must lie in [0, {num_classes - 1}], got {labels.min()} to"
            f" {labels.max()}."
        )
    generator = np.random.default_rng(seed)
    flipped = np.zeros(data.num_clients, bool)
    flipped[generator.permutation(data.num_clients)[: round(fraction * data.num_clients)]] = True
    labels = labels.copy()
    for client in np.flatnonzero(flipped):
        start = int(data.offsets[client])
        rows = slice(start, start + int(data.sizes[client]))
        labels[rows] = num_classes - 1 - labels[rows]
    return ClientData({**data.examples, key: labels}, data.offsets, data.sizes, data.known), flipped
