"""A server optimiser around any algorithm: AdaptiveFedOpt's idea, not only for FedAvg.

    x'  = what the algorithm's own server step would make of x
    x+  = x - U(x - x')            with U an optimiser whose state lives on the server

The pseudo-gradient x - x' is what the optimiser sees. Non-trainable state moves as the algorithm says.

Reference:
  Reddi et al. Adaptive federated optimization. ICLR 2021.
"""

from typing import Any, NamedTuple

import jax
import optax
from jax.tree_util import Partial

from fedjax_opt.core import Algorithm, get_variables, set_variables, trees
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The wrapped algorithm's server state, and the optimiser's."""

    inner: Any
    optimizer: Any


def server_optimizer(algorithm: Algorithm, optimizer: optax.GradientTransformation) -> Algorithm:
    """Takes the server's step with an optimiser: `x+ = x - U(-(mean of y_i - x))`.

    Args:
      algorithm: any algorithm whose server has a model to send; its own server learning rate scales the
        pseudo-gradient.
      optimizer: a triple (its statistics move once per round) or any optax transformation.

    Returns:
      The algorithm with the optimiser on its server.

    Example:
      SCAFFOLD on the clients, Adam on the server:

      >>> import fedjax_opt as fo
      >>> scaffold = fo.scaffold(fo.optimizers.sgd(0.1))
      >>> algorithm = fo.server_optimizer(scaffold, fo.optimizers.adam(0.01))

    Reference:
      Reddi et al. Adaptive federated optimization. ICLR 2021.
    """
    optimizer = local_form(optimizer)
    personal = algorithm.personal
    return algorithm._replace(
        init=Partial(_init, algorithm.init, optimizer),
        broadcast=Partial(_broadcast, algorithm.broadcast),
        server_step=Partial(_server_step, algorithm.server_step, optimizer),
        personal=None if personal is None else Partial(_personal, personal),
    )


def _init(inner, optimizer, variables):
    return Server(inner(variables), optimizer.init(variables.params))


def _broadcast(inner, server):
    message = inner(server.inner)
    if not jax.tree.leaves(message):
        raise ValueError(
            "server_optimizer needs an algorithm whose server moves a model and sends it; this one, as"
            " independent training, sends nothing."
        )
    return message


def _personal(inner, server, client):
    return inner(server.inner, client)


def _server_step(inner, optimizer, server, aggregate, situation):
    old = get_variables(server.inner).params
    stepped = inner(server.inner, aggregate, situation)
    proposed = get_variables(stepped)
    pseudo_gradient = trees.subtract(old, proposed.params)
    updates, optimizer_state = optimizer.update(pseudo_gradient, server.optimizer, old)
    moved = proposed._replace(params=optax.apply_updates(old, updates))
    return Server(set_variables(stepped, moved), optimizer_state)
