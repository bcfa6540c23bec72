"""The rows of the shared matrix: an algorithm joins with one row, and test_matrix.py asks it everything.

A row's `make(learning_rate)` takes the clients' learning rate, a number or a traced value; all its other
hyperparameters are its own. What constant steps reach on heterogeneous quadratics with K = 5 is stated:

  `exact`    the participations (full, cyclic, random) in which it reaches the optimum, to 1e-10;
  otherwise  a point near the optimum in full participation, at least twice as near with a quarter of
             the learning rate, unless it is `biased`: then it minimises another objective, whose
             minimum is near whatever the step.

The model of a `uniform` one follows a sum over clients whatever their weights (FedDyn's h).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import fedjax_opt as fo
from fedjax_opt import optimizers as opt


class Row(NamedTuple):
    """One algorithm, and what is claimed of it."""

    make: Callable[[Any], fo.Algorithm]
    exact: tuple[str, ...] = ()
    biased: bool = False
    uniform: bool = False
    learning_rate: float = 0.04
    rounds: int = 400


FULL = ("full",)
ALWAYS = ("full", "cyclic", "random")


ROWS = {
    "dsgd": Row(lambda lr: fo.dsgd(opt.sgd(lr)), FULL, learning_rate=0.4),
    "fedavg": Row(lambda lr: fo.fedavg(opt.sgd(lr), 0.9)),
    "fednova": Row(lambda lr: fo.fednova(opt.sgdm(lr, 0.5), 0.9)),
    "fedprox": Row(lambda lr: fo.fedprox(opt.sgd(lr), 0.3)),
    "fedavgm": Row(lambda lr: fo.fedavgm(opt.sgd(lr), 0.5, 0.7)),
    "fedadam": Row(lambda lr: fo.fedadam(opt.sgd(lr), 0.1, eps=0.1, initial_v=0.01)),
    "fedyogi": Row(lambda lr: fo.fedyogi(opt.sgd(lr), 0.1, eps=0.1, initial_v=0.01)),
    "fedadagrad": Row(lambda lr: fo.fedadagrad(opt.sgd(lr), 0.3, eps=0.1, initial_v=0.01)),
    "mfl-sgdm": Row(lambda lr: fo.mfl(opt.sgdm(lr, 0.7))),
    "mfl-adam": Row(lambda lr: fo.mfl(opt.adam(lr, 0.7, 0.9999, 0.1))),
    "fedgbo-sgdm": Row(lambda lr: fo.fedgbo(opt.sgdm(lr, 0.7))),
    "fedgbo-rmsprop": Row(lambda lr: fo.fedgbo(opt.rmsprop(lr, 0.9, 0.5))),
    "fedgbo-adam": Row(lambda lr: fo.fedgbo(opt.adam(lr, 0.7, 0.9, 0.5))),
    "fedgbo-averaging": Row(
        lambda lr: fo.proximal(fo.fedgbo(opt.from_optax(opt.sgdm(lr, 0.5)), 0.8), 0.1),
    ),
    "mimelite": Row(lambda lr: fo.mimelite(opt.sgdm(lr, 0.7))),
    "mimexlite": Row(lambda lr: fo.mimexlite(opt.adam(lr, 0.7, 0.9, 0.5))),
    "scaffold-1": Row(lambda lr: fo.scaffold(opt.sgd(lr), 1), ALWAYS),
    "scaffold-2": Row(lambda lr: fo.scaffold(opt.sgd(lr), 2, 0.9), ALWAYS),
    "scaffold-adam": Row(
        lambda lr: fo.server_optimizer(fo.scaffold(opt.sgd(lr)), opt.adam(0.3, eps=0.3)),
        FULL,
        rounds=600,
    ),
    "scaffold-m": Row(lambda lr: fo.scaffold_m(opt.sgd(lr), 0.5), ALWAYS),
    "feddc": Row(lambda lr: fo.feddc(opt.sgd(lr), 0.1), ALWAYS, uniform=True),
    "feddyn": Row(lambda lr: fo.feddyn(opt.sgd(lr), 2.0), ALWAYS, uniform=True),
    "adabest": Row(lambda lr: fo.adabest(opt.sgd(lr), 0.1, 0.5), biased=True),
    "mime": Row(lambda lr: fo.mime(opt.adam(lr, 0.7, 0.9, 0.5)), FULL),
    "mimemom": Row(lambda lr: fo.mimemom(opt.sgd(lr), 0.5), FULL),
    "fedacg": Row(lambda lr: fo.fedacg(opt.sgd(lr), 0.5, 0.1)),
    "fedcm": Row(lambda lr: fo.fedcm(opt.sgd(lr), 0.5)),
    "fedadc": Row(lambda lr: fo.fedadc(opt.sgd(lr), 0.5)),
    "ghbm": Row(lambda lr: fo.ghbm(opt.sgd(lr), 2, 0.5)),
    "ghbm-theory": Row(lambda lr: fo.ghbm_theory(opt.sgd(lr), 2, 0.5)),
    "ghbm-server": Row(lambda lr: fo.ghbm_server(opt.sgd(lr), 2, 0.5)),
    "localghbm": Row(lambda lr: fo.localghbm(opt.sgd(lr), 0.5)),
    "fedhbm": Row(lambda lr: fo.fedhbm(opt.sgd(lr), 0.5)),
    "fedmax": Row(lambda lr: fo.fedmax(opt.sgd(lr), 0.5), biased=True),
    "moon": Row(lambda lr: fo.moon(opt.sgd(lr), 0.05)),
    "pfedme": Row(
        lambda lr: fo.pfedme(opt.sgd(0.05), 15.0, lr, 4, 0.9), biased=True, learning_rate=0.01
    ),
}
