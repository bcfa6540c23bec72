"""Classifiers from plain functions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import Aux, Model, Variables

Loss = Callable[..., tuple[jax.Array, Aux]]


def cross_entropy(logits: jax.Array, labels: jax.Array, **rest: Any) -> tuple[jax.Array, Aux]:
    """The mean softmax cross-entropy, with each example's loss and whether it was classified right.

    Args:
      logits: `[B, classes]`.
      labels: `[B]`, integers.
      **rest: further fields of `Aux`: `state`, `features`.

    Returns:
      (loss, Aux), as a model's loss returns them.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt.models import cross_entropy
      >>> loss, aux = cross_entropy(jnp.array([[0.0, 9.0]]), jnp.array([1]))
      >>> aux.metrics["accuracy"].tolist()
      [True]
    """
    labels = jnp.asarray(labels).astype(jnp.int32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = jnp.argmax(logits, axis=-1).astype(jnp.int32) == labels
    return jnp.mean(losses), Aux(losses=losses, metrics={"accuracy": right}, **rest)


def classifier(
    init: Callable[[jax.Array, Any], Any],
    apply: Callable[[Any, Any], Any],
    loss: Loss = cross_entropy,
) -> Model:
    """A model with softmax cross-entropy and accuracy, from two plain functions.

    Examples are mappings with inputs `x` and integer labels `y`.

    Args:
      init: (key, batch) -> params.
      apply: (params, x) -> logits `[B, classes]`; or (logits, features), where the features are the
        penultimate activations `[B, ...]` that FedMAX and MOON look at.
      loss: (logits, labels, **fields of Aux) -> (loss, Aux); `sequence_cross_entropy` for a language
        model.

    Returns:
      A `Model` whose metrics are `accuracy`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.classifier(
      ...     init=lambda key, batch: jnp.zeros((batch["x"].shape[1], 3)),
      ...     apply=lambda params, x: x @ params,
      ... )
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> loss, aux = model.loss(model.init(jax.random.key(0), batch), batch, None)
      >>> round(float(loss), 4)
      1.0986
    """
    return Model(Partial(_init, init), Partial(_loss, apply, loss))


def _init(init, key, batch):
    return Variables(init(key, batch))


def _loss(apply, loss, variables, batch, key):
    del key
    logits, features = split_features(apply(variables.params, batch["x"]))
    return loss(logits, batch["y"], features=features)


def split_features(output: Any) -> tuple[jax.Array, Any]:
    """(logits, features) of a model that returns either both or the logits alone."""
    return output if isinstance(output, tuple) else (output, None)
