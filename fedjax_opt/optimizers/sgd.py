"""Stochastic gradient descent as a triple.

U(g)             = eta g            (subtracted from the model)
T(g)             = nothing
I(x, x+, K)      = (x - x+) / (eta K)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.optimizers import learning_rate as rates
from fedjax_opt.optimizers.triple import Triple


class SgdStats(NamedTuple):
    """No statistics but the count that a schedule of the learning rate reads."""

    count: Any


def sgd(learning_rate: Any) -> Triple:
    """Stochastic gradient descent, `y <- y - eta g`.

    Args:
      learning_rate: eta > 0; a number, a traced value or an optax schedule.

    Returns:
      A `Triple` without statistics.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.sgd(0.5)
      >>> updates, _ = opt.update(jnp.array([2.0]), opt.init(jnp.zeros(1)))
      >>> float(updates[0])
      -1.0
    """
    rate = rates.check(learning_rate)
    update = Partial(_update, rate)
    return Triple(
        init=Partial(_init, rate),
        update=update,
        track=_track,
        inverse=Partial(_inverse, rate),
    )


def _init(rate, params):
    del params
    return SgdStats(rates.init_count(rate))


def _update(rate, grads, stats, params=None):
    del params
    eta = rates.value(rate, stats.count)
    return jax.tree.map(lambda g: -jnp.asarray(eta, g.dtype) * g, grads), stats


def _track(grads, stats, params=None):
    del grads, params
    return SgdStats(rates.next_count(stats.count))


def _inverse(rate, old_params, new_params, stats, num_steps):
    eta = rates.value(rate, stats.count)

    def invert(x, x_new):
        return (x - x_new) / (jnp.asarray(eta, x.dtype) * jnp.asarray(num_steps, x.dtype))

    return jax.tree.map(invert, old_params, new_params)
