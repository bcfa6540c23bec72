"""Splits of a labelled data set over clients.

Each function returns one client id per example, so the examples of client `k` are
`np.flatnonzero(ids == k)`. The same arguments give the same split.
"""

from typing import Any

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.data.draws import (
    check_count,
    check_from_zero,
    check_labels,
    check_sizes,
    dirichlet_shares,
    even_sizes,
    fill,
    members_by_class,
    rounded,
)


def iid(labels_or_n: Any, num_clients: int, seed: int = 0) -> np.ndarray:
    """Deals shuffled examples out evenly: every client gets `n / num_clients`, rounded up or down.

    Args:
      labels_or_n: The labels `[n]`, of which only the number is used, or the number `n` itself.
      num_clients: Number of clients, at most `n`.
      seed: Seed of the shuffling.

    Returns:
      Client ids, int32 `[n]`, each in `[0, num_clients)`.

    Example:
      >>> ids = iid(10, num_clients=4)
      >>> np.bincount(ids)
      array([3, 3, 2, 2])

    Reference:
      H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas.
      Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
    """
    n = check_count(labels_or_n)
    checks.integer("seed", seed, low=0)
    num_clients = check_sizes(n, num_clients, 1)
    return np.random.default_rng(seed).permutation(np.arange(n, dtype=np.int32) % num_clients)


def label_shards(
    labels: Any, num_clients: int, shards_per_client: int = 2, seed: int = 0
) -> np.ndarray:
    r"""Sorts by label, cuts into shards of equal size, and deals each client a few of them.

    The examples are ordered by label, in the order of the data within a label, and cut into
    `num_clients * shards_per_client` contiguous shards whose sizes differ by at most one. The shards
    are dealt at random. A client thus sees few classes: each shard holds one, or a few where it lies
    across the border of classes.

    The deal depends on the seed and the two numbers alone. The same ones with the labels of a test set
    give client `k` the test shards of the same numbers, and so its own training classes, as far as both
    sets hold the classes in the same proportions.

    Args:
      labels: Class of each example, `[n]`, integers or strings.
      num_clients: Number of clients.
      shards_per_client: Shards that each client gets; there may be at most `n` in all.
      seed: Seed of the deal.

    Returns:
      Client ids, int32 `[n]`, each in `[0, num_clients)`.

    Example:
      >>> labels = np.tile([0, 1, 2], 40)
      >>> ids = label_shards(labels, num_clients=6, shards_per_client=1)
      >>> [len(set(labels[ids == client])) for client in range(6)]
      [1, 1, 1, 1, 1, 1]
      >>> np.bincount(ids)
      array([20, 20, 20, 20, 20, 20])

    Reference:
      H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas.
      Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017.
    """
    labels = check_labels("labels", labels)
    checks.integer("seed", seed, low=0)
    num_clients = checks.integer("num_clients", num_clients, low=1)
    shards_per_client = checks.integer("shards_per_client", shards_per_client, low=1)
    n, num_shards = len(labels), num_clients * shards_per_client
    if num_shards > n:
        raise ValueError(
            f"num_clients * shards_per_client must be at most {n}, the number of examples, got"
            f" {num_clients} * {shards_per_client} = {num_shards}."
        )
    # Each client's shards, drawn before the labels are looked at: a test set gets the same deal.
    dealt = np.random.default_rng(seed).permutation(num_shards) // shards_per_client
    ids = np.empty(n, np.int32)
    ids[np.argsort(labels, kind="stable")] = np.repeat(dealt, even_sizes(n, num_shards))
    return ids


