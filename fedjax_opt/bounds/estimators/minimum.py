"""F*, f_c* and Gamma: minima with a certificate of how far below the true ones may be.

Where f is mu-strongly convex, f(x) - f* <= ||grad f(x)||^2 / (2 mu): a small gradient proves that x is
almost as good as the minimum. Around the point found, mu is the smallest eigenvalue of the Hessian there
(less its residual), unless a better one is known.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.estimators import passes
from fedjax_opt.bounds.estimators.estimate import Estimate, check_finite, on_host, rounding
from fedjax_opt.bounds.estimators.lanczos import extreme_eigenvalues, random_start
from fedjax_opt.bounds.estimators.newton import minimise
from fedjax_opt.bounds.estimators.passes import Fixed, Layout, Problem
from fedjax_opt.core import Model, Variables, checks
from fedjax_opt.core.struct import struct


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


@struct("iterations", "with_curvature")
class _Search:
    """The passes that a search makes, and what is compiled into it."""

    fixed: Fixed
    iterations: int
    with_curvature: bool


class _Numbers(NamedTuple):
    """What of a search is traced; `start` is that of Lanczos' method."""

    start: jax.Array
    tolerance: jax.Array
    max_steps: jax.Array


class _Ending(NamedTuple):
    """Where a search ended; the curvature is None where it is known beforehand."""

    loss: jax.Array
    gradient_norm: jax.Array
    curvature: Estimate | None
    steps: jax.Array
    variables: Variables | None


def estimate_minimum(
    model: Model,
    data: Any,
    variables: Variables,
    *,
    weighting: str = "samples",
    strong_convexity: float | None = None,
    lower_bound: float = -np.inf,
    tolerance: float = 1e-8,
    max_steps: int = 50,
    iterations: int = 64,
    chunk_size: int = 256,
    seed: int = 0,
) -> Minimum:
    """F*, the smallest value of F, by Newton's method without a matrix, with a certificate.

    The uncertainty is ||grad F||^2/(2 mu) at the point found, plus rounding: F* lies no further below.
    It is proven where mu bounds the curvature between there and the minimum. For a model that is not
    convex it is infinite, or F - lower_bound, and the value is an upper estimate of F*.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: a `ClientData`.
      variables: where to start.
      weighting: the p_c, by 'samples' or 'uniform'.
      strong_convexity: a known mu, such as the factor of a quadratic penalty; by default the smallest
        eigenvalue of the Hessian at the point found.
      lower_bound: a known lower bound of the loss, such as 0 for cross-entropy.
      tolerance: the gradient's norm is to fall by this factor.
      max_steps: of Newton's method.
      iterations: Hessian-vector products in each step, and in Lanczos' method for the eigenvalue.
      chunk_size: the examples whose losses are computed at once.
      seed: of Lanczos' method.

    Returns:
      A `Minimum`.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=4)
      >>> found = fo.bounds.estimate_minimum(model, data, fo.Variables({"x": jnp.zeros(4)}))
      >>> np.allclose(found.variables.params["x"], optimum, atol=1e-5)
      True

    Reference:
      Nocedal and Wright. Numerical optimization. 2nd edition, 2006. Algorithm 7.1.
    """
    problem, numbers, known, search = _prepare(
        model, data, variables, weighting, strong_convexity, lower_bound, tolerance, max_steps,
        iterations, chunk_size, seed,
    )  # fmt: skip
    return _certified(_minimum(problem, variables, numbers, search), problem.num_rows, known)


def estimate_heterogeneity(
    model: Model,
    data: Any,
    variables: Variables,
    *,
    weighting: str = "samples",
    strong_convexity: float | None = None,
    lower_bound: float = -np.inf,
    tolerance: float = 1e-8,
    max_steps: int = 50,
    iterations: int = 64,
    chunk_size: int = 256,
    seed: int = 0,
) -> Heterogeneity:
    """Gamma = F* - sum_c p_c f_c*: what the clients would gain if each had a model of its own.

    Every f_c is minimised from where F is smallest, one client after the other. The uncertainty follows
    from those of the minima, each of which may be too large, never too small: that of F* lowers Gamma,
    those of the f_c* raise it.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: a `ClientData`.
      variables: where to start.
      weighting: the p_c, by 'samples' or 'uniform'.
      strong_convexity: a known mu of every f_c, such as the factor of a quadratic penalty; by default
        the smallest eigenvalue of the Hessian at the point found.
      lower_bound: a known lower bound of the loss, such as 0 for cross-entropy.
      tolerance: the gradient's norm is to fall by this factor.
      max_steps: of Newton's method.
      iterations: Hessian-vector products in each step, and in Lanczos' method for the eigenvalue.
      chunk_size: the examples whose losses are computed at once.
      seed: of Lanczos' method.

    Returns:
      A `Heterogeneity`.

    Example:
      Clients that agree on the optimum:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, _ = fo.data.quadratics(num_clients=3, dimension=4, heterogeneity=0.0)
      >>> found = fo.bounds.estimate_heterogeneity(model, data, fo.Variables({"x": jnp.ones(4)}))
      >>> bool(found.gap.value < 1e-6)
      True

    Reference:
      Li et al. On the convergence of FedAvg on non-IID data. ICLR 2020. Section 3.1.
    """
    problem, numbers, known, search = _prepare(
        model, data, variables, weighting, strong_convexity, lower_bound, tolerance, max_steps,
        iterations, chunk_size, seed,
    )  # fmt: skip
    minimum = _certified(_minimum(problem, variables, numbers, search), problem.num_rows, known)
    search = dataclasses.replace(search, fixed=search.fixed.by_client)
    endings = _client_minima(problem, minimum.variables, numbers, search)
    clients = _certified(endings, np.asarray(data.sizes), known)
    weights = passes.client_weights(data.sizes, weighting)
    gap = minimum.loss.value - np.sum(weights * clients.loss.value)
    below = np.sum(weights * clients.loss.uncertainty)
    # Gamma is not negative, except by rounding: the clients start where F is smallest.
    gap = Estimate(np.maximum(gap, 0), np.maximum(minimum.loss.uncertainty, below))
    return Heterogeneity(gap, minimum, clients)


