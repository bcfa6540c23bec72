"""Digits, MNIST and Fashion-MNIST."""

from typing import Any

import numpy as np

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.algorithms import ce_fedavg, compressed_fedavg, fedavg, mfl
from fedjax_opt.models.images import network
from fedjax_opt.optimizers import adam, sgd
from fedjax_opt.tasks.parts import CE_FEDAVG, FEDACG, MTFL, Directory, three
from fedjax_opt.tasks.task import Task


def digits(num_clients: int = 100, alpha: float = 0.0, seed: int = 0) -> Task:
    """Handwritten digits of 8x8 pixels, one class per client: the task of `fedjax-opt demo`.

    Args:
      num_clients: N.
      alpha: how alike the clients are: 0 for one class each, large for the same mixture.
      seed: of the split.

    Returns:
      A `Task`. Its data comes with the package.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.tasks.digits().data.num_clients
      100
    """
    train, test = fed.load_digits(seed=0)
    owners = fed.dirichlet(train["y"], num_clients, alpha, seed=seed)
    return Task(
        name="digits",
        paper="none",
        differs="small enough to come with the package",
        data=fed.ClientData.from_arrays(train, owners, num_clients),
        test=test,
        model=models.mlp([64], num_classes=10),
        rounds=300,
        # Step sizes that did well in one sweep over 0.05 to 1.6 on another split.
        settings={"cohort_size": min(5, num_clients), "batch_size": 8, "local_steps": 20},
        algorithms=three(0.4, 0.4, 0.1),
    )


def mnist_shards(num_clients: int = 20, seed: int = 0, directory: Directory = None) -> Task:
    """MNIST in two shards per client, and a network with two hidden layers (MNIST-2NN).

    Args:
      num_clients: W; 10, 20 or 40 in the thesis. Half of them are in each round.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Task`, with `ce_fedavg` and `compressed_fedavg` among its algorithms, of sparsity 0.6. The
      thesis stops at a test accuracy of 97%.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.mnist_shards()  # doctest: +SKIP

    Reference:
      Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT.
      IEEE Internet of Things Journal, 2020.
    """
    train, test, _ = fed.load("mnist", directory)
    owners = fed.label_shards(train["y"], num_clients, shards_per_client=2, seed=seed)
    moments = adam(0.001, b1=0.9, b2=0.999, eps=1e-8, initial_v=0.0)
    return Task(
        name="mnist_shards",
        paper=CE_FEDAVG,
        differs="The minibatch of 20 and the one local epoch are ours: the paper names neither.",
        data=fed.ClientData.from_arrays(train, owners, num_clients),
        test=test,
        model=models.preprocessed(
            models.mlp([200, 200], num_classes=10), fed.scale(), fed.flatten()
        ),
        rounds=200,
        settings={"cohort_size": max(num_clients // 2, 1), "batch_size": 20, "local_epochs": 1},
        algorithms={
            **three(0.2, 0.4, 0.1),
            "mfl-adam": mfl(moments),
            "ce_fedavg": ce_fedavg(moments, 0.6),
            "compressed_fedavg": compressed_fedavg(sgd(0.2), 0.6),
        },
    )


def digits_users(num_clients: int = 20, seed: int = 0) -> Task:
    """Digits in two shards per client, each tested on digits of its own: MTFL's task, small.

    Args:
      num_clients: W. Half of them are in each round.
      seed: of the split.

    Returns:
      A `Task` whose model has batch normalisation (it needs flax), and with a `client_test`: every
      fifth example of a client.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.digits_users()
      >>> task.client_test.num_clients
      20

    Reference:
      Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
      computing. IEEE Transactions on Parallel and Distributed Systems, 2022.
    """
    parts = fed.load_digits(seed=0)
    digits = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    owners = fed.label_shards(digits["y"], num_clients, shards_per_client=2, seed=seed)
    tested = np.zeros(len(owners), bool)
    for client in range(num_clients):
        tested[np.flatnonzero(owners == client)[::5]] = True
    train, test = ({name: x[rows] for name, x in digits.items()} for rows in (~tested, tested))
    network_64 = network("cnn").DNN(10, hidden=(64, 64), batch_norm=True)
    return Task(
        name="digits_users",
        paper=MTFL,
        differs="Digits of 8x8 pixels, 64 units in place of 200, few clients.",
        data=fed.ClientData.from_arrays(train, owners[~tested], num_clients),
        test=test,
        model=models.from_linen(network_64, "train"),
        rounds=100,
        settings=_of_users(num_clients, batch_size=8),
        algorithms={"fedavg": fedavg(sgd(0.1))},
        client_test=fed.ClientData.from_arrays(test, owners[tested], num_clients),
    )


def mnist_users(num_clients: int = 200, seed: int = 0, directory: Directory = None) -> Task:
    """MNIST in two shards per client, each tested on test shards of its own (MTFL).

    Args:
      num_clients: W; 200 or 400 in the thesis. Half of them are in each round.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Task` whose model has batch normalisation (it needs flax), and with a `client_test`. The thesis
      stops at a user accuracy of 97%.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.mnist_users()  # doctest: +SKIP

    Reference:
      Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
      computing. IEEE Transactions on Parallel and Distributed Systems, 2022.
    """
    train, test, _ = fed.load("mnist", directory)
    clients, tested = (
        fed.ClientData.from_arrays(
            part, fed.label_shards(part["y"], num_clients, 2, seed), num_clients
        )
        for part in (train, test)
    )
    return Task(
        name="mnist_users",
        paper=MTFL,
        differs="All clients are tested after a round, not those that are in it.",
        data=clients,
        test=test,
        model=models.dnn(10, batch_norm=True),
        rounds=150,
        settings=_of_users(num_clients, batch_size=20),
        algorithms={"fedavg": fedavg(sgd(0.3))},
        client_test=tested,
    )


def _of_users(num_clients: int, batch_size: int) -> dict[str, Any]:
    """Half of the clients in a round, one local epoch."""
    cohort = max(num_clients // 2, 1)
    return {"cohort_size": cohort, "batch_size": batch_size, "local_epochs": 1}


def fashion_mnist_dirichlet(
    num_clients: int = 100, alpha: float = 0.3, seed: int = 0, directory: Directory = None
) -> Task:
    """Fashion-MNIST with labels by a Dirichlet distribution, and the CNN 32-64-512.

    Args:
      num_clients: N; a twentieth of them are in each round.
      alpha: the concentration of the Dirichlet distribution.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Task`.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.fashion_mnist_dirichlet(alpha=0.6)  # doctest: +SKIP
    """
    train, test, _ = fed.load("fashion_mnist", directory)
    owners = fed.balanced_dirichlet(train["y"], num_clients, alpha, seed=seed)
    return Task(
        name="fashion_mnist_dirichlet",
        paper=f"{FEDACG} The split and the participation are its own for CIFAR-10.",
        differs="Other images, a smaller model, 10 local steps in place of 50.",
        data=fed.ClientData.from_arrays(train, owners, num_clients),
        test=test,
        model=models.preprocessed(models.cnn(num_classes=10), fed.scale()),
        rounds=100,
        settings={"cohort_size": max(num_clients // 20, 1), "batch_size": 32, "local_steps": 10},
        algorithms=three(0.3, 0.3, 0.1),
    )
