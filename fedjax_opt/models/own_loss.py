"""A program's own loss as a `Model`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import Aux, Model, Variables, checks
from fedjax_opt.models.trees import is_array, pack, unpack

Order = Literal["last", "second", "none"]

# Names of arguments that say what is meant: a loss that has one in another place is refused.
_MEANT = {
    "params": {"params", "parameters", "weights", "theta"},
    "state": {"state", "states", "batch_stats", "net_state", "model_state", "bn_state", "stats"},
    "batch": {"batch", "data", "examples"},
    "key": {"key", "rng", "rng_key", "prng", "prng_key", "rngs", "seed"},
    "something else": {
        "y", "ys", "label", "labels", "target", "targets", "y_true", "train", "training",
        "is_training", "deterministic",
    },
}  # fmt: skip


def from_loss(
    init_or_params: Callable[..., Any] | chex.ArrayTree,
    loss: Callable[..., Any],
    *,
    stateful: bool = False,
    key: Order | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    evaluation: Callable[..., Any] | None = None,
) -> Model:
    """A program's own loss as a model: `loss(params, batch)` or `loss(params, batch, key)`.

    The loss returns a scalar, or (scalar, aux) as for `jax.value_and_grad(..., has_aux=True)`. With
    `stateful=True` it is `loss(params, state, batch[, key])` and returns (scalar, state) or (scalar,
    (state, aux)). Numbers in aux that are scalars or `[B]` become metrics, named by their place in it
    ('aux' for a number alone), and all else is left out; an `Aux` is taken as it is. If it has the loss
    of each example, minibatches that are only partly filled get their exact mean.

    Args:
      init_or_params: a function of (key) or (key, batch) that returns params, or (params, state) with
        `stateful=True`; or these themselves, where the weights are given. They are any pytree with
        arrays among its leaves, an Equinox module too: then its floating-point arrays are trained, other
        arrays are kept in the state, and all else is part of the program.
      loss: the loss. It gets a key where its arguments leave room for one more.
      stateful: whether the loss takes a state after the params, and returns the next one.
      key: 'last' passes a key after the batch, 'second' before it, as Haiku has it, 'none' passes none.
        None reads it off the arguments, and refuses a loss that can be read in two ways.
      reduction: what the loss is over the examples of its batch. With 'sum' a step follows the gradient
        of the sum, as in the program itself, and evaluation divides it by the number of examples.
      evaluation: a loss that takes its place in evaluation, with dropout off, say. Without one the loss
        itself is called; the key that it may need is then made of the minibatch's index, so that it is
        the same in every evaluation.

    Returns:
      A `Model`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def loss(params, batch):
      ...     return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)
      >>> model = fo.models.from_loss({"w": jnp.zeros(2)}, loss)
      >>> value, aux = model.loss(fo.Variables({"w": jnp.ones(2)}),
      ...     {"x": jnp.ones((4, 2)), "y": jnp.ones(4)}, None)
      >>> float(value)
      1.0
    """
    checks.choice("reduction", reduction, ("mean", "sum"))
    if key is not None:
        checks.choice("key", key, ("last", "second", "none"))
    if not isinstance(stateful, bool):
        raise ValueError(f"stateful must be True or False, got {stateful!r}.")
    training = _Call(loss, _order_of("loss", loss, stateful, key), stateful, reduction == "sum")
    testing = training
    if evaluation is not None:
        order = _order_of("evaluation", evaluation, stateful, key)
        testing = training._replace(function=evaluation, order=order)
    begin = _beginning(init_or_params, stateful)

    def init(key, batch):
        return _variables(begin(key, batch), stateful)

    def evaluate(variables, batch, key, *, index=0):
        if key is not None:
            return _called(training, variables, batch, key)
        found, aux = _called(
            testing, variables, batch, jax.random.fold_in(jax.random.key(0), index)
        )
        return found / _count(batch) if testing.sums else found, aux

    return Model(init, evaluate, indexed=testing.order != "none")


class _Call(NamedTuple):
    """How a user's loss is called."""

    function: Callable[..., Any]
    order: Order
    stateful: bool
    sums: bool


