"""Small models, which need no neural-network library."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import Model, checks
from fedjax_opt.models.adapters import classifier
from fedjax_opt.models.inputs import as_ids


def mlp(hidden: Sequence[int], num_classes: int) -> Model:
    """A ReLU network that classifies flat inputs `x`.

    Args:
      hidden: the widths of the hidden layers; none for logistic regression.
      num_classes: the number of classes.

    Returns:
      A `Model` whose features are the inputs of its last layer. Weights start uniform within
      +-sqrt(6 / fan_in) (He), the last layer within +-sqrt(1 / fan_in), biases at 0.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.mlp([32], num_classes=10)
      >>> batch = {"x": jnp.ones((4, 64)), "y": jnp.zeros(4, int)}
      >>> model.init(jax.random.key(0), batch).params["layer_0"]["w"].shape
      (64, 32)
    """
    widths = [checks.integer("hidden", width, low=1) for width in hidden]
    widths.append(checks.integer("num_classes", num_classes, low=2))

    def init(key, batch):
        params, fan_in = {}, batch["x"].shape[-1]
        dtype = jnp.result_type(batch["x"])
        dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)
        for i, width in enumerate(widths):
            bound = ((1 if i == len(widths) - 1 else 6) / fan_in) ** 0.5
            key, layer_key = jax.random.split(key)
            shape = (fan_in, width)
            weights = jax.random.uniform(layer_key, shape, dtype, minval=-bound, maxval=bound)
            params[f"layer_{i}"] = {"w": weights, "b": jnp.zeros(width, dtype)}
            fan_in = width
        return params

    def apply(params, x):
        last = len(widths) - 1
        for i in range(last):
            x = jax.nn.relu(_affine(params[f"layer_{i}"], x))
        return _affine(params[f"layer_{last}"], x), x

    return classifier(init, apply, features=1)


def _affine(layer, x):
    return x @ layer["w"] + layer["b"][None]


def bag_of_words(vocabulary: int = 5000, num_classes: int = 2, normalise: bool = True) -> Model:
    """A linear classifier of texts given as token ids, `x` of `[B, L]`.

    The logits are those of the vector of token counts times a matrix `[vocabulary, classes]`, but only
    the rows of the tokens that occur are touched: a tweet has a dozen of 5,000. Weights start at 0.

    Args:
      vocabulary: the number of tokens.
      num_classes: the number of classes.
      normalise: whether the counts are divided by their sum, as in the papers' Sent140 task.

    Returns:
      A `Model`. Ids outside the vocabulary, such as the padding -1, are no tokens.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.bag_of_words()
      >>> batch = {"x": jnp.array([[4, 17, -1], [3, 3, 9]]), "y": jnp.array([0, 1])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> sum(leaf.size for leaf in jax.tree.leaves(variables.params))
      10002

    Reference:
      Mills et al., Accelerating federated learning with a global biased optimiser, section 5.
    """
    checks.integer("vocabulary", vocabulary, low=1)
    checks.integer("num_classes", num_classes, low=2)
    return classifier(
        Partial(_init, vocabulary, num_classes), Partial(_apply, vocabulary, normalise)
    )


def _init(vocabulary, num_classes, key, batch):
    del key, batch
    dtype = jnp.result_type(float)
    return {"w": jnp.zeros((vocabulary, num_classes), dtype), "b": jnp.zeros(num_classes, dtype)}


def _apply(vocabulary: int, normalise: bool, params, x) -> jax.Array:
    ids = as_ids(x, "[B, L]")
    known = (ids >= 0) & (ids < vocabulary)
    rows = params["w"][jnp.where(known, ids, 0)]
    total = jnp.sum(jnp.where(known[..., None], rows, 0), axis=1)
    if normalise:
        number = jnp.sum(known, axis=1, keepdims=True, dtype=total.dtype)
        total = total / jnp.maximum(number, 1)
    return total + params["b"][None]
