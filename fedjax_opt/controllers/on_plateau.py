"""A step down once the validation error has stopped falling.

The global model is evaluated on the federation's `validation` examples every so many rounds. An
evaluation that is not better than the best so far, by more than `tolerance`, counts against `patience`;
when that is used up, K or eta is divided by `factor`, at most `times` times.

`optax.contrib.reduce_on_plateau` is the same idea for a learning rate, with its numbers compiled in;
here they are leaves, and K may be controlled too.

Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, 2023, Table 3:
K_0/10 or eta_0/10 once the validation error has converged.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial, register_static

from fedjax_opt.controllers.by_rounds import check_rate, check_steps, whole_steps
from fedjax_opt.core import Controller, checks


class Plateau(NamedTuple):
    """What was seen of the validation error.

    Attributes:
      best: the best value so far.
      waited: evaluations since then, int32.
      drops: how often the controlled value was divided, int32.
    """

    best: jax.Array
    waited: jax.Array
    drops: jax.Array


class _Rule(NamedTuple):
    every: Any
    factor: Any
    patience: Any
    tolerance: Any
    times: Any
    sign: Any


@register_static
class _Name(str):
    """A name that is structure of a controller, not a leaf."""


def steps_on_plateau(
    initial_steps: Any,
    *,
    factor: Any = 10.0,
    patience: Any = 10,
    tolerance: Any = 0.0,
    times: Any = 1,
    metric: str = "loss",
    maximise: bool = False,
    every: int = 1,
) -> Controller:
    """K falls to `ceil(K_0 / factor)` once the validation error has stopped falling.

    Args:
      initial_steps: K_0, a whole number of at least 1.
      factor: by what K is divided, above 1.
      patience: how many evaluations in a row may bring nothing better.
      tolerance: how much better is better.
      times: how often K may be divided.
      metric: what is watched: 'loss', or a metric of the model's by name, such as 'accuracy'.
      maximise: whether larger is better.
      every: the rounds between evaluations.

    Returns:
      A `Controller` for `local_steps`; the federation needs `validation`.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> federation = fo.Federation(
      ...     model, data, cohort=4, batch_size=1, validation=data.examples,
      ...     local_steps=fo.controllers.steps_on_plateau(20, patience=5),
      ... )
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.05))
      >>> result = fo.simulate(algorithm, federation, 60, progress=False)
      >>> sorted(set(result.history["num_steps"].max(axis=1).tolist()))
      [2, 20]

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 3.
    """
    initial = check_steps(initial_steps)
    rule = _rule(every, factor, patience, tolerance, times, maximise)
    update, value = Partial(_update, rule, _Name(metric)), Partial(_steps, rule, initial)
    return Controller(_init, update, value, rule.every)


def rate_on_plateau(
    initial_rate: Any,
    *,
    factor: Any = 10.0,
    patience: Any = 10,
    tolerance: Any = 0.0,
    times: Any = 1,
    metric: str = "loss",
    maximise: bool = False,
    every: int = 1,
) -> Controller:
    """The learning rate falls to `eta_0 / factor` once the validation error has stopped falling.

    Args:
      initial_rate: eta_0 > 0.
      factor: by what eta is divided, above 1.
      patience: how many evaluations in a row may bring nothing better.
      tolerance: how much better is better.
      times: how often eta may be divided.
      metric: what is watched: 'loss', or a metric of the model's by name, such as 'accuracy'.
      maximise: whether larger is better.
      every: the rounds between evaluations.

    Returns:
      A `Controller` for `fo.scheduled`; the federation needs `validation`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.rate_on_plateau(0.5, factor=5.0)
      >>> float(controller.value(controller.init(), 0))
      0.5

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 3.
    """
    initial = check_rate(initial_rate)
    rule = _rule(every, factor, patience, tolerance, times, maximise)
    update, value = Partial(_update, rule, _Name(metric)), Partial(_rate, rule, initial)
    return Controller(_init, update, value, rule.every)


def _rule(every, factor, patience, tolerance, times, maximise):
    return _Rule(
        every=jnp.asarray(checks.integer("every", every, low=1), jnp.int32),
        factor=checks.number("factor", factor, low=1.0, open_low=True, open_high=True),
        patience=checks.number("patience", patience, low=1.0),
        tolerance=checks.number("tolerance", tolerance, low=0.0, open_high=True),
        times=checks.number("times", times, low=1.0),
        sign=-1.0 if maximise else 1.0,
    )


def _init():
    zero = jnp.zeros((), jnp.int32)
    return Plateau(jnp.full((), jnp.inf, jnp.result_type(float)), zero, zero)


def _update(rule, metric, state, info):
    name = f"validation_{metric}"
    if name not in info.diagnostics:
        found = sorted(n for n in info.diagnostics if n.startswith("validation_"))
        raise ValueError(
            f"A controller watches {name}, but the federation"
            + (f" has only {', '.join(found)}." if found else " was given no validation examples.")
        )
    value = info.diagnostics[name].astype(state.best.dtype)
    # It is NaN where it was no controller's turn.
    seen = ~jnp.isnan(value) & ((info.round + 1) % rule.every == 0)
    value = value * jnp.asarray(rule.sign, value.dtype)
    better = value < state.best - jnp.asarray(rule.tolerance, value.dtype)
    waited = jnp.where(better, 0, state.waited + 1)
    used_up = waited.astype(value.dtype) >= rule.patience
    drop = used_up & (state.drops.astype(value.dtype) < rule.times)
    new = Plateau(
        best=jnp.where(better, value, state.best),
        waited=jnp.where(drop, 0, waited),
        drops=state.drops + drop.astype(jnp.int32),
    )
    return jax.tree.map(lambda a, b: jnp.where(seen, a, b), new, state)


def _divided(rule, initial, state):
    dtype = state.best.dtype
    return jnp.asarray(initial, dtype) / jnp.asarray(rule.factor, dtype) ** state.drops.astype(
        dtype
    )


def _steps(rule, initial, state, round_number):
    del round_number
    return whole_steps(_divided(rule, initial, state))


def _rate(rule, initial, state, round_number):
    del round_number
    return _divided(rule, initial, state)
