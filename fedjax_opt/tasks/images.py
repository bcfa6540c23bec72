"""Digits, MNIST and Fashion-MNIST."""

import numpy as np

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Federation, epochs
from fedjax_opt.models.images import network
from fedjax_opt.tasks.parts import Directory


def digits(num_clients: int = 100, alpha: float = 0.0, seed: int = 0) -> Federation:
    """Handwritten digits of 8x8 pixels, one class per client: the task of `fedjax-opt demo`.

    Args:
      num_clients: N.
      alpha: how alike the clients are: 0 for one class each, large for the same mixture.
      seed: of the split.

    Returns:
      A `Federation`. Its data comes with the package.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.tasks.digits()
      Federation(mlp, 100 clients, 1438 examples, cohort 5, 20 steps of 8, test 359)
    """
    train, test = fed.load_digits(seed=0)
    owners = fed.dirichlet(train["y"], num_clients, alpha, seed=seed)
    return Federation(
        models.mlp([64], num_classes=10),
        fed.ClientData.from_arrays(train, owners, num_clients),
        cohort=min(5, num_clients),
        local_steps=20,
        batch_size=8,
        test=test,
    )


def mnist_shards(num_clients: int = 20, seed: int = 0, directory: Directory = None) -> Federation:
    """MNIST in two shards per client, and a network with two hidden layers (MNIST-2NN).

    The minibatch of 20 and the one local epoch are ours: the paper names neither.

    Args:
      num_clients: W; 10, 20 or 40 in the thesis. Half of them are in each round.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation`. The thesis stops at a test accuracy of 97%.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.mnist_shards()  # doctest: +SKIP

    Reference:
      Mills, Hu, Min. Communication-efficient federated learning for wireless edge intelligence in IoT.
      IEEE Internet of Things Journal, 2020.
    """
    train, test, _ = fed.load("mnist", directory)
    owners = fed.label_shards(train["y"], num_clients, shards_per_client=2, seed=seed)
    return Federation(
        models.preprocessed(models.mlp([200, 200], num_classes=10), fed.scale(), fed.flatten()),
        fed.ClientData.from_arrays(train, owners, num_clients),
        cohort=max(num_clients // 2, 1),
        local_steps=epochs(1),
        batch_size=20,
        test=test,
    )


def digits_users(num_clients: int = 20, seed: int = 0) -> Federation:
    """Digits in two shards per client, each tested on digits of its own: MTFL's task, small.

    The digits have 8x8 pixels, the layers 64 units in place of 200, and clients are few.

    Args:
      num_clients: W. Half of them are in each round.
      seed: of the split.

    Returns:
      A `Federation` whose model has batch normalisation (it needs flax), and with a `client_test`: every
      fifth example of a client.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.tasks.digits_users().client_test.num_clients
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
    network_64 = network("images").DNN(10, hidden=(64, 64), batch_norm=True)
    return Federation(
        models.from_linen(network_64, "train", features=1),
        fed.ClientData.from_arrays(train, owners[~tested], num_clients),
        cohort=max(num_clients // 2, 1),
        local_steps=epochs(1),
        batch_size=8,
        test=test,
        client_test=fed.ClientData.from_arrays(test, owners[tested], num_clients),
    )


def mnist_users(num_clients: int = 200, seed: int = 0, directory: Directory = None) -> Federation:
    """MNIST in two shards per client, each tested on test shards of its own (MTFL).

    All clients are tested after a round; in the thesis those that are in it.

    Args:
      num_clients: W; 200 or 400 in the thesis. Half of them are in each round.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation` whose model has batch normalisation (it needs flax), and with a `client_test`. The
      thesis stops at a user accuracy of 97%.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.mnist_users()  # doctest: +SKIP

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
    return Federation(
        models.dnn(10, batch_norm=True),
        clients,
        cohort=max(num_clients // 2, 1),
        local_steps=epochs(1),
        batch_size=20,
        test=test,
        client_test=tested,
    )


def fashion_mnist_dirichlet(
    num_clients: int = 100, alpha: float = 0.3, seed: int = 0, directory: Directory = None
) -> Federation:
    """Fashion-MNIST with labels by a Dirichlet distribution, and the CNN 32-64-512.

    The split and the participation are FedACG's for CIFAR-10; the model is smaller, and there are 10
    local steps in place of 50.

    Args:
      num_clients: N; a twentieth of them are in each round.
      alpha: the concentration of the Dirichlet distribution.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.fashion_mnist_dirichlet(alpha=0.6)  # doctest: +SKIP
    """
    train, test, _ = fed.load("fashion_mnist", directory)
    owners = fed.balanced_dirichlet(train["y"], num_clients, alpha, seed=seed)
    return Federation(
        models.preprocessed(models.cnn(num_classes=10), fed.scale()),
        fed.ClientData.from_arrays(train, owners, num_clients),
        cohort=max(num_clients // 20, 1),
        local_steps=10,
        batch_size=32,
        test=test,
    )
