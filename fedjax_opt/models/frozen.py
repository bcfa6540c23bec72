"""Training a part of a model, or small matrices beside its weights, while the rest is frozen.

    y = x W + s (x A) B,  where W is frozen

Hu et al., LoRA: low-rank adaptation of large language models, 2022.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import Model, Variables, checks
from fedjax_opt.core.paths import matcher

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
    is_chosen = matcher(where)

    def part(chosen):
        def keep(path, leaf):
            path = "params/" + jax.tree_util.keystr(path, simple=True, separator="/")
            return leaf if bool(is_chosen(path, leaf)) == chosen else None

        return jax.tree_util.tree_map_with_path(keep, variables.params)

    params = part(True)
    if not jax.tree.leaves(params):
        raise ValueError(f"where must choose parameters, got {where!r}, which is the path of none.")
    return _on_base(
        model, part(False), _Part(model.loss), lambda key, batch: Variables(params, variables.state)
    )


def lora(
    model: Model, variables: Variables, rank: int, where: Where = "**", scale: float = 1.0
) -> Model:
    """The model of a Flax Linen module with low-rank adapters, which alone are trained.

    A layer `nn.Dense` or `nn.DenseGeneral` computes x W + scale (x A) B. The product A B is never made,
    which for clients that are computed side by side would be a matrix of W's size for each.

    Args:
      model: a model whose loss calls a Linen module, as that of `from_linen`.
      variables: its weights, which are frozen but for the state.
      rank: the number of columns of A.
      where: which kernels are adapted, by their path, such as 'params/**/query/kernel'; all by default.
      scale: s.

    Returns:
      A `Model` whose params are {path of a layer: {"a": A, "b": B}}. B starts at 0, so that the model
      starts as it was.

    Example:
      >>> import flax.linen as nn
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.from_linen(nn.Dense(3))
      >>> batch = {"x": jnp.ones((4, 8)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> adapted = fo.models.lora(model, variables, rank=2)
      >>> params = adapted.init(jax.random.key(1), batch).params
      >>> {name: leaf.shape for name, leaf in params[""].items()}
      {'a': (8, 2), 'b': (2, 3)}
    """
    checks.integer("rank", rank, low=1)
    is_chosen = matcher(where)

    def init(key, batch):
        sizes = _dense_sizes(model, variables, batch)
        chosen = [
            name
            for name in sizes
            if is_chosen("/".join(filter(None, ("params", name, "kernel"))), None)
        ]
        if not chosen:
            raise ValueError(
                f"where must choose kernels of nn.Dense or nn.DenseGeneral, got {where!r}; the model has"
                f" them in {sorted(sizes)}."
            )
        params = {}
        for i, name in enumerate(chosen):
            inputs, outputs, dtype = sizes[name]
            a = jax.random.normal(jax.random.fold_in(key, i), (inputs, rank), dtype)
            params[name] = {"a": a * inputs**-0.5, "b": jnp.zeros((rank, outputs), dtype)}
        return Variables(params, variables.state)

    return _on_base(model, variables.params, _Lora(model.loss, scale), init)


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
    if not isinstance(model.loss, (_Part, _Lora)):
        raise ValueError("model must be what trainable or lora returned, got another one.")
    base, _ = cast(tuple[Any, Any], model.frozen)
    return variables._replace(params=model.loss.merged(variables.params, base))


def _on_base(model: Model, base: chex.ArrayTree, loss: Any, init: Callable[..., Any]) -> Model:
    """A model that reads the base and what the model itself has frozen."""
    return dataclasses.replace(model, init=init, loss=loss, frozen=(base, _own(model)))


def _own(model):
    """What the loss of the model itself gets beside variables, batch and key."""
    return (model.frozen,) if jax.tree.leaves(model.frozen) else ()


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The loss of a model of which some parameters are in the base."""

    loss: Callable[..., Any]

    def merged(self, params, base):
        def fill(mine, frozen):
            return frozen if mine is None else mine

        return jax.tree.map(fill, params, base, is_leaf=lambda leaf: leaf is None)

    def __call__(self, variables, batch, key, *frozen, **index):
        if not frozen:  # Where all is trained there is no base.
            return self.loss(variables, batch, key, **index)
        base, own = frozen[0]
        whole = variables._replace(params=self.merged(variables.params, base))
        return self.loss(whole, batch, key, *own, **index)


@dataclasses.dataclass(frozen=True, eq=False)
class _Lora:
    """The loss of a model whose dense layers have adapters."""

    loss: Callable[..., Any]
    scale: float

    def merged(self, params, base):
        def add(path, leaf):
            *layer, name = (entry.key for entry in path)
            adapter = params.get("/".join(layer)) if name == "kernel" else None
            if adapter is None:
                return leaf
            return leaf + self.scale * (adapter["a"] @ adapter["b"]).reshape(leaf.shape)

        return jax.tree_util.tree_map_with_path(add, base)

    def __call__(self, variables, batch, key, frozen, **index):
        base, own = frozen

        def adapted(name, layer, x, y):
            if name not in variables.params:
                return y
            a, b = variables.params[name]["a"], variables.params[name]["b"]
            x = x.reshape(*x.shape[: x.ndim - _num_inputs(layer)], -1).astype(y.dtype)
            return y + self.scale * ((x @ a) @ b).reshape(y.shape)

        with _each_dense_layer(adapted):
            return self.loss(variables._replace(params=base), batch, key, *own, **index)


def _dense_sizes(model, variables, batch):
    """{path of a dense layer: (inputs, outputs, dtype of the kernel)}, of those that the loss calls."""
    sizes = {}

    def note(name, layer, x, y):
        kernel = layer.variables["params"]["kernel"]
        inputs = math.prod(kernel.shape[: _num_inputs(layer)])
        sizes[name] = inputs, kernel.size // inputs, kernel.dtype
        return y

    with _each_dense_layer(note):
        jax.eval_shape(lambda *given: model.loss(*given, None, *_own(model)), variables, batch)
    return sizes


def _num_inputs(layer):
    """How many axes, the last ones, a dense layer contracts."""
    axes = getattr(layer, "axis", -1)
    return len(axes) if isinstance(axes, Sequence) else 1


def _each_dense_layer(function):
    """A context in which Linen's dense layers return function(path, layer, input, output)."""
    import flax.linen as nn

    def interceptor(call, args, kwargs, context):
        y = call(*args, **kwargs)
        is_dense = isinstance(context.module, (nn.Dense, nn.DenseGeneral))
        if not is_dense or context.method_name != "__call__":
            return y
        x = args[0] if args else kwargs["inputs"]
        return function("/".join(context.module.path), context.module, x, y)

    return nn.intercept_methods(interceptor)
