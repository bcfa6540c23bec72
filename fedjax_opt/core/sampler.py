"""How a cohort is drawn, and who of it reports."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.permutation import permuted
from fedjax_opt.core.struct import put, struct

# Rounds are below 2^31 - 1, so this one never names a round's stream of random numbers.
_RELIABILITY = 2**31 - 1


@struct("size", "population", "least_population", "falls_short")
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
      punctual: whether clients meet a deadline, one for all or one per client `[N]`: who does not is
        asked in vain. None without a deadline.

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
    punctual: Any = None

    def __post_init__(self) -> None:
        put(self, function=as_partial(self.function))

    def draw(self, key: jax.Array, round_number: Any, num_clients: Any) -> tuple[Any, Any]:
        """The ids of the cohort of a round `[S]`, and how much of their work is done `[S]`."""
        if self.punctual is None:
            return self.function(self.size, key, round_number, num_clients)
        ids, done = self.function(self.size, key, round_number, num_clients)
        return ids, jnp.where(self.late(ids), jnp.zeros_like(done), done)

    def asks(self, key: jax.Array, round_number: Any, num_clients: Any) -> tuple[Any, Any]:
        """The ids of those who are asked, whether they report or not, and which slots they fill."""
        function = self.function
        while getattr(function, "func", None) is _unreliable:
            function = function.args[0]
        ids, done = function(self.size, key, round_number, num_clients)
        return ids, done.astype(bool)

    def late(self, ids: jax.Array) -> jax.Array:
        """Which of some clients would miss the deadline, `[S]`."""
        if self.punctual is None:
            return jnp.zeros(ids.shape, bool)
        punctual = jnp.asarray(self.punctual)
        there = punctual if punctual.ndim == 0 else punctual.at[ids].get(mode="clip")
        return jnp.broadcast_to(~there, ids.shape)


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
    return permuted(jax.random.fold_in(key, round_number), slots, num_clients), jnp.ones(
        (size,), bool
    )
