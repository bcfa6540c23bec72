"""LocalGHBM and FedHBM: GHBM whose momentum each client makes of what it remembers.

    LocalGHBM  a_i = the model that client i received when it last took part
               local    y <- y - eta g + (beta C / K) (x - a_i)
    FedHBM     a_i = the model with which client i finished when it last took part
               local    y <- y - eta g + (beta C / K) (y - a_i),   y as it is in every step
    both       no momentum in a client's first round
               upload   y - x
               server   x+ = x + eta_s sum_i w_i (y_i - x)

C = |S| / N stands for 1 / tau: a client takes part every 1 / C rounds, on average. Under cyclic
participation LocalGHBM is GHBM with tau = 1 / C. In Nesterov's form the momentum is applied before the
gradient is taken.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Algorithm 1 and section 3.4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import ModelState, descend, same_message, server_step, start
from fedjax_opt.algorithms.ghbm import push
from fedjax_opt.core import Algorithm, checks, difference, trees
from fedjax_opt.optimizers.triple import local_form


class Client(NamedTuple):
    """a_i, and the round in which the client last took part; -1 before it ever did."""

    anchor: Any
    last_round: jax.Array


def localghbm(
    optimizer: optax.GradientTransformation,
    beta: Any = 0.9,
    server_learning_rate: Any = 1.0,
    nesterov: bool = False,
) -> Algorithm:
    """LocalGHBM: `y <- y - eta g + (beta C / K) (x - a_i)`, a_i the model received last time.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      beta: the weight of the momentum, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.
      nesterov: whether the momentum is applied before the gradient is taken.

    Returns:
      An `Algorithm` whose clients keep a model, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.localghbm(fo.optimizers.sgd(0.1), beta=0.9)

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024.
    """
    return _make(_received, optimizer, beta, server_learning_rate, nesterov)


def fedhbm(
    optimizer: optax.GradientTransformation,
    beta: Any = 1.0,
    server_learning_rate: Any = 1.0,
    nesterov: bool = False,
) -> Algorithm:
    """FedHBM: `y <- y - eta g + (beta C / K) (y - a_i)`, a_i the client's own last model.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      beta: the weight of the momentum, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.
      nesterov: whether the momentum is applied before the gradient is taken.

    Returns:
      An `Algorithm` whose clients keep a model, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedhbm(fo.optimizers.sgd(0.1), beta=1.0)

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024.
    """
    return _make(_trained, optimizer, beta, server_learning_rate, nesterov)


def _make(model_of, optimizer, beta, server_learning_rate, nesterov):
    beta = checks.number("beta", beta, low=0.0)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    model_of = Partial(model_of)
    return Algorithm(
        init=ModelState,
        init_client=_init_client,
        broadcast=same_message,
        start=Partial(start, optimizer),
        step=Partial(_nesterov_step if nesterov else _step, optimizer, beta, model_of),
        finish=Partial(_finish, model_of),
        server_step=Partial(server_step, server_learning_rate),
    )


def _received(local, context):
    """The model of which LocalGHBM speaks: the one received."""
    del local
    return context.message.variables.params


def _trained(local, context):
    """The model of which FedHBM speaks: the local one, as it is now."""
    del context
    return local.variables.params


def _init_client(variables):
    return Client(trees.zeros_like(variables.params), jnp.full((), -1, jnp.int32))


def _push(beta, model_of, context, at, target):
    """The target moved by (beta C / K) (model - a_i); not at all if there is no a_i yet."""
    away = trees.subtract(model_of(at, context), context.client.anchor)
    share = beta * context.participation * trees.reciprocal(context.num_steps)
    share = jnp.where(context.client.last_round >= 0, share, 0)
    return target._replace(variables=push(target.variables, share, away))


def _step(optimizer, beta, model_of, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    moved = descend(optimizer, local, gradient, evaluation)
    return _push(beta, model_of, context, at=local, target=moved), evaluation


def _nesterov_step(optimizer, beta, model_of, local, objective, batch, context):
    local = _push(beta, model_of, context, at=local, target=local)
    gradient, evaluation = objective.gradient(local.variables, batch)
    return descend(optimizer, local, gradient, evaluation), evaluation


def _finish(model_of, local, context):
    delta = difference(local.variables, context.message.variables)
    return delta, Client(model_of(local, context), context.round)
