"""SGD, momentum and the optimisers that divide by sqrt(v) + eps, as triples.

    U(g, s)   = eta m~                        SGD, SGD with momentum                 (subtracted)
                eta m~ / (sqrt(v) + eps)      RMSProp, Adagrad, Adam, Yogi
    m~        = b1 m + (1 - b1) g             m starts at 0
                g                             SGD, RMSProp and Adagrad, which have no m
    T(g, s)   : m+ = m~
                v+ = b2 v + (1 - b2) g^2                        RMSProp, Adam
                v+ = v + g^2                                    Adagrad
                v+ = v - (1 - b2) g^2 sign(v - g^2)             Yogi
                                              v starts at 1 unless said otherwise

There is no bias correction. The moving form reads v after it has moved. Table 2 of the FedGBO paper
prints g for g^2 in T and sqrt(v + eps) in U; only the forms above make its I the inverse of U.

A learning rate is a number, a traced value or an optax schedule of how often the statistics were
tracked: of the round, for frozen statistics, which therefore use one learning rate for all local
steps of a round, and of the step for the `moving` form. The count is part of the statistics only if
there is a schedule.

References:
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Table 2.
  Reddi et al. Adaptive federated optimization. ICLR 2021. Algorithm 2.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import StaticInt, checks, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import Triple


class Statistics(NamedTuple):
    """First moment, second moment and a schedule's count; `()` for what the rule does without."""

    m: Any = ()
    v: Any = ()
    count: Any = ()

    @property
    def gradient_estimate(self) -> Any:
        """m, a mean of gradients."""
        return self.m


class _Step(NamedTuple):
    """The hyperparameters of U; None for what the rule does without."""

    rate: Any
    b1: Any = None
    eps: Any = None


