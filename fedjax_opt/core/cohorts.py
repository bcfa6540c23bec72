"""Who takes part in a round. A sampler is a pure function of key and round: it keeps no state."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.permutation import permuted

# Rounds are below 2^31 - 1, so this one never names a round's stream of random numbers.
_RELIABILITY = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampler:
    """How a cohort is drawn.

    Attributes:
      function: (size, key, round, num_clients) -> (ids `[S]`, done `[S]`). The key is the same in every
        round. `done` says which slots are filled; where `falls_short`, which fraction of its local steps
        the client there takes. A slot that nobody fills is not done; its id means nothing.
      size: S, the size of the cohort.
      population: the number of clients that the sampler was made for; None if any will do.
      least_population: the number of clients that it needs; None for no more than `size`.
      falls_short: whether clients may take only some of their local steps.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.cohorts.uniform(10).size
      10
    """

    function: Any
    size: int = dataclasses.field(metadata={"static": True})
    population: int | None = dataclasses.field(default=None, metadata={"static": True})
    least_population: int | None = dataclasses.field(default=None, metadata={"static": True})
    falls_short: bool = dataclasses.field(default=False, metadata={"static": True})

    def draw(self, key: jax.Array, round_number: Any, num_clients: Any) -> tuple[Any, Any]:
        """The ids of the cohort of a round `[S]`, and how much of their work is done `[S]`."""
        return self.function(self.size, key, round_number, num_clients)

    def asks(self, key: jax.Array, round_number: Any, num_clients: Any) -> tuple[Any, Any]:
        """The ids of those who are asked, whether they report or not, and which slots they fill."""
        function = self.function
        while getattr(function, "func", None) is _unreliable:
            function = function.args[0]
        ids, done = function(self.size, key, round_number, num_clients)
        return ids, done.astype(bool)


def uniform(size: int) -> Sampler:
    """S different clients, every set of S equally likely; the time does not grow with N.

    Args:
      size: S, the size of the cohort.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> ids, present = fo.cohorts.uniform(3).draw(jax.random.key(0), 0, 3)
      >>> sorted(ids.tolist())
      [0, 1, 2]
    """
    size = checks.integer("size", size, low=1)
    return Sampler(Partial(_uniform), size)


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


def unreliable(
    sampler: Sampler, dropout: Any = 0.0, stragglers: Any = 0.0, slowest: Any = 0.0
) -> Sampler:
    """A sampler whose clients may never report, or report with some of their local steps undone.

    Who reports is aggregated, with the weights and the participation C of those who did; a client that
    never reports keeps its state. A round in which nobody reports changes nothing.

    Args:
      sampler: who is asked.
      dropout: the probability that a client never reports, a number or one per client `[N]`.
      stragglers: the probability that a client which does report was too slow for all its K steps, a
        number or one per client `[N]`. It then took a fraction of them that is uniform in
        [slowest, 1), rounded up: at least one.
      slowest: the smallest such fraction, in [0, 1].

    Example:
      A tenth of the clients drop out, and every second of the others is too slow:

      >>> import fedjax_opt as fo
      >>> sampler = fo.cohorts.unreliable(fo.cohorts.uniform(10), dropout=0.1, stragglers=0.5)

    Reference:
      Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks.
      MLSys 2020.
    """
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a Sampler of fedjax_opt.cohorts, got {sampler!r}.")
    chances = []
    population = sampler.population
    for name, chance in (("dropout", dropout), ("stragglers", stragglers)):
        chance = jnp.asarray(checks.number(name, chance, low=0.0, high=1.0), jnp.result_type(float))
        if chance.ndim > 1 or (chance.ndim == 1 and population not in (None, chance.shape[0])):
            raise ValueError(
                f"{name} must be a number or one per client, got shape {chance.shape}."
            )
        population = chance.shape[0] if chance.ndim == 1 else population
        chances.append(chance)
    slowest = checks.number("slowest", slowest, low=0.0, high=1.0)
    if np.ndim(slowest):
        raise ValueError(f"slowest must be a number, got shape {np.shape(slowest)}.")
    inner = sampler.function
    depth = inner.args[-1] + 1 if getattr(inner, "func", None) is _unreliable else 0
    return dataclasses.replace(
        sampler,
        function=Partial(_unreliable, inner, *chances, slowest, depth),
        population=population,
        falls_short=True,
    )


def _unreliable(
    function, dropout, stragglers, slowest, depth, size, key, round_number, num_clients
):
    ids, done = function(size, key, round_number, num_clients)
    # Apart from the stream that drew the cohort: who is asked does not depend on who answers.
    # One unreliable sampler inside of another has luck of its own.
    key = jax.random.fold_in(jax.random.fold_in(key, _RELIABILITY), depth)
    key = jax.random.fold_in(key, round_number)
    drop_key, slow_key, speed_key = jax.random.split(key, 3)

    def happens(key, chance):
        chance = chance if chance.ndim == 0 else chance.at[ids].get(mode="clip")
        return jax.random.bernoulli(key, chance, ids.shape)

    dtype = jnp.result_type(float)
    speed = jax.random.uniform(speed_key, ids.shape, dtype, minval=slowest, maxval=1.0)
    # A client that is asked and not lost does some of its work, however slow.
    speed = jnp.maximum(speed, jnp.finfo(dtype).tiny)
    finished = jnp.where(happens(slow_key, stragglers), speed, jnp.ones_like(speed))
    lost = happens(drop_key, dropout)
    return ids, jnp.where(lost, jnp.zeros_like(speed), finished) * done.astype(dtype)


def _uniform(size, key, round_number, num_clients):
    slots = jnp.arange(size, dtype=jnp.int32)
    return permuted(jax.random.fold_in(key, round_number), slots, num_clients), _all_filled(size)


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
