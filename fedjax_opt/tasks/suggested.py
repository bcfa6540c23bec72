"""For how many rounds each task is trained, and with which algorithms."""

import inspect
from typing import NamedTuple

from fedjax_opt import algorithms, optimizers, wrappers
from fedjax_opt.core import Algorithm, checks
from fedjax_opt.tasks.own import read_call
from fedjax_opt.tasks.tuned import TASKS as TUNED
from fedjax_opt.tasks.tuned import tuned


class Suggested(NamedTuple):
    """How a task is trained.

    Attributes:
      rounds: for how many rounds: the paper's, where the task follows one.
      texts: algorithms by name, with hyperparameters that suit the task: the paper's where it gives
        them, else from a search of ours; as the command line takes them.
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
    texts: dict[str, str]
    metric: str = "accuracy"

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """All algorithms by name."""
        return {name: _built(text) for name, text in self.texts.items()}

    def algorithm(self, name: str) -> Algorithm:
        """An algorithm with the task's hyperparameters.

        Args:
          name: one of `texts`.
        """
        if name not in self.texts:
            names = ", ".join(sorted(self.texts))
            raise ValueError(f"name must be one of {names}, got {name!r}.")
        return _built(self.texts[name])


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
    return Suggested(*_SUGGESTED[name])


def _built(text: str) -> Algorithm:
    """The algorithm of a text: numbers go to the constructor or to the optimiser that takes them."""
    first, *around = text.split(" + ")
    name, _, rest = first.partition("(")
    name, _, optimiser = name.partition("-")
    _, _, numbers = read_call("algorithm", f"f({rest}")
    make = getattr(algorithms, name)
    clients = optimiser or ("adam" if name == "ce_fedavg" else "sgd")
    parts = {"optimizer": clients}
    if "server" in inspect.signature(make).parameters:
        parts = {"optimizer": "sgd", "server": clients}
    made = {}
    for slot, part in reversed(parts.items()):
        constructor = getattr(optimizers, part)
        names = {n: n for n in inspect.signature(constructor).parameters}
        if slot == "server":
            names["learning_rate"] = "server_learning_rate"
        own = {n: numbers.pop(given) for n, given in names.items() if given in numbers}
        made[slot] = constructor(**own)
    algorithm = make(**made, **numbers)
    for wrapper in around:
        name, _, given = read_call("wrapper", wrapper)
        algorithm = getattr(wrappers, name)(algorithm, **given)
    return algorithm


def _three(fedavg_rate: float, fedgbo_rate: float, scaffold_rate: float) -> dict[str, str]:
    """FedAvg, FedGBO with SGDm and SCAFFOLD, each with a step size of its own."""
    return {
        "fedavg": f"fedavg(learning_rate={fedavg_rate})",
        "fedgbo-sgdm": f"fedgbo-sgdm(learning_rate={fedgbo_rate}, beta=0.9)",
        "scaffold": f"scaffold(learning_rate={scaffold_rate})",
    }


# FedACG's, with its weight decay; the norm that gradients are clipped at is ours.
_CLIPPED = " + weight_decay(rate=0.001) + clipped(max_norm=10.0)"
_CIFAR = {
    "fedavg": f"fedavg(learning_rate=0.1){_CLIPPED}",
    "fedacg": f"fedacg(learning_rate=0.1, momentum=0.85, beta=0.01){_CLIPPED}",
    "scaffold": f"scaffold(learning_rate=0.1){_CLIPPED}",
}
_MOMENTS = "learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-08, initial_v=0.0"
# Also those that compress, with the sparsity that the thesis has.
_MNIST_SHARDS = {
    **_three(0.2, 0.4, 0.1),
    "mfl-adam": f"mfl-adam({_MOMENTS})",
    "ce_fedavg": f"ce_fedavg({_MOMENTS}, sparsity=0.6)",
    "compressed_fedavg": "compressed_fedavg(learning_rate=0.2, sparsity=0.6)",
}
_SUGGESTED: dict[str, tuple[int, dict[str, str]]] = {
    "activity": (150, _three(0.1, 0.3, 0.1)),
    "cifar10_dirichlet": (1000, _CIFAR),
    "cifar100_dirichlet": (1000, _CIFAR),
    # Step sizes that did well in one sweep over 0.05 to 1.6 on another split.
    "digits": (300, _three(0.4, 0.4, 0.1)),
    "digits_users": (100, {"fedavg": "fedavg(learning_rate=0.1)"}),
    "fashion_mnist_dirichlet": (100, _three(0.3, 0.3, 0.1)),
    "femnist": (10_000, {"fedavg": "fedavg(learning_rate=0.3)"}),
    "mnist_shards": (200, _MNIST_SHARDS),
    "mnist_users": (150, {"fedavg": "fedavg(learning_rate=0.3)"}),
    "plays": (1000, _three(1.0, 3.0, 1.0)),
}
