"""The named constants of FedAvg's bounds: what a problem is like, and what a round costs."""

from typing import Any, NamedTuple

from fedjax_opt.core import checks


class FedAvgConstants(NamedTuple):
    """What the bounds of FedAvg with decaying local steps know of a problem.

    Numbers, or arrays of one shape for many problems at once. Clients c have the objective f_c and the
    weight p_c, and F is the weighted mean of the f_c.

    Attributes:
      smoothness: L > 0, for which every f_c is L-smooth.
      strong_convexity: mu, for which every f_c is mu-strongly convex.
      initial_loss: F(x_0), the loss of the model from which the bound looks forward.
      gradient_bound: G, not squared, with E||g||^2 <= G^2 for the stochastic gradients of all clients.
        The paper takes G = L ||x_1 - x*||, which bounds the gradient of F. The lemma that it builds on
        needs the clients' own, which do not vanish at x* where Gamma > 0.
      cohort_size: N, the clients in a round.
      optimal_loss: F*, the smallest value of F.
      noise: sum_c p_c^2 sigma_c^2, with sigma_c^2 the variance of client c's stochastic gradient.
      heterogeneity: Gamma = F* - sum_c p_c f_c*.

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      section 3.3.
    """

    smoothness: Any
    strong_convexity: Any
    initial_loss: Any
    gradient_bound: Any
    cohort_size: Any
    optimal_loss: Any = 0.0
    noise: Any = 0.0
    heterogeneity: Any = 0.0


class Link(NamedTuple):
    """How long a round takes a client: `|x|/D + K beta + |x|/U` seconds; all clients are alike.

    Attributes:
      megabits: |x|, the size of the model in Mbit.
      download_mbps: D, in Mbit/s.
      upload_mbps: U, in Mbit/s.
      seconds_per_step: beta, the seconds that a minibatch takes.

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      equation 3.
    """

    megabits: Any
    download_mbps: Any
    upload_mbps: Any
    seconds_per_step: Any

    @property
    def communication_seconds(self) -> Any:
        """The seconds c = |x|/D + |x|/U that a round takes beside its local steps."""
        return self.megabits / self.download_mbps + self.megabits / self.upload_mbps


def check_constants(constants: FedAvgConstants) -> None:
    """Refuses constants that no problem has; what merely breaks an assumption is not refused."""
    limits = {
        "smoothness": {"low": 0.0, "open_low": True},
        "strong_convexity": {"open_low": True},
        "initial_loss": {"open_low": True},
        "gradient_bound": {"low": 0.0},
        "cohort_size": {"low": 1.0},
        "optimal_loss": {"open_low": True},
        "noise": {"low": 0.0},
        "heterogeneity": {"low": 0.0},
    }
    for name, limit in limits.items():
        checks.number(f"constants.{name}", getattr(constants, name), open_high=True, **limit)


def check_link(link: Link) -> None:
    """Refuses links that cannot be; an infinite bandwidth is one that takes no time."""
    for name in ("download_mbps", "upload_mbps"):
        checks.number(f"link.{name}", getattr(link, name), low=0.0, open_low=True)
    checks.number("link.megabits", link.megabits, low=0.0, open_low=True, open_high=True)
    checks.number("link.seconds_per_step", link.seconds_per_step, low=0.0, open_high=True)
