"""The rows of the shared matrix: an algorithm joins with one row, and test_matrix.py asks it everything.

A row's `make(learning_rate)` takes the clients' learning rate, a number or a traced value; all its other
hyperparameters are its own. What constant steps reach on heterogeneous quadratics with K = 5 is stated:

  `exact`    the participations (full, cyclic, random) in which it reaches the optimum, to 1e-10;
  otherwise  a point near the optimum in full participation, at least twice as near with a quarter of
             the learning rate, unless it is `biased`: then it minimises another objective, whose
             minimum is near whatever the step.

The model of a `uniform` one follows a sum over clients whatever their weights (FedDyn's h).
What needs its own minibatches or more than one leaf is among the `COMPOSED`, with wrappers around
algorithms: a composition is an Algorithm, and is asked the same; `limit` is where to ask of its limit.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import fedjax_opt as fo
from fedjax_opt import aggregators, compression
from fedjax_opt import optimizers as opt


class Row(NamedTuple):
    """One algorithm, and what is claimed of it."""

    make: Callable[[Any], fo.Algorithm]
    exact: tuple[str, ...] = ()
    biased: bool = False
    uniform: bool = False
    learning_rate: float = 0.04
    rounds: int = 400
    limit: bool = True


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


def _all_robust(values, weights):
    """The three robust rules at once: one program where there would be three."""
    rules = aggregators.coordinate_median, aggregators.trimmed_mean, aggregators.geometric_median
    parts = [rule()(values, weights) for rule in rules]
    return jax.tree.map(lambda a, b, c: (a + b + c) / 3, *parts)


_B = "params/b"
# Codes and no top-k: of two classes all entries come in pairs of one magnitude, which ties break as
# rounding errors will.
_CODECS: dict[str, Any] = {
    "upload": compression.chain(compression.uniform(8), companions=compression.exponential(8)),
    "error_feedback": True,
}
COMPOSED = {
    "per_fedavg": Row(lambda lr: fo.per_fedavg(opt.sgd(lr), 0.3, server_learning_rate=0.9), limit=False),
    "private(fedgbo)": Row(
        lambda lr: fo.private(fo.fedgbo(opt.adam(lr, 0.7, 0.9, 0.5)), _B), limit=False
    ),
    "private(ghbm)": Row(lambda lr: fo.private(fo.ghbm(opt.sgd(lr), 2, 0.5), _B), limit=False),
    "contrastive(private(scaffold-1))": Row(
        lambda lr: fo.contrastive(fo.private(fo.scaffold(opt.sgd(lr), 1), _B), 0.5), limit=False
    ),
    "fedyogi(private(mimelite))": Row(
        lambda lr: fo.server_optimizer(
            fo.private(fo.mimelite(opt.sgdm(lr, 0.5)), _B), opt.yogi(0.3, eps=0.1)
        ),
        limit=False,
    ),
    "compressed(scaffold)": Row(
        lambda lr: fo.compressed(fo.scaffold(opt.sgd(lr)), **_CODECS), limit=False
    ),
    "compressed(private(mfl))": Row(
        lambda lr: fo.compressed(fo.private(fo.mfl(opt.adam(lr, eps=0.1)), _B), **_CODECS), limit=False
    ),
    "robust(scaffold)": Row(
        lambda lr: fo.aggregated(fo.scaffold(opt.sgd(lr), 2, 0.7), _all_robust), limit=False
    ),
    "attacked(mime)": Row(
        lambda lr: fo.attacks.sign_flip(fo.mime(opt.sgdm(lr, 0.5)), [1, 4], 0.5), limit=False
    ),
    "decayed, clipped(feddyn)": Row(
        lambda lr: fo.clipped(fo.weight_decay(fo.feddyn(opt.sgd(lr), 2.0), 0.1), 0.5),
        uniform=True,
        limit=False,
    ),
}  # fmt: skip
