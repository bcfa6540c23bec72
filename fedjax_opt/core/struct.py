"""A frozen dataclass that is a pytree: its fields are leaves, but for those that are named static.

`jax.tree_util.register_dataclass` calls the constructor at every unflatten, with tracers, shapes or None
for leaves. Here the constructor may check and normalise, since unflatten does not call it.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeVar, dataclass_transform

import jax
from jax.tree_util import GetAttrKey

T = TypeVar("T")


@dataclass_transform(frozen_default=True, eq_default=False)
def struct(*static: str) -> Callable[[type[T]], type[T]]:
    """Makes a class such a dataclass. Two of them are equal only if they are one and the same.

    Args:
      *static: the names of fields that are compiled in: compared, and hashed, by value.

    Returns:
      A decorator of classes.

    Example:
      >>> import jax
      >>> from fedjax_opt.core.struct import struct
      >>> @struct("unit")
      ... class Length:
      ...     value: float
      ...     unit: str = "m"
      >>> jax.tree.map(lambda x: 2 * x, Length(1.5))
      Length(value=3.0, unit='m')
    """

    def decorate(cls: type[T]) -> type[T]:
        own_repr = "__repr__" in vars(cls)
        made = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        if not own_repr:
            made.__repr__ = _repr  # type: ignore[method-assign]
        names = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
        leaves = [name for name in names if name not in static]

        def flatten(value):
            return [getattr(value, name) for name in leaves], tuple(
                getattr(value, name) for name in static
            )

        def flatten_with_keys(value):
            children, fixed = flatten(value)
            keys = map(GetAttrKey, leaves)
            return list(zip(keys, children, strict=True)), fixed

        def unflatten(fixed, children):
            value = object.__new__(made)
            for name, part in (*zip(static, fixed), *zip(leaves, children)):  # noqa: B905
                object.__setattr__(value, name, part)
            return value

        jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
        return made

    return decorate


def changed(value: T, **fields: object) -> T:
    """The same value with other fields, whatever they are: its constructor's checks are not run."""
    other = object.__new__(type(value))
    put(other, **(vars(value) | fields))
    return other


def put(value: object, **fields: object) -> None:
    """Sets fields of a frozen dataclass, for its `__post_init__`."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


def _repr(value) -> str:
    parts = ", ".join(
        f"{field.name}={_short(getattr(value, field.name))}" for field in dataclasses.fields(value)
    )
    return f"{type(value).__name__}({parts})"


def _short(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"  # type: ignore[attr-defined]
    return repr(value) if isinstance(value, (int, float, str, tuple, type(None))) else "..."
