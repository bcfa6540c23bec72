"""How the client axis is executed. The numbers are the same; time and memory are not.

| strategy  | one client at a time? | memory            | best on                       |
| --------- | --------------------- | ----------------- | ----------------------------- |
| `scan`    | yes                   | one client        | one CPU device                |
| `vmap`    | all at once           | the whole cohort  | an accelerator                |
| `chunked` | `size` at once        | `size` clients    | an accelerator, large cohorts |
| `sharded` | one per device        | one per device    | several devices, CPU cores    |
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_opt.core import checks, trees

NAMES = ("auto", "scan", "vmap", "chunked", "sharded")
AXIS = "clients"

# A share of the device is left for the program's other arrays and for fragmentation.
_USABLE_MEMORY = 0.8


class Strategy(NamedTuple):
    """How the client axis is executed; made by a name, or by hand for the details.

    Attributes:
      name: 'scan', 'vmap', 'chunked', 'sharded', or 'auto'.
      size: for 'chunked', how many clients are computed at once.
      mesh: for 'sharded', a mesh of one axis named 'clients'; all local devices by default.
      inner: for 'sharded', how each device executes its own clients: 'scan' or 'vmap'.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.Strategy("chunked", size=4).size
      4
    """

    name: str = "auto"
    size: int = 8
    mesh: Mesh | None = None
    inner: str = "scan"


def resolve(strategy: str | Strategy) -> Strategy:
    """A checked strategy with its mesh; 'auto' is settled where the backend alone decides.

    On CPU, clients over devices beat threads inside an operation, and one client at a time beats all
    at once. On an accelerator the whole cohort at once fills the device, if it fits: there 'auto'
    stays, to be settled by `fit_memory` once the shapes are known.
    """
    if isinstance(strategy, str):
        checks.choice("strategy", strategy, NAMES)
        strategy = Strategy(strategy)
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy must be a name or a Strategy, got {strategy!r}.")
    checks.choice("strategy.name", strategy.name, NAMES)
    checks.choice("strategy.inner", strategy.inner, ("scan", "vmap"))
    checks.integer("strategy.size", strategy.size, low=1)
    if strategy.name == "auto" and jax.default_backend() == "cpu":
        strategy = strategy._replace(name="sharded" if jax.local_device_count() > 1 else "scan")
    if strategy.name == "sharded":
        mesh = strategy.mesh or Mesh(np.array(jax.local_devices()), (AXIS,))
        if mesh.axis_names != (AXIS,):
            raise ValueError(
                f"strategy.mesh must have the one axis {AXIS!r}, got {mesh.axis_names}."
            )
        # Rebuilt, since a mesh may come with axes of another type than shard_map expects.
        strategy = strategy._replace(mesh=Mesh(mesh.devices, mesh.axis_names))
    return strategy


def place(tree: Any, strategy: str | Strategy = "auto") -> Any:
    """Puts arrays where the strategy's programs read them, once instead of at every call.

    `simulate` does so by itself. With `run_rounds` and `make_round`, do it for large data.

    Args:
      tree: any pytree, such as a `ClientData` or a `FederatedState`.
      strategy: the strategy that will be used.

    Returns:
      The tree on the device, or on every device of a 'sharded' strategy.

    Example:
      >>> import numpy as np
      >>> import fedjax_opt as fo
      >>> data = fo.place(fo.ClientData.from_list([{"x": np.ones((2, 3))}]))
    """
    strategy = resolve(strategy)
    if strategy.mesh is None:
        return jax.tree.map(jnp.asarray, tree)
    return jax.device_put(tree, NamedSharding(strategy.mesh, PartitionSpec()))


def candidates(cohort_size: int, num_devices: int) -> list[Strategy]:
    """The strategies of an accelerator from the fastest to the smallest."""
    if num_devices > 1:
        return [resolve(Strategy("sharded", inner=inner)) for inner in ("vmap", "scan")]
    chunks = []
    size = cohort_size // 2
    while size > 1:
        chunks.append(Strategy("chunked", size=size))
        size //= 2
    return [Strategy("vmap"), *chunks, Strategy("scan")]


def fit_memory(
    options: list[Strategy], temporary_bytes: Callable[[Strategy], int], available: float
) -> Strategy:
    """The first strategy whose compiled program fits into the device, or else the last.

    Args:
      options: strategies, from the fastest to the smallest.
      temporary_bytes: a strategy -> the temporary memory that its compiled program reports.
      available: the bytes that the device has free.
    """
    for option in options[:-1]:
        if temporary_bytes(option) <= _USABLE_MEMORY * available:
            return option
    return options[-1]


def settle(strategy: Strategy, cohort_size: int, lower: Callable[[Strategy], Any]) -> Strategy:
    """Settles 'auto' by the memory that the compiled program reports.

    Args:
      strategy: a resolved strategy; any but 'auto' is returned as it is.
      cohort_size: S.
      lower: a strategy -> the lowered program (`jax.stages.Lowered`).
    """
    if strategy.name != "auto":
        return strategy
    statistics = jax.local_devices()[0].memory_stats() or {}
    available = statistics.get("bytes_limit", float("inf")) - statistics.get("bytes_in_use", 0)

    def temporary_bytes(option: Strategy) -> int:
        analysis = lower(option).compile().memory_analysis()
        return 0 if analysis is None else analysis.temp_size_in_bytes

    return fit_memory(candidates(cohort_size, jax.local_device_count()), temporary_bytes, available)


def map_reduce(
    strategy: Strategy,
    function: Callable[[Any, Any], tuple[Any, Any]],
    shared: Any,
    clients: Any,
    pad: Callable[[Any, int], Any],
) -> tuple[Any, Any]:
    """Applies `function(shared, client)` to every client: the first result summed, the second stacked.

    Args:
      strategy: how; resolved.
      function: (shared, one client's inputs) -> (what is summed, what is stacked).
      shared: inputs that every client sees.
      clients: a pytree with the clients on its leading axis.
      pad: (clients, extra) -> clients with `extra` more that contribute nothing to the sum.

    Returns:
      The sum over clients and the stacked results `[S, ...]`.
    """
    size = jax.tree.leaves(clients)[0].shape[0]
    if strategy.name == "scan":
        return _scan(function, shared, clients)
    if strategy.name == "vmap":
        return _vmap(function, shared, clients)
    if strategy.name == "chunked":
        chunk = min(strategy.size, size)
        count = -(-size // chunk)
        padded = pad(clients, count * chunk - size) if count * chunk > size else clients
        chunks = jax.tree.map(lambda x: x.reshape(count, chunk, *x.shape[1:]), padded)

        def one_chunk(shared, chunk_of_clients):
            return _vmap(function, shared, chunk_of_clients)

        summed, stacked = _scan(one_chunk, shared, chunks)
        return summed, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:size], stacked)
    return _sharded(strategy, function, shared, clients, pad, size)


def _scan(function, shared, clients):
    first = jax.tree.map(lambda x: x[0], clients)
    summed, _ = jax.eval_shape(function, shared, first)

    def one(total, client):
        contribution, result = function(shared, client)
        return trees.add(total, contribution), result

    return jax.lax.scan(one, trees.zeros_like(summed), clients)


def _vmap(function, shared, clients):
    contributions, results = jax.vmap(function, in_axes=(None, 0))(shared, clients)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), contributions), results


def _sharded(strategy, function, shared, clients, pad, size):
    mesh = strategy.mesh
    missing = -size % mesh.size
    padded = pad(clients, missing) if missing else clients
    run = _scan if strategy.inner == "scan" else _vmap

    def on_one_device(shared, mine):
        summed, stacked = run(function, shared, mine)
        return jax.lax.psum(summed, AXIS), stacked

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    summed, stacked = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(everywhere, split),
        out_specs=(everywhere, split),
        check_vma=False,
    )(shared, padded)
    return summed, jax.tree.map(lambda x: x[:size], stacked)
