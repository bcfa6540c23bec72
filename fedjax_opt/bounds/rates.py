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

FedCM, GHBM and SCAFFOLD-M exchange 1.5, 1.5 and 2.5 times FedAvg's bytes in a round, and SCAFFOLD-M's
clients keep state.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Table 1.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.ghbm import GHBMConstants, ghbm_rate
from fedjax_opt.bounds.theorem import (
    AtLeastOne,
    Bound,
    Finite,
    FiniteNotNegative,
    FinitePositive,
    NotNegative,
    Share,
    formula,
    root,
)


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
    """

    smoothness: FinitePositive
    initial_loss: Finite
    num_clients: AtLeastOne
    local_steps: AtLeastOne
    rounds: FinitePositive
    participation: Share = 1.0
    noise_variance: FiniteNotNegative = 0.0
    dissimilarity: NotNegative = np.inf
    gradient_bound: NotNegative = np.inf
    optimal_loss: Finite = 0.0


@formula
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
    """
    c, L, C, N = constants, constants.smoothness, constants.participation, constants.num_clients
    G, zeta, cohort = c.dissimilarity, c.gradient_bound, C * N
    gap = L * ((c.initial_loss - c.optimal_loss) / c.rounds)
    per_step = c.noise_variance / c.local_steps
    of_all, of_some = root(gap * (per_step / N)), root(gap * (per_step / cohort))
    spread = root(per_step / cohort) + zeta + G
    given = {"f(x0) >= f*": gap >= 0}
    everyone = given | {"C = 1": jnp.equal(C, 1)}
    similar = given | {"G < inf": jnp.isfinite(G)}
    bounded = similar | {"zeta < inf": jnp.isfinite(zeta)}
    turns = GHBMConstants(L, c.initial_loss, N, C, c.noise_variance, optimal_loss=c.optimal_loss)
    rows = {
        "FedAvg, all clients": (of_all, gap, everyone | similar),
        "FedAvg": (of_some, gap, similar),
        "FedCM": (
            root(gap * (per_step / cohort + zeta * zeta)), jnp.cbrt(gap * spread) ** 2, bounded,
        ),
        "FedCM, all clients": (of_all, gap, everyone),
        "SCAFFOLD-M": (of_some, gap * (1 + jnp.cbrt(N) ** 2 / cohort), given),
    }  # fmt: skip
    found = {
        name: Bound(noise + initial, {"noise": noise, "initial": initial}, assumptions)
        for name, (noise, initial, assumptions) in rows.items()
    }
    return found | {"GHBM": ghbm_rate(turns, c.local_steps, c.rounds)}
