"""What all calculators do with their numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import checks


def positive(**named: Any) -> None:
    """Refuses numbers that are not positive, by name."""
    for name, value in named.items():
        checks.number(name, value, low=0.0, open_low=True)


def as_floats(*values: Any) -> tuple[Any, ...]:
    """All leaves as arrays of one dtype: the widest float among the arrays, else the default.

    Plain Python numbers, which have no precision of their own, and integers do not count.
    """
    widths = [
        jnp.finfo(jnp.result_type(leaf)).bits
        for leaf in jax.tree.leaves(values)
        if not _is_weak(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    ]
    dtype = jnp.dtype(f"float{max(32, *widths)}") if widths else jnp.result_type(float)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), values)


def _is_weak(leaf):
    plain = isinstance(leaf, (bool, int, float)) and not isinstance(leaf, np.generic)
    return plain or getattr(leaf, "weak_type", False)


def root(value: jax.Array) -> jax.Array:
    """The square root; 0 with the derivative 0 where the value is not positive."""
    return jnp.where(value > 0, jnp.sqrt(jnp.where(value > 0, value, 1)), 0)