def dirichlet(
    labels: Any, num_clients: int, alpha: float, *, seed: int = 0, min_size: int = 1
) -> np.ndarray:
    r"""Splits each class over the clients in proportions drawn from a Dirichlet distribution.

    For each class `c` independently, `p_c ~ Dirichlet(alpha, ..., alpha)` over the clients, and
    client `k` receives `n_c p_c[k]` of the `n_c` examples of the class, rounded up or down at
    random such that the expectation is exact. Small `alpha` gives clients few classes and very
    unequal sizes; large `alpha` gives every client the same mixture.

    Two limits are taken by other rules. `alpha=0` gives each client examples of one class only; if
    there are fewer clients than classes, it gives each class to one client only. `alpha=inf` is
    `iid`.

    Clients with fewer than `min_size` examples are then filled up, one example at a time, from
    whichever client is the largest; only this step can break the rule of `alpha=0`.

    Args:
      labels: Class of each example, `[n]`, integers or strings.
      num_clients: Number of clients, with `num_clients * min_size <= n`.
      alpha: Concentration, from 0 to infinity, both included.
      seed: Seed of the draws.
      min_size: Smallest number of examples of any client; 0 allows clients without data.

    Returns:
      Client ids, int32 `[n]`, each in `[0, num_clients)`.

    Example:
      >>> labels = np.repeat([0, 1, 2], 100)
      >>> ids = dirichlet(labels, num_clients=6, alpha=0.0)
      >>> [len(set(labels[ids == client])) for client in range(6)]
      [1, 1, 1, 1, 1, 1]
      >>> ids = dirichlet(labels, num_clients=6, alpha=0.1, min_size=5)
      >>> int(np.bincount(ids).min())
      5

    Reference:
      M. Yurochkin, M. Agarwal, S. Ghosh, K. Greenewald, N. Hoang and Y. Khazaeni. Bayesian
      Nonparametric Federated Learning of Neural Networks. ICML 2019. (The per-class draw.)
      T.-M. H. Hsu, H. Qi and M. Brown. Measuring the Effects of Non-Identical Data Distribution
      for Federated Visual Classification. arXiv:1909.06335, 2019. (The meaning of `alpha`.)
    """
    labels = check_labels("labels", labels)
    checks.integer("seed", seed, low=0)
    checks.integer("min_size", min_size, low=0)
    num_clients = check_sizes(len(labels), num_clients, min_size)
    check_from_zero("alpha", alpha)
    if np.isposinf(alpha) and num_clients <= len(labels):
        return iid(labels, num_clients, seed)

    rng = np.random.default_rng(seed)
    sizes = np.unique(labels, return_counts=True)[1]
    shares = (
        _one_class_shares(sizes, num_clients, rng)
        if alpha == 0
        else dirichlet_shares(len(sizes), num_clients, alpha, rng)
    )
    ids = np.empty(len(labels), np.int32)
    for members, share in zip(members_by_class(labels, sizes), shares, strict=True):
        counts = rounded(share, len(members), rng)
        ids[rng.permutation(members)] = np.repeat(np.arange(num_clients), counts)
    return fill(ids, num_clients, min_size, rng)


def quantity_skew(
    labels_or_n: Any,
    num_clients: int,
    *,
    alpha: float | None = None,
    power: float | None = None,
    seed: int = 0,
    min_size: int = 1,
) -> np.ndarray:
    r"""Deals shuffled examples out unevenly: clients differ in how much they hold, not in what.

    The shares of the clients are `p ~ Dirichlet(alpha, ..., alpha)`, or follow a power law: those of
    the largest, the second largest, ... client are proportional to `1, 2^-power, 3^-power, ...`. Which
    client is how large is drawn. Clients with fewer than `min_size` examples are then filled up from
    whichever client is the largest.

    Args:
      labels_or_n: The labels `[n]`, of which only the number is used, or the number `n` itself.
      num_clients: Number of clients, with `num_clients * min_size <= n`.
      alpha: Concentration of the Dirichlet distribution, from 0 (one client holds nearly all) to
        infinity (equal sizes).
      power: Exponent of the power law instead, from 0 (equal sizes) to infinity; 1 is Zipf's law.
      seed: Seed of the draws.
      min_size: Smallest number of examples of any client; 0 allows clients without data.

    Returns:
      Client ids, int32 `[n]`, each in `[0, num_clients)`.

    Example:
      >>> np.sort(np.bincount(quantity_skew(1000, num_clients=4, power=1.0)))
      array([120, 160, 240, 480])

    Reference:
      Li, Diao, Chen and He, Federated learning on non-IID data silos: an experimental study, 2022,
      section IV (quantity skew by a Dirichlet distribution).
    """
    n = check_count(labels_or_n)
    checks.integer("seed", seed, low=0)
    checks.integer("min_size", min_size, low=0)
    num_clients = check_sizes(n, num_clients, min_size)
    rng = np.random.default_rng(seed)
    if alpha is not None and power is None:
        check_from_zero("alpha", alpha)
        if alpha == 0:
            shares = np.eye(num_clients)[rng.integers(num_clients)]
        else:
            shares = dirichlet_shares(1, num_clients, alpha, rng)[0]
    elif power is not None and alpha is None:
        check_from_zero("power", power)
        weights = np.arange(1.0, num_clients + 1) ** -float(power)
        shares = rng.permutation(weights / weights.sum())
    else:
        raise ValueError(
            f"Give either alpha or power, and not both, got alpha={alpha!r} and power={power!r}."
        )
    ids = np.repeat(np.arange(num_clients, dtype=np.int32), rounded(shares, n, rng))
    return fill(rng.permutation(ids), num_clients, min_size, rng)


def _one_class_shares(sizes: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Gives each client one class, or each class one client if there are fewer clients."""
    shares = np.zeros((len(sizes), num_clients))
    clients = rng.permutation(num_clients)
    if num_clients < len(sizes):
        shares[rng.permutation(len(sizes)), clients[np.arange(len(sizes)) % num_clients]] = 1.0
        return shares
    # D'Hondt's rule deals clients to classes such that the smallest client is as large as possible.
    given = np.ones(len(sizes), np.int64)
    for _ in range(num_clients - len(sizes)):
        given[np.argmax(sizes / (given + 1))] += 1
    shares[np.repeat(np.arange(len(sizes)), given), clients] = 1.0
    return shares / given[:, None]
