"""MOON: FedAvg whose clients keep their features near the global model's and away from their own last.

    loss  <-  loss + mu l,  l = -log( e^{cos(z, z_x)/tau} / (e^{cos(z, z_x)/tau} + e^{cos(z, z_i)/tau}) )

with z the features of y, z_x of the received model and z_i of client i's last local model.

Reference:
  Li, He, Song. Model-contrastive federated learning. CVPR 2021. Algorithm 1.
"""

from typing import Any

import optax

from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.core import Algorithm
from fedjax_opt.wrappers.contrastive import contrastive


def moon(
    optimizer: optax.GradientTransformation,
    mu: Any = 1.0,
    temperature: Any = 0.5,
    server_learning_rate: Any = 1.0,
) -> Algorithm:
    """MOON: `contrastive` around `fedavg`. The model must return `Aux.features`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      mu: the weight of the contrastive term, not negative; 0 is FedAvg.
      temperature: tau > 0.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` whose clients keep their last local model.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.moon(fo.optimizers.sgd(0.1), mu=1.0, temperature=0.5)

    Reference:
      Li, He, Song. Model-contrastive federated learning. CVPR 2021.
    """
    return contrastive(fedavg(optimizer, server_learning_rate), mu, temperature)
