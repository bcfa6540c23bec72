"""Schedules that follow the training error.

    K_r   = ceil(K_0 (F_r / F_0)^(1/3))       (13)
    eta_r = eta_0 (F_r / F_0)^(1/2)           (14)
    F_r   = mean over the last s rounds of the cohort's mean loss at its first local step   (15)

A first local step is taken at the broadcast model, so its loss costs no computation, and one number of
upload. Until s rounds were seen the value stays at its start. F_0 is the first F_r that there is: the
mean over the first s rounds. The paper leaves open whether it means that or the loss of the initial
model, with which the value would jump when the first window is full.

(15) is printed with s + 1 rounds, r among them, whose loss is not known before K_r is chosen. (13) and
(14) rest on F_r <= F_0; where the loss rises above its start the values stay at theirs, since a learning
rate that grew with the loss would feed a divergence.

Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, 2023.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.controllers.by_rounds import check_rate, check_steps, whole_steps
from fedjax_opt.core import Controller, Info, StaticInt, checks


class Window(NamedTuple):
    """The losses of the last rounds, in a ring.

    Attributes:
      losses: `[s]`.
      seen: how many rounds were seen, int32.
      first: the first mean over a full window; NaN until there is one.
    """

    losses: jax.Array
    seen: jax.Array
    first: jax.Array

    @property
    def mean(self) -> jax.Array:
        """The mean over the window, or over what it holds so far."""
        held = jnp.clip(self.seen, 1, self.losses.shape[0])
        return jnp.sum(self.losses) / held.astype(self.losses.dtype)

    @property
    def ratio(self) -> jax.Array:
        """F_r / F_0; one until the window is full, and never above one."""
        full = self.seen >= self.losses.shape[0]
        ratio = jnp.where(full & (self.first > 0), self.mean / self.first, 1)
        return jnp.clip(ratio, 0, 1)


def empty_window(length: StaticInt) -> Window:
    """A window before the first round."""
    zero = jnp.zeros((), jnp.result_type(float))
    return Window(jnp.zeros(length, zero.dtype), jnp.zeros((), jnp.int32), zero * jnp.nan)


def add_to_window(window: Window, info: Info) -> Window:
    """The window after one more round."""
    length = window.losses.shape[0]
    losses = window.losses.at[window.seen % length].set(info.first_loss.astype(window.first.dtype))
    # The count stops where it says all that is read of it, and goes on around the ring.
    seen = jnp.where(window.seen + 1 >= 2 * length, length, window.seen + 1)
    moved = window._replace(losses=losses, seen=seen)
    return moved._replace(first=jnp.where(seen < length, moved.first, _first(moved)))


def _first(window):
    return jnp.where(jnp.isnan(window.first), window.mean, window.first)


def steps_by_error(initial_steps: Any, window: int = 100) -> Controller:
    """K decays with the training error, `K_r = ceil(K_0 (F_r / F_0)^(1/3))`, never below 1.

    Args:
      initial_steps: K_0, a whole number of at least 1.
      window: s, over how many rounds the error is averaged; K stays K_0 until so many were seen.

    Returns:
      A `Controller` for `local_steps`.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> controller = fo.controllers.steps_by_error(100, window=5)
      >>> federation = fo.Federation(model, data, cohort=8, local_steps=controller, batch_size=1)
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.003))
      >>> result = fo.simulate(algorithm, federation, 40, progress=False)
      >>> steps = result.history["num_steps"].max(axis=1)
      >>> bool((steps[:5] == 100).all() and steps[-1] < 100)
      True

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, (13), (15).
    """
    initial = check_steps(initial_steps)
    length = StaticInt(checks.integer("window", window, low=1))
    return Controller(Partial(empty_window, length), add_to_window, Partial(_steps, initial))


def rate_by_error(initial_rate: Any, window: int = 100) -> Controller:
    """The learning rate decays with the training error, `eta_r = eta_0 (F_r / F_0)^(1/2)`.

    Args:
      initial_rate: eta_0 > 0.
      window: s, over how many rounds the error is averaged; eta stays eta_0 until so many were seen.

    Returns:
      A `Controller` for `fo.scheduled`.

    Example:
      The algorithm is given as a function of its learning rate:

      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> federation = fo.Federation(model, data, cohort=8, local_steps=20, batch_size=1)
      >>> controller = fo.controllers.rate_by_error(0.003, window=5)
      >>> algorithm = fo.scheduled(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), controller)
      >>> result = fo.simulate(algorithm, federation, 40, progress=False)
      >>> bool(result.history["learning_rate"][-1] < 0.003)
      True

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, (14), (15).
    """
    initial = check_rate(initial_rate)
    length = StaticInt(checks.integer("window", window, low=1))
    return Controller(Partial(empty_window, length), add_to_window, Partial(_rate, initial))


def _steps(initial, window, round_number):
    del round_number
    return whole_steps(jnp.asarray(initial, window.first.dtype) * jnp.cbrt(window.ratio))


def _rate(initial, window, round_number):
    del round_number
    return jnp.asarray(initial, window.first.dtype) * jnp.sqrt(window.ratio)
