"""Triples from optax transformations: a preprocessor in front, or a whole optimiser adopted."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import Triple, as_pytree, local_form, moving, moving_init


class ChainStats(NamedTuple):
    """The states of the preprocessors, frozen like the statistics of the triple behind them."""

    preprocessor: Any
    triple: Any


@constructor
def chain(*transformations: optax.GradientTransformation) -> Triple:
    """Puts optax transformations (clipping, weight decay, ...) before a triple.

    With P the preprocessors, the local step is `U(P(g), s)`. The inverse undoes U alone, so it
    returns the mean of `P(g)`: the gradients as the optimiser used them, clipped or with the decay
    added. That mean is what `track` must be given, and is what FedGBO gives it. A preprocessor's own
    state is frozen as the statistics are: it is read, and never changed by `update`.

    Args:
      *transformations: any number of optax transformations, and last a `Triple`.

    Returns:
      A `Triple`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.chain(optax.clip(1.0), fo.optimizers.sgd(0.5))
      >>> x = jnp.zeros(1)
      >>> updates, stats = opt.update(jnp.array([8.0]), opt.init(x), x)
      >>> float(opt.inverse(x, x + updates, stats, 1)[0])        # the clipped gradient
      1.0
    """
    *before, triple = transformations or (None,)
    if not isinstance(triple, Triple):
        raise ValueError(f"The last argument of chain must be a Triple, got {triple!r}.")
    for position, tx in enumerate(before):
        if not isinstance(tx, optax.GradientTransformation):
            raise ValueError(
                f"Argument {position} of chain must be an optax.GradientTransformation, got {tx!r}."
            )
    before = [as_pytree(tx) for tx in before]
    return Triple(
        init=Partial(_chain_init, before, moving_init(triple)),
        update=Partial(_chain_update, before, triple.update),
        track=Partial(_chain_track, triple.track),
        inverse=Partial(_chain_inverse, triple.inverse),
        moving_update=Partial(_chain_moving_update, before, moving(triple).update),
        averages=triple.averages,
        preprocesses=bool(before) or triple.preprocesses,
    )


def _preprocess(before, grads, states, params):
    new_states = []
    for tx, state in zip(before, states, strict=True):
        grads, state = tx.update(grads, state, params)
        new_states.append(state)
    return grads, tuple(new_states)


def _chain_init(before, init, params):
    return ChainStats(tuple(tx.init(params) for tx in before), init(params))


def _chain_update(before, update, grads, stats, params=None):
    grads, _ = _preprocess(before, grads, stats.preprocessor, params)
    updates, triple_stats = update(grads, stats.triple, params)
    return updates, ChainStats(stats.preprocessor, triple_stats)


def _chain_track(track, grads, stats, params=None):
    return ChainStats(stats.preprocessor, track(grads, stats.triple, params))


def _chain_inverse(inverse, old_params, new_params, stats, num_steps):
    return inverse(old_params, new_params, stats.triple, num_steps)


def _chain_moving_update(before, update, grads, stats, params=None):
    grads, states = _preprocess(before, grads, stats.preprocessor, params)
    updates, triple_stats = update(grads, stats.triple, params)
    return updates, ChainStats(states, triple_stats)


class AveragingStats(NamedTuple):
    """An optax state, and the sum and number of the gradients seen since it was tracked."""

    inner: Any
    gradient_sum: Any
    gradient_count: jax.Array


@constructor
def from_optax(tx: optax.GradientTransformation) -> Triple:
    """The averaging triple: any optax transformation, with the mean gradient kept instead of solved.

    `update` applies `tx` to the state it was handed and never moves it, and adds the gradient to a
    sum; `inverse` returns that sum divided by the number of steps; `track` gives the mean gradient to
    `tx`, keeps its new state and empties the sum. The mean has to travel beside the model, which
    doubles the upload: the alternative to inversion that the FedGBO paper describes.

    A transformation's own update may mix the local gradient into the statistics that it reads
    (`optax.adam` does, with bias correction): it is then not frozen in the sense of FedGBO. Use the
    triples of this package where that matters.

    Args:
      tx: an optax transformation.

    Returns:
      A `Triple` with `averages` set.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.from_optax(optax.lion(0.1))
      >>> x = jnp.zeros(1)
      >>> stats = opt.init(x)
      >>> for g in (1.0, 3.0):
      ...     updates, stats = opt.update(jnp.array([g]), stats, x)
      >>> float(opt.inverse(x, x + updates, stats, 2)[0])
      2.0
    """
    tx = local_form(tx)
    return Triple(
        init=Partial(_averaging_init, tx.init),
        update=Partial(_averaging_update, tx.update),
        track=Partial(_averaging_track, tx.update),
        inverse=_averaging_inverse,
        moving_update=Partial(_averaging_moving_update, tx.update),
        averages=True,
    )


def _averaging_init(init, params):
    zeros = jax.tree.map(jnp.zeros_like, params)
    return AveragingStats(init(params), zeros, jnp.zeros((), jnp.int32))


def _averaging_update(update, grads, stats, params=None):
    updates, _ = update(grads, stats.inner, params)
    total = trees.add(stats.gradient_sum, grads)
    return updates, AveragingStats(stats.inner, total, stats.gradient_count + 1)


def _averaging_track(update, grads, stats, params=None):
    _, inner = update(grads, stats.inner, params)
    zeros = jax.tree.map(jnp.zeros_like, stats.gradient_sum)
    return AveragingStats(inner, zeros, jnp.zeros_like(stats.gradient_count))


def _averaging_moving_update(update, grads, stats, params=None):
    updates, inner = update(grads, stats.inner, params)
    return updates, stats._replace(inner=inner)


def _averaging_inverse(old_params, new_params, stats, num_steps):
    count = jnp.maximum(stats.gradient_count, 1)
    return jax.tree.map(lambda g: g / count.astype(g.dtype), stats.gradient_sum)