class _Known(NamedTuple):
    """What is known of the losses beforehand, and in which precision they are computed."""

    strong_convexity: float | None
    lower_bound: float
    dtype: Any


def _prepare(
    model, data, variables, weighting, strong_convexity, lower_bound, tolerance, max_steps,
    iterations, chunk_size, seed,
) -> tuple[Problem, _Numbers, _Known, _Search]:  # fmt: skip
    if strong_convexity is not None:
        checks.number("strong_convexity", strong_convexity, low=0.0, open_low=True)
    checks.number("lower_bound", lower_bound, open_high=True)
    checks.number("tolerance", tolerance, low=0.0)
    problem, fixed = passes.prepare(model, data, weighting, chunk_size)
    layout = passes.layout_of_stack(passes.stack_points([variables]).params)
    search = _Search(
        fixed=fixed,
        iterations=min(checks.integer("iterations", iterations, low=1), layout.size),
        with_curvature=strong_convexity is None,
    )
    start = random_start(seed, layout.size, layout.dtype)
    max_steps = jnp.asarray(checks.integer("max_steps", max_steps, low=1), jnp.int32)
    numbers = _Numbers(start, jnp.asarray(tolerance, layout.dtype), max_steps)
    return problem, numbers, _Known(strong_convexity, lower_bound, layout.dtype), search


@jax.jit
def _minimum(problem: Problem, variables: Variables, numbers: _Numbers, search: _Search) -> _Ending:
    slope = passes.global_slope(search.fixed, problem, variables)
    return _descend(slope, variables, numbers, search)


@jax.jit
def _client_minima(
    problem: Problem, variables: Variables, numbers: _Numbers, search: _Search
) -> _Ending:
    def of_client(feed):
        slope = passes.row_slope(search.fixed, problem, variables, feed)
        return (), _descend(slope, variables, numbers, search)._replace(variables=None)

    return passes.over_clients(of_client, (problem.feeds,))[1]


def _descend(slope, variables, numbers: _Numbers, search: _Search) -> _Ending:
    layout = Layout.of(variables.params)
    x = layout.vector(variables.params)
    at = minimise(slope, x, numbers.max_steps, search.iterations, numbers.tolerance)
    curvature = None
    if search.with_curvature:
        product = partial(passes.hessian_product, slope, at.x)
        curvature = extreme_eigenvalues(product, numbers.start, search.iterations).smallest
    there = variables._replace(params=layout.tree(at.x))
    return _Ending(at.loss, jnp.linalg.norm(at.gradient), curvature, at.steps, there)


def _certified(ending: _Ending, rows: Any, known: _Known) -> Minimum:
    """What the end of a search proves about the minimum."""
    loss, norm, curvature = on_host(ending[:3])
    axes = ("client",)[: loss.ndim]
    check_finite("The mean loss", loss, axes)
    check_finite("The norm of the gradient", norm, axes)
    rounded = rounding(loss, rows, known.dtype)
    if np.min(loss + rounded) < known.lower_bound:
        raise ValueError(
            f"lower_bound must be a lower bound of the mean loss, which fell to {np.min(loss)}, got"
            f" {known.lower_bound!r}."
        )
    if curvature is None:
        curvature = Estimate(np.full_like(loss, known.strong_convexity), np.zeros_like(loss))
    below = np.minimum(_proven(norm**2 / 2, curvature), np.maximum(loss - known.lower_bound, 0))
    below = below + rounded
    steps = np.asarray(ending.steps)
    return Minimum(Estimate(loss, below), norm, curvature, steps, ending.variables)


def _proven(bound: Any, mu: Estimate) -> Any:
    """bound / mu, for the least mu that is likely; infinite where it is not positive."""
    least = mu.value - mu.uncertainty
    return np.where(least > 0, bound / np.where(least > 0, least, 1), np.inf)
