"""Clients whose inputs are noisy: bad sensors, to see what they do to everybody else."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData


def with_noise(
    data: ClientData,
    std: float,
    fraction: float = 0.2,
    seed: int = 0,
    key: Any = "x",
    clip: tuple[float, float] | None = None,
) -> tuple[ClientData, np.ndarray]:
    """Adds Gaussian noise to the inputs of some clients: `x + std N(0, 1)`, drawn once.

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
    checks.number("std", std, low=0.0, high=np.inf, open_high=True)
    checks.number("fraction", fraction, low=0.0, high=1.0)
    checks.integer("seed", seed, low=0)
    if not isinstance(data.examples, Mapping) or key not in data.examples:
        names = sorted(data.examples) if isinstance(data.examples, Mapping) else "no names"
        raise ValueError(f"key must be the name of an array of examples, {names}, got {key!r}.")
    inputs = np.asarray(data.examples[key])
    if not np.issubdtype(inputs.dtype, np.floating):
        raise ValueError(
            f"examples[{key!r}] must be floating point to take noise, got {inputs.dtype}. Convert it"
            " first, for example x.astype(np.float32) / 255."
        )
    if clip is not None and not (np.shape(clip) == (2,) and clip[0] < clip[1]):
        raise ValueError(f"clip must be (lowest, highest) with lowest < highest, got {clip!r}.")
    generator = np.random.default_rng(seed)
    noisy = np.zeros(data.num_clients, bool)
    noisy[generator.permutation(data.num_clients)[: round(fraction * data.num_clients)]] = True
    inputs = inputs.copy()
    for client in np.flatnonzero(noisy):
        start = int(data.offsets[client])
        rows = slice(start, start + int(data.sizes[client]))
        draw = generator.standard_normal(inputs[rows].shape).astype(inputs.dtype)
        moved = inputs[rows] + inputs.dtype.type(std) * draw
        inputs[rows] = moved if clip is None else np.clip(moved, *clip)
    return ClientData({**data.examples, key: inputs}, data.offsets, data.sizes, data.known), noisy
