"""FedNova: clients that take more steps do not pull the model further towards their own optimum.

    local    y <- y - eta g            (or any optimiser whose steps are linear in the gradients)
    a        what the same optimiser would do to a number whose gradient is always 1:
             eta K for SGD, eta sum_k (1 - beta^k) for SGD with momentum beta
    upload   d = (y - x) / a,  a
    server   x+ = x + eta_s (sum_i w_i a_i) (sum_i w_i d_i)

FedAvg with unequal K minimises a loss in which a client's weight grows with its K. Here every client
gives a mean gradient, and the server takes the cohort's mean number of steps along their mean. With
equal K it is FedAvg.

Reference:
  Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem in heterogeneous federated
  optimization. NeurIPS 2020. Equations 8 and 9; the effective number of steps is that of Section 4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import ModelState, finish, same_message, start, step
from fedjax_opt.core import Algorithm, Variables, checks, move, no_client_state, trees
from fedjax_opt.optimizers.triple import local_form


class Local(NamedTuple):
    """A client's model, and the number that the same optimiser moves along a gradient of 1."""

    variables: Variables
    optimizer: Any
    unit: jax.Array
    unit_optimizer: Any


class Upload(NamedTuple):
    """The displacement of the model per displacement of the number, and the latter."""

    direction: Variables
    length: jax.Array


def fednova(optimizer: optax.GradientTransformation, server_learning_rate: Any = 1.0) -> Algorithm:
    """FedNova: normalised averaging for clients that take different numbers of steps.

    Non-trainable state (batch statistics) is averaged as it is.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`. The paper's analysis holds for steps that are
        linear in the gradients: SGD, momentum, schedules of the learning rate.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fednova(fo.optimizers.sgdm(0.1, 0.9))

    Reference:
      Wang et al. Tackling the objective inconsistency problem in heterogeneous federated optimization.
      NeurIPS 2020.
    """
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    return Algorithm(
        init=ModelState,
        init_client=no_client_state,
        broadcast=same_message,
        start=Partial(_start, optimizer),
        step=Partial(_step, optimizer),
        finish=_finish,
        server_step=Partial(_server_step, server_learning_rate),
    )


def _start(optimizer, message, client):
    begun = start(optimizer, message, client)
    unit = jnp.zeros((), jnp.result_type(float))
    return Local(*begun, unit, optimizer.init(unit))


def _step(optimizer, local, objective, batch, context):
    local, evaluation = step(optimizer, local, objective, batch, context)
    # The number stands at 0, where weight decay adds nothing: decay is part of the model's gradient.
    origin = jnp.zeros_like(local.unit)
    one = jnp.ones_like(local.unit)
    update, unit_optimizer = optimizer.update(one, local.unit_optimizer, origin)
    return local._replace(unit=local.unit - update, unit_optimizer=unit_optimizer), evaluation


def _finish(local, context):
    displacement, client = finish(local, context)
    # A learning rate of 0 moves neither: the direction is then 0, not 0 / 0.
    divisor = jnp.where(local.unit == 0, 1, local.unit)
    direction = displacement._replace(params=trees.scale(1 / divisor, displacement.params))
    return Upload(direction, local.unit), client


def _server_step(server_learning_rate, server, mean, situation):
    del situation
    displacement = trees.scale(mean.length, mean.direction.params)
    delta = mean.direction._replace(params=displacement)
    return ModelState(move(server.variables, delta, server_learning_rate))
