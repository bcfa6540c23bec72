"""K re-planned before every round from the bound, with what the run has shown so far.

The bound (8) by runtime,

    2 kappa (kappa F_r - F*) (c + beta K) / (eta W K) + eta kappa L Z(K),

holds from any round on, with that round's loss F_r in place of the first. Its best whole K is used for
the round. F_r is the mean first-step loss over the last s rounds; G, if it is not given, the largest
|x+ - x| / (eta K) seen so far, which is the norm of the mean gradient along the clients' paths. W is the
simulated time: what has passed, as the paper's schedules have it (K_w falls with W), or what is left of
a budget, which is the time that the bound from here on is about.

Reference:
  Mills, Hu and Min. Faster federated learning with decaying number of local SGD steps. 2023, Theorem 2.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.bounds import FedAvgConstants, Link, Seconds, best_local_steps
from fedjax_opt.controllers.schedules import Window, add_to_window, check_steps, empty_window
from fedjax_opt.core import Controller, StaticInt, checks


class TheoryState(NamedTuple):
    """What the re-planning rests on.

    Attributes:
      window: the losses of the last rounds.
      seconds: the simulated time that has passed.
      gradient_norm: the largest mean gradient seen.
    """

    window: Window
    seconds: jax.Array
    gradient_norm: jax.Array


class _Plan(NamedTuple):
    constants: FedAvgConstants
    link: Link
    learning_rate: Any
    initial_steps: Any
    max_steps: Any
    budget: Any


def theory(
    constants: FedAvgConstants,
    link: Link,
    learning_rate: Any,
    initial_steps: Any,
    *,
    budget: Any = None,
    max_steps: Any = 1000,
    window: int = 100,
) -> Controller:
    """K is the best whole number for the bound, re-planned before every round.

    An assumption of the bound that the numbers break is named in a warning; K is what the formula says
    all the same.

    Args:
      constants: the constants of the bound. `initial_loss` is replaced by what the run shows; so is
        `gradient_bound` if it is None.
      link: the size of the model, bandwidths, and the time of a local step.
      learning_rate: eta, as the algorithm has it.
      initial_steps: K until `window` rounds were seen.
      budget: the seconds that the whole run may take; None to plan by the time that has passed.
      max_steps: K is never above it.
      window: s, over how many rounds the loss is averaged.

    Returns:
      A `Controller` for `local_steps`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedAvgConstants(
      ...     smoothness=2.0, strong_convexity=0.5, initial_loss=1.0, gradient_bound=None,
      ...     cohort_size=4,
      ... )
      >>> link = fo.bounds.Link(
      ...     megabits=6.71, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.017
      ... )
      >>> model, data, optimum = fo.data.quadratics(num_clients=8, dimension=3)
      >>> controller = fo.controllers.theory(constants, link, 0.05, 20, window=5)
      >>> federation = fo.Federation(model, data, cohort=4, local_steps=controller, batch_size=1)
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.05))
      >>> result = fo.simulate(algorithm, federation, 30, progress=False)
      >>> steps = result.history["num_steps"].max(axis=1)
      >>> bool((steps[:5] == 20).all() and steps[-1] < steps[5])
      True
    """
    length = StaticInt(checks.integer("window", window, low=1))
    _check(constants, link, learning_rate)
    plan = _Plan(
        constants,
        link,
        checks.number("learning_rate", learning_rate, low=0.0, open_low=True, open_high=True),
        check_steps(initial_steps),
        checks.number("max_steps", max_steps, low=1.0),
        None if budget is None else checks.number("budget", budget, low=0.0, open_low=True),
    )
    return Controller(Partial(_init, length), Partial(_update, plan), Partial(_value, plan))


def _check(constants, link, learning_rate):
    if constants.gradient_bound is None:
        constants = constants._replace(gradient_bound=1.0)
    bound = best_local_steps(constants, learning_rate, Seconds(1.0, link)).bound
    if not checks.is_traced(bound) and bound.violated():
        warnings.warn(
            f"The bound behind this controller does not hold here: {', '.join(bound.violated())}"
            f" fails for learning_rate={learning_rate}, {constants}.",
            stacklevel=3,
        )


def _init(length):
    window = empty_window(length)
    zero = jnp.zeros((), window.first.dtype)
    return TheoryState(window, zero, zero)


def _update(plan, state, info):
    dtype = state.seconds.dtype
    # A round lasts as long as its slowest client works; the mean displacement is of the mean K.
    slowest = jnp.max(info.num_steps).astype(dtype)
    working = jnp.sum(info.num_steps > 0).astype(dtype)
    mean_steps = jnp.sum(info.num_steps).astype(dtype) / jnp.maximum(working, 1)
    lasted = plan.link.communication_seconds + plan.link.seconds_per_step * slowest
    norm = info.update_norm.astype(dtype) / (plan.learning_rate * jnp.maximum(mean_steps, 1))
    return TheoryState(
        window=add_to_window(state.window, info),
        seconds=state.seconds + lasted,
        gradient_norm=jnp.maximum(state.gradient_norm, norm),
    )


def _value(plan, state, round_number):
    del round_number
    dtype = state.seconds.dtype
    one_round = plan.link.communication_seconds + plan.link.seconds_per_step
    time = state.seconds if plan.budget is None else plan.budget - state.seconds
    constants = plan.constants._replace(initial_loss=state.window.mean)
    if constants.gradient_bound is None:
        constants = constants._replace(gradient_bound=state.gradient_norm)
    left = Seconds(jnp.maximum(time, one_round), plan.link)
    best = best_local_steps(constants, plan.learning_rate, left).value
    # Without any gradient seen, or any loss left, the bound has no say.
    best = jnp.where(jnp.isnan(best), 1.0, best)
    known = state.window.seen >= state.window.losses.shape[0]
    steps = jnp.where(known, best.astype(dtype), jnp.asarray(plan.initial_steps, dtype))
    return jnp.clip(steps, 1, jnp.asarray(plan.max_steps, dtype)).astype(jnp.int32)
