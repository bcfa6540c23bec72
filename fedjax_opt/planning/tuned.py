"""Constants of the bound from one run that went well.

L, mu, G and Gamma of a neural network are not known. What is often known is a K_0 and an eta_0 that a
search found good for a run of R rounds. Theorem 1 with a fixed K after R rounds,

    2 kappa A/(eta K R) + eta kappa L (s + (8 + 4/N) G^2 K^2),      A = kappa F(x_0) - F*,

has its minimum over K and eta there if

    (8 + 4/N) G^2 = A / (eta_0^2 L R K_0^3)        from d/dK = 0
    s = 6 L Gamma = A / (eta_0^2 L R K_0)          from d/d eta = 0

All of s is counted as heterogeneity: only its sum with the noise matters, and the noise of a mean over
many clients is small. L is 1/(4 eta_0), the largest with which the theorem allows eta_0; so an eta above
the one that was tried is never proposed. kappa, F(x_0) and F* = 0 are assumed. They do not matter to the
best K and eta, for A/L divides out of both conditions; they only scale the bound.
"""

from typing import Any, NamedTuple

from fedjax_opt.bounds import FedAvgConstants
from fedjax_opt.core import checks


class TunedRun(NamedTuple):
    """A run whose K and eta a search found good: it can stand in for constants that nobody knows.

    `plan` takes it for constants with which the bound recommends, for as many rounds, what was found. So
    it carries the run over to budgets of time or bytes, other links, devices and cohorts, and says how
    K and eta should move. These are assumptions, not measurements.

    Attributes:
      local_steps: K_0.
      learning_rate: eta_0.
      rounds: R, the length of the run for which they were good.
      cohort_size: N, the clients in its rounds.
      initial_loss: F(x_0); ln(classes) for a classifier that starts by guessing. It scales the bound.
      condition_number: kappa = L/mu, at least 1. It scales the bound.

    Example:
      For as many rounds, the plan is what was tuned; for a given time, a slow device takes fewer steps:

      >>> import fedjax_opt as fo
      >>> constants = fo.planning.TunedRun(80, 0.1, rounds=10_000, cohort_size=10).constants
      >>> best = fo.bounds.optimal_local_steps(constants, 0.1, fo.bounds.Rounds(10_000))
      >>> round(float(best.value), 2)
      80.0
      >>> link = fo.bounds.Link(5.21, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=1.5)
      >>> int(fo.bounds.best_plan(constants, fo.bounds.Seconds(1.2e6, link)).local_steps)
      18

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023. Theorem 1.
    """

    local_steps: Any
    learning_rate: Any
    rounds: Any
    cohort_size: Any
    initial_loss: Any = 1.0
    condition_number: Any = 10.0

    @property
    def constants(self) -> FedAvgConstants:
        """The constants that would explain it; differentiable by all of its numbers."""
        K, eta, N = self.local_steps, self.learning_rate, self.cohort_size
        L = 0.25 / eta
        spread = self.condition_number * self.initial_loss / (eta**2 * L * self.rounds * K)
        return FedAvgConstants(
            smoothness=L,
            strong_convexity=L / self.condition_number,
            initial_loss=self.initial_loss,
            gradient_bound=(spread / (8 + 4 / N)) ** 0.5 / K,
            cohort_size=N,
            heterogeneity=spread / (6 * L),
        )


def check_tuned(run: TunedRun) -> None:
    """Refuses runs that nobody can have tuned."""
    for name in ("local_steps", "rounds", "cohort_size"):
        checks.integer(f"constants.{name}", getattr(run, name), low=1)
    for name in ("learning_rate", "initial_loss"):
        checks.number(
            f"constants.{name}", getattr(run, name), low=0.0, open_low=True, open_high=True
        )
    checks.number("constants.condition_number", run.condition_number, low=1.0, open_high=True)
