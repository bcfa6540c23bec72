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

from typing import NamedTuple

import chex
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import local_training
from fedjax_opt.core import Algorithm, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor


class Server(NamedTuple):
    """The model that is sent, and the parameters of the last mean of the clients."""

    variables: Variables
    mean: chex.ArrayTree


class Client(NamedTuple):
    """h_i, and the round in which the client last took part; -1 before it ever did."""

    h: chex.ArrayTree
    last_round: chex.Array


@constructor
def adabest(
    optimizer: optax.GradientTransformation, mu: chex.Numeric = 0.02, beta: chex.Numeric = 0.8
) -> Algorithm:
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
    """
    mu = checks.number("mu", mu, low=0.0)
    beta = checks.number("beta", beta, low=0.0, high=1.0, open_high=True)
    return local_training(
        optimizer,
        init=_init,
        init_client=_init_client,
        direction=_direction,
        upload=Partial(_upload, mu),
        server_step=Partial(_server_step, beta),
    )


def _init(variables):
    return Server(variables, variables.params)


def _init_client(variables):
    return Client(trees.zeros_like(variables.params), jnp.full((), -1, jnp.int32))


def _direction(gradient, local, context):
    return trees.subtract(gradient, context.client.h)


def _upload(mu, delta, local, context):
    fade = trees.reciprocal(context.round - context.client.last_round)
    h = trees.each(lambda h, d, f, m: f * h - m * d, context.client.h, delta.params, f=fade, m=mu)
    return delta, Client(h, context.round)


def _server_step(beta, server, mean, situation):
    z = move(server.variables, mean)
    ahead = trees.each(lambda z, old, b: z + b * (z - old), z.params, server.mean, b=beta)
    return Server(z._replace(params=ahead), z.params)
