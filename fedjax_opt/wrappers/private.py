"""Private leaves: parts of the model that never leave their client (MTFL's patches).

A private leaf, with its optimiser statistics, is a federation of one: its client takes for it the
step that the server takes for the leaves that are shared, with its own upload in place of the mean and
C = 1. In local steps all leaves are alike: an algorithm that reads C there (LocalGHBM) reads |S| / N.

    message     shared leaves come from the server, private ones from the client's patch
    upload      shared leaves only
    patch+      the private part of server_step(patch, own upload)

Chosen leaves may be parameters (batch-norm scale and bias, a last layer) or non-trainable state (batch
statistics). On the server they are holes (None): they cost nothing to send or to keep.

Reference:
  Mills, Hu, Min. Multi-task federated learning for personalised deep neural networks in edge
  computing. IEEE Transactions on Parallel and Distributed Systems, 2022.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import (
    Algorithm,
    Coded,
    Kept,
    Situation,
    Variables,
    get_variables,
    set_variables,
)
from fedjax_opt.core.calls import constructor
from fedjax_opt.core.paths import matcher
from fedjax_opt.engine.server import without_markers

_INSIDE = (
    "private goes inside of compressed: what stays at home is not sent, so a codec must not see it. Use"
    " compressed(private(algorithm, where), {})."
)


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


class _OwnReport(NamedTuple):
    """The private part of a report, and what the wrapped algorithm's probe keeps at home anyway."""

    private: Any
    kept: Any


@constructor
def private(
    algorithm: Algorithm, where: str | Sequence[str] | Callable[[str, Any], bool]
) -> Algorithm:
    """Keeps chosen leaves of the model, and their optimiser statistics, with each client.

    Args:
      algorithm: any algorithm whose server step treats leaves separately.
      where: which leaves: a pattern on the path of a leaf such as 'params/dense/kernel' or
        'state/batch_stats/BatchNorm_0/mean' (`*` within a name, `**` across names, `{a,b}` for
        either), several patterns, or a function of (path, leaf). No pattern at all, `()`, leaves the
        algorithm as it is; patterns that match no leaf are refused.

    Returns:
      The algorithm, whose clients keep their patch between rounds. Clients that join late start from
      the initial values. A schedule on the server counts, for private leaves, the rounds in which their
      client took part.

    Example:
      MTFL with private batch-norm scales and biases, around FedAvg:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.private(
      ...     fo.fedavg(fo.optimizers.sgd(0.1)), where="params/**/BatchNorm_*/{scale,bias}"
      ... )

      A server optimiser inside acts on private leaves, too, on their client; outside of `private` it
      acts on shared leaves alone, as the thesis's MTFL(FedAdam) has it:

      >>> algorithm = fo.server_optimizer(
      ...     fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where="state/**"), fo.optimizers.adam(0.01)
      ... )
    """
    if isinstance(where, Sequence) and not isinstance(where, str) and not where:
        return algorithm
    chosen = Partial(matcher(where))
    return algorithm._replace(
        init=Partial(_init, algorithm, chosen),
        init_client=Partial(_init_client, algorithm, chosen),
        broadcast=Partial(_broadcast, algorithm),
        probe=None if algorithm.probe is None else Partial(_probe, algorithm, chosen),
        start=Partial(_start, algorithm, chosen),
        step=Partial(_step, algorithm),
        finish=Partial(_finish, algorithm, chosen),
        server_step=Partial(_server_step, algorithm),
        personal=Partial(_personal, algorithm),
    )


def _init(algorithm, chosen, variables):
    _check_inside(algorithm, variables)
    shared, own = _split(variables, variables, chosen)
    if not jax.tree.leaves(own):
        paths = [_path(p) for p, _ in jax.tree_util.tree_leaves_with_path(variables)]
        raise ValueError(f"where matches no leaf of the model; its leaves are {', '.join(paths)}.")
    if not jax.tree.leaves(shared):
        raise ValueError("where matches every leaf of the model: nothing is left to be shared.")
    return Server(algorithm.init(shared), own)


def _check_inside(algorithm, variables):
    """Refuses what must not stand inside."""
    server = jax.eval_shape(algorithm.init, variables)
    if isinstance(jax.eval_shape(algorithm.broadcast, server), Coded):
        raise ValueError(_INSIDE.format("download=codec"))
    while hasattr(server, "inner"):
        if isinstance(server, Server):
            raise ValueError(
                "private goes around an algorithm once: name all that stays at home together, as in"
                " private(algorithm, where=[one, another])."
            )
        server = server.inner