def _called(call, variables, batch, key) -> tuple[Any, Aux]:
    params, state, packed = unpack(variables)
    keys = () if call.order == "none" else (key,)
    states = (state,) if call.stateful else ()
    before, after = (keys, ()) if call.order == "second" else ((), keys)
    found = call.function(params, *states, *before, batch, *after)
    loss, aux = _taken_apart(found, state, call.stateful, _count(batch))
    if aux.state is not None:
        aux = aux._replace(state=packed(aux.state))
    if not (is_array(loss) or isinstance(loss, (bool, int, float, complex))):
        kind = type(loss).__name__
        raise ValueError(
            f"loss must return a scalar or (scalar, aux), the scalar first, got a {kind}."
        )
    # The exact mean of a partly filled minibatch is no sum: such minibatches are then refused.
    return loss, aux._replace(losses=None) if call.sums else aux


def _taken_apart(found: Any, state: Any, stateful: bool, count: int) -> tuple[Any, Aux]:
    """(loss, Aux) from what the user's loss returned."""
    if isinstance(found, tuple) and len(found) == 2:
        loss, rest = found
        if isinstance(rest, Aux):
            return loss, rest
        if not stateful:
            return loss, Aux(metrics=_metrics(rest, count))
        pair = isinstance(rest, tuple) and len(rest) == 2
        if pair and jax.tree.structure(rest) != jax.tree.structure(state):
            new, aux = rest
            aux = aux if isinstance(aux, Aux) else Aux(metrics=_metrics(aux, count))
            return loss, aux._replace(state=new)
        return loss, Aux(state=rest)  # A state that does not fit is refused where it is compared.
    if not stateful and not isinstance(found, tuple):
        return found, Aux()
    wanted = (
        "(scalar, state) or (scalar, (state, aux))" if stateful else "a scalar or (scalar, aux)"
    )
    got = f"a tuple of {len(found)}" if isinstance(found, tuple) else f"a {type(found).__name__}"
    raise ValueError(f"loss must return {wanted}, got {got}.")


def _metrics(aux: chex.ArrayTree, count: int) -> dict[str, chex.Array]:
    """The numbers of an aux that are scalars or one for each example, by their place in it."""
    metrics = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(aux):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "aux"
        is_number = isinstance(leaf, (bool, int, float)) or (
            is_array(leaf) and _is_number(leaf.dtype)
        )
        if is_number and jnp.shape(leaf) in ((), (count,)) and name != "loss":
            metrics[name] = leaf
    return metrics


def _is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _count(batch: chex.ArrayTree) -> int:
    return jnp.shape(jax.tree.leaves(batch)[0])[0]


# How the weights begin ------------------------------------------------------------------------


def _beginning(given: Any, stateful: bool) -> Callable[..., Any]:
    """A function of (key, batch) from what the user gave: a function of fewer, or weights."""
    if any(map(is_array, jax.tree.leaves(given))):
        _variables(given, stateful)  # Refused here rather than in the first round.
        return lambda key, batch: given
    if not callable(given):
        raise ValueError(
            "init_or_params must be a function of (key) or (key, batch), or a pytree with arrays among"
            f" its leaves, got {type(given).__name__}."
        )
    required, most = _arguments("init_or_params", given)
    if required <= 1 and len(most) == 1:
        return lambda key, batch: given(key)
    if required <= 2 <= len(most):
        return given if required == 2 or most[1] == "*" else lambda key, batch: given(key)
    raise ValueError(
        f"init_or_params must take (key) or (key, batch), got a function of ({', '.join(most)})."
    )


