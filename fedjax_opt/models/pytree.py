"""A module that is itself a pytree, as Equinox's are, as a `Model`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Model, Variables
from fedjax_opt.models.classifier import Loss, cross_entropy, split_features


def from_pytree(
    create: Callable[[jax.Array], Any],
    call: Callable[[Any, Any, jax.Array | None], Any] | None = None,
    loss: Loss = cross_entropy,
) -> Model:
    """A classifier from a callable pytree, such as an Equinox module.

    Examples are mappings with inputs `x` and integer labels `y`. The module's floating-point arrays are
    trained. Its other arrays are state that stays as it is; all else among its leaves (activation
    functions, sizes, flags) is part of the program.

    Args:
      create: (key) -> module. Leaves that are no arrays must not depend on the key.
      call: (module, x, key) -> logits `[B, classes]`, or (logits, features); the key is None in
        evaluation, where dropout must be off. By default the module itself, mapped over the examples,
        without a key.
      loss: (logits, labels, **fields of Aux) -> (loss, Aux); `sequence_cross_entropy` for a language
        model.

    Returns:
      A `Model` whose metrics are `accuracy`. Its `params` have the structure of the module.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def create(key):
      ...     return jax.tree_util.Partial(jnp.dot, jax.random.normal(key, (3, 2)))
      >>> model = fo.models.from_pytree(create)       # With Equinox: create = partial(eqx.nn.MLP, ...)
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> [leaf.shape for leaf in jax.tree.leaves(variables.params)]
      [(3, 2)]
    """
    call = _mapped if call is None else call
    known = {}

    def arrays(key):
        """The arrays of a new module; what else it has is noted on the way."""
        leaves, structure = jax.tree.flatten(create(key))
        known["leaves"] = [None if _is_array(leaf) else leaf for leaf in leaves]
        known["structure"] = structure
        return [leaf if _is_array(leaf) else None for leaf in leaves]

    initialise = jax.jit(arrays)
    abstract = jax.eval_shape(initialise, jax.random.key(0))
    others, structure = known["leaves"], known["structure"]
    trained = [leaf is not None and jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in abstract]

    def init(key, batch):
        del batch
        leaves = initialise(key)
        params = [leaf if train else None for leaf, train in zip(leaves, trained, strict=True)]
        rest = [
            leaf
            for leaf, train in zip(leaves, trained, strict=True)
            if leaf is not None and not train
        ]
        return Variables(jax.tree.unflatten(structure, params), tuple(rest))

    def module_of(variables):
        params = iter(jax.tree.leaves(variables.params))
        rest = iter(variables.state)
        leaves = [
            next(params) if train else other if array is None else next(rest)
            for train, array, other in zip(trained, abstract, others, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves)

    def evaluate(variables, batch, key):
        logits, features = split_features(call(module_of(variables), batch["x"], key))
        return loss(logits, batch["y"], features=features)

    return Model(init, evaluate)


def _mapped(module, x, key):
    del key
    return jax.vmap(module)(x)


def _is_array(leaf):
    return isinstance(leaf, (jax.Array, np.ndarray))
