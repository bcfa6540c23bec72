"""Who takes part in a round. A sampler is a pure function of key and round: it keeps no state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.permutation import permuted
from fedjax_opt.core.sampler import Sampler as Sampler
from fedjax_opt.core.sampler import uniform as uniform
from fedjax_opt.core.sampler import unreliable as unreliable


def cyclic(size: int) -> Sampler:
    """S clients after the other, in a fixed order that starts again after the last.

    Args:
      size: S, the size of the cohort.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> fo.cohorts.cyclic(2).draw(jax.random.key(0), 1, 3)[0].tolist()
      [2, 0]
    """
    size = checks.integer("size", size, low=1)
    return Sampler(Partial(_cyclic), size)


def weighted(size: int, weights: Any) -> Sampler:
    """S different clients, drawn one after the other with probability proportional to a weight.

    Args:
      size: S, the size of the cohort.
      weights: `[N]`, not negative; at least S of them positive.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> sampler = fo.cohorts.weighted(1, [0.0, 1.0, 0.0])
      >>> sampler.draw(jax.random.key(0), 0, 3)[0].tolist()
      [1]
    """
    size = checks.integer("size", size, low=1)
    weights = jnp.asarray(weights, jnp.result_type(float))
    if weights.ndim != 1:
        raise ValueError(f"weights must be a list of N numbers, got shape {weights.shape}.")
    checks.number("weights", weights, low=0.0, open_high=True)
    if not checks.is_traced(weights) and int(np.sum(np.asarray(weights) > 0)) < size:
        raise ValueError(
            f"weights must hold at least size={size} positive entries, got"
            f" {int(np.sum(np.asarray(weights) > 0))}."
        )
    return Sampler(Partial(_weighted, weights), size, weights.shape[0])


def dynamic_pool(size: int, pool_size: int, every: int) -> Sampler:
    """S different clients out of a random pool that is drawn anew every n rounds.

    Args:
      size: S, the size of the cohort.
      pool_size: the clients of the pool, at least S.
      every: n, the rounds for which a pool stays.

    Example:
      250 candidates for 100 rounds, 10 of them in each, as in the FedACG paper:

      >>> import fedjax_opt as fo
      >>> sampler = fo.cohorts.dynamic_pool(10, pool_size=250, every=100)

    Reference:
      Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient.
      CVPR 2024.
    """
    size = checks.integer("size", size, low=1)
    pool_size = checks.integer("pool_size", pool_size, low=size)
    every = checks.integer("every", every, low=1)
    return Sampler(Partial(_dynamic_pool, pool_size, every), size, least_population=pool_size)


def available(size: int, availability: Any) -> Sampler:
    """S different clients out of those that are reachable in the round.

    Where fewer than S are reachable, all of them take part and the remaining slots stay empty.

    Args:
      size: S, the size of the cohort.
      availability: the probability that a client is reachable, `[N]`; or `[T, N]`, a trace whose row
        t mod T holds in round t; or a function of the round that returns `[N]`.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> sampler = fo.cohorts.available(2, [0.0, 0.0, 1.0])
      >>> ids, present = sampler.draw(jax.random.key(0), 0, 3)
      >>> int(ids[0]), present.tolist()
      (2, [True, False])
    """
    size = checks.integer("size", size, low=1)
    if callable(availability):
        return Sampler(Partial(_available, as_partial(availability)), size)
    availability = jnp.asarray(availability, jnp.result_type(float))
    if availability.ndim not in (1, 2):
        raise ValueError(f"availability must be [N] or [T, N], got shape {availability.shape}.")
    checks.number("availability", availability, low=0.0, high=1.0)
    trace = jnp.atleast_2d(availability)
    return Sampler(Partial(_available, trace), size, trace.shape[1])


def _cyclic(size, key, round_number, num_clients):
    del key
    num_clients = jnp.asarray(num_clients, jnp.uint32)
    turn = jnp.asarray(round_number, jnp.uint32) % num_clients
    # turn * size mod N, bit by bit: the product itself may not fit into 32 bits.
    first = jnp.zeros((), jnp.uint32)
    for bit in f"{size:b}":
        first = (2 * first) % num_clients
        first = (first + jnp.uint32(int(bit)) * turn) % num_clients
    ids = (first + jnp.arange(size, dtype=jnp.uint32)) % num_clients
    return ids.astype(jnp.int32), _all_filled(size)


def _weighted(weights, size, key, round_number, num_clients):
    del num_clients
    return _top(size, jnp.log(weights), jax.random.fold_in(key, round_number))


def _dynamic_pool(pool_size, every, size, key, round_number, num_clients):
    pool_key, choice_key = jax.random.split(key)
    slots = jnp.arange(size, dtype=jnp.int32)
    in_pool = permuted(jax.random.fold_in(choice_key, round_number), slots, pool_size)
    pool = jnp.asarray(round_number, jnp.int32) // every
    return permuted(jax.random.fold_in(pool_key, pool), in_pool, num_clients), _all_filled(size)


def _available(availability, size, key, round_number, num_clients):
    if callable(availability):
        chance = jnp.asarray(availability(round_number))
        if not checks.is_traced(num_clients) and chance.shape != (int(num_clients),):
            raise ValueError(
                f"availability must return one value per client, [{int(num_clients)}], got shape"
                f" {chance.shape}."
            )
    else:
        chance = availability[round_number % availability.shape[0]]
    reachable_key, choice_key = jax.random.split(jax.random.fold_in(key, round_number))
    reachable = jax.random.bernoulli(reachable_key, chance)
    return _top(size, jnp.where(reachable, 0.0, -jnp.inf), choice_key)


def _all_filled(size):
    return jnp.ones((size,), bool)


def _top(size, log_weights, key):
    """Sampling without replacement: the largest of log-weights plus Gumbel noise."""
    scores = log_weights + jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    best, ids = jax.lax.top_k(scores, size)
    return ids.astype(jnp.int32), best > -jnp.inf
