"""For how many rounds each task is trained, and with which algorithms."""

from collections.abc import Callable
from typing import NamedTuple

from fedjax_opt.algorithms import (
    ce_fedavg,
    compressed_fedavg,
    fedacg,
    fedavg,
    fedgbo,
    mfl,
    scaffold,
)
from fedjax_opt.core import Algorithm, checks
from fedjax_opt.optimizers import adam, sgd, sgdm
from fedjax_opt.tasks.tuned import TASKS as TUNED
from fedjax_opt.tasks.tuned import tuned
from fedjax_opt.wrappers import clipped, weight_decay


class Suggested(NamedTuple):
    """How a task is trained.

    Attributes:
      rounds: for how many rounds: the paper's, where the task follows one.
      algorithms: algorithms by name, with hyperparameters that suit the task: the paper's where it gives
        them, else from a search of ours.
      metric: what is looked at. Where a federation has a `client_test` it is that of each client's own
        model on its own examples, every client counting once.

    Example:
      >>> import fedjax_opt as fo
      >>> sorted(fo.tasks.suggested("digits").algorithms)
      ['fedavg', 'fedgbo-sgdm', 'scaffold']
      >>> sorted(fo.tasks.suggested("sent140", local_steps=50).algorithms)[:3]
      ['adaptive_fedopt-adam', 'adaptive_fedopt-rmsprop', 'adaptive_fedopt-sgdm']
    """

    rounds: int
    algorithms: dict[str, Algorithm]
    metric: str = "accuracy"

    def algorithm(self, name: str) -> Algorithm:
        """An algorithm with the task's hyperparameters.

        Args:
          name: one of `algorithms`.
        """
        if name not in self.algorithms:
            names = ", ".join(sorted(self.algorithms))
            raise ValueError(f"name must be one of {names}, got {name!r}.")
        return self.algorithms[name]


def suggested(name: str, local_steps: int | None = None) -> Suggested:
    """How a task is trained: for how many rounds, and which hyperparameters suit it.

    Args:
      name: one of `fo.tasks.NAMES`.
      local_steps: K, 10 (the default) or 50: for these the FedGBO paper tuned hyperparameters of its
        four tasks. Those of the others are for the K that the task has.

    Returns:
      A `Suggested`.

    Example:
      >>> import fedjax_opt as fo
      >>> digits, found = fo.tasks.digits(), fo.tasks.suggested("digits")
      >>> result = fo.simulate(found.algorithm("scaffold"), digits, 2, progress=False)
      >>> found.rounds, result.evaluations[found.metric].shape
      (300, (1,))
    """
    if name in TUNED:
        return Suggested(5000, tuned(name, 10 if local_steps is None else local_steps))
    checks.choice("name", name, (*_SUGGESTED, *TUNED))
    if local_steps is not None:
        raise ValueError(f"local_steps must be left out for {name}, got {local_steps!r}.")
    rounds, algorithms = _SUGGESTED[name]
    return Suggested(rounds, algorithms())


def _three(fedavg_rate: float, fedgbo_rate: float, scaffold_rate: float) -> dict[str, Algorithm]:
    """FedAvg, FedGBO with SGDm and SCAFFOLD, each with a step size of its own."""
    return {
        "fedavg": fedavg(sgd(fedavg_rate)),
        "fedgbo-sgdm": fedgbo(sgdm(fedgbo_rate, beta=0.9)),
        "scaffold": scaffold(sgd(scaffold_rate)),
    }


def _of_cifar() -> dict[str, Algorithm]:
    """FedACG's, with its weight decay; the norm that gradients are clipped at is ours."""
    made = {
        "fedavg": fedavg(sgd(0.1)),
        "fedacg": fedacg(sgd(0.1), 0.85, 0.01),
        "scaffold": scaffold(sgd(0.1)),
    }
    return {name: clipped(weight_decay(each, 0.001), 10.0) for name, each in made.items()}


def _of_mnist_shards() -> dict[str, Algorithm]:
    """Also those that compress, with the sparsity that the thesis has."""
    moments = adam(0.001, b1=0.9, b2=0.999, eps=1e-8, initial_v=0.0)
    return {
        **_three(0.2, 0.4, 0.1),
        "mfl-adam": mfl(moments),
        "ce_fedavg": ce_fedavg(moments, 0.6),
        "compressed_fedavg": compressed_fedavg(sgd(0.2), 0.6),
    }


# Functions, since a number of an algorithm may be on the device, which is not chosen at import.
_SUGGESTED: dict[str, tuple[int, Callable[[], dict[str, Algorithm]]]] = {
    "activity": (150, lambda: _three(0.1, 0.3, 0.1)),
    "cifar10_dirichlet": (1000, _of_cifar),
    "cifar100_dirichlet": (1000, _of_cifar),
    # Step sizes that did well in one sweep over 0.05 to 1.6 on another split.
    "digits": (300, lambda: _three(0.4, 0.4, 0.1)),
    "digits_users": (100, lambda: {"fedavg": fedavg(sgd(0.1))}),
    "fashion_mnist_dirichlet": (100, lambda: _three(0.3, 0.3, 0.1)),
    "femnist": (10_000, lambda: {"fedavg": fedavg(sgd(0.3))}),
    "mnist_shards": (200, _of_mnist_shards),
    "mnist_users": (150, lambda: {"fedavg": fedavg(sgd(0.3))}),
    "plays": (1000, lambda: _three(1.0, 3.0, 1.0)),
}
