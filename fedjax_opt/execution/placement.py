"""Where arrays live on a mesh of devices, of one process or of many.

A mesh has an axis of clients and may have an axis of the model. Clients are divided over the first; over
the second each large array of a state is cut along its longest axis that divides evenly.
"""

import dataclasses
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_opt.core.state import FederatedState
from fedjax_opt.execution.jobs import Rows, Sum, Tree

CLIENTS, MODEL = "clients", "model"

# Arrays of fewer entries stay whole: bringing their parts together would take longer than it saves.
_WHOLE = 1024

# Arrays up to it cost less to copy next to each other than to send one by one.
_SMALL_BYTES = 2**20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerDevice:
    """Arrays of which each device has its own part, next to each other along their leading axis."""

    tree: chex.ArrayTree


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


def num_parts(mesh: Mesh) -> int:
    """Among how many devices, or groups of devices that share a model, clients are divided."""
    return mesh.shape[CLIENTS]


def is_simple(mesh: Mesh | None) -> bool:
    """Whether every array of a state is whole on every device, and all devices are of this process."""
    return mesh is None or not (mesh.is_multi_process or MODEL in mesh.axis_names)


def is_divided(mesh: Mesh | None) -> bool:
    """Whether devices have different clients; if they only share one model, there is but one part."""
    return mesh is not None and (num_parts(mesh) > 1 or MODEL not in mesh.axis_names)


def manual_axes(mesh: Mesh) -> dict[str, frozenset[str]]:
    """What `shard_map` is told: over the axis of the model, if any, the compiler divides by itself."""
    return {"axis_names": frozenset({CLIENTS})} if MODEL in mesh.axis_names else {}


def put(tree: Tree, mesh: Mesh) -> Tree:
    """Arrays on the devices of the mesh: states as `shardings` says, the rest whole on each."""
    if is_simple(mesh):
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
    return jax.tree.map(_put, tree, shardings(tree, mesh))


def shardings(tree: Tree, mesh: Mesh) -> Tree:
    """Where each array of a tree belongs."""

    def of_any(part):
        if not isinstance(part, FederatedState):
            return everywhere
        rest = jax.tree.map(lambda _: everywhere, part)
        return rest._replace(
            server=jax.tree.map(lambda x: _cut(x, 0, mesh), part.server),
            clients=table_shardings(part.clients, mesh),
        )

    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(of_any, tree, is_leaf=lambda x: isinstance(x, FederatedState))


def table_shardings(clients: Tree, mesh: Mesh) -> Tree:
    """Where each array of the clients' states, stacked `[R, ...]`, belongs."""
    return jax.tree.map(lambda x: _cut(x, 1, mesh), clients)


def make_sharded(make: Callable[[], Tree], mesh: Mesh) -> Tree:
    """What a function returns, made where it belongs: a model may be too large for any one device."""
    if MODEL not in mesh.axis_names:
        return make()
    return jax.jit(make, out_shardings=shardings(jax.eval_shape(make), mesh))()


def keep_sharding(tree: Tree, mesh: Mesh) -> Tree:
    """Inside a program: arrays where `put` puts them, so that the next round finds them there."""
    if is_simple(mesh):
        return tree
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, shardings(tree, mesh))


def replicate(tree: Tree, mesh: Mesh) -> Tree:
    """Inside a program: arrays that every device is to compute for itself, or to be told at once."""
    # Otherwise the compiler divides what belongs to a cohort over the devices, and gathers it wherever
    # all of it is asked for: between processes a small message costs as much as that of a model.
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, everywhere), tree)


