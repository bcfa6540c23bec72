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

from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedavg import Local, descend, finish, same_message
from fedjax_opt.core import Algorithm, Variables, checks, move, no_client_state, trees
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, the direction d (zero before the first round), and a schedule's count."""

    variables: Variables
    direction: Any
    optimizer: Any

    @property
    def gradient_estimate(self) -> Any:
        """d, a mean of gradients."""
        return self.direction


def fedcm(optimizer: Triple, alpha: Any = 0.1, server_learning_rate: Any = 1.0) -> Algorithm:
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

    Reference:
      Xu, Wang, Wang, Yao. FedCM: federated learning with client-level momentum. 2021.
    """
    optimizer = inversion.check_plain(optimizer, "FedCM")
    alpha = checks.number("alpha", alpha, low=0.0, open_low=True, high=1.0)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return Algorithm(
        init=Partial(_init, optimizer),
        init_client=no_client_state,
        broadcast=same_message,
        start=start_with_count,
        step=Partial(_step, optimizer, alpha),
        finish=finish,
        server_step=Partial(_server_step, optimizer, server_learning_rate),
        receive=inversion.per_step,
    )


def _init(optimizer, variables):
    direction = trees.zeros_like(variables.params)
    return Server(variables, direction, inversion.init_plain(optimizer, variables.params))


def start_with_count(message, client):
    """y = x; the learning rate is the one of the server's round."""
    del client
    return Local(message.variables, message.optimizer)


def _step(optimizer, alpha, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    mixed = mix(alpha, gradient, context.message.direction)
    return descend(optimizer, local, mixed, evaluation), evaluation


def mix(alpha, gradient, direction):
    """alpha g + (1 - alpha) d."""
    return trees.add_scaled(trees.scale(alpha, gradient), 1 - alpha, direction)


def _server_step(optimizer, server_learning_rate, server, aggregate, situation):
    del situation
    direction = inversion.mean_gradient(optimizer, server.optimizer, aggregate.delta_per_step)
    return Server(
        move(server.variables, aggregate.delta, server_learning_rate),
        direction,
        optimizer.track(direction, server.optimizer, server.variables.params),
    )
