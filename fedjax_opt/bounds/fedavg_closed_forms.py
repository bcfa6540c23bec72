"""The roots of the derivatives of FedAvg's bounds, for arrays of one dtype.

The roots of factors stay in the range of float32 where a product of the factors would not.
"""

from typing import Any

import jax.numpy as jnp

from fedjax_opt.bounds.fedavg_constants import FedAvgConstants
from fedjax_opt.bounds.fedavg_theorem import drift_weight, loss_gap


def closed_form_steps(
    constants: FedAvgConstants, eta: Any, waiting: Any, as_printed: bool = False
) -> Any:
    """K*, with c/W or 1/R as `waiting`."""
    L, G = constants.smoothness, constants.gradient_bound
    above = jnp.cbrt(loss_gap(constants)) * jnp.cbrt(waiting)
    below = jnp.cbrt(eta * L) * jnp.cbrt(eta) * jnp.cbrt(drift_weight(constants))
    return above / (below if as_printed else below * jnp.cbrt(G) ** 2)


def closed_form_rate(constants: FedAvgConstants, iterations: Any, steps: Any) -> Any:
    """eta*, for T iterations: eta*^2 = 2 A/(L Z T)."""
    L, G = constants.smoothness, constants.gradient_bound
    drift = G * jnp.where(G > 0, steps, 0.0)
    Z = constants.noise + 6 * L * constants.heterogeneity + drift_weight(constants) * drift**2
    return jnp.sqrt(2 * loss_gap(constants) / L) / (jnp.sqrt(Z) * jnp.sqrt(iterations))
