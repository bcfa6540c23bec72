"""All constants of FedAvg's bounds at once, from a model and its clients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.bounds.estimators import passes
from fedjax_opt.bounds.estimators.curvature import Curvature, estimate_curvature
from fedjax_opt.bounds.estimators.dissimilarity import Dissimilarity, estimate_dissimilarity
from fedjax_opt.bounds.estimators.estimate import Estimate, on_host, rounding
from fedjax_opt.bounds.estimators.minimum import Heterogeneity, Minimum, estimate_heterogeneity
from fedjax_opt.bounds.estimators.noise import Noise, check_sampling, estimate_noise
from fedjax_opt.bounds.fedavg_constants import FedAvgConstants
from fedjax_opt.core import Model, Variables, checks
from fedjax_opt.core.tables import table_lines

_MEANING = {
    "smoothness": ("L", "residual of an eigenvalue"),
    "strong_convexity": ("mu", "residual of an eigenvalue"),
    "initial_loss": ("F(x_1)", "rounding"),
    "optimal_loss": ("F*", "||grad F||^2/(2 mu), or lower_bound"),
    "noise": ("sum p^2 sigma^2", "rounding, or two standard errors"),
    "heterogeneity": ("Gamma", "those of F* and f_c*"),
    "gradient_bound": ("G", "those of L and x*"),
}


class EstimatedConstants(NamedTuple):
    """The constants of FedAvg's bounds, each with its uncertainty, and what they were found from.

    Attributes:
      constants: the `FedAvgConstants`, for the calculators.
      smoothness: L, the largest at the points that were looked at; a lower bound of a region's.
      strong_convexity: mu, the smallest there; an upper bound of a region's.
      initial_loss: F(x_1).
      optimal_loss: F*, from above.
      noise: sum_c p_c^2 sigma_c^2, each at the point where it is largest.
      heterogeneity: Gamma.
      gradient_bound: G = L ||x_1 - x*||, which bounds the gradient of F. Where a bound needs that of
        the clients' minibatches, it is `scatter.example_gradient`.
      curvature: the `Curvature`, by point and client.
      scatter: the `Noise`, by client.
      minima: the `Heterogeneity`, with x* and every f_c*.
      dissimilarity: the `Dissimilarity`, with other meanings of G.
      assumptions: whether what the estimates rest on holds, by name.
    """

    constants: FedAvgConstants
    smoothness: Estimate
    strong_convexity: Estimate
    initial_loss: Estimate
    optimal_loss: Estimate
    noise: Estimate
    heterogeneity: Estimate
    gradient_bound: Estimate
    curvature: Curvature
    scatter: Noise
    minima: Heterogeneity
    dissimilarity: Dissimilarity
    assumptions: dict[str, Any]

    def describe(self) -> str:
        """A table of the constants, their uncertainties and what backs these."""
        head = ("constant", "", "value", "+-", "backed by")
        rows = [
            (name, symbol, f"{float(value):.6g}", f"{float(uncertainty):.2g}", backing)
            for name, (symbol, backing) in _MEANING.items()
            for value, uncertainty in [getattr(self, name)]
        ]
        lines = table_lines(head, rows, text_columns=(0, 1, 4))
        failing = [name for name, holds in self.assumptions.items() if not holds]
        return "\n".join(lines + [f"does not hold: {name}" for name in failing])


def estimate_constants(
    model: Model,
    data: Any,
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
    iterations: int = 64,
    chunk_size: int = 256,
    seed: int = 0,
) -> EstimatedConstants:
    """Every constant of FedAvg's bounds, from a model, its clients and where training starts.

    F is minimised from `variables`, and every f_c from there. Curvature and noise are looked at where
    training starts, at the minimum and at `points`: the largest L and sigma_c^2 count, and the smallest
    mu. The single estimators say what each uncertainty is; G = L ||x_1 - x*|| has those of L and x*.

    Where a model is not convex, mu is negative, F* an upper estimate of unknown error, and the bounds
    that need convexity report it; nothing is raised.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: a `ClientData`.
      variables: x_1, where training starts.
      batch_size: B.
      cohort_size: the clients in a round.
      points: further models to look at, such as some of a run's.
      weighting: the p_c, by 'samples' or 'uniform'.
      batching: how a run would draw minibatches, in 'shuffled' epochs or with 'replacement'.
      per_client: take L and mu over every client's f_c, as the bounds assume; otherwise of F alone.
      samples: how many rows of each client to look at for the noise; all of them by default.
      strong_convexity: a known mu of every f_c, such as the factor of a quadratic penalty.
      lower_bound: a known lower bound of the loss, such as 0 for cross-entropy.
      tolerance: in a minimum, the gradient's norm is to fall by this factor.
      max_steps: of Newton's method, for a minimum.
      iterations: Hessian-vector products in each step, and in Lanczos' method.
      chunk_size: the examples whose losses are computed at once.
      seed: of Lanczos' method and of the sample.

    Returns:
      An `EstimatedConstants`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=3, dimension=4)
      >>> found = fo.bounds.estimate_constants(
      ...     model, data, fo.Variables({"x": jnp.ones(4)}), batch_size=1, cohort_size=3
      ... )
      >>> bound = fo.bounds.fedavg(found.constants, learning_rate=0.01, local_steps=5, rounds=100)
      >>> print(found.describe().splitlines()[0].split())
      ['constant', 'value', '+-', 'backed', 'by']

    Reference:
      Mills et al., "Faster Federated Learning with Decaying Number of Local SGD Steps", 2023,
      section 3.3.
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
        tolerance=tolerance, max_steps=max_steps, iterations=iterations, seed=seed, **shared,
    )  # fmt: skip
    minimum = minima.minimum
    assert minimum.variables is not None  # that of F is kept
    everywhere = [variables, minimum.variables, *points]
    curvature = estimate_curvature(
        model, data, everywhere, per_client=per_client, iterations=iterations, seed=seed, **shared
    )
    scatter = estimate_noise(
        model, data, everywhere, batch_size=batch_size, batching=batching, samples=samples,
        seed=seed, **shared,
    )  # fmt: skip
    dissimilarity = estimate_dissimilarity(model, data, everywhere, **shared)
    mu = curvature.strong_convexity
    if strong_convexity is not None:
        mu = Estimate(np.float64(strong_convexity), np.float64(0))
    loss = np.sum(passes.client_weights(data.sizes, weighting) * dissimilarity.losses[0])
    dtype = passes.Layout.of(minimum.variables.params).dtype
    estimates = {
        "smoothness": curvature.smoothness,
        "strong_convexity": mu,
        "initial_loss": Estimate(loss, rounding(loss, np.sum(data.sizes), dtype)),
        "optimal_loss": minimum.loss,
        "noise": scatter.weighted,
        "heterogeneity": minima.gap,
        "gradient_bound": _gradient_bound(variables, minimum, curvature.smoothness),
    }
    values = {name: estimate.value for name, estimate in estimates.items()}
    return EstimatedConstants(
        constants=FedAvgConstants(cohort_size=cohort_size, **values),
        **estimates,
        curvature=curvature,
        scatter=scatter,
        minima=minima,
        dissimilarity=dissimilarity,
        assumptions={
            "mu > 0": mu.value > 0,
            "F* is proven": np.isfinite(minimum.loss.uncertainty),
        },
    )


def _gradient_bound(variables: Variables, minimum: Minimum, smoothness: Estimate) -> Estimate:
    """L ||x_1 - x*||, where x* is known up to the minimum's distance."""
    assert minimum.variables is not None
    ends = on_host((variables.params, minimum.variables.params))
    squares = jax.tree.map(lambda first, last: np.sum((first - last) ** 2), *ends)
    length = np.sqrt(sum(jax.tree.leaves(squares)))
    most = smoothness.value + smoothness.uncertainty
    uncertainty = smoothness.uncertainty * length + most * minimum.distance
    return Estimate(smoothness.value * length, uncertainty)
