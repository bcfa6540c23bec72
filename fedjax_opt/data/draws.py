"""What the splits of a data set share: shares drawn, rounded and dealt out, and checks."""

import heapq
from typing import Any

import numpy as np

from fedjax_opt.core import checks

# Beyond these a concentration makes no difference to float64: one weight is all, or all are equal.
_SMALLEST, _LARGEST = 1e-300, 1e30


def dirichlet_shares(
    num_classes: int, num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draws Dirichlet `[num_classes, num_clients]` shares; safe for any positive `alpha`."""
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


def log_weights(concentrations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of independent gamma variables, finite for any concentrations from 0 to infinity.

    Any of them, divided by their sum, are Dirichlet: weights may be left out later, and the others
    keep their proportions however small they are.
    """
    a = np.clip(concentrations, _SMALLEST, _LARGEST)
    # Gamma(a) = Gamma(a + 1) * U**(1 / a), with U in (0, 1].
    return np.log(rng.standard_gamma(a + 1)) + np.log1p(-rng.random(a.shape)) / a


def normalised(logs: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The weights as shares of the last axis, of the allowed ones only; zero if none is allowed."""
    logs = np.where(allowed, logs, -np.inf)
    largest = logs.max(-1, keepdims=True)
    weights = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1.0)


def rounded(shares: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Splits `size` into whole numbers by systematic sampling: each exact in expectation."""
    # One random offset rounds every share up or down.
    ends = np.append(np.cumsum(shares)[:-1] * size, size)
    ends = np.floor(np.minimum(ends, size) + rng.random()).astype(np.int64)
    return np.diff(ends, prepend=0)


def even_sizes(n: int, parts: int) -> np.ndarray:
    """Splits `n` into whole numbers that differ by at most one, the larger ones first."""
    return n // parts + (np.arange(parts) < n % parts)


def members_by_class(codes: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """The rows of each class, in the order of the sorted classes and of the data."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])


def deal(codes: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Client ids int32 that give client i `counts[i, c]` examples of class c, drawn at random."""
    ids = np.empty(len(codes), np.int32)
    for c, members in enumerate(members_by_class(codes, counts.sum(0))):
        ids[rng.permutation(members)] = np.repeat(np.arange(len(counts)), counts[:, c])
    return ids


def fill(ids: np.ndarray, num_clients: int, min_size: int, rng: np.random.Generator) -> np.ndarray:
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
    if missing.any():
        members = members_by_class(ids, sizes)
        moved = [
            rng.choice(members[client], sizes[client] - kept[client], replace=False)
            for client in np.flatnonzero(kept < sizes)
        ]
        ids[rng.permutation(np.concatenate(moved))] = np.repeat(np.arange(num_clients), missing)
    return ids


def check_from_zero(name: str, value: Any) -> None:
    """Refuses anything but a number from zero to infinity."""
    real = isinstance(value, (int, float, np.integer, np.floating))
    if not real or not value >= 0:  # Written so that NaN is refused too.
        raise ValueError(f"{name} must be a number from 0 to infinity, got {value!r}.")


def check_count(labels_or_n: Any) -> int:
    """The number of examples, given itself or by their labels."""
    if np.ndim(labels_or_n) == 0:
        return checks.integer("labels_or_n", labels_or_n, low=1)
    return len(check_labels("labels_or_n", labels_or_n))


def check_labels(name: str, labels: Any) -> np.ndarray:
    """The labels as a vector."""
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"{name} must be a vector with at least one label, got shape {list(array.shape)}."
        )
    if array.dtype.kind == "O":
        try:
            np.unique(array)
        except TypeError as error:
            raise ValueError(f"{name} must be all integers or all strings: {error}.") from error
    return array


def check_sizes(n: int, num_clients: Any, min_size: int) -> int:
    """The number of clients, of which each can have `min_size` of `n` examples."""
    num_clients = checks.integer("num_clients", num_clients, low=1)
    if num_clients * min_size > n:
        raise ValueError(
            f"num_clients must be at most {n // min_size}, so that each client can have {min_size}"
            f" of the {n} examples, got {num_clients}."
        )
    return num_clients
