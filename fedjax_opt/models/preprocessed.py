"""A model that preprocesses its batches itself, inside the compiled program."""

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import Partial

from fedjax_opt.core import Model


def preprocessed(model: Model, *steps: Callable[[Any, jax.Array | None], Any]) -> Model:
    """The model on batches that have gone through some steps, one after the other.

    Args:
      model: the model; it sees what the last step returns, also when it is initialised.
      *steps: functions (batch, key) -> batch, such as a random crop. The key is None in evaluation and
        in `init`: then a step must not be random.

    Returns:
      A `Model` that takes unprocessed batches. In training every step and the model itself have keys
      of their own.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def halve(batch, key):
      ...     return {**batch, "x": batch["x"][:, ::2]}
      >>> model = fo.models.preprocessed(fo.models.mlp([], num_classes=3), halve)
      >>> batch = {"x": jnp.ones((4, 6)), "y": jnp.zeros(4, int)}
      >>> model.init(jax.random.key(0), batch).params["layer_0"]["w"].shape
      (3, 3)
    """
    functions = Partial(_init, model.init, steps), Partial(_loss, model.loss, steps)
    return Model(*functions, model.frozen, model.indexed)


def _init(init, steps, key, batch):
    for step in steps:
        batch = step(batch, None)
    return init(key, batch)


def _loss(loss, steps, variables, batch, key, *frozen, **index):
    keys = [None] * (len(steps) + 1) if key is None else jax.random.split(key, len(steps) + 1)
    for i, step in enumerate(steps):
        batch = step(batch, keys[i])
    return loss(variables, batch, keys[len(steps)], *frozen, **index)
