"""How many rounds it takes to see every client: the batched coupon collector, exactly.

Each round draws a cohort of S among N clients uniformly, without replacement, independent of the others.
T is the first round after which all clients have been seen. j given clients are all missed by a cohort
with probability q_j = C(N-j, S)/C(N, S), so by inclusion and exclusion

    P(T <= t) = sum_{j=0}^{N-S} (-1)^j C(N, j) q_j^t
    E[T]      = sum_{j=1}^{N} (-1)^{j+1} C(N, j)/(1 - q_j)

In floating point both sums cancel to noise. Here the expectation is that of a Markov chain whose state
is the number u of clients not seen yet, a sum of positive terms only,

    E_u = (1 + sum_{j>=1} h_u(j) E_{u-j}) / sum_{j>=1} h_u(j),    h_u = Hypergeometric(N, u, S),

and the probability is summed in decimals of as many digits as cancel.

References:
  Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum. 2024.
  Footnote 2, which asks for it.
  Stadje. The collector's problem with group drawings. Advances in Applied Probability, 1990.
"""

import decimal
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.core import checks


class SimulatedRounds(NamedTuple):
    """A mean over simulated runs, and how far it may be off.

    Attributes:
      mean: the mean number of rounds.
      standard_error: of the mean; two runs of other keys differ by about this.
    """

    mean: jax.Array
    standard_error: jax.Array


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

    Reference:
      Stadje. The collector's problem with group drawings. Advances in Applied Probability, 1990.
    """
    num_clients, cohort_size = _check_sizes(num_clients, cohort_size)
    expected = np.zeros(num_clients + 1)
    for unseen in range(1, num_clients + 1):
        first, weights = _hypergeometric(num_clients, unseen, cohort_size)
        if first == 0:
            first, weights = 1, weights[1:]
        after = expected[unseen - first - len(weights) + 1 : unseen - first + 1][::-1]
        some = _probability_of_some(num_clients, unseen, cohort_size)
        # h(j) = weights some / sum(weights): what is new, given that something is.
        expected[unseen] = 1 / some + weights @ after / weights.sum()
    return float(expected[num_clients])


def probability_all_seen(num_clients: int, cohort_size: int, rounds: int) -> float:
    """The probability that every client has been in a cohort after some rounds.

    Args:
      num_clients: N.
      cohort_size: S clients in every round, drawn uniformly without replacement.
      rounds: t, not negative.

    Returns:
      P(T <= t), a Python float, right to about 15 digits; what is below 1e-299 is 0.

    Example:
      After 10 rounds of a tenth each it is all but impossible:

      >>> import fedjax_opt as fo
      >>> [round(fo.bounds.probability_all_seen(100, 10, t), 3) for t in (10, 50, 100)]
      [0.0, 0.592, 0.997]

    Reference:
      Stadje. The collector's problem with group drawings. Advances in Applied Probability, 1990.
    """
    num_clients, cohort_size = _check_sizes(num_clients, cohort_size)
    rounds = checks.integer("rounds", rounds, low=0)
    if cohort_size == num_clients:
        return float(rounds > 0)
    if rounds * cohort_size < num_clients:
        return 0.0
    # Clients compete for places, so that all are seen is rarer than if they were independent.
    missed = (1 - cohort_size / num_clients) ** rounds
    if num_clients * math.log1p(-missed) < -690:
        return 0.0  # below 1e-299
    digits = 40
    while True:
        total, peak = _inclusion_exclusion(num_clients, cohort_size, rounds, digits)
        # Rounding errs by about peak 10^-digits: until that is far below the sum, take more digits.
        if peak.adjusted() - digits + 20 < total.adjusted() and total > 0:
            return float(min(total, decimal.Decimal(1)))
        if digits > 2000 + num_clients:
            return 0.0
        digits += max(40, peak.adjusted())


def rounds_to_see_all_quantile(num_clients: int, cohort_size: int, probability: float) -> int:
    """The number of rounds after which all clients have been seen with at least a probability.

    Args:
      num_clients: N.
      cohort_size: S clients in every round, drawn uniformly without replacement.
      probability: in [0, 1).

    Returns:
      The smallest t with P(T <= t) >= probability.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.bounds.rounds_to_see_all_quantile(100, 10, 0.5), (
      ...     fo.bounds.rounds_to_see_all_quantile(100, 10, 0.99)
      ... )
      (48, 88)

    Reference:
      Stadje. The collector's problem with group drawings. Advances in Applied Probability, 1990.
    """
    num_clients, cohort_size = _check_sizes(num_clients, cohort_size)
    checks.number("probability", probability, low=0.0, high=1.0, open_high=True)
    low, high = -1, max(1, math.ceil(num_clients / cohort_size))
    while probability_all_seen(num_clients, cohort_size, high) < probability:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = probability_all_seen(num_clients, cohort_size, middle) >= probability
        low, high = (low, middle) if enough else (middle, high)
    return high


def simulated_rounds_to_see_all(
    key: jax.Array, num_clients: int, cohort_size: int, num_samples: int = 1000
) -> SimulatedRounds:
    """The expected number of rounds until every client has been seen, by drawing cohorts.

    Args:
      key: of `jax.random`.
      num_clients: N.
      cohort_size: S clients in every round, drawn uniformly without replacement.
      num_samples: how many runs to average, at least 2.

    Returns:
      A `SimulatedRounds`.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> simulated = fo.bounds.simulated_rounds_to_see_all(jax.random.key(0), 12, 4)
      >>> away = abs(simulated.mean - fo.bounds.expected_rounds_to_see_all(12, 4))
      >>> bool(away < 4 * simulated.standard_error)
      True
    """
    num_clients, cohort_size = _check_sizes(num_clients, cohort_size)
    num_samples = checks.integer("num_samples", num_samples, low=2)
    rounds = _simulate(jax.random.split(key, num_samples), num_clients, cohort_size)
    rounds = rounds.astype(jnp.result_type(float))
    return SimulatedRounds(rounds.mean(), rounds.std(ddof=1) / math.sqrt(num_samples))


def expected_unseen_share_squared(num_clients: Any, cohort_size: Any, rounds: Any) -> jax.Array:
    """The expected square of the share of clients that no cohort of the last rounds held.

    `E[(U/N)^2] = (q_1^t + (N-1) q_2^t)/N`: a client is missed t times with probability q_1^t, two are
    with q_2^t, where q_1 = 1 - S/N and q_2 = q_1 (1 - S/(N-1)). It is what GHBM's Lemma 4.4 asks for.

    Args:
      num_clients: N, at least 1.
      cohort_size: S <= N clients in every round, drawn uniformly without replacement.
      rounds: t > 0.

    Returns:
      The expectation.

    Example:
      In turn, 10 rounds of a tenth each would leave nobody out:

      >>> import fedjax_opt as fo
      >>> round(float(fo.bounds.expected_unseen_share_squared(100, 10, 10)), 3)
      0.123

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Lemma 4.4.
    """
    checks.number("num_clients", num_clients, low=1.0, open_high=True)
    positive(cohort_size=cohort_size, rounds=rounds)
    if not checks.is_traced(num_clients, cohort_size) and np.any(
        np.asarray(cohort_size) > np.asarray(num_clients)
    ):
        raise ValueError(
            f"cohort_size must be at most num_clients={num_clients!r}, got {cohort_size!r}."
        )
    clients, cohort, rounds = as_floats(num_clients, cohort_size, rounds)
    one = jnp.maximum(1 - cohort / clients, 0)
    two = one * jnp.maximum(1 - cohort / jnp.maximum(clients - 1, 1), 0)
    return (one**rounds + (clients - 1) * two**rounds) / clients


def _check_sizes(num_clients, cohort_size):
    num_clients = checks.integer("num_clients", num_clients, low=1)
    cohort_size = checks.integer("cohort_size", cohort_size, low=1)
    if cohort_size > num_clients:
        raise ValueError(
            f"cohort_size must be at most num_clients={num_clients}, got {cohort_size}."
        )
    return num_clients, cohort_size


def _hypergeometric(population, marked, drawn):
    """(first, weights): the probabilities of first, first + 1, ... marked ones, up to a factor.

    Outwards from the likeliest number, by the ratios of neighbours; what is left out is below e^-90.
    """
    low, high = max(0, marked + drawn - population), min(marked, drawn)
    mode = (marked + 1) * (drawn + 1) // (population + 2)
    share = marked / population
    reach = 20 + math.ceil(14 * math.sqrt(drawn * share * (1 - share)))
    up = np.arange(mode, min(high, mode + reach), dtype=np.float64)
    down = np.arange(mode, max(low, mode - reach), -1, dtype=np.float64)
    others = population - marked - drawn
    rising = np.cumprod((marked - up) * (drawn - up) / ((up + 1) * (others + up + 1)))
    falling = np.cumprod(down * (others + down) / ((marked - down + 1) * (drawn - down + 1)))
    return mode - len(falling), np.concatenate([falling[::-1], [1.0], rising])


def _probability_of_some(population, marked, drawn):
    """1 - q, that a cohort holds at least one of the marked; q = product of (1 - S/(N-i)), i < u."""
    if marked > population - drawn:
        return 1.0
    few, many = sorted((marked, drawn))
    return -math.expm1(np.log1p(-many / (population - np.arange(few))).sum())


def _inclusion_exclusion(num_clients, cohort_size, rounds, digits):
    """P(T <= t), and the largest term of its sum."""
    with decimal.localcontext() as context:
        context.prec = digits
        missed = ways = total = peak = decimal.Decimal(1)
        for j in range(num_clients - cohort_size):
            missed = missed * (num_clients - cohort_size - j) / (num_clients - j)
            ways = ways * (num_clients - j) / (j + 1)
            term = ways * missed**rounds
            total += term if j % 2 else -term
            peak = max(peak, term)
            # Past their peak terms fall faster and faster: the rest is smaller than the last.
            if term.adjusted() < peak.adjusted() - digits:
                break
        return total, peak


@partial(jax.jit, static_argnums=(1, 2))
def _simulate(keys, num_clients, cohort_size):
    def some_unseen(carry):
        return ~carry[0].all()

    def one_round(carry):
        seen, rounds, key = carry
        cohort = jax.lax.top_k(jax.random.uniform(key, (num_clients,)), cohort_size)[1]
        return seen.at[cohort].set(True), rounds + 1, jax.random.fold_in(key, 0)

    def one_run(key):
        start = jnp.zeros(num_clients, bool), jnp.int32(0), key
        return jax.lax.while_loop(some_unseen, one_round, start)[1]

    return jax.vmap(one_run)(keys)
