"""Splits of a data set over clients, by labels, by sizes or by natural keys.

Each function returns one client id per example, so the examples of client `k` are
`np.flatnonzero(ids == k)`. The same arguments give the same split.

Reference:
  McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks
  from decentralized data. AISTATS 2017. (`iid`, `label_shards`.)
  Yurochkin et al. Bayesian nonparametric federated learning of neural networks. ICML 2019. (`dirichlet`:
  the draw for each class.)
  Hsu, Qi, Brown. Measuring the effects of non-identical data distribution for federated visual
  classification. arXiv:1909.06335, 2019. (The meaning of its `alpha`.)
  Kim, Kim, Han. Communication-efficient federated learning with accelerated client gradient. 2024,
  section 5. Hsu, Qi, Brown. Federated visual classification with real-world data distribution. 2020.
  (`balanced_dirichlet`.)
  Reddi et al. Adaptive federated optimization. 2021, appendix on a federated CIFAR-100 (500 clients,
  0.1 and 10). Li, McCallum. Pachinko allocation: DAG-structured mixture models of topic correlations.
  2006. (`pachinko`.)
  Li, Diao, Chen, He. Federated learning on non-IID data silos: an experimental study. 2022, section IV.
  (`quantity_skew`.)
"""

import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import numpy as np

from fedjax_opt.core import checks

Labels = chex.ArrayNumpy | Sequence[int] | Sequence[str]

# Beyond these a concentration makes no difference to float64: one weight is all, or all are equal.
_SMALLEST, _LARGEST = 1e-300, 1e30


