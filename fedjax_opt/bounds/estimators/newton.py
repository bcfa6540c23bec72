"""A smooth function's minimum by Newton's method, with products of the Hessian in place of the matrix.

In each step, conjugate gradients solve H p = -g only as well as the distance to the minimum deserves,
and stop at a direction of negative curvature; p is then halved until the loss falls enough. On a
quadratic it is the method of conjugate gradients; near a minimum it converges faster than any rate, so
that the gradient there, from which the error of the minimum is judged, is small.

Reference:
  Nocedal and Wright. Numerical optimization. 2nd edition, 2006. Algorithm 7.1.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.bounds.estimators.passes import Slope, hessian_product

# Conjugate gradients stop at this share of the gradient, far from the minimum.
_FORCING = 0.1
# The share of the linear model's decrease that a step must reach, and how often it is halved.
_DECREASE, _HALVINGS = 1e-4, 30
# Losses this many roundings apart are alike; of such, the one with a gradient smaller by this is better.
_ALIKE, _CLOSER = 8.0, 0.5


class Descent(NamedTuple):
    """Where a search is, where it goes next, and the looks at other places that led it on."""

    x: jax.Array
    loss: jax.Array
    gradient: jax.Array
    direction: jax.Array
    halvings: jax.Array
    looks: jax.Array
    first_norm: jax.Array

    @property
    def steps(self) -> jax.Array:
        """The steps taken; the first look is at the start."""
        return self.looks - 1


def minimise(
    slope: Slope, x: jax.Array, max_steps: jax.Array, max_products: int, tolerance: jax.Array
) -> Descent:
    """Goes downhill from x.

    Args:
      slope: parameters -> (loss, gradient).
      x: where to start.
      max_steps: of Newton's method.
      max_products: Hessian-vector products in each step.
      tolerance: it ends where the gradient's norm has fallen by this factor, or where neither it nor
        the loss can be made smaller in this precision.
    """

    def go_on(at):
        downhill = jnp.linalg.norm(at.gradient) > tolerance * at.first_norm
        more = (at.looks <= max_steps) & (at.halvings < _HALVINGS)
        return (at.looks == 0) | (more & downhill)

    def look(at):
        """Looks where the direction leads: goes on from there, or comes back half of the way."""
        scale = jnp.asarray(0.5, x.dtype) ** at.halvings.astype(x.dtype)
        there = at.x + scale * at.direction
        loss, gradient = slope(there)
        norm = jnp.linalg.norm(gradient)
        first = at.looks == 0  # it leads nowhere: this is the start
        first_norm = jnp.where(first, norm, at.first_norm)
        expected = _DECREASE * scale * jnp.dot(at.gradient, at.direction)
        # Where rounding may hide that the loss falls, the gradient must: else it would never end.
        visible = at.loss - loss > _ALIKE * jnp.finfo(x.dtype).eps * jnp.abs(at.loss)
        closer = norm < _CLOSER * jnp.linalg.norm(at.gradient)
        good = first | ((visible | closer) & (loss <= at.loss + expected))
        share = jnp.minimum(_FORCING, norm / jnp.where(first_norm > 0, first_norm, 1))
        goal = jnp.where(good, norm * share, jnp.inf)
        product = partial(hessian_product, slope, there)
        direction = _newton_direction(product, gradient, goal, max_products)
        zero = jnp.zeros((), jnp.int32)
        new = Descent(there, loss, gradient, direction, zero, at.looks + 1, first_norm)
        old = at._replace(halvings=at.halvings + 1)
        return jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)

    nothing, zero = jnp.zeros_like(x), jnp.zeros((), jnp.int32)
    infinite = jnp.asarray(jnp.inf, x.dtype)
    start = Descent(x, infinite, nothing, nothing, zero, zero, infinite)
    return jax.lax.while_loop(go_on, look, start)


def _newton_direction(product, gradient, goal, max_products):
    """-H^-1 g by conjugate gradients, until what is left of the gradient is within the goal."""

    def go_on(carry):
        _, residual, _, bent, k = carry
        return (k < max_products) & ~bent & (jnp.linalg.norm(residual) > goal)

    def step(carry):
        solution, residual, direction, _, k = carry
        image = product(direction)
        curvature = jnp.dot(direction, image)
        bent = ~(curvature > 0)  # not a number counts as bent, too
        square = jnp.dot(residual, residual)
        length = square / jnp.where(bent, 1, curvature)
        # Where the function bends down at once, the steepest direction is taken as it is.
        stop = jnp.where(k == 0, direction, solution)
        solution = jnp.where(bent, stop, solution + length * direction)
        new_residual = residual + length * image
        ratio = jnp.dot(new_residual, new_residual) / square
        return solution, new_residual, ratio * direction - new_residual, bent, k + 1

    start = jnp.zeros_like(gradient), gradient, -gradient, jnp.asarray(False), jnp.int32(0)
    return jax.lax.while_loop(go_on, step, start)[0]
