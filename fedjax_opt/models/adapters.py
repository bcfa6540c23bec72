"""Models from plain functions and from modules of Flax and Haiku.

All of them read a batch in the same way: which of its entries are inputs and labels, which of the
module's outputs the loss gets, and what the loss is.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import Aux, Model, Variables
from fedjax_opt.models.losses import cross_entropy

# A key of the batch, several of them, or a function of the batch; a tuple is several arguments.
Part = str | Sequence[str] | Callable[[Any], Any]
# (outputs, labels) -> a scalar, the loss of each example, or (loss, Aux).
Loss = Callable[[Any, Any], Any]

# Arguments that are true where a module is not training.
_OFF_IN_TRAINING = {"deterministic", "inference", "use_running_average", "eval", "evaluate"}


class Reading(TypedDict, total=False):
    """How an adapter reads a batch and what the module returns; `classifier` says what each is."""

    inputs: Part
    labels: Part
    output: str | Callable[[Any], Any] | None
    loss: Loss


class Reader(NamedTuple):
    """A `Reading` with its defaults."""

    inputs: Part = "x"
    labels: Part = "y"
    output: str | Callable[[Any], Any] | None = None
    loss: Loss = cross_entropy

    def arguments(self, batch: Any) -> tuple[Any, ...]:
        """What the module is called with."""
        found = _part("inputs", self.inputs, batch)
        return found if type(found) is tuple else (found,)

    def judge(
        self, returned: Any, batch: Any, state: chex.ArrayTree | None = None
    ) -> tuple[jax.Array, Aux]:
        """(loss, Aux) of what the module returned."""
        outputs, features = self._outputs(returned)
        value: Any = self.loss(outputs, _part("labels", self.labels, batch))
        has_aux = _is_pair(value) and isinstance(value[1], Aux)
        loss, aux = value if has_aux else (value, Aux())
        count = jnp.shape(jax.tree.leaves(batch)[0])[0]
        if not has_aux and jnp.shape(loss) == (count,):
            loss, aux = jnp.mean(loss), Aux(losses=loss)
        elif jnp.shape(loss) != ():
            raise ValueError(
                f"loss must return a scalar, the loss of each of the {count} examples, or (loss, Aux),"
                f" got {jax.tree.map(jnp.shape, value)}."
            )
        return loss, aux._replace(state=state, features=features)

    def _outputs(self, returned):
        """(what the loss gets, features)."""
        if callable(self.output):
            return self.output(returned), None
        if self.output is not None:
            is_mapping = isinstance(returned, Mapping)
            return returned[self.output] if is_mapping else getattr(returned, self.output), None
        if _is_pair(returned):
            return returned
        if isinstance(returned, (jax.Array, np.ndarray)):
            return returned, None
        keys = f" with the keys {list(returned)}" if isinstance(returned, Mapping) else ""
        raise ValueError(
            f"The model returns a {type(returned).__name__}{keys}, not logits or (logits, features):"
            " output= must say what the loss gets, a key, the name of an attribute or a function."
        )


def _is_pair(value: object) -> bool:
    return type(value) is tuple and len(value) == 2


def _part(name: str, part: Part, batch: Any) -> Any:
    if callable(part):
        return part(batch)
    if not isinstance(part, str):
        return tuple(_part(name, one, batch) for one in part)
    if isinstance(batch, Mapping) and part in batch:
        return batch[part]
    has = f"the keys {list(batch)}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
    raise ValueError(
        f"{name} must be keys of a batch or a function of it, got {part!r} for a batch of {has}."
    )


def classifier(
    init: Callable[[jax.Array, Any], Any], apply: Callable[..., Any], **reading: Unpack[Reading]
) -> Model:
    """A model from two plain functions: by default, with softmax cross-entropy and accuracy.

    Examples are mappings with inputs `x` and integer labels `y`, unless `reading` says otherwise:

    - `inputs`: a key of the batch, several for several arguments, or a function of the batch, which may
      return a tuple of them.
    - `labels`: likewise.
    - `output`: what the loss gets of a returned dictionary or object: a key, the name of an attribute,
      or a function of what is returned. By default that is the logits, or (logits, features), where the
      features are the penultimate activations `[B, ...]` that FedMAX and MOON look at.
    - `loss`: a function (outputs, labels) that returns a scalar, the loss of each example `[B]`, which
      makes minibatches exact that are only partly filled, or (loss, Aux). By default `cross_entropy`;
      `sequence_cross_entropy` for a language model.

    Args:
      init: (key, batch) -> params.
      apply: (params, x) -> logits `[B, classes]`; or (logits, features).
      **reading: any of the four above.

    Returns:
      A `Model`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import optax
      >>> import fedjax_opt as fo
      >>> model = fo.models.classifier(
      ...     init=lambda key, batch: jnp.zeros(batch["image"].shape[1]),
      ...     apply=lambda params, x: x @ params,
      ...     inputs="image", labels="size", loss=optax.squared_error,
      ... )
      >>> batch = {"image": jnp.ones((2, 3)), "size": jnp.array([0.0, 2.0])}
      >>> loss, aux = model.loss(model.init(jax.random.key(0), batch), batch, None)
      >>> float(loss), aux.losses.tolist()
      (2.0, [0.0, 4.0])
    """
    return Model(Partial(_init, init), Partial(_loss, apply, Reader(**reading)))


def _init(init, key, batch):
    return Variables(init(key, batch))


def _loss(apply, reader, variables, batch, key):
    del key
    return reader.judge(apply(variables.params, *reader.arguments(batch)), batch)


def from_linen(
    module: Any,
    train_argument: str | None = None,
    rngs: tuple[str, ...] = (),
    **reading: Unpack[Reading],
) -> Model:
    """A model from a Flax Linen module; batch statistics become non-trainable state.

    The collection `params` is trained. Every other one but `intermediates` is state: it changes in local
    steps, and is aggregated with the model or kept private.

    Args:
      module: a `flax.linen.Module`.
      train_argument: the name of the module's argument that says whether it is training, such as
        'train', or that it is not, such as 'deterministic'. With 'not ' before it, any name is of the
        second kind.
      rngs: the names of the random streams that the module uses in training, such as 'dropout'.
      **reading: `inputs`, `labels`, `output` and `loss`, as in `classifier`.

    Returns:
      A `Model`.

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
    reader, mode = Reader(**reading), _mode(train_argument)

    @jax.jit  # Else every operation of the forward pass would be compiled and run on its own.
    def initialise(key, arguments):
        return module.init(key, *arguments, **mode(False))

    def init(key, batch):
        collections = dict(initialise(key, reader.arguments(batch)))
        params = collections.pop("params")
        collections.pop("intermediates", None)  # What `sow` notes down is of one call alone.
        return Variables(params, collections)

    def evaluate(variables, batch, key):
        training = key is not None
        keys = jax.random.split(key, max(len(rngs), 1)) if training else ()
        mutable = list(variables.state) if training else []
        returned, state = module.apply(
            {"params": variables.params, **variables.state},
            *reader.arguments(batch),
            **mode(training),
            rngs=dict(zip(rngs, keys, strict=False)),
            mutable=mutable,
        )
        return reader.judge(returned, batch, dict(state) if mutable else None)

    return Model(init, evaluate)


