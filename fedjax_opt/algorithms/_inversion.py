"""SGD whose mean gradient is read off a displacement: for FedCM, SCAFFOLD-M, FedDC, GHBM in theory.

    (x - y) / (eta K)      the mean of the gradients along which a client went from x to y

is the inverse I of a triple that keeps no statistics. Its learning rate may be a schedule of the round:
the count that it reads is kept by the server, as a triple's statistics are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import Variables, trees
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.optimizers import Triple
from fedjax_opt.optimizers.triple import stands_still


class Contribution(NamedTuple):
    """What the server averages of an upload: y - x, and that divided by the client's own K."""

    delta: Variables
    delta_per_step: chex.ArrayTree


class Sum(NamedTuple):
    """A local optimiser's state, and the sum of what it was handed in the round."""

    inner: Any
    total: chex.ArrayTree


def check_plain(optimizer: Any, name: str) -> Triple:
    """Refuses an optimiser that cannot be inverted without more."""
    if isinstance(optimizer, Triple) and not optimizer.averages:
        return optimizer
    averaging = isinstance(optimizer, Triple)
    raise ValueError(
        f"{name} reads the mean gradient off a client's displacement: optimizer must be"
        " fedjax_opt.optimizers.sgd(...), or fedjax_opt.optimizers.chain(..., sgd(...)), got"
        f" {'an averaging triple (from_optax)' if averaging else type(optimizer).__name__}."
    )


def with_mean(
    optimizer: Any, tx: optax.GradientTransformation, start: Callable[..., Any]
) -> tuple[optax.GradientTransformation, Callable[..., Any], Partial]:
    """(tx, start, mean): where mean(y - x, local state, context) is the mean of what tx was handed.

    For SGD with a constant learning rate (no statistics, preprocessors or schedule) that is the
    displacement divided by -eta K; for anything else it is summed beside the optimiser's state.
    """
    inverts = isinstance(optimizer, Triple) and not (optimizer.averages or optimizer.preprocesses)
    if inverts and not jax.tree.leaves(jax.eval_shape(optimizer.init, jnp.zeros(1))):
        return tx, start, Partial(_mean_by_displacement, optimizer)
    summing = optax.GradientTransformation(tx.init, Partial(_update_and_add, tx.update))
    return summing, Partial(_start_with_sum, as_partial(start)), Partial(_mean_by_sum)


def _mean_by_displacement(optimizer, delta, local, context):
    divided = per_step(delta, context.num_steps).delta_per_step
    return mean_gradient(optimizer, local.optimizer, divided, otherwise=divided)


def _mean_by_sum(delta, local, context):
    return trees.scale(trees.reciprocal(context.num_steps), local.optimizer.total)


def _start_with_sum(start, message, client):
    local = start(message, client)
    return local._replace(optimizer=Sum(local.optimizer, trees.zeros_like(local.variables.params)))


def _update_and_add(update, direction, state, params):
    updates, inner = update(direction, state.inner, params)
    return updates, Sum(inner, trees.add(state.total, direction))


def init_plain(optimizer: Triple, params: chex.ArrayTree) -> Any:
    """The count of a schedule, or nothing; refuses an optimiser with statistics of its own."""
    stats = optimizer.init(params)
    if any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(stats)):
        raise ValueError(
            "optimizer must keep no statistics here, because the algorithm has a direction of its own:"
            " use fedjax_opt.optimizers.sgd, or a chain of preprocessors before it. For adaptive"
            " local steps see fedgbo, mime and mfl."
        )
    return stats


def per_step(upload: Variables, num_steps: jax.Array) -> Contribution:
    """Divides a displacement by its client's own number of steps, before anything is averaged."""
    return Contribution(upload, trees.scale(trees.reciprocal(num_steps), upload.params))


def mean_gradient(
    optimizer: Triple, stats: Any, delta_per_step: chex.ArrayTree, otherwise: chex.ArrayTree
) -> chex.ArrayTree:
    """-(displacement per step) / eta: the mean gradient that was used; `otherwise` where eta is 0."""
    zeros = trees.zeros_like(delta_per_step)
    found = optimizer.inverse(zeros, delta_per_step, stats, 1)
    still = stands_still(optimizer, stats, zeros)
    return found if still is None else trees.select(still, otherwise, found)
