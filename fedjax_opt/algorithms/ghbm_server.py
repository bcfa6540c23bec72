"""GHBM on the server: FedAvg's clients, heavy-ball momentum over the last tau rounds on the server.

    local    y <- y - eta g
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x) + (beta / tau) (x_t - x_{t-tau})

with no momentum while there is no x_{t-tau}. With tau = 1 it is FedAvgM.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Equation 6.
"""

from typing import Any

import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import ModelState, finish, start, step
from fedjax_opt.algorithms.ghbm import init_with_past, push
from fedjax_opt.core import Algorithm, StaticInt, checks, move, no_client_state
from fedjax_opt.optimizers.triple import local_form


def ghbm_server(
    optimizer: optax.GradientTransformation,
    tau: int,
    beta: Any = 0.9,
    server_learning_rate: Any = 1.0,
) -> Algorithm:
    """GHBM on the server: `x+ = x + eta_s mean(y - x) + (beta / tau) (x_t - x_{t-tau})`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      tau: over how many rounds the momentum looks back, a Python int.
      beta: the weight of the momentum, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.ghbm_server(fo.optimizers.sgd(0.1), tau=10, beta=0.9)

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024.
    """
    tau = checks.integer("tau", tau, low=1)
    beta = checks.number("beta", beta, low=0.0)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    return Algorithm(
        init=Partial(init_with_past, StaticInt(tau)),
        init_client=no_client_state,
        broadcast=_broadcast,
        start=Partial(start, optimizer),
        step=Partial(step, optimizer),
        finish=finish,
        server_step=Partial(_server_step, beta, server_learning_rate),
    )


def _broadcast(server):
    return ModelState(server.variables)


def _server_step(beta, server_learning_rate, server, aggregate, situation):
    del situation
    moved = move(server.variables, aggregate, server_learning_rate)
    return server.remember(push(moved, beta, server.momentum))
