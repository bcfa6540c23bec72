"""Convergence rates of federated algorithms for nonconvex losses, side by side, up to constants.

All are orders of the mean E||grad f||^2 over T rounds of J local steps, with N clients of which C N take
part in a round, D = f(x_0) - f*, sigma^2 the variance of a client's stochastic gradient, G the clients'
dissimilarity, and zeta a bound of the gradient of f:

    FedAvg, all clients   sqrt(L D sigma^2/(N J T)) + L D/T
    FedAvg                sqrt(L D sigma^2/(C N J T)) + L D/T
    FedCM                 sqrt(L D (sigma^2 + C N J zeta^2)/(C N J T))
                          + (L D (sigma/sqrt(J) + sqrt(C N) (zeta + G))/(sqrt(C N) T))^(2/3)
    FedCM, all clients    sqrt(L D sigma^2/(N J T)) + L D/T
    SCAFFOLD-M            sqrt(L D sigma^2/(C N J T)) + (L D/T) (1 + N^(2/3)/(C N))
    GHBM                  sqrt(L D sigma^2/(N J T)) + L D/T

The constants that the rates leave out differ, so two of them are compared by how they grow, not by a
factor of a few. For FedAvg the local learning rate goes to 0 as G grows. What GHBM's needs in addition
is in `fedjax_opt.bounds.ghbm`.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Table 1.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.ghbm import GHBMConstants
from fedjax_opt.bounds.ghbm_rate import ghbm_rate
from fedjax_opt.bounds.numbers import as_floats, root
from fedjax_opt.bounds.result import Bound
from fedjax_opt.core import checks


class RateConstants(NamedTuple):
    """What the rates know of a problem and a run.

    Numbers, or arrays of one shape for many problems at once.

    Attributes:
      smoothness: L > 0, for which every client's loss is L-smooth.
      initial_loss: f(x_0).
      num_clients: N.
      local_steps: J.
      rounds: T.
      participation: C, the share of the clients in a round, in (0, 1].
      noise_variance: sigma^2, the largest variance of a client's stochastic gradient.
      dissimilarity: G, not squared, with mean_i ||grad f_i - grad f||^2 <= G^2 everywhere; infinite
        where nothing is known.
      gradient_bound: zeta, not squared, with ||grad f|| <= zeta everywhere; infinite likewise.
      optimal_loss: the smallest value of f.

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Table 1.
    """

    smoothness: Any
    initial_loss: Any
    num_clients: Any
    local_steps: Any
    rounds: Any
    participation: Any = 1.0
    noise_variance: Any = 0.0
    dissimilarity: Any = np.inf
    gradient_bound: Any = np.inf
    optimal_loss: Any = 0.0


class RateRow(NamedTuple):
    """One algorithm in a table of rates.

    Attributes:
      name: the algorithm.
      value: its rate, up to a constant.
      violated: the names of the assumptions that the given numbers break.
      partial_participation: whether the rate is for C < 1.
      assumes: what is assumed beside smoothness and bounded noise, in words.
      communication: bytes exchanged by a client in a round, in units of FedAvg's.
    """

    name: str
    value: float
    violated: tuple[str, ...]
    partial_participation: bool
    assumes: str
    communication: float


# name: (partial participation, what is assumed, communication)
_NOTES = {
    "FedAvg, all clients": (False, "bounded dissimilarity", 1.0),
    "FedAvg": (True, "bounded dissimilarity", 1.0),
    "FedCM": (True, "bounded gradients, bounded dissimilarity", 1.5),
    "FedCM, all clients": (False, "nothing more", 1.5),
    "SCAFFOLD-M": (True, "nothing more; clients keep state", 2.5),
    "GHBM": (True, "clients take turns", 1.5),
}


def rates(constants: RateConstants) -> dict[str, Bound]:
    """The rates of FedAvg, FedCM, SCAFFOLD-M and GHBM, up to constants.

    The terms of each are 'noise', which falls as 1/sqrt(T), and 'initial', which falls faster.

    Args:
      constants: the `RateConstants`.

    Returns:
      name -> `Bound`, up to a constant. A rate for all clients breaks its assumption 'C = 1' where fewer
      take part, and one that needs a bound breaks 'G < inf' or 'zeta < inf' where there is none.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.RateConstants(
      ...     smoothness=1.0, initial_loss=1.0, num_clients=100, local_steps=10, rounds=40_000,
      ...     participation=0.1, noise_variance=4.0,
      ... )
      >>> found = fo.bounds.rates(constants)
      >>> round(float(found["FedAvg"].value / found["GHBM"].value), 2), found["FedAvg"].violated()
      (3.0, ('G < inf',))

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Table 1.
    """
    _check(constants)
    constants = as_floats(constants)[0]
    L, C, N = constants.smoothness, constants.participation, constants.num_clients
    G, zeta, rounds = constants.dissimilarity, constants.gradient_bound, constants.rounds
    gap = L * ((constants.initial_loss - constants.optimal_loss) / rounds)
    per_step = constants.noise_variance / constants.local_steps
    cohort = C * N
    of_all, of_some = root(gap * (per_step / N)), root(gap * (per_step / cohort))
    spread = root(per_step / cohort) + zeta + G
    given = {"f(x0) >= f*": gap >= 0}
    everyone = given | {"C = 1": jnp.equal(C, 1)}
    similar = {"G < inf": jnp.isfinite(G)}
    bounded = {"zeta < inf": jnp.isfinite(zeta)}
    ghbm = ghbm_rate(
        GHBMConstants(
            L, constants.initial_loss, N, C, constants.noise_variance,
            optimal_loss=constants.optimal_loss,
        ),
        constants.local_steps, rounds,
    )  # fmt: skip
    return {
        "FedAvg, all clients": _rate(of_all, gap, everyone | similar),
        "FedAvg": _rate(of_some, gap, given | similar),
        "FedCM": _rate(
            root(gap * (per_step / cohort + zeta * zeta)),
            jnp.cbrt(gap * spread) ** 2,
            given | similar | bounded,
        ),
        "FedCM, all clients": _rate(of_all, gap, everyone),
        "SCAFFOLD-M": _rate(of_some, gap * (1 + jnp.cbrt(N) ** 2 / cohort), given),
        "GHBM": _rate(ghbm.terms["noise"], ghbm.terms["initial"], ghbm.assumptions),
    }


def rate_table(constants: RateConstants) -> list[RateRow]:
    """The rates as rows of a table, the smallest first.

    Args:
      constants: the `RateConstants`, of one problem.

    Returns:
      One `RateRow` for each algorithm of `rates`. Those whose assumptions hold come first.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.RateConstants(
      ...     smoothness=1.0, initial_loss=1.0, num_clients=100, local_steps=10, rounds=40_000,
      ...     participation=0.1, noise_variance=4.0,
      ... )
      >>> for row in fo.bounds.rate_table(constants)[:2]:
      ...     print(f"{row.name:12}{row.value:9.6f}  {row.communication} x  {row.assumes}")
      GHBM         0.000341  1.5 x  clients take turns
      SCAFFOLD-M   0.001079  2.5 x  nothing more; clients keep state

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024. Table 1; communication counted from the algorithms.
    """
    rows = [
        RateRow(name, float(bound.value), bound.violated(), *_NOTES[name])
        for name, bound in rates(constants).items()
    ]
    return sorted(rows, key=lambda row: (bool(row.violated), row.value))


def _rate(noise, initial, assumptions):
    return Bound(noise + initial, {"noise": noise, "initial": initial}, assumptions)


def _check(constants):
    at_least_one = {"low": 1.0, "open_high": True}
    finite = {"open_low": True, "open_high": True}
    limits = {
        "smoothness": {"low": 0.0, **finite},
        "initial_loss": finite,
        "num_clients": at_least_one,
        "local_steps": at_least_one,
        "rounds": {"low": 0.0, **finite},
        "participation": {"low": 0.0, "open_low": True, "high": 1.0},
        "noise_variance": {"low": 0.0, "open_high": True},
        "dissimilarity": {"low": 0.0},
        "gradient_bound": {"low": 0.0},
        "optimal_loss": finite,
    }
    for name, limit in limits.items():
        checks.number(f"constants.{name}", getattr(constants, name), **limit)
