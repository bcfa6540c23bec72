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
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, checks
from fedjax_opt.wrappers.features import features_of, mean_over_rows


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
    probe = algorithm.probe
    return algorithm._replace(
        step=Partial(_step, algorithm.step, beta),
        probe=None if probe is None else Partial(_probe, probe, beta),
    )


def _step(inner, beta, local, objective, batch, context):
    return inner(local, _with_term(beta, objective, batch), batch, context)


def _probe(inner, beta, message, client, probe_data):
    return inner(message, client, probe_data.adjusted(Partial(_with_term, beta)))


def _with_term(beta, objective, batch):
    del batch

    def penalty(variables, evaluation):
        del variables
        features = features_of(evaluation, "max_entropy")
        log_p = jax.nn.log_softmax(features, axis=-1)
        divergence = -jnp.log(features.shape[-1]).astype(log_p.dtype) - jnp.mean(log_p, axis=-1)
        weighted = jnp.asarray(beta, log_p.dtype) * mean_over_rows(divergence, objective.mask)
        return weighted.astype(evaluation.loss.dtype)

    return objective.with_penalty(penalty)
