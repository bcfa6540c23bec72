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
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form
from fedjax_opt.wrappers.nested import nested


class Server(NamedTuple):
    """The wrapped algorithm's server state, and the optimiser's."""

    inner: Any
    optimizer: Any


@constructor
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
    """
    optimizer = local_form(optimizer)
    beside = nested(algorithm, server=Partial(_with_optimizer, optimizer))
    return beside._replace(
        broadcast=Partial(_broadcast, beside.broadcast),
        server_step=Partial(_server_step, beside.server_step, optimizer),
    )


def _with_optimizer(optimizer, inner, variables):
    return Server(inner, optimizer.init(variables.params))


def _broadcast(broadcast, server):
    message = broadcast(server)
    if not jax.tree.leaves(message):
        raise ValueError(
            "server_optimizer needs an algorithm whose server moves a model and sends it; this one, as"
            " independent training, sends nothing."
        )
    return message


def _server_step(server_step, optimizer, server, mean, situation):
    x = get_variables(server).params
    stepped = server_step(server, mean, situation)
    proposed = get_variables(stepped)
    pseudo_gradient = trees.subtract(x, proposed.params)
    updates, state = optimizer.update(pseudo_gradient, server.optimizer, x)
    moved = proposed._replace(params=optax.apply_updates(x, updates))
    return set_variables(stepped, moved)._replace(optimizer=state)
