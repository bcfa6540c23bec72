"""Optimisers that divide by sqrt(v) + eps, as triples; m starts at 0, v at 1 unless said otherwise.

    U(g, m, v)        = eta m~ / (sqrt(v) + eps),  m~ = b1 m + (1 - b1) g     (subtracted)
    T(g, m, v)        = m~ and
                          RMSProp, Adam   v+ = b2 v + (1 - b2) g^2
                          Adagrad         v+ = v + g^2
                          Yogi            v+ = v - (1 - b2) g^2 sign(v - g^2)
    I(x, x+, m, v, K) = ((x - x+)(sqrt(v) + eps) / (eta K) - b1 m) / (1 - b1)

RMSProp and Adagrad have no m (b1 = 0). There is no bias correction. The moving form reads v after it
has moved. Table 2 of the FedGBO paper prints g for g^2 in T and sqrt(v + eps) in U; only the forms
above make I the inverse of U.

References:
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Table 2.
  Reddi et al. Adaptive federated optimization. ICLR 2021. Algorithm 2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.optimizers import learning_rate as rates
from fedjax_opt.optimizers.sgdm import momentum
from fedjax_opt.optimizers.triple import Triple


class AdaptiveStats(NamedTuple):
    """First moment (`()` if the rule has none), second moment, and a schedule's count."""

    m: Any
    v: Any
    count: Any

    @property
    def gradient_estimate(self) -> Any:
        """m, a mean of gradients."""
        return self.m


def adam(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3, initial_v: Any = 1.0
) -> Triple:
    """Adam without bias correction.

    Args:
      learning_rate: eta > 0; a number, a traced value or an optax schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: the decay of the second moment, in [0, 1).
      eps: added to sqrt(v), positive.
      initial_v: the second moment's initial value, not negative.

    Returns:
      A `Triple` whose statistics are `m` and `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.adam(1e-2)
      >>> opt.track(jnp.ones(2), opt.init(jnp.zeros(2))).v.tolist()
      [1.0, 1.0]
    """
    b1 = checks.number("b1", b1, low=0.0, high=1.0, open_high=True)
    b2 = checks.number("b2", b2, low=0.0, high=1.0, open_high=True)
    return _triple(_decayed, learning_rate, b1, b2, eps, initial_v)


def yogi(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.99, eps: Any = 1e-3, initial_v: Any = 1.0
) -> Triple:
    """Yogi: as Adam, with a second moment that moves by at most (1 - b2) g^2.

    Args:
      learning_rate: eta > 0; a number, a traced value or an optax schedule.
      b1: the decay of the first moment, in [0, 1).
      b2: one minus the weight of g^2 in the second moment, in [0, 1).
      eps: added to sqrt(v), positive.
      initial_v: the second moment's initial value, not negative.

    Returns:
      A `Triple` whose statistics are `m` and `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.yogi(1e-2, b2=0.5)
      >>> opt.track(jnp.full(1, 2.0), opt.init(jnp.zeros(1))).v.tolist()
      [3.0]
    """
    b1 = checks.number("b1", b1, low=0.0, high=1.0, open_high=True)
    b2 = checks.number("b2", b2, low=0.0, high=1.0, open_high=True)
    return _triple(_yogi, learning_rate, b1, b2, eps, initial_v)


def rmsprop(learning_rate: Any, beta: Any = 0.9, eps: Any = 1e-3, initial_v: Any = 1.0) -> Triple:
    """RMSProp: each coordinate's step is divided by the root of its mean squared gradient.

    Args:
      learning_rate: eta > 0; a number, a traced value or an optax schedule.
      beta: the decay of the second moment, in [0, 1).
      eps: added to sqrt(v), positive.
      initial_v: the second moment's initial value, not negative.

    Returns:
      A `Triple` whose statistics are `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.rmsprop(1e-2, beta=0.5)
      >>> opt.track(jnp.full(1, 3.0), opt.init(jnp.zeros(1))).v.tolist()
      [5.0]
    """
    beta = checks.number("beta", beta, low=0.0, high=1.0, open_high=True)
    return _triple(_decayed, learning_rate, None, beta, eps, initial_v)


