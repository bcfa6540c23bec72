"""Clients dealt to devices by work: a device has as many as the others, and about as much to do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.strategies import Strategy


def num_parts(strategy: Strategy) -> int:
    """Among how many devices clients are divided, each of which works through its own one by one."""
    if strategy.mesh is None or strategy.inner != "scan":
        return 1
    return strategy.mesh.shape[strategy.mesh.axis_names[0]]


def deal(work: jax.Array, parts: int) -> jax.Array:
    """Which client stands in which place, so that each of the equal parts of the places has its share.

    Clients are sorted by work and dealt out in a snake, from the first part to the last and back: no
    part then has more than the largest client's work above another. It is computed inside the program:
    another cohort compiles nothing.

    Args:
      work: of each client `[S]`, in whatever unit; 0 for one that is absent.
      parts: how many, a divisor of S.

    Returns:
      Indices into the clients `[S]`.
    """
    each = work.shape[0] // parts
    part, turn = np.divmod(np.arange(work.shape[0]), each)
    rank = turn * parts + np.where(turn % 2 == 0, part, parts - 1 - part)
    return jnp.argsort(-work, stable=True)[rank]


def undo(dealt: jax.Array, stacked: Any) -> Any:
    """Results that stand in the dealt order, in the order of the clients."""
    back = jnp.argsort(dealt)
    return jax.tree.map(lambda x: x[back], stacked)
