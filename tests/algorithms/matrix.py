"""The rows of the shared matrix: an algorithm joins with one row, and test_matrix.py asks it everything.

A row's `make(learning_rate)` takes the clients' learning rate, a number or a traced value; all its other
hyperparameters are its own. `limit` is what constant steps reach on heterogeneous quadratics with every
client in every round and K = 5:

  'exact'          the optimum, to 1e-8, within `rounds` rounds;
  'neighbourhood'  a point near it, at least twice as near with a quarter of the learning rate.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import fedjax_opt as fo
from fedjax_opt import optimizers as opt


class Row(NamedTuple):
    """One algorithm, and what is claimed of it."""

    make: Callable[[Any], fo.Algorithm]
    limit: str
    learning_rate: float = 0.04
    rounds: int = 400


ROWS = {
    "dsgd": Row(lambda lr: fo.dsgd(opt.sgd(lr)), "exact", learning_rate=0.4),
    "fedavg": Row(lambda lr: fo.fedavg(opt.sgd(lr), 0.9), "neighbourhood"),
    "fedprox": Row(lambda lr: fo.fedprox(opt.sgd(lr), 0.3), "neighbourhood"),
    "fedavgm": Row(lambda lr: fo.fedavgm(opt.sgd(lr), 0.5, 0.7), "neighbourhood"),
    "fedadam": Row(
        lambda lr: fo.fedadam(opt.sgd(lr), 0.1, eps=0.1, initial_v=0.01), "neighbourhood"
    ),
    "fedyogi": Row(
        lambda lr: fo.fedyogi(opt.sgd(lr), 0.1, eps=0.1, initial_v=0.01), "neighbourhood"
    ),
    "fedadagrad": Row(
        lambda lr: fo.fedadagrad(opt.sgd(lr), 0.3, eps=0.1, initial_v=0.01), "neighbourhood"
    ),
    "mfl-sgdm": Row(lambda lr: fo.mfl(opt.sgdm(lr, 0.7)), "neighbourhood"),
    "mfl-adam": Row(lambda lr: fo.mfl(opt.adam(lr, 0.7, 0.9999, 0.1)), "neighbourhood"),
    "fedgbo-sgdm": Row(lambda lr: fo.fedgbo(opt.sgdm(lr, 0.7)), "neighbourhood"),
    "fedgbo-rmsprop": Row(lambda lr: fo.fedgbo(opt.rmsprop(lr, 0.9, 0.5)), "neighbourhood"),
    "fedgbo-adam": Row(lambda lr: fo.fedgbo(opt.adam(lr, 0.7, 0.9, 0.5)), "neighbourhood"),
    "fedgbo-averaging": Row(
        lambda lr: fo.proximal(fo.fedgbo(opt.from_optax(opt.sgdm(lr, 0.5)), 0.8), 0.1),
        "neighbourhood",
    ),
    "mimelite": Row(lambda lr: fo.mimelite(opt.sgdm(lr, 0.7)), "neighbourhood"),
    "mimexlite": Row(lambda lr: fo.mimexlite(opt.adam(lr, 0.7, 0.9, 0.5)), "neighbourhood"),
    "scaffold-1": Row(lambda lr: fo.scaffold(opt.sgd(lr), 1), "exact"),
    "scaffold-2": Row(lambda lr: fo.scaffold(opt.sgd(lr), 2, 0.9), "exact"),
    "scaffold-adam": Row(
        lambda lr: fo.server_optimizer(fo.scaffold(opt.sgd(lr)), opt.adam(0.3, eps=0.3)), "exact"
    ),
}
