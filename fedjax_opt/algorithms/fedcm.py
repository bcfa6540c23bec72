"""FedCM: every local step goes partly along the direction that all went last.

    local    y <- y - eta (alpha g + (1 - alpha) d)
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x)
             d+ = sum_i w_i (x - y_i) / (eta K_i)

It is FedGBO with SGDm(beta = 1 - alpha), and GHBM with tau = 1, beta = 1 - alpha and the step
alpha eta; with alpha = 1 it is FedAvg. Each displacement is divided by its client's own K_i.

Reference:
  Xu, Wang, Wang, Yao. FedCM: federated learning with client-level momentum. 2021. Algorithm 2.
"""

from typing import Any, NamedTuple

import chex
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.local_training import all_of_it, as_sent, local_training
from fedjax_opt.core import Algorithm, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, the direction d (zero before the first round), and a schedule's count."""

    variables: Variables
    direction: chex.ArrayTree
    optimizer: Any

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """d, a mean of gradients."""
        return self.direction


@constructor
def fedcm(
    optimizer: Triple, alpha: chex.Numeric = 0.1, server_learning_rate: chex.Numeric = 1.0
) -> Algorithm:
    """FedCM: `alpha g + (1 - alpha) d` in every local step, d the last round's mean direction.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it. Weight decay there
        is added after the mixing, as PyTorch's optimisers do, and becomes a part of d.
      alpha: the weight of the client's own gradient, in (0, 1]; 1 is FedAvg.
      server_learning_rate: eta_s, not negative. The direction is of the clients' own displacements.

    Returns:
      An `Algorithm` without client state that sends d beside the model.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedcm(fo.optimizers.sgd(0.1), alpha=0.1)
    """
    optimizer = inversion.check_plain(optimizer, "FedCM")
    alpha = checks.number("alpha", alpha, low=0.0, open_low=True, high=1.0)
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return local_training(
        optimizer,
        init=Partial(_init, optimizer),
        broadcast=all_of_it,
        start=as_sent,
        direction=Partial(_direction, alpha),
        receive=inversion.per_step,
        server_step=Partial(_server_step, optimizer, eta),
    )


def _init(optimizer, variables):
    zero = trees.zeros_like(variables.params)
    return Server(variables, zero, inversion.init_plain(optimizer, variables.params))


def _direction(alpha, gradient, local, context):
    return mix(alpha, gradient, context.message.direction)


def mix(alpha: chex.Numeric, gradient: chex.ArrayTree, direction: chex.ArrayTree) -> chex.ArrayTree:
    """alpha g + (1 - alpha) d."""
    return trees.each(lambda g, d, a: a * g + (1 - a) * d, gradient, direction, a=alpha)


def _server_step(optimizer, eta, server, mean, situation):
    x = move(server.variables, mean.delta, eta)
    d = inversion.mean_gradient(
        optimizer, server.optimizer, mean.delta_per_step, otherwise=server.direction
    )
    return Server(x, d, optimizer.track(d, server.optimizer, server.variables.params))
