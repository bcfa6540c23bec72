"""Tasks by name."""

import inspect
from typing import Any

from fedjax_opt.core import Federation, checks
from fedjax_opt.tasks.cifar import cifar10_dirichlet, cifar100_dirichlet, cifar100_pam
from fedjax_opt.tasks.images import (
    digits,
    digits_users,
    fashion_mnist_dirichlet,
    mnist_shards,
    mnist_users,
)
from fedjax_opt.tasks.people import activity, femnist, femnist_cnn, plays, sent140, shakespeare

_TASKS = (
    activity, cifar10_dirichlet, cifar100_dirichlet, cifar100_pam, digits, digits_users,
    fashion_mnist_dirichlet, femnist, femnist_cnn, mnist_shards, mnist_users, plays, sent140,
    shakespeare,
)  # fmt: skip
_BY_NAME = {task.__name__: task for task in _TASKS}

#: The names of all tasks.
NAMES = tuple(_BY_NAME)


def load(name: str, **options: Any) -> Federation:
    """Makes a task by its name.

    Args:
      name: one of `fo.tasks.NAMES`; the function of that name says what it takes.
      **options: its arguments.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.tasks.load("digits", num_clients=50).num_clients
      50
    """
    checks.choice("name", name, NAMES)
    task = _BY_NAME[name]
    known = inspect.signature(task).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"{name} takes {', '.join(known)}, got {option!r}.")
    missing = [key for key, p in known.items() if p.default is p.empty and key not in options]
    if missing:
        raise ValueError(f"{name} needs {missing[0]}: see help(fedjax_opt.tasks.{name}).")
    return task(**options)