def _init_client(algorithm, chosen, variables):
    _, patch = _split(algorithm.init(variables), variables, chosen)
    return Client(algorithm.init_client(variables), patch)


def _broadcast(algorithm, server):
    return algorithm.broadcast(server.inner)


def _own_server(algorithm, message, client):
    """A server state of this client alone: right in its private leaves, which are all that is used."""
    variables = _fill(get_variables(message), get_variables(client.patch))
    server = _fill(client.patch, algorithm.init(variables))
    return _as_in_message(server, message), variables


def _as_in_message(server, message):
    """What the server sent stands above the client's copy: a schedule's count is the server's."""
    if _structure(server) == _structure(message):
        return _fill(message, server)
    if hasattr(server, "inner"):
        return server._replace(inner=_as_in_message(server.inner, message))
    return server


def _full_message(algorithm, chosen, message, client):
    server, variables = _own_server(algorithm, message, client)
    _, own = _split(algorithm.broadcast(server), variables, chosen)
    return _fill(message, own)


def _personal(algorithm, server, client):
    own = _fill(server.inner, client.patch)
    if algorithm.personal is not None:
        return algorithm.personal(own, client.inner)
    return get_variables(own)


def _probe(algorithm, chosen, message, client, probe_data):
    full = _full_message(algorithm, chosen, message, client)
    report = algorithm.probe(full, client.inner, probe_data)
    kept = None
    if isinstance(report, Kept):
        report, kept = report
    shared, own = _split(report, get_variables(full), chosen)
    return Kept(shared, _OwnReport(own, kept))


def _start(algorithm, chosen, message, client):
    full = _full_message(algorithm, chosen, message, client)
    return Local(algorithm.start(full, client.inner), full)


def _inside(context, local):
    """The context as the wrapped algorithm knows it, with every hole filled by the client's own."""
    report, own = context.report, context.own_report
    if isinstance(own, Kept):
        private_part, kept = own.own
        report, own = _fill(report, private_part), _fill(own.shared, private_part)
        own = own if kept is None else Kept(own, kept)
    inner = context.client.inner
    return context._replace(message=local.message, client=inner, report=report, own_report=own)


def _step(algorithm, local, objective, batch, context):
    inner, evaluation = algorithm.step(local.inner, objective, batch, _inside(context, local))
    return Local(inner, local.message), evaluation


def _finish(algorithm, chosen, local, context):
    inside = _inside(context, local)
    upload, inner_client = algorithm.finish(local.inner, inside)
    if isinstance(upload, Coded):
        raise ValueError(_INSIDE.format("upload=codec"))
    receive = algorithm.receive
    contribution = upload if receive is None else receive(upload, context.num_steps)
    server, variables = _own_server(algorithm, context.message, context.client)
    steps, report = context.num_steps.astype(jnp.result_type(float)), inside.own_report
    situation = Situation(
        context.round, context.key, num_clients=1, invited=1,
        report=report.shared if isinstance(report, Kept) else report,
        count=1, weight=jnp.ones_like(steps), num_steps=steps,
    )  # fmt: skip
    stepped = algorithm.server_step(server, without_markers(contribution), situation)
    _, patch = _split(stepped, variables, chosen)
    shared, _ = _split(upload, variables, chosen)
    return shared, Client(inner_client, patch)


def _server_step(algorithm, server, aggregate, situation):
    return server._replace(inner=algorithm.server_step(server.inner, aggregate, situation))


def _none(node: Any) -> bool:
    return node is None


def _fill(tree: Any, other: Any) -> Any:
    """The tree with its holes filled from another."""
    return jax.tree.map(lambda a, b: b if a is None else a, tree, other, is_leaf=_none)


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree, is_leaf=_none)


def _split(tree: Any, variables: Variables, chosen: Callable[[str, Any], bool]) -> tuple[Any, Any]:
    """(shared, own) parts of any tree made of models and of trees shaped like the parameters.

    What is neither (a schedule's count) belongs to both: the server goes on with its own, and a
    client's private leaves have theirs.
    """
    mask = jax.tree_util.tree_map_with_path(lambda path, x: bool(chosen(_path(path), x)), variables)
    masks = {jax.tree.structure(part): part for part in (mask.params, mask)}

    def part(private, node):
        own = masks.get(jax.tree.structure(node))
        if own is None:
            return node
        return jax.tree.map(lambda own, x: x if own == private else None, own, node)

    def is_part(node):
        return jax.tree.structure(node) in masks

    shared, own = (
        jax.tree.map(functools.partial(part, private), tree, is_leaf=is_part)
        for private in (False, True)
    )
    return shared, own
