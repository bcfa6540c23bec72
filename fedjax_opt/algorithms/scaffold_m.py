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

from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedavg import descend, same_message
from fedjax_opt.algorithms.fedcm import mix
from fedjax_opt.algorithms.scaffold import Local, add_to_mean, finish, init_client, upload_control
from fedjax_opt.core import Algorithm, Uniform, Variables, checks, difference, move, trees
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, c (the mean of all c_i), the direction d, and a schedule's count."""

    variables: Variables
    control: Any
    direction: Any
    optimizer: Any

    @property
    def gradient_estimate(self) -> Any:
        """d, a mean of gradients."""
        return self.direction


class Contribution(NamedTuple):
    """What the server averages: y - x, that divided by the client's own K, the change of c_i."""

    delta: Variables
    delta_per_step: Any
    control_change: Uniform


def scaffold_m(optimizer: Triple, beta: Any = 0.1, server_learning_rate: Any = 1.0) -> Algorithm:
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

    Reference:
      Cheng, Huang, Wu, Yuan. Momentum benefits non-IID federated learning simply and provably. 2024.
    """
    optimizer = inversion.check_plain(optimizer, "SCAFFOLD-M")
    beta = checks.number("beta", beta, low=0.0, open_low=True, high=1.0)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    by_displacement = inversion.is_sgd(optimizer)
    return Algorithm(
        init=Partial(_init, optimizer),
        init_client=init_client,
        broadcast=same_message,
        start=_start if by_displacement else _start_with_mean,
        step=Partial(_step, optimizer, beta),
        finish=Partial(_finish_by_displacement, optimizer, beta) if by_displacement else finish,
        server_step=Partial(_server_step, optimizer, server_learning_rate),
        receive=_receive,
    )


def _init(optimizer, variables):
    zero = trees.zeros_like(variables.params)
    return Server(variables, zero, zero, inversion.init_plain(optimizer, variables.params))


def _start(message, client):
    del client
    return Local(message.variables, message.optimizer, None)


def _start_with_mean(message, client):
    local = _start(message, client)
    return local._replace(mean_gradient=trees.zeros_like(message.variables.params))


def _step(optimizer, beta, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    if local.mean_gradient is not None:
        local = add_to_mean(local, gradient, context)
    # What is the same in all steps stands together, so that the compiler takes it out of the loop.
    correction = trees.subtract(context.message.control, context.client.control)
    constant = mix(beta, correction, context.message.direction)
    mixed = trees.add_scaled(constant, beta, gradient)
    return descend(optimizer, local, mixed, evaluation), evaluation


def _finish_by_displacement(optimizer, beta, local, context):
    """For plain SGD (x - y) / (eta K) is the mean of beta (g - c_i + c) + (1 - beta) d."""
    message = context.message
    delta = difference(local.variables, message.variables)
    per_step = inversion.per_step(delta, context.num_steps).delta_per_step
    used = inversion.mean_gradient(optimizer, local.optimizer, per_step)
    corrected = trees.scale(1 / beta, trees.add_scaled(used, beta - 1, message.direction))
    correction = trees.subtract(message.control, context.client.control)
    return upload_control(delta, trees.subtract(corrected, correction), context)


def _receive(upload, num_steps):
    divided = inversion.per_step(upload.delta, num_steps)
    return Contribution(upload.delta, divided.delta_per_step, upload.control_change)


def _server_step(optimizer, server_learning_rate, server, aggregate, situation):
    direction = inversion.mean_gradient(optimizer, server.optimizer, aggregate.delta_per_step)
    return Server(
        move(server.variables, aggregate.delta, server_learning_rate),
        trees.add_scaled(server.control, situation.participation, aggregate.control_change),
        direction,
        optimizer.track(direction, server.optimizer, server.variables.params),
    )
