"""FedAvg: clients train, the server averages.

    local    y <- y - eta g                      (or any optimiser, its statistics fresh every round)
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x)

With K = 1 and SGD it is distributed SGD (`dsgd`).

Reference:
  McMahan, Moore, Ramage, Hampson, Aguera y Arcas. Communication-efficient learning of deep networks
  from decentralized data. AISTATS 2017.
"""

from typing import Any, NamedTuple

import optax
from jax.tree_util import Partial

from fedjax_opt.core import (
    Algorithm,
    Variables,
    checks,
    difference,
    get_variables,
    move,
    no_client_state,
)
from fedjax_opt.optimizers.triple import local_form


class ModelState(NamedTuple):
    """A server state or message that is the model alone."""

    variables: Variables


class Local(NamedTuple):
    """A client's model and its optimiser's state, during a round."""

    variables: Variables
    optimizer: Any


def fedavg(optimizer: optax.GradientTransformation, server_learning_rate: Any = 1.0) -> Algorithm:
    """FedAvg: `x+ = x + eta_s sum_i w_i (y_i - x)` after K local steps on each client.

    The weights w_i are those of the round: uniform or by samples.

    Args:
      optimizer: the clients' optimiser, a triple or any optax transformation. Its statistics move in
        every local step and start afresh in every round, and so does the count of a schedule. To put
        clipping or weight decay before a triple use `fedjax_opt.optimizers.chain`.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))

    Reference:
      McMahan et al. Communication-efficient learning of deep networks from decentralized data. 2017.
    """
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    return Algorithm(
        init=ModelState,
        init_client=no_client_state,
        broadcast=same_message,
        start=Partial(start, optimizer),
        step=Partial(step, optimizer),
        finish=finish,
        server_step=Partial(server_step, server_learning_rate),
    )


def same_message(server: Any) -> Any:
    """Broadcasts the server state as it is."""
    return server


def start(optimizer, message, client):
    """y = x, and fresh statistics."""
    del client
    variables = get_variables(message)
    return Local(variables, optimizer.init(variables.params))


def step(optimizer, local, objective, batch, context):
    """One step of the optimiser on the minibatch's gradient."""
    del context
    gradient, evaluation = objective.gradient(local.variables, batch)
    return descend(optimizer, local, gradient, evaluation), evaluation


def descend(optimizer, local, gradient, evaluation):
    """The local state after one step of the optimiser along a gradient, corrected or not."""
    params = local.variables.params
    updates, optimizer_state = optimizer.update(gradient, local.optimizer, params)
    variables = Variables(optax.apply_updates(params, updates), evaluation.state)
    return local._replace(variables=variables, optimizer=optimizer_state)


def finish(local, context):
    """Uploads y - x."""
    return difference(local.variables, get_variables(context.message)), ()


def server_step(server_learning_rate, server, aggregate, situation):
    """x+ = x + eta_s mean(y - x)."""
    del situation
    return ModelState(move(server.variables, aggregate, server_learning_rate))
