"""What is trained: a model is two functions, and its variables are split in two.

    init(key, batch)                      -> Variables(params, state)
    loss(variables, batch, key[, frozen]) -> (scalar loss, Aux)

`params` are trained by gradients; `state` (batch statistics, counters) changes by being returned in
`Aux.state`. `key` is None in evaluation: dropout is off and batch statistics are read, not updated.
`frozen` is what the model reads and nobody changes, such as a pretrained base under adapters: it belongs
to the model, so it is in no state, message, upload or checkpoint.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.aliases import Batch, ModelState, Params, Tree
from fedjax_opt.core.calls import shapes
from fedjax_opt.core.struct import struct
from fedjax_opt.kernels import fast_convolutions
from fedjax_opt.kernels.replacement import Setting, check_setting


class Variables(NamedTuple):
    """All that a model holds: trainable `params` and non-trainable `state`.

    Attributes:
      params: a pytree of floating-point arrays, changed by gradients.
      state: a pytree of arrays that the loss itself updates; `()` where there are none.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> fo.Variables(params={"w": jnp.zeros(3)}).state
      ()
    """

    params: Params
    state: ModelState = ()


class Aux(NamedTuple):
    """What a loss returns beside its value; every field may be left out.

    Attributes:
      state: the new non-trainable state; None leaves it as it was.
      losses: the loss of each example, `[B]`. With it, a minibatch that is only partly filled is
        weighted exactly; without it, such a minibatch is refused.
      weights: what each example counts in the means of losses and metrics, `[B]`, not negative: its
        number of tokens, labels or nodes. The loss is then the weighted mean of `losses`. None: all
        count alike.
      metrics: a mapping of names to values, scalars or one per example `[B]`.
      features: the penultimate activations `[B, ...]`, for algorithms that look at them.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> fo.Aux(metrics={"accuracy": jnp.array([1.0, 0.0])}).state is None
      True
    """

    state: ModelState = None
    losses: jax.Array | None = None
    weights: jax.Array | None = None
    metrics: Mapping[str, chex.Numeric] = {}
    features: Tree = None


@struct("init", "loss", "indexed", "fast_convolutions")
class Model:
    """Two functions: how the variables begin, and what is to be made small.

    Attributes:
      init: (key, batch) -> Variables.
      loss: (variables, batch, key) -> (scalar loss, Aux). The loss is the mean over the batch, and
        `key` is None in evaluation.
      frozen: arrays that the loss reads and that nobody changes; it then gets them as a fourth argument.
        They are arguments of a program, and the functions are compiled in.
      indexed: whether the loss wants to know in evaluation which minibatch it sees: it then gets
        `index=`, of which one that is random makes a key.
      fast_convolutions: whether the loss's convolutions and pools are computed in ways that are fast in
        loops on CPUs, as in `fo.models.fast_convolutions`; 'winograd' allows one more.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def loss(variables, batch, key):
      ...     losses = jnp.square(batch["x"] @ variables.params["w"] - batch["y"])
      ...     return losses.mean(), fo.Aux(losses=losses)
      >>> model = fo.Model(
      ...     init=lambda key, batch: fo.Variables({"w": jnp.zeros(batch["x"].shape[1])}),
      ...     loss=loss,
      ... )
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.ones(4)}
      >>> value, aux = model.loss(model.init(jax.random.key(0), batch), batch, None)
      >>> float(value)
      1.0
    """

    init: Callable[[chex.PRNGKey, Batch], Variables]
    loss: Callable[..., tuple[jax.Array, Aux]]
    frozen: chex.ArrayTree = ()
    indexed: bool = False
    fast_convolutions: Setting = True

    def __post_init__(self):
        check_setting("fast_convolutions", self.fast_convolutions)


class Evaluation(NamedTuple):
    """The model on one minibatch: its loss, its next state, its metrics as scalars, its features.

    `weight` is what the minibatch counts in a mean over several: the sum of its examples' weights.
    """

    loss: jax.Array
    state: ModelState
    metrics: dict[str, jax.Array]
    features: Tree
    weight: chex.Numeric = 1


Penalty = Callable[[Variables, Evaluation], jax.Array]


class Objective(NamedTuple):
    """What a local step may ask about one minibatch: the loss there, and its gradient.

    The key and the weights of the examples are bound to the step, so two gradients taken by one step
    (Mime's at y and at x) see the same dropout masks and the same rows.

    Attributes:
      model: the model.
      key: this step's key; None in evaluation.
      mask: `[B]`, true for the rows that count; None where all do.
      penalties: functions of (variables, Evaluation) added to the loss before it is differentiated.
      transforms: functions of the gradient of all that, such as clipping, applied one after the other.
      index: in evaluation, which minibatch this is.
    """

    model: Model
    key: chex.PRNGKey | None = None
    mask: jax.Array | None = None
    penalties: tuple[Penalty, ...] = ()
    transforms: tuple[Callable[[Params], Params], ...] = ()
    index: chex.Numeric = 0

    def evaluate(self, variables: Variables, batch: Batch) -> Evaluation:
        """The loss of the model (penalties left out), its next state, metrics and features."""
        frozen = (self.model.frozen,) if jax.tree.leaves(self.model.frozen) else ()
        which = {"index": self.index} if self.model.indexed and self.key is None else {}
        try:
            compute = fast_convolutions(self.model.loss, self.model.fast_convolutions)
            found = compute(variables, batch, self.key, *frozen, **which)
        except Exception as error:
            where = " In evaluation its key is None." if self.key is None and not which else ""
            raise what_raised("model.loss", error, batch, where) from error
        loss, aux = _checked(found)
        weights = _weights(aux, batch, self.mask)
        if self.mask is not None:
            loss = _mask_loss(loss, aux, self.mask, weights)
        state = variables.state if aux.state is None else aux.state
        checks.same_structure("aux.state", state, variables.state, "that of variables.state")
        metrics = {
            name: _mean(name, x, self.mask, aux, weights) for name, x in sorted(aux.metrics.items())
        }
        return Evaluation(loss, state, metrics, aux.features, jnp.sum(weights))

    def gradient(self, variables: Variables, batch: Batch) -> tuple[Params, Evaluation]:
        """The gradient of loss and penalties with respect to `params`, transformed; the evaluation."""

        def total(params):
            here = variables._replace(params=params)
            evaluation = self.evaluate(here, batch)
            extra = sum(penalty(here, evaluation) for penalty in self.penalties)
            return evaluation.loss + extra, evaluation

        gradient, evaluation = jax.grad(total, has_aux=True)(variables.params)
        for transform in self.transforms:
            gradient = transform(gradient)
        return gradient, evaluation

    def with_penalty(self, penalty: Penalty) -> "Objective":
        """The objective with one more term; the loss that is reported stays the model's own."""
        return self._replace(penalties=(*self.penalties, penalty))

    def with_transform(self, transform: Callable[[Params], Params]) -> "Objective":
        """The objective whose gradients are transformed once more, after its penalties."""
        return self._replace(transforms=(*self.transforms, transform))


# What somebody else's error, which knows nothing of this library, is mended by.
_ADVICE = {
    "unbound axis name": "axis_name= of an adapter gives a module its axis",
    "needs PRNG for": "rngs= of from_linen names the random streams",
    r"argument: '(train|training|is_training|deterministic)'": "train_argument= of an adapter names it",
    "unexpected keyword argument": "train_argument= of an adapter must be an argument of the module",
    "is immutable": "train_argument= of an adapter says in evaluation that statistics are read",
}


def what_raised(name: str, error: Exception, batch: Batch, where: str = "") -> ValueError:
    """An error inside of a user's function: JAX and Python name neither it nor the examples."""
    text = str(error).rstrip(".")
    advice = [f" {advice}." for sign, advice in _ADVICE.items() if re.search(sign, text)]
    return ValueError(
        f"{name} raised {type(error).__name__}: {text}. It was called with a minibatch of"
        f" {shapes(batch)}.{where}{''.join(advice[:1])}"
    )


def _checked(found: Tree) -> tuple[jax.Array, Aux]:
    """What a loss returned, which must be (loss, Aux)."""
    if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[1], Aux):
        raise ValueError(
            f"model.loss must return (loss, Aux), got {shapes(found)}. A loss that returns a scalar, or"
            " (scalar, a mapping), becomes a model by fo.models.from_loss."
        )
    loss, aux = cast(tuple[jax.Array, Aux], found)
    if not isinstance(loss, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        raise ValueError(
            f"model.loss must return a scalar floating-point loss, got {shapes(loss)}."
        )
    if not isinstance(aux.metrics, Mapping) or not all(isinstance(n, str) for n in aux.metrics):
        raise ValueError(
            f"aux.metrics must be a mapping of names to numbers, got {shapes(aux.metrics)}."
        )
    if jnp.shape(loss) != () or not jnp.issubdtype(jnp.result_type(loss), jnp.floating):
        raise ValueError(
            "model.loss must return a scalar floating-point loss, the mean over the batch; got"
            f" {shapes(loss)}. The loss of each example goes into Aux(losses=...)."
        )
    return loss, aux


# What a loss needs on a minibatch that is only partly filled.
_PARTLY_FILLED = (
    "A minibatch may be only partly filled here, and {} then needs one number for each example: return"
    " {} from model.loss (and Aux(weights=...) where examples do not count alike), or leave such"
    " minibatches out of the rounds: Federation(remainder='drop')."
)


def _weights(aux: Aux, batch: Batch, mask: jax.Array | None) -> jax.Array:
    """What each row of the minibatch counts; 0 for one that only fills it up."""
    leaves = jax.tree.leaves(batch) if mask is None else [mask]
    rows = jnp.shape(leaves[0])[:1] if leaves else ()
    dtype = jnp.result_type(float)
    if aux.losses is not None:
        checks.one_for_each("aux.losses", aux.losses, rows, "example")
    if aux.weights is None:
        return jnp.ones(rows, dtype) if mask is None else mask.astype(dtype)
    checks.one_for_each("aux.weights", aux.weights, rows, "example")
    if aux.losses is None:
        raise ValueError("aux.weights needs aux.losses, the loss of each example, got None.")
    weights = jnp.asarray(aux.weights, dtype)
    return weights if mask is None else jnp.where(mask, weights, 0)


def _mask_loss(loss: jax.Array, aux: Aux, mask: jax.Array, weights: jax.Array) -> jax.Array:
    """The loss with only the masked rows in its mean; whatever else is in it (decay, say) stays."""
    if aux.losses is None:
        raise ValueError(_PARTLY_FILLED.format("its exact mean", "Aux(losses=...)"))
    if aux.weights is None:
        return loss + mean_over_rows(aux.losses, mask) - jnp.mean(aux.losses)
    everybody = jnp.asarray(aux.weights, weights.dtype)
    return loss + _weighted(aux.losses, weights) - _weighted(aux.losses, everybody)


def mean_over_rows(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """The mean over the rows of a minibatch that count."""
    if mask is None:
        return jnp.mean(values)
    # Rows that do not count are cut before the sum: a NaN there must not reach the mean.
    total = jnp.sum(jnp.where(mask, values, 0))
    return total / jnp.maximum(jnp.sum(mask, dtype=values.dtype), 1)


def _weighted(values: jax.Array, weights: jax.Array) -> jax.Array:
    """The mean over the rows by their weights."""
    weights = weights.astype(values.dtype)
    total, weight = jnp.sum(jnp.where(weights > 0, weights * values, 0)), jnp.sum(weights)
    return total / jnp.where(weight > 0, weight, 1)


def _mean(
    name: str, values: chex.Numeric, mask: jax.Array | None, aux: Aux, weights: jax.Array
) -> jax.Array:
    values = jnp.asarray(values)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        values = values.astype(jnp.result_type(float))
    if values.ndim == 0:
        if mask is not None:
            raise ValueError(
                _PARTLY_FILLED.format(f"the metric {name!r}", "Aux(metrics=...) of shape [B]")
            )
        return values
    if mask is not None or aux.weights is not None:
        checks.one_for_each(f"metric {name!r}", values, weights.shape, "example")
    return mean_over_rows(values, mask) if aux.weights is None else _weighted(values, weights)
