"""AdaptiveFedOpt: FedAvg's clients, any optimiser on the server.

    local    y <- y - eta g
    upload   y - x
    server   d = sum_i w_i (x - y_i),   x+ = x - U(d)

with U FedAvgM's momentum, Adagrad, Adam or Yogi, without bias correction and with v_0 a parameter
(tau^2 in the original, 1 in the FedGBO paper).

References:
  Reddi et al. Adaptive federated optimization. ICLR 2021.
  Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated visual
  classification. 2019 (FedAvgM).
"""

from typing import Any

import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import fedavg
from fedjax_opt.core import Algorithm, checks
from fedjax_opt.optimizers import adagrad, adam, sgdm, yogi
from fedjax_opt.optimizers import learning_rate as rates
from fedjax_opt.wrappers.server_optimizer import server_optimizer


def adaptive_fedopt(
    optimizer: optax.GradientTransformation, server: optax.GradientTransformation
) -> Algorithm:
    """FedAvg's clients with an optimiser on the server: `server_optimizer` around `fedavg`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server: the server's, a triple or any optax transformation on the pseudo-gradient.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import optax
      >>> import fedjax_opt as fo
      >>> algorithm = fo.adaptive_fedopt(fo.optimizers.sgd(0.1), server=optax.lamb(1e-2))

    Reference:
      Reddi et al. Adaptive federated optimization. ICLR 2021.
    """
    return server_optimizer(fedavg(optimizer), server)


def fedavgm(
    optimizer: optax.GradientTransformation, server_learning_rate: Any = 1.0, momentum: Any = 0.9
) -> Algorithm:
    """FedAvgM: `m+ = beta m + d`, `x+ = x - eta_s m+` on the server.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server_learning_rate: eta_s > 0; a number, a traced value or an optax schedule of the round.
      momentum: beta, in [0, 1).

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavgm(fo.optimizers.sgd(0.1), momentum=0.9)

    Reference:
      Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated visual
      classification. 2019.
    """
    momentum = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    rate = rates.check(server_learning_rate, "server_learning_rate")
    # The triple's momentum is normalised, m (1 - beta); a step longer by 1 / (1 - beta) undoes it.
    longer = Partial(_longer, rate, momentum) if callable(rate) else rate / (1 - momentum)
    return adaptive_fedopt(optimizer, sgdm(longer, momentum))


def _longer(schedule, momentum, count):
    return schedule(count) / (1 - momentum)


def fedadam(
    optimizer: optax.GradientTransformation,
    server_learning_rate: Any = 0.1,
    b1: Any = 0.9,
    b2: Any = 0.99,
    eps: Any = 1e-3,
    initial_v: Any = 1e-6,
) -> Algorithm:
    """FedAdam: Adam without bias correction on the server.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server_learning_rate: eta_s > 0; a number, a traced value or an optax schedule of the round.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to sqrt(v), positive; tau in the paper.
      initial_v: v_0; tau^2 in the paper, 1 in the FedGBO paper's experiments.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedadam(fo.optimizers.sgd(0.1), server_learning_rate=0.01)

    Reference:
      Reddi et al. Adaptive federated optimization. ICLR 2021.
    """
    return adaptive_fedopt(optimizer, adam(server_learning_rate, b1, b2, eps, initial_v))


def fedyogi(
    optimizer: optax.GradientTransformation,
    server_learning_rate: Any = 0.1,
    b1: Any = 0.9,
    b2: Any = 0.99,
    eps: Any = 1e-3,
    initial_v: Any = 1e-6,
) -> Algorithm:
    """FedYogi: Yogi on the server, whose second moment falls no faster than it rises.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server_learning_rate: eta_s > 0; a number, a traced value or an optax schedule of the round.
      b1: the decay of the first moment, in [0, 1).
      b2: one minus the weight of d^2 in the second moment, in [0, 1).
      eps: added to sqrt(v), positive; tau in the paper.
      initial_v: v_0; tau^2 in the paper.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedyogi(fo.optimizers.sgd(0.1), server_learning_rate=0.01)

    Reference:
      Reddi et al. Adaptive federated optimization. ICLR 2021.
    """
    return adaptive_fedopt(optimizer, yogi(server_learning_rate, b1, b2, eps, initial_v))


def fedadagrad(
    optimizer: optax.GradientTransformation,
    server_learning_rate: Any = 0.1,
    eps: Any = 1e-3,
    initial_v: Any = 1e-6,
) -> Algorithm:
    """FedAdagrad: Adagrad on the server, without a first moment.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      server_learning_rate: eta_s > 0; a number, a traced value or an optax schedule of the round.
      eps: added to sqrt(v), positive; tau in the paper.
      initial_v: v_0; tau^2 in the paper.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedadagrad(fo.optimizers.sgd(0.1), server_learning_rate=0.01)

    Reference:
      Reddi et al. Adaptive federated optimization. ICLR 2021.
    """
    return adaptive_fedopt(optimizer, adagrad(server_learning_rate, eps, initial_v))
