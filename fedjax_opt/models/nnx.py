"""A Flax NNX module as a `Model`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import Model, Variables
from fedjax_opt.models.classifier import Loss, cross_entropy, split_features


def from_nnx(create: Callable[[Any], Any], loss: Loss = cross_entropy) -> Model:
    """A classifier from a Flax NNX module; batch statistics become non-trainable state.

    Examples are mappings with inputs `x` and integer labels `y`; `module(x)` returns logits, or
    (logits, features). `nnx.Param` variables are trained, all others but the random streams are state.
    Streams such as dropout's begin anew at every step, from that step's key.

    Args:
      create: (rngs) -> module, where `rngs` is an `nnx.Rngs`. The module's sizes are fixed by it alone.
      loss: (logits, labels, **fields of Aux) -> (loss, Aux); `sequence_cross_entropy` for a language
        model.

    Returns:
      A `Model` whose metrics are `accuracy`. In training the module is in the mode of its `train()`, in
      evaluation in that of its `eval()`.

    Example:
      >>> from flax import nnx
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> class Net(nnx.Module):
      ...     def __init__(self, rngs):
      ...         self.hidden = nnx.Linear(2, 8, rngs=rngs)
      ...         self.norm = nnx.BatchNorm(8, rngs=rngs)
      ...         self.out = nnx.Linear(8, 3, rngs=rngs)
      ...     def __call__(self, x):
      ...         return self.out(nnx.relu(self.norm(self.hidden(x))))
      >>> model = fo.models.from_nnx(Net)
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> sorted(variables.params), sorted(variables.state)
      (['hidden', 'norm', 'out'], ['norm'])
    """
    from flax import nnx

    def split(module):
        return nnx.split(module, nnx.Param, nnx.RngState, ...)

    # What is known without numbers: the structure, shapes and dtypes.
    graph, *abstract = split(nnx.eval_shape(lambda: create(nnx.Rngs(0))))

    @jax.jit
    def initialise(key):
        _, params, _, rest = split(create(nnx.Rngs(key)))
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def init(key, batch):
        del batch
        return Variables(*initialise(key))

    def evaluate(variables, batch, key):
        training = key is not None
        streams = _fresh(abstract[1], key if training else jax.random.key(0))
        module = nnx.merge(
            graph, _filled(abstract[0], variables.params), streams,
            _filled(abstract[2], variables.state),
        )  # fmt: skip
        module.train() if training else module.eval()
        logits, features = split_features(module(batch["x"]))
        _, _, _, rest = split(module)
        state = nnx.to_pure_dict(rest) if training else None
        return loss(logits, batch["y"], state=state, features=features)

    def _filled(template, values):
        state = jax.tree.map(lambda leaf: leaf, template)
        nnx.replace_by_pure_dict(state, values)
        return state

    def _fresh(template, key):
        """Every stream with a key of its own and its count at 0."""
        leaves, structure = jax.tree.flatten(template)
        values = [
            jax.random.fold_in(key, i)
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(structure, values)

    return Model(init, evaluate)
