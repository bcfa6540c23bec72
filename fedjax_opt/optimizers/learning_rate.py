"""Learning rates: a number, a traced value or an optax schedule.

A schedule is a function of how often the statistics were tracked: of the round, for frozen
statistics, which therefore use one learning rate for all local steps of a round, and of the step for
the `moving` form. The count is part of the statistics only if there is a schedule to read it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import checks


def check(learning_rate: Any, name: str = "learning_rate") -> Any:
    """A learning rate as a hyperparameter: a leaf, or a schedule as structure."""
    if callable(learning_rate):
        return learning_rate if isinstance(learning_rate, Partial) else Partial(learning_rate)
    return checks.number(name, learning_rate, low=0.0, open_low=True, open_high=True)


def init_count(learning_rate: Any) -> Any:
    """The count that a schedule reads; nothing for a constant."""
    return jnp.zeros((), jnp.int32) if callable(learning_rate) else ()


def next_count(count: Any) -> Any:
    """The count after the statistics were tracked once more."""
    return jax.tree.map(lambda c: c + 1, count)


def value(learning_rate: Any, count: Any) -> Any:
    """The learning rate that applies now."""
    if not callable(learning_rate):
        return learning_rate
    # optax divides the count: as int32 that would give float32, whatever the precision of the run.
    return learning_rate(count.astype(jnp.result_type(int)))
