"""MimeLite and MimeXlite: frozen statistics, tracked with gradients at the global model.

    probe    d_i = gradient of client i at x, over all of its data (X: on one minibatch)
    local    y <- y - U(g, s)
    upload   y - x (d_i went up with the probe)
    server   x+ = x + eta_s sum_i w_i (y_i - x),   s+ = T(sum_i w_i d_i, s)

References:
  Karimireddy et al. Breaking the centralized barrier for cross-device federated learning. NeurIPS
  2021 (MimeLite).
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022 (MimeXlite).
"""

from typing import Any

from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import finish, same_message, step
from fedjax_opt.algorithms.fedgbo import check_triple
from fedjax_opt.algorithms.mfl import Server, init_with_statistics, start_with_statistics
from fedjax_opt.core import Algorithm, checks, move, no_client_state
from fedjax_opt.optimizers import Triple


def mimelite(optimizer: Triple, server_learning_rate: Any = 1.0) -> Algorithm:
    """MimeLite: `s+ = T(mean of full-batch gradients at x, s)`.

    Args:
      optimizer: a `Triple`; its inverse is not needed.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mimelite(fo.optimizers.sgdm(0.1, 0.9))

    Reference:
      Karimireddy et al. Breaking the centralized barrier for cross-device federated learning. 2021.
    """
    return _mimelite(_full_gradient, optimizer, server_learning_rate)


def mimexlite(optimizer: Triple, server_learning_rate: Any = 1.0) -> Algorithm:
    """MimeXlite: as `mimelite`, with the gradient of one minibatch for that of all data.

    Args:
      optimizer: a `Triple`; its inverse is not needed.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mimexlite(fo.optimizers.sgdm(0.1, 0.9))

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2022.
    """
    return _mimelite(_minibatch_gradient, optimizer, server_learning_rate)


def _mimelite(probe, optimizer, server_learning_rate):
    check_triple(optimizer)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return Algorithm(
        init=Partial(init_with_statistics, optimizer),
        init_client=no_client_state,
        broadcast=same_message,
        probe=probe,
        start=start_with_statistics,
        step=Partial(step, optimizer),
        finish=finish,
        server_step=Partial(_server_step, optimizer, server_learning_rate),
    )


def _full_gradient(message, client, probe_data):
    del client
    return probe_data.full_gradient(message.variables)


def _minibatch_gradient(message, client, probe_data):
    del client
    return probe_data.minibatch_gradient(message.variables)


def _server_step(optimizer, server_learning_rate, server, aggregate, situation):
    return Server(
        move(server.variables, aggregate, server_learning_rate),
        optimizer.track(situation.report, server.optimizer, server.variables.params),
    )
