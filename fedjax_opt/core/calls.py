"""How a value was made, which is how it is shown: `fedgbo(adam(learning_rate=0.1, b1=0.8))`.

A constructor leaves its call beside the functions that it made. The numbers of a call are leaves, as
those are that the functions read: whoever maps, stacks or traces one does the same to the other. No
function reads a call, and a run leaves it out: it is in no compiled program.
"""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedjax_opt.core import checks
from fedjax_opt.core.aliases import Tree
from fedjax_opt.core.struct import changed, struct

P = ParamSpec("P")
T = TypeVar("T")
# Arrays up to this size are written out.
_SHOWN = 8
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@jax.tree_util.register_static
class Word(str):
    """A text that is shown without quotes, and is no leaf."""

    __repr__ = str.__str__


@struct("constructor", "replaced")
class Call:
    """A constructor, what it was given, and which functions of what it made were replaced since."""

    constructor: Callable[..., Any]
    arguments: tuple[Any, ...]
    replaced: tuple[str, ...] = ()

    def __repr__(self) -> str:
        shown = []
        parameters = inspect.signature(self.constructor).parameters.values()
        for parameter, argument in zip(parameters, self.arguments, strict=True):
            if parameter.kind is parameter.VAR_POSITIONAL:
                shown += map(text, argument)
                continue
            found = text(argument)
            if parameter.default is parameter.empty or found != text(
                _kept(parameter.default, parameter)
            ):
                # What stands around another value needs no name for it.
                bare = not shown and found.endswith(")")
                shown.append(found if bare else f"{parameter.name}={found}")
        name = getattr(self.constructor, "__name__", "?")
        other = ", ".join(f"{name}=..." for name in self.replaced)
        return f"{name}({', '.join(shown)})" + (f"._replace({other})" if other else "")


def constructor(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a function leave its call in the field `call` of what it returns, for its repr.

    For functions that return an `Algorithm` or a `Triple`.

    Example:
      >>> import fedjax_opt as fo
      >>> @fo.core.constructor
      ... def my_fedavg(learning_rate, momentum=0.9):
      ...     return fo.fedavg(fo.optimizers.sgdm(learning_rate, momentum))
      >>> my_fedavg(0.1)
      my_fedavg(learning_rate=0.1)
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        # Without the calls of its parts, which would be in every function that reads them.
        plain = [without_call(x) for x in args], {k: without_call(x) for k, x in kwargs.items()}
        made = function(*plain[0], **plain[1])  # type: ignore[arg-type]
        if plain[0] and made is plain[0][0]:
            return args[0]  # type: ignore[return-value]  # nothing was to be done
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = zip(bound.arguments.values(), signature.parameters.values(), strict=True)
        return _with(made, Call(make, tuple(_kept(x, parameter) for x, parameter in given)))

    return make


def without_call(value: T) -> T:
    """What a constructor made, without its call; anything else as it is."""
    return value if _call_of(value) is None else _with(value, None)


def replaced(value: Any, functions: Mapping[str, Any]) -> Call | None:
    """The call of a value after some of its functions are replaced."""
    if value.call is None:
        return None
    names = (name for name, new in functions.items() if new is not getattr(value, name))
    return changed(value.call, replaced=tuple(dict.fromkeys((*value.call.replaced, *names))))


def shown(value: Any, parts: Mapping[str, Any]) -> str:
    """The repr of a value: its call, or where there is none its parts."""
    if value.call is not None:
        return repr(value.call)
    found = ", ".join(f"{name}={text(part)}" for name, part in parts.items() if part is not None)
    return f"{type(value).__name__}({found})"


def _call_of(value: Any) -> Call | None:
    call = getattr(value, "__dict__", {}).get("call")
    return call if isinstance(call, Call) else None


def _with(value: T, call: Call | None) -> T:
    value = copy.copy(value)
    vars(value)["call"] = call
    return value


def _kept(value: Any, parameter: inspect.Parameter) -> Any:
    """An argument as part of a call: numbers are leaves, whatever else it is a text.

    A text is structure: it must be the same for two arguments that share a program, so numbers and
    addresses must not be in it. Only where an `int` is asked for is it compiled in.
    """
    if parameter.kind is parameter.VAR_POSITIONAL:
        alone = parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD)
        return tuple(_kept(x, alone) for x in value)
    if (call := _call_of(value)) is not None:
        return call
    if isinstance(value, int) and not isinstance(value, bool) and parameter.annotation is not int:
        return float(value)
    if _is_number(value):
        return value
    if isinstance(value, optax.GradientTransformation):
        made = text(value.update)
        return Word(made if made.endswith(")") else f"{type(value).__name__}({made})")
    if isinstance(value, list) and value and all(map(checks.is_whole, value)):
        return np.asarray(value)  # one leaf, however many ids
    leaves, structure = jax.tree.flatten(value)
    if leaves and structure.num_nodes > 1 and all(map(_is_number, leaves)):
        return value  # a codec, a partial
    return Word(text(value))


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    return number or hasattr(value, "shape")


def text(value: Any) -> str:
    """A value in one line: numbers as they are, large or traced arrays as shapes, functions by name."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if isinstance(value, functools.partial):
        arguments = [*map(text, value.args), *(f"{k}={text(x)}" for k, x in value.keywords.items())]
        name = text(value.func).lstrip("_")
        return f"{name}({', '.join(arguments)})" if arguments else name
    if hasattr(value, "__qualname__"):
        return _name(value)
    if type(value).__repr__ is object.__repr__:
        return type(value).__name__
    return _ADDRESS.sub("", repr(value))


def shapes(tree: Tree) -> str:
    """A tree with the shapes of its arrays, such as {'x': float32[8, 64], 'y': int32[8]}."""
    return repr(jax.tree.map(lambda leaf: Word(_shape(leaf)), tree))


def _shape(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _array(value: Any) -> str:
    known = isinstance(value, (np.ndarray, np.generic)) or (
        isinstance(value, jax.Array)
        and not isinstance(value, Tracer)
        and not value.is_deleted()
        and value.is_fully_addressable
    )
    number = known and not jnp.issubdtype(value.dtype, jax.dtypes.extended)
    if not number or value.size > _SHOWN or value.ndim > 1:
        return f"{value.dtype}{list(value.shape)}"
    array = np.asarray(value)
    return str(array[()]) if not array.shape else f"[{', '.join(map(str, array))}]"


def _name(function: Any) -> str:
    """A function's name; of one that a function of optax returned, that one's."""
    outer, *inner = function.__qualname__.split(".<locals>.")
    if inner and (function.__module__ or "").split(".")[0] == "optax":
        return f"optax.{outer}(...)"
    return inner[-1] if inner else outer
