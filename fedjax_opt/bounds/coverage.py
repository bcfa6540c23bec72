"""How many rounds it takes to see every client: the batched coupon collector, exactly.

Each round draws a cohort of S among N clients uniformly, without replacement, independent of the others.
T is the first round after which all clients have been seen. j given clients are all missed by a cohort
with probability q_j = C(N-j, S)/C(N, S), so by inclusion and exclusion

    E[T] = sum_{j=1}^{N} (-1)^{j+1} C(N, j)/(1 - q_j)

In floating point the sum cancels to noise. Here the number u of clients not seen yet is a Markov chain,
whose steps down have the probabilities h_u(j) of Hypergeometric(N, u, S): sums of positive terms only,

    E_u = (1 + sum_{j>=1} h_u(j) E_{u-j}) / sum_{j>=1} h_u(j)

References:
  Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum. 2024.
  Footnote 2, which asks for it.
  Stadje. The collector's problem with group drawings. Advances in Applied Probability, 1990.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.theorem import AtLeastOne, Positive, formula
from fedjax_opt.core import checks


def expected_rounds_to_see_all(num_clients: int, cohort_size: int) -> float:
    """The expected number of rounds until every client has been in a cohort.

    It is exact up to rounding (about 13 digits), also for many thousands of clients. A tau of that many
    rounds is what GHBM's momentum needs to hear of everybody, where cohorts are drawn and not in turn.

    Args:
      num_clients: N.
      cohort_size: S clients in every round, drawn uniformly without replacement.

    Returns:
      E[T], a Python float.

    Example:
      A tenth of the clients at a time takes not 10 rounds but about 50:

      >>> import fedjax_opt as fo
      >>> round(fo.bounds.expected_rounds_to_see_all(100, 10), 2)
      49.94
    """
    num_clients = checks.integer("num_clients", num_clients, low=1)
    cohort_size = checks.integer("cohort_size", cohort_size, low=1)
    if cohort_size > num_clients:
        raise ValueError(
            f"cohort_size must be at most num_clients={num_clients}, got {cohort_size}."
        )
    expected = np.zeros(num_clients + 1)
    for unseen in range(1, num_clients + 1):
        first, weights = _newly_seen(num_clients, unseen, cohort_size)
        if first == 0:
            first, weights = 1, weights[1:]
        after = expected[unseen - first - len(weights) + 1 : unseen - first + 1][::-1]
        some = _probability_of_some(num_clients, unseen, cohort_size)
        # h(j) = weights some / sum(weights): what is new, given that something is.
        expected[unseen] = 1 / some + weights @ after / weights.sum()
    return float(expected[num_clients])


def expected_unseen_share_squared(
    num_clients: AtLeastOne, cohort_size: Positive, rounds: Positive
) -> jax.Array:
    """The expected square of the share of clients that no cohort of the last rounds held.

    `E[(U/N)^2] = (q_1^t + (N-1) q_2^t)/N`: a client is missed t times with probability q_1^t, two are
    with q_2^t, where q_1 = 1 - S/N and q_2 = q_1 (1 - S/(N-1)). It is what GHBM's Lemma 4.4 asks for.

    Args:
      num_clients: N, at least 1.
      cohort_size: S <= N clients in every round, drawn uniformly without replacement.
      rounds: t > 0.

    Example:
      In turn, 10 rounds of a tenth each would leave nobody out:

      >>> import fedjax_opt as fo
      >>> round(float(fo.bounds.expected_unseen_share_squared(100, 10, 10)), 3)
      0.123
    """
    share = _unseen_share_squared(num_clients, cohort_size, rounds)
    known = not checks.is_traced(num_clients, cohort_size)
    if known and np.any(np.asarray(cohort_size) > np.asarray(num_clients)):
        raise ValueError(
            f"cohort_size must be at most num_clients={num_clients!r}, got {cohort_size!r}."
        )
    return share


@formula
def _unseen_share_squared(num_clients: AtLeastOne, cohort_size: Positive, rounds: Positive):
    one = jnp.maximum(1 - cohort_size / num_clients, 0)
    two = one * jnp.maximum(1 - cohort_size / jnp.maximum(num_clients - 1, 1), 0)
    return (one**rounds + (num_clients - 1) * two**rounds) / num_clients


def _newly_seen(population, unseen, drawn):
    """(first, weights): the probabilities that a cohort holds first, first + 1, ... of the unseen.

    Up to a factor. Outwards from the likeliest number, by the ratios of neighbours; what is left out is
    below e^-90.
    """
    low, high = max(0, unseen + drawn - population), min(unseen, drawn)
    mode = (unseen + 1) * (drawn + 1) // (population + 2)
    share = unseen / population
    reach = 20 + math.ceil(14 * math.sqrt(drawn * share * (1 - share)))
    up = np.arange(mode, min(high, mode + reach), dtype=np.float64)
    down = np.arange(mode, max(low, mode - reach), -1, dtype=np.float64)
    others = population - unseen - drawn
    rising = np.cumprod((unseen - up) * (drawn - up) / ((up + 1) * (others + up + 1)))
    falling = np.cumprod(down * (others + down) / ((unseen - down + 1) * (drawn - down + 1)))
    return mode - len(falling), np.concatenate([falling[::-1], [1.0], rising])


def _probability_of_some(population, unseen, drawn):
    """1 - q, that a cohort holds at least one of the unseen; q = product of (1 - S/(N-i)), i < u."""
    if unseen > population - drawn:
        return 1.0
    few, many = sorted((unseen, drawn))
    return -math.expm1(np.log1p(-many / (population - np.arange(few))).sum())
