"""The form that most algorithms share: K steps of an optimiser along a direction of one's own.

    start    y = x
    local    y <- y - U(direction(g, y))       g the gradient at y on the minibatch, U the optimiser
    upload   what the algorithm makes of y - x
    server   the algorithm's own

An algorithm that does not fit replaces the function that differs (`_replace(step=...)`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.core import (
    Algorithm,
    Context,
    Evaluation,
    Situation,
    Variables,
    difference,
    get_variables,
    move,
    no_client_state,
)
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form

# Of a client's key, the stream for the keys of its optimiser.
_OPTIMIZERS = 2**31 - 2


class ModelState(NamedTuple):
    """A server state or message that is the model alone."""

    variables: Variables


class Local(NamedTuple):
    """A client's model and its optimiser's state, during a round."""

    variables: Variables
    optimizer: Any


def model_alone(server: Any) -> ModelState:
    """Sends the model, and nothing else that the server keeps."""
    return ModelState(server.variables)


def all_of_it(server: Any) -> Any:
    """Sends the server state as it is."""
    return server


def fresh(optimizer: optax.GradientTransformation, message: Any, client: Any) -> Local:
    """y = x, with fresh statistics."""
    return Local(message.variables, optimizer.init(message.variables.params))


def as_sent(message: Any, client: Any) -> Local:
    """y = x, with the statistics (or a schedule's count) that the server sent."""
    return Local(message.variables, message.optimizer)


@constructor
def local_training(
    optimizer: optax.GradientTransformation,
    *,
    server_step: Callable[..., Any],
    init: Callable[..., Any] = ModelState,
    init_client: Callable[..., Any] = no_client_state,
    broadcast: Callable[..., Any] = model_alone,
    start: Callable[..., Any] | None = None,
    direction: Callable[..., Any] | None = None,
    upload: Callable[..., Any] | None = None,
    receive: Callable[..., Any] | None = None,
    probe: Callable[..., Any] | None = None,
) -> Algorithm:
    """An algorithm whose clients take K steps of an optimiser: say what differs from FedAvg.

    Functions with hyperparameters are `Partial`s of functions of a module, as for `Algorithm`.

    Args:
      optimizer: the clients' optimiser. Without `start` its statistics move, afresh in every round.
      server_step: (server state, mean contribution, situation) -> server state.
      init: variables -> server state; the model alone by default.
      init_client: variables -> a client's persistent state; none by default.
      broadcast: server state -> message; the model alone by default.
      start: (message, client state) -> local state with the fields `variables` and `optimizer`. Where it
        is given, the optimiser is used as it is.
      direction: (gradient, local state, context) -> what the optimiser is handed; by default the
        gradient.
      upload: (y - x, local state, context) -> (upload, client state); y - x by default.
      receive: (upload, num_steps) -> contribution, as for `Algorithm`.
      probe: (message, client state, probe data) -> report, as for `Algorithm`.

    Returns:
      An `Algorithm`.

    Example:
      FedAvg, whose server takes half of the step:

      >>> import fedjax_opt as fo
      >>> def server_step(server, mean, situation):
      ...     return server._replace(variables=fo.core.move(server.variables, mean, 0.5))
      >>> algorithm = fo.local_training(fo.optimizers.sgd(0.1), server_step=server_step)
    """
    if start is None:
        optimizer = local_form(optimizer)
        start = Partial(fresh, optimizer)
    return Algorithm(
        init=init,
        init_client=init_client,
        broadcast=broadcast,
        probe=probe,
        start=start,
        step=Partial(_step, optimizer, as_partial(direction)),
        finish=Partial(_finish, as_partial(upload)),
        receive=receive,
        server_step=server_step,
    )


def _step(optimizer, direction, local, objective, batch, context: Context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    if direction is not None:
        gradient = direction(gradient, local, context)
    return descend(optimizer, local, gradient, evaluation, context), evaluation


def descend(
    optimizer: Any, local: Any, gradient: Any, evaluation: Evaluation, context: Context
) -> Any:
    """The local state after one step of the optimiser along a gradient, corrected or not."""
    params, statistics = local.variables.params, _with_own_keys(local.optimizer, context)
    updates, statistics = optimizer.update(gradient, statistics, params)
    variables = Variables(optax.apply_updates(params, updates), evaluation.state)
    return local._replace(variables=variables, optimizer=statistics)


def _with_own_keys(statistics: Any, context: Context) -> Any:
    """Statistics in whose first step each key becomes the client's own in this round.

    An optimiser's key is the same wherever it starts: noise drawn from it would not average out.
    """

    def own(leaf):
        if not jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            return leaf
        key: Any = context.key
        bits = jax.random.bits(jax.random.fold_in(key, _OPTIMIZERS), dtype=jnp.uint32)
        folded = jax.vmap(jax.random.fold_in, in_axes=(0, None))(leaf.reshape(-1), bits)
        return jnp.where(context.step == 0, folded.reshape(leaf.shape), leaf)

    return jax.tree.map(own, statistics)


def _finish(upload, local, context: Context):
    delta = difference(local.variables, get_variables(context.message))
    return (delta, ()) if upload is None else upload(delta, local, context)


def averaged(eta: chex.Numeric, server: ModelState, mean: Variables, situation: Situation) -> Any:
    """The server step x+ = x + eta mean(y - x)."""
    return ModelState(move(server.variables, mean, eta))
