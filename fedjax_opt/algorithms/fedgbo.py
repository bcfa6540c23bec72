"""FedGBO: one global optimiser whose statistics are frozen in a round and tracked by inversion.

    local    y <- y - U(g, s)                          s is the server's, the same in every step
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x)
             g~ = I(x, x + sum_i w_i (y_i - x) / K_i, s, 1)
             s+ = T(g~, s)

g~ is the mean of all gradients that the clients used. With equal K_i this is I(x, x+, s, K) of the
paper; where clients take different numbers of steps, each displacement is divided by its client's own
K_i first. An averaging triple (`from_optax`) cannot be inverted: its clients upload their mean gradient.

With SGDm(beta) it is FedCM with alpha = 1 - beta: T(I(.)) collapses to m+ = (x - x+) / (eta K).

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Algorithm 1.
"""

from typing import Any, NamedTuple

import chex
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import all_of_it, as_sent, local_training
from fedjax_opt.algorithms.mfl import Server, init_with_statistics
from fedjax_opt.core import Algorithm, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Triple
from fedjax_opt.optimizers.triple import track_inverted


class Upload(NamedTuple):
    """y - x, and the mean local gradient of a triple that cannot be inverted (else `()`)."""

    delta: Variables
    gradient: Any


class Contribution(NamedTuple):
    """What the server averages: y - x, and from what it recovers the gradient."""

    delta: Variables
    delta_per_step: Any
    gradient: Any


@constructor
def fedgbo(optimizer: Triple, server_learning_rate: chex.Numeric = 1.0) -> Algorithm:
    """FedGBO: `s+ = T(I(x, x+, s, K), s)`, a biased global optimiser at FedAvg's upload.

    Args:
      optimizer: a `Triple`: its update with frozen statistics, how they are tracked, its inverse.
      server_learning_rate: eta_s, not negative. The inverse sees the clients' own displacement.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedgbo(fo.optimizers.adam(1e-2, b1=0.9, b2=0.99, eps=1e-3))
    """
    check_triple(optimizer)
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return local_training(
        optimizer,
        init=Partial(init_with_statistics, optimizer),
        broadcast=all_of_it,
        start=as_sent,
        upload=Partial(_upload, optimizer),
        receive=Partial(_receive, optimizer),
        server_step=Partial(_server_step, optimizer, eta),
    )


def check_triple(optimizer: Any) -> None:
    """Refuses what has no frozen statistics."""
    if not isinstance(optimizer, Triple):
        raise ValueError(
            "optimizer must be a Triple, such as fedjax_opt.optimizers.adam(0.01), got"
            f" {type(optimizer).__name__}. Any optax transformation becomes one by"
            " fedjax_opt.optimizers.from_optax."
        )


def _upload(optimizer, delta, local, context):
    if not optimizer.averages:
        return Upload(delta, ()), ()
    x, y = context.message.variables.params, local.variables.params
    return Upload(delta, optimizer.inverse(x, y, local.optimizer, context.num_steps)), ()


def _receive(optimizer, upload, num_steps):
    if optimizer.averages:
        return Contribution(upload.delta, (), upload.gradient)
    per_step = trees.scale(trees.reciprocal(num_steps), upload.delta.params)
    return Contribution(upload.delta, per_step, ())


def _server_step(optimizer, eta, server, mean, situation):
    x, gradient = server.variables.params, mean.gradient
    if not optimizer.averages:
        after_one_step = trees.add(x, mean.delta_per_step)
        gradient = optimizer.inverse(x, after_one_step, server.optimizer, 1)
    statistics = track_inverted(optimizer, gradient, server.optimizer, x)
    return Server(move(server.variables, mean.delta, eta), statistics)
