"""GHBM as its proof has it: momentum of the mean gradients of the last tau rounds.

    local    y <- y - eta (beta g + (1 - beta) m)
    upload   y - x
    server   g_t = sum_i w_i (mean of the gradients g that client i used in round t)
             m+  = (1 - beta) m + beta (g_t + g_{t-1} + ... + g_{t-tau+1}) / tau
             x+  = x - eta_s eta K m+

Here beta weighs the gradient, in `ghbm` the momentum. g_t is read off the displacements: the mean of
(x - y_i) / (eta K_i) is beta g_t + (1 - beta) m. Rounds before the first count as zero gradients. The
model moves along m+, the new momentum, and not by the mean displacement: the proof bounds
||x_t - x_{t-1}|| by the norm of m (57). K is the mean number of local steps. With tau = 1 m+ is the mean
displacement itself, and the algorithm is FedCM with alpha = beta.

Reference:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Algorithm 3 and equation 4, with the weights of lemmas 4.6 and B.7.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedavg import descend, finish
from fedjax_opt.algorithms.fedcm import mix, start_with_count
from fedjax_opt.core import (
    Algorithm,
    StaticInt,
    Variables,
    checks,
    move_state,
    no_client_state,
    trees,
)
from fedjax_opt.optimizers import Triple


class Server(NamedTuple):
    """The model, m, the mean gradients of the last tau rounds `[tau, ...]`, t, a schedule's count."""

    variables: Variables
    momentum: Any
    past: Any
    count: jax.Array
    optimizer: Any

    @property
    def gradient_estimate(self) -> Any:
        """m, a mean of gradients."""
        return self.momentum


class Message(NamedTuple):
    """The model, m, and a schedule's count."""

    variables: Variables
    momentum: Any
    optimizer: Any


def ghbm_theory(
    optimizer: Triple, tau: int, beta: Any = 0.1, server_learning_rate: Any = 1.0
) -> Algorithm:
    """GHBM's form in theory: `m+ = (1 - beta) m + beta (mean of the last tau rounds' gradients)`.

    Args:
      optimizer: `fedjax_opt.optimizers.sgd`, or a chain of preprocessors before it.
      tau: how many rounds' gradients are averaged, a Python int; 1 / C is the paper's choice.
      beta: the weight of the gradient, in (0, 1].
      server_learning_rate: eta_s, not negative; the paper's eta is eta_s eta K.

    Returns:
      An `Algorithm` without client state that sends m beside the model, and keeps tau gradients on the
      server.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.ghbm_theory(fo.optimizers.sgd(0.1), tau=10, beta=0.1)

    Reference:
      Zaccone et al. Communication-efficient federated learning with generalized heavy-ball momentum.
      2024.
    """
    optimizer = inversion.check_plain(optimizer, "GHBM's theory form")
    tau = checks.integer("tau", tau, low=1)
    beta = checks.number("beta", beta, low=0.0, open_low=True, high=1.0)
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return Algorithm(
        init=Partial(_init, optimizer, StaticInt(tau)),
        init_client=no_client_state,
        broadcast=_broadcast,
        start=start_with_count,
        step=Partial(_step, optimizer, beta),
        finish=finish,
        server_step=Partial(_server_step, optimizer, beta, server_learning_rate),
        receive=inversion.per_step,
    )


def _init(optimizer, tau, variables):
    return Server(
        variables=variables,
        momentum=trees.zeros_like(variables.params),
        past=jax.tree.map(lambda x: jnp.zeros((int(tau), *x.shape), x.dtype), variables.params),
        count=jnp.zeros((), jnp.int32),
        optimizer=inversion.init_plain(optimizer, variables.params),
    )


def _broadcast(server):
    return Message(server.variables, server.momentum, server.optimizer)


def _step(optimizer, beta, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    mixed = mix(beta, gradient, context.message.momentum)
    return descend(optimizer, local, mixed, evaluation), evaluation


def _server_step(optimizer, beta, server_learning_rate, server, aggregate, situation):
    used = inversion.mean_gradient(optimizer, server.optimizer, aggregate.delta_per_step)
    of_clients = trees.add_scaled(used, beta - 1, server.momentum)
    gradient = trees.scale(1 / beta, of_clients)
    # Any length, where all parameters are private and there is nothing in the ring.
    tau = next((ring.shape[0] for ring in jax.tree.leaves(server.past)), 1)
    place = server.count % tau
    past = jax.tree.map(lambda ring, g: ring.at[place].set(g), server.past, gradient)
    mean = jax.tree.map(lambda ring: jnp.mean(ring, axis=0), past)
    momentum = mix(beta, mean, server.momentum)
    change = inversion.displacement(optimizer, server.optimizer, momentum, situation.num_steps)
    return Server(
        variables=Variables(
            trees.add_scaled(server.variables.params, server_learning_rate, change),
            move_state(server.variables.state, aggregate.delta.state),
        ),
        momentum=momentum,
        past=past,
        count=server.count + 1,
        optimizer=optimizer.track(momentum, server.optimizer, server.variables.params),
    )
