"""Reads arrays out of a pickle without running it.

A pickle is a program: loading one may call anything. Here its instructions are only looked at. Plain
values become themselves, whatever would be called or built becomes an inert `Record`, and arrays are
made from the bytes of such records. Instructions that an old pickle of arrays does not need are refused.
"""

import math
import pickletools
from typing import Any, cast

import numpy as np

_CONSTANTS = {"BININT", "BININT1", "BININT2", "INT", "BINUNICODE"}
_NAMED_BYTES = ("_codecs encode", "numpy.core.multiarray _reconstruct", "numpy dtype")
_DTYPES = {"f8": "f8", "i8": "i8"}


class Record:
    """What a pickle would have made by a call.

    Attributes:
      name: The module and name of what would have been called.
      args: With what.
      state: What would have been put into the result.
    """

    def __init__(self, name: str, args: Any) -> None:
        self.name, self.args, self.state = name, args, None


class Reference(str):
    """The module and name of something that the pickle mentions."""


def read(content: bytes, origin: str) -> Any:
    """The tree that a pickle describes.

    Args:
      content: The pickle.
      origin: The name of its file, for messages.

    Returns:
      Dicts, lists, tuples, strings, whole numbers, None and records.
    """
    try:
        return _run(content)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"{origin} is not a pickle of arrays that can be read: {error}") from error


def array(record: Any, origin: str) -> np.ndarray:
    """The array that a record describes: little-endian numbers of 8 bytes, rows first."""
    try:
        _, shape, dtype, fortran, data = record.state
        kind = _DTYPES[dtype.args[0]]
        if isinstance(data, Record) and data.name == _NAMED_BYTES[0]:
            text, encoding = data.args
            data = text.encode(encoding) if encoding == "latin1" else None
        names = (record.name, dtype.name)
        if names != _NAMED_BYTES[1:] or dtype.state[1] != "<" or fortran or type(data) is not bytes:
            raise ValueError("it is of another kind")
        if len(data) != 8 * math.prod(shape) or min(shape, default=0) < 0:
            raise ValueError(f"{len(data)} bytes are not {list(shape)} numbers")
        return np.frombuffer(data, f"<{kind}").reshape(shape)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"{origin} holds an array that cannot be read: {error!s:.80}.") from error


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for instruction, argument, _ in pickletools.genops(content):
        name, argument = instruction.name, cast(Any, argument)
        if name in _CONSTANTS:
            stack.append(argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "NONE":
            stack.append(None)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name == "APPENDS":
            items = since_mark()
            _of(list, stack[-1]).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            _of(dict, stack[-1]).update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(Reference(argument))
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            if not isinstance(called, Reference):
                raise ValueError("it calls what is not a name")
            stack.append(Record(str(called), arguments))
        elif name == "BUILD":
            state = stack.pop()
            if not isinstance(stack[-1], Record):
                raise ValueError("it fills what was not made by a call")
            stack[-1].state = state
        elif name == "STOP":
            return stack.pop()
        else:
            raise ValueError(f"it uses {name}, which no pickle of arrays needs")
    raise ValueError("it has no end")


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"it fills a {type(value).__name__} as if it were a {kind.__name__}")
    return value
