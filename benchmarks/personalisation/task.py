"""MTFL's MNIST task: clients of two shards each, a network with one batch norm.

Where the thesis leaves something open, it is as in the authors' code: the batch norm stands behind the
first ReLU, layers start with PyTorch's initial weights, noisy pixels are clipped to [0, 1].
"""

from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np

import fedjax_opt as fo

TASK = {
    "clients": 200, "shards_per_client": 2, "cohort_size": 100, "batch_size": 20, "epochs": 1,
    "target": 0.97, "noisy_fraction": 0.2, "noise": 3.0,
}  # fmt: skip


def _like_pytorch(fan_in):
    """Weights and biases uniform in +-1/sqrt(fan_in)."""

    def uniform(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, -(fan_in**-0.5), fan_in**-0.5)

    return {"kernel_init": uniform, "bias_init": uniform}


class Network(nn.Module):
    """784-200-200-10 with a batch norm behind the first ReLU, the thesis's 2NN."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(nn.Dense(200, **_like_pytorch(784))(x))
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5)(x)
        x = nn.relu(nn.Dense(200, **_like_pytorch(200))(x))
        return nn.Dense(10, **_like_pytorch(200))(x)


MODEL = fo.models.from_linen(Network(), train_argument="train")


class Clients(NamedTuple):
    """Training and test sets of the clients, and whose user accuracy counts."""

    train: fo.ClientData
    test: fo.ClientData
    counted: np.ndarray


def clients(arrays, seed, noisy=False):
    """The split of a seed; with noise, only the clients without it count."""
    train, test = (
        fo.ClientData.from_arrays(
            part, fo.data.label_shards(part["y"], TASK["clients"], TASK["shards_per_client"], seed)
        )
        for part in arrays
    )
    counted = np.ones(TASK["clients"], bool)
    if noisy:
        train, with_noise = fo.data.with_noise(
            train, TASK["noise"], TASK["noisy_fraction"], seed, clip=(0.0, 1.0)
        )
        counted = ~with_noise
    return Clients(fo.place(train), fo.place(test), counted)
