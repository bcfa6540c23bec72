"""How the client axis is executed. The numbers are the same; time and memory are not.

| strategy  | one client at a time? | memory            | best on                       |
| --------- | --------------------- | ----------------- | ----------------------------- |
| `scan`    | yes                   | one client        | one CPU device                |
| `vmap`    | all at once           | the whole cohort  | an accelerator                |
| `chunked` | `size` at once        | `size` clients    | an accelerator, large cohorts |
| `sharded` | one per device        | one per device    | several devices, CPU cores    |
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedjax_opt.core import checks, trees
from fedjax_opt.execution import meshes

NAMES = ("auto", "scan", "vmap", "chunked", "sharded")
AXIS = meshes.CLIENTS

# How much the devices exchange at once: on CPUs what stays in their caches, on others what is worth
# the start of a transfer.
_EXCHANGED_BYTES = {"cpu": 2**23, "gpu": 2**26}


class Strategy(NamedTuple):
    """How the client axis is executed; made by a name, or by hand for the details.

    Attributes:
      name: 'scan', 'vmap', 'chunked', 'sharded', or 'auto'.
      size: for 'chunked', how many clients are computed at once.
      mesh: for 'sharded', a mesh with an axis 'clients'; by default all devices, of all processes.
        With a second axis 'model', each client's model is divided over the devices along it.
      inner: for 'sharded', how each device executes its own clients: 'scan' or 'vmap'.
      memory_limit: the bytes that a run may take, or 'device' for what there is. The run is compiled
        once more to know: 'auto' is then the fastest strategy that fits, and another one that does not
        fit is refused with what it needs and with the one that would.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.Strategy("chunked", size=4).size
      4
    """

    name: str = "auto"
    size: int = 8
    mesh: Mesh | None = None
    inner: str = "scan"
    memory_limit: int | str | None = None


def resolve(strategy: str | Strategy) -> Strategy:
    """A checked strategy with its mesh; 'auto' is settled where the backend alone decides.

    On CPU, clients over devices beat threads inside an operation, and one client at a time beats all
    at once. On an accelerator the whole cohort at once fills the device, if it fits: there 'auto'
    stays, to be settled by `memory.fit` once the shapes are known; so it does where it has a limit.
    """
    if isinstance(strategy, str):
        checks.choice("strategy", strategy, NAMES)
        strategy = Strategy(strategy)
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy must be a name or a Strategy, got {strategy!r}.")
    checks.choice("strategy.name", strategy.name, NAMES)
    checks.choice("strategy.inner", strategy.inner, ("scan", "vmap"))
    checks.integer("strategy.size", strategy.size, low=1)
    limit = strategy.memory_limit
    if limit not in (None, "device"):
        checks.integer("memory_limit", limit, low=1)
    if strategy.name == "auto" and limit is None and jax.default_backend() == "cpu":
        strategy = strategy._replace(name="sharded" if jax.device_count() > 1 else "scan")
    if strategy.name != "sharded":
        return strategy._replace(mesh=None)
    return strategy._replace(mesh=meshes.checked(strategy.mesh or meshes.over_all_devices()))


def place(tree: Any, strategy: str | Strategy = "auto") -> Any:
    """Puts arrays where the strategy's programs read them, once instead of at every call.

    `simulate` does so by itself. With `run_rounds` and `make_round`, do it for large data.

    Args:
      tree: any pytree, such as a `ClientData` or a `FederatedState`.
      strategy: the strategy that will be used.

    Returns:
      The tree on the device, or on every device of a 'sharded' strategy, of whichever process.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> data = fo.place(fo.ClientData.from_list([{"x": np.ones((2, 3))}]))
    """
    strategy = resolve(strategy)
    if strategy.mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    return meshes.put(tree, strategy.mesh)


def round_up(strategy: Strategy, size: int) -> int:
    """The smallest number of clients, not below `size`, that the strategy divides evenly."""
    part = 1
    if strategy.name == "chunked":
        part = min(strategy.size, size)
    elif strategy.mesh is not None:
        part = meshes.num_parts(strategy.mesh)
    return -(-size // part) * part


def map_reduce(
    strategy: Strategy,
    function: Callable[[Any, Any], tuple[Any, Any]],
    shared: Any,
    clients: Any,
    absent: Callable[[Any], jax.Array] | None = None,
) -> tuple[Any, Any]:
    """Applies `function(shared, client)` to every client: the first result summed, the second stacked.

    Args:
      strategy: how; resolved.
      function: (shared, one client's inputs) -> (what is summed, what is stacked).
      shared: inputs that every client sees.
      clients: a pytree with the clients on its leading axis, as many as `round_up` says.
      absent: one client's inputs -> whether nothing is to be computed for it, and zeros are its result;
        devices that work through their clients one by one then save its time.

    Returns:
      The sum over clients and the stacked results `[S, ...]`.
    """
    if strategy.name == "scan":
        return _scan(function, shared, clients)
    if strategy.name == "vmap":
        return _vmap(function, shared, clients)
    if strategy.name == "chunked":
        size = jax.tree.leaves(clients)[0].shape[0]
        chunk = min(strategy.size, size)
        chunks = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), clients)

        def one_chunk(shared, chunk_of_clients):
            return _vmap(function, shared, chunk_of_clients)

        summed, stacked = _scan(one_chunk, shared, chunks)
        return summed, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)
    return _sharded(strategy, function, shared, clients, absent)


def write_rows(strategy: Strategy, table: Any, rows: Any, places: jax.Array) -> Any:
    """The table `[N, ...]` with `rows[i]` in the place `places[i]`; a place past its end is nowhere.

    With 'sharded' each device has computed some of the rows and all of them keep the whole table, so
    rows go from device to device a few at a time, and from the cache straight into the table. Gathering
    all of them first would write and read each once more in memory.
    """
    mesh = strategy.mesh
    if mesh is None or not meshes.is_divided(mesh) or not jax.tree.leaves(table):
        return jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), table, rows)
    limit = _EXCHANGED_BYTES.get(mesh.devices.flat[0].platform, _EXCHANGED_BYTES["gpu"])
    row_bytes = sum(x.nbytes // x.shape[0] for x in jax.tree.leaves(rows))
    num_devices = meshes.num_parts(mesh)
    each = places.shape[0] // num_devices
    chunk = max(1, min(each, limit // max(row_bytes * num_devices, 1)))

    def write(table, row_and_place):
        row, place = row_and_place

        def put(old, new):
            at = jnp.minimum(place, old.shape[0] - 1)
            kept = jax.lax.dynamic_index_in_dim(old, at, keepdims=False)
            new = jnp.where(place < old.shape[0], new, kept)
            return jax.lax.dynamic_update_index_in_dim(old, new, at, 0)

        return jax.tree.map(put, table, row), None

    def on_one_device(table, mine, places):
        def exchange(table, first):
            # The last chunk may begin a little earlier, and bring some rows once more.
            first = jnp.minimum(first, each - chunk)
            sent = [jax.lax.dynamic_slice_in_dim(x, first, chunk) for x in jax.tree.leaves(mine)]
            by_device = places.reshape(num_devices, each)
            where = jax.lax.dynamic_slice_in_dim(by_device, first, chunk, axis=1).reshape(-1)
            received = [jax.lax.all_gather(x, AXIS, tiled=True) for x in sent]
            received = jax.tree.unflatten(jax.tree.structure(mine), received)
            return jax.lax.scan(write, table, (received, where))

        return jax.lax.scan(exchange, table, jnp.arange(0, each, chunk))[0]

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(everywhere, split, everywhere),
        out_specs=everywhere,
        check_vma=False,
        **meshes.manual_axes(mesh),
    )(table, rows, places)


def _scan(function, shared, clients):
    first = jax.tree.map(lambda x: x[0], clients)
    summed, _ = jax.eval_shape(function, shared, first)

    def one(total, client):
        contribution, result = function(shared, client)
        return trees.add(total, contribution), result

    return jax.lax.scan(one, trees.zeros_like(summed), clients)


def _vmap(function, shared, clients):
    contributions, results = jax.vmap(function, in_axes=(None, 0))(shared, clients)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), contributions), results


def _sharded(strategy, function, shared, clients, absent):
    run = _scan if strategy.inner == "scan" else _vmap
    if absent is not None and strategy.inner == "scan":
        function = _unless(absent, function)
    if not meshes.is_divided(strategy.mesh):
        return run(function, shared, clients)

    return over_devices(strategy.mesh, partial(run, function), shared, clients)


def over_devices(mesh: Mesh, work: Callable[..., tuple[Any, Any]], shared: Any, *by_place: Any):
    """`work(shared, *mine) -> (summed, stacked)` on each device, which has its own part by place."""

    def on_one_device(shared, *mine):
        summed, stacked = work(shared, *mine)
        return meshes.summed(summed, mesh), stacked

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    summed, stacked = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(meshes.specs_of(shared), *[split] * len(by_place)),
        out_specs=(everywhere, split),
        check_vma=False,
        **meshes.manual_axes(mesh),
    )(shared, *meshes.known_to_all(by_place, mesh))
    return summed, meshes.told_to_all(stacked, mesh)


def _unless(absent, function):
    def one(shared, client):
        def nothing(shared, client):
            return trees.zeros_like(jax.eval_shape(function, shared, client))

        return jax.lax.cond(absent(client), nothing, function, shared, client)

    return one
