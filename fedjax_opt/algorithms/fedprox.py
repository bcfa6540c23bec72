"""FedProx: FedAvg whose clients are pulled back to the model they were sent.

    local    y <- y - eta (g + mu (y - x))
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x)

Reference:
  Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks.
  MLSys 2020.
"""

from typing import Any

import optax

from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.core import Algorithm
from fedjax_opt.wrappers.proximal import proximal


def fedprox(
    optimizer: optax.GradientTransformation, mu: Any, server_learning_rate: Any = 1.0
) -> Algorithm:
    """FedProx: `g + mu (y - x)` in every local step; `proximal` around `fedavg`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      mu: the weight of the proximal term, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedprox(fo.optimizers.sgd(0.1), mu=0.01)

    Reference:
      Li et al. Federated optimization in heterogeneous networks. MLSys 2020.
    """
    return proximal(fedavg(optimizer, server_learning_rate), mu)
