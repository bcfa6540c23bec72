"""Evaluation: the mean loss and metrics over a data set, and over each client's own."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Algorithm, as_partial
from fedjax_opt.core.aliases import ClientState, Examples, Number, ServerState
from fedjax_opt.core.client_data import ClientData, check_in_memory
from fedjax_opt.core.model import Model, Objective, Variables
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine.minibatches import Feed, rows_feed
from fedjax_opt.engine.server import Total
from fedjax_opt.execution import client_table
from fedjax_opt.execution.client_table import ClientRows
from fedjax_opt.execution.jobs import counted_loop


def evaluate(
    model: Model, variables: Variables, examples: Examples, batch_size: int = 256
) -> dict[str, jax.Array]:
    """The mean loss and metrics of a model over a data set.

    The model is called with `key=None`: dropout is off, batch statistics are read.

    Args:
      model: the model.
      variables: its variables.
      examples: a pytree of arrays `[n, ...]`, or a `ClientData`, whose examples then count alike.
      batch_size: how many examples are evaluated at once.

    Returns:
      The mean of each of the model's metrics by name, and `loss`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=2)
      >>> sorted(fo.evaluate(model, fo.Variables({"x": jnp.zeros(2)}), data))
      ['loss']
    """
    check_in_memory("examples", examples, "to be evaluated")
    examples = getattr(examples, "examples", examples)
    (total,) = checks.leading_axes("examples", examples, (None,), "n")
    if total == 0:
        raise ValueError("examples must hold at least one example to evaluate, got none.")
    batch_size = min(checks.integer("batch_size", batch_size, low=1), total)
    return _evaluate(model, variables, examples, batch_size)


@partial(jax.jit, static_argnames="batch_size")
def _evaluate(model, variables, examples, batch_size):
    total = jax.tree.leaves(examples)[0].shape[0]
    whole = total - total % batch_size
    full = rows_feed(batch_size, "shuffled", True, None, examples, (0, whole))
    sums = _sums(model, variables, full.chunk, full.num_chunks)
    if whole < total:  # the last piece has its own size: nothing in it has to be masked
        last = jax.tree.map(lambda x: jnp.asarray(x)[whole:], examples)
        sums = trees.add(
            sums, _sums(model, variables, lambda _: (last, None), 1, whole // batch_size)
        )
    return _means(sums)


def personal_variables(algorithm: Algorithm, state: FederatedState) -> Partial:
    """Each client's own model, as a function of the client's id.

    With an algorithm that personalises (`private`) it is the shared model with the client's own parts
    in place; with any other, the global model for all.

    Args:
      algorithm: the algorithm.
      state: a state of it.

    Returns:
      A function of an id, which may be traced, that returns the client's `Variables`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where="params/head")
      >>> params = {"body": jnp.ones(3), "head": jnp.ones(2)}
      >>> state = fo.first_state(algorithm, params, num_clients=5)
      >>> fo.personal_variables(algorithm, state)(4).params["head"].shape
      (2,)
    """
    if algorithm.personal is None:
        return Partial(_everyones, state.variables)
    return Partial(_own, algorithm.personal, state.server, state.clients)


def _everyones(variables, client):
    del client
    return variables


def _own(personal, server: ServerState, clients: ClientState, client: Number):
    if isinstance(clients, ClientRows):
        known = not checks.is_traced(client, clients)
        return personal(
            server, clients[int(client)] if known else client_table.read(clients, client)
        )
    return personal(server, jax.tree.map(lambda x: x[client], clients))


def _stacked_clients(personal, server, clients) -> int | None:
    return min((leaf.shape[0] for leaf in jax.tree.leaves(clients)), default=None)


# What is made of more clients' data asks for it.
_own.num_clients = _stacked_clients


def client_evaluate(model: Model, variables: Variables, feed: Feed) -> Total:
    """The model on a client's own examples, to be added up on the server: it may have none itself.

    Args:
      model: the model.
      variables: its variables.
      feed: the client's examples.

    Returns:
      A `Total`, weighted by the number of examples: after adding up, `total.mean` are the means of the
      model's metrics and `total.mean_loss` is that of the loss, over all examples of all clients.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> variables = fo.Variables({"x": jax.numpy.zeros(2)})
      >>> total = fo.client_evaluate(model, variables, fo.feed(data[0], 1))
      >>> total += fo.client_evaluate(model, variables, fo.feed(data[1], 1))
      >>> int(total.count), total.mean_loss.shape
      (2, ())
    """
    sums, weight = _sums(model, variables, feed.chunk, feed.num_chunks)
    loss = sums.pop("loss")
    return Total(sums, weight, jnp.int32(1), jnp.zeros_like(weight), loss)


def evaluate_clients(
    model: Model,
    variables: Variables | Callable[[Number], Variables],
    data: ClientData,
    batch_size: int = 64,
) -> dict[str, jax.Array]:
    """The mean loss and metrics on each client's own examples.

    Args:
      model: the model.
      variables: its variables, the same for all clients, or a function of a client's id, such as
        `personal_variables` returns.
      data: a `ClientData`.
      batch_size: how many examples are evaluated at once.

    Returns:
      The metrics by name, and `loss`, each `[N]`; NaN for a client without examples.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=2)
      >>> fo.evaluate_clients(model, fo.Variables({"x": jnp.zeros(2)}), data)["loss"].shape
      (3,)
    """
    check_in_memory("data", data, "to be evaluated")
    sizes = np.asarray(data.sizes)
    largest = int(np.max(sizes, initial=1))
    batch_size = min(checks.integer("batch_size", batch_size, low=1), largest)
    full = not np.any(sizes % batch_size)
    own = Partial(_everyones, variables) if isinstance(variables, Variables) else variables
    return evaluate_each(as_partial(own), data, model, batch_size, full)


@partial(jax.jit, static_argnames=("batch_size", "full"))
def evaluate_each(
    variables_of: Partial,
    data: ClientData,
    model: Model,
    batch_size: int,
    full: bool = False,
    first: Number = 0,
) -> dict[str, jax.Array]:
    """The mean loss and metrics of client i's own model, `variables_of(first + i)`, on its examples."""

    def one_client(feed):
        client, offset, size = feed
        own = variables_of(client)
        return mean_over_rows(model, own, data.examples, offset, size, batch_size, full)

    ids = jnp.asarray(first, jnp.int32) + jnp.arange(data.sizes.shape[0], dtype=jnp.int32)
    return jax.lax.map(one_client, (ids, jnp.asarray(data.offsets), jnp.asarray(data.sizes)))


def mean_over_rows(
    model: Model,
    variables: Variables,
    examples: Examples,
    offset: Number,
    size: Number,
    batch_size: int = 64,
    full: bool = False,
) -> dict[str, jax.Array]:
    """The mean over rows offset .. offset + size - 1, in pieces; the last may be partly filled."""
    feed = rows_feed(batch_size, "shuffled", full, None, examples, (offset, size))
    return _means(_sums(model, variables, feed.chunk, feed.num_chunks))


def _sums(model, variables, chunk, count, first=0):
    """Sums over minibatches of the metrics and the loss, times what each counts; and the sum of that."""

    def one(index):
        batch, mask = chunk(index)
        found = Objective(model, None, mask, index=index).evaluate(variables, batch)
        return trees.scale(found.weight, {**found.metrics, "loss": found.loss}), found.weight

    zero = trees.zeros_like(jax.eval_shape(one, jnp.int32(0)))
    return counted_loop(count, lambda sums, i: trees.add(sums, one(first + i)), zero)


def _means(sums):
    """NaN where no row counts."""
    totals, weight = sums
    return jax.tree.map(lambda x: x / weight.astype(x.dtype), totals)
