"""FedMAX: FedAvg whose clients keep the entropy of their activations high.

    loss  <-  loss + beta mean over the batch of KL(uniform || softmax(penultimate activations))

Reference:
  Chen, Bhardwaj, Marculescu. FedMAX: mitigating activation divergence for accurate and
  communication-efficient federated learning. ECML PKDD 2020.
"""

from typing import Any

import optax

from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.core import Algorithm
from fedjax_opt.wrappers.max_entropy import max_entropy


def fedmax(
    optimizer: optax.GradientTransformation, beta: Any, server_learning_rate: Any = 1.0
) -> Algorithm:
    """FedMAX: `max_entropy` around `fedavg`. The model must return `Aux.features`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      beta: the weight of the entropy term, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedmax(fo.optimizers.sgd(0.1), beta=10.0)

    Reference:
      Chen, Bhardwaj, Marculescu. FedMAX: mitigating activation divergence for accurate and
      communication-efficient federated learning. ECML PKDD 2020.
    """
    return max_entropy(fedavg(optimizer, server_learning_rate), beta)
