"""FedACG: clients start from where the server's momentum would lead.

    message  z = x + lambda m                    one model, nothing beside it
    local    y <- y - eta (g + beta (y - z)),    starting at y = z
    upload   y - z
    server   m+ = lambda m + eta_s sum_i w_i (y_i - z),   x+ = x + m+

With beta = 0 it is Nesterov's method on the server, whose look-ahead point is the message; with
lambda = 0 as well it is FedAvg.

Reference:
  Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient. CVPR
  2024. Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import ModelState, finish, start, step
from fedjax_opt.core import Algorithm, Variables, checks, move_state, no_client_state, trees
from fedjax_opt.optimizers.triple import local_form
from fedjax_opt.wrappers.proximal import proximal


class Server(NamedTuple):
    """The model and its momentum, the change that it took last."""

    variables: Variables
    momentum: Any

    @property
    def gradient_estimate(self) -> Any:
        """What the momentum says about the gradient, up to a positive factor."""
        return jax.tree.map(jnp.negative, self.momentum)


def fedacg(
    optimizer: optax.GradientTransformation,
    momentum: Any = 0.85,
    beta: Any = 0.0,
    server_learning_rate: Any = 1.0,
) -> Algorithm:
    """FedACG: `z = x + lambda m` is broadcast, and local models are pulled towards z.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      momentum: lambda, in [0, 1).
      beta: the weight of the regulariser (beta / 2) ||y - z||^2, not negative; 0 leaves it out. The
        authors' code writes it as a weight w = beta / 2.
      server_learning_rate: eta_s, not negative; 1 in the paper.

    Returns:
      An `Algorithm` without client state, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedacg(fo.optimizers.sgd(0.1), momentum=0.85, beta=0.01)

    Reference:
      Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient.
      CVPR 2024.
    """
    momentum = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    accelerated = Algorithm(
        init=_init,
        init_client=no_client_state,
        broadcast=Partial(_broadcast, momentum),
        start=Partial(start, optimizer),
        step=Partial(step, optimizer),
        finish=finish,
        server_step=Partial(_server_step, momentum, server_learning_rate),
    )
    return proximal(accelerated, checks.number("beta", beta, low=0.0))


def _init(variables):
    return Server(variables, trees.zeros_like(variables.params))


def _broadcast(momentum, server):
    ahead = trees.add_scaled(server.variables.params, momentum, server.momentum)
    return ModelState(server.variables._replace(params=ahead))


def _server_step(momentum, server_learning_rate, server, aggregate, situation):
    del situation
    change = trees.scale(momentum, server.momentum)
    change = trees.add_scaled(change, server_learning_rate, aggregate.params)
    variables = Variables(
        trees.add(server.variables.params, change),
        move_state(server.variables.state, aggregate.state),
    )
    return Server(variables, change)
