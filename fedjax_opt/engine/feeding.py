"""Where the examples of a round come from, and the gradients that a probe may ask of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import ProbeData
from fedjax_opt.core.model import Model, Objective
from fedjax_opt.engine import local
from fedjax_opt.execution.jobs import counted_loop

# Client ids are below 2^31 - 1, so this one never names a client's stream of random numbers.
_PROBE_STEP = 2**31 - 1


class Feeding(NamedTuple):
    """Where a round's examples come from.

    Attributes:
      draw: (shared, feed, key, step) -> (batch, mask): one client's next minibatch.
      full: (shared, feed) -> (chunk -> (batch, mask), number of chunks): a pass over all data.
      extra: (shared, feed, key) -> (batch, mask): one more minibatch, for a probe.
      shared: arrays that all clients read.
      feed: what differs between clients, `[S, ...]`.
    """

    draw: Callable[..., Any]
    full: Callable[..., Any]
    extra: Callable[..., Any]
    shared: Any
    feed: Any


def probe_key(key: jax.Array) -> jax.Array:
    """A client's key in a round -> the key of what its probe draws."""
    return jax.random.fold_in(key, _PROBE_STEP)


def probe_data(
    model: Model, feeding: Feeding, examples: Any, feed: Any, key: jax.Array, client: Any = None
) -> ProbeData:
    """The gradients of one client that a probe may ask for, by the client's key in the round."""
    own_key, key = local.own_key(key), probe_key(key)
    dtype = jnp.result_type(float)

    def gradient_of(variables, batch, mask, adjust):
        objective = Objective(model, key, mask)
        objective = objective if adjust is None else adjust(objective, batch)
        return objective.gradient(variables, batch)[0]

    def full_gradient(variables, adjust=None):
        chunk_of, num_chunks = feeding.full(examples, feed)

        def body(carry, chunk):
            total, rows = carry
            batch, mask = chunk_of(chunk)
            gradient = gradient_of(variables, batch, mask, adjust)
            here = jax.tree.leaves(batch)[0].shape[0] if mask is None else jnp.sum(mask)
            return trees.add_scaled(total, here, gradient), rows + jnp.asarray(here, dtype)

        zero = trees.zeros_like(variables.params), jnp.zeros((), dtype)
        total, rows = counted_loop(num_chunks, body, zero)
        return trees.scale(1 / jnp.maximum(rows, 1), total)

    def minibatch_gradient(variables, adjust=None):
        batch, mask = feeding.extra(examples, feed, key)
        return gradient_of(variables, batch, mask, adjust)

    return ProbeData(full_gradient, minibatch_gradient, client, own_key)
