"""What a value consists of, as text that is the same in every process: functions, their code, numbers.

An algorithm, a model and a sampler are made of functions, closures and numbers. Two runs are the same
run if these are the same. Python's own `repr` and `hash` cannot say so: they hold addresses and change
from process to process.
"""

import dataclasses
import functools
import hashlib
import inspect
import types
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import default_registry

_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str, bytes)
# Arrays up to this size are written out, larger ones as a checksum.
_SHOWN = 8
_DIGITS = 16


class Identity(NamedTuple):
    """What was found in a value, by the path that leads there.

    Attributes:
      functions: the names of functions and types.
      code: checksums of the functions' compiled code.
      values: numbers, texts and arrays.
    """

    functions: dict[str, str]
    code: dict[str, str]
    values: dict[str, str]


def identify(**parts: Any) -> Identity:
    """What some named values consist of.

    Functions are followed into what they have bound: arguments of partials, closures, defaults, and
    attributes of objects that can be called. What is neither of these nor a container, a dataclass, a
    pytree or a number is named by its type alone.

    Args:
      parts: the values, by the name that their paths begin with.

    Returns:
      An `Identity`.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt.training.identity import identify
      >>> found = identify(algorithm=fo.fedavg(fo.optimizers.sgd(0.1), server_learning_rate=0.5))
      >>> found.values["algorithm.server_step[0]"]
      '0.5'
      >>> found.functions["algorithm.finish"]
      'fedjax_opt.algorithms.fedavg.finish'
    """
    identity = Identity({}, {}, {})
    for name, value in parts.items():
        _walk(value, name, identity, ())
    return identity


def digest(content: bytes) -> str:
    """A short checksum, for people to compare as well."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def of_array(value: Any) -> str:
    """An array as text: its type, and its content or a checksum of it."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"{value.dtype} {of_array(jax.random.key_data(value))}"
    array = np.asarray(value)
    kind = f"{array.dtype}{list(array.shape)}"
    if array.size > _SHOWN:
        return f"{kind} with checksum {digest(np.ascontiguousarray(array).tobytes())}"
    # A number is the same number whether it is kept as an array or not.
    return repr(array.item()) if array.ndim == 0 else f"{kind} {array.tolist()}"


def _walk(value: Any, path: str, into: Identity, above: tuple[int, ...]) -> None:
    """Adds what a value consists of; `above` holds the values that it was reached through."""
    if value is None:
        return
    if isinstance(value, _PLAIN):
        kind = next(kind for kind in _PLAIN if isinstance(value, kind))
        into.values[path] = kind.__repr__(value)  # a subclass may print as it likes
        return
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        into.values[path] = of_array(value)
        return
    if id(value) in above:  # a function that calls itself is in its own closure
        return
    go = functools.partial(_walk, into=into, above=(*above, id(value)))
    if isinstance(value, functools.partial):
        go(value.func, path)
        _walk_parts(go, path, dict(enumerate(value.args)) | value.keywords)
    elif isinstance(value, types.FunctionType):
        _walk_function(value, path, into, go)
    elif isinstance(value, types.MethodType):
        go(value.__func__, path)
        go(value.__self__, f"{path}.self")
    elif isinstance(value, dict):
        _walk_parts(go, path, {key: value[key] for key in sorted(value, key=str)})
    elif isinstance(value, (set, frozenset)):
        into.values[path] = str(sorted(map(str, value)))
    elif hasattr(value, "__wrapped__"):
        go(value.__wrapped__, path)
    else:
        _walk_object(value, path, into, go)


def _walk_function(function: Any, path: str, into: Identity, go: Any) -> None:
    into.functions[path] = _name(function)
    into.code[path] = digest(_code(function.__code__, function.__doc__))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            content = cell.cell_contents
        except ValueError:  # not yet bound
            continue
        go(content, f"{path}.{name}")
    _walk_parts(go, f"{path}.defaults", dict(enumerate(function.__defaults__ or ())))
    _walk_parts(go, f"{path}.defaults", function.__kwdefaults__ or {})


def _walk_object(value: Any, path: str, into: Identity, go: Any) -> None:
    if isinstance(value, type):
        _note_type(value, path, into)
        return
    if callable(value) and hasattr(value, "__name__"):  # built in, or a ufunc
        into.functions[path] = _name(value)
        return
    if type(value) not in (tuple, list):
        _note_type(type(value), f"{path}.type", into)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        _walk_parts(go, path, {name: getattr(value, name, None) for name in fields}, ".{}")
    elif hasattr(value, "_fields") and not hasattr(value, "__dict__"):
        _walk_parts(go, path, value._asdict(), ".{}")
    elif type(value) in (tuple, list):
        _walk_parts(go, path, dict(enumerate(cast(Any, value))))
    elif (found := default_registry.flatten_one_level(value)) is not None:
        children, auxiliary = found
        _walk_parts(go, path, dict(enumerate(children)), ".{}")
        go(auxiliary, f"{path}.auxiliary")
    elif isinstance(value, (tuple, list)):
        _walk_parts(go, path, dict(enumerate(value)))
    elif callable(value):  # an object that stands for a function has bound its attributes
        _walk_parts(go, path, dict(sorted(getattr(value, "__dict__", {}).items())), ".{}")


def _note_type(kind: type, path: str, into: Identity) -> None:
    """The name of a type, and a checksum of what its own methods do."""
    into.functions[path] = _name(kind)
    methods = {name: inspect.unwrap(x) for name, x in vars(kind).items() if callable(x)}
    code = {
        name: digest(_code(method.__code__, method.__doc__))
        for name, method in sorted(methods.items())
        if isinstance(method, types.FunctionType)
    }
    if code:
        into.code[path] = digest(repr(code).encode())


def _walk_parts(go: Any, path: str, parts: dict[Any, Any], form: str = "[{}]") -> None:
    for key, part in parts.items():
        go(part, path + form.format(key))


def _name(value: Any) -> str:
    """Where a function or a type is defined, or the type of anything else."""
    named = value if hasattr(value, "__name__") else type(value)
    module = getattr(named, "__module__", None) or type(value).__module__
    return f"{module}.{getattr(named, '__qualname__', named.__name__)}"


def _code(code: types.CodeType, doc: str | None = None) -> bytes:
    """What a function does, as bytes: neither where it is written down, nor its docstring."""
    constants = [_constant(x) for x in code.co_consts if doc is None or x != doc]
    parts = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)
    return repr(parts).encode()


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return digest(_code(value))
    if isinstance(value, frozenset):
        return str(sorted(map(repr, value)))
    return repr(value)
