"""FedDC: each client learns its own drift h_i, and control variates beside it.

    local    y <- y - eta (g + alpha (h_i + y - x) + c - c_i)
    finish   h_i+ = h_i + (y - x)
             c_i+ = c_i - c + (x - y) / (eta K)
    upload   y - x (which is also the change of h_i),  c_i+ - c_i
    server   h+ = h + C mean over the cohort of (y_i - x),           C = |S| / N
             c+ = c + C mean over the cohort of (c_i+ - c_i)
             x+ = sum_i w_i y_i + h+

h and c are the averages of all h_i and c_i: their means are uniform, whatever the weights. All begin at
zero, in a client's first round as well. A client reads h_i and c_i only as q_i = alpha h_i - c_i, and
uploads changes alone, so q_i is all that it keeps:

    local    y <- y - eta (g + alpha y + (q_i - alpha x + c))
    finish   q_i+ = q_i + alpha (y - x) - (c_i+ - c_i)

Reference:
  Gao, Fu, Li, Chen, Xu, Xu. FedDC: federated learning with non-IID data via local drift decoupling and
  correction. CVPR 2022. Algorithm 1.
"""

from typing import Any, NamedTuple

import chex
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.local_training import as_sent, local_training
from fedjax_opt.core import Algorithm, Uniform, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, c and h (the averages of all clients'), and a schedule's count."""

    variables: Variables
    control: chex.ArrayTree
    drift: chex.ArrayTree
    optimizer: Any

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """c, a mean of gradients."""
        return self.control


class Message(NamedTuple):
    """The model, c, and a schedule's count."""

    variables: Variables
    control: chex.ArrayTree
    optimizer: Any


class Client(NamedTuple):
    """q_i = alpha h_i - c_i, zero until the client first takes part."""

    correction: chex.ArrayTree


class Upload(NamedTuple):
    """y - x and the change of c_i."""

    delta: Variables
    control_change: Uniform


class Contribution(NamedTuple):
    """What the server averages: the upload, and its y - x once more uniformly, for h."""

    delta: Variables
    control_change: Uniform
    uniform_delta: Uniform


@constructor
def feddc(optimizer: Triple, alpha: chex.Numeric = 0.1) -> Algorithm:
    """FedDC: `g + alpha (h_i + y - x) + c - c_i` in every local step.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it. Weight decay there
        becomes a part of c_i, as in the authors' code.
      alpha: the weight of the penalty on the drift, not negative.

    Returns:
      An `Algorithm` whose clients keep alpha h_i - c_i.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.feddc(fo.optimizers.sgd(0.1), alpha=0.1)
    """
    optimizer = inversion.check_plain(optimizer, "FedDC")
    alpha = checks.number("alpha", alpha, low=0.0)
    return local_training(
        optimizer,
        init=Partial(_init, optimizer),
        init_client=_init_client,
        broadcast=_broadcast,
        start=as_sent,
        direction=Partial(_direction, alpha),
        upload=Partial(_upload, optimizer, alpha),
        receive=_receive,
        server_step=Partial(_server_step, optimizer),
    )


def _init(optimizer, variables):
    zero = trees.zeros_like(variables.params)
    return Server(variables, zero, zero, inversion.init_plain(optimizer, variables.params))


def _init_client(variables):
    return Client(trees.zeros_like(variables.params))


def _broadcast(server):
    return Message(server.variables, server.control, server.optimizer)


def _direction(alpha, gradient, local, context):
    y, x = local.variables.params, context.message.variables.params
    q, c = context.client.correction, context.message.control
    # What is the same in all steps stands together, so that the compiler takes it out of the loop.
    return trees.each(
        lambda g, y, q, c, x, a: (g + a * y) + ((q + c) - a * x), gradient, y, q, c, x, a=alpha
    )


def _upload(optimizer, alpha, delta, local, context):
    per_step = inversion.per_step(delta, context.num_steps).delta_per_step
    c = context.message.control
    used = inversion.mean_gradient(optimizer, context.message.optimizer, per_step, otherwise=c)
    change = trees.subtract(used, c)
    q = trees.add_scaled(context.client.correction, alpha, delta.params)
    return Upload(delta, Uniform(change)), Client(trees.subtract(q, change))


def _receive(upload, num_steps):
    return Contribution(upload.delta, upload.control_change, Uniform(upload.delta.params))


def _server_step(optimizer, server, mean, situation):
    h = trees.add_scaled(server.drift, situation.participation, mean.uniform_delta)
    c = trees.add_scaled(server.control, situation.participation, mean.control_change)
    x = move(server.variables, mean.delta)
    x = x._replace(params=trees.add(x.params, h))
    return Server(x, c, h, optimizer.track(c, server.optimizer, server.variables.params))
