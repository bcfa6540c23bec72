"""L and mu: the ends of the Hessian's spectrum, by Hessian-vector products alone."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.bounds.estimators import passes
from fedjax_opt.bounds.estimators.estimate import (
    Estimate,
    check_finite,
    largest_of,
    on_host,
    rounding,
    smallest_of,
)
from fedjax_opt.bounds.estimators.lanczos import Spectrum, extreme_eigenvalues, random_start
from fedjax_opt.bounds.estimators.passes import Fixed, Layout, Problem
from fedjax_opt.core import Model, Variables, checks


class Curvature(NamedTuple):
    """How strongly the objectives curve, at the points that were looked at.

    Attributes:
      smoothness: L, the largest magnitude of an eigenvalue of a Hessian.
      strong_convexity: mu, the smallest eigenvalue; negative where an objective is not convex.
      largest: the largest eigenvalue by point and client, `[points, N]`; `[points, 1]` of F alone.
      smallest: the smallest, in the same way.
    """

    smoothness: Estimate
    strong_convexity: Estimate
    largest: Estimate
    smallest: Estimate


def estimate_curvature(
    model: Model,
    data: Any,
    variables: Variables | Sequence[Variables],
    *,
    per_client: bool = True,
    weighting: str = "samples",
    iterations: int = 32,
    chunk_size: int = 256,
    seed: int = 0,
) -> Curvature:
    """L and mu from the extreme eigenvalues of Hessians, by Lanczos' method without a matrix.

    The uncertainty of an eigenvalue theta with unit vector y is its residual ||H y - theta y||: an
    eigenvalue of H lies within it. That it is the extreme one is not proven, but almost sure for a
    random start and enough iterations. But for rounding, which is added, the largest eigenvalue at
    these points is never below the estimate, and the smallest never above.

    Where the Hessian changes with x, as it does for all but quadratic losses, the L of a whole region is
    at least this one, and its mu at most: look at several points, such as a run's models.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: a `ClientData`.
      variables: the point to look at, or a list of points.
      per_client: look at every client's f_c, of which the papers assume smoothness and convexity, one
        client after the other; otherwise at F, which is cheaper, and at most as curved.
      weighting: the weights of F, by 'samples' or 'uniform'.
      iterations: of Lanczos' method; each takes a Hessian-vector product, and holds a vector of the
        model's size. With as many as there are parameters the ends are exact.
      chunk_size: the examples whose losses are computed at once.
      seed: of the random start.

    Returns:
      A `Curvature`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=3, dimension=4)
      >>> found = fo.bounds.estimate_curvature(model, data, fo.Variables({"x": jnp.zeros(4)}))
      >>> bool(0.5 <= found.strong_convexity.value <= found.smoothness.value <= 2.0)
      True

    Reference:
      Golub and Van Loan. Matrix computations. 4th edition, 2013. Section 10.1.
    """
    iterations = checks.integer("iterations", iterations, low=1)
    points = passes.stack_points(variables)
    problem, fixed = passes.prepare(model, data, weighting, chunk_size)
    layout = passes.layout_of_stack(points.params)
    iterations = min(iterations, layout.size)
    start = random_start(seed, layout.size, layout.dtype)
    fixed = fixed.by_client if per_client else fixed
    spectrum = on_host(_spectra(problem, points, start, fixed, iterations, per_client))
    largest = spectrum.largest.value if per_client else spectrum.largest.value[:, 0]
    check_finite("An eigenvalue of the Hessian", largest, ("point", "client")[: largest.ndim])
    rows = np.asarray(data.sizes) if per_client else problem.num_rows
    scale = np.maximum(np.abs(spectrum.largest.value), np.abs(spectrum.smallest.value))
    rounded = rounding(scale, rows, layout.dtype)
    spectrum = Spectrum(*(end._replace(uncertainty=end.uncertainty + rounded) for end in spectrum))
    lowest, highest = smallest_of(spectrum.smallest), largest_of(spectrum.largest)
    ends = (highest.value, -lowest.value), (highest.uncertainty, lowest.uncertainty)
    return Curvature(
        smoothness=largest_of(Estimate(*map(np.array, ends))),
        strong_convexity=lowest,
        largest=spectrum.largest,
        smallest=spectrum.smallest,
    )


@partial(jax.jit, static_argnames=("iterations", "per_client"))
def _spectra(
    problem: Problem,
    points: Variables,
    start: jax.Array,
    fixed: Fixed,
    iterations: int,
    per_client: bool,
) -> Spectrum:
    def spectrum_of(slope, x):
        product = partial(passes.hessian_product, slope, x)
        return extreme_eigenvalues(product, start, iterations)

    def at_point(variables):
        x = Layout.of(variables.params).vector(variables.params)
        if not per_client:
            found = spectrum_of(passes.global_slope(fixed, problem, variables), x)
            return jax.tree.map(lambda value: value[None], found)

        def of_client(feed):
            return (), spectrum_of(passes.row_slope(fixed, problem, variables, feed), x)

        return passes.over_clients(of_client, (problem.feeds,))[1]

    return jax.lax.map(at_point, points)
