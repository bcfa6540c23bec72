"""Fully connected networks, without a neural-network library."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_opt.core import Model, checks
from fedjax_opt.models.classifier import classifier


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

    return classifier(init, apply)


def _affine(layer, x):
    return x @ layer["w"] + layer["b"][None]
