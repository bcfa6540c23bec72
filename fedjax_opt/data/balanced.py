"""Clients of equal size whose label mixtures are drawn from a Dirichlet distribution."""

from typing import Any

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.data.draws import (
    check_from_zero,
    check_labels,
    check_sizes,
    deal,
    even_sizes,
    log_weights,
    members_by_class,
    normalised,
)
from fedjax_opt.data.partition import label_shards


def balanced_dirichlet(labels: Any, num_clients: int, alpha: float, *, seed: int = 0) -> np.ndarray:
    r"""Draws each client's label mixture from a Dirichlet distribution; all clients are equally large.

    Client `k` gets `n / num_clients` examples, rounded up or down, in the proportions
    `q_k ~ Dirichlet(alpha C p)`, where `C` is the number of classes and `p` their proportions in the
    data: with equally frequent classes the symmetric `Dirichlet(alpha, ..., alpha)` of FedACG. Where
    the clients together ask for more of a class than there is, they are served in a random order, and
    those who come too late make up the rest from other classes, in their proportions in `q_k`.

    `alpha=0` gives clients one class each, except for those that a border between the sorted classes
    falls on: none if every class is a multiple of a client's size. `alpha=inf` gives every client an
    equal part of each class, rounded up or down.

    GHBM draws from `Dir(a p)`, where `p` sums to one: there its `a` is `C` times this `alpha`.

    Args:
      labels: Class of each example, `[n]`, integers or strings.
      num_clients: Number of clients, at most `n`.
      alpha: Concentration per class, from 0 to infinity, both included.
      seed: Seed of the draws.

    Returns:
      Client ids, int32 `[n]`, each in `[0, num_clients)`.

    Example:
      >>> labels = np.repeat([0, 1, 2], 100)
      >>> np.bincount(balanced_dirichlet(labels, num_clients=6, alpha=0.3))
      array([50, 50, 50, 50, 50, 50])
      >>> ids = balanced_dirichlet(labels, num_clients=6, alpha=0.0)
      >>> [len(set(labels[ids == client])) for client in range(6)]
      [1, 1, 1, 1, 1, 1]

    Reference:
      Kim, Kim and Han, Communication-efficient federated learning with accelerated client gradient,
      2024, section 5 (equal sizes, symmetric Dirichlet distribution).
      Hsu, Qi and Brown, Federated visual classification with real-world data distribution, 2020.
    """
    labels = check_labels("labels", labels)
    checks.integer("seed", seed, low=0)
    num_clients = check_sizes(len(labels), num_clients, 1)
    check_from_zero("alpha", alpha)
    if alpha == 0:
        return label_shards(labels, num_clients, shards_per_client=1, seed=seed)
    rng = np.random.default_rng(seed)
    _, codes, supply = np.unique(labels, return_inverse=True, return_counts=True)
    if np.isposinf(alpha):
        return _same_mixture(codes, supply, num_clients, rng)
    sizes = even_sizes(len(labels), num_clients)
    # An alpha beyond 1e15 makes no difference, but the product would lose the proportions.
    concentrations = min(float(alpha), 1e15) * (len(supply) * supply / len(labels))
    logs = log_weights(np.tile(concentrations, (num_clients, 1)), rng)
    counts = _whole(_amounts(logs, sizes, supply), sizes, supply, rng)
    # The last ones came too late: they should not be the last by number as well.
    return deal(codes, rng.permutation(counts), rng)


def _same_mixture(
    codes: np.ndarray, supply: np.ndarray, num_clients: int, rng: np.random.Generator
) -> np.ndarray:
    """Deals one class after the other, one example to each client in turn."""
    ids = np.empty(len(codes), np.int32)
    rows = np.concatenate([rng.permutation(rows) for rows in members_by_class(codes, supply)])
    ids[rows] = rng.permutation(num_clients)[np.arange(len(codes)) % num_clients]
    return ids


def _amounts(logs: np.ndarray, sizes: np.ndarray, supply: np.ndarray) -> np.ndarray:
    """What each client gets of each class, fractions included: rows sum to sizes, columns to supply."""
    amounts = np.zeros(logs.shape)
    left = supply.astype(float)
    for _ in supply:  # each turn but the last empties a class
        missing = np.maximum(sizes - amounts.sum(1), 0.0)
        wanted = normalised(logs, left > 0) * missing[:, None]
        asked = wanted.sum(0)
        short = asked > left
        # First come, first served: few clients then stray from their mixture, instead of all a little.
        before = np.cumsum(wanted, axis=0) - wanted
        given = np.where(short, np.clip(left - before, 0.0, wanted), wanted)
        amounts += given
        left = np.where(short, 0.0, left - asked)
        if not short.any():
            break
    return amounts


def _whole(
    amounts: np.ndarray, sizes: np.ndarray, supply: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Rounds the amounts at random, such that rows still sum to sizes and columns to supply."""
    # Systematic sampling in each row, as in `rounded`: rows are then right, columns nearly so.
    ends = np.minimum(np.cumsum(amounts, axis=1), sizes[:, None])
    ends[:, -1] = sizes
    ends = np.floor(ends + rng.random((len(sizes), 1))).astype(np.int64)
    counts = np.diff(ends, axis=1, prepend=0)
    excess = counts.sum(0) - supply
    while excess.any():
        giver, taker = int(excess.argmax()), int(excess.argmin())
        # One example each is moved by the clients that this takes the least from their amounts: those
        # that were rounded up in the one class and down in the other, rather than any others.
        cost = (counts[:, taker] - amounts[:, taker]) - (counts[:, giver] - amounts[:, giver])
        able = np.flatnonzero(counts[:, giver] > 0)
        moves = min(excess[giver], -excess[taker], len(able))
        movers = able[np.argsort(cost[able], kind="stable")[:moves]]
        counts[movers, giver] -= 1
        counts[movers, taker] += 1
        excess[giver] -= moves
        excess[taker] += moves
    return counts
