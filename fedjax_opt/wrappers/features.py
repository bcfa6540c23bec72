"""What wrappers that look at a model's features share."""

import jax

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
