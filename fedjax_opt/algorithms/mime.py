"""Mime and MimeMom: local steps that mimic the server's optimiser on a variance-reduced gradient.

    probe    d_i = gradient of client i at x, over all of its data;   c = sum_i w_i d_i, sent to all
    local    y <- y - U(g(y) - g(x) + c, s)         both gradients on the same minibatch
    upload   y - x (d_i went up with the probe)
    server   x+ = x + eta_s sum_i w_i (y_i - x),    s+ = T(c, s)

MimeMom is Mime with momentum: y - eta (beta m + g(y) - g(x) + c), m+ = beta m + c.

Reference:
  Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh. Breaking the centralized barrier for
  cross-device federated learning. NeurIPS 2021. Algorithm 1.
"""

from typing import Any, NamedTuple

from jax.tree_util import Partial

from fedjax_opt.algorithms._inversion import check_plain, init_plain
from fedjax_opt.algorithms.fedavg import descend
from fedjax_opt.algorithms.mimelite import mimelite
from fedjax_opt.core import Algorithm, checks, trees
from fedjax_opt.optimizers import Triple


def mime(optimizer: Triple, server_learning_rate: Any = 1.0) -> Algorithm:
    """Mime: `U(g(y) - g(x) + c, s)` in every local step, `s+ = T(c, s)` on the server.

    Args:
      optimizer: a `Triple`; its inverse is not needed.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state. Each local step takes two gradients.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mime(fo.optimizers.adam(0.01))

    Reference:
      Karimireddy et al. Breaking the centralized barrier for cross-device federated learning. 2021.
    """
    return mimelite(optimizer, server_learning_rate)._replace(step=Partial(_step, optimizer))


def mimemom(optimizer: Triple, momentum: Any = 0.9, server_learning_rate: Any = 1.0) -> Algorithm:
    """MimeMom: `y <- y - eta (beta m + g(y) - g(x) + c)`, `m+ = beta m + c`.

    `mime` with `sgdm` is the same up to the scale of m and eta: that momentum is normalised.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it.
      momentum: beta, in [0, 1); 0 is `mime` with SGD.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` with a probe and without client state. Each local step takes two gradients.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mimemom(fo.optimizers.sgd(0.1), momentum=0.9)

    Reference:
      Karimireddy et al. Breaking the centralized barrier for cross-device federated learning. 2021.
    """
    optimizer = check_plain(optimizer, "MimeMom")
    momentum = checks.number("momentum", momentum, low=0.0, high=1.0, open_high=True)
    heavy_ball = Triple(
        init=Partial(_heavy_ball_init, optimizer),
        update=Partial(_heavy_ball_update, optimizer, momentum),
        track=Partial(_heavy_ball_track, optimizer, momentum),
        inverse=Partial(_heavy_ball_inverse, optimizer, momentum),
    )
    return mime(heavy_ball, server_learning_rate)


class HeavyBallStats(NamedTuple):
    """m, not normalised, and a schedule's count."""

    m: Any
    optimizer: Any

    @property
    def gradient_estimate(self) -> Any:
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


def _heavy_ball_inverse(optimizer, beta, old_params, new_params, stats, num_steps):
    used = optimizer.inverse(old_params, new_params, stats.optimizer, num_steps)
    return trees.add_scaled(used, -beta, stats.m)


def _step(optimizer, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    # At x also in what is not trained: its state there is the one that was sent.
    at_x, _ = objective.gradient(context.message.variables, batch)
    corrected = trees.add(trees.subtract(gradient, at_x), context.report)
    return descend(optimizer, local, corrected, evaluation), evaluation
