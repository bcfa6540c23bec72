"""FEMNIST, from LEAF's files."""

import itertools
import os
import pathlib

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Federation, checks
from fedjax_opt.tasks.parts import Arrays, Clients, Directory, gathered


def femnist(
    folder: str | os.PathLike[str], num_clients: int = 3000, stored: Directory = None
) -> Federation:
    """FEMNIST by writer, and a network of two hidden layers of 200 (decaying local steps).

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      num_clients: how many writers to keep, the first of them; 3,000 of about 3,550 in the paper,
        which does not say which.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.femnist("leaf/data/femnist/data")  # doctest: +SKIP

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
    """
    clients, test = _leaf_images(folder, num_clients, stored)
    return Federation(
        models.dnn(num_classes=62),
        clients,
        cohort=min(60, len(clients)),
        local_steps=80,
        batch_size=32,
        test=test,
    )


def femnist_cnn(
    folder: str | os.PathLike[str],
    num_clients: int = 3000,
    local_steps: int = 10,
    stored: Directory = None,
) -> Federation:
    """FEMNIST by writer, and the CNN 32-64-512 (FedGBO).

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      num_clients: how many writers to keep, the first of them; 3,000 of about 3,550 in the paper,
        which does not say which.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.femnist_cnn("leaf/data/femnist/data")  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    clients, test = _leaf_images(folder, num_clients, stored)
    return Federation(
        models.cnn(num_classes=62),
        clients,
        cohort=min(30, len(clients)),
        local_steps=local_steps,
        batch_size=32,
        test=test,
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
