"""All constants of FedAvg's bounds at once, from a model and its clients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.bounds.curvature import (
    Curvature,
    Heterogeneity,
    estimate_curvature,
    estimate_heterogeneity,
)
from fedjax_opt.bounds.fedavg import FedAvgConstants
from fedjax_opt.bounds.gradients import (
    Dissimilarity,
    Estimate,
    Noise,
    check_sampling,
    estimate_dissimilarity,
    estimate_noise,
    prepare,
)
from fedjax_opt.core import ClientData, Model, Variables, checks
from fedjax_opt.core.tables import table_lines

_MEANING = {
    "smoothness": ("L", "the residual of an eigenvalue"),
    "strong_convexity": ("mu", "the residual of an eigenvalue"),
    "initial_loss": ("F(x_1)", ""),
    "optimal_loss": ("F*", "||grad F||^2/(2 mu), or lower_bound"),
    "noise": ("sum p^2 sigma^2", "two standard errors of a sample"),
    "heterogeneity": ("Gamma", "those of F* and f_c*"),
    "gradient_bound": ("G", ""),
}


class EstimatedConstants(NamedTuple):
    """The constants of FedAvg's bounds, and what they were found from.

    Attributes:
      constants: the `FedAvgConstants`, for the calculators. L is the largest at the points that were
        looked at, a lower bound of a region's; mu the smallest, an upper bound of a region's; F* is from
        above; sum_c p_c^2 sigma_c^2 has each variance at the point where it is largest. G, which is
        L ||x_1 - x*||, bounds the gradient of F. Where a bound needs that of the clients' minibatches,
        it is `scatter.example_gradient`.
      residuals: constant -> the residual of its `Estimate`, for those that have one.
      curvature: the `Curvature`, by point and client.
      scatter: the `Noise`, by client.
      minima: the `Heterogeneity`, with x* and every f_c*.
      dissimilarity: the `Dissimilarity`, with other meanings of G.
      assumptions: whether the estimates support what the bounds assume, residuals included, by name.
    """

    constants: FedAvgConstants
    residuals: dict[str, float]
    curvature: Curvature
    scatter: Noise
    minima: Heterogeneity
    dissimilarity: Dissimilarity
    assumptions: dict[str, bool]

    def describe(self) -> str:
        """A table of the constants, their residuals and what these are."""
        head = ("constant", "", "value", "residual", "which is")
        rows = []
        for name, (symbol, what) in _MEANING.items():
            residual = f"{self.residuals[name]:.2g}" if name in self.residuals else ""
            rows.append((name, symbol, f"{getattr(self.constants, name):.6g}", residual, what))
        lines = table_lines(head, rows, text_columns=(0, 1, 4))
        failing = [name for name, holds in self.assumptions.items() if not holds]
        return "\n".join(lines + [f"does not hold: {name}" for name in failing])


def estimate_constants(
    model: Model,
    data: ClientData,
    variables: Variables,
    *,
    batch_size: int,
    cohort_size: int,
    points: Sequence[Variables] = (),
    weighting: str = "samples",
    batching: str = "shuffled",
    per_client: bool = True,
    samples: int | None = None,
    strong_convexity: float | None = None,
    lower_bound: float = -np.inf,
    tolerance: float = 1e-8,
    max_steps: int = 50,
    chunk_size: int = 256,
    seed: int = 0,
) -> EstimatedConstants:
    """Every constant of FedAvg's bounds, from a model, its clients and where training starts.

    F is minimised from `variables`, and every f_c from there. Curvature and noise are looked at where
    training starts, at the minimum and at `points`: the largest L and sigma_c^2 count, and the smallest
    mu. It runs on the host, one client after the other.

    Where a model is not convex, mu is negative, F* an upper estimate of unknown error, and the bounds
    that need convexity report it; nothing is raised.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: the clients' data.
      variables: x_1, where training starts.
      batch_size: B.
      cohort_size: the clients in a round.
      points: further models to look at, such as some of a run's.
      weighting: the p_c, by 'samples' or 'uniform'.
      per_client: take L and mu over every client's f_c, as the bounds assume; otherwise of F alone.
      batching, samples: how noise is looked at, as for `estimate_noise`.
      strong_convexity: a known mu of every f_c, such as the factor of a quadratic penalty.
      lower_bound, tolerance, max_steps: of the minima, as for `estimate_minimum`.
      chunk_size: the examples whose losses are computed at once.
      seed: of Lanczos' method and of the sample.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=3, dimension=4)
      >>> found = fo.bounds.estimate_constants(
      ...     model, data, fo.Variables({"x": jnp.ones(4)}), batch_size=1, cohort_size=3
      ... )
      >>> bound = fo.bounds.fedavg(found.constants, 0.01, 5, fo.bounds.Rounds(100))
      >>> print(found.describe().splitlines()[0].split())
      ['constant', 'value', 'residual', 'which', 'is']
    """
    cohort_size = checks.integer("cohort_size", cohort_size, low=1)
    if cohort_size > len(data.sizes):
        raise ValueError(
            f"cohort_size must not be larger than the population of {len(data.sizes)} clients, got"
            f" {cohort_size}."
        )
    check_sampling(batch_size, batching, samples)
    for i, point in enumerate(points):
        checks.same_structure(f"points[{i}]", point, variables, "that of variables")
    shared: dict[str, Any] = {"weighting": weighting, "chunk_size": chunk_size}
    minima = estimate_heterogeneity(
        model, data, variables, strong_convexity=strong_convexity, lower_bound=lower_bound,
        tolerance=tolerance, max_steps=max_steps, seed=seed, **shared,
    )  # fmt: skip
    minimum = minima.minimum
    assert minimum.variables is not None  # that of F is kept
    everywhere = [variables, minimum.variables, *points]
    curvature = estimate_curvature(
        model, data, everywhere, per_client=per_client, seed=seed, **shared
    )
    scatter = estimate_noise(
        model, data, everywhere, batch_size=batch_size, batching=batching, samples=samples,
        seed=seed, **shared,
    )  # fmt: skip
    dissimilarity = estimate_dissimilarity(model, data, everywhere, **shared)
    mu = curvature.strong_convexity
    if strong_convexity is not None:
        mu = Estimate(float(strong_convexity), 0.0)
    problem = prepare(model, data, weighting, chunk_size)
    start, end = (problem.mean(point).start for point in (variables, minimum.variables))
    backed = {
        "smoothness": curvature.smoothness,
        "strong_convexity": mu,
        "optimal_loss": minimum.loss,
        "noise": scatter.weighted,
        "heterogeneity": minima.gap,
    }
    return EstimatedConstants(
        constants=FedAvgConstants(
            cohort_size=cohort_size,
            initial_loss=problem.weights @ dissimilarity.losses[0],
            gradient_bound=curvature.smoothness.value * np.linalg.norm(start - end),
            **{name: estimate.value for name, estimate in backed.items()},
        ),
        residuals={name: float(estimate.residual) for name, estimate in backed.items()},
        curvature=curvature,
        scatter=scatter,
        minima=minima,
        dissimilarity=dissimilarity,
        assumptions={
            "mu > 0": bool(mu.value > mu.residual),
            "F* >= 0": bool(minimum.loss.value >= minimum.loss.residual),
            "F* is proven": bool(np.isfinite(minimum.loss.residual)),
        },
    )
