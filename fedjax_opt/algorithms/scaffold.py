"""SCAFFOLD: control variates that cancel the drift of each client.

    local    y <- y - eta (g - c_i + c)
    finish   c_i+ = gradient of client i at x over all its data     (option I)
             c_i+ = mean of the local gradients g                   (option II)
    upload   y - x,  c_i+ - c_i
    server   x+ = x + eta_s sum_i w_i (y_i - x)
             c+ = c + C mean over the cohort of (c_i+ - c_i),  C = |S| / N

For plain SGD option II is c_i - c + (x - y) / (K eta), as the paper prints it; for any other local
optimiser g - c_i + c is summed step by step. The mean for c is uniform, whatever the weights: c stays
the average of all c_i.

Reference:
  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: stochastic controlled averaging for
  federated learning. ICML 2020. Algorithm 1.
"""

from typing import NamedTuple

import chex
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.local_training import all_of_it, fresh, local_training
from fedjax_opt.core import Algorithm, Kept, Uniform, Variables, checks, move, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The model and c, the average of all clients' control variates."""

    variables: Variables
    control: chex.ArrayTree

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """c, a mean of gradients."""
        return self.control


class Client(NamedTuple):
    """c_i, zero until the client first takes part."""

    control: chex.ArrayTree


class Upload(NamedTuple):
    """y - x and the change of c_i."""

    delta: Variables
    control_change: Uniform


@constructor
def scaffold(
    optimizer: optax.GradientTransformation,
    option: int = 2,
    server_learning_rate: chex.Numeric = 1.0,
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
    """
    if option not in (1, 2):
        raise ValueError(f"option must be 1 or 2, got {option!r}.")
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    tx = local_form(optimizer)
    start, probe, upload = Partial(fresh, tx), _full_gradient, Partial(_upload_full)
    if option == 2:
        tx, start, mean_direction = inversion.with_mean(optimizer, tx, start)
        probe, upload = None, Partial(_upload_mean, mean_direction)
    return local_training(
        tx,
        init=_init,
        init_client=init_client,
        broadcast=all_of_it,
        probe=probe,
        start=start,
        direction=_direction,
        upload=upload,
        server_step=Partial(_server_step, eta),
    )


def _init(variables):
    return Server(variables, trees.zeros_like(variables.params))


def init_client(variables: Variables) -> Client:
    """c_i = 0."""
    return Client(trees.zeros_like(variables.params))


def _full_gradient(message, client, probe_data):
    # Nobody else needs it: it goes up once, in the change of c_i.
    return Kept(shared=(), own=probe_data.full_gradient(message.variables))


def correction(context):
    """c - c_i."""
    return trees.subtract(context.message.control, context.client.control)


def _direction(gradient, local, context):
    return trees.add(gradient, correction(context))


def _upload_full(delta, local, context):
    return upload_control(delta, context.own_report.own, context)


def _upload_mean(mean_direction, delta, local, context):
    # All steps have the same correction, so without it their mean is that of the gradients.
    gradient = trees.subtract(mean_direction(delta, local, context), correction(context))
    return upload_control(delta, gradient, context)


def upload_control(delta, control, context):
    """y - x and the change of c_i, which becomes `control`."""
    change = trees.subtract(control, context.client.control)
    return Upload(delta, Uniform(change)), Client(control)


def _server_step(eta, server, mean, situation):
    return Server(
        move(server.variables, mean.delta, eta),
        trees.add_scaled(server.control, situation.participation, mean.control_change),
    )
