"""Controllers: pure rules that set the local steps or the learning rate of the round to come.

A controller is a triple of functions. Its state travels in `FederatedState.controllers`, so it lives
inside the compiled run, is saved with it, and resumes with it:

    value = value(state, round)      before a round: K, or eta
    state = update(state, info)      after it, from what the round showed

A round that was not applied, or that nobody reported in, changes no controller.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm, as_partial
from fedjax_opt.core.state import FederatedState


class _Triple(NamedTuple):
    init: Any
    update: Any
    value: Any


class Controller(_Triple):
    """A rule for the local steps or the learning rate: three pure functions.

    It is a pytree whose leaves are its hyperparameters: another initial value compiles nothing anew,
    and a sweep over it is a `vmap`.

    Attributes:
      init: () -> state, a pytree of arrays.
      update: (state, info) -> state, after a round; `info` is that round's `Info`.
      value: (state, round) -> the value for a round, a number, or for local steps one per client `[N]`.

    Example:
      Halve K as soon as the loss of the broadcast model is under one:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def init():
      ...     return jnp.asarray(False)
      >>> def update(low, info):
      ...     return low | (info.first_loss < 1.0)
      >>> def value(low, round):
      ...     return jnp.where(low, 5, 10)
      >>> controller = fo.Controller(init, update, value)
      >>> int(controller.value(controller.init(), 0))
      10
    """

    __slots__ = ()

    def __new__(cls, init, update, value):
        return super().__new__(cls, *map(as_partial, (init, update, value)))

    @classmethod
    def _make(cls, iterable):
        return cls(*iterable)


class Controls(NamedTuple):
    """What the controllers of a run remember; `()` for a setting that has none."""

    local_steps: Any = ()
    learning_rate: Any = ()


def with_controllers(
    state: FederatedState, *, local_steps: Any = None, learning_rate: Any = None
) -> FederatedState:
    """The state with the controllers at their start.

    `run_rounds` and `simulate` do this by themselves. It is for a program of your own that carries a
    state through a loop of runs, and needs it to have its final structure before the first.

    Args:
      state: a state, from `init_state`. What other controllers remember in it is dropped.
      local_steps: the run's `Controller` of local steps, or anything else that has nothing to remember.
      learning_rate: the same for the learning rate.

    Returns:
      The state, ready for these controllers.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> state = fo.init_state(fo.fedavg(fo.optimizers.sgd(0.1)), {"w": jnp.ones(3)}, num_clients=5)
      >>> state = fo.with_controllers(state, local_steps=fo.controllers.steps_by_error(50, window=10))
      >>> state.controllers.local_steps.losses.shape
      (10,)
    """
    return started(Controls(local_steps, learning_rate), state._replace(controllers=()))


def current(setting: Any, remembered: Any, round_number: jax.Array) -> Any:
    """What a setting (a controller, a function of the round or a value) is in a round."""
    if isinstance(setting, Controller):
        return setting.value(remembered, round_number)
    if not callable(setting):
        return setting
    # A schedule of optax divides it: int32 would give float32, whatever the precision of the run.
    return setting(round_number.astype(jnp.result_type(int)))


def current_rate(setting: Any, remembered: Any, round_number: jax.Array) -> Any:
    """The learning rate of a round, as an array; `()` where the algorithm has its own."""
    if isinstance(setting, tuple) and not setting:
        return ()
    return jnp.asarray(current(setting, remembered, round_number), jnp.result_type(float))


def started(settings: Controls, state: FederatedState) -> FederatedState:
    """The state with the controllers' initial states, unless it carries theirs already."""
    fresh = Controls(*(s.init() if isinstance(s, Controller) else () for s in settings))
    # A Python number would be weakly typed, and could not be carried from round to round.
    fresh = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), fresh)
    if not any(isinstance(setting, Controller) for setting in settings):
        return state
    if not jax.tree.leaves(state.controllers):
        return state._replace(controllers=fresh)
    why = (
        "what these controllers remember; to start them afresh, pass state._replace(controllers=())"
    )
    checks.same_structure("state.controllers", state.controllers, fresh, why)
    return state


def advance(settings: Controls, state: FederatedState, info: Any) -> Any:
    """What the controllers remember after a round."""
    if not any(isinstance(setting, Controller) for setting in settings):
        return state.controllers
    new = Controls(
        *(
            setting.update(memory, info) if isinstance(setting, Controller) else memory
            for setting, memory in zip(settings, state.controllers, strict=True)
        )
    )
    new = jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, state.controllers)
    return trees.select(info.finite & jnp.any(info.num_steps > 0), new, state.controllers)


def check_learning_rate(algorithm: Any, learning_rate: Any) -> Any:
    """A learning rate as a setting, after checking that there is an algorithm to hand it to."""
    if learning_rate is None:
        if not isinstance(algorithm, Algorithm):
            raise ValueError(
                "algorithm must be an Algorithm; a function of the learning rate needs a"
                f" learning_rate beside it, got algorithm={algorithm!r}."
            )
        return ()
    if isinstance(algorithm, Algorithm) or not callable(algorithm):
        raise ValueError(
            "With a learning_rate, algorithm must be a function of it, such as"
            " lambda eta: fo.fedavg(fo.optimizers.sgd(eta)); got"
            f" {'an Algorithm' if isinstance(algorithm, Algorithm) else repr(algorithm)}."
        )
    if isinstance(learning_rate, Controller):
        return learning_rate
    if callable(learning_rate):
        return as_partial(learning_rate)
    value = checks.number("learning_rate", learning_rate, low=0.0, open_low=True, open_high=True)
    if np.shape(value) != ():
        raise ValueError(f"learning_rate must be one number, got shape {np.shape(value)}.")
    return value


def build(algorithm: Any, learning_rate: Any) -> Algorithm:
    """The algorithm of a round: as it is, or made for the round's learning rate."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    made = algorithm(learning_rate)
    if not isinstance(made, Algorithm):
        raise ValueError(f"algorithm(learning_rate) must return an Algorithm, got {made!r}.")
    return made


def first_algorithm(algorithm: Any, learning_rate: Any) -> Algorithm:
    """The algorithm as it is before the first round; what initial states are made with."""
    setting = check_learning_rate(algorithm, learning_rate)
    memory = setting.init() if isinstance(setting, Controller) else ()
    return build(algorithm, current_rate(setting, memory, jnp.zeros((), jnp.int32)))


def as_setting(algorithm: Any) -> Any:
    """An algorithm, or a function that makes one, as a pytree."""
    return algorithm if isinstance(algorithm, (Algorithm, Partial)) else Partial(algorithm)
