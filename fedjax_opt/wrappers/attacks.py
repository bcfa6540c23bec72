"""Clients that send something else than what they found: to see what a defence is worth.

Each attack takes an algorithm and gives one back, in which chosen clients replace what they send: their
upload, and the report of their probe where the algorithm has one. They train as the others do, and keep
the state that they should. All other clients send, bit for bit, what they did before. The data's own
attack, labels that are wrong, is `fedjax_opt.data.with_flipped_labels`.

    sign_flip     u' = -scale u          drives the model back
    scaling       u' = factor u          drags a mean to where the attacker wants it
    nan_upload    u' = NaN               one of them is enough to end a run without a guard
    replaced      u' = f(u, key)         anything else

An attack goes around `compressed` to act on what the server decodes, or inside of it to be encoded.

References:
  Li, Xu, Chen, Giannakis, Ling. RSA: Byzantine-robust stochastic aggregation methods for distributed
  learning from heterogeneous datasets. AAAI 2019 (sign_flip).
  Bagdasaryan, Veit, Hua, Estrin, Shmatikov. How to backdoor federated learning. AISTATS 2020 (scaling).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, Coded, Kept, checks, trees
from fedjax_opt.core.calls import constructor


@constructor
def sign_flip(algorithm: Algorithm, clients: Any, scale: Any = 1.0) -> Algorithm:
    """Chosen clients upload the opposite of what they found: `-scale u`.

    Args:
      algorithm: any algorithm.
      clients: who attacks: ids, or bool `[N]`. It may be traced.
      scale: how much of it, positive; it may be traced.

    Returns:
      The algorithm under attack.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.attacks.sign_flip(fo.fedavg(fo.optimizers.sgd(0.1)), clients=[0, 7])
    """
    scale = checks.number("scale", scale, low=0.0, open_low=True)
    return _everywhere(algorithm, clients, Partial(_scaled, -1.0 * scale))


@constructor
def scaling(algorithm: Algorithm, clients: Any, factor: Any) -> Algorithm:
    """Chosen clients upload a multiple of what they found: `factor u`.

    Args:
      algorithm, clients: as for `sign_flip`.
      factor: any number; it may be traced. N makes one client's model replace the mean.

    Returns:
      The algorithm under attack.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.attacks.scaling(fo.fedavg(fo.optimizers.sgd(0.1)), [0], factor=100.0)
    """
    return _everywhere(algorithm, clients, Partial(_scaled, checks.number("factor", factor)))


@constructor
def nan_upload(algorithm: Algorithm, clients: Any) -> Algorithm:
    """Chosen clients upload NaN, in every entry.

    Args:
      algorithm, clients: as for `sign_flip`.

    Returns:
      The algorithm under attack.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.attacks.nan_upload(fo.fedavg(fo.optimizers.sgd(0.1)), clients=[3])
    """
    return _everywhere(algorithm, clients, Partial(_not_a_number))


@constructor
def replaced(
    algorithm: Algorithm, clients: Any, function: Any, report_function: Any = None
) -> Algorithm:
    """Chosen clients upload what a function makes of their upload: an attack of your own.

    Args:
      algorithm, clients: as for `sign_flip`.
      function: (upload, key) -> upload, of the same structure, shapes and dtypes; of a compressed
        upload it sees the value. The key is the client's own in this round.
      report_function: (report, key) -> report, the same for what a probe reports; None leaves it honest.

    Returns:
      The algorithm under attack.

    Example:
      Noise in place of an upload:

      >>> import jax
      >>> import fedjax_opt as fo
      >>> def noise(upload, key):
      ...     return jax.tree.map(lambda x: jax.random.normal(key, x.shape, x.dtype), upload)
      >>> algorithm = fo.attacks.replaced(fo.fedavg(fo.optimizers.sgd(0.1)), [1, 2], noise)
    """
    clients = checks.as_array("clients", _listed(clients))
    kind = jnp.result_type(clients)
    if jnp.ndim(clients) != 1 or not (
        jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.bool_)
    ):
        raise ValueError(
            "clients must be a list of ids or bool, one per client [N], got"
            f" {kind}{list(jnp.shape(clients))}."
        )
    clients = jnp.asarray(clients)
    function = _checked("function of (upload, key)", "function", function)
    attacked = algorithm._replace(finish=Partial(_finish, algorithm.finish, clients, function))
    if report_function is None:
        return attacked
    lie = _checked("function of (report, key) or None", "report_function", report_function)
    if algorithm.probe is None:
        raise ValueError("report_function must be None for an algorithm without a probe.")
    return attacked._replace(probe=Partial(_probe, algorithm.probe, clients, lie))


def _everywhere(algorithm: Algorithm, clients: Any, function: Partial) -> Algorithm:
    """What is sent is replaced by the same function, upload and report."""
    return replaced(algorithm, clients, function, function if algorithm.probe else None)


def _checked(what: str, name: str, function: Any) -> Partial:
    if not callable(function):
        raise ValueError(f"{name} must be a {what}, got {function!r}.")
    return function if isinstance(function, Partial) else Partial(function)


def _listed(clients: Any) -> Any:
    # An empty list would be of floats, and bools are no numbers to NumPy.
    if isinstance(clients, (list, tuple, set, range)):
        found = np.asarray(list(clients))
        return found if found.size else found.astype(np.int32)
    return clients


def _finish(finish, clients, function, local, context):
    upload, state = finish(local, context)
    return _sent(upload, context, 1, "function(upload, key)", clients, function), state


def _probe(probe, clients, function, message, client, probe_data):
    report = probe(message, client, probe_data)
    return _sent(report, probe_data, 2, "report_function(report, key)", clients, function)


def _sent(honest, who, number, name, clients, function):
    """What a client sends in place of what it found; `who` has its id and its key."""
    if who.id is None:  # shapes alone are asked for, by the costs of an upload
        return honest
    if isinstance(honest, Coded):
        return honest.changed(_sent(honest.inner, who, number, name, clients, function))
    if isinstance(honest, Kept):  # what stays at home is not sent
        shared = _sent(honest.shared, who, number, name, clients, function)
        return honest._replace(shared=shared)
    # Numbered apart from the keys with which a codec rounds and an honest probe draws.
    false = function(honest, jax.random.fold_in(who.key, number))
    checks.same_structure(name, false, honest, "what honest clients send")
    return trees.select(_attacks(clients, who.id), false, honest)


def _attacks(clients, client):
    """Whether a client is among those who attack."""
    if clients.dtype == bool:
        return clients[client]
    return jnp.any(clients == client.astype(clients.dtype))


def _scaled(factor, upload, key):
    return trees.scale(factor, upload)


def _not_a_number(upload, key):
    return jax.tree.map(
        lambda x: jnp.full_like(x, jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x, upload
    )
