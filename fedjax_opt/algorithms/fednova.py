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

import chex
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import ModelState, local_training
from fedjax_opt.core import Algorithm, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form
from fedjax_opt.wrappers.nested import nested


class Local(NamedTuple):
    """The local training, and beside it the number whose gradient is always 1."""

    inner: Any
    unit: chex.Array
    unit_optimizer: Any


class Upload(NamedTuple):
    """The displacement of the model per displacement of the number, and the latter."""

    direction: Variables
    length: chex.Array


@constructor
def fednova(
    optimizer: optax.GradientTransformation, server_learning_rate: chex.Numeric = 1.0
) -> Algorithm:
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
    """
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    plain = local_training(optimizer, server_step=Partial(_server_step, eta))
    beside = nested(plain, local=Partial(_with_unit, optimizer))
    return beside._replace(
        step=Partial(_step, beside.step, optimizer), finish=Partial(_finish, beside.finish)
    )


def _with_unit(optimizer, inner, message, client):
    unit = jnp.zeros((), jnp.result_type(float))
    return Local(inner, unit, optimizer.init(unit))


def _step(step, optimizer, local, objective, batch, context):
    local, evaluation = step(local, objective, batch, context)
    # The number stands at 0, where weight decay adds nothing: decay is part of the model's gradient.
    origin, one = jnp.zeros_like(local.unit), jnp.ones_like(local.unit)
    update, unit_optimizer = optimizer.update(one, local.unit_optimizer, origin)
    return local._replace(unit=local.unit - update, unit_optimizer=unit_optimizer), evaluation


def _finish(finish, local, context):
    delta, client = finish(local, context)
    # A learning rate of 0 moves neither: the direction is then 0, not 0 / 0.
    divisor = jnp.where(local.unit == 0, 1, local.unit)
    direction = delta._replace(params=trees.scale(1 / divisor, delta.params))
    return Upload(direction, local.unit), client


def _server_step(eta, server, mean, situation):
    delta = mean.direction._replace(params=trees.scale(mean.length, mean.direction.params))
    return ModelState(move(server.variables, delta, eta))
