"""CE-FedAvg's MNIST task: twenty clients of two shards each, half of them in each round.

The thesis does not name the minibatch; 50 is ours. It tried several numbers of local epochs E for every
entry of its tables and does not say which one won; E is 1 here throughout.
"""

from typing import NamedTuple

import optax

import fedjax_opt as fo

TASK = {
    "clients": 20, "cohort_size": 10, "shards_per_client": 2, "batch_size": 50, "epochs": 1,
    "hidden": [200, 200], "target": 0.97,
}  # fmt: skip
MODEL = fo.models.mlp(TASK["hidden"], num_classes=10)


class Setting(NamedTuple):
    """One entry of the tables.

    Attributes:
      algorithm: a name of `ALGORITHMS`.
      sparsity: s, the share of the entries that are not sent; None to send all, as they are.
      classes: Y, 2 for clients of two shards, 10 for examples dealt out at random.
    """

    algorithm: str
    sparsity: float | None
    classes: int

    @property
    def name(self):
        """As it is saved."""
        return f"{self.algorithm}/s={self.sparsity or 0}/Y={self.classes}"


def _fedavg(rate, sparsity):
    sgd = fo.optimizers.sgd(rate)
    return fo.fedavg(sgd) if sparsity is None else fo.compressed_fedavg(sgd, sparsity)


def _with_moments(adam, sparsity):
    return fo.mfl(adam) if sparsity is None else fo.ce_fedavg(adam, sparsity)


def _ce_fedavg(rate, sparsity):
    return _with_moments(optax.adam(rate, b1=0.9, b2=0.999, eps=1e-8), sparsity)


def _uncorrected(rate, sparsity):
    adam = fo.optimizers.adam(rate, b1=0.9, b2=0.999, eps=1e-8, initial_v=0.0)
    return _with_moments(adam, sparsity)


# The same Adam without its bias correction, in which no counter travels, is the third.
ALGORITHMS = {"FedAvg": _fedavg, "CE-FedAvg": _ce_fedavg, "CE-FedAvg, uncorrected": _uncorrected}
ADAM_RATE = 0.001  # Adam's usual number, which is not searched.
FEDAVG_RATES = [0.2, 0.1, 0.4]


def build(setting, rate):
    """The algorithm of a setting."""
    return ALGORITHMS[setting.algorithm](rate, setting.sparsity)


def clients(train, setting, seed):
    """The split of a seed."""
    if setting.classes == 10:
        owners = fo.data.iid(train["y"], TASK["clients"], seed)
    else:
        owners = fo.data.label_shards(train["y"], TASK["clients"], TASK["shards_per_client"], seed)
    return fo.place(fo.ClientData.from_arrays(train, owners))
