"""Pachinko allocation: clients whose mixtures follow a hierarchy of labels, as CIFAR-100 has one."""

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
    normalised,
)


def pachinko(
    coarse: Any,
    fine: Any,
    num_clients: int,
    *,
    coarse_alpha: float = 0.1,
    fine_alpha: float = 10.0,
    seed: int = 0,
) -> np.ndarray:
    r"""Draws each client's examples by coarse label first, then by fine label within it.

    One client after the other draws `Dirichlet(coarse_alpha)` proportions of the coarse labels, and
    for each of these `Dirichlet(fine_alpha)` proportions of its fine labels. Each of its examples, of
    which it gets `n / num_clients`, rounded up or down, is drawn by them without replacement. A fine
    label that has run out is left out and the others of its coarse label are normalised anew; so are
    coarse labels. The last clients therefore take what the others left.

    Args:
      coarse: Coarse label of each example, `[n]`, integers or strings.
      fine: Fine label of each example, `[n]`. The same one under two coarse labels counts as two.
      num_clients: Number of clients, at most `n`; 500 for the 50,000 examples of CIFAR-100.
      coarse_alpha: Concentration over coarse labels, from 0 (one, while it lasts) to infinity.
      fine_alpha: Concentration over the fine labels of a coarse one, from 0 to infinity.
      seed: Seed of the draws.

    Returns:
      Client ids, int32 `[n]`, each in `[0, num_clients)`.

    Example:
      >>> coarse, fine = np.repeat([0, 1], 60), np.repeat([0, 1, 2, 3], 30)
      >>> ids = pachinko(coarse, fine, num_clients=4, coarse_alpha=0.0)
      >>> [sorted(set(fine[ids == client].tolist())) for client in range(4)]
      [[2, 3], [2, 3], [0, 1], [0, 1]]

    Reference:
      Reddi et al., Adaptive federated optimization, 2021, appendix on a federated CIFAR-100 (500
      clients, 0.1 and 10).
      Li and McCallum, Pachinko allocation: DAG-structured mixture models of topic correlations, 2006.
    """
    coarse, fine = check_labels("coarse", coarse), check_labels("fine", fine)
    if len(coarse) != len(fine):
        raise ValueError(
            f"coarse and fine must be equally long, got {len(coarse)} and {len(fine)} labels."
        )
    checks.integer("seed", seed, low=0)
    num_clients = check_sizes(len(fine), num_clients, 1)
    check_from_zero("coarse_alpha", coarse_alpha)
    check_from_zero("fine_alpha", fine_alpha)
    codes, left = _hierarchy(coarse, fine)
    rng = np.random.default_rng(seed)
    sizes = even_sizes(len(fine), num_clients)
    counts = np.zeros((num_clients, *left.shape), np.int64)
    for client, size in enumerate(sizes):
        coarse_logs = log_weights(np.full((1, len(left)), coarse_alpha), rng)
        by_coarse = _draw(np.array([size]), coarse_logs, left.sum(1)[None], rng)[0]
        fine_logs = log_weights(np.full(left.shape, fine_alpha), rng)
        counts[client] = _draw(by_coarse, fine_logs, left, rng)
        left -= counts[client]
    return deal(codes, counts.reshape(num_clients, -1), rng)


def _hierarchy(coarse: np.ndarray, fine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cell of each example in a table [coarse, fine within it], and how many are in each cell."""
    num_coarse, coarse = _codes(coarse)
    num_fine, fine = _codes(fine)
    pairs, leaf = np.unique(coarse * num_fine + fine, return_inverse=True)
    parent = pairs // num_fine
    first = np.searchsorted(parent, np.arange(num_coarse))
    within = np.arange(len(pairs)) - first[parent]
    width = int(within.max()) + 1
    cells = parent * width + within
    codes = cells[leaf]
    return codes, np.bincount(codes, minlength=num_coarse * width).reshape(num_coarse, width)


def _codes(labels: np.ndarray) -> tuple[int, np.ndarray]:
    classes, codes = np.unique(labels, return_inverse=True)
    return len(classes), codes


def _draw(
    sizes: np.ndarray, logs: np.ndarray, left: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draws `sizes[r]` examples in each row by its weights, at most `left[r, c]` of each class.

    To draw one by one, leaving out what has run out, is to draw from all classes and to draw again
    what fell on an empty one: so all can be drawn at once.
    """
    counts = np.zeros(left.shape, np.int64)
    while (missing := sizes - counts.sum(1)).any():
        shares = normalised(logs, left > counts)
        counts = np.minimum(counts + rng.multinomial(missing, shares), left)
    return counts
