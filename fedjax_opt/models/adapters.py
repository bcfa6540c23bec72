"""Models from plain functions and from modules of Flax and Haiku.

All of them read a batch in the same way: which of its entries are inputs and labels, which of the
module's outputs the loss gets, and what the loss is.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import Aux, Model, Variables
from fedjax_opt.models.losses import cross_entropy

# A key of the batch, a place in it, the name of an attribute, several of them, or a function of it; a
# tuple is several arguments.
Part = str | int | Sequence[str | int] | Callable[[Any], Any]
# (outputs, labels) -> a scalar, the loss of each example, or (loss, Aux).
Loss = Callable[[Any, Any], Any]

# Arguments that are true where a module is not training.
_OFF_IN_TRAINING = {"deterministic", "inference", "use_running_average", "eval", "evaluate"}


# What is taken of what a module returns: a key, a place, the name of an attribute, or a function.
Choice = str | int | Callable[[Any], Any]


class Reading(TypedDict, total=False):
    """How an adapter reads a batch and what the module returns; `classifier` says what each is."""

    inputs: Part
    labels: Part
    output: Choice | None
    features: Choice | None
    loss: Loss
    penalty: Callable[[Any], Any] | None
    axis_name: str | None


class Reader(NamedTuple):
    """A `Reading` with its defaults."""

    inputs: Part = "x"
    labels: Part = "y"
    output: Choice | None = None
    features: Choice | None = None
    loss: Loss = cross_entropy
    penalty: Callable[[Any], Any] | None = None
    axis_name: str | None = None

    def arguments(self, batch: Any) -> tuple[Any, ...]:
        """What the module is called with."""
        found = _part("inputs", self.inputs, batch)
        return found if type(found) is tuple else (found,)

    def evaluate(
        self, call: Callable[..., Any], variables: Variables, batch: Any, key: jax.Array | None
    ) -> tuple[jax.Array, Aux]:
        """The loss of a module, from call(variables, arguments, key) -> (returned, state, terms)."""

        returned, state, terms = self.under_axis(
            lambda _: call(variables, self.arguments(batch), key)
        )
        loss, aux = self._judge(returned, batch)
        for term in jax.tree.leaves(terms):
            loss = loss + jnp.sum(term)
        if self.penalty is not None:
            loss = loss + self.penalty(variables.params)
        features = None if self.features is None else _chosen("features", self.features, returned)
        return loss, aux._replace(state=None if key is None else state, features=features)

    def under_axis(self, compute: Callable[[Any], Any]) -> Any:
        """compute(None), in which the whole batch is the one entry of the axis that has the name."""
        if self.axis_name is None:
            return compute(None)
        found = jax.vmap(compute, axis_name=self.axis_name)(jnp.zeros(1))
        return jax.tree.map(lambda x: x[0], found)

    def _judge(self, returned: Any, batch: Any) -> tuple[Any, Aux]:
        outputs = returned
        if self.output is not None or self.features is not None:
            outputs = _chosen("output", 0 if self.output is None else self.output, returned)
        elif not isinstance(returned, (jax.Array, np.ndarray)):
            keys = f" with the keys {list(returned)}" if isinstance(returned, Mapping) else ""
            number = f" of {len(returned)}" if isinstance(returned, tuple) else ""
            raise ValueError(
                f"The model returns a {type(returned).__name__}{number}{keys}, not an array: output="
                " must say what the loss gets, a key, a place, the name of an attribute or a function;"
                " and features= the penultimate activations, if they are there (features=1 for (logits,"
                " features))."
            )
        value: Any = self.loss(outputs, _part("labels", self.labels, batch))
        if _has_aux(value):
            return value
        count = jnp.shape(jax.tree.leaves(batch)[0])[0]
        if jnp.shape(value) == (count,):
            return jnp.mean(value), Aux(losses=value)
        if jnp.shape(value) != ():
            raise ValueError(
                f"loss must return a scalar, the loss of each of the {count} examples, or (loss, Aux),"
                f" got {jax.tree.map(jnp.shape, value)}."
            )
        return value, Aux()


def _named(value: object) -> str:
    """A class, or what kind of thing something is."""
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"the class {kind}" if isinstance(value, type) else f"a {kind}"


def _has_aux(value: object) -> bool:
    """Whether a loss returned (loss, Aux)."""
    return type(value) is tuple and len(value) == 2 and isinstance(value[1], Aux)


def _chosen(name: str, choice: Any, returned: Any) -> Any:
    """A part of what a module returned."""
    if callable(choice):
        return choice(returned)
    try:
        is_container = isinstance(returned, (Mapping, tuple, list)) and not hasattr(
            returned, str(choice)
        )
        return returned[choice] if is_container else getattr(returned, choice)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        has = f" with the keys {list(returned)}" if isinstance(returned, Mapping) else ""
        raise ValueError(
            f"{name} must be a key, a place, the name of an attribute or a function of what the model"
            f" returns, a {type(returned).__name__}{has}, got {choice!r}."
        ) from error


def _part(name: str, part: Part, batch: Any) -> Any:
    if callable(part):
        return part(batch)
    if isinstance(part, Sequence) and not isinstance(part, str):
        return tuple(_part(name, one, batch) for one in part)
    is_array = isinstance(batch, (jax.Array, np.ndarray))
    if isinstance(batch, (Mapping, tuple, list)) and not is_array:
        places = batch if isinstance(batch, Mapping) else range(len(batch))
        if part in places:
            return batch[part]  # type: ignore[index]
    elif isinstance(part, str) and not is_array and hasattr(batch, part):
        return getattr(batch, part)
    kind = "one array" if is_array else f"a {type(batch).__name__}"
    has = f"the keys {list(batch)}" if isinstance(batch, Mapping) else kind
    raise ValueError(
        f"{name} must be keys of a batch, places in it, names of its attributes or a function of it, got"
        f" {part!r} for a batch of {has}."
    )


def classifier(
    init: Callable[[jax.Array, Any], Any], apply: Callable[..., Any], **reading: Unpack[Reading]
) -> Model:
    """A model from two plain functions: by default, with softmax cross-entropy and accuracy.

    Examples are mappings with inputs `x` and integer labels `y`, unless `reading` says otherwise:

    - `inputs`: a key of the batch, a place in a tuple, the name of an attribute, several for several
      arguments, or a function of the batch, which may return a tuple of them.
    - `labels`: likewise.
    - `output`: what the loss gets of a returned tuple, dictionary or object: a place, a key, the name of
      an attribute, or a function of what is returned.
    - `features`: likewise, the penultimate activations `[B, ...]` that FedMAX and MOON look at. With it,
      the output is the first of several unless `output` says otherwise.
    - `loss`: a function (outputs, labels) that returns a scalar, the loss of each example `[B]`, which
      makes minibatches exact that are only partly filled, or (loss, Aux). By default `cross_entropy`;
      `sequence_cross_entropy` for a language model.
    - `penalty`: a function of the params whose value is added to the loss, in evaluation too, such as
      `lambda params: 1e-4 * optax.tree.norm(params, squared=True)`.
    - `axis_name`: the name of the axis over which the module's normalisation averages. It has one entry:
      the statistics are those of a client's minibatch.

    Args:
      init: (key, batch) -> params.
      apply: (params, x) -> logits `[B, classes]`, or what `output` takes them from.
      **reading: any of those above.

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
    def call(variables, arguments, key):
        del key
        return apply(variables.params, *arguments), None, ()

    return reader.evaluate(call, variables, batch, key)