def _mode(argument: str | None) -> Callable[[bool], dict[str, bool]]:
    """The keyword that tells a module whether it is training."""
    if argument is None:
        return lambda training: {}
    name = argument.removeprefix("not ")
    inverse = name in _OFF_IN_TRAINING or name != argument
    return lambda training: {name: training != inverse}


def from_haiku(
    transformed: Any, train_argument: str | None = None, **reading: Unpack[Reading]
) -> Model:
    """A model from a function that Haiku has transformed, with or without a state.

    Args:
      transformed: what `hk.transform` or `hk.transform_with_state` returns, also in
        `hk.without_apply_rng`. Without that, its key is None in evaluation.
      train_argument: the name of the function's argument that says whether it is training, as in
        `from_linen`.
      **reading: `inputs`, `labels`, `output` and `loss`, as in `classifier`.

    Returns:
      A `Model`, whose state is Haiku's.

    Example:
      >>> import haiku as hk
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.from_haiku(hk.transform(lambda x: hk.Linear(3)(x)))
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> model.init(jax.random.key(0), batch).params["linear"]["w"].shape
      (2, 3)
    """
    reader, mode = Reader(**reading), _mode(train_argument)
    names = list(inspect.signature(transformed.apply).parameters)
    has_state, has_key = "state" in names[:2], "rng" in names[:3]

    @jax.jit
    def initialise(key, arguments):
        return transformed.init(key, *arguments, **mode(True))

    def init(key, batch):
        found = initialise(key, reader.arguments(batch))
        return Variables(*found) if has_state else Variables(found)

    def evaluate(variables, batch, key):
        states = (variables.state,) if has_state else ()
        keys = (key,) if has_key else ()
        arguments = reader.arguments(batch)
        training = key is not None
        returned = transformed.apply(variables.params, *states, *keys, *arguments, **mode(training))
        returned, state = returned if has_state else (returned, None)
        return reader.judge(returned, batch, state if training else None)

    return Model(init, evaluate)


def from_nnx(create: Callable[[Any], Any], **reading: Unpack[Reading]) -> Model:
    """A model from a Flax NNX module; batch statistics become non-trainable state.

    `nnx.Param` variables are trained, all others but the random streams are state.
    Streams such as dropout's begin anew at every step, from that step's key.

    Args:
      create: (rngs) -> module, where `rngs` is an `nnx.Rngs`. The module's sizes are fixed by it alone.
      **reading: `inputs`, `labels`, `output` and `loss`, as in `classifier`.

    Returns:
      A `Model`. In training the module is in the mode of its `train()`, in
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

    reader = Reader(**reading)

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
        returned = module(*reader.arguments(batch))
        _, _, _, rest = split(module)
        return reader.judge(returned, batch, nnx.to_pure_dict(rest) if training else None)

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
    init, loss = Partial(_init_after, model.init, steps), Partial(_loss_after, model.loss, steps)
    return dataclasses.replace(model, init=init, loss=loss)


def _init_after(init, steps, key, batch):
    for step in steps:
        batch = step(batch, None)
    return init(key, batch)


def _loss_after(loss, steps, variables, batch, key, *frozen, **index):
    keys = [None] * (len(steps) + 1) if key is None else jax.random.split(key, len(steps) + 1)
    for i, step in enumerate(steps):
        batch = step(batch, keys[i])
    return loss(variables, batch, keys[len(steps)], *frozen, **index)
