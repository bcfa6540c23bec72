"""What all calculators share: a theorem is a function that returns its terms and its assumptions.

    @theorem
    def example(constants: Constants, learning_rate: Positive, rounds: Positive):
        terms = {"initial": ..., "noise": ...}
        assumptions = {"eta <= 1/(4L)": ...}
        return terms, assumptions

`@theorem` makes it a calculator: it refuses numbers that cannot be, casts all of them to one dtype,
compiles the whole, and returns a `Bound`. `@formula` does the same for functions that return something
else. What a number may be is said once, by the annotation of the argument or of the constants' field.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from fedjax_opt.core import checks

P = ParamSpec("P")
Result = TypeVar("Result")


class Limits(NamedTuple):
    """An interval, as `checks.number` takes it."""

    low: float = -np.inf
    high: float = np.inf
    open_low: bool = False
    open_high: bool = False


# Numbers, or arrays of one shape; lists become arrays.
Number = Any
Positive = Annotated[Number, Limits(low=0.0, open_low=True)]
NotNegative = Annotated[Number, Limits(low=0.0)]
FinitePositive = Annotated[Number, Limits(low=0.0, open_low=True, open_high=True)]
FiniteNotNegative = Annotated[Number, Limits(low=0.0, open_high=True)]
Finite = Annotated[Number, Limits(open_low=True, open_high=True)]
AtLeastOne = Annotated[Number, Limits(low=1.0, open_high=True)]
Momentum = Annotated[Number, Limits(low=0.0, high=1.0, open_high=True)]
Share = Annotated[Number, Limits(low=0.0, high=1.0, open_low=True)]
Probability = Annotated[Number, Limits(low=0.0, high=1.0)]


class Bound(NamedTuple):
    """A bound's value, and whether it may be believed.

    It is a pytree of arrays: it passes through `jit`, `vmap` and `grad`. Where an assumption fails, the
    formula's value is still there, beside the name of what failed.

    Attributes:
      value: the bound.
      terms: what it is the sum of, by name.
      assumptions: whether each assumption that can be checked from the numbers holds, by name; the name
        is the condition itself, such as 'eta <= 1/(4L)'.
    """

    value: jax.Array
    terms: dict[str, jax.Array]
    assumptions: dict[str, jax.Array]

    @property
    def holds(self) -> Any:
        """Whether all assumptions hold; an array of booleans under `vmap`."""
        return functools.reduce(lambda a, b: a & b, self.assumptions.values(), True)

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

    value: jax.Array
    unconstrained: jax.Array
    bound: Bound

    @property
    def clipped(self) -> jax.Array:
        """Whether the closed form was not allowed, and `value` is the nearest that is."""
        return self.value != self.unconstrained


def formula(function: Callable[P, Result]) -> Callable[P, Result]:
    """The function with its arguments checked and cast to one dtype, compiled as a whole."""
    signature = inspect.signature(function)

    @jax.jit
    @functools.wraps(function)
    def compiled(*arguments):
        return function(*as_floats(*arguments))  # pyright: ignore[reportCallIssue]

    @functools.wraps(function)
    def calculate(*args: P.args, **kwargs: P.kwargs) -> Result:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        known = (checked(name, x, function) for name, x in given.arguments.items())
        return compiled(*known)

    return calculate


def theorem(function: Callable[P, tuple[dict, dict]]) -> Callable[P, Bound]:
    """A function that returns (terms, assumptions) as a calculator that returns their `Bound`."""

    @formula
    @functools.wraps(function)
    def summed(*args: P.args, **kwargs: P.kwargs) -> Bound:
        terms, assumptions = function(*args, **kwargs)
        # Unlike a dict, it keeps the paper's order through jit.
        return Bound(
            functools.reduce(jnp.add, terms.values()), OrderedDict(terms), OrderedDict(assumptions)
        )

    @functools.wraps(function)
    def bound(*args: P.args, **kwargs: P.kwargs) -> Bound:
        value, terms, assumptions = summed(*args, **kwargs)
        return Bound(value, dict(terms), dict(assumptions))

    return bound


def checked(name: str, value: Any, owner: Any) -> Any:
    """The value after the check that its owner's annotation asks for; of a NamedTuple, every field.

    Args:
      name: of the argument or field; `constants.noise` is named so, and annotated as `noise`.
      value: a number, an array, a list of numbers, or a NamedTuple of these.
      owner: the function or the NamedTuple class that has the annotation.
    """
    if hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        return type(value)(*(checked(f"{name}.{field}", x, type(value)) for field, x in fields))
    limits, optional = _annotated(owner).get(name.rpartition(".")[2], (None, True))
    if limits is None or (value is None and optional):
        return value
    if isinstance(value, (list, tuple, range)):
        value = jnp.asarray(value)
    return checks.number(name, value, **limits._asdict())


@functools.cache
def _annotated(owner):
    """name -> (its `Limits` or None, whether it may be None)."""
    found = {}
    for name, hint in get_type_hints(owner, include_extras=True).items():
        parts = (hint, *get_args(hint))
        limits = [x for part in parts for x in get_args(part) if isinstance(x, Limits)]
        found[name] = limits[0] if limits else None, type(None) in parts
    return found


def as_floats(*values: Any) -> tuple[Any, ...]:
    """All numbers as arrays of one dtype: the widest float among the arrays, else the default.

    Plain Python numbers, which have no precision of their own, and integers do not count. Booleans stay.
    """
    widths = [
        jnp.finfo(jnp.result_type(leaf)).bits
        for leaf in jax.tree.leaves(values)
        if not _is_weak(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    ]
    dtype = jnp.dtype(f"float{max(32, *widths)}") if widths else jnp.result_type(float)

    def cast(leaf):
        return (
            leaf if jnp.issubdtype(jnp.result_type(leaf), jnp.bool_) else jnp.asarray(leaf, dtype)
        )

    return jax.tree.map(cast, values)


def _is_weak(leaf):
    plain = isinstance(leaf, (int, float)) and not isinstance(leaf, np.generic)
    return plain or getattr(leaf, "weak_type", False)


def at_most(small: ArrayLike, large: ArrayLike) -> Any:
    """Whether small <= large, where a number that was rounded on its way may lie on the limit."""
    return small <= large * (1 + 4 * jnp.finfo(jnp.result_type(small, large)).eps)


def root(value: jax.Array) -> jax.Array:
    """The square root; 0 with the derivative 0 where the value is not positive."""
    return jnp.where(value > 0, jnp.sqrt(jnp.where(value > 0, value, 1)), 0)
