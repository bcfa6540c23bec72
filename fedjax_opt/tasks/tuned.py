"""The hyperparameters that the FedGBO paper found by grid search, for its four tasks.

`fedgbo_hyperparameters.csv` has a row for every task, algorithm, optimiser and number of local steps,
10 or 50: 124 of them, chosen for the highest test accuracy within 5,000 rounds. `beta` is the decay of
the momentum (SGDm, Adam) or of the second moment (RMSProp), `penalty` FedProx's mu or FedMAX's beta.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser. IEEE
  Transactions on Computers, 2023.
"""

import csv
import functools
from importlib import resources

from fedjax_opt import algorithms as alg
from fedjax_opt.core import Algorithm
from fedjax_opt.optimizers import Triple, adam, rmsprop, sgd, sgdm

_NUMBERS = ("learning_rate", "server_learning_rate", "beta", "b2", "eps", "penalty")
LOCAL_STEPS = (10, 50)
#: The tasks of the paper.
TASKS = ("cifar100_pam", "femnist_cnn", "sent140", "shakespeare")


def tuned(task: str, local_steps: int) -> dict[str, Algorithm]:
    """The algorithms of one of `TASKS`; with an adaptive optimiser `<algorithm>-<optimiser>`."""
    if local_steps not in LOCAL_STEPS:
        raise ValueError(f"local_steps must be 10 or 50, as in the paper, got {local_steps!r}.")
    found = {}
    for row in _rows():
        if (row["task"], int(row["local_steps"])) == (task, local_steps):
            numbers = {name: float(row[name]) for name in _NUMBERS if row[name]}
            name, optimiser = row["algorithm"], row["optimiser"]
            key = name if optimiser == "sgd" else f"{name}-{optimiser}"
            found[key] = _algorithm(name, optimiser, numbers)
    return found


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    file = resources.files("fedjax_opt.tasks").joinpath("fedgbo_hyperparameters.csv")
    with file.open(encoding="utf-8") as stream:
        return tuple(csv.DictReader(stream))


def _triple(optimiser: str, rate: float, numbers: dict[str, float]) -> Triple:
    if optimiser == "sgdm":
        return sgdm(rate, numbers["beta"])
    if optimiser == "rmsprop":
        return rmsprop(rate, numbers["beta"], numbers["eps"], initial_v=1.0)
    return adam(rate, numbers["beta"], numbers["b2"], numbers["eps"], initial_v=1.0)


def _algorithm(name: str, optimiser: str, numbers: dict[str, float]) -> Algorithm:
    rate = numbers["learning_rate"]
    if name == "fedavg":
        return alg.fedavg(sgd(rate))
    if name in ("fedprox", "fedmax"):
        return getattr(alg, name)(sgd(rate), numbers["penalty"])
    if name == "adaptive_fedopt":
        server = _triple(optimiser, numbers["server_learning_rate"], numbers)
        return alg.adaptive_fedopt(sgd(rate), server)
    return getattr(alg, name)(_triple(optimiser, rate, numbers))
