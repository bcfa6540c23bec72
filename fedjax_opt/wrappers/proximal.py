"""A proximal term around any algorithm's local objective.

    loss  <-  loss + (mu / 2) ||y - x||^2,   so   g  <-  g + mu (y - x)

with x the model at which the client starts.

Reference:
  Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks.
  MLSys 2020.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, checks, get_variables, trees


def proximal(algorithm: Algorithm, mu: Any) -> Algorithm:
    """Pulls local models towards the broadcast one: `g + mu (y - x)`.

    Args:
      algorithm: any algorithm.
      mu: the weight of the proximal term, not negative.

    Returns:
      The algorithm with the term added to every local gradient. The loss that is reported stays the
      model's own.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.proximal(fo.fedgbo(fo.optimizers.sgdm(0.1, 0.9)), mu=0.01)

    Reference:
      Li et al. Federated optimization in heterogeneous networks. MLSys 2020.
    """
    mu = checks.number("mu", mu, low=0.0)
    return algorithm._replace(
        start=Partial(_start, algorithm.start),
        step=Partial(_step, algorithm.step, mu),
        finish=Partial(_finish, algorithm.finish),
    )


class Local(NamedTuple):
    """The wrapped algorithm's local state, and the parameters at which the client started."""

    inner: Any
    anchor: Any


def _start(inner, message, client):
    local = inner(message, client)
    return Local(local, get_variables(local).params)


def _step(inner, mu, local, objective, batch, context):
    def penalty(variables, evaluation):
        distance = trees.squared_norm(trees.subtract(variables.params, local.anchor))
        return (jnp.asarray(mu, distance.dtype) * distance / 2).astype(evaluation.loss.dtype)

    inner_local, evaluation = inner(local.inner, objective.with_penalty(penalty), batch, context)
    return Local(inner_local, local.anchor), evaluation


def _finish(inner, local, context):
    return inner(local.inner, context)
