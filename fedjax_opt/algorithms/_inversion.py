"""SGD whose mean gradient is read off a displacement: for FedCM, SCAFFOLD-M, FedDC, GHBM in theory.

    (x - y) / (eta K)      the mean of the gradients along which a client went from x to y

is the inverse I of a triple that keeps no statistics. Its learning rate may be a schedule of the round:
the count that it reads is kept by the server, as a triple's statistics are.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import Variables, trees
from fedjax_opt.optimizers import Triple


class Contribution(NamedTuple):
    """What the server averages of an upload: y - x, and that divided by the client's own K."""

    delta: Variables
    delta_per_step: Any


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


def is_sgd(optimizer: Any) -> bool:
    """Whether a displacement divided by -eta K is the mean of the very gradients that were taken.

    So it is for SGD with a constant learning rate: no statistics, no preprocessors, no schedule.
    """
    if not isinstance(optimizer, Triple) or optimizer.averages or optimizer.preprocesses:
        return False
    return not jax.tree.leaves(jax.eval_shape(optimizer.init, jnp.zeros(1)))


def init_plain(optimizer: Triple, params: Any) -> Any:
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


def mean_gradient(optimizer: Triple, stats: Any, delta_per_step: Any) -> Any:
    """-(displacement per step) / eta: the mean gradient that was used."""
    here = trees.zeros_like(delta_per_step)
    return optimizer.inverse(here, delta_per_step, stats, 1)


def displacement(optimizer: Triple, stats: Any, gradient: Any, num_steps: Any) -> Any:
    """-eta K g: how far K steps along g lead; the inverse of `mean_gradient`."""
    one = jax.tree.map(jnp.ones_like, gradient)
    per_eta = optimizer.inverse(one, trees.zeros_like(gradient), stats, 1)
    return jax.tree.map(lambda g, r: -jnp.asarray(num_steps, g.dtype) * g / r, gradient, per_eta)
