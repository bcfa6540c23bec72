"""A maximum-entropy term around any algorithm's local objective.

    loss  <-  loss + beta mean over the batch of KL(u || softmax(h))

with h the model's features (its penultimate activations), n of them, and u the uniform distribution:
KL(u || p) = -log n - (1 / n) sum_j log p_j, which is zero where the activations are all alike.

Reference:
  Chen, Bhardwaj, Marculescu. FedMAX: mitigating activation divergence for accurate and
  communication-efficient federated learning. ECML PKDD 2020.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, checks
from fedjax_opt.core.model import mean_over_rows
from fedjax_opt.wrappers.features import features_of
from fedjax_opt.wrappers.objective import with_term


def max_entropy(algorithm: Algorithm, beta: Any) -> Algorithm:
    """Adds `beta KL(uniform || softmax(features))` to every local objective.

    Args:
      algorithm: any algorithm.
      beta: the weight of the term, not negative.

    Returns:
      The algorithm with the term in every local gradient. The loss that is reported stays the model's
      own. The model's loss must return `Aux(features=...)`, `[B, ...]`.

    Example:
      FedMAX with FedGBO's optimiser:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.max_entropy(fo.fedgbo(fo.optimizers.adam(0.01)), beta=10.0)

    Reference:
      Chen, Bhardwaj, Marculescu. FedMAX: mitigating activation divergence for accurate and
      communication-efficient federated learning. ECML PKDD 2020.
    """
    beta = checks.number("beta", beta, low=0.0)
    return with_term(algorithm, Partial(_with_term, beta))


def _with_term(beta, objective, batch):
    del batch

    def penalty(variables, evaluation):
        del variables
        features = features_of(evaluation, "max_entropy")
        log_p = jax.nn.log_softmax(features, axis=-1)
        uniform = jnp.full_like(log_p, 1 / features.shape[-1])
        divergence = optax.losses.kl_divergence(log_p, uniform)
        weighted = jnp.asarray(beta, log_p.dtype) * mean_over_rows(divergence, objective.mask)
        return weighted.astype(evaluation.loss.dtype)

    return objective.with_penalty(penalty)
