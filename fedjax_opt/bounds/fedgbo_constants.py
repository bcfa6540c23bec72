"""The named constants of FedGBO's bounds, and what the bounds share."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.core import checks

FACTOR = 18.0  # of equation 3


class FedGBOConstants(NamedTuple):
    """What the bounds of FedGBO with momentum know of a problem.

    Numbers, or arrays of one shape for many problems at once.

    Attributes:
      smoothness: L > 0, for which the loss of every minibatch is L-smooth (A4).
      initial_loss: F(x_0).
      gradient_bound: R, not squared: no gradient of a minibatch is longer (A3).
      dissimilarity: G, not squared, with E_i||grad f_i - grad F||^2 <= G^2 everywhere (A2).
      noise_variance: sigma^2, the largest variance of a client's stochastic gradient (A5).
      optimal_loss: F*, or anything below F (A1).
      update_bound: B, of what the optimiser makes of a gradient; 1 for momentum.

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Section 4.
    """

    smoothness: Any
    initial_loss: Any
    gradient_bound: Any
    dissimilarity: Any = 0.0
    noise_variance: Any = 0.0
    optimal_loss: Any = 0.0
    update_bound: Any = 1.0


def fedgbo_pseudo_learning_rate(learning_rate: Any, momentum: Any, local_steps: Any) -> jax.Array:
    """The eta~ of the bounds for `optimizers.sgdm`: `K eta (1 - beta)`.

    The bounds' momentum is a sum of gradients, that of `sgdm` is a mean of them.

    Args:
      learning_rate: eta > 0 of `optimizers.sgdm`.
      momentum: beta, in [0, 1).
      local_steps: K.

    Returns:
      eta~.

    Example:
      >>> import fedjax_opt as fo
      >>> round(float(fo.bounds.fedgbo_pseudo_learning_rate(0.1, momentum=0.9, local_steps=10)), 6)
      0.1

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Equations 4, 5.
    """
    positive(learning_rate=learning_rate)
    check_round(momentum, local_steps)
    eta, beta, steps = as_floats(learning_rate, momentum, local_steps)
    return steps * eta * (1 - beta)


def check_constants(constants: FedGBOConstants) -> None:
    """Refuses constants that no problem has; what merely breaks an assumption is not refused."""
    limits = {
        "smoothness": {"low": 0.0, "open_low": True},
        "initial_loss": {"open_low": True},
        "gradient_bound": {"low": 0.0},
        "dissimilarity": {"low": 0.0},
        "noise_variance": {"low": 0.0},
        "optimal_loss": {"open_low": True},
        "update_bound": {"low": 0.0},
    }
    for name, limit in limits.items():
        checks.number(f"constants.{name}", getattr(constants, name), open_high=True, **limit)


def check_round(momentum: Any, local_steps: Any) -> None:
    """Refuses momenta and numbers of local steps that no round has."""
    checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    checks.number("local_steps", local_steps, low=1.0, open_high=True)


# What follows takes arrays of one dtype, checked or not. Squares are taken of products that are small,
# never of a large factor alone: float32 ends at 3e38.


def gradient_scale(constants: FedGBOConstants, steps: Any) -> Any:
    """R^2 + G^2 + sigma^2/K."""
    return (
        constants.gradient_bound**2 + constants.dissimilarity**2 + constants.noise_variance / steps
    )


def largest_perturbation(constants: FedGBOConstants, eta: Any, steps: Any) -> Any:
    """eta~^2 Y."""
    bounded = eta * constants.smoothness * constants.update_bound
    return FACTOR * bounded * (bounded * gradient_scale(constants, steps))


def y_is_large_enough(constants: FedGBOConstants, beta: Any, steps: Any) -> dict[str, jax.Array]:
    """Whether eta~^2 Y bounds ||e||^2 for whatever momentum there is, by name."""
    R, B = constants.gradient_bound, constants.update_bound
    slack = 1 + 4 * jnp.finfo(R.dtype).eps
    most = jnp.sqrt(FACTOR * gradient_scale(constants, steps)) * B
    return {"Y >= (L R/(1-beta))^2": most * slack >= R / (1 - beta)}
