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

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import ModelState, local_training
from fedjax_opt.core import Algorithm, Variables, checks, move_state, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.wrappers.local_terms import proximal


class Server(NamedTuple):
    """The model and its momentum, the change that it took last."""

    variables: Variables
    momentum: chex.ArrayTree

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """What the momentum says about the gradient, up to a positive factor."""
        return jax.tree.map(jnp.negative, self.momentum)


@constructor
def fedacg(
    optimizer: optax.GradientTransformation,
    momentum: chex.Numeric = 0.85,
    beta: chex.Numeric = 0.0,
    server_learning_rate: chex.Numeric = 1.0,
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
    """
    lam = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    accelerated = local_training(
        optimizer,
        init=_init,
        broadcast=Partial(_broadcast, lam),
        server_step=Partial(_server_step, lam, eta),
    )
    return proximal(accelerated, checks.number("beta", beta, low=0.0))


def _init(variables):
    return Server(variables, trees.zeros_like(variables.params))


def _broadcast(lam, server):
    x = server.variables
    return ModelState(x._replace(params=trees.add_scaled(x.params, lam, server.momentum)))


def _server_step(lam, eta, server, mean, situation):
    m = trees.each(
        lambda m, d, lam, eta: lam * m + eta * d, server.momentum, mean.params, lam=lam, eta=eta
    )
    x = Variables(
        trees.add(server.variables.params, m), move_state(server.variables.state, mean.state)
    )
    return Server(x, m)
