"""One adaptor for wrappers whose states hold those of the algorithm that they wrap.

A wrapper that keeps something of its own beside a state of the algorithm makes a type of it, with
the wrapped state in the field `inner`. `nested` gives every function of the algorithm its own
`inner` to read, and puts what it returns back in the same place: a wrapper forwards nothing by
hand, and a function that joins the contract later is forwarded here.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, Context
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.calls import constructor

_Maker = Callable[..., Any] | None


@jax.tree_util.register_static
class _Parts(frozenset):
    """Which states hold the algorithm's in `inner`."""

    def inside(self, name: str, value: Any) -> Any:
        """What the algorithm knows of a value."""
        if isinstance(value, Context):
            message = self.inside("message", value.message)
            return value._replace(message=message, client=self.inside("client", value.client))
        return value.inner if name in self else value

    def back(self, name: str, outer: Any, inner: Any) -> Any:
        """The value with what the algorithm made of its inside."""
        return outer._replace(inner=inner) if name in self else inner


@constructor
def nested(
    algorithm: Algorithm,
    *,
    server: _Maker = None,
    message: _Maker = None,
    client: _Maker = None,
    local: _Maker = None,
    upload: _Maker = None,
) -> Algorithm:
    """The algorithm with states of a wrapper around its own.

    Each argument makes the wrapper's value (a NamedTuple with a field `inner`) of the algorithm's,
    and of what the function that returned that was given: (inner, *arguments). None leaves that one
    as it is. Functions with hyperparameters are `Partial`s. Replace what else differs, around the
    functions that come back: they take and return the wrapper's values.

    Args:
      algorithm: any algorithm.
      server: (inner, variables) -> server state, of what `init` returns.
      message: (inner, server state) -> message, of what `broadcast` returns.
      client: (inner, variables) -> a client's state, of what `init_client` returns.
      local: (inner, message, client state) -> local state, of what `start` returns.
      upload: (inner, local state, context) -> upload, of what `finish` returns; the server's step then
        reads `inner` of the mean.

    Returns:
      The algorithm, whose functions read and write `inner`.

    Example:
      The server counts its rounds:

      >>> from typing import Any, NamedTuple
      >>> from jax.tree_util import Partial
      >>> import fedjax_opt as fo
      >>> class Counted(NamedTuple):
      ...     inner: Any
      ...     rounds: Any
      >>> def first(inner, variables):
      ...     return Counted(inner, 0)
      >>> def server_step(step, server, mean, situation):
      ...     return step(server, mean, situation)._replace(rounds=server.rounds + 1)
      >>> around = fo.nested(fo.fedavg(fo.optimizers.sgd(0.1)), server=first)
      >>> algorithm = around._replace(server_step=Partial(server_step, around.server_step))
    """
    made = {"server": server, "message": message, "client": client, "local": local}
    made = {name: as_partial(make) for name, make in made.items() if make is not None}
    parts = _Parts(made if upload is None else {*made, "upload"})
    functions = {
        name: function if not parts & kinds else Partial(through, parts, function)
        for name, (kinds, through) in _FUNCTIONS.items()
        if (function := getattr(algorithm, name)) is not None
    }
    for name, part in _MAKERS.items():
        if part in made:
            functions[name] = Partial(_made, made[part], functions[name])
    if upload is not None:
        functions["finish"] = Partial(_made_upload, as_partial(upload), functions["finish"])
    return algorithm._replace(**functions)


def _made(make, function, *arguments):
    return make(function(*arguments), *arguments)


def _made_upload(make, finish, local, context):
    inner, client = finish(local, context)
    return make(inner, local, context), client


def _broadcast(parts, broadcast, server):
    return broadcast(parts.inside("server", server))


def _probe(parts, probe, message, client, probe_data):
    return probe(parts.inside("message", message), parts.inside("client", client), probe_data)


def _start(parts, start, message, client):
    return start(parts.inside("message", message), parts.inside("client", client))


def _step(parts, step, local, objective, batch, context):
    inside, context = parts.inside("local", local), parts.inside("context", context)
    inner, evaluation = step(inside, objective, batch, context)
    return parts.back("local", local, inner), evaluation


def _finish(parts, finish, local, context):
    upload, client = finish(parts.inside("local", local), parts.inside("context", context))
    return upload, parts.back("client", context.client, client)


def _receive(parts, receive, upload, num_steps):
    return parts.back("upload", upload, receive(parts.inside("upload", upload), num_steps))


def _server_step(parts, server_step, server, mean, situation):
    inside, mean = parts.inside("server", server), parts.inside("upload", mean)
    return parts.back("server", server, server_step(inside, mean, situation))


def _personal(parts, personal, server, client):
    return personal(parts.inside("server", server), parts.inside("client", client))


# Of each function: what it reads or writes, and how.
_FUNCTIONS = {
    "init": (frozenset(), None),
    "init_client": (frozenset(), None),
    "broadcast": ({"server"}, _broadcast),
    "probe": ({"message", "client"}, _probe),
    "start": ({"message", "client"}, _start),
    "step": ({"local", "message", "client"}, _step),
    "finish": ({"local", "message", "client"}, _finish),
    "receive": ({"upload"}, _receive),
    "server_step": ({"server", "upload"}, _server_step),
    "personal": ({"server", "client"}, _personal),
}
_MAKERS = {"init": "server", "broadcast": "message", "init_client": "client", "start": "local"}
