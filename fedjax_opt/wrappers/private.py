"""Private leaves: parts of the model that never leave their client (MTFL's patches).

A private leaf, with its optimiser statistics, is a federation of one: its client takes for it the
step that the server takes for the leaves that are shared, with its own upload in place of the mean.

    message     shared leaves come from the server, private ones from the client's patch
    upload      shared leaves only
    patch+      the private part of server_step(patch, own upload)

Chosen leaves may be parameters (batch-norm scale and bias, a last layer) or non-trainable state (batch
statistics). On the server they are holes (None): they cost nothing to send or to keep.

Reference:
  Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
  computing. IEEE Transactions on Parallel and Distributed Systems, 2022.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import (
    Algorithm,
    Facts,
    Uniform,
    Variables,
    get_variables,
    set_variables,
)
from fedjax_opt.wrappers.paths import matcher


class Server(NamedTuple):
    """The wrapped algorithm's server state with holes, and the initial values that fill them."""

    inner: Any
    initial: Variables

    @property
    def variables(self) -> Variables:
        """The global model; private leaves have the values with which every client starts."""
        return _fill(get_variables(self.inner), self.initial)

    def with_variables(self, variables: Variables) -> "Server":
        """The same with another global model."""
        holes = get_variables(self.inner)
        shared = jax.tree.map(
            lambda hole, x: None if hole is None else x, holes, variables, is_leaf=_none
        )
        return self._replace(inner=set_variables(self.inner, shared))


class Client(NamedTuple):
    """The wrapped algorithm's client state, and the private part of a server state."""

    inner: Any
    patch: Any


class Local(NamedTuple):
    """The wrapped algorithm's local state, and the message with its holes filled."""

    inner: Any
    message: Any


def private(
    algorithm: Algorithm, where: str | Sequence[str] | Callable[[str, Any], bool]
) -> Algorithm:
    """Keeps chosen leaves of the model, and their optimiser statistics, with each client.

    Args:
      algorithm: any algorithm whose server step treats leaves separately.
      where: which leaves: a pattern on the path of a leaf such as 'params/dense/kernel' or
        'state/batch_stats/BatchNorm_0/mean' (`*` within a name, `**` across names, `{a,b}` for
        either), several patterns, or a function of (path, leaf).

    Returns:
      The algorithm, whose clients keep their patch between rounds. Clients that join late start from
      the initial values.

    Example:
      MTFL with private batch-norm scales and biases, around FedAvg:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.private(
      ...     fo.fedavg(fo.optimizers.sgd(0.1)), where="params/**/BatchNorm_*/{scale,bias}"
      ... )

      Batch statistics that stay at home:

      >>> algorithm = fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where="state/**")

    Reference:
      Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
      computing. 2022.
    """
    chosen = Partial(matcher(where))
    return Algorithm(
        init=Partial(_init, algorithm, chosen),
        init_client=Partial(_init_client, algorithm, chosen),
        broadcast=Partial(_broadcast, algorithm),
        probe=None if algorithm.probe is None else Partial(_probe, algorithm, chosen),
        start=Partial(_start, algorithm, chosen),
        step=Partial(_step, algorithm),
        finish=Partial(_finish, algorithm, chosen),
        receive=algorithm.receive,
        server_step=Partial(_server_step, algorithm),
        personal=Partial(_personal, algorithm, chosen),
    )


def _init(algorithm, chosen, variables):
    shared, own = _split(variables, variables, chosen)
    if not jax.tree.leaves(own):
        paths = [_path(p) for p, _ in jax.tree_util.tree_leaves_with_path(variables)]
        raise ValueError(f"where matches no leaf of the model; its leaves are {', '.join(paths)}.")
    if not jax.tree.leaves(shared):
        raise ValueError("where matches every leaf of the model: nothing is left to be shared.")
    return Server(algorithm.init(shared), own)


def _init_client(algorithm, chosen, variables):
    _, patch = _split(algorithm.init(variables), variables, chosen)
    return Client(algorithm.init_client(variables), patch)


def _broadcast(algorithm, server):
    return algorithm.broadcast(server.inner)


