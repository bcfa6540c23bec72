"""FedDC: each client learns its own drift h_i, and control variates beside it.

    local    y <- y - eta (g + alpha (h_i + y - x) + c - c_i)
    finish   h_i+ = h_i + (y - x)
             c_i+ = c_i - c + (x - y) / (eta K)
    upload   y - x (which is also the change of h_i),  c_i+ - c_i
    server   h+ = h + C mean over the cohort of (y_i - x),           C = |S| / N
             c+ = c + C mean over the cohort of (c_i+ - c_i)
             x+ = sum_i w_i y_i + h+

h and c are the averages of all h_i and c_i: their means are uniform, whatever the weights. All begin at
zero, in a client's first round as well. A client reads h_i and c_i only as q_i = alpha h_i - c_i, and
uploads changes alone, so q_i is all that it keeps:

    local    y <- y - eta (g + alpha y + (q_i - alpha x + c))
    finish   q_i+ = q_i + alpha (y - x) - (c_i+ - c_i)

Reference:
  Gao, Fu, Li, Chen, Xu, Xu. FedDC: federated learning with non-IID data via local drift decoupling and
  correction. CVPR 2022. Algorithm 1.
"""

from typing import Any, NamedTuple

from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedavg import descend
from fedjax_opt.algorithms.fedcm import start_with_count
from fedjax_opt.core import Algorithm, Uniform, Variables, checks, difference, move, trees
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, c and h (the averages of all clients'), and a schedule's count."""

    variables: Variables
    control: Any
    drift: Any
    optimizer: Any

    @property
    def gradient_estimate(self) -> Any:
        """c, a mean of gradients."""
        return self.control


class Message(NamedTuple):
    """The model, c, and a schedule's count."""

    variables: Variables
    control: Any
    optimizer: Any


class Client(NamedTuple):
    """q_i = alpha h_i - c_i, zero until the client first takes part."""

    correction: Any


class Upload(NamedTuple):
    """y - x and the change of c_i."""

    delta: Variables
    control_change: Uniform


class Contribution(NamedTuple):
    """What the server averages: the upload, and its y - x once more uniformly, for h."""

    delta: Variables
    control_change: Uniform
    uniform_delta: Uniform


def feddc(optimizer: Triple, alpha: Any = 0.1) -> Algorithm:
    """FedDC: `g + alpha (h_i + y - x) + c - c_i` in every local step.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it. Weight decay there
        becomes a part of c_i, as in the authors' code.
      alpha: the weight of the penalty on the drift, not negative.

    Returns:
      An `Algorithm` whose clients keep alpha h_i - c_i.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.feddc(fo.optimizers.sgd(0.1), alpha=0.1)

    Reference:
      Gao et al. FedDC: federated learning with non-IID data via local drift decoupling and correction.
      CVPR 2022.
    """
    optimizer = inversion.check_plain(optimizer, "FedDC")
    alpha = checks.number("alpha", alpha, low=0.0)
    return Algorithm(
        init=Partial(_init, optimizer),
        init_client=_init_client,
        broadcast=_broadcast,
        start=start_with_count,
        step=Partial(_step, optimizer, alpha),
        finish=Partial(_finish, optimizer, alpha),
        server_step=Partial(_server_step, optimizer),
        receive=_receive,
    )


def _init(optimizer, variables):
    zero = trees.zeros_like(variables.params)
    return Server(variables, zero, zero, inversion.init_plain(optimizer, variables.params))


def _init_client(variables):
    return Client(trees.zeros_like(variables.params))


def _broadcast(server):
    return Message(server.variables, server.control, server.optimizer)


def _step(optimizer, alpha, local, objective, batch, context):
    message, client = context.message, context.client
    gradient, evaluation = objective.gradient(local.variables, batch)
    # What is the same in all steps stands together, so that the compiler takes it out of the loop.
    constant = trees.add_scaled(
        trees.add(client.correction, message.control), -alpha, message.variables.params
    )
    penalised = trees.add_scaled(gradient, alpha, local.variables.params)
    return descend(optimizer, local, trees.add(penalised, constant), evaluation), evaluation


def _finish(optimizer, alpha, local, context):
    message, client = context.message, context.client
    delta = difference(local.variables, message.variables)
    per_step = inversion.per_step(delta, context.num_steps).delta_per_step
    used = inversion.mean_gradient(optimizer, message.optimizer, per_step)
    change = trees.subtract(used, message.control)
    kept = trees.add_scaled(client.correction, alpha, delta.params)
    return Upload(delta, Uniform(change)), Client(trees.subtract(kept, change))


def _receive(upload, num_steps):
    del num_steps
    return Contribution(upload.delta, upload.control_change, Uniform(upload.delta.params))


def _server_step(optimizer, server, aggregate, situation):
    drift = trees.add_scaled(server.drift, situation.participation, aggregate.uniform_delta)
    control = trees.add_scaled(server.control, situation.participation, aggregate.control_change)
    mean = move(server.variables, aggregate.delta)
    return Server(
        mean._replace(params=trees.add(mean.params, drift)),
        control,
        drift,
        optimizer.track(control, server.optimizer, server.variables.params),
    )
