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
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedjax_opt.core import checks, trees
from fedjax_opt.execution import placement
from fedjax_opt.execution.jobs import Client, Rows, Shared, Sum, Tree

NAMES = ("auto", "scan", "vmap", "chunked", "sharded")


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
    """A checked strategy with its mesh; 'auto' is settled where the backend alone decides."""
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
    # On CPU, clients over devices beat threads inside an operation. On an accelerator the whole cohort
    # at once is fastest, if it fits: `memory.fit` settles that when the shapes are known.
    if strategy.name == "auto" and limit is None and jax.default_backend() == "cpu":
        strategy = strategy._replace(name="sharded" if jax.device_count() > 1 else "scan")
    if strategy.name != "sharded":
        return strategy._replace(mesh=None)
    return strategy._replace(mesh=placement.checked(strategy.mesh or placement.over_all_devices()))


def place(tree: Tree, strategy: str | Strategy = "auto") -> Tree:
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
    mesh = resolve(strategy).mesh
    return jax.tree.map(jnp.asarray, tree) if mesh is None else placement.put(tree, mesh)


def round_up(strategy: Strategy, size: int) -> int:
    """The smallest number of clients, not below `size`, that the strategy divides evenly."""
    part = 1
    if strategy.name == "chunked":
        part = min(strategy.size, size)
    elif strategy.mesh is not None:
        part = placement.num_parts(strategy.mesh)
    return -(-size // part) * part


def map_reduce(
    strategy: Strategy,
    function: Callable[[Shared, Client], tuple[Sum, Rows]],
    shared: Shared,
    clients: Client,
) -> tuple[Sum, Rows]:
    """`function(shared, client)` of every client: the first result summed, the second stacked."""
    if strategy.name == "scan":
        summed, _ = jax.eval_shape(function, shared, jax.tree.map(itemgetter(0), clients))

        def one(total, client):
            contribution, result = function(shared, client)
            return trees.add(total, contribution), result

        return jax.lax.scan(one, trees.zeros_like(summed), clients)
    if strategy.name == "vmap":
        contributions, results = jax.vmap(function, in_axes=(None, 0))(shared, clients)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), contributions), results
    if strategy.name == "chunked":
        size = min(strategy.size, jax.tree.leaves(clients)[0].shape[0])
        chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), clients)
        at_once = partial(map_reduce, Strategy("vmap"), function)
        summed, stacked = map_reduce(Strategy("scan"), at_once, shared, chunks)
        return summed, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)
    work = partial(map_reduce, Strategy(strategy.inner), function)
    assert strategy.mesh is not None  # it is resolved
    if not placement.is_divided(strategy.mesh):
        return work(shared, clients)
    return placement.over_devices(strategy.mesh, work, shared, clients)
