"""Algorithms by name, what each keeps at home, its learning rates, and the models that users then have.

Where the thesis leaves something open, it is as in the authors' code: Adam has its bias correction on
clients and none on the server, and the private part of FedAdam does not go through the server's Adam.
"""

from typing import Any, NamedTuple

import optax
from task import MODEL, TASK

import fedjax_opt as fo

SCALE_AND_BIAS, STATISTICS = "params/BatchNorm_0/{scale,bias}", "state/**"
PRIVATE = {
    "none": (),
    "gamma, beta": SCALE_AND_BIAS,
    "all": [SCALE_AND_BIAS, STATISTICS],
    "mu, sigma": STATISTICS,
}


class Method(NamedTuple):
    """An algorithm, how its clients train, and how a user's model is tuned before it is used, if it is.

    Attributes:
      algorithm: the algorithm.
      training: the batch size, the epochs or steps, as fields of a federation.
      tuning: the optimiser and the number of steps on the user's training examples.
    """

    algorithm: fo.Algorithm
    training: dict[str, Any]
    tuning: tuple[Any, int] | None = None

    def own_models(self, state, data):
        """Each user's own model, as a function of its id."""
        own = fo.personal_variables(self.algorithm, state)
        if self.tuning is None:
            return own
        return fo.metrics.fine_tuned(MODEL, own, data, *self.tuning, TASK["batch_size"])


ONE_EPOCH = {"batch_size": TASK["batch_size"], "local_steps": fo.epochs(TASK["epochs"])}
STEPS = 15  # of one epoch: 300 examples in minibatches of 20


def _fedavg(rates, where):
    return fo.private(fo.fedavg(fo.optimizers.sgd(rates["client"])), where)


def _fedadam(rates, where):
    # Private leaves stay as the client left them, so `private` stands inside of the server's Adam.
    adam = fo.optimizers.adam(rates["server"], b1=0.9, b2=0.999, eps=1e-4, initial_v=0.0)
    return fo.server_optimizer(_fedavg(rates, where), adam)


def _fedavg_adam(rates, where):
    # The moments travel and are averaged; those of private leaves stay.
    return fo.private(fo.mfl(optax.adam(rates["client"], eps=1e-7)), where)


def _fine_tuned(rates):
    sgd = fo.optimizers.sgd(rates["client"])
    return Method(fo.fedavg(sgd), ONE_EPOCH, (sgd, STEPS))


def _independent(rates):
    return Method(fo.independent(fo.optimizers.sgd(rates["client"])), ONE_EPOCH)


def _per_fedavg(rates):
    # Two minibatches in every step. Drawn with replacement both are always full.
    training = {
        "batch_size": 2 * TASK["batch_size"],
        "local_steps": STEPS,
        "batching": "replacement",
    }
    algorithm = fo.per_fedavg(fo.optimizers.sgd(rates["client"]), rates["adaptation"])
    return Method(algorithm, training, (fo.optimizers.sgd(rates["adaptation"]), 1))


def _pfedme(rates):
    sgd = fo.optimizers.sgd(rates["client"])
    algorithm = fo.pfedme(sgd, rates["lambda"], 1 / rates["lambda"], inner_steps=1)
    return Method(algorithm, ONE_EPOCH)


FEDERATED = {"FedAvg": _fedavg, "FedAdam": _fedadam, "FedAvg-Adam": _fedavg_adam}
RIVALS = {
    "FedAvg, fine-tuned": _fine_tuned,
    "independent": _independent,
    "Per-FedAvg": _per_fedavg,
    "pFedMe": _pfedme,
}


def build(algorithm, private, rates):
    """A method by its names and rates."""
    if algorithm in RIVALS:
        return RIVALS[algorithm](rates)
    return Method(FEDERATED[algorithm](rates, PRIVATE[private]), ONE_EPOCH)


# The authors' values first, where they are known: a rate is given up when it is later than the best.
RATES = {
    "FedAvg": [{"client": 0.3}, {"client": 0.5}, {"client": 0.1}],
    "FedAdam": [
        {"client": 0.3, "server": 0.01},
        {"client": 0.3, "server": 0.03},
        {"client": 0.1, "server": 0.01},
        {"client": 0.3, "server": 0.003},
    ],
    "FedAvg-Adam": [{"client": 0.003}, {"client": 0.001}, {"client": 0.01}],
    "FedAvg, fine-tuned": [{"client": 0.3}, {"client": 0.1}, {"client": 0.03}],
    "independent": [{"client": 0.3}, {"client": 0.1}, {"client": 0.03}],
    "Per-FedAvg": [
        {"client": 0.3, "adaptation": 0.1},
        {"client": 0.3, "adaptation": 0.03},
        {"client": 0.1, "adaptation": 0.1},
    ],
    "pFedMe": [
        {"client": 0.3, "lambda": 1.0},
        {"client": 0.1, "lambda": 1.0},
        {"client": 0.03, "lambda": 15.0},
    ],
}
