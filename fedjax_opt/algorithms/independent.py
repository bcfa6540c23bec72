"""Independent training: every client learns alone, and nothing is sent. What federation must beat.

    client   y_i, and its optimiser's statistics; both go on from round to round
    local    y_i <- y_i - eta g                  (or any optimiser)
    upload   nothing
    server   keeps the initial model

A round is then only a time at which the clients of the cohort take their K steps.
"""

from typing import Any

import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import Local, local_training
from fedjax_opt.core import Algorithm
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form


@constructor
def independent(optimizer: optax.GradientTransformation) -> Algorithm:
    """Independent training: `y_i <- y_i - eta g_i(y_i)`, without any communication.

    Args:
      optimizer: the clients' optimiser, a triple or any optax transformation. Its statistics move in
        every local step and are kept between rounds, as if there were none.

    Returns:
      An `Algorithm` whose clients keep a model and its optimiser's statistics, with empty messages and
      uploads. `personal` is the client's own model, and losses are those of such models. The global one
      stays the initial model, so `Info.update_norm` is 0. A wrapper that looks for the model in the
      message (`private`) refuses it.

    Example:
      Nothing is downloaded and nothing uploaded:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.independent(fo.optimizers.sgd(0.1))
      >>> fo.costs.of(algorithm, fo.Variables({"w": jnp.zeros(1000)}))[:2]
      (0, 0)

    Reference:
      Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
      computing. IEEE Transactions on Parallel and Distributed Systems, 2022, where clients that train
      alone are one of the baselines.
    """
    optimizer = local_form(optimizer)
    alone = local_training(
        optimizer,
        init_client=Partial(_init_client, optimizer),
        broadcast=_broadcast,
        start=_start,
        server_step=_server_step,
    )
    return alone._replace(finish=_finish, personal=_personal)


def _init_client(optimizer, variables):
    return Local(variables, optimizer.init(variables.params))


def _broadcast(server: Any) -> tuple:
    return ()


def _start(message, client):
    return client


def _finish(local, context):
    return (), local


def _server_step(server, mean, situation):
    return server


def _personal(server, client):
    return client.variables
