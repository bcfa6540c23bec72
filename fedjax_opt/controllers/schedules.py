"""Schedules of local steps K or of the learning rate eta: a signal, and what follows it.

    by rounds     K_r = ceil(K_0 r^(-1/3)) (10)             eta_r = eta_0 r^(-1/2) (12)
    by error      K_r = ceil(K_0 (F_r / F_0)^(1/3)) (13)    eta_r = eta_0 (F_r / F_0)^(1/2) (14)
    on a plateau  K_0 / 10                                  eta_0 / 10

    exponential                                         eta_r = eta_0 decay^(r-1)

with r = 1, 2, ... the round. K is never below 1; K = 1 throughout is distributed SGD.

F_r is the mean over the last s rounds of the cohort's mean loss at its first local step (15). That step
is taken at the broadcast model, so its loss costs no computation, and one number of upload. Until s
rounds were seen the value stays at its start. F_0 is the mean over the first s rounds; the paper leaves
open whether it is the loss of the initial model, with which the value would jump at round s.
(15) is printed with s + 1 rounds, r among them, whose loss is not known before K_r is chosen. (13) and
(14) rest on F_r <= F_0; where the loss rises above its start the values stay at theirs, since a learning
rate that grew with the loss would feed a divergence.

A plateau: an evaluation of the global model on the federation's `validation` examples that is not better
than the best so far, by more than `tolerance`, counts against `patience`; when that is used up, K or eta
is divided. `optax.contrib.reduce_on_plateau` does so for a learning rate, with its numbers compiled in;
here they are leaves.

A signal is a `Controller` whose value is by what K or eta is multiplied, as a function of the root that
is taken of it: the cube root for K, the square root for eta.

Reference:
  Mills, Hu and Min. Faster federated learning with decaying number of local SGD steps. 2023, Table 3.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial, register_static

from fedjax_opt.core import Controller, Info, StaticInt, checks


def constant(value: chex.Numeric) -> Controller:
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
    """
    checks.number("value", value, low=0.0, open_low=True, open_high=True)
    return Controller(_nothing, _unchanged, Partial(_constant, value))


def steps_by_rounds(initial_steps: chex.Numeric) -> Controller:
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
    """
    return Controller(_nothing, _unchanged, Partial(_root_of_round, check_steps(initial_steps)))


def rate_by_rounds(initial_rate: chex.Numeric) -> Controller:
    """The learning rate decays with the rounds, `eta_r = eta_0 / sqrt(r)`.

    Args:
      initial_rate: eta_0 > 0.

    Returns:
      A `Controller` for `fo.scheduled`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.rate_by_rounds(0.3)
      >>> round(float(controller.value(controller.init(), 8)), 6)
      0.1
    """
    return _of_rate(Controller(_nothing, _unchanged, _of_round), initial_rate)


def rate_exponential(initial_rate: chex.Numeric, decay: chex.Numeric = 0.998) -> Controller:
    """The learning rate falls by a factor in every round, `eta_r = eta_0 decay^(r-1)`.

    The papers of FedACG and GHBM search over such factors: 0.995, 0.998 and 1, or 0.999 and more.

    Args:
      initial_rate: eta_0 > 0.
      decay: the factor, in (0, 1].

    Returns:
      A `Controller` for `fo.scheduled`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.rate_exponential(0.1, decay=0.5)
      >>> [round(float(controller.value(controller.init(), t)), 6) for t in (0, 1, 3)]
      [0.1, 0.05, 0.0125]
    """
    decay = checks.number("decay", decay, low=0.0, high=1.0, open_low=True)
    return _of_rate(Controller(_nothing, _unchanged, Partial(_power, decay)), initial_rate)


def steps_by_error(initial_steps: chex.Numeric, window: int = 100) -> Controller:
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
    """
    return _of_steps(_error(window), initial_steps)


def rate_by_error(initial_rate: chex.Numeric, window: int = 100) -> Controller:
    """The learning rate decays with the training error, `eta_r = eta_0 (F_r / F_0)^(1/2)`.

    Args:
      initial_rate: eta_0 > 0.
      window: s, over how many rounds the error is averaged; eta stays eta_0 until so many were seen.

    Returns:
      A `Controller` for `fo.scheduled`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.rate_by_error(0.003, window=5)
      >>> algorithm = fo.scheduled(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), controller)
    """
    return _of_rate(_error(window), initial_rate)


