"""Where arrays live on a mesh of devices, of one process or of many.

A mesh has an axis of clients and may have an axis of the model. Clients are divided over the first; over
the second each large array of a state is cut along its longest axis that divides evenly.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

CLIENTS, MODEL = "clients", "model"


def over_all_devices() -> Mesh:
    """All devices of all processes, over which clients are divided."""
    return Mesh(np.array(jax.devices()), (CLIENTS,))


def checked(mesh: Mesh) -> Mesh:
    """A mesh whose axes are known here, rebuilt: it may come with axes of another type."""
    if mesh.axis_names not in ((CLIENTS,), (CLIENTS, MODEL)):
        raise ValueError(
            f"strategy.mesh must have the one axis {CLIENTS!r}, or {CLIENTS!r} and {MODEL!r}, got"
            f" {mesh.axis_names}."
        )
    return Mesh(mesh.devices, mesh.axis_names)


def spans_processes(mesh: Mesh | None) -> bool:
    """Whether some of its devices belong to other processes."""
    return mesh is not None and mesh.is_multi_process


def put(tree: Any, mesh: Mesh) -> Any:
    """Arrays on every device of the mesh; every process has to have the same ones."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    if not mesh.is_multi_process:
        return jax.device_put(tree, everywhere)
    return jax.tree.map(lambda x: _put_from_all(x, everywhere), tree)


def replicated(tree: Any, mesh: Mesh | None) -> Any:
    """Inside a program: arrays that every process can read, where there are several."""
    if mesh is None or not mesh.is_multi_process:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))


def _put_from_all(x: Any, sharding: NamedSharding) -> Any:
    """One array of all processes, from the same array in each; nothing is sent."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = _put_from_all(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    # A number whose dtype gives way to others' would lose that; a program takes it as it is.
    if isinstance(x, (bool, int, float, complex)) or getattr(x, "weak_type", False):
        return x
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    host = np.asarray(x).astype(jnp.result_type(x), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
