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

# What a constructor calls a column of the table.
_NAMES = {"adam": {"beta": "b1"}, "fedprox": {"penalty": "mu"}, "fedmax": {"penalty": "beta"}}
_NUMBERS = ("learning_rate", "server_learning_rate", "beta", "b2", "eps", "penalty")
LOCAL_STEPS = (10, 50)
#: The tasks of the paper.
TASKS = ("cifar100_pam", "femnist_cnn", "sent140", "shakespeare")


def tuned(task: str, local_steps: int) -> dict[str, str]:
    """The algorithms of one of `TASKS` as texts, by `<algorithm>` or `<algorithm>-<optimiser>`."""
    if local_steps not in LOCAL_STEPS:
        raise ValueError(f"local_steps must be 10 or 50, as in the paper, got {local_steps!r}.")
    found = {}
    for row in _rows():
        if (row["task"], int(row["local_steps"])) == (task, local_steps):
            name, optimiser = row["algorithm"], row["optimiser"]
            key = name if optimiser == "sgd" else f"{name}-{optimiser}"
            names = _NAMES.get(optimiser, {}) | _NAMES.get(name, {})
            numbers = [f"{names.get(n, n)}={float(row[n])!r}" for n in _NUMBERS if row[n]]
            found[key] = f"{key}({', '.join(numbers)})"
    return found


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    file = resources.files("fedjax_opt.tasks").joinpath("fedgbo_hyperparameters.csv")
    with file.open(encoding="utf-8") as stream:
        return tuple(csv.DictReader(stream))