def steps_on_plateau(
    initial_steps: chex.Numeric,
    *,
    factor: chex.Numeric = 10.0,
    patience: chex.Numeric = 10,
    tolerance: chex.Numeric = 0.0,
    times: chex.Numeric = 1,
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
    """
    signal = _plateau(factor, patience, tolerance, times, metric, maximise, every)
    return _of_steps(signal, initial_steps)


def rate_on_plateau(
    initial_rate: chex.Numeric,
    *,
    factor: chex.Numeric = 10.0,
    patience: chex.Numeric = 10,
    tolerance: chex.Numeric = 0.0,
    times: chex.Numeric = 1,
    metric: str = "loss",
    maximise: bool = False,
    every: int = 1,
) -> Controller:
    """The learning rate falls to `eta_0 / factor` once the validation error has stopped falling.

    Args:
      initial_rate: eta_0 > 0.
      factor, patience, tolerance, times, metric, maximise, every: as for `steps_on_plateau`.

    Returns:
      A `Controller` for `fo.scheduled`; the federation needs `validation`.

    Example:
      >>> import fedjax_opt as fo
      >>> controller = fo.controllers.rate_on_plateau(0.5, factor=5.0)
      >>> float(controller.value(controller.init(), 0))
      0.5
    """
    signal = _plateau(factor, patience, tolerance, times, metric, maximise, every)
    return _of_rate(signal, initial_rate)


class Schedule(NamedTuple):
    """A rule for the local steps and one for the learning rate.

    Attributes:
      local_steps: the `Controller` of K.
      learning_rate: the `Controller` of eta.
    """

    local_steps: Controller
    learning_rate: Controller


def paper_schedules(
    initial_steps: chex.Numeric,
    initial_rate: chex.Numeric,
    *,
    window: int = 100,
    patience: chex.Numeric = 10,
    every: int = 1,
) -> dict[str, Schedule]:
    """The eight schedules of Table 3 by name: dSGD, fixed, and K or eta by rounds, error or step.

    Args:
      initial_steps: K_0.
      initial_rate: eta_0.
      window: s, over how many rounds the training error is averaged.
      patience: how many evaluations without a better validation loss make a plateau.
      every: the rounds between these evaluations.

    Returns:
      A dict from a schedule's name to its two controllers.

    Example:
      >>> import fedjax_opt as fo
      >>> list(fo.controllers.paper_schedules(50, 0.1))
      ['dSGD', 'fixed', 'K-rounds', 'K-error', 'K-step', 'eta-rounds', 'eta-error', 'eta-step']
    """
    steps, rate = constant(initial_steps), constant(initial_rate)
    return {
        "dSGD": Schedule(constant(1), rate),
        "fixed": Schedule(steps, rate),
        "K-rounds": Schedule(steps_by_rounds(initial_steps), rate),
        "K-error": Schedule(steps_by_error(initial_steps, window), rate),
        "K-step": Schedule(steps_on_plateau(initial_steps, patience=patience, every=every), rate),
        "eta-rounds": Schedule(steps, rate_by_rounds(initial_rate)),
        "eta-error": Schedule(steps, rate_by_error(initial_rate, window)),
        "eta-step": Schedule(steps, rate_on_plateau(initial_rate, patience=patience, every=every)),
    }


def _of_steps(signal: Controller, initial_steps: chex.Numeric) -> Controller:
    return signal._replace(value=Partial(_steps, signal.value, check_steps(initial_steps)))


def _of_rate(signal: Controller, initial_rate: chex.Numeric) -> Controller:
    initial = checks.number("initial_rate", initial_rate, low=0.0, open_low=True, open_high=True)
    return signal._replace(value=Partial(_rate, signal.value, initial))


def _steps(signal, initial, state, round_number):
    share = signal(jnp.cbrt, state, round_number)
    # A whole number that rounding has pushed up stays what it is.
    steps = jnp.asarray(initial, share.dtype) * share * (1 - 8 * jnp.finfo(share.dtype).eps)
    return jnp.maximum(jnp.ceil(steps), 1).astype(jnp.int32)


def _rate(signal, initial, state, round_number):
    share = signal(jnp.sqrt, state, round_number)
    return jnp.asarray(initial, share.dtype) * share


def _power(decay, root, state, round_number):
    del root, state
    decay = jnp.asarray(decay, jnp.result_type(float))
    return decay ** jnp.asarray(round_number, decay.dtype)


def _of_round(root, state, round_number):
    del state
    return 1 / root(jnp.asarray(round_number, jnp.result_type(float)) + 1)


def check_steps(initial_steps: chex.Numeric) -> chex.Numeric:
    """K_0 as a hyperparameter."""
    if checks.is_traced(initial_steps):
        return initial_steps
    if jnp.shape(initial_steps) != ():
        raise ValueError(f"initial_steps must be one number, got {initial_steps!r}.")
    if np.asarray(initial_steps) % 1 != 0:
        raise ValueError(f"initial_steps must be a whole number, got {initial_steps!r}.")
    return checks.number("initial_steps", initial_steps, low=1.0, open_high=True)


def _nothing():
    return ()


def _unchanged(state, info):
    del info
    return state


def _constant(value, state, round_number):
    del state, round_number
    return value


def _root_of_round(initial, state, round_number):
    """The smallest K with K^3 r >= K_0^3: as the ceiling, but for the rounding of a cube root."""
    del state
    dtype = jnp.result_type(float)
    initial, r = jnp.asarray(initial, dtype), jnp.asarray(round_number, dtype) + 1
    guess = jnp.ceil(initial / jnp.cbrt(r))
    guess = jnp.where((guess - 1) ** 3 * r >= initial**3, guess - 1, guess)
    guess = jnp.where(guess**3 * r < initial**3, guess + 1, guess)
    return jnp.maximum(guess, 1).astype(jnp.int32)


def _error(window: int) -> Controller:
    length = StaticInt(checks.integer("window", window, low=1))
    return Controller(Partial(empty_window, length), add_to_window, _of_error)


def _of_error(root, window, round_number):
    del round_number
    return root(window.ratio)


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
    is_first = (seen >= length) & jnp.isnan(window.first)
    return moved._replace(first=jnp.where(is_first, moved.mean, window.first))


def _plateau(factor, patience, tolerance, times, metric, maximise, every) -> Controller:
    every = jnp.asarray(checks.integer("every", every, low=1), jnp.int32)
    factor = checks.number("factor", factor, low=1.0, open_low=True, open_high=True)
    update = Partial(
        _watch,
        _Name(metric),
        every=every,
        patience=checks.number("patience", patience, low=1.0),
        tolerance=checks.number("tolerance", tolerance, low=0.0, open_high=True),
        times=checks.number("times", times, low=1.0),
        sign=-1.0 if maximise else 1.0,
    )
    return Controller(_unseen, update, Partial(_of_drops, factor), every)


def _of_drops(factor, root, state, round_number):
    del root, round_number
    factor = jnp.asarray(factor, state.best.dtype)
    return 1 / factor ** state.drops.astype(factor.dtype)


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


@register_static
class _Name(str):
    """A name that is structure of a controller, not a leaf."""


def _unseen():
    zero = jnp.zeros((), jnp.int32)
    return Plateau(jnp.full((), jnp.inf, jnp.result_type(float)), zero, zero)


def _watch(metric, state, info, *, every, patience, tolerance, times, sign):
    name = f"validation_{metric}"
    if name not in info.diagnostics:
        found = sorted(n for n in info.diagnostics if n.startswith("validation_"))
        raise ValueError(
            f"A controller watches {name}, but the federation"
            + (f" has only {', '.join(found)}." if found else " was given no validation examples.")
        )
    value = info.diagnostics[name].astype(state.best.dtype)
    # It is NaN where it was no controller's turn.
    seen = ~jnp.isnan(value) & ((info.round + 1) % every == 0)
    value = value * jnp.asarray(sign, value.dtype)
    better = value < state.best - jnp.asarray(tolerance, value.dtype)
    waited = jnp.where(better, 0, state.waited + 1)
    used_up = waited.astype(value.dtype) >= patience
    drop = used_up & (state.drops.astype(value.dtype) < times)
    new = Plateau(
        best=jnp.where(better, value, state.best),
        waited=jnp.where(drop, 0, waited),
        drops=state.drops + drop.astype(jnp.int32),
    )
    return jax.tree.map(lambda a, b: jnp.where(seen, a, b), new, state)
