"""Fine-tuning: each client's model after a few steps on its own examples.

    y_i = x,  then K times  y_i <- y_i - U(g_i(y_i))

It is how a global model is made personal after training (FedAvg and local fine-tuning), and with one
step of SGD how Per-FedAvg's is meant to be used.

Reference:
  Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage. Federated evaluation of on-device personalization.
  2019.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms import independent
from fedjax_opt.core import Algorithm, ClientData, Model, Variables, checks
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.federation import BATCHINGS
from fedjax_opt.core.struct import struct
from fedjax_opt.engine.client import Invitation, client_update
from fedjax_opt.engine.minibatches import rows_feed


def fine_tuned(
    model: Model,
    variables: Variables | Callable[[Any], Variables],
    data: Any,
    optimizer: optax.GradientTransformation,
    steps: Any,
    batch_size: int = 32,
    seed: Any = 0,
    batching: str = "shuffled",
) -> Partial:
    """Each client's model after `steps` local steps from `variables`, as a function of the client's id.

    Minibatches are drawn as in training, from the seed and the client alone. Another seed, number of
    steps or learning rate compiles nothing anew.

    Args:
      model: the model.
      variables: where to start: the same for all clients, or a function of a client's id, such as
        `personal_variables` or this function returns. It must know all clients of `data`.
      data: a `ClientData`, the examples to train on. A client that has none keeps its model as it is.
      optimizer: a triple or any optax transformation. Its statistics start afresh and move in each step;
        one in which they would stay frozen is refused.
      steps: K, a whole number of at least 0; a Python number or a traced value.
      batch_size: B.
      seed: a whole number or a key of `jax.random`.
      batching: 'shuffled' epochs that honour each client's size, or with 'replacement'.

    Returns:
      A function of an id, which may be traced, that returns the client's `Variables`. It is a pytree, to
      be handed to `evaluate_clients` with the examples to test on.

    Example:
      What five steps of fine-tuning do to the mean loss of the clients:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> variables = fo.Variables({"x": jnp.asarray(optimum)})
      >>> before = fo.evaluate_clients(model, variables, data)["loss"].mean()
      >>> tuned = fo.metrics.fine_tuned(model, variables, data, fo.optimizers.sgd(0.1), steps=5)
      >>> bool(fo.evaluate_clients(model, tuned, data)["loss"].mean() < before)
      True
    """
    if not isinstance(variables, Variables) and not callable(variables):
        raise ValueError(
            "variables must be Variables or a function of a client's id that returns them, got"
            f" {type(variables).__name__}."
        )
    check_clients(variables, "data", data)
    checks.choice("batching", batching, BATCHINGS)
    batch_size = checks.integer("batch_size", batch_size, low=1)
    sizes, full = data.sizes, False
    if not checks.is_traced(sizes):
        full = bool(np.all(np.asarray(sizes) % batch_size == 0))
    (total,) = checks.leading_axes("data.examples", data.examples, (None,), "n")
    if total == 0:
        raise ValueError("data must hold at least one example to train on, got none.")
    steps = jnp.asarray(checks.number("steps", _whole("steps", steps), low=0), jnp.int32)
    own = variables if isinstance(variables, Variables) else as_partial(variables)
    alone = independent(optimizer)
    # Refused here, and not when a client is asked for.
    jax.eval_shape(lambda client: alone.init_client(_before(own, client)), jnp.int32(0))
    fixed = _Fixed(model, batch_size, batching, full)
    return Partial(_tuned, fixed, own, data, alone, steps, _as_key(seed))


def check_clients(variables: Any, name: str, data: Any) -> None:
    """Refuses data of more clients than a function of a client's id knows.

    Ids beyond them would be taken for the last client's. A function that this library made says how many
    it knows by a function `num_clients` of its arguments.
    """
    count = getattr(getattr(variables, "func", None), "num_clients", None)
    known = None if count is None else count(*variables.args)
    if known is not None and data.num_clients > known:
        raise ValueError(
            f"{name} must hold the same clients as variables, which are {known}; got"
            f" {data.num_clients}."
        )


@struct("batch_size", "batching", "full_batches")
class _Fixed:
    """The model, and what is compiled in."""

    model: Model
    batch_size: int
    batching: str
    full_batches: bool


def _before(variables, client):
    own = variables if isinstance(variables, Variables) else variables(client)
    return jax.tree.map(jnp.asarray, own)


def _tuned(fixed, variables, data, alone, steps, key, client):
    return _trained(fixed, variables, data, alone, steps, key, client)


def _clients_of(fixed, variables, data: ClientData, *rest) -> int:
    return data.num_clients


_tuned.num_clients = _clients_of


@jax.jit
def _trained(fixed, variables, data, alone: Algorithm, steps, key, client):
    client = jnp.asarray(client, jnp.int32)
    offset, size = jnp.asarray(data.offsets)[client], jnp.asarray(data.sizes)[client]
    # Under vmap an empty client draws too, and what it makes of it is dropped: any row will do.
    total = jax.tree.leaves(data.examples)[0].shape[0]
    place = jnp.minimum(offset, total - 1), jnp.maximum(size, 1)
    feed = rows_feed(
        fixed.batch_size, fixed.batching, fixed.full_batches, None, data.examples, place
    )
    invitation = Invitation(
        message=(),
        round=jnp.int32(0),
        id=client,
        num_steps=jnp.where(size > 0, steps, 0),
        invited=jnp.int32(1),
        num_clients=jnp.int32(data.num_clients),
        key=jax.random.fold_in(key, client),
    )
    own = alone.init_client(_before(variables, client))
    return client_update(alone, fixed.model, feed, invitation, own).state.variables


def _whole(name: str, value: Any) -> Any:
    value = checks.as_array(name, value)
    if jnp.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise ValueError(f"{name} must be a whole number, got {value!r}.")
    return value


def _as_key(seed: Any) -> jax.Array:
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    return jax.random.key(_whole("seed", seed))
