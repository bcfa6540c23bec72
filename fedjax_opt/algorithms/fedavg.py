"""FedAvg: clients train, the server averages.

    local    y <- y - eta g                      (or any optimiser, its statistics fresh every round)
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x)

With K = 1 and SGD it is distributed SGD (`dsgd`).

Reference:
  McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks
  from decentralized data. AISTATS 2017.
"""

import chex
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import averaged, local_training
from fedjax_opt.core import Algorithm, checks
from fedjax_opt.core.calls import constructor


@constructor
def fedavg(
    optimizer: optax.GradientTransformation, server_learning_rate: chex.Numeric = 1.0
) -> Algorithm:
    """FedAvg: `x+ = x + eta_s sum_i w_i (y_i - x)` after K local steps on each client.

    The weights w_i are those of the round: uniform or by samples.

    Args:
      optimizer: the clients' optimiser, a triple or any optax transformation. Its statistics move in
        every local step and start afresh in every round, and so does the count of a schedule. A typed
        key in them (of `optax.noisy_sgd`) becomes the client's own in the round. To put clipping or
        weight decay before a triple use `fedjax_opt.optimizers.chain`.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    """
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return local_training(optimizer, server_step=Partial(averaged, eta))
