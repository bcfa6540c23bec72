"""Bounds on FedGBO's momentum and on what local steps change: Lemma 1 and equation 3.

The equations, and where the print errs, are in `fedjax_opt.bounds.fedgbo_theorem`.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Section 4 and appendix A.
"""

from typing import Any

from fedjax_opt.bounds.fedgbo_constants import (
    FACTOR,
    FedGBOConstants,
    check_constants,
    check_round,
    largest_perturbation,
    y_is_large_enough,
)
from fedjax_opt.bounds.numbers import as_floats, positive
from fedjax_opt.bounds.result import Bound
from fedjax_opt.core import checks


def fedgbo_momentum(
    constants: FedGBOConstants,
    pseudo_learning_rate: Any,
    momentum: Any,
    local_steps: Any,
    normalised: bool = False,
) -> Bound:
    """A bound on FedGBO's momentum, E||m_t||^2 in every round: Lemma 1.

    `2 (R^2 + eta~^2 Y)/(1-beta)^2`, with the terms 'gradient' and 'perturbation'.

    Args:
      constants: the problem's `FedGBOConstants`; the losses do not matter.
      pseudo_learning_rate: eta~ > 0; see `fedgbo_pseudo_learning_rate`.
      momentum: beta, in [0, 1).
      local_steps: K.
      normalised: whether m is the mean that `optimizers.sgdm` keeps, (1-beta) times the paper's sum.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_momentum(constants, 0.001, momentum=0.5, local_steps=10)
      >>> round(float(bound.value), 3)
      2.0

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Lemma 1.
    """
    check_constants(constants)
    check_round(momentum, local_steps)
    positive(pseudo_learning_rate=pseudo_learning_rate)
    constants, eta, beta, steps = as_floats(constants, pseudo_learning_rate, momentum, local_steps)
    weight = 2.0 if normalised else 2 / (1 - beta) ** 2
    terms = {
        "gradient": weight * constants.gradient_bound**2,
        "perturbation": weight * largest_perturbation(constants, eta, steps),
    }
    return Bound(sum(terms.values()), terms, y_is_large_enough(constants, beta, steps))


def fedgbo_perturbation(
    constants: FedGBOConstants,
    pseudo_learning_rate: Any,
    local_steps: Any,
    gradient_norm_squared: Any = None,
    momentum_norm_squared: Any = 0.0,
    as_printed: bool = False,
) -> Bound:
    """A bound on what local steps change in the mean gradient, E||e_t||^2: equation 3.

    `18 B^2 L^2 eta~^2 (E||g_t||^2 + G^2 + sigma^2/K)`, with the terms 'gradient', 'dissimilarity' and
    'noise'. The paper has no term 'momentum', `18 L^2 eta~^2 beta^2 ||m||^2`; without it the bound is
    false where beta > 0.

    Args:
      constants: the problem's `FedGBOConstants`; the losses do not matter.
      pseudo_learning_rate: eta~ > 0; see `fedgbo_pseudo_learning_rate`.
      local_steps: K.
      gradient_norm_squared: E||g_t||^2, of the cohort's mean gradient at x; None for its bound R^2.
      momentum_norm_squared: `||beta m_{t-1}||^2`, m being the sum of gradients: for `optimizers.sgdm` it
        is `||beta m/(1-beta)||^2`.
      as_printed: without the factor 18.

    Returns:
      A `Bound`.

    Example:
      >>> import fedjax_opt as fo
      >>> constants = fo.bounds.FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=0.5)
      >>> bound = fo.bounds.fedgbo_perturbation(constants, 0.1, 10, gradient_norm_squared=0.01)
      >>> round(float(bound.value), 6), bool(bound.holds)
      (0.0018, True)

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022. Equation 3.
    """
    check_constants(constants)
    check_round(0.0, local_steps)
    positive(pseudo_learning_rate=pseudo_learning_rate)
    checks.number("momentum_norm_squared", momentum_norm_squared, low=0.0)
    if gradient_norm_squared is None:
        gradient_norm_squared = constants.gradient_bound**2
    checks.number("gradient_norm_squared", gradient_norm_squared, low=0.0)
    constants, eta, steps, gradient, velocity = as_floats(
        constants, pseudo_learning_rate, local_steps, gradient_norm_squared, momentum_norm_squared
    )
    step = eta * constants.smoothness
    bounded = step * constants.update_bound
    factor = 1.0 if as_printed else FACTOR
    terms = {
        "gradient": factor * bounded * (bounded * gradient),
        "dissimilarity": factor * (bounded * constants.dissimilarity) ** 2,
        "noise": factor * bounded * (bounded * (constants.noise_variance / steps)),
        "momentum": factor * step * (step * velocity),
    }
    return Bound(sum(terms.values()), terms, {"eta~ B L <= 1/2": bounded <= 0.5})
