"""A state as files can hold it, and back: dicts of arrays, written and read by orbax.

Arrays that no process has the whole of are not in it: see `checkpoint_pieces`.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.state import FederatedState
from fedjax_opt.training import checkpoint_pieces

_STATE, _HISTORY = "state", "history"
# orbax writes no empty tree.
_PRESENT = {"present": np.array(True)}


def plain(state: Any) -> dict[str, Any]:
    """A state, or any tree, as a dict of arrays by place and path; a key as the words that it holds."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        f"{i:04d}{jax.tree_util.keystr(path)}": jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for i, (path, leaf) in enumerate(leaves)
    }


def copied(tree: Any) -> Any:
    """Arrays on the host that share no memory with these, which may be given up or written to next."""
    return jax.tree.map(lambda x: np.array(x, copy=True), tree)


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

    def read(
        self, folder: pathlib.Path, like: FederatedState
    ) -> tuple[FederatedState, dict[str, Any]]:
        """The state, on the devices where another one like it is, and its history."""
        leaves = plain(like)
        divided = checkpoint_pieces.read(folder, leaves)
        # Arrays of NumPy: what devices there were when it was written does not matter then.
        wanted = {
            name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
            for name, leaf in leaves.items()
            if name not in divided
        }
        with self._checkpointer() as checkpointer:
            restore = self._ocp.args.StandardRestore
            found = checkpointer.restore(folder / _STATE, args=restore(wanted))
            history = checkpointer.restore(folder / _HISTORY, args=restore())
        arrays = [
            divided[name] if name in divided else _as_before(found[name], leaf)
            for name, leaf in zip(leaves, jax.tree.leaves(like), strict=True)
        ]
        state = jax.tree.unflatten(jax.tree.structure(like), arrays)
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
