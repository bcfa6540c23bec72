"""The clients of a round as its program has them: one of them, or all on a leading axis."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.execution import strategies
from fedjax_opt.execution.strategies import Strategy


class Member(NamedTuple):
    """A client in a round; one that takes no step is absent, and counts for nothing.

    Attributes:
      id: its number.
      feed: what its minibatches are drawn from.
      num_steps: K, 0 if it is absent.
      weight: in the means over the cohort.
      own_report: what its probe has found.
      test_rows: where its own test examples are, if any are wanted.
      fault: why a guard left it out; `()` without a guard.
    """

    id: jax.Array
    feed: Any
    num_steps: jax.Array
    weight: jax.Array
    own_report: Any
    test_rows: Any
    fault: Any = ()


def say(client: Member) -> tuple[jax.Array, jax.Array]:
    """The weight of a client in each mean, and whether it has any."""
    return client.weight, client.num_steps > 0


def unless(fault: Any, client: Member) -> Member:
    """The client, or one that did not take part if it is at fault."""
    if isinstance(fault, tuple):
        return client
    return client._replace(num_steps=jnp.where(fault > 0, 0, client.num_steps))


def is_absent(client: Member) -> jax.Array:
    """Whether nothing is to be computed for it."""
    return client.num_steps == 0


def participation(clients: Member, num_clients: jax.Array) -> jax.Array:
    """C, the fraction of all clients that take part."""
    count, dtype = jnp.sum(clients.num_steps > 0, dtype=jnp.int32), jnp.result_type(float)
    return count.astype(dtype) / num_clients.astype(dtype)


def pad(strategy: Strategy, clients: Member) -> Member:
    """Adds absent clients, so that the strategy divides the cohort evenly."""
    size = clients.num_steps.shape[0]
    padded_size = strategies.round_up(strategy, size)
    if padded_size == size:
        return clients
    rows = np.minimum(np.arange(padded_size), size - 1)
    padded = jax.tree.map(lambda x: x[rows], clients)
    return padded._replace(
        num_steps=padded.num_steps.at[size:].set(0), weight=padded.weight.at[size:].set(0)
    )
