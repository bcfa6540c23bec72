"""Clients dealt to devices by work, so that each has about as much to do as the others.

Where all clients take as many steps, those left over are shared (`relay`); else whole clients are dealt.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.execution import meshes, relay, strategies
from fedjax_opt.execution.strategies import Strategy


def num_parts(strategy: Strategy) -> int:
    """Among how many devices clients are divided, each of which works through its own one by one."""
    if strategy.mesh is None or strategy.inner != "scan":
        return 1
    return meshes.num_parts(strategy.mesh)


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


def order(strategy: Strategy, work: jax.Array, size: int, unequal: bool) -> Any:
    """Which client stands in which place `[places]`, if it makes a difference; else None.

    Args:
      strategy: how clients are executed.
      work: of each client and of those who fill the places up, 0 for these `[places]`.
      size: how many are not there to fill up.
      unequal: whether clients may differ in their work.
    """
    parts = num_parts(strategy)
    if relay.applies(strategy, size, unequal):
        return relay.places(size, parts)
    return deal(work, parts) if unequal and 1 < parts < size else None


def seats(strategy: Strategy, num_steps: jax.Array, unequal: bool) -> jax.Array:
    """Who of the cohort is computed in which place, absent clients that fill it up among them."""
    size = num_steps.shape[0]
    places = strategies.round_up(strategy, size)
    rows = jnp.minimum(jnp.arange(places, dtype=jnp.int32), size - 1)
    dealt = order(strategy, jnp.where(jnp.arange(places) < size, num_steps[rows], 0), size, unequal)
    return rows if dealt is None else rows[dealt]


def undo(dealt: Any, stacked: Any) -> Any:
    """Results that stand in the dealt order, in the order of the clients."""
    back = jnp.argsort(dealt)
    return jax.tree.map(lambda x: x[back], stacked)
