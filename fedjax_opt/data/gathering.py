"""Clients that come one after the other, as readers give them, and gathering them in memory."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.core.client_data import ClientData

Clients = Iterable[tuple[str, dict[str, Any]]]


def collect(clients: Clients) -> tuple[ClientData, list[str]]:
    """Gathers clients one after the other into memory, which holds them once.

    Args:
      clients: pairs of a name and the examples of that client, a mapping of names to arrays `[n, ...]`;
        what the readers of federated files return.

    Returns:
      The data, and the name of each client.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> pairs = [("ann", {"x": np.zeros((2, 3))}), ("bob", {"x": np.ones((1, 3))})]
      >>> data, names = fo.data.collect(pairs)
      >>> data.sizes.tolist(), names
      ([2, 1], ['ann', 'bob'])
    """
    columns: dict[str, _Memory] = {}
    sizes, names = gather(clients, columns, lambda name, array: _Memory(array))
    examples = {name: column.array() for name, column in columns.items()}
    return ClientData.from_sizes(examples, sizes), names


def gather(
    clients: Clients, columns: dict[str, Any], column: Callable[[str, np.ndarray], Any]
) -> tuple[list[int], list[str]]:
    """Appends each client to columns made for the first; the clients' sizes and names."""
    sizes, names = [], []
    for name, arrays in _checked(clients):
        for key, array in arrays.items():
            if not names:
                columns[key] = column(key, array)
            columns[key].append(array)
        sizes.append(len(next(iter(arrays.values()))))
        names.append(name)
    if not names:
        raise ValueError("clients must hold at least one client, got none.")
    return sizes, names


class _Memory:
    """One array in the making: bytes that grow in place, or parts where objects are kept."""

    def __init__(self, array: np.ndarray) -> None:
        self.rows, self.kind, self.shape = 0, array.dtype, array.shape[1:]
        self.content = bytearray()
        self.parts: list[np.ndarray] = []

    def append(self, array: np.ndarray) -> None:
        self.rows += len(array)
        if self.kind.hasobject:
            self.parts.append(array)
        else:
            self.content += array.tobytes()

    def array(self) -> np.ndarray:
        if self.kind.hasobject:
            return np.concatenate(self.parts)
        return np.ndarray((self.rows, *self.shape), self.kind, self.content)


def _checked(clients: Clients) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """The clients as arrays, each of which must look like those before it."""
    first: dict[str, tuple[Any, Any]] = {}
    seen: set[str] = set()
    for name, examples in clients:
        if not isinstance(name, str):
            raise ValueError(f"clients must be named by strings, got {name!r:.60}.")
        if name in seen:
            raise ValueError(f"clients must have different names, but {name!r} comes twice.")
        seen.add(name)
        if not isinstance(examples, dict) or not examples:
            raise ValueError(f"The examples of client {name!r} must be a mapping of arrays.")
        arrays = {key: np.ascontiguousarray(value) for key, value in examples.items()}
        (count,) = checks.leading_axes(f"client {name!r}", arrays, (None,), "n")
        if count == 0:
            raise ValueError(f"Every client must hold at least one example, but {name!r} does not.")
        kinds = {key: (array.dtype, array.shape[1:]) for key, array in arrays.items()}
        first = first or kinds
        if kinds != first:
            raise ValueError(
                f"The examples of client {name!r} must be like those before it, {_told(first)}, got"
                f" {_told(kinds)}."
            )
        yield name, arrays


def _told(kinds: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{key}: {dtype}{list(shape)}" for key, (dtype, shape) in kinds.items())