def adagrad(learning_rate: Any, eps: Any = 1e-3, initial_v: Any = 1.0) -> Triple:
    """Adagrad: each coordinate's step is divided by the root of its summed squared gradients.

    Args:
      learning_rate: eta > 0; a number, a traced value or an optax schedule.
      eps: added to sqrt(v), positive.
      initial_v: the second moment's initial value, not negative.

    Returns:
      A `Triple` whose statistics are `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.adagrad(1e-2)
      >>> opt.track(jnp.full(1, 3.0), opt.init(jnp.zeros(1))).v.tolist()
      [10.0]
    """
    return _triple(_summed, learning_rate, None, None, eps, initial_v)


def _decayed(b2, g, v):
    return b2 * v + (1 - b2) * jnp.square(g)


def _yogi(b2, g, v):
    return v - (1 - b2) * jnp.square(g) * jnp.sign(v - jnp.square(g))


def _summed(_, g, v):
    return v + jnp.square(g)


def _triple(second_moment, learning_rate, b1, b2, eps, initial_v):
    rate = rates.check(learning_rate)
    eps = checks.number("eps", eps, low=0.0, open_low=True)
    initial_v = checks.number("initial_v", initial_v, low=0.0)
    second_moment = Partial(second_moment)
    return Triple(
        init=Partial(_init, rate, b1, initial_v),
        update=Partial(_update, rate, b1, eps),
        track=Partial(_track, second_moment, b1, b2),
        inverse=Partial(_inverse, rate, b1, eps),
        moving_update=Partial(_moving_update, second_moment, rate, b1, b2, eps),
    )


def _init(rate, b1, initial_v, params):
    m = () if b1 is None else jax.tree.map(jnp.zeros_like, params)
    v = jax.tree.map(lambda p: jnp.full_like(p, initial_v), params)
    return AdaptiveStats(m, v, rates.init_count(rate))


def _first_moment(b1, grads, m):
    return grads if b1 is None else momentum(b1, grads, m)


def _descend(eta, eps, direction, v):
    def step(d, v):
        return -jnp.asarray(eta, v.dtype) * d / (jnp.sqrt(v) + jnp.asarray(eps, v.dtype))

    return jax.tree.map(step, direction, v)


def _update(rate, b1, eps, grads, stats, params=None):
    del params
    eta = rates.value(rate, stats.count)
    return _descend(eta, eps, _first_moment(b1, grads, stats.m), stats.v), stats


def _track(second_moment, b1, b2, grads, stats, params=None):
    del params
    m = () if b1 is None else momentum(b1, grads, stats.m)
    v = jax.tree.map(
        lambda g, v: second_moment(None if b2 is None else jnp.asarray(b2, v.dtype), g, v),
        grads,
        stats.v,
    )
    return AdaptiveStats(m, v, rates.next_count(stats.count))


def _moving_update(second_moment, rate, b1, b2, eps, grads, stats, params=None):
    moved = _track(second_moment, b1, b2, grads, stats, params)
    direction = grads if b1 is None else moved.m
    return _descend(rates.value(rate, stats.count), eps, direction, moved.v), moved


def _inverse(rate, b1, eps, old_params, new_params, stats, num_steps):
    eta = rates.value(rate, stats.count)

    def direction(x, x_new, v):
        steps = jnp.asarray(eta, x.dtype) * jnp.asarray(num_steps, x.dtype)
        return (x - x_new) * (jnp.sqrt(v) + jnp.asarray(eps, v.dtype)) / steps

    directions = jax.tree.map(direction, old_params, new_params, stats.v)
    if b1 is None:
        return directions

    def without_momentum(d, m):
        b = jnp.asarray(b1, d.dtype)
        return (d - b * m) / (1 - b)

    return jax.tree.map(without_momentum, directions, stats.m)
