"""Schedules that know the round alone: constant, and the decay that the bound suggests.

    K_r   = ceil(K_0 r^(-1/3))        (10) of the paper, relative to its first round
    eta_r = eta_0 r^(-1/2)            (12)

with r = 1, 2, ... the round. K = 1 throughout is distributed SGD.

Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, 2023, Table 3.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import Controller, checks


def constant(value: Any) -> Controller:
    """The same value in every round: 'fixed' in the paper's table, and dSGD with one local step.

    Args:
      value: K or eta, above 0.

    Returns:
      A `Controller`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.constant(50)
      >>> controller.value(controller.init(), 7)
      50

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 3.
    """
    checks.number("value", value, low=0.0, open_low=True, open_high=True)
    return Controller(_nothing, _unchanged, Partial(_constant, value))


def steps_by_rounds(initial_steps: Any) -> Controller:
    """K decays with the rounds, `K_r = ceil(K_0 r^(-1/3))`, never below 1.

    Args:
      initial_steps: K_0, a whole number of at least 1.

    Returns:
      A `Controller` for `local_steps`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.steps_by_rounds(60)
      >>> [int(controller.value(controller.init(), t)) for t in (0, 1, 7, 999)]
      [60, 48, 30, 6]

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, (10).
    """
    return Controller(_nothing, _unchanged, Partial(_steps, check_steps(initial_steps)))


def rate_by_rounds(initial_rate: Any) -> Controller:
    """The learning rate decays with the rounds, `eta_r = eta_0 / sqrt(r)`.

    Args:
      initial_rate: eta_0 > 0.

    Returns:
      A `Controller` for `learning_rate`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.rate_by_rounds(0.3)
      >>> round(float(controller.value(controller.init(), 8)), 6)
      0.1

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, (12).
    """
    return Controller(_nothing, _unchanged, Partial(_rate, check_rate(initial_rate)))


def check_steps(initial_steps: Any) -> Any:
    """K_0 as a hyperparameter."""
    if checks.is_traced(initial_steps):
        return initial_steps
    if jnp.shape(initial_steps) != ():
        raise ValueError(f"initial_steps must be one number, got {initial_steps!r}.")
    if np.asarray(initial_steps) % 1 != 0:
        raise ValueError(f"initial_steps must be a whole number, got {initial_steps!r}.")
    return checks.number("initial_steps", initial_steps, low=1.0, open_high=True)


def whole_steps(steps: jnp.ndarray) -> jnp.ndarray:
    """The ceiling, at least 1; a whole number that rounding has pushed up stays what it is."""
    slack = 8 * jnp.finfo(steps.dtype).eps
    return jnp.maximum(jnp.ceil(steps * (1 - slack)), 1).astype(jnp.int32)


def check_rate(initial_rate: Any) -> Any:
    """eta_0 as a hyperparameter."""
    return checks.number("initial_rate", initial_rate, low=0.0, open_low=True, open_high=True)


def _nothing():
    return ()


def _unchanged(state, info):
    del info
    return state


def _constant(value, state, round_number):
    del state, round_number
    return value


def _steps(initial, state, round_number):
    """The smallest K with K^3 r >= K_0^3: as the ceiling, but for the rounding of a cube root."""
    del state
    dtype = jnp.result_type(float)
    initial, r = jnp.asarray(initial, dtype), jnp.asarray(round_number, dtype) + 1
    guess = jnp.ceil(initial / jnp.cbrt(r))
    guess = jnp.where((guess - 1) ** 3 * r >= initial**3, guess - 1, guess)
    guess = jnp.where(guess**3 * r < initial**3, guess + 1, guess)
    return jnp.maximum(guess, 1).astype(jnp.int32)


def _rate(initial, state, round_number):
    del state
    dtype = jnp.result_type(float)
    return jnp.asarray(initial, dtype) / jnp.sqrt(jnp.asarray(round_number, dtype) + 1)
