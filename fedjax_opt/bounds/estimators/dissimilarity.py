"""How large gradients are, and how much the clients' differ: G and B in all their meanings.

    global_gradient  max over iterates of ||grad F||            (FedAvg with decaying local steps)
    client_gradient  max over clients of ||grad f_c||           (FedACG)
    spread           G:  sum_c p_c ||grad f_c - grad F||^2 <= G^2              (FedGBO, GHBM)
    offset, slope    G and B:  sum_c p_c ||grad f_c||^2 <= G^2 + B^2 ||grad F||^2    (SCAFFOLD)

For weights that sum to 1, the third is the fourth with B = 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.estimators import passes
from fedjax_opt.bounds.estimators.estimate import (
    Estimate,
    check_finite,
    largest_of,
    on_host,
    root_of,
    rounding,
    rounding_of_square,
)
from fedjax_opt.bounds.estimators.passes import Fixed, Layout, Problem
from fedjax_opt.core import Model, Variables, trees


class Dissimilarity(NamedTuple):
    """Gradients of F and of the clients, at the points that were looked at.

    Attributes:
      global_gradient: the largest ||grad F||.
      client_gradient: the largest ||grad f_c||.
      spread: the least G with sum_c p_c ||grad f_c - grad F||^2 <= G^2.
      offset: G of the closest G^2 + B^2 ||grad F||^2 that is nowhere below sum_c p_c ||grad f_c||^2.
      slope: its B, at least 1.
      global_norms: ||grad F|| at each point, `[points]`.
      client_norms: ||grad f_c||, `[points, N]`.
      losses: f_c, `[points, N]`.
    """

    global_gradient: Estimate
    client_gradient: Estimate
    spread: Estimate
    offset: Estimate
    slope: Estimate
    global_norms: np.ndarray
    client_norms: np.ndarray
    losses: np.ndarray


def estimate_dissimilarity(
    model: Model,
    data: Any,
    variables: Variables | Sequence[Variables],
    *,
    weighting: str = "samples",
    chunk_size: int = 256,
) -> Dissimilarity:
    """Bounds on gradients, and on how much those of the clients differ, over some points.

    The values hold for the points given, and are lower bounds of those that hold everywhere: give the
    models of a run, or points around them. The uncertainty is that of rounding. Of all lines
    G^2 + B^2 ||grad F||^2 with B >= 1 that are nowhere below, (G, B) is the one whose mean distance is
    least; one point alone leaves B at 1.

    Args:
      model: the model, called with `key=None`; its state is held fixed.
      data: a `ClientData`.
      variables: the point to look at, or a list of points.
      weighting: the p_c, by 'samples' or 'uniform'.
      chunk_size: the examples whose losses are computed at once.

    Returns:
      A `Dissimilarity`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=4)
      >>> points = [fo.Variables({"x": jnp.asarray(scale * optimum)}) for scale in (0.0, 1.0, 2.0)]
      >>> found = fo.bounds.estimate_dissimilarity(model, data, points)
      >>> bool(found.offset.value <= found.spread.value), bool(found.slope.value >= 1)
      (True, True)
    """
    points = passes.stack_points(variables)
    problem, fixed = passes.prepare(model, data, weighting, chunk_size)
    losses, norms, spread, steepness = on_host(_gradients(problem, points, fixed.by_client))
    check_finite("The mean loss", losses, ("point", "client"))
    check_finite("The norm of the gradient", norms, ("point", "client"))
    rows, dtype = problem.num_rows, passes.layout_of_stack(points.params).dtype
    largest = np.max(norms)
    rounded = rounding(largest, rows, dtype)
    moved = rounding_of_square(spread, largest, rows, dtype)
    offset, slope = _closest_line(steepness**2, spread)
    return Dissimilarity(
        global_gradient=Estimate(np.max(steepness), rounded),
        client_gradient=Estimate(largest, rounded),
        spread=root_of(largest_of(Estimate(spread, moved))),
        offset=root_of(Estimate(offset, np.max(moved))),
        slope=root_of(Estimate(slope, rounding(slope, rows, dtype))),
        global_norms=steepness,
        client_norms=norms,
        losses=losses,
    )


@jax.jit
def _gradients(problem: Problem, points: Variables, fixed: Fixed):
    def at_point(variables):
        x = Layout.of(variables.params).vector(variables.params)

        def turn(centre, _):
            def of_client(feed, weight):
                loss, gradient = passes.row_slope(fixed, problem, variables, feed)(x)
                distance = jnp.sum(jnp.square(gradient - centre))
                sums = trees.scale(weight, (gradient, distance))
                return sums, (loss, jnp.linalg.norm(gradient))

            clients = problem.feeds, problem.weights
            (mean, spread), (losses, norms) = passes.over_clients(of_client, clients)
            return mean, (losses, norms, spread, jnp.linalg.norm(mean))

        # The second turn knows the mean, and so the distances from it: a difference of squares would
        # lose the digits of clients that are alike.
        _, both = jax.lax.scan(turn, jnp.zeros_like(x), length=2)
        return jax.tree.map(lambda turns: turns[1], both)

    return jax.lax.map(at_point, points)


def _closest_line(squares: np.ndarray, spread: np.ndarray) -> tuple[float, float]:
    """G^2 >= 0 and B^2 >= 1 with spread_p <= G^2 + (B^2 - 1) squares_p, closest in the mean.

    For a given B, the least G^2 is max_p (spread_p - (B^2 - 1) squares_p), or 0. The mean distance is
    then convex and piecewise linear in B^2: it is least where two points, or a point and G = 0, meet.
    """
    rise = spread[:, None] - spread[None]
    run = squares[:, None] - squares[None]
    meeting = np.where(run != 0, rise / np.where(run != 0, run, 1), 0).ravel()
    through_zero = np.where(squares > 0, spread / np.where(squares > 0, squares, 1), 0)
    slopes = np.sort(np.maximum(np.concatenate([[0.0], meeting, through_zero]), 0))
    above = spread[None] - slopes[:, None] * squares[None]
    offsets = np.maximum(np.max(above, axis=1), 0)
    best = np.argmin(offsets + slopes * np.mean(squares))  # the first: the least B, if several are
    return offsets[best], 1 + slopes[best]
