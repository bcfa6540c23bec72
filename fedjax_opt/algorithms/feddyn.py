"""FedDyn: a penalty on each client that changes from round to round, so that all agree at the optimum.

    local    y <- y - eta (g - h_i + alpha (y - x))
    finish   h_i+ = h_i - alpha (y - x)
    upload   y - x
    server   h+ = h - alpha (1 / N) sum over the cohort of (y_i - x)
             x+ = sum_i w_i y_i - h+ / alpha

h_i becomes client i's gradient at the common model. The sum for h is over clients, whatever their
weights: h stays the average of all h_i. It begins at zero, in a client's first round as well.

Reference:
  Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization.
  ICLR 2021. Algorithm 1.
"""

from typing import NamedTuple

import chex
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import local_training
from fedjax_opt.core import Algorithm, Uniform, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor


class Server(NamedTuple):
    """The model and h, the average of all clients' h_i."""

    variables: Variables
    h: chex.ArrayTree


class Client(NamedTuple):
    """h_i, zero until the client first takes part."""

    h: chex.ArrayTree


class Contribution(NamedTuple):
    """What the server averages: y - x by the aggregation weights, and once more uniformly."""

    delta: Variables
    uniform_delta: Uniform


@constructor
def feddyn(optimizer: optax.GradientTransformation, alpha: chex.Numeric = 0.1) -> Algorithm:
    """FedDyn: `g - h_i + alpha (y - x)` in every local step.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      alpha: the weight of the penalty, positive.

    Returns:
      An `Algorithm` whose clients keep h_i, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.feddyn(fo.optimizers.sgd(0.1), alpha=0.1)
    """
    alpha = checks.number("alpha", alpha, low=0.0, open_low=True)
    return local_training(
        optimizer,
        init=_init,
        init_client=_init_client,
        direction=Partial(_direction, alpha),
        upload=Partial(_upload, alpha),
        receive=_receive,
        server_step=Partial(_server_step, alpha),
    )


def _init(variables):
    return Server(variables, trees.zeros_like(variables.params))


def _init_client(variables):
    return Client(trees.zeros_like(variables.params))


def _direction(alpha, gradient, local, context):
    y, x = local.variables.params, context.message.variables.params
    # What is the same in all steps stands together, so that the compiler takes it out of the loop.
    return trees.each(
        lambda g, y, h, x, a: (g + a * y) - (h + a * x), gradient, y, context.client.h, x, a=alpha
    )


def _upload(alpha, delta, local, context):
    return delta, Client(trees.add_scaled(context.client.h, -alpha, delta.params))


def _receive(upload, num_steps):
    return Contribution(upload, Uniform(upload.params))


def _server_step(alpha, server, mean, situation):
    h = trees.add_scaled(server.h, -alpha * situation.participation, mean.uniform_delta)
    x = move(server.variables, mean.delta)
    return Server(x._replace(params=trees.add_scaled(x.params, -1 / alpha, h)), h)
