"""SCAFFOLD-M: SCAFFOLD's control variates, and momentum in every local step.

    local    y <- y - eta (beta (g - c_i + c) + (1 - beta) d)
    finish   c_i+ = mean of the local gradients g
    upload   y - x,  c_i+ - c_i
    server   x+ = x + eta_s sum_i w_i (y_i - x)
             c+ = c + C mean over the cohort of (c_i+ - c_i),  C = |S| / N
             d+ = sum_i w_i (x - y_i) / (eta K_i)

With beta = 1 it is SCAFFOLD (option II).

Reference:
  Cheng, Huang, Wu, Yuan. Momentum benefits non-IID federated learning simply and provably. ICLR 2024.
"""

from typing import Any, NamedTuple

import chex
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedcm import mix
from fedjax_opt.algorithms.local_training import all_of_it, as_sent, local_training
from fedjax_opt.algorithms.scaffold import correction, init_client, upload_control
from fedjax_opt.core import Algorithm, Uniform, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, c (the mean of all c_i), the direction d, and a schedule's count."""

    variables: Variables
    control: chex.ArrayTree
    direction: chex.ArrayTree
    optimizer: Any

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """d, a mean of gradients."""
        return self.direction


class Contribution(NamedTuple):
    """What the server averages: y - x, that divided by the client's own K, the change of c_i."""

    delta: Variables
    delta_per_step: chex.ArrayTree
    control_change: Uniform


@constructor
def scaffold_m(
    optimizer: Triple, beta: chex.Numeric = 0.1, server_learning_rate: chex.Numeric = 1.0
) -> Algorithm:
    """SCAFFOLD-M: `beta (g - c_i + c) + (1 - beta) d` in every local step.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it.
      beta: the weight of the corrected gradient, in (0, 1]; 1 is SCAFFOLD.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` whose clients keep their control variate.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.scaffold_m(fo.optimizers.sgd(0.1), beta=0.1)
    """
    optimizer = inversion.check_plain(optimizer, "SCAFFOLD-M")
    beta = checks.number("beta", beta, low=0.0, open_low=True, high=1.0)
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    tx, start, mean_direction = inversion.with_mean(optimizer, optimizer, as_sent)
    return local_training(
        tx,
        init=Partial(_init, optimizer),
        init_client=init_client,
        broadcast=all_of_it,
        start=start,
        direction=Partial(_direction, beta),
        upload=Partial(_upload, mean_direction, beta),
        receive=_receive,
        server_step=Partial(_server_step, optimizer, eta),
    )


def _init(optimizer, variables):
    zero = trees.zeros_like(variables.params)
    return Server(variables, zero, zero, inversion.init_plain(optimizer, variables.params))


def _direction(beta, gradient, local, context):
    # What is the same in all steps stands together, so that the compiler takes it out of the loop.
    constant = mix(beta, correction(context), context.message.direction)
    return trees.add_scaled(constant, beta, gradient)


def _upload(mean_direction, beta, delta, local, context):
    # The mean of beta (g - c_i + c) + (1 - beta) d, solved for that of g.
    used, d = mean_direction(delta, local, context), context.message.direction
    corrected = trees.each(lambda u, d, b: (u - (1 - b) * d) / b, used, d, b=beta)
    return upload_control(delta, trees.subtract(corrected, correction(context)), context)


def _receive(upload, num_steps):
    per_step = inversion.per_step(upload.delta, num_steps).delta_per_step
    return Contribution(upload.delta, per_step, upload.control_change)


def _server_step(optimizer, eta, server, mean, situation):
    d = inversion.mean_gradient(
        optimizer, server.optimizer, mean.delta_per_step, otherwise=server.direction
    )
    return Server(
        move(server.variables, mean.delta, eta),
        trees.add_scaled(server.control, situation.participation, mean.control_change),
        d,
        optimizer.track(d, server.optimizer, server.variables.params),
    )
