"""Both ends of the spectrum of a symmetric matrix that is known by its products with vectors.

Lanczos' method builds an orthonormal basis V of the Krylov space of a random vector, in which H is
tridiagonal:

    H V = V T + f e_m^T + E,    V^T f = 0,

with E what rounding leaves. Every new vector is orthogonalised twice against all earlier ones: else
rounding makes copies of the ends, and the small end is lost. The method is invariant to shifts of H, so
that one run serves both ends. Where the Krylov space is exhausted it goes on with another random vector:
eigenvalues that the first one had no part of are found, too.

For an eigenpair (theta, s) of T and y = V s, some eigenvalue of H is within the residual of theta:

    ||H y - theta y|| <= ||f|| |s_m| + ||E||

E is measured while the basis is built, so that the bound holds for the products as they were computed.
But for rounding, theta is never outside of the spectrum: the large end is approached from below, the
small end from above.

Reference:
  Golub and Van Loan. Matrix computations. 4th edition, 2013. Sections 8.1 and 10.1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.estimators.estimate import Estimate

# A remainder this many roundings small is noise: the Krylov space is exhausted.
_NOISE = 100.0


class Spectrum(NamedTuple):
    """The smallest and the largest eigenvalue, each with its residual."""

    smallest: Estimate
    largest: Estimate


def random_start(seed: int, size: int, dtype: Any) -> jax.Array:
    """A random vector, drawn on the host: no generator has to be compiled for each size."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(size), dtype)


def extreme_eigenvalues(
    product: Callable[[jax.Array], jax.Array], start: jax.Array, iterations: int
) -> Spectrum:
    """Both ends of the spectrum of a symmetric matrix `[size, size]`.

    Args:
      product: a vector -> the matrix times it.
      start: a random vector `[size]`.
      iterations: products taken, and vectors held; `size` of them find the exact ends.
    """
    count = min(iterations, start.size)
    noise = _NOISE * jnp.finfo(start.dtype).eps
    places = jnp.arange(count, dtype=jnp.int32)

    def step(carry, k):
        basis, vector, before = carry
        basis = basis.at[k].set(vector)
        image = product(vector)
        part, inside = _inside(basis, image)
        rest = image - part
        length = jnp.linalg.norm(rest)
        length = jnp.where(length > noise * jnp.linalg.norm(image), length, 0)
        other = jnp.roll(start, k + 1)  # as random as the first one
        following = jnp.where(length > 0, rest, other)
        following = _unit(following - _inside(basis, following)[0])
        kept = jnp.where(places == k, inside, jnp.where(places == k - 1, before, 0))
        lost = jnp.linalg.norm(inside - kept), jnp.linalg.norm(rest - length * following)
        return (basis, following, length), (inside[k], length, jnp.hypot(*lost))

    zero = jnp.zeros((), start.dtype)
    first = jnp.zeros((count, *start.shape), start.dtype), _unit(start), zero
    diagonal, beside, lost = jax.lax.scan(step, first, places)[1]
    tridiagonal = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    values, vectors = jnp.linalg.eigh(tridiagonal)
    residuals = beside[-1] * jnp.abs(vectors[-1]) + jnp.linalg.norm(lost)
    return Spectrum(Estimate(values[0], residuals[0]), Estimate(values[-1], residuals[-1]))


def _inside(basis, vector):
    """The part of a vector in the space of the basis, and its coordinates; rows not yet found are 0."""
    coordinates = jnp.matmul(basis, vector, precision="highest")
    return jnp.matmul(coordinates, basis, precision="highest"), coordinates


def _unit(vector):
    length = jnp.linalg.norm(vector)
    return vector / jnp.where(length > 0, length, 1)
