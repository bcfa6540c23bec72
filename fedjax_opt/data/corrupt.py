"""Some clients whose data is bad: labels that are wrong, inputs that are noisy."""

from collections.abc import Callable, Hashable, Mapping

import chex
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData


def with_flipped_labels(
    data: ClientData,
    num_classes: int,
    fraction: float = 0.2,
    seed: int = 0,
    key: Hashable = "y",
) -> tuple[ClientData, chex.ArrayNumpy]:
    """Turns the labels of some clients around: class c becomes `num_classes - 1 - c`.

    It is an attack on the data, which no upload betrays.

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
    labels = _named(data, key)
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"examples[{key!r}] must hold whole numbers, got {labels.dtype}.")
    checks.number(f"examples[{key!r}]", np.unique(labels), low=0, high=num_classes - 1)
    return _corrupted(data, key, fraction, seed, lambda own, rng: num_classes - 1 - own)


def with_noise(
    data: ClientData,
    std: float,
    fraction: float = 0.2,
    seed: int = 0,
    key: Hashable = "x",
    clip: tuple[float, float] | None = None,
) -> tuple[ClientData, chex.ArrayNumpy]:
    """Adds Gaussian noise to the inputs of some clients: `x + std N(0, 1)`, drawn once.

    These are bad sensors, to see what they do to everybody else.

    Args:
      data: the federated data; its examples are a mapping.
      std: the standard deviation of the noise, not negative; 3 for MNIST and 0.2 for CIFAR10 in the
        MTFL paper.
      fraction: the share of the clients that are noisy, rounded to a whole number of them, in [0, 1].
      seed: of the choice of clients and of the noise.
      key: the name of the inputs in the examples. They must be floating point: noise would be lost in
        integers.
      clip: (lowest, highest) value of a noisy input, such as (0, 1) for pixels, which is what the MTFL
        paper's code does; None leaves them as they are.

    Returns:
      The data, whose other arrays are shared with the original, and which clients are noisy, bool `[N]`.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> clients = [{"x": np.zeros((5, 2), np.float32), "y": np.arange(5)} for _ in range(10)]
      >>> data, noisy = fo.data.with_noise(fo.ClientData.from_list(clients), std=3.0)
      >>> int(noisy.sum()), [bool(data[i]["x"].any()) for i in np.flatnonzero(noisy)]
      (2, [True, True])

    Reference:
      Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
      computing. IEEE Transactions on Parallel and Distributed Systems, 2022.
    """
    checks.number("std", std, low=0.0, open_high=True)
    dtype = _named(data, key).dtype
    if not np.issubdtype(dtype, np.floating):
        raise ValueError(
            f"examples[{key!r}] must be floating point to take noise, got {dtype}. Convert it"
            " first, for example x.astype(np.float32) / 255."
        )
    if clip is not None and not (np.shape(clip) == (2,) and clip[0] < clip[1]):
        raise ValueError(f"clip must be (lowest, highest) with lowest < highest, got {clip!r}.")

    def noisy(own: chex.ArrayNumpy, rng: np.random.Generator) -> chex.ArrayNumpy:
        moved = own + dtype.type(std) * rng.standard_normal(own.shape).astype(dtype)
        return moved if clip is None else np.clip(moved, *clip)

    return _corrupted(data, key, fraction, seed, noisy)


def _named(data: ClientData, key: Hashable) -> chex.ArrayNumpy:
    if not isinstance(data.examples, Mapping) or key not in data.examples:
        names = sorted(data.examples) if isinstance(data.examples, Mapping) else "no names"
        raise ValueError(f"key must be the name of an array of examples, {names}, got {key!r}.")
    return np.asarray(data.examples[key])


def _corrupted(
    data: ClientData,
    key: Hashable,
    fraction: float,
    seed: int,
    change: Callable[[chex.ArrayNumpy, np.random.Generator], chex.ArrayNumpy],
) -> tuple[ClientData, chex.ArrayNumpy]:
    """The data after a change of the rows of some clients, drawn, and who these are."""
    checks.number("fraction", fraction, low=0.0, high=1.0)
    rng = np.random.default_rng(checks.integer("seed", seed, low=0))
    chosen = np.zeros(data.num_clients, bool)
    chosen[rng.permutation(data.num_clients)[: round(fraction * data.num_clients)]] = True
    array = _named(data, key).copy()
    for client in np.flatnonzero(chosen):
        start = int(data.offsets[client])
        rows = slice(start, start + int(data.sizes[client]))
        array[rows] = change(array[rows], rng)
    return ClientData({**data.examples, key: array}, data.offsets, data.sizes, data.known), chosen
