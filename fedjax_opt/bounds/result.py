"""What a calculator returns: a value, what it is made of, and which of its assumptions hold."""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_opt.core import checks


class Bound(NamedTuple):
    """A bound's value, and whether it may be believed.

    It is a pytree of arrays: it passes through `jit`, `vmap` and `grad`. Nothing is hidden where an
    assumption fails: the formula's value is still there, beside the name of what failed.

    Attributes:
      value: the bound.
      terms: what it is the sum of, by name.
      assumptions: whether each assumption that can be checked from the numbers holds, by name; the name
        is the condition itself, such as 'eta <= 1/(4L)'.
    """

    value: Any
    terms: dict[str, Any]
    assumptions: dict[str, Any]

    @property
    def holds(self) -> Any:
        """Whether all assumptions hold; an array of booleans under `vmap`."""
        result = True
        for flag in self.assumptions.values():
            result = flag & result
        return result

    def violated(self) -> tuple[str, ...]:
        """The names of the assumptions that fail; for a batch of bounds, that fail for any of them."""
        if checks.is_traced(self.assumptions):
            raise ValueError("violated() needs known values; inside jit or vmap read .assumptions.")
        return tuple(name for name, flag in self.assumptions.items() if not np.all(flag))


class Optimum(NamedTuple):
    """The best value of one quantity, and the bound there.

    Attributes:
      value: the best value that is allowed (K >= 1; eta <= 1/(4L)).
      unconstrained: the closed form, before it was made to be allowed.
      bound: the `Bound` at `value`.
    """

    value: Any
    unconstrained: Any
    bound: Bound

    @property
    def clipped(self) -> jax.Array:
        """Whether the closed form was not allowed, and `value` is the nearest that is."""
        return self.value != self.unconstrained
