"""A run whose step is multiplied by a number that is an argument of the compiled program."""

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Scheduled, get_variables, set_variables
from fedjax_opt.core.controller import Controller
from fedjax_opt.engine.preparation import Prepared


def with_step_scale(prepared: Prepared, scale: jax.Array) -> Prepared:
    """A run with its step times a scale: another scale compiles nothing.

    The step is the learning rate, where the algorithm is `scheduled`, else the change of the global
    parameters in each round.

    Args:
      prepared: the run.
      scale: the number.
    """
    algorithm = prepared.algorithm
    if not isinstance(algorithm, Scheduled):
        step = Partial(_damped, algorithm.server_step, scale)
        return prepared.replace(algorithm=algorithm._replace(server_step=step))
    rate = algorithm.setting
    if isinstance(rate, Controller):
        rate = rate._replace(value=Partial(_scaled_value, rate.value, scale))
    elif callable(rate):
        rate = Partial(_scaled_schedule, rate, scale)
    else:
        rate = scale * jnp.asarray(rate, scale.dtype)
    return prepared.replace(algorithm=algorithm._replace(setting=rate))


def _damped(server_step, scale, server, mean, situation):
    new = server_step(server, mean, situation)
    old, moved = get_variables(server), get_variables(new)
    part = trees.add_scaled(old.params, scale, trees.subtract(moved.params, old.params))
    # A step that is not scaled stays the same to the last bit.
    params = trees.select(scale < 1, part, moved.params)
    return set_variables(new, moved._replace(params=params))


def _scaled_value(value, scale, memory, round_number):
    return scale * jnp.asarray(value(memory, round_number), scale.dtype)


def _scaled_schedule(schedule, scale, round_number):
    return scale * jnp.asarray(schedule(round_number), scale.dtype)
