"""Estimators of L, mu, F* and Gamma: the ends of Hessians' spectra, and minima, by SciPy.

Both know the Hessian by its products with vectors alone. They run on the host: each product is one call
of a compiled program, so they cost little beside the sums over data, and cannot be traced.

For an eigenvalue theta with the unit vector v, some eigenvalue of H is within ||H v - theta v||. That it
is the extreme one is not proven, but almost sure for a random start.

Where f is mu-strongly convex, f(x) - f* <= ||grad f(x)||^2 / (2 mu): a small gradient proves that x is
almost as good as the minimum. Around the point found, mu is the smallest eigenvalue of the Hessian
there, less its residual, unless a better one is known.

References:
  Golub and Van Loan. Matrix computations. 4th edition, 2013. Section 10.1.
  Nocedal and Wright. Numerical optimization. 2nd edition, 2006. Algorithm 7.1.
  Li et al. On the convergence of FedAvg on non-IID data. ICLR 2020. Section 3.1.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.bounds.gradients import Estimate, MeanLoss, check_finite, checked_points, prepare
from fedjax_opt.core import ClientData, Model, Variables, checks

# With so few parameters the matrix is built: Lanczos' method would take as many products.
_DENSE = 64
_UNKNOWN = np.nan, np.nan


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


class Minimum(NamedTuple):
    """The smallest value of an objective, as far as it was found; of each client's, arrays `[N]`.

    Attributes:
      loss: the loss found, and how far below it the minimum may be; infinite where convexity is not
        proven and no lower bound is known. The minimum is never above.
      gradient_norm: the norm of the gradient there.
      strong_convexity: mu there, at most; the one given, if one was.
      steps: of Newton's method.
      variables: where it is; None of the clients', which are not kept.
    """

    loss: Estimate
    gradient_norm: Any
    strong_convexity: Estimate
    steps: Any
    variables: Variables | None

    @property
    def distance(self) -> Any:
        """How far the minimiser may be from `variables`: ||grad F|| / mu, if mu > 0."""
        return _proven(self.gradient_norm, self.strong_convexity)


class Heterogeneity(NamedTuple):
    """How far the clients' minima are from being one.

    Attributes:
      gap: Gamma = F* - sum_c p_c f_c*.
      minimum: that of F.
      clients: those of the f_c, arrays `[N]`.
    """

    gap: Estimate
    minimum: Minimum
    clients: Minimum


def estimate_curvature(
    model: Model,
    data: ClientData,
    variables: Variables | Sequence[Variables],
    *,
    per_client: bool = True,
    weighting: str = "samples",
    tolerance: float = 1e-5,
    chunk_size: int = 256,
    seed: int = 0,
) -> Curvature:
    """L and mu from the extreme eigenvalues of Hessians, by Lanczos' method without a matrix.

    But for rounding, the largest eigenvalue at these points is never below the estimate, and the
    smallest never above. Where the Hessian changes with x, as it does for all but quadratic losses, the
    L of a whole region is at least this one, and its mu at most: look at several points, such as a run's
    models.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: the clients' data.
      variables: the point to look at, or a list of points.
      per_client: look at every client's f_c, of which the papers assume smoothness and convexity, one
        client after the other; otherwise at F, which is cheaper, and at most as curved.
      weighting: the weights of F, by 'samples' or 'uniform'.
      tolerance: how exact both ends are to be, in units of the largest magnitude.
      chunk_size: the examples whose losses are computed at once.
      seed: of the random start.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=3, dimension=4)
      >>> found = fo.bounds.estimate_curvature(model, data, fo.Variables({"x": jnp.zeros(4)}))
      >>> bool(0.5 <= found.strong_convexity.value <= found.smoothness.value <= 2.0)
      True
    """
    checks.number("tolerance", tolerance, low=0.0, open_low=True)
    points = checked_points(variables)
    problem = prepare(model, data, weighting, chunk_size)

    clients = range(len(problem.sizes)) if per_client else [None]
    means = [[problem.mean(point, client) for client in clients] for point in points]
    found = [[_ends(mean, mean.start, tolerance, seed) for mean in row] for row in means]
    values, residuals = np.moveaxis(np.array(found), (-2, -1), (1, 0))  # [ends, points, N] each
    smallest, largest = map(Estimate, values, residuals)
    axes = ("point", "client") if per_client else ("point",)
    check_finite("An eigenvalue of the Hessian", values[1] if per_client else values[1, :, 0], axes)
    mu, top = _at(smallest, np.argmin), _at(largest, np.argmax)
    # A gradient changes as fast where the function bends down as where it bends up.
    steepest = top if top.value >= -mu.value else Estimate(-mu.value, mu.residual)
    return Curvature(steepest, mu, largest, smallest)


def _at(estimate, which):
    place = np.unravel_index(which(estimate.value), estimate.value.shape)
    return Estimate(estimate.value[place], estimate.residual[place])


def _ends(loss: MeanLoss, x, tolerance, seed):
    """The smallest and the largest eigenvalue of the Hessian at x, each with its residual, `[2, 2]`."""
    from scipy.sparse import linalg  # here, so that importing the package does not wait for it

    def product(v):
        return loss.product(x, v)

    def judged(value, vector):
        return value, np.linalg.norm(product(vector) - value * vector)

    if len(x) <= _DENSE:
        matrix = np.array([product(row) for row in np.eye(len(x))])
        if not np.isfinite(matrix).all():
            return _UNKNOWN, _UNKNOWN
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        return judged(values[0], vectors[:, 0]), judged(values[-1], vectors[:, -1])
    start = np.random.default_rng(seed).standard_normal(len(x))
    image = product(start)
    if not np.isfinite(image).all():
        return _UNKNOWN, _UNKNOWN
    if not image.any():
        return (0.0, 0.0), (0.0, 0.0)

    def top(function):
        """The eigenvalue of the largest magnitude."""
        make: Any = linalg.LinearOperator  # the stub does not know its arguments
        operator = make((len(x), len(x)), matvec=function, dtype=np.float64)
        values, vectors = linalg.eigsh(operator, k=1, which="LM", v0=start, tol=tolerance)
        return values[0], vectors[:, 0]

    value, vector = top(product)
    # Seen from one end, the other is the farthest. The tolerance is then relative to the largest, not to
    # an end that may be 0.
    shifted, other = top(lambda v: product(v) - value * np.ravel(v))
    first, second = judged(value, vector), judged(value + shifted, other)
    return (first, second) if value < value + shifted else (second, first)


def estimate_minimum(
    model: Model,
    data: ClientData,
    variables: Variables,
    *,
    weighting: str = "samples",
    strong_convexity: float | None = None,
    lower_bound: float = -np.inf,
    tolerance: float = 1e-8,
    max_steps: int = 50,
    chunk_size: int = 256,
    seed: int = 0,
) -> Minimum:
    """F*, the smallest value of F, by Newton's method without a matrix, with a certificate.

    The residual is ||grad F||^2/(2 mu) at the point found: but for rounding, F* lies no further below.
    It is proven where mu bounds the curvature between there and the minimum. For a model that is not
    convex it is infinite, or F - lower_bound, and the value is an upper estimate of F*.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: the clients' data.
      variables: where to start.
      weighting: the p_c, by 'samples' or 'uniform'.
      strong_convexity: a known mu, such as the factor of a quadratic penalty; by default the smallest
        eigenvalue of the Hessian at the point found.
      lower_bound: a known lower bound of the loss, such as 0 for cross-entropy.
      tolerance: the gradient's norm is to fall by this factor.
      max_steps: of Newton's method.
      chunk_size: the examples whose losses are computed at once.
      seed: of Lanczos' method.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=4)
      >>> found = fo.bounds.estimate_minimum(model, data, fo.Variables({"x": jnp.zeros(4)}))
      >>> np.allclose(found.variables.params["x"], optimum, atol=1e-5)
      True
    """
    search = _search(strong_convexity, lower_bound, tolerance, max_steps, seed)
    (start,) = checked_points([variables])
    return search(prepare(model, data, weighting, chunk_size).mean(start))


def estimate_heterogeneity(
    model: Model,
    data: ClientData,
    variables: Variables,
    *,
    weighting: str = "samples",
    strong_convexity: float | None = None,
    lower_bound: float = -np.inf,
    tolerance: float = 1e-8,
    max_steps: int = 50,
    chunk_size: int = 256,
    seed: int = 0,
) -> Heterogeneity:
    """Gamma = F* - sum_c p_c f_c*: what the clients would gain if each had a model of its own.

    Every f_c is minimised from where F is smallest, one client after the other. Each minimum may be too
    large, never too small: that of F lowers Gamma, those of the f_c raise it.

    Args:
      model, data, variables, weighting, chunk_size, seed: as for `estimate_minimum`.
      strong_convexity: a known mu of every f_c; by default it is estimated for each.
      lower_bound, tolerance, max_steps: of every minimum, as for `estimate_minimum`.

    Example:
      Clients that agree on the optimum:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=3, dimension=4, heterogeneity=0.0)
      >>> found = fo.bounds.estimate_heterogeneity(model, data, fo.Variables({"x": jnp.ones(4)}))
      >>> bool(found.gap.value < 1e-6)
      True
    """
    search = _search(strong_convexity, lower_bound, tolerance, max_steps, seed)
    (start,) = checked_points([variables])
    problem = prepare(model, data, weighting, chunk_size)
    minimum = search(problem.mean(start))
    assert minimum.variables is not None
    found = [search(problem.mean(minimum.variables, c)) for c in range(len(problem.sizes))]
    loss, norm, mu, steps, _ = zip(*found, strict=True)
    loss, mu = (Estimate(*np.array(estimates).T) for estimates in (loss, mu))
    clients = Minimum(loss, np.array(norm), mu, np.array(steps), None)
    gap = minimum.loss.value - problem.weights @ clients.loss.value
    below = problem.weights @ clients.loss.residual
    # Gamma is not negative, except by rounding: the clients start where F is smallest.
    gap = Estimate(max(gap, 0.0), max(minimum.loss.residual, below))
    return Heterogeneity(gap, minimum, clients)


def _search(
    strong_convexity: float | None, lower_bound: float, tolerance: float, max_steps: int, seed: int
) -> Callable[[MeanLoss], Minimum]:
    """How to find the minimum of one objective, from where it stands, with what is known beforehand."""
    if strong_convexity is not None:
        checks.number("strong_convexity", strong_convexity, low=0.0, open_low=True)
    checks.number("lower_bound", lower_bound, open_high=True)
    checks.number("tolerance", tolerance, low=0.0)
    checks.integer("max_steps", max_steps, low=1)

    def minimum(mean: MeanLoss) -> Minimum:
        first_loss, first = _finite_slope(mean, mean.start)
        small = tolerance * float(np.linalg.norm(first))
        x, steps = _descend(mean, small, max_steps) if first.any() else (mean.start, 0)
        loss, gradient = _finite_slope(mean, x)
        # So little below is rounding.
        if loss < lower_bound - 1e-5 * abs(first_loss):
            raise ValueError(
                f"lower_bound must be a lower bound of the mean loss, which fell to {loss}, got"
                f" {lower_bound!r}."
            )
        if strong_convexity is None:
            mu = Estimate(*_ends(mean, x, 1e-5, seed)[0])
        else:
            mu = Estimate(float(strong_convexity), 0.0)
        norm = np.linalg.norm(gradient)
        below = min(_proven(norm**2 / 2, mu), max(loss - lower_bound, 0.0))
        return Minimum(Estimate(loss, below), norm, mu, steps, mean.at(x))

    return minimum


def _descend(mean: MeanLoss, small: float, max_steps: int) -> tuple[np.ndarray, int]:
    """Where Newton-CG ends, and after how many steps: once the gradient is as small as asked."""
    from scipy import optimize

    def stop(intermediate_result):
        if np.linalg.norm(mean.slope(intermediate_result.x)[1]) <= small:
            raise StopIteration

    found = optimize.minimize(
        mean.slope, mean.start, jac=True, hessp=mean.product, method="Newton-CG", callback=stop,
        options={"maxiter": max_steps, "xtol": 0.0},
    )  # fmt: skip
    return found.x, found.nit


def _finite_slope(mean, x):
    loss, gradient = mean.slope(x)
    check_finite("The mean loss", loss, ())
    check_finite("The norm of the gradient", np.linalg.norm(gradient), ())
    return loss, gradient


def _proven(bound: Any, mu: Estimate) -> Any:
    """bound / mu, for the least mu that is likely; infinite where it is not positive."""
    least = mu.value - mu.residual
    return np.where(least > 0, bound / np.where(least > 0, least, 1), np.inf)[()]
