"""Who takes part in a round. A sampler is a pure function of key and round: it keeps no state."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.aliases import Number, Values
from fedjax_opt.core.permutation import permuted
from fedjax_opt.core.struct import put, struct

# Rounds are below 2^31 - 1, so this one never names a round's stream of random numbers.
_RELIABILITY = 2**31 - 1


class Draw(NamedTuple):
    """Who was drawn for a round, and what became of it; arrays `[S]`."""

    ids: jax.Array  # that of a slot which nobody fills means nothing
    done: jax.Array  # which slots report; or the fraction of its local steps that the client takes
    asked: jax.Array  # the ids of those who were asked, whether they report or not; -1 for nobody
    late: jax.Array | bool  # which of them miss the sampler's deadline


class _Failures(NamedTuple):
    """The arguments of `unreliable`."""

    dropout: jax.Array
    stragglers: jax.Array
    slowest: Number


@struct("size", "population", "least_population", "falls_short", "asked")
class Sampler:
    """How a cohort is drawn.

    Attributes:
      function: (size, key, round, num_clients) -> (ids `[S]`, done `[S]`), as `Draw` has them. The key
        is the same in every round.
      size: S, the size of the cohort.
      population: the number of clients that the sampler was made for; None if any will do.
      least_population: the number of clients that it needs; None for no more than `size`.
      falls_short: whether clients may take only some of their local steps.
      punctual: whether clients meet a deadline, one for all or one per client `[N]`: who does not is
        asked in vain. None without a deadline.
      failures: what `unreliable` was told, once for each time that it was called.
      asked: how many are drawn, of whom the first S to report are the cohort; None for S.
      seconds: how long a client takes for a round, where it matters who is first `[N]`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.cohorts.uniform(10).size
      10
    """

    function: Callable[..., tuple[jax.Array, jax.Array]]
    size: int
    population: int | None = None
    least_population: int | None = None
    falls_short: bool = False
    punctual: chex.Array | None = None
    failures: tuple[_Failures, ...] = ()
    asked: int | None = None
    seconds: chex.Array | None = None

    def __post_init__(self) -> None:
        put(self, function=as_partial(self.function))

    def draw(
        self, key: chex.PRNGKey, round_number: Number, num_clients: Number
    ) -> tuple[jax.Array, jax.Array]:
        """The ids of the cohort of a round `[S]`, and how much of their work is done `[S]`."""
        drawn = self.outcome(key, round_number, num_clients)
        return drawn.ids, drawn.done

    def outcome(self, key: chex.PRNGKey, round_number: Number, num_clients: Number) -> Draw:
        """All that is drawn for a round."""
        ids, done = self.function(self.asked or self.size, key, round_number, num_clients)
        asked, late = jnp.where(done.astype(bool), ids, -1), False
        for depth, failures in enumerate(self.failures):
            # Apart from the stream that drew the cohort: who is asked does not depend on who answers.
            # Each reason to fail has luck of its own.
            own = jax.random.fold_in(jax.random.fold_in(key, _RELIABILITY), depth)
            done = _finished(failures, jax.random.fold_in(own, round_number), ids, done)
        if self.punctual is not None:
            late = jnp.broadcast_to(~_of_clients(self.punctual, ids), ids.shape)
            done = jnp.where(late, jnp.zeros_like(done), done)
        drawn = Draw(ids, done, asked, late)
        if self.seconds is None:
            return drawn
        needed = jnp.where(done.astype(bool), _of_clients(self.seconds, ids), jnp.inf)
        # Stable: whoever was drawn first is first among equals.
        first = jnp.argsort(needed)[: self.size]
        return jax.tree.map(lambda x: x[first] if jnp.ndim(x) else x, drawn)


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
    return Sampler(Partial(_uniform), checks.integer("size", size, low=1))


def cyclic(size: int) -> Sampler:
    """The next S clients in id order, starting again from client 0 after the last.

    Args:
      size: S, the size of the cohort.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> fo.cohorts.cyclic(2).draw(jax.random.key(0), 1, 3)[0].tolist()
      [2, 0]
    """
    return Sampler(Partial(_cyclic), checks.integer("size", size, low=1))


def weighted(size: int, weights: Values) -> Sampler:
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
    positive = size if checks.is_traced(weights) else int(np.sum(np.asarray(weights) > 0))
    if positive < size:
        raise ValueError(
            f"weights must hold at least size={size} positive entries, got {positive}."
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


def available(size: int, availability: Values | Callable[[jax.Array], jax.Array]) -> Sampler:
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
    sampler: Sampler,
    dropout: Values = 0.0,
    stragglers: Values = 0.0,
    slowest: Number = 0.0,
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
    failures = (*sampler.failures, _Failures(chances[0], chances[1], slowest))
    return dataclasses.replace(sampler, population=population, falls_short=True, failures=failures)


def first_to_report(sampler: Sampler, size: int | float, seconds: Values) -> Sampler:
    """The first S of those whom a sampler asks: the round ends once so many have reported.

    Who drops out or misses a deadline never reports, wherever that is said; where fewer than S are left,
    the remaining slots stay empty. The others' work is lost, and is not simulated: the cohort, C and the
    costs are those of the S. Slow clients are rarely among them, so what they know hardly reaches the
    model.

    Args:
      sampler: who is asked, S' clients.
      size: S, from 1 to S'; or below 1 the share of those asked, rounded up.
      seconds: how long each client takes for a round `[N]`, such as `costs.client_seconds` returns. A
        client that finishes only some of its steps takes no less.

    Example:
      Six are asked, the first half of them is waited for:

      >>> import jax
      >>> import fedjax_opt as fo
      >>> fleet = fo.costs.devices(20.0, 5.0, [9.0, 0.1, 0.3, 9.0, 0.2, 9.0])
      >>> seconds = fo.costs.client_seconds(fleet, num_steps=2, megabits_down=4.0, megabits_up=4.0)
      >>> sampler = fo.cohorts.first_to_report(fo.cohorts.uniform(6), 0.5, seconds)
      >>> sampler.draw(jax.random.key(0), 0, 6)[0].tolist()
      [1, 4, 2]

    Reference:
      Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
      computing. IEEE Transactions on Parallel and Distributed Systems, 2022. Section 3.
    """
    if not isinstance(sampler, Sampler):
        raise ValueError(f"sampler must be a Sampler of fedjax_opt.cohorts, got {sampler!r}.")
    if sampler.seconds is not None:
        raise ValueError("sampler must not be one of first_to_report already: a round has one end.")
    if isinstance(size, float) and 0 < size < 1:
        # Rounding up what rounding has pushed above a whole number would ask for one too many.
        size = math.ceil(size * sampler.size * (1 - 1e-12))
    size = checks.integer("size", size, low=1, high=sampler.size)
    seconds = jnp.asarray(seconds, jnp.result_type(float))
    if seconds.ndim != 1 or sampler.population not in (None, seconds.shape[0]):
        count = "N" if sampler.population is None else f"N={sampler.population}"
        raise ValueError(f"seconds must be one per client [{count}], got shape {seconds.shape}.")
    if sampler.size > seconds.shape[0]:
        raise ValueError(
            f"sampler must ask at most all {seconds.shape[0]} clients that seconds has, got"
            f" {sampler.size}."
        )
    checks.number("seconds", seconds, low=0.0)
    return dataclasses.replace(
        sampler,
        size=size,
        population=seconds.shape[0],
        asked=sampler.size,
        seconds=seconds,
    )


def _finished(failures: _Failures, key, ids, done):
    """How much of its work each client does."""
    drop_key, slow_key, speed_key = jax.random.split(key, 3)
    dtype = jnp.result_type(float)
    speed = jax.random.uniform(speed_key, ids.shape, dtype, minval=failures.slowest, maxval=1.0)
    # A client that is asked and not lost does some of its work, however slow.
    speed = jnp.maximum(speed, jnp.finfo(dtype).tiny)
    slow = jax.random.bernoulli(slow_key, _of_clients(failures.stragglers, ids), ids.shape)
    lost = jax.random.bernoulli(drop_key, _of_clients(failures.dropout, ids), ids.shape)
    finished = jnp.where(slow, speed, jnp.ones_like(speed))
    return jnp.where(lost, jnp.zeros_like(speed), finished) * done.astype(dtype)


def _of_clients(value, ids):
    """What is one number, or one per client, of some clients."""
    value = jnp.asarray(value)
    return value if value.ndim == 0 else value.at[ids].get(mode="clip")


def _uniform(size, key, round_number, num_clients):
    slots = jnp.arange(size, dtype=jnp.int32)
    ids = permuted(jax.random.fold_in(key, round_number), slots, num_clients)
    return ids, jnp.ones((size,), bool)


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
    return ids.astype(jnp.int32), jnp.ones((size,), bool)


def _weighted(weights, size, key, round_number, num_clients):
    del num_clients
    return _top(size, jnp.log(weights), jax.random.fold_in(key, round_number))


def _dynamic_pool(pool_size, every, size, key, round_number, num_clients):
    pool_key, choice_key = jax.random.split(key)
    slots = jnp.arange(size, dtype=jnp.int32)
    in_pool = permuted(jax.random.fold_in(choice_key, round_number), slots, pool_size)
    pool = jnp.asarray(round_number, jnp.int32) // every
    ids = permuted(jax.random.fold_in(pool_key, pool), in_pool, num_clients)
    return ids, jnp.ones((size,), bool)


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


def _top(size, log_weights, key):
    """Sampling without replacement: the largest of log-weights plus Gumbel noise."""
    scores = log_weights + jax.random.gumbel(key, log_weights.shape, log_weights.dtype)
    best, ids = jax.lax.top_k(scores, size)
    return ids.astype(jnp.int32), best > -jnp.inf
