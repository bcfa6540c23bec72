"""MFL: clients train with statistics that move, the server averages model and statistics.

    local    y, s <- one step of the optimiser, statistics moving
    upload   y - x, s_i - s
    server   x+ = x + sum_i w_i (y_i - x),   s+ = s + sum_i w_i (s_i - s)

With Adam it is FedAvg-Adam.

References:
  Liu, Chen, Chen, Zhang. Accelerating federated learning via momentum gradient descent. IEEE TPDS
  2020.
  Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
  computing. IEEE TPDS 2022 (FedAvg-Adam).
"""

from typing import Any, NamedTuple

import chex
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import all_of_it, as_sent, local_training
from fedjax_opt.core import Algorithm, Variables, checks, difference, move, move_state
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The model and the optimiser's statistics, both averages of the clients'; also their change."""

    variables: Variables
    optimizer: Any


@constructor
def mfl(
    optimizer: optax.GradientTransformation, server_learning_rate: chex.Numeric = 1.0
) -> Algorithm:
    """MFL: the optimiser's statistics travel and are averaged as the model is.

    Args:
      optimizer: a triple, used in its `moving` form, or any optax transformation.
      server_learning_rate: eta_s for the model, not negative; statistics are averaged as they are.

    Returns:
      An `Algorithm` without client state. Counters in the statistics are averaged and rounded.

    Example:
      FedAvg-Adam:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.mfl(fo.optimizers.adam(1e-2))
    """
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    return local_training(
        optimizer,
        init=Partial(init_with_statistics, optimizer),
        broadcast=all_of_it,
        start=as_sent,
        upload=_upload,
        server_step=Partial(_server_step, eta),
    )


def init_with_statistics(optimizer: optax.GradientTransformation, variables: Variables) -> Server:
    """The model and the optimiser's initial statistics."""
    return Server(variables, optimizer.init(variables.params))


def _upload(delta, local, context):
    return Server(delta, difference(local.optimizer, context.message.optimizer)), ()


def _server_step(eta, server, mean, situation):
    return Server(
        move(server.variables, mean.variables, eta),
        move_state(server.optimizer, mean.optimizer),
    )
