"""Losses of (outputs, labels), with the loss of each example and the accuracy."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_opt.core import Aux


def cross_entropy(logits: jax.Array, labels: jax.Array, **rest: Any) -> tuple[jax.Array, Aux]:
    """The mean softmax cross-entropy, with each example's loss and whether it was classified right.

    Args:
      logits: `[B, classes]`.
      labels: `[B]`, class numbers from 0 on. The loss of one that is no class is NaN.
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
    labels = jnp.asarray(labels)
    if labels.shape != logits.shape[:-1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels must be whole numbers of shape {list(logits.shape[:-1])}, the classes, for logits"
            f" {list(logits.shape)}, got {labels.dtype}{list(labels.shape)}."
        )
    labels = labels.astype(jnp.int32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    # A negative label would be read from the end of the classes, without a word.
    losses = jnp.where(labels >= 0, losses, jnp.nan)
    right = jnp.argmax(logits, axis=-1).astype(jnp.int32) == labels
    return jnp.mean(losses), Aux(losses=losses, metrics={"accuracy": right}, **rest)


def sequence_cross_entropy(
    logits: jax.Array, labels: jax.Array, **rest: Any
) -> tuple[jax.Array, Aux]:
    """The softmax cross-entropy of sequences, the mean over the tokens of each that count.

    With one label for each sequence, its last position is judged: the next character after it.

    Args:
      logits: `[B, L, symbols]`.
      labels: `[B, L]`, integers, negative where there is no token; or `[B]`, the label of the last
        position, negative likewise.
      **rest: further fields of `Aux`: `state`, `features`.

    Returns:
      (loss, Aux), as a model's loss returns them. `losses` and the metric `accuracy` have one entry per
      sequence, means over its tokens; both are 0 for a sequence without tokens.

    Example:
      >>> import jax.numpy as jnp
      >>> from fedjax_opt.models import sequence_cross_entropy
      >>> labels = jnp.array([[0, 1, -1], [-1, -1, -1]])
      >>> loss, aux = sequence_cross_entropy(jnp.zeros((2, 3, 4)), labels)
      >>> [round(float(loss), 4) for loss in aux.losses], aux.metrics["accuracy"].tolist()
      ([1.3863, 0.0], [0.5, 0.0])
    """
    labels = jnp.asarray(labels).astype(jnp.int32)
    if labels.shape == logits.shape[:1]:
        logits, labels = logits[:, -1:], labels[:, None]
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels must have shape {list(logits.shape[:-1])} or {list(logits.shape[:1])} for logits"
            f" {list(logits.shape)}, got {list(labels.shape)}."
        )
    counts = labels >= 0
    labels = jnp.where(counts, labels, 0)
    number = jnp.maximum(jnp.sum(counts, axis=-1, dtype=logits.dtype), 1)

    def mean(values):
        return jnp.sum(values, axis=-1, where=counts, dtype=logits.dtype) / number

    losses = mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
    accuracy = mean(jnp.argmax(logits, axis=-1).astype(jnp.int32) == labels)
    return jnp.mean(losses), Aux(losses=losses, metrics={"accuracy": accuracy}, **rest)
