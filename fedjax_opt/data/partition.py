"""Splits of a labelled data set over clients.

Each function returns one client id per example, so the examples of client `k` are
`np.flatnonzero(ids == k)`. The same arguments give the same split.
"""

import heapq
from typing import Any

import numpy as np

from fedjax_opt.core import checks


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
    if np.ndim(labels_or_n) == 0:
        n = checks.integer("labels_or_n", labels_or_n, low=1)
    else:
        n = len(_labels("labels_or_n", labels_or_n))
    checks.integer("seed", seed, low=0)
    _sizes(n, num_clients, 1)
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
    labels = _labels("labels", labels)
    checks.integer("seed", seed, low=0)
    checks.integer("num_clients", num_clients, low=1)
    checks.integer("shards_per_client", shards_per_client, low=1)
    n, num_shards = len(labels), num_clients * shards_per_client
    if num_shards > n:
        raise ValueError(
            f"num_clients * shards_per_client must be at most {n}, the number of examples, got"
            f" {num_clients} * {shards_per_client} = {num_shards}."
        )
    # Each client's shards, drawn before the labels are looked at: a test set gets the same deal.
    dealt = np.random.default_rng(seed).permutation(num_shards) // shards_per_client
    sizes = np.full(num_shards, n // num_shards)
    sizes[: n % num_shards] += 1
    ids = np.empty(n, np.int32)
    ids[np.argsort(labels, kind="stable")] = np.repeat(dealt, sizes)
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
    labels = _labels("labels", labels)
    checks.integer("seed", seed, low=0)
    checks.integer("min_size", min_size, low=0)
    _sizes(len(labels), num_clients, min_size)
    real = isinstance(alpha, (int, float, np.integer, np.floating))
    if not real or not alpha >= 0:  # Written so that NaN is refused too.
        raise ValueError(f"alpha must be a number from 0 to infinity, got {alpha!r}.")
    if np.isposinf(alpha) and num_clients <= len(labels):
        return iid(labels, num_clients, seed)

    rng = np.random.default_rng(seed)
    classes, sizes = np.unique(labels, return_counts=True)
    shares = (
        _one_class_shares(sizes, num_clients, rng)
        if alpha == 0
        else _dirichlet_shares(len(classes), num_clients, alpha, rng)
    )
    ids = np.empty(len(labels), np.int32)
    for c, size, share in zip(classes, sizes, shares, strict=True):
        # Systematic sampling: one random offset rounds every client's share up or down.
        ends = np.append(np.cumsum(share)[:-1] * size, size)
        ends = np.floor(np.minimum(ends, size) + rng.random()).astype(np.int64)
        counts = np.diff(ends, prepend=0)
        ids[rng.permutation(np.flatnonzero(labels == c))] = np.repeat(
            np.arange(num_clients), counts
        )
    return _fill(ids, num_clients, min_size, rng)


def _dirichlet_shares(
    num_classes: int, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws `[num_classes, num_clients]` shares; safe for any positive `alpha`."""
    shape = (num_classes, num_clients)
    if np.isposinf(alpha):
        weights = np.ones(shape)
    elif alpha >= 1:
        # Divided by alpha, the mean, first: the sum below must not overflow.
        weights = rng.standard_gamma(alpha, shape) / alpha
    else:
        # Gamma(alpha) = Gamma(alpha + 1) * U**(1 / alpha), which underflows for small alpha. Taking
        # the largest out before dividing by alpha keeps at least one weight of a class at 1.
        logs = np.log1p(-rng.random(shape)) + alpha * np.log(rng.standard_gamma(alpha + 1, shape))
        with np.errstate(over="ignore"):
            weights = np.exp((logs - logs.max(1, keepdims=True)) / alpha)
    return weights / weights.sum(1, keepdims=True)


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


def _fill(ids: np.ndarray, num_clients: int, min_size: int, rng: np.random.Generator) -> np.ndarray:
    """Moves examples from the largest clients to those with fewer than `min_size`."""
    sizes = np.bincount(ids, minlength=num_clients)
    missing = np.maximum(min_size - sizes, 0)
    # Sizes alone decide who gives, so no draw is repeated and the loop ends after sum(missing).
    heap = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    for _ in range(missing.sum()):
        negative, client = heap[0]
        heapq.heapreplace(heap, (negative + 1, client))
    kept = sizes.copy()
    for negative, client in heap:
        kept[client] = -negative
    moved = [
        rng.choice(np.flatnonzero(ids == client), sizes[client] - kept[client], replace=False)
        for client in np.flatnonzero(kept < sizes)
    ]
    if moved:
        ids[rng.permutation(np.concatenate(moved))] = np.repeat(np.arange(num_clients), missing)
    return ids


def _labels(name: str, labels: Any) -> np.ndarray:
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"{name} must be a vector with at least one label, got shape {list(array.shape)}."
        )
    return array


def _sizes(n: int, num_clients: Any, min_size: int) -> None:
    checks.integer("num_clients", num_clients, low=1)
    if num_clients * min_size > n:
        raise ValueError(
            f"num_clients must be at most {n // min_size}, so that each client can have {min_size}"
            f" of the {n} examples, got {num_clients}."
        )
