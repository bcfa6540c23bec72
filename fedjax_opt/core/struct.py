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
    """Makes a class such a dataclass. Two of them are equal only if they are one and the same."""

    def decorate(cls: type[T]) -> type[T]:
        own_repr = "__repr__" in vars(cls)
        made = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        if not own_repr:
            made.__repr__ = _repr  # type: ignore[method-assign]
        names = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
        leaves = [name for name in names if name not in static]
        keys = [GetAttrKey(name) for name in leaves]

        def flatten(value):
            fields = vars(value)
            return [*map(fields.__getitem__, leaves)], tuple(map(fields.__getitem__, static))

        def flatten_with_keys(value):
            children, fixed = flatten(value)
            return list(zip(keys, children, strict=True)), fixed

        def unflatten(fixed, children):
            value = object.__new__(made)
            vars(value).update(zip(static, fixed, strict=True))
            vars(value).update(zip(leaves, children, strict=True))
            return value

        jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
        return made

    return decorate


def changed(value: T, /, **fields: object) -> T:
    """The same value with other fields, whatever they are: its constructor's checks are not run."""
    other = object.__new__(type(value))
    vars(other).update(vars(value) | fields)
    return other


def put(value: object, /, **fields: object) -> None:
    """Sets fields of a frozen dataclass, for its `__post_init__`."""
    vars(value).update(fields)


def _repr(value) -> str:
    names = [field.name for field in dataclasses.fields(value)]
    parts = ", ".join(f"{name}={_short(getattr(value, name))}" for name in names)
    return f"{type(value).__name__}({parts})"


def _short(value: object) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"  # type: ignore[attr-defined]
    return repr(value) if isinstance(value, (int, float, str, tuple, type(None))) else "..."
