"""CIFAR-10 and CIFAR-100."""

from typing import Any

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Federation, checks
from fedjax_opt.tasks.parts import Arrays, Directory, normalised, without_clients

MODELS = ("resnet18", "resnet20", "lenet", "cnn")


def cifar10_dirichlet(
    num_clients: int = 100,
    alpha: float = 0.3,
    model: str = "resnet18",
    seed: int = 0,
    directory: Directory = None,
) -> Federation:
    """CIFAR-10 with labels by a Dirichlet distribution, every client of the same size.

    The step size that is suggested does not decay as in the paper, and the norm that gradients are
    clipped at is ours.

    Args:
      num_clients: N; 100 with a twentieth of them in each round, or 500 with a fiftieth, in the paper.
      alpha: the concentration; 0.3 or 0.6 in the paper.
      model: 'resnet18' as in the paper, or 'resnet20', 'lenet' or 'cnn', which are smaller.
      seed: of the split.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.cifar10_dirichlet(model="cnn")  # doctest: +SKIP

    Reference:
      Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient. CVPR
      2024.
    """
    train, test, _ = fed.load("cifar10", directory)
    return _cifar_dirichlet(train, test, 10, num_clients, alpha, model, seed)


def cifar100_dirichlet(
    num_clients: int = 100,
    alpha: float = 0.3,
    model: str = "resnet18",
    seed: int = 0,
    directory: Directory = None,
) -> Federation:
    """CIFAR-100 with labels by a Dirichlet distribution, every client of the same size.

    The step size that is suggested does not decay as in the paper, and the norm that gradients are
    clipped at is ours.

    Args:
      num_clients: N; 100 with a twentieth of them in each round, or 500 with a fiftieth, in the paper.
      alpha: the concentration; 0.3 or 0.6 in the paper.
      model: 'resnet18' as in the paper, or 'resnet20', 'lenet' or 'cnn', which are smaller.
      seed: of the split.
      directory: where tensorflow-datasets keeps its data.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.cifar100_dirichlet()  # doctest: +SKIP

    Reference:
      Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient. CVPR
      2024.
    """
    train, test = _cifar100(directory)
    return _cifar_dirichlet(train, test, 100, num_clients, alpha, model, seed)


def cifar100_pam(
    num_clients: int = 500, local_steps: int = 10, seed: int = 0, directory: Directory = None
) -> Federation:
    """CIFAR-100 by Pachinko allocation, and the CNN 32-64-512.

    Crops are of 32x32 after padding, as its model's size asks for; the paper's text has 28x28.

    Args:
      num_clients: N; 500 in the papers. A hundredth of them are in each round.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      seed: of the split.
      directory: where tensorflow-datasets keeps its data.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.cifar100_pam(local_steps=50)  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    train, test = _cifar100(directory)
    owners = fed.pachinko(train["coarse"], train["y"], num_clients, seed=seed)
    return Federation(
        models.preprocessed(models.cnn(num_classes=100), *_augmented(train["x"])),
        fed.ClientData.from_arrays(without_clients(train), owners, num_clients),
        cohort=max(num_clients // 100, 1),
        local_steps=local_steps,
        batch_size=32,
        test=without_clients(test),
    )


def _cifar100(directory: Directory) -> tuple[Arrays, Arrays]:
    train, test = (fed.read_tfds("cifar100", split, directory) for split in ("train", "test"))
    return train, test


def _augmented(images: Any) -> tuple[Any, ...]:
    """A random crop of the padded image, a random flip, and normalisation."""
    return fed.random_crop(32, padding=4), fed.random_flip(), *normalised(images)


def _cifar_dirichlet(train, test, num_classes, num_clients, alpha, model, seed) -> Federation:
    checks.choice("model", model, MODELS)
    owners = fed.balanced_dirichlet(train["y"], num_clients, alpha, seed=seed)
    network = getattr(models, model)(num_classes=num_classes)
    size = len(owners) // num_clients
    return Federation(
        models.preprocessed(network, *_augmented(train["x"])),
        fed.ClientData.from_arrays(without_clients(train), owners, num_clients),
        cohort=max(num_clients // (20 if num_clients < 500 else 50), 1),
        # Five local epochs in fifty steps.
        local_steps=50,
        batch_size=max(size // 10, 1),
        test=without_clients(test),
    )