def from_linen(
    module: Any,
    train_argument: str | None = None,
    rngs: tuple[str, ...] = (),
    dropped: tuple[str, ...] = ("intermediates",),
    added: tuple[str, ...] = ("losses",),
    **reading: Unpack[Reading],
) -> Model:
    """A model from a Flax Linen module; batch statistics become non-trainable state.

    The collection `params` is trained. Others are state, which changes in local steps and is aggregated
    with the model or kept private, but for those in `dropped` and `added`.

    Args:
      module: a `flax.linen.Module`.
      train_argument: the name of the module's argument that says whether it is training, such as
        'train', or that it is not, such as 'deterministic'. With 'not ' before it, any name is of the
        second kind.
      rngs: the names of the random streams that the module uses, such as 'dropout'. In evaluation they
        are made of the minibatch's index, the same every time.
      dropped: collections that are of one call alone, such as what `sow` notes down.
      added: collections of such notes that are added to the loss, in evaluation too.
      **reading: `inputs`, `labels`, `output`, `loss` and the rest, as in `classifier`.

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
    if isinstance(module, type) or not (hasattr(module, "apply") and hasattr(module, "init")):
        raise ValueError(
            f"module must be an instance of a flax.linen.Module, got {_named(module)}."
        )
    reader, mode = Reader(**reading), _mode(train_argument)

    def streams(key):
        return {name: jax.random.fold_in(key, i) for i, name in enumerate(rngs)}

    @jax.jit  # Else every operation of the forward pass would be compiled and run on its own.
    def initialise(key, arguments):
        def begin(_):
            return module.init({**streams(key), "params": key}, *arguments, **mode(False))

        return reader.under_axis(begin)

    def init(key, batch):
        collections = dict(initialise(key, reader.arguments(batch)))
        params = collections.pop("params", {})
        return Variables(
            params, {k: x for k, x in collections.items() if k not in (*dropped, *added)}
        )

    def evaluate(variables, batch, key, *, index=0):
        def call(variables, arguments, key):
            source = jax.random.fold_in(jax.random.key(0), index) if key is None else key
            returned, changed = module.apply(
                {"params": variables.params, **variables.state},
                *arguments,
                **mode(key is not None),
                rngs=streams(source),
                mutable=[*added, *(variables.state if key is not None else ())],
            )
            terms = [changed.get(name, ()) for name in added]
            state = {name: x for name, x in changed.items() if name not in added}
            return returned, state or None, terms

        return reader.evaluate(call, variables, batch, key)

    return Model(init, evaluate, indexed=bool(rngs))


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
        `hk.without_apply_rng`. Without that, its key in evaluation is made of the minibatch's index.
      train_argument: the name of the function's argument that says whether it is training, as in
        `from_linen`.
      **reading: `inputs`, `labels`, `output`, `loss` and the rest, as in `classifier`.

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
    if not (hasattr(transformed, "apply") and hasattr(transformed, "init")):
        raise ValueError(
            "transformed must be what hk.transform or hk.transform_with_state returns, got"
            f" {_named(transformed)}."
        )
    reader, mode = Reader(**reading), _mode(train_argument)
    names = list(inspect.signature(transformed.apply).parameters)
    has_state, has_key = "state" in names[:2], "rng" in names[:3]

    @jax.jit
    def initialise(key, arguments):
        return reader.under_axis(lambda _: transformed.init(key, *arguments, **mode(True)))

    def init(key, batch):
        found = initialise(key, reader.arguments(batch))
        return Variables(*found) if has_state else Variables(found)

    def evaluate(variables, batch, key, *, index=0):
        def call(variables, arguments, key):
            source = jax.random.fold_in(jax.random.key(0), index) if key is None else key
            states = (variables.state,) if has_state else ()
            keys = (source,) if has_key else ()
            returned = transformed.apply(
                variables.params, *states, *keys, *arguments, **mode(key is not None)
            )
            return (*returned, ()) if has_state else (returned, None, ())

        return reader.evaluate(call, variables, batch, key)

    return Model(init, evaluate, indexed=has_key)


def from_nnx(
    create: Callable[[Any], Any],
    dropped: tuple[type, ...] = (),
    added: tuple[type, ...] = (),
    **reading: Unpack[Reading],
) -> Model:
    """A model from a Flax NNX module; batch statistics become non-trainable state.

    `nnx.Param` variables are trained, all others but the random streams and those in `dropped` and
    `added` are state. Streams such as dropout's begin anew at every step, from that step's key.

    Args:
      create: (rngs) -> module, where `rngs` is an `nnx.Rngs`. The module's sizes are fixed by it alone.
      dropped: types of variables that are of one call alone; `nnx.Intermediate` is always one.
      added: types of such variables whose values are added to the loss, in evaluation too.
      **reading: `inputs`, `labels`, `output`, `loss` and the rest, as in `classifier`.

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

    if isinstance(create, nnx.Module) or not callable(create):
        raise ValueError(
            "create must be a function of rngs that makes the module, such as its class, got"
            f" {_named(create)}."
        )
    reader = Reader(**reading)

    def split(module):
        """(graph, params, streams, added, dropped, state)."""
        return nnx.split(
            module,
            nnx.Param,
            nnx.RngState,
            nnx.Any(*added),
            nnx.Any(nnx.Intermediate, *dropped),
            ...,
        )

    # What is known without numbers: the structure, shapes and dtypes.
    graph, *abstract = split(nnx.eval_shape(lambda: create(nnx.Rngs(0))))

    @jax.jit
    def initialise(key):
        _, params, *_, rest = split(create(nnx.Rngs(key)))
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def init(key, batch):
        del batch
        return Variables(*initialise(key))

    def call(variables, arguments, key):
        params, streams, *notes, rest = abstract
        empty = [jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), note) for note in notes]
        module = nnx.merge(
            graph, _filled(params, variables.params),
            _fresh(streams, jax.random.key(0) if key is None else key), *empty,
            _filled(rest, variables.state),
        )  # fmt: skip
        module.eval() if key is None else module.train()
        returned = module(*arguments)
        _, _, _, terms, _, rest = split(module)
        return returned, nnx.to_pure_dict(rest), jax.tree.leaves(terms)

    def evaluate(variables, batch, key):
        return reader.evaluate(call, variables, batch, key)

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
