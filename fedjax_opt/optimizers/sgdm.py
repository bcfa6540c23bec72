"""Stochastic gradient descent with momentum as a triple; m starts at 0.

U(g, m)          = eta (beta m + (1 - beta) g)      (subtracted from the model)
T(g, m)          = beta m + (1 - beta) g
I(x, x+, m, K)   = ((x - x+) / (eta K) - beta m) / (1 - beta)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.optimizers import learning_rate as rates
from fedjax_opt.optimizers.triple import Triple


class SgdmStats(NamedTuple):
    """The momentum, and the count that a schedule of the learning rate reads."""

    m: Any
    count: Any

    @property
    def gradient_estimate(self) -> Any:
        """m, a mean of gradients."""
        return self.m


def sgdm(learning_rate: Any, beta: Any = 0.9) -> Triple:
    """Stochastic gradient descent with (normalised) momentum.

    Args:
      learning_rate: eta > 0; a number, a traced value or an optax schedule.
      beta: the decay of the momentum, in [0, 1).

    Returns:
      A `Triple` whose statistics are the momentum `m`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.sgdm(0.5, beta=0.5)
      >>> updates, _ = opt.update(jnp.array([2.0]), opt.init(jnp.zeros(1)))
      >>> float(updates[0])
      -0.5
    """
    rate = rates.check(learning_rate)
    beta = checks.number("beta", beta, low=0.0, high=1.0, open_high=True)
    return Triple(
        init=Partial(_init, rate),
        update=Partial(_update, rate, beta),
        track=Partial(_track, beta),
        inverse=Partial(_inverse, rate, beta),
    )


def _init(rate, params):
    return SgdmStats(jax.tree.map(jnp.zeros_like, params), rates.init_count(rate))


def momentum(beta: Any, grads: Any, m: Any) -> Any:
    """beta m + (1 - beta) g."""

    def mix(g, m):
        b = jnp.asarray(beta, m.dtype)
        return b * m + (1 - b) * g

    return jax.tree.map(mix, grads, m)


def _update(rate, beta, grads, stats, params=None):
    del params
    eta = rates.value(rate, stats.count)
    direction = momentum(beta, grads, stats.m)
    return jax.tree.map(lambda d: -jnp.asarray(eta, d.dtype) * d, direction), stats


def _track(beta, grads, stats, params=None):
    del params
    return SgdmStats(momentum(beta, grads, stats.m), rates.next_count(stats.count))


def _inverse(rate, beta, old_params, new_params, stats, num_steps):
    eta = rates.value(rate, stats.count)

    def invert(x, x_new, m):
        b = jnp.asarray(beta, x.dtype)
        steps = jnp.asarray(eta, x.dtype) * jnp.asarray(num_steps, x.dtype)
        return ((x - x_new) / steps - b * m) / (1 - b)

    return jax.tree.map(invert, old_params, new_params, stats.m)
