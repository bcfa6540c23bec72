"""Weight decay around any algorithm's local objective: an L2 term, not a property of the optimiser.

    loss  <-  loss + (rate / 2) ||y||^2,   so   g  <-  g + rate y      in local steps and in probes

Every rule then sees the gradient of the decayed objective: FedCM mixes it, SCAFFOLD's control variates
hold it. PyTorch's optimisers add the decay after such corrections instead; for that put
`optax.add_decayed_weights(rate)` before the triple with `fedjax_opt.optimizers.chain`.
"""

from typing import Any

import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, checks, trees
from fedjax_opt.wrappers.objective import with_term


def weight_decay(algorithm: Algorithm, rate: Any) -> Algorithm:
    """Adds `(rate / 2) ||y||^2` to every local objective.

    Args:
      algorithm: any algorithm.
      rate: the decay, not negative; a hyperparameter that may be traced.

    Returns:
      The algorithm with the term in every gradient. The loss that is reported stays the model's own.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.weight_decay(fo.scaffold(fo.optimizers.sgd(0.1)), rate=1e-3)

    Reference:
      Krogh, Hertz. A simple weight decay can improve generalization. NeurIPS 1991.
    """
    rate = checks.number("rate", rate, low=0.0)
    return with_term(algorithm, Partial(_with_term, rate))


def _with_term(rate, objective, batch):
    del batch

    def penalty(variables, evaluation):
        square = trees.squared_norm(variables.params)
        return (jnp.asarray(rate, square.dtype) * square / 2).astype(evaluation.loss.dtype)

    return objective.with_penalty(penalty)
