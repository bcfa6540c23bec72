"""FEMNIST, from LEAF's files."""

import itertools
import os
import pathlib

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.algorithms import fedavg
from fedjax_opt.core import checks
from fedjax_opt.optimizers import sgd
from fedjax_opt.tasks.parts import DECAYING, FEDGBO, Arrays, Clients, Directory, gathered
from fedjax_opt.tasks.task import Task
from fedjax_opt.tasks.tuned import tuned


def femnist(
    folder: str | os.PathLike[str], num_clients: int = 3000, stored: Directory = None
) -> Task:
    """FEMNIST by writer, and a network of two hidden layers of 200 (decaying local steps).

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      num_clients: how many writers to keep; 3,000 of about 3,550 in the paper.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Task`.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.femnist("leaf/data/femnist/data")  # doctest: +SKIP

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
    """
    data, test = _leaf_images(folder, num_clients, stored)
    return Task(
        name="femnist",
        paper=DECAYING,
        differs="The writers that are kept are the first; the paper does not say which.",
        data=data,
        test=test,
        model=models.dnn(num_classes=62),
        rounds=10_000,
        settings={"cohort_size": min(60, len(data)), "batch_size": 32, "local_steps": 80},
        algorithms={"fedavg": fedavg(sgd(0.3))},
    )


def femnist_cnn(
    folder: str | os.PathLike[str],
    num_clients: int = 3000,
    local_steps: int = 10,
    stored: Directory = None,
) -> Task:
    """FEMNIST by writer, and the CNN 32-64-512 (FedGBO).

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      num_clients: how many writers to keep; 3,000 of about 3,550 in the paper.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Task`.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.femnist_cnn("leaf/data/femnist/data")  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    data, test = _leaf_images(folder, num_clients, stored)
    return Task(
        name="femnist_cnn",
        paper=FEDGBO,
        differs="The writers that are kept are the first; the paper does not say which.",
        data=data,
        test=test,
        model=models.cnn(num_classes=62),
        rounds=5000,
        settings={"cohort_size": min(30, len(data)), "batch_size": 32, "local_steps": local_steps},
        algorithms=tuned("femnist_cnn", local_steps),
    )


def _leaf_images(
    folder: str | os.PathLike[str], num_clients: int, stored: Directory
) -> tuple[fed.ClientData | fed.StoredClients, Arrays]:
    """The first writers' training images, and the test images of the same writers."""
    num_clients = checks.integer("num_clients", num_clients, low=1)
    home = pathlib.Path(folder)

    def train() -> Clients:
        return itertools.islice(fed.read_leaf(home / "train", "femnist"), num_clients)

    def test(names: set[str]) -> Clients:
        return (pair for pair in fed.read_leaf(home / "test", "femnist") if pair[0] in names)

    return gathered(train, test, stored, data="femnist", num_clients=num_clients)
