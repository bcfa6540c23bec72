"""The eight schedules that the paper compares, by its names.

Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, 2023, Table 3.
"""

from typing import Any, NamedTuple

from fedjax_opt.controllers.by_error import rate_by_error, steps_by_error
from fedjax_opt.controllers.by_rounds import constant, rate_by_rounds, steps_by_rounds
from fedjax_opt.controllers.on_plateau import rate_on_plateau, steps_on_plateau
from fedjax_opt.core import Controller


class Schedule(NamedTuple):
    """A rule for the local steps and one for the learning rate.

    Attributes:
      local_steps: the `Controller` of K.
      learning_rate: the `Controller` of eta.
    """

    local_steps: Controller
    learning_rate: Controller


def paper_schedules(
    initial_steps: Any, initial_rate: Any, *, window: int = 100, patience: Any = 10, every: int = 1
) -> dict[str, Schedule]:
    """The eight schedules of Table 3 by name: dSGD, fixed, and K or eta by rounds, error or step.

    Args:
      initial_steps: K_0.
      initial_rate: eta_0.
      window: s, over how many rounds the training error is averaged.
      patience: how many evaluations without a better validation loss make a plateau.
      every: the rounds between these evaluations.

    Returns:
      A dict from a schedule's name to its two controllers.

    Example:
      >>> import fedjax_opt as fo
      >>> list(fo.controllers.paper_schedules(50, 0.1))
      ['dSGD', 'fixed', 'K-rounds', 'K-error', 'K-step', 'eta-rounds', 'eta-error', 'eta-step']

    Reference:
      Mills, Hu and Min, Faster federated learning with decaying number of local SGD steps, Table 3.
    """
    steps, rate = constant(initial_steps), constant(initial_rate)
    return {
        "dSGD": Schedule(constant(1), rate),
        "fixed": Schedule(steps, rate),
        "K-rounds": Schedule(steps_by_rounds(initial_steps), rate),
        "K-error": Schedule(steps_by_error(initial_steps, window), rate),
        "K-step": Schedule(steps_on_plateau(initial_steps, patience=patience, every=every), rate),
        "eta-rounds": Schedule(steps, rate_by_rounds(initial_rate)),
        "eta-error": Schedule(steps, rate_by_error(initial_rate, window)),
        "eta-step": Schedule(steps, rate_on_plateau(initial_rate, patience=patience, every=every)),
    }
