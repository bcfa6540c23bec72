"""A state as files can hold it, and back: dicts of arrays, written and read by orbax.

    state/          arrays that are whole in the first process
    state-00001/    of arrays that are divided over processes, the pieces that process 1 has

A piece is named by its array and where it begins. Any number of processes can read any number of pieces,
each what its own devices need; no process ever holds the whole of a divided array.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.state import FederatedState

_STATE, _HISTORY = "state", "history"
# orbax writes no empty tree.
_PRESENT = {"present": np.array(True)}


def plain(state: FederatedState) -> dict[str, Any]:
    """The state as a dict of arrays by their place and path; a key as the words that it holds."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        f"{i:04d}{jax.tree_util.keystr(path)}": jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for i, (path, leaf) in enumerate(leaves)
    }


def copied(tree: Any) -> Any:
    """Arrays on the host that share no memory with these, which may be given up or written to next."""
    return jax.tree.map(lambda x: np.array(x, copy=True), tree)


def is_divided(array: Any) -> bool:
    """Whether no process has the whole of an array."""
    return isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    )


def parted(flat: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The arrays of a plain state that are whole, and copies of this process's pieces of the others."""
    whole = {name: leaf for name, leaf in flat.items() if not is_divided(leaf)}
    pieces = {}
    for name, leaf in flat.items():
        if name not in whole:
            for shard in leaf.addressable_shards:
                if shard.replica_id == 0:  # of equal pieces one is written
                    start = ",".join(str(part.start or 0) for part in shard.index)
                    pieces[f"{name}@{start}"] = np.array(shard.data, copy=True)
    return whole, pieces


def describe(state: FederatedState) -> dict[str, str]:
    """What the state consists of: the dtype and shape of each of its arrays by path, and N."""
    found = {"num_clients": str(int(state.num_clients))}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        found[jax.tree_util.keystr(path)] = f"{leaf.dtype}{list(leaf.shape)}"
    return found


class Arrays:
    """Writes and reads arrays of a state and its history."""

    def __init__(self) -> None:
        try:
            import orbax.checkpoint as ocp
        except ImportError as error:
            raise ImportError(
                "Checkpoints need orbax: pip install 'fedjax_opt[checkpoint]'."
            ) from error
        self._ocp = ocp

    def write(self, folder: pathlib.Path, state: dict[str, Any], history: dict[str, Any]) -> None:
        """Writes a plain state and its history, both on the host, into a folder."""
        with self._checkpointer() as checkpointer:
            for name, tree in ((_STATE, state), (_HISTORY, _PRESENT | history)):
                checkpointer.save(folder / name, args=self._ocp.args.StandardSave(tree))

    def write_pieces(self, folder: pathlib.Path, pieces: dict[str, np.ndarray]) -> list[str]:
        """Writes this process's pieces, if it has any, and names the folder in which they are."""
        if not pieces:
            return []
        name = f"{_STATE}-{jax.process_index():05d}"
        with self._checkpointer() as checkpointer:
            checkpointer.save(folder / name, args=self._ocp.args.StandardSave(pieces))
        return [name]

    def read(
        self, folder: pathlib.Path, like: FederatedState
    ) -> tuple[FederatedState, dict[str, Any]]:
        """The state, on the devices where another one like it is, and its history."""
        leaves = plain(like)
        # Arrays of NumPy: what devices there were when it was written does not matter then.
        with self._checkpointer() as checkpointer:
            restore = self._ocp.args.StandardRestore
            found: dict[str, Any] = {}
            for part in sorted(folder.glob(f"{_STATE}-*")):  # one at a time is in memory
                for piece, array in checkpointer.restore(part, args=restore()).items():
                    name, _, start = piece.rpartition("@")
                    target = found.setdefault(name, Pieces(leaves[name]))
                    target.take([int(number) for number in start.split(",")], array)
            wanted = {
                name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
                for name, leaf in leaves.items()
                if name not in found
            }
            whole = checkpointer.restore(folder / _STATE, args=restore(wanted))
            history = checkpointer.restore(folder / _HISTORY, args=restore())
        put = [
            found[name].array() if name in found else _as_before(whole[name], leaf)
            for name, leaf in zip(leaves, jax.tree.leaves(like), strict=True)
        ]
        state = jax.tree.unflatten(jax.tree.structure(like), put)
        return state, {name: value for name, value in history.items() if name not in _PRESENT}

    def _checkpointer(self) -> Any:
        # Each process reads and writes by itself: none waits for another one.
        alone = self._ocp.options.MultiprocessingOptions(
            primary_host=jax.process_index(), active_processes={jax.process_index()}
        )
        return self._ocp.Checkpointer(
            self._ocp.StandardCheckpointHandler(multiprocessing_options=alone),
            multiprocessing_options=alone,
        )


class Pieces:
    """An array that is put together from pieces, as far as this process's devices need it.

    Args:
      leaf: an array of the same shape, on the devices where this one is to be.
    """

    def __init__(self, leaf: Any) -> None:
        self._leaf = leaf
        indices = [(slice(None),) * leaf.ndim]
        if isinstance(leaf, jax.Array):
            indices = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
        bounds = {self._bounds(index) for index in indices}
        self._parts = {
            bound: np.empty([stop - start for start, stop in bound], leaf.dtype) for bound in bounds
        }
        self._filled = dict.fromkeys(self._parts, 0)

    def take(self, start: list[int], piece: np.ndarray) -> None:
        """Takes from a piece what is needed of it."""
        for bound, part in self._parts.items():
            low = [max(a, b) for a, (b, _) in zip(start, bound, strict=True)]
            ends = zip(start, piece.shape, bound, strict=True)
            high = [min(a + length, b) for a, length, (_, b) in ends]
            if all(a < b for a, b in zip(low, high, strict=True)):
                here = _between(low, high, [b for b, _ in bound])
                part[here] = piece[_between(low, high, start)]
                self._filled[bound] += part[here].size

    def array(self) -> Any:
        """The array on its devices.

        Raises:
          ValueError: if pieces are missing.
        """
        if any(self._filled[bound] != part.size for bound, part in self._parts.items()):
            raise ValueError("pieces of an array are missing")
        if not isinstance(self._leaf, jax.Array):
            return next(iter(self._parts.values()))
        return jax.make_array_from_callback(
            self._leaf.shape, self._leaf.sharding, lambda index: self._parts[self._bounds(index)]
        )

    def _bounds(self, index: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
        pairs = zip(index, self._leaf.shape, strict=True)
        return tuple(part.indices(length)[:2] for part, length in pairs)


def _between(low: list[int], high: list[int], origin: list[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))


def _as_before(array: np.ndarray, leaf: Any) -> Any:
    """An array with the type and on the devices of a leaf."""
    if not isinstance(leaf, jax.Array):
        return array
    sharding = leaf.sharding
    if not sharding.is_fully_addressable:
        # Every process has read the same: nothing is sent between them.
        whole = jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
        return jax.random.wrap_key_data(whole, impl=_impl(leaf)) if _is_key(leaf) else whole
    if _is_key(leaf):
        array = jax.random.wrap_key_data(jnp.asarray(array), impl=_impl(leaf))
    return jax.device_put(array, sharding)


def _impl(key: jax.Array) -> Any:
    return jax.random.key_impl(key)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
