"""SCAFFOLD: control variates that cancel the drift of each client.

    local    y <- y - eta (g - c_i + c)
    finish   c_i+ = gradient of client i at x over all its data     (option I)
             c_i+ = mean of the local gradients g                   (option II)
    upload   y - x,  c_i+ - c_i
    server   x+ = x + eta_s sum_i w_i (y_i - x)
             c+ = c + C mean over the cohort of (c_i+ - c_i),  C = |S| / N

For plain SGD option II is c_i - c + (x - y) / (K eta), as the paper prints it, and needs no sum of
gradients; for any other local optimiser the mean is taken step by step. The mean for c is uniform,
whatever the weights: c stays the average of all c_i.

Reference:
  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for
  federated learning. ICML 2020. Algorithm 1.
"""

from typing import Any, NamedTuple

import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedavg import descend, same_message
from fedjax_opt.core import Algorithm, Kept, Uniform, Variables, checks, difference, move, trees
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The model and c, the average of all clients' control variates."""

    variables: Variables
    control: Any

    @property
    def gradient_estimate(self) -> Any:
        """c, a mean of gradients."""
        return self.control


class Client(NamedTuple):
    """c_i, zero until the client first takes part."""

    control: Any


class Local(NamedTuple):
    """The local model, its optimiser, and the mean local gradient so far (None if it is not needed)."""

    variables: Variables
    optimizer: Any
    mean_gradient: Any


class Upload(NamedTuple):
    """y - x and the change of c_i."""

    delta: Variables
    control_change: Uniform


def scaffold(
    optimizer: optax.GradientTransformation, option: int = 2, server_learning_rate: Any = 1.0
) -> Algorithm:
    """SCAFFOLD: local gradients corrected by `c - c_i`.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`; SGD in the paper. Weight decay and clipping
        in front of it act on the corrected gradient, and stay out of the control variates.
      option: 1, where c_i is the full-batch gradient at x (a probe), or 2, where it is the mean of
        the local gradients, at no cost.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` whose clients keep their control variate.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.scaffold(fo.optimizers.sgd(0.1), option=2)

    Reference:
      Karimireddy et al. SCAFFOLD: stochastic controlled averaging for federated learning. 2020.
    """
    if option not in (1, 2):
        raise ValueError(f"option must be 1 or 2, got {option!r}.")
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    by_displacement = option == 2 and inversion.is_sgd(optimizer)
    finish_here = Partial(_finish_by_displacement, optimizer) if by_displacement else finish
    accumulates = option == 2 and not by_displacement
    optimizer = local_form(optimizer)
    return Algorithm(
        init=_init,
        init_client=init_client,
        broadcast=same_message,
        probe=_full_gradient if option == 1 else None,
        start=Partial(_start_with_mean if accumulates else _start, optimizer),
        step=Partial(_step, optimizer),
        finish=finish_here,
        server_step=Partial(_server_step, server_learning_rate),
    )


def _init(variables):
    return Server(variables, trees.zeros_like(variables.params))


def init_client(variables):
    """c_i = 0."""
    return Client(trees.zeros_like(variables.params))


def _full_gradient(message, client, probe_data):
    del client
    # Nobody else needs it: it goes up once, in the change of c_i.
    return Kept(shared=(), own=probe_data.full_gradient(message.variables))


def _start(optimizer, message, client):
    del client
    variables = message.variables
    return Local(variables, optimizer.init(variables.params), None)


def _start_with_mean(optimizer, message, client):
    local = _start(optimizer, message, client)
    return local._replace(mean_gradient=trees.zeros_like(message.variables.params))


def _step(optimizer, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    if local.mean_gradient is not None:
        local = add_to_mean(local, gradient, context)
    correction = trees.subtract(context.message.control, context.client.control)
    return descend(optimizer, local, trees.add(gradient, correction), evaluation), evaluation


def add_to_mean(local, gradient, context):
    """The local state with one more of K gradients in its mean."""
    share = trees.reciprocal(context.num_steps)
    return local._replace(mean_gradient=trees.add_scaled(local.mean_gradient, share, gradient))


def finish(local, context):
    """Uploads y - x and the change of c_i, which is the full or the mean local gradient."""
    control = context.own_report.own if local.mean_gradient is None else local.mean_gradient
    delta = difference(local.variables, context.message.variables)
    return upload_control(delta, control, context)


def _finish_by_displacement(optimizer, local, context):
    """The same for plain SGD: the mean of g - c_i + c is (x - y) / (eta K)."""
    delta = difference(local.variables, context.message.variables)
    per_step = inversion.per_step(delta, context.num_steps).delta_per_step
    used = inversion.mean_gradient(optimizer, local.optimizer, per_step)
    correction = trees.subtract(context.message.control, context.client.control)
    return upload_control(delta, trees.subtract(used, correction), context)


def upload_control(delta, control, context):
    """y - x and the change of c_i, which becomes `control`."""
    change = trees.subtract(control, context.client.control)
    return Upload(delta, Uniform(change)), Client(control)


def _server_step(server_learning_rate, server, aggregate, situation):
    return Server(
        move(server.variables, aggregate.delta, server_learning_rate),
        trees.add_scaled(server.control, situation.participation, aggregate.control_change),
    )