def _own_server(algorithm, message, client):
    """A server state of this client alone: right in its private leaves, which are all that is used."""
    variables = _fill(get_variables(message), get_variables(client.patch))
    return _fill(client.patch, algorithm.init(variables)), variables


def _full_message(algorithm, chosen, message, client):
    server, variables = _own_server(algorithm, message, client)
    _, own = _split(algorithm.broadcast(server), variables, chosen)
    return _fill(message, own)


def _personal(algorithm, chosen, message, client):
    full = _full_message(algorithm, chosen, message, client)
    if algorithm.personal is not None:
        return algorithm.personal(full, client.inner)
    return get_variables(full)


def _probe(algorithm, chosen, message, client, probe_data):
    message = _full_message(algorithm, chosen, message, client)
    return algorithm.probe(message, client.inner, probe_data)


def _start(algorithm, chosen, message, client):
    full = _full_message(algorithm, chosen, message, client)
    return Local(algorithm.start(full, client.inner), full)


def _inside(context, local):
    return context._replace(message=local.message, client=context.client.inner)


def _step(algorithm, local, objective, batch, context):
    inner, evaluation = algorithm.step(local.inner, objective, batch, _inside(context, local))
    return Local(inner, local.message), evaluation


def _finish(algorithm, chosen, local, context):
    upload, inner_client = algorithm.finish(local.inner, _inside(context, local))
    contribution = upload
    if algorithm.receive is not None:
        contribution = algorithm.receive(upload, context.num_steps)
    contribution = jax.tree.map(
        lambda node: node.value if isinstance(node, Uniform) else node,
        contribution,
        is_leaf=lambda node: isinstance(node, Uniform),
    )
    server, variables = _own_server(algorithm, context.message, context.client)
    steps = context.num_steps.astype(jnp.result_type(float))
    facts = Facts(context.own_report, steps, jnp.ones_like(steps), context.round)
    stepped = algorithm.server_step(server, contribution, facts)
    _, patch = _split(stepped, variables, chosen)
    shared, _ = _split(upload, variables, chosen)
    return shared, Client(inner_client, patch)


def _server_step(algorithm, server, aggregate, facts):
    return server._replace(inner=algorithm.server_step(server.inner, aggregate, facts))


def _none(node: Any) -> bool:
    return node is None


def _fill(tree: Any, other: Any) -> Any:
    """The tree with its holes filled from another."""
    return jax.tree.map(lambda a, b: b if a is None else a, tree, other, is_leaf=_none)


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _split(tree: Any, variables: Variables, chosen: Callable[[str, Any], bool]) -> tuple[Any, Any]:
    """(shared, private) parts of any tree made of models and of trees shaped like the parameters."""
    mask = jax.tree_util.tree_map_with_path(lambda path, x: chosen(_path(path), x), variables)
    like_params = jax.tree.structure(variables.params)

    def is_part(node):
        return isinstance(node, Variables) or jax.tree.structure(node) == like_params

    def mask_of(node):
        if isinstance(node, Variables):
            return _variables_mask(node, mask, like_params)
        if jax.tree.structure(node) == like_params:
            return mask.params
        return jax.tree.map(lambda _: False, node)

    masks = jax.tree.map(mask_of, tree, is_leaf=is_part)
    shared = jax.tree.map(lambda own, x: None if own else x, masks, tree)
    own = jax.tree.map(lambda own, x: x if own else None, masks, tree)
    return shared, own


def _variables_mask(node: Variables, mask: Variables, like_params: Any) -> Variables:
    """A model's mask; statistics that ride along in its state are split as the parameters are."""
    if jax.tree.structure(node.state) == jax.tree.structure(mask.state):
        return mask

    def is_part(part):
        structure = jax.tree.structure(part)
        return structure == like_params or structure == jax.tree.structure(mask.state)

    def mask_of(part):
        structure = jax.tree.structure(part)
        if structure == like_params:
            return mask.params
        if structure == jax.tree.structure(mask.state):
            return mask.state
        return jax.tree.map(lambda _: False, part)

    return Variables(mask.params, jax.tree.map(mask_of, node.state, is_leaf=is_part))
