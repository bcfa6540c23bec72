"""The Mime family: frozen statistics on the clients, tracked with gradients at the global model.

    probe    d_i = gradient of client i at x, over all of its data (MimeXlite: on one minibatch)
             c = sum_i w_i d_i
    local    y <- y - U(g, s)                        MimeLite, MimeXlite
             y <- y - U(g(y) - g(x) + c, s)          Mime: on the same minibatch; c goes to all
    upload   y - x (d_i went up with the probe)
    server   x+ = x + eta_s sum_i w_i (y_i - x),    s+ = T(c, s)

MimeMom is Mime with momentum: y - eta (beta m + g(y) - g(x) + c), m+ = beta m + c. MimeLiteMom is
MimeLite with the same one: y - eta (beta m + g(y)).

References:
  Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for
  cross-device federated learning. NeurIPS 2021. Algorithm 1.
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022 (MimeXlite).
"""

from typing import Any, NamedTuple

import chex
from jax.tree_util import Partial

from fedjax_opt.algorithms._inversion import check_plain, init_plain
from fedjax_opt.algorithms.fedgbo import check_triple
from fedjax_opt.algorithms.local_training import all_of_it, as_sent, descend, local_training
from fedjax_opt.algorithms.mfl import Server, init_with_statistics
from fedjax_opt.core import Algorithm, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Triple


@constructor
def mime(optimizer: Triple, server_learning_rate: chex.Numeric = 1.0) -> Algorithm:
    """Mime: `U(g(y) - g(x) + c, s)` in every local step, `s+ = T(c, s)` on the server.

    Args:
      optimizer: a `Triple`; its inverse is not needed.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state. Each local step takes two gradients.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mime(fo.optimizers.adam(0.01))
    """
    return mimelite(optimizer, server_learning_rate)._replace(step=Partial(_step, optimizer))


@constructor
def mimelite(optimizer: Triple, server_learning_rate: chex.Numeric = 1.0) -> Algorithm:
    """MimeLite: `U(g, s)` in every local step, `s+ = T(mean of full-batch gradients at x, s)`.

    Args:
      optimizer: a `Triple`; its inverse is not needed.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mimelite(fo.optimizers.sgdm(0.1, 0.9))
    """
    return _mimelite(_full_gradient, optimizer, server_learning_rate)


@constructor
def mimexlite(optimizer: Triple, server_learning_rate: chex.Numeric = 1.0) -> Algorithm:
    """MimeXlite: as `mimelite`, with the gradient of one minibatch for that of all data.

    Args:
      optimizer: a `Triple`; its inverse is not needed.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mimexlite(fo.optimizers.sgdm(0.1, 0.9))
    """
    return _mimelite(_minibatch_gradient, optimizer, server_learning_rate)


@constructor
def mimemom(
    optimizer: Triple,
    momentum: chex.Numeric = 0.9,
    server_learning_rate: chex.Numeric = 1.0,
    lite: bool = False,
) -> Algorithm:
    """MimeMom: `y <- y - eta (beta m + g(y) - g(x) + c)`, `m+ = beta m + c`.

    `mime` with `sgdm` is the same up to the scale of m and eta: that momentum is normalised. With
    `lite` it is MimeLiteMom, `y <- y - eta (beta m + g(y))`, as `mimelite` with `sgdm`.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it.
      momentum: beta, in [0, 1); 0 is `mime` (or `mimelite`) with SGD.
      server_learning_rate: eta_s, not negative.
      lite: whether local steps take g(y) alone: MimeLiteMom.

    Returns:
      An `Algorithm` with a probe and without client state. Each local step takes two gradients, one
      with `lite`.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mimemom(fo.optimizers.sgd(0.1), momentum=0.9)
    """
    optimizer = check_plain(optimizer, "MimeMom")
    beta = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    heavy_ball = Triple(
        init=Partial(_heavy_ball_init, optimizer),
        update=Partial(_heavy_ball_update, optimizer, beta),
        track=Partial(_heavy_ball_track, optimizer, beta),
    )
    return (mimelite if lite else mime)(heavy_ball, server_learning_rate)


def _mimelite(probe, optimizer, server_learning_rate):
    check_triple(optimizer)
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return local_training(
        optimizer,
        init=Partial(init_with_statistics, optimizer),
        broadcast=all_of_it,
        probe=probe,
        start=as_sent,
        server_step=Partial(_server_step, optimizer, eta),
    )


def _full_gradient(message, client, probe_data):
    return probe_data.full_gradient(message.variables)


def _minibatch_gradient(message, client, probe_data):
    return probe_data.minibatch_gradient(message.variables)


def _step(optimizer, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    # At x also in what is not trained: its state there is the one that was sent.
    at_x, _ = objective.gradient(context.message.variables, batch)
    corrected = trees.add(trees.subtract(gradient, at_x), context.report)
    return descend(optimizer, local, corrected, evaluation, context), evaluation


def _server_step(optimizer, eta, server, mean, situation):
    c, x = situation.report, server.variables
    return Server(move(x, mean, eta), optimizer.track(c, server.optimizer, x.params))


class HeavyBallStats(NamedTuple):
    """m, not normalised, and a schedule's count."""

    m: chex.ArrayTree
    optimizer: Any

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """m, a sum of gradients."""
        return self.m


def _heavy_ball_init(optimizer, params):
    return HeavyBallStats(trees.zeros_like(params), init_plain(optimizer, params))


def _heavy_ball_update(optimizer, beta, grads, stats, params=None):
    pushed = trees.add_scaled(grads, beta, stats.m)
    return optimizer.update(pushed, stats.optimizer, params)[0], stats


def _heavy_ball_track(optimizer, beta, grads, stats, params=None):
    m = trees.add_scaled(grads, beta, stats.m)
    return HeavyBallStats(m, optimizer.track(grads, stats.optimizer, params))
