"""A proximal term around any algorithm's local objective.

    loss  <-  loss + (mu / 2) ||y - x||^2,   so   g  <-  g + mu (y - x)

with x the model that the server broadcast.

Reference:
  Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks.
  MLSys 2020.
"""

from typing import Any

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
    checks.number("mu", mu, low=0.0)
    return algorithm._replace(step=Partial(_step, algorithm.step, mu))


def _step(inner, mu, local, objective, batch, context):
    anchor = get_variables(context.message).params

    def penalty(variables, evaluation):
        distance = trees.squared_norm(trees.subtract(variables.params, anchor))
        return (mu * distance / 2).astype(evaluation.loss.dtype)

    return inner(local, objective.with_penalty(penalty), batch, context)
