"""What wrappers that look at a model's features share."""

import jax
import jax.numpy as jnp

from fedjax_opt.core import Evaluation


def features_of(evaluation: Evaluation, name: str) -> jax.Array:
    """The features `[B, n]`, one vector per example."""
    features = evaluation.features
    if features is None:
        raise ValueError(
            f"{name} needs the model's features (its penultimate activations), but model.loss returned"
            " none: return Aux(features=...), [B, ...]. The models of fedjax_opt.models do."
        )
    return features.reshape(features.shape[0], -1)


def mean_over_rows(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The mean over the rows of a minibatch that count."""
    if mask is None:
        return jnp.mean(values)
    # Cut before the sum, as the loss is: what stands in the other rows must not reach the mean.
    count = jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1)
    return jnp.sum(jnp.where(mask, values, 0)) / count.astype(values.dtype)
