"""One client's state as a row of bytes: all its arrays, one behind the other."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class RowFormat:
    """How a client's state is laid out in a row.

    Args:
      one_client: a client's state, or its shapes and dtypes.
    """

    def __init__(self, one_client: Any) -> None:
        leaves, self._structure = jax.tree.flatten(one_client)
        for path, leaf in jax.tree_util.tree_leaves_with_path(one_client):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
                raise ValueError(
                    f"A client's state must hold arrays of numbers to be stored, but its part"
                    f" {jax.tree_util.keystr(path)} has dtype {leaf.dtype}."
                )
        self._shapes = [leaf.shape for leaf in leaves]
        self._dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        lengths = [
            int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]
        self._ends = np.cumsum(lengths, dtype=np.int64).tolist()
        self._starts = [end - length for end, length in zip(self._ends, lengths, strict=True)]
        self.num_bytes = self._ends[-1]
        self.leaves = {
            jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
            for path, leaf in jax.tree_util.tree_leaves_with_path(one_client)
        }

    def pack(self, states: Any) -> np.ndarray:
        """Stacked states `[R, ...]` as rows of bytes `[R, num_bytes]`."""
        leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(states)]
        rows = np.empty((leaves[0].shape[0], self.num_bytes), np.uint8)
        for leaf, start, end in zip(leaves, self._starts, self._ends, strict=True):
            rows[:, start:end] = leaf.view(np.uint8).reshape(len(rows), end - start)
        return rows

    def unpack(self, rows: np.ndarray) -> Any:
        """Rows of bytes `[R, num_bytes]` as stacked states `[R, ...]`, in memory of their own."""
        parts = zip(self._starts, self._ends, self._shapes, self._dtypes, strict=True)
        leaves = [
            rows[:, start:end].copy().view(dtype).reshape(len(rows), *shape)
            for start, end, shape, dtype in parts
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def shapes(self, rows: int) -> Any:
        """The shapes and dtypes of so many states, stacked."""
        leaves = [
            jax.ShapeDtypeStruct((rows, *shape), dtype)
            for shape, dtype in zip(self._shapes, self._dtypes, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)
