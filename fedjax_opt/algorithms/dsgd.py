"""Distributed SGD: clients send gradients at the global model, the server takes the step.

    local    d <- d + g(x) / K                   (the model stays where it is)
    upload   d
    server   x+ = x - U(sum_i w_i d_i)           with any optimiser U; eta g for SGD

With SGD and K = 1 it is FedAvg with K = 1; a larger K only makes the minibatch larger.

Reference:
  McMahan et al. Communication-efficient learning of deep networks from decentralized data. AISTATS
  2017, where it is called FedSGD.
"""

from typing import Any, NamedTuple

import chex
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import model_alone
from fedjax_opt.core import Algorithm, Variables, difference, move, no_client_state, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The model, and the server's optimiser."""

    variables: Variables
    optimizer: Any


class Local(NamedTuple):
    """The model with its moving non-trainable state, and the mean gradient so far."""

    variables: Variables
    gradient: chex.ArrayTree


@constructor
def dsgd(optimizer: optax.GradientTransformation) -> Algorithm:
    """Distributed SGD: `x+ = x - eta sum_i w_i g_i(x)`.

    Args:
      optimizer: the server's optimiser, a triple or any optax transformation. Its statistics move
        once per round.

    Returns:
      An `Algorithm` without client state. K local steps are K minibatches at the same model.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.dsgd(fo.optimizers.sgd(0.1))
    """
    optimizer = local_form(optimizer)
    return Algorithm(
        init=Partial(_init, optimizer),
        init_client=no_client_state,
        broadcast=model_alone,
        start=_start,
        step=_step,
        finish=_finish,
        server_step=Partial(_server_step, optimizer),
    )


def _init(optimizer, variables):
    return Server(variables, optimizer.init(variables.params))


def _start(message, client):
    return Local(message.variables, trees.zeros_like(message.variables.params))


def _step(local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    mean = trees.add_scaled(local.gradient, trees.reciprocal(context.num_steps), gradient)
    return Local(local.variables._replace(state=evaluation.state), mean), evaluation


def _finish(local, context):
    # The difference of the parameters is zero: only the state's is sent, and the gradient.
    change = difference(local.variables, context.message.variables)
    return Variables(local.gradient, change.state), ()


def _server_step(optimizer, server, mean, situation):
    x = server.variables
    updates, statistics = optimizer.update(mean.params, server.optimizer, x.params)
    return Server(move(x, Variables(updates, mean.state)), statistics)