def over_devices(
    mesh: Mesh,
    work: Callable[..., tuple[Sum, Rows]],
    shared: object,
    *by_place: object,
) -> tuple[Sum, Rows]:
    """`work(shared, *mine) -> (summed, stacked)` on each device, which has its own part by place."""
    # Between processes what is one number of each client goes to all of them, in the messages of the
    # sums: each device adds its own numbers, and zeros for the others'.
    form = []

    def on_one_device(place, shared, *mine):
        summed, stacked = work(shared, *mine)
        leaves, structure = jax.tree.flatten(stacked)
        small = [x.ndim == 1 and mesh.is_multi_process for x in leaves]
        form[:] = [structure, [x.dtype for x in leaves]]

        def among_zeros(x):
            wide = x.astype(jnp.int32) if x.dtype == jnp.bool_ else x
            room = jnp.zeros(len(x) * num_parts(mesh), wide.dtype)
            return jax.lax.dynamic_update_slice(room, wide, (place[0] * len(x),))

        own = {i: among_zeros(x) for i, x in enumerate(leaves) if small[i]}
        rest = {i: x for i, x in enumerate(leaves) if not small[i]}
        return _summed((summed, own), mesh), rest

    def spec(x):
        return PartitionSpec(CLIENTS) if isinstance(x, PerDevice) else PartitionSpec()

    specs = jax.tree.map(spec, shared, is_leaf=lambda x: isinstance(x, PerDevice))
    split = PartitionSpec(CLIENTS)
    (summed, small), rest = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(split, specs, *[split] * len(by_place)),
        out_specs=(PartitionSpec(), split),
        check_vma=False,
        **manual_axes(mesh),
    )(np.arange(num_parts(mesh), dtype=np.int32), shared, *replicate(by_place, mesh))
    structure, dtypes = form
    by_leaf = small | rest
    return summed, jax.tree.unflatten(
        structure, [by_leaf[i].astype(dtype) for i, dtype in enumerate(dtypes)]
    )


def _summed(tree: Tree, mesh: Mesh) -> Tree:
    """Inside `shard_map`: sums over the devices; between processes small arrays share a message."""
    if not mesh.is_multi_process:
        return jax.lax.psum(tree, CLIENTS)
    leaves, structure = jax.tree.flatten(tree)
    together: dict[str, list[int]] = {}
    for i, leaf in enumerate(leaves):
        name = str(leaf.dtype) if leaf.nbytes <= _SMALL_BYTES else f"array {i}"
        together.setdefault(name, []).append(i)
    messages = [
        jnp.concatenate([leaves[i].reshape(-1) for i in group]) for group in together.values()
    ]
    for total, group in zip(jax.lax.psum(messages, CLIENTS), together.values(), strict=True):
        ends = np.cumsum([leaves[i].size for i in group])[:-1]
        for i, part in zip(group, jnp.split(total, ends), strict=True):
            leaves[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, leaves)


def fetched(tree: Tree) -> Tree:
    """Arrays on the host, whole; what is divided over processes is brought together."""

    def one(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable or x.is_fully_replicated:
            return np.asarray(x)
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(one, tree)


def _cut(x: chex.Array, first: int, mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, _spec(jnp.shape(x), first, mesh.shape.get(MODEL, 1)))


def _spec(shape: tuple[int, ...], first: int, parts: int) -> PartitionSpec:
    """The longest axis, from the first that may be cut, whose length the parts divide."""
    able = [axis for axis in range(first, len(shape)) if shape[axis] % parts == 0]
    if parts == 1 or not able or np.prod(shape[first:]) < _WHOLE:
        return PartitionSpec()
    axis = max(able, key=lambda axis: shape[axis])
    return PartitionSpec(*[None] * axis, MODEL)


def _put(x: Tree, sharding: NamedSharding) -> Tree | jax.Array:
    """One array of all processes, from the same array in each; nothing is sent between them."""
    if not sharding.mesh.is_multi_process:
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        words = jnp.asarray(_put(jax.random.key_data(x), sharding))
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(x))
    # A number whose dtype gives way to others' would lose that; a program takes it as it is.
    if isinstance(x, (bool, int, float, complex)) or getattr(x, "weak_type", False):
        return x
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    host = np.asarray(x).astype(jnp.result_type(x), copy=False)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