@constructor
def sgd(learning_rate: optax.ScalarOrSchedule) -> Triple:
    """Stochastic gradient descent, `y <- y - eta g`. With momentum it is `sgdm`.

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
    return _triple(_Step(check_rate(learning_rate)))


@constructor
def sgdm(learning_rate: optax.ScalarOrSchedule, beta: chex.Numeric = 0.9) -> Triple:
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
    return _triple(_Step(check_rate(learning_rate), _decay("beta", beta)))


@constructor
def adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: chex.Numeric = 0.9,
    b2: chex.Numeric = 0.99,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1.0,
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
    b1, b2 = _decay("b1", b1), _decay("b2", b2)
    return _adaptive(Partial(_decayed, b2), learning_rate, b1, eps, initial_v)


@constructor
def yogi(
    learning_rate: optax.ScalarOrSchedule,
    b1: chex.Numeric = 0.9,
    b2: chex.Numeric = 0.99,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1.0,
) -> Triple:
    """Yogi: as Adam, with a second moment that moves by at most (1 - b2) g^2.

    Args:
      learning_rate, b1, eps, initial_v: as for `adam`.
      b2: one minus the weight of g^2 in the second moment, in [0, 1).

    Returns:
      A `Triple` whose statistics are `m` and `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.yogi(1e-2, b2=0.5)
      >>> opt.track(jnp.full(1, 2.0), opt.init(jnp.zeros(1))).v.tolist()
      [3.0]
    """
    b1, b2 = _decay("b1", b1), _decay("b2", b2)
    return _adaptive(Partial(_yogi, b2), learning_rate, b1, eps, initial_v)


@constructor
def rmsprop(
    learning_rate: optax.ScalarOrSchedule,
    beta: chex.Numeric = 0.9,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1.0,
) -> Triple:
    """RMSProp: each coordinate's step is divided by the root of its mean squared gradient.

    Args:
      learning_rate, eps, initial_v: as for `adam`.
      beta: the decay of the second moment, in [0, 1).

    Returns:
      A `Triple` whose statistics are `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.rmsprop(1e-2, beta=0.5)
      >>> opt.track(jnp.full(1, 3.0), opt.init(jnp.zeros(1))).v.tolist()
      [5.0]
    """
    second = Partial(_decayed, _decay("beta", beta))
    return _adaptive(second, learning_rate, None, eps, initial_v)


@constructor
def adagrad(
    learning_rate: optax.ScalarOrSchedule,
    eps: chex.Numeric = 1e-3,
    initial_v: chex.Numeric = 1.0,
) -> Triple:
    """Adagrad: each coordinate's step is divided by the root of its summed squared gradients.

    Args:
      learning_rate, eps, initial_v: as for `adam`.

    Returns:
      A `Triple` whose statistics are `v`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.adagrad(1e-2)
      >>> opt.track(jnp.full(1, 3.0), opt.init(jnp.zeros(1))).v.tolist()
      [10.0]
    """
    return _adaptive(Partial(_summed), learning_rate, None, eps, initial_v)


def check_rate(learning_rate: Any, name: str = "learning_rate") -> Any:
    """A learning rate as a hyperparameter: a leaf, or a schedule as structure."""
    if callable(learning_rate):
        return learning_rate if isinstance(learning_rate, Partial) else Partial(learning_rate)
    return checks.number(name, learning_rate, low=0.0, open_low=True, open_high=True)


def _decay(name, value):
    return checks.number(name, value, low=0.0, high=1.0, open_high=True)


def _adaptive(second, learning_rate, b1, eps, initial_v):
    eps = checks.number("eps", eps, low=0.0, open_low=True)
    initial_v = checks.number("initial_v", initial_v, low=0.0)
    return _triple(_Step(check_rate(learning_rate), b1, eps), second, initial_v)


def _triple(step, second=None, initial_v=None):
    """`second` is (g, v) -> v+."""
    has_m, has_count = (StaticInt(x) for x in (step.b1 is not None, callable(step.rate)))
    return Triple(
        init=Partial(_init, has_m, has_count, initial_v),
        update=Partial(_update, step),
        track=Partial(_track, step.b1, second),
        moving_update=Partial(_moving_update, step, second),
    )


def _init(has_m, has_count, initial_v, params):
    m = jax.tree.map(jnp.zeros_like, params) if has_m else ()
    v = () if initial_v is None else jax.tree.map(lambda p: jnp.full_like(p, initial_v), params)
    return Statistics(m, v, jnp.zeros((), jnp.int32) if has_count else ())


def _mixed(b1, grads, m):
    return grads if b1 is None else trees.each(lambda m, g, b: b * m + (1 - b) * g, m, grads, b=b1)


def _update(step, grads, stats, params=None):
    return _descent(step, _mixed(step.b1, grads, stats.m), stats.v, stats.count), stats


def _descent(step, direction, v, count):
    """-eta d / (sqrt(v) + eps)."""
    # optax divides the count: as int32 that would give float32, whatever the precision of the run.
    wide = jnp.result_type(int)
    eta = step.rate(count.astype(wide)) if callable(step.rate) else step.rate
    if step.eps is None:
        return trees.each(lambda d, eta: -eta * d, direction, eta=eta)
    return trees.each(
        lambda v, d, eta, eps: -eta * d / (jnp.sqrt(v) + eps), v, direction, eta=eta, eps=step.eps
    )


def _track(b1, second, grads, stats, params=None):
    m = () if b1 is None else _mixed(b1, grads, stats.m)
    v = () if second is None else jax.tree.map(second, grads, stats.v)
    return Statistics(m, v, jax.tree.map(lambda count: count + 1, stats.count))


def _moving_update(step, second, grads, stats, params=None):
    moved = _track(step.b1, second, grads, stats)
    direction = grads if step.b1 is None else moved.m
    return _descent(step, direction, moved.v, stats.count), moved


def _decayed(b2, g, v):
    b2 = jnp.asarray(b2, v.dtype)
    return b2 * v + (1 - b2) * _squared(g)


def _yogi(b2, g, v):
    step = (1 - jnp.asarray(b2, v.dtype)) * _squared(g)
    return v - step * jnp.sign(v - _squared(g))


def _summed(g, v):
    return v + _squared(g)


def _squared(g):
    """|g|^2, as optax has it for complex numbers."""
    return jnp.square(g) if jnp.isrealobj(g) else g * g.conj()
