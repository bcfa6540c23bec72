"""AdaBest: drift estimates that fade with the rounds a client was away, and a server that looks ahead.

    local    y <- y - eta (g - h_i)
    finish   h_i+ = h_i / (t - t_i) + mu (x - y),   t_i+ = t       t_i: when i last took part
    upload   y - x
    server   z+ = sum_i w_i y_i,   x+ = z+ - beta (z - z+)         z: the last mean of the clients

In a client's first round h_i is zero, so the division means nothing.

Reference:
  Varno, Saghayi, Rafiee Sevyeri, Gupta, Matwin, Havaei. AdaBest: minimizing client drift in federated
  learning via adaptive bias estimation. ECCV 2022. Algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import ModelState, descend, start
from fedjax_opt.core import Algorithm, Variables, checks, difference, move, trees
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The model that is sent, and the parameters of the last mean of the clients."""

    variables: Variables
    mean: Any


class Client(NamedTuple):
    """h_i, and the round in which the client last took part; -1 before it ever did."""

    h: Any
    last_round: jax.Array


def adabest(optimizer: optax.GradientTransformation, mu: Any = 0.02, beta: Any = 0.8) -> Algorithm:
    """AdaBest: `g - h_i` in every local step, `x+ = z+ - beta (z - z+)` on the server.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      mu: the weight of a client's own displacement in h_i, not negative.
      beta: how far the server looks ahead, in [0, 1).

    Returns:
      An `Algorithm` whose clients keep h_i and t_i, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.adabest(fo.optimizers.sgd(0.1), mu=0.02, beta=0.8)

    Reference:
      Varno et al. AdaBest: minimizing client drift in federated learning via adaptive bias
      estimation. ECCV 2022.
    """
    mu = checks.number("mu", mu, low=0.0)
    beta = checks.number("beta", beta, low=0.0, high=1.0, open_high=True)
    optimizer = local_form(optimizer)
    return Algorithm(
        init=_init,
        init_client=_init_client,
        broadcast=_broadcast,
        start=Partial(start, optimizer),
        step=Partial(_step, optimizer),
        finish=Partial(_finish, mu),
        server_step=Partial(_server_step, beta),
    )


def _init(variables):
    return Server(variables, variables.params)


def _init_client(variables):
    return Client(trees.zeros_like(variables.params), jnp.full((), -1, jnp.int32))


def _broadcast(server):
    return ModelState(server.variables)


def _step(optimizer, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    corrected = trees.subtract(gradient, context.client.h)
    return descend(optimizer, local, corrected, evaluation), evaluation


def _finish(mu, local, context):
    delta = difference(local.variables, context.message.variables)
    rounds_away = context.round - context.client.last_round
    faded = trees.scale(trees.reciprocal(rounds_away), context.client.h)
    return delta, Client(trees.add_scaled(faded, -mu, delta.params), context.round)


def _server_step(beta, server, aggregate, situation):
    del situation
    mean = move(server.variables, aggregate)
    ahead = trees.add_scaled(mean.params, beta, trees.subtract(mean.params, server.mean))
    return Server(mean._replace(params=ahead), mean.params)
