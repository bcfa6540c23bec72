"""Controllers: pure rules that set the local steps or the learning rate of the round to come.

A controller is a triple of functions. Its state travels in `FederatedState.controllers`, so it lives
inside the compiled run, is saved with it, and resumes with it:

    value = value(state, round)      before a round: K, or eta
    state = update(state, info)      after it, from what the round showed

A round that was not applied, or that nobody reported in, changes no controller.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm, Scheduled, as_partial, check_algorithm
from fedjax_opt.core.aliases import Memory, Number
from fedjax_opt.core.info import Info
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.struct import put, struct


@struct()
class Controller:
    """A rule for the local steps or the learning rate: three pure functions.

    It is a pytree whose leaves are its hyperparameters: another initial value compiles nothing anew,
    and a sweep over it is a `vmap`.

    Attributes:
      init: () -> state, a pytree of arrays.
      update: (state, info) -> state, after a round; `info` is that round's `Info`.
      value: (state, round) -> the value for a round, a number, or for local steps one per client `[N]`.
      every: the rounds after which it wants the global model evaluated on the federation's `validation`
        examples, as `validation_<name>` in `info.diagnostics`: NaN where it is no controller's turn.
        None if it does not look at them.

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

    init: Callable[[], Memory]
    update: Callable[[Memory, Info], Memory]
    value: Callable[..., Number]
    every: Number | None = None

    def __post_init__(self) -> None:
        put(self, **{name: as_partial(function) for name, function in vars(self).items()})

    def _replace(self, **functions: Any) -> "Controller":
        """The same controller with other functions."""
        return dataclasses.replace(self, **functions)


class Controls(NamedTuple):
    """What the controllers of a run are, or what they remember; `()` for a setting that has none."""

    local_steps: Any = ()
    learning_rate: Any = ()

    @property
    def watchers(self) -> list[Controller]:
        """Those that look at the validation examples."""
        return [x for x in self if isinstance(x, Controller) and x.every is not None]


def scheduled(make: Callable[[Number], Algorithm], setting: Any) -> Scheduled:
    """An algorithm whose learning rate changes from round to round.

    The verbs take it as they take an Algorithm. Wrappers do not: they belong inside of the function.

    Args:
      make: learning rate -> Algorithm.
      setting: the rate: a number, a function of the round (a schedule of optax, say) or a `Controller`.

    Returns:
      A `Scheduled`.

    Example:
      >>> import optax
      >>> import fedjax_opt as fo
      >>> decay = optax.exponential_decay(0.1, transition_steps=10, decay_rate=0.5)
      >>> algorithm = fo.scheduled(lambda eta: fo.fedavg(fo.optimizers.sgd(eta)), decay)
    """
    if isinstance(make, Algorithm) or not callable(make):
        got = "an Algorithm" if isinstance(make, Algorithm) else repr(make)
        raise ValueError(
            "make must be a function of the learning rate, such as"
            f" lambda eta: fo.fedavg(fo.optimizers.sgd(eta)); got {got}."
        )
    if not isinstance(setting, Controller) and not callable(setting):
        setting = checks.number("setting", setting, low=0.0, open_low=True, open_high=True)
        if np.shape(setting) != ():
            raise ValueError(f"setting must be one number, got shape {np.shape(setting)}.")
    return Scheduled(as_partial(make), as_partial(setting))


def current(setting: Any, memory: Memory, round_number: jax.Array) -> Any:
    """What a setting (a controller, a function of the round or a value) is in a round."""
    if isinstance(setting, Controller):
        return setting.value(memory, round_number)
    if not callable(setting):
        return setting
    # A schedule of optax divides it: int32 would give float32, whatever the precision of the run.
    return setting(round_number.astype(jnp.result_type(int)))


def at_round(
    algorithm: Scheduled, memory: Memory, round_number: jax.Array
) -> tuple[Algorithm, jax.Array]:
    """The algorithm of a round, made for the round's learning rate; and that rate."""
    rate = current(algorithm.setting, memory, round_number)
    rate = jnp.asarray(rate, jnp.result_type(float))
    made = algorithm.make(rate)
    if not isinstance(made, Algorithm):
        raise ValueError(f"make(learning_rate) must return an Algorithm, got {made!r}.")
    return made, rate


def first_algorithm(algorithm: Any) -> Algorithm:
    """The algorithm as it is before the first round; what initial states are made with."""
    if not isinstance(algorithm, Scheduled):
        check_algorithm(algorithm)
        return algorithm
    setting = algorithm.setting
    memory = setting.init() if isinstance(setting, Controller) else ()
    return at_round(algorithm, memory, jnp.zeros((), jnp.int32))[0]


def started(settings: Controls, state: FederatedState) -> FederatedState:
    """The state with the controllers' initial states, unless it carries theirs already."""
    fresh = Controls(*(s.init() if isinstance(s, Controller) else () for s in settings))
    # A Python number would be weakly typed, and could not be carried from round to round.
    fresh = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), fresh)
    if not jax.tree.leaves(state.controllers):
        return state._replace(controllers=fresh)
    why = (
        "what these controllers remember; to start them afresh, pass state._replace(controllers=())"
    )
    checks.same_structure("state.controllers", state.controllers, fresh, why)
    return state


def advance(settings: Controls, memories: Controls, info: Info) -> Controls:
    """What the controllers remember after a round."""
    new = Controls(
        *(
            setting.update(memory, info) if isinstance(setting, Controller) else memory
            for setting, memory in zip(settings, memories, strict=True)
        )
    )
    new = jax.tree.map(lambda x, old: jnp.asarray(x, old.dtype), new, memories)
    return trees.select(info.finite & jnp.any(info.num_steps > 0), new, memories)