def _variables(given: Any, stateful: bool) -> Variables:
    pair = isinstance(given, tuple) and len(given) == 2
    if stateful and not pair:
        raise ValueError(
            "With stateful=True init_or_params must give (params, state), got"
            f" {type(given).__name__}."
        )
    tree, state = given if stateful or isinstance(given, Variables) else (given, ())
    found = pack(tree, jax.tree.map(jnp.asarray, state))
    if not jax.tree.leaves(found.params):
        kinds = sorted({str(leaf.dtype) for leaf in jax.tree.leaves(tree) if is_array(leaf)})
        raise ValueError(
            "init_or_params must give at least one floating-point array, which is trained, got"
            f" {', '.join(kinds) or repr(tree)}."
        )
    return found


# How the loss is called -----------------------------------------------------------------------


def _arguments(name: str, function: Callable[..., Any]) -> tuple[int, list[str]]:
    """How many arguments by position a function needs, and the names of all; '*' for any number more."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0, ["*"] * 4
    needed = [p.name for p in parameters if p.kind == p.KEYWORD_ONLY and p.default is p.empty]
    if needed:
        raise ValueError(
            f"{name} has an argument {needed[0]!r} that goes by name alone: bind it,"
            f" functools.partial({name}, {needed[0]}=...)."
        )
    by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # An argument whose default is a number or a word is a setting, which stays as it is.
    while by_position and by_position[-1].default not in (inspect.Parameter.empty, None):
        by_position.pop()
    names = [p.name for p in by_position]
    if any(p.kind == p.VAR_POSITIONAL for p in parameters):
        names += ["*"] * 4
    return sum(p.default is p.empty for p in by_position), names


def _order_of(name: str, function: Any, stateful: bool, key: Order | None) -> Order:
    """Where the key goes, from the loss's arguments where the user does not say."""
    if not callable(function):
        raise ValueError(f"{name} must be a function, got {type(function).__name__}.")
    required, names = _arguments(name, function)
    fitting = [
        (is_stateful, order)
        for is_stateful in (False, True)
        for order in ("none", "last", "second")
        if required <= len(_roles(is_stateful, order)) <= len(names)
    ]
    if key is not None:
        if (stateful, key) in fitting:
            return key
    elif required == len(names):
        for order in ("none", "last"):
            if (stateful, order) in fitting and not _contradicts(names, _roles(stateful, order)):
                return order
    elif (stateful, "last") in fitting:
        # One argument has None as its default: it is the key if its name says so.
        roles = _roles(stateful, "last")
        if names[len(roles) - 1] in _MEANT["key"] and not _contradicts(names, roles):
            return "last"
    raise ValueError(_refusal(name, names, stateful, key, fitting))


def _roles(stateful: bool, order: str) -> list[str]:
    before, after = ["key"] * (order == "second"), ["key"] * (order == "last")
    return ["params", *["state"] * stateful, *before, "batch", *after]


def _contradicts(names: Sequence[str], roles: Sequence[str]) -> bool:
    return any(
        name in meant and role != kind
        for name, role in zip(names, roles, strict=False)
        for kind, meant in _MEANT.items()
    )


def _refusal(name, names, stateful, key, fitting):
    shown = ", ".join(dict.fromkeys("*args" if one == "*" else one for one in names))
    calls = [
        f"stateful={is_stateful}, key={order!r} calls"
        f" {name}({', '.join(_roles(is_stateful, order))})"
        for is_stateful, order in fitting
    ]
    if not calls:
        return (
            f"{name}({shown}) fits none of {name}(params, batch), {name}(params, batch, key),"
            f" {name}(params, state, batch) and {name}(params, state, batch, key). A batch is one"
            f" argument: lambda params, batch: {name}(params, *batch); others are bound with"
            " functools.partial."
        )
    asked = f"stateful={stateful}" + ("" if key is None else f", key={key!r}")
    why = f"does not fit {asked}" if key is not None else "can be read in more than one way"
    return (
        f"{name}({shown}) {why}. Say which is meant: {'; '.join(calls)}. A batch is one argument: if"
        f" inputs and labels are two, give lambda params, batch: {name}(params, *batch)."
    )
