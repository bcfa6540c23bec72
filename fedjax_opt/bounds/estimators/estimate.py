"""What an estimator returns: a number and how far it may be from the truth.

Sums over data are compiled programs. The few numbers that they return are put together on the host.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# A handful of operations on each loss, before the random walk of summing many of them.
_OPERATIONS = 8.0


class Estimate(NamedTuple):
    """An estimated constant, and how far it may be from the truth.

    Attributes:
      value: the estimate; an array where there are several (one per client, say).
      uncertainty: the truth lies within `value - uncertainty` and `value + uncertainty`. What backs
        this (a residual, a certificate, two standard errors, rounding) each estimator says. Infinite
        where nothing is known.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.bounds.Estimate(2.0, 0.1).covers(2.05)
      True
    """

    value: Any
    uncertainty: Any

    def covers(self, truth: Any) -> Any:
        """Says whether a value is within the uncertainty.

        Args:
          truth: the value, a number or an array.
        """
        return abs(self.value - truth) <= self.uncertainty


def on_host(tree: Any) -> Any:
    """A program's results as NumPy arrays in float64."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def largest_of(estimate: Estimate, axis: Any = None) -> Estimate:
    """The maximum of uncertain numbers, and the interval in which it lies."""
    value = np.max(estimate.value, axis)
    high = np.max(estimate.value + estimate.uncertainty, axis)
    low = np.max(estimate.value - estimate.uncertainty, axis)
    return Estimate(value, np.maximum(high - value, value - low))


def smallest_of(estimate: Estimate, axis: Any = None) -> Estimate:
    """The minimum of uncertain numbers, and the interval in which it lies."""
    value, uncertainty = largest_of(Estimate(-estimate.value, estimate.uncertainty), axis)
    return Estimate(-value, uncertainty)


def root_of(estimate: Estimate) -> Estimate:
    """The square root of a number that is not negative."""
    value, high, low = (
        np.sqrt(np.maximum(estimate.value + sign * estimate.uncertainty, 0)) for sign in (0, 1, -1)
    )
    return Estimate(value, np.maximum(high - value, value - low))


def rounding(value: Any, rows: Any, dtype: Any) -> Any:
    """How far rounding in a dtype may move a mean over many rows."""
    return jnp.finfo(dtype).eps * (_OPERATIONS + np.sqrt(rows)) * np.abs(value)


def rounding_of_square(square: Any, norm: Any, rows: Any, dtype: Any) -> Any:
    """The same of a mean squared distance between gradients of up to a norm.

    A gradient that is rounded by r moves a squared distance d^2 to (d + r)^2 at most.
    """
    moved = rounding(norm, rows, dtype)
    return moved * (2 * np.sqrt(square) + moved) + rounding(square, rows, dtype)


def check_finite(what: str, values: np.ndarray, axes: tuple[str, ...]) -> None:
    """Refuses results that are not finite, by point and client."""
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = " and ".join(f"{axis} {i}" for axis, i in zip(axes, bad[0], strict=True))
        raise ValueError(
            f"{what} must be finite, but {len(bad)} of {np.size(values)} are not, with"
            f" {values[tuple(bad[0])]}{f' at {where}' if where else ''}: look at the model's loss and"
            " its derivatives there."
        )