def iid(labels_or_n: Labels | int, num_clients: int, seed: int = 0) -> chex.ArrayNumpy:
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
    """
    n = _count(labels_or_n)
    num_clients, rng = _begin(n, num_clients, seed)
    return rng.permutation(np.arange(n, dtype=np.int32) % num_clients)


def label_shards(
    labels: Labels, num_clients: int, shards_per_client: int = 2, seed: int = 0
) -> chex.ArrayNumpy:
    """Sorts by label, cuts into shards of equal size, and deals each client a few of them.

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
    """
    codes = _classes("labels", labels).codes
    shards_per_client = checks.integer("shards_per_client", shards_per_client, low=1)
    num_clients, rng = _begin(len(codes), num_clients, seed, shards_per_client)
    num_shards = num_clients * shards_per_client
    # Each client's shards, drawn without a look at the labels: a test set gets the same deal.
    dealt = rng.permutation(num_shards) // shards_per_client
    ids = np.empty(len(codes), np.int32)
    ids[np.argsort(codes, kind="stable")] = np.repeat(dealt, _even_sizes(len(codes), num_shards))
    return ids


def dirichlet(
    labels: Labels, num_clients: int, alpha: float, *, seed: int = 0, min_size: int = 1
) -> chex.ArrayNumpy:
    """Splits each class over the clients in proportions drawn from a Dirichlet distribution.

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
    """
    codes, supply = _classes("labels", labels)
    num_clients, rng = _begin(len(codes), num_clients, seed, min_size, alpha=alpha)
    if np.isposinf(alpha) and num_clients <= len(codes):
        return iid(len(codes), num_clients, seed)
    if alpha == 0:
        shares = _one_class_shares(supply, num_clients, rng)
    else:
        shares = _dirichlet_shares(len(supply), num_clients, alpha, rng)
    ids = np.empty(len(codes), np.int32)
    for members, share in zip(_members(codes, supply), shares, strict=True):
        counts = _rounded(share, len(members), rng)
        ids[rng.permutation(members)] = np.repeat(np.arange(num_clients), counts)
    return _fill(ids, num_clients, min_size, rng)


def balanced_dirichlet(
    labels: Labels, num_clients: int, alpha: float, *, seed: int = 0
) -> chex.ArrayNumpy:
    """Draws each client's label mixture from a Dirichlet distribution; all clients are equally large.

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
    """
    codes, supply = _classes("labels", labels)
    n = len(codes)
    num_clients, rng = _begin(n, num_clients, seed, alpha=alpha)
    if alpha == 0:
        return label_shards(codes, num_clients, shards_per_client=1, seed=seed)
    if np.isposinf(alpha):  # One class after the other, one example to each client in turn.
        ids = np.empty(n, np.int32)
        rows = np.concatenate([rng.permutation(rows) for rows in _members(codes, supply)])
        ids[rows] = rng.permutation(num_clients)[np.arange(n) % num_clients]
        return ids
    sizes = _even_sizes(n, num_clients)
    # An alpha beyond 1e15 makes no difference, but the product would lose the proportions.
    concentrations = min(float(alpha), 1e15) * (len(supply) * supply / n)
    logs = _log_weights(np.tile(concentrations, (num_clients, 1)), rng)
    counts = _whole(_amounts(logs, sizes, supply), sizes, supply, rng)
    # The last ones came too late: they should not be the last by number as well.
    return _deal(codes, rng.permutation(counts), rng)


def pachinko(
    coarse: Labels,
    fine: Labels,
    num_clients: int,
    *,
    coarse_alpha: float = 0.1,
    fine_alpha: float = 10.0,
    seed: int = 0,
) -> chex.ArrayNumpy:
    """Draws each client's examples by coarse label first, then by fine label within it.

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
    """
    parents, children = _classes("coarse", coarse), _classes("fine", fine)
    if len(parents.codes) != len(children.codes):
        raise ValueError(
            f"coarse and fine must be equally long, got {len(parents.codes)} and"
            f" {len(children.codes)} labels."
        )
    n = len(parents.codes)
    num_clients, rng = _begin(
        n, num_clients, seed, coarse_alpha=coarse_alpha, fine_alpha=fine_alpha
    )
    # A table of cells [coarse, fine within it]: which cell each example is in, how many are in each.
    num_coarse, num_fine = len(parents.supply), len(children.supply)
    pairs, leaf = np.unique(parents.codes * num_fine + children.codes, return_inverse=True)
    parent = pairs // num_fine
    within = np.arange(len(pairs)) - np.searchsorted(parent, np.arange(num_coarse))[parent]
    width = int(within.max()) + 1
    cells = (parent * width + within)[leaf]
    left = np.bincount(cells, minlength=num_coarse * width).reshape(num_coarse, width)

    counts = np.zeros((num_clients, *left.shape), np.int64)
    for client, size in enumerate(_even_sizes(n, num_clients)):
        coarse_logs = _log_weights(np.full((1, num_coarse), coarse_alpha), rng)
        by_coarse = _draw(np.array([size]), coarse_logs, left.sum(1)[None], rng)[0]
        fine_logs = _log_weights(np.full(left.shape, fine_alpha), rng)
        counts[client] = _draw(by_coarse, fine_logs, left, rng)
        left -= counts[client]
    return _deal(cells, counts.reshape(num_clients, -1), rng)


def quantity_skew(
    labels_or_n: Labels | int,
    num_clients: int,
    *,
    alpha: float | None = None,
    power: float | None = None,
    seed: int = 0,
    min_size: int = 1,
) -> chex.ArrayNumpy:
    """Deals shuffled examples out unevenly: clients differ in how much they hold, not in what.

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
    """
    given = {"alpha": alpha, "power": power}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) != 1:
        raise ValueError(
            f"Give either alpha or power, and not both, got alpha={alpha!r} and power={power!r}."
        )
    n = _count(labels_or_n)
    num_clients, rng = _begin(n, num_clients, seed, min_size, **given)
    if power is not None:
        weights = np.arange(1.0, num_clients + 1) ** -float(power)
        shares = rng.permutation(weights / weights.sum())
    elif alpha == 0:
        shares = np.eye(num_clients)[rng.integers(num_clients)]
    else:
        shares = _dirichlet_shares(1, num_clients, given["alpha"], rng)[0]
    ids = np.repeat(np.arange(num_clients, dtype=np.int32), _rounded(shares, n, rng))
    return _fill(rng.permutation(ids), num_clients, min_size, rng)


def by_key(
    keys: Sequence[Any] | chex.ArrayNumpy, min_size: int = 1
) -> tuple[chex.ArrayNumpy, tuple[Any, ...]]:
    """Makes a client of all examples that share a key, such as a user, a writer or a role.

    Clients are numbered in the order in which their keys first occur.

    Args:
      keys: One key per example, `[n]`: an array of integers or strings, or a sequence of anything
        hashable, such as pairs of a play and a role. Missing ones (None, NaN) are refused.
      min_size: Smallest number of examples of a client. Clients with fewer are dropped: they have no
        name, and the id of their examples is -1.

    Returns:
      `(ids, names)`: client ids, int32 `[n]`, and the key of each client. If clients may have been
      dropped, keep the examples where `ids >= 0`; `ClientData.from_arrays` refuses the others.

    Example:
      >>> keys = ["ann", "bob", "ann", "cy", "bob"]
      >>> by_key(keys)
      (array([0, 1, 0, 2, 1], dtype=int32), ('ann', 'bob', 'cy'))
      >>> by_key(keys, min_size=2)
      (array([ 0,  1,  0, -1,  1], dtype=int32), ('ann', 'bob'))
    """
    checks.integer("min_size", min_size, low=1)
    if isinstance(keys, np.ndarray):
        if keys.ndim != 1:
            raise ValueError(f"keys must be a vector, got shape {list(keys.shape)}.")
        keys = keys.tolist()
    if isinstance(keys, (str, bytes, set, frozenset, dict)) or not hasattr(keys, "__iter__"):
        raise ValueError(f"keys must be a sequence with one key per example, got {keys!r:.60}.")
    # By a dictionary and not by NumPy, which would read the keys 1 and "1" of a list as the same.
    numbers: dict[Any, int] = {}
    codes = []
    for i, key in enumerate(keys):
        try:
            missing = key is None or bool(key != key)
            codes.append(numbers.setdefault(key, len(numbers)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"keys must be hashable, but keys[{i}] is {key!r:.60}.") from error
        if missing:
            raise ValueError(f"keys must not be missing, but keys[{i}] is {key!r}.")
    if not codes:
        raise ValueError("keys must hold at least one key, got none.")
    sizes = np.bincount(codes)
    large = sizes >= min_size
    if not large.any():
        raise ValueError(
            f"min_size must be at most {sizes.max()}, the size of the largest client, got {min_size}."
        )
    renumbered = np.where(large, np.cumsum(large) - 1, -1).astype(np.int32)
    return renumbered[codes], tuple(name for name, keep in zip(numbers, large, strict=True) if keep)


class _Classes(NamedTuple):
    """Labels as places in the sorted classes, `[n]`, and how many there are of each class, `[C]`."""

    codes: chex.ArrayNumpy
    supply: chex.ArrayNumpy


def _classes(name: str, labels: Labels) -> _Classes:
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ValueError(
            f"{name} must be a vector with at least one label, got shape {list(array.shape)}."
        )
    try:
        return _Classes(*np.unique(array, return_inverse=True, return_counts=True)[1:])
    except TypeError as error:
        raise ValueError(f"{name} must be all integers or all strings: {error}.") from error


def _count(labels_or_n: Labels | int) -> int:
    """The number of examples, given itself or by their labels."""
    if np.ndim(labels_or_n) == 0:
        return checks.integer("labels_or_n", labels_or_n, low=1)
    return len(_classes("labels_or_n", labels_or_n).codes)  # type: ignore[arg-type]


def _begin(
    n: int, num_clients: int, seed: int, min_size: int = 1, **concentrations: float
) -> tuple[int, np.random.Generator]:
    """Checks what all splits have in common; returns the number of clients and the generator."""
    num_clients = checks.integer("num_clients", num_clients, low=1)
    checks.integer("min_size", min_size, low=0)
    if num_clients * min_size > n:
        raise ValueError(
            f"num_clients must be at most {n // min_size}, so that each client can have {min_size}"
            f" of the {n} examples, got {num_clients}."
        )
    for name, value in concentrations.items():
        real = isinstance(value, (int, float, np.integer, np.floating))
        if not real or not value >= 0:  # Written so that NaN is refused too.
            raise ValueError(f"{name} must be a number from 0 to infinity, got {value!r}.")
    return num_clients, np.random.default_rng(checks.integer("seed", seed, low=0))


def _dirichlet_shares(
    num_classes: int, num_clients: int, alpha: float, rng: np.random.Generator
) -> chex.ArrayNumpy:
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


def _one_class_shares(
    supply: chex.ArrayNumpy, num_clients: int, rng: np.random.Generator
) -> chex.ArrayNumpy:
    """Gives each client one class, or each class one client if there are fewer clients."""
    num_classes = len(supply)
    shares = np.zeros((num_classes, num_clients))
    clients = rng.permutation(num_clients)
    if num_clients < num_classes:
        shares[rng.permutation(num_classes), clients[np.arange(num_classes) % num_clients]] = 1.0
        return shares
    # D'Hondt's rule deals clients to classes such that the smallest client is as large as possible.
    given = np.ones(num_classes, np.int64)
    for _ in range(num_clients - num_classes):
        given[np.argmax(supply / (given + 1))] += 1
    shares[np.repeat(np.arange(num_classes), given), clients] = 1.0
    return shares / given[:, None]


def _log_weights(concentrations: chex.ArrayNumpy, rng: np.random.Generator) -> chex.ArrayNumpy:
    """Logarithms of independent gamma variables, finite for any concentrations from 0 to infinity.

    Any of them, divided by their sum, are Dirichlet: weights may be left out later, and the others
    keep their proportions however small they are.
    """
    a = np.clip(concentrations, _SMALLEST, _LARGEST)
    # Gamma(a) = Gamma(a + 1) * U**(1 / a), with U in (0, 1].
    return np.log(rng.standard_gamma(a + 1)) + np.log1p(-rng.random(a.shape)) / a


def _normalised(logs: chex.ArrayNumpy, allowed: chex.ArrayNumpy) -> chex.ArrayNumpy:
    """The weights as shares of the last axis, of the allowed ones only; zero if none is allowed."""
    logs = np.where(allowed, logs, -np.inf)
    largest = logs.max(-1, keepdims=True)
    weights = np.exp(logs - np.where(np.isfinite(largest), largest, 0.0))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1.0)


def _draw(
    sizes: chex.ArrayNumpy, logs: chex.ArrayNumpy, left: chex.ArrayNumpy, rng: np.random.Generator
) -> chex.ArrayNumpy:
    """Draws `sizes[r]` examples in each row by its weights, at most `left[r, c]` of each class.

    To draw one by one, leaving out what has run out, is to draw from all classes and to draw again
    what fell on an empty one: so all can be drawn at once.
    """
    counts = np.zeros(left.shape, np.int64)
    while (missing := sizes - counts.sum(1)).any():
        shares = _normalised(logs, left > counts)
        counts = np.minimum(counts + rng.multinomial(missing, shares), left)
    return counts


def _amounts(
    logs: chex.ArrayNumpy, sizes: chex.ArrayNumpy, supply: chex.ArrayNumpy
) -> chex.ArrayNumpy:
    """What each client gets of each class, fractions included: rows sum to sizes, columns to supply."""
    amounts = np.zeros(logs.shape)
    left = supply.astype(float)
    for _ in supply:  # Each turn but the last empties a class.
        missing = np.maximum(sizes - amounts.sum(1), 0.0)
        wanted = _normalised(logs, left > 0) * missing[:, None]
        asked = wanted.sum(0)
        short = asked > left
        # First come, first served: few clients then stray from their mixture, instead of all a little.
        before = np.cumsum(wanted, axis=0) - wanted
        amounts += np.where(short, np.clip(left - before, 0.0, wanted), wanted)
        left = np.where(short, 0.0, left - asked)
        if not short.any():
            break
    return amounts


def _whole(
    amounts: chex.ArrayNumpy,
    sizes: chex.ArrayNumpy,
    supply: chex.ArrayNumpy,
    rng: np.random.Generator,
) -> chex.ArrayNumpy:
    """Rounds the amounts at random, such that rows still sum to sizes and columns to supply."""
    # Systematic sampling in each row, as in `_rounded`: rows are then right, columns nearly so.
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


def _rounded(shares: chex.ArrayNumpy, size: int, rng: np.random.Generator) -> chex.ArrayNumpy:
    """Splits `size` into whole numbers by systematic sampling: each exact in expectation."""
    # One random offset rounds every share up or down.
    ends = np.append(np.cumsum(shares)[:-1] * size, size)
    ends = np.floor(np.minimum(ends, size) + rng.random()).astype(np.int64)
    return np.diff(ends, prepend=0)


def _even_sizes(n: int, parts: int) -> chex.ArrayNumpy:
    """Splits `n` into whole numbers that differ by at most one, the larger ones first."""
    return n // parts + (np.arange(parts) < n % parts)


def _members(codes: chex.ArrayNumpy, sizes: chex.ArrayNumpy) -> list[chex.ArrayNumpy]:
    """The rows of each class, in the order of the classes and of the data."""
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])


def _deal(
    codes: chex.ArrayNumpy, counts: chex.ArrayNumpy, rng: np.random.Generator
) -> chex.ArrayNumpy:
    """Client ids that give client i `counts[i, c]` examples of class c, drawn at random."""
    ids = np.empty(len(codes), np.int32)
    for c, members in enumerate(_members(codes, counts.sum(0))):
        ids[rng.permutation(members)] = np.repeat(np.arange(len(counts)), counts[:, c])
    return ids


def _fill(
    ids: chex.ArrayNumpy, num_clients: int, min_size: int, rng: np.random.Generator
) -> chex.ArrayNumpy:
    """Moves examples from the largest clients to those with fewer than `min_size`."""
    sizes = np.bincount(ids, minlength=num_clients)
    missing = np.maximum(min_size - sizes, 0)
    total = missing.sum()
    if not total:
        return ids
    # To take one example after the other from the largest client, of equals from the first, is to cut
    # all down to one level, and to take what is then still missing from the first of those on it.
    level = bisect.bisect_left(
        range(sizes.max()), True, key=lambda level: np.maximum(sizes - level, 0).sum() <= total
    )
    kept = np.minimum(sizes, level)
    kept[np.flatnonzero(kept == level)[: total - (sizes - kept).sum()]] -= 1
    members = _members(ids, sizes)
    moved = [
        rng.choice(members[client], sizes[client] - kept[client], replace=False)
        for client in np.flatnonzero(kept < sizes)
    ]
    ids[rng.permutation(np.concatenate(moved))] = np.repeat(np.arange(num_clients), missing)
    return ids
