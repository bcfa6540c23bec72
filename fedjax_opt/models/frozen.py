"""Training a part of a model, or small matrices beside its weights, while the rest is frozen.

    y = x W + s (x A) B,  where W is frozen

Hu et al., LoRA: low-rank adaptation of large language models, 2022.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax

from fedjax_opt.core import Model, Variables, checks
from fedjax_opt.core.paths import matcher
from fedjax_opt.models import low_rank
from fedjax_opt.models.low_rank import Adapter

Where = str | Sequence[str] | Callable[[str, Any], bool]


def trainable(model: Model, variables: Variables, where: Where) -> Model:
    """The model with only some of its parameters trained, from given weights on.

    Args:
      model: the model.
      variables: its weights. Parameters that are not trained become `Model.frozen`: they are in no
        client's state, upload or checkpoint.
      where: which parameters are trained, by their path: patterns as in `fo.private`, such as
        'params/Dense_1/**', or a function (path, leaf) -> bool.

    Returns:
      A `Model` whose params have None in place of what is frozen. Its state is that of the model.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.mlp([8], num_classes=3)
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> last = fo.models.trainable(model, variables, "params/layer_1/**")
      >>> jax.tree.map(jnp.shape, last.init(jax.random.key(1), batch).params)
      {'layer_0': {'b': None, 'w': None}, 'layer_1': {'b': (3,), 'w': (8, 3)}}
    """
    paths, leaves, structure = _named_leaves(variables)
    chosen = [bool(matcher(where)(path, leaf)) for path, leaf in zip(paths, leaves, strict=True)]
    if not any(chosen):
        raise ValueError(
            f"where must choose parameters, got {where!r}, which is the path of none of {paths}."
        )
    params, base = (
        [leaf if mine == part else None for leaf, mine in zip(leaves, chosen, strict=True)]
        for part in (True, False)
    )
    start = Variables(jax.tree.unflatten(structure, params), variables.state)
    return _on_base(model, jax.tree.unflatten(structure, base), lambda key, batch: start)


def lora(
    model: Model, variables: Variables, rank: int, where: Where = "**", scale: float = 1.0
) -> Model:
    """The model with low-rank adapters beside weights that it multiplies with, which alone are trained.

    The model computes x W + scale (x A) B, in whatever library its loss is written. The product A B,
    which for clients that are computed side by side would be a matrix of W's size for each, is made
    only where W is used for something else too, such as looking up embeddings.

    Args:
      model: the model.
      variables: its weights, which are frozen but for the state.
      rank: the number of columns of A.
      where: which weights have adapters, by their path, as in `trainable`: 'params/**/query/kernel';
        by default all that the loss multiplies with.
      scale: s.

    Returns:
      A `Model` whose params have an adapter with the arrays `a` and `b` in place of such a weight, and
      None in place of all others. B starts at 0, so that the model starts as it was.

    Example:
      >>> import flax.linen as nn
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.from_linen(nn.Dense(3))
      >>> batch = {"x": jnp.ones((4, 8)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> adapted = fo.models.lora(model, variables, rank=2)
      >>> params = adapted.init(jax.random.key(1), batch).params
      >>> params["bias"], params["kernel"].a.shape, params["kernel"].b.shape
      (None, (8, 2), (2, 3))
    """
    checks.integer("rank", rank, low=1)
    is_chosen = matcher(where)
    paths, leaves, structure = _named_leaves(variables)

    def init(key, batch):
        def loss(params):
            return model.loss(Variables(params, variables.state), batch, None, *_own(model))

        found = low_rank.roles_of(loss, variables.params)
        chosen = [place for place in sorted(found) if is_chosen(paths[place], leaves[place])]
        if not chosen:
            raise ValueError(
                f"where must choose weights that the loss multiplies with, got {where!r}; these are"
                f" {[paths[place] for place in sorted(found)]}."
            )
        params: list[Any] = [None] * len(leaves)
        for i, place in enumerate(chosen):
            here = jax.random.fold_in(key, i)
            params[place] = Adapter.new(here, leaves[place], found[place], rank)
        return Variables(jax.tree.unflatten(structure, params), variables.state)

    return _on_base(model, variables.params, init, scale)


def merged(model: Model, variables: Variables) -> Variables:
    """Weights of the original model, from those that were trained beside its frozen ones.

    Args:
      model: what `trainable` or `lora` returned.
      variables: its variables, as a run returns them.

    Returns:
      The variables of the model that was given to `trainable` or `lora`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.mlp([8], num_classes=3)
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> last = fo.models.trainable(model, variables, "params/layer_1/**")
      >>> whole = fo.models.merged(last, last.init(jax.random.key(1), batch))
      >>> jax.tree.structure(whole) == jax.tree.structure(variables)
      True
    """
    if not isinstance(model.loss, _Beside):
        raise ValueError("model must be what trainable or lora returned, got another one.")
    base, _ = cast(tuple[Any, Any], model.frozen)
    whole = model.loss.together(variables.params, base)
    whole = jax.tree.map(low_rank.whole, whole, is_leaf=low_rank.is_weight)
    return variables._replace(params=whole)


def _named_leaves(variables):
    """(paths, leaves, structure) of parameters."""
    if not isinstance(variables, Variables):
        raise ValueError(
            "variables must be Variables, as model.init returns them, got a"
            f" {type(variables).__name__}: fo.Variables(params)."
        )
    found, structure = jax.tree_util.tree_flatten_with_path(variables.params)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found]
    return [f"params/{path}".rstrip("/") for path in paths], [leaf for _, leaf in found], structure


def _on_base(model, base, init, scale=1.0):
    """A model that reads the base and what the model itself has frozen."""
    loss, frozen = _Beside(model.loss, scale), (base, _own(model))
    return dataclasses.replace(model, init=init, loss=loss, frozen=frozen)


def _own(model):
    """What the loss of the model itself gets beside variables, batch and key."""
    return (model.frozen,) if jax.tree.leaves(model.frozen) else ()


@dataclasses.dataclass(frozen=True, eq=False)
class _Beside:
    """The loss of a model of which parameters, or parts of their sums, are in the base."""

    loss: Callable[..., Any]
    scale: float

    def together(self, params, base):
        """The parameters of the model itself."""

        def both(mine, frozen):
            if isinstance(mine, Adapter):
                return mine.beside(frozen, self.scale)
            return frozen if mine is None else mine

        is_leaf = lambda leaf: leaf is None or isinstance(leaf, Adapter)  # noqa: E731
        return jax.tree.map(both, params, base, is_leaf=is_leaf)

    def __call__(self, variables, batch, key, *frozen, **index):
        if not frozen:  # Where all is trained there is no base.
            return self.loss(variables, batch, key, **index)
        base, own = frozen[0]

        def loss(params):
            return self.loss(variables._replace(params=params), batch, key, *own, **index)

        return low_rank.run(loss, self.together(variables.params, base))
