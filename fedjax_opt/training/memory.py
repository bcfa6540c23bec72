"""The strategy of a run in chunks, within the memory that there is."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core.client_data import ClientData, in_memory
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.preparation import Prepared
from fedjax_opt.execution import memory
from fedjax_opt.execution.strategies import Strategy

# (prepared, state) -> the compiled program of a chunk of rounds.
Compile = Callable[[Prepared, FederatedState], jax.stages.Compiled]


def settle_run(
    prepared: Prepared,
    state: FederatedState,
    tests: object,
    chunk: int,
    copies: int,
    compile_chunk: Compile,
) -> Prepared:
    """The run with a strategy that fits; refuses one that does not, before anything is placed.

    Args:
      prepared, state: the run.
      tests: what is evaluated between the chunks, or `()`.
      chunk: the rounds that are played at once.
      copies: how many copies of the state there are at once.
      compile_chunk: what compiles a chunk of rounds, for shapes of these.
    """
    federation = prepared.federation
    clients: Any = federation.clients
    examples = _examples_at_once(clients, chunk * federation.cohort.size)
    data, states = (examples, federation.validation, tests), [state] * copies
    memory.check_arrays(prepared.strategy, data, states)
    seen = prepared.with_clients(ClientData(examples, clients.offsets, clients.sizes))

    def compiled(option: Strategy) -> jax.stages.Compiled:
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)),
            (seen.replace(strategy=option), state),
        )
        return compile_chunk(*shapes)

    size = federation.cohort.size
    return prepared.replace(strategy=memory.fit(prepared.strategy, size, compiled, data, states))


def _examples_at_once(clients: Any, most: int) -> chex.ArrayTree:
    """The examples that are on the device; of those in files, shapes of the largest cohorts'.

    Args:
      clients: whose examples.
      most: clients of all cohorts of a chunk.
    """
    if in_memory(clients):
        return clients.examples
    sizes = np.asarray(clients.sizes)
    most = min(most + 1, len(sizes))  # an empty slot of a cohort reads client 0
    rows = int(np.partition(sizes, -most)[-most:].sum(dtype=np.int64))
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), clients.examples
    )
