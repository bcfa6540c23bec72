"""A Flax Linen module as a `Model`."""

from typing import Any

import jax

from fedjax_opt.core import Model, Variables
from fedjax_opt.models.classifier import Loss, cross_entropy, split_features


def from_linen(
    module: Any,
    train_argument: str | None = None,
    rngs: tuple[str, ...] = (),
    loss: Loss = cross_entropy,
) -> Model:
    """A classifier from a Flax Linen module; batch statistics become non-trainable state.

    Examples are mappings with inputs `x` and integer labels `y`; `module(x)` returns logits,
    or (logits, features) with the penultimate activations that FedMAX and MOON look at. The collection
    `params` is trained, every other collection is state: it changes in local steps, and is aggregated
    with the model or kept private.

    Args:
      module: a `flax.linen.Module`.
      train_argument: the name of the module's argument that says whether it is training
        (`train=True`), if it has one.
      rngs: the names of the random streams that the module uses in training, such as 'dropout'.
      loss: (logits, labels, **fields of Aux) -> (loss, Aux); `sequence_cross_entropy` for a language
        model.

    Returns:
      A `Model` whose metrics are `accuracy`.

    Example:
      >>> import flax.linen as nn
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> class Net(nn.Module):
      ...     @nn.compact
      ...     def __call__(self, x, train):
      ...         x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
      ...         return nn.Dense(3)(nn.relu(x))
      >>> model = fo.models.from_linen(Net(), train_argument="train")
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> sorted(model.init(jax.random.key(0), batch).state)
      ['batch_stats']
    """

    def arguments(training: bool) -> dict[str, Any]:
        return {} if train_argument is None else {train_argument: training}

    @jax.jit  # Else every operation of the forward pass would be compiled and run on its own.
    def initialise(key, x):
        return module.init(key, x, **arguments(False))

    def init(key, batch):
        collections = dict(initialise(key, batch["x"]))
        params = collections.pop("params")
        return Variables(params, collections)

    def evaluate(variables, batch, key):
        training = key is not None
        streams = (
            dict(zip(rngs, jax.random.split(key, max(len(rngs), 1)), strict=False))
            if training
            else {}
        )
        mutable = list(variables.state) if training else []
        output, new_state = module.apply(
            {"params": variables.params, **variables.state},
            batch["x"],
            **arguments(training),
            rngs=streams,
            mutable=mutable,
        )
        logits, features = split_features(output)
        return loss(
            logits, batch["y"], state=dict(new_state) if mutable else None, features=features
        )

    return Model(init, evaluate)
