"""GHBM: heavy-ball momentum over the last tau rounds, applied in every local step. FedADC: tau = 1.

    message  x_t,  b = (x_t - x_{t-tau}) / tau      b = 0 while there is no x_{t-tau}
    local    y <- y - eta g + (beta / K) b          g at y
             y <- y + (beta / K) b, then y - eta g  g at the moved y (Nesterov's form)
    upload   y - x
    server   x+ = x + eta_s sum_i w_i (y_i - x); the last tau models are kept

K is each client's own, so all clients take beta b in total. With tau = 1 it is classical momentum:
FedCM with alpha = 1 - beta and the step eta / (1 - beta). tau = 1 / C is the paper's choice: then the
last tau cohorts are, on average, everybody.

References:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Algorithms 1 and 2.
  Ozfatura, Ozfatura, Gunduz. FedADC: accelerated federated learning with drift control. ISIT 2021.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.fedavg import descend, finish, start
from fedjax_opt.core import Algorithm, StaticInt, Variables, checks, move, no_client_state, trees
from fedjax_opt.optimizers.triple import local_form


class Server(NamedTuple):
    """The model, the parameters of the last tau rounds, and how many rounds there were.

    Attributes:
      variables: x_t.
      past: `[tau, ...]`, a ring: the parameters of round t are written to the place t mod tau, and so
        x_{t-tau} is found at the place that comes next.
      count: t.
    """

    variables: Variables
    past: Any
    count: jax.Array

    @property
    def _tau(self) -> int:
        """The length of the ring; any, where all parameters are private and there is nothing in it."""
        return next((ring.shape[0] for ring in jax.tree.leaves(self.past)), 1)

    @property
    def momentum(self) -> Any:
        """(x_t - x_{t-tau}) / tau, and zero for the first tau rounds."""
        tau = self._tau
        place = self.count % tau

        def heavy_ball(now, ring):
            return jnp.where(
                self.count >= tau, (now - ring[place]) / jnp.asarray(tau, now.dtype), 0
            )

        return jax.tree.map(heavy_ball, self.variables.params, self.past)

    @property
    def gradient_estimate(self) -> Any:
        """What the momentum says about the gradient, up to a positive factor."""
        return jax.tree.map(jnp.negative, self.momentum)

    def remember(self, variables: Variables) -> "Server":
        """The state of the next round, in which today's model is one of the past."""
        place = self.count % self._tau
        past = jax.tree.map(lambda ring, x: ring.at[place].set(x), self.past, self.variables.params)
        return Server(variables, past, self.count + 1)


class Message(NamedTuple):
    """The model and the momentum b."""

    variables: Variables
    momentum: Any


def ghbm(
    optimizer: optax.GradientTransformation,
    tau: int,
    beta: Any = 0.9,
    server_learning_rate: Any = 1.0,
    nesterov: bool = False,
) -> Algorithm:
    """GHBM: `y <- y - eta g + (beta / (tau K)) (x_t - x_{t-tau})` in every local step.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      tau: over how many rounds the momentum looks back, a Python int; 1 / C is the paper's choice.
      beta: the weight of the momentum, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.
      nesterov: whether the momentum is applied before the gradient is taken.

    Returns:
      An `Algorithm` without client state that sends the momentum beside the model, and keeps tau models
      on the server.

    Example:
      With a tenth of the clients in every round:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.ghbm(fo.optimizers.sgd(0.1), tau=10, beta=0.9)

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
        step=Partial(_nesterov_step if nesterov else _step, optimizer, beta),
        finish=finish,
        server_step=Partial(_server_step, server_learning_rate),
    )


def fedadc(
    optimizer: optax.GradientTransformation, beta: Any = 0.9, server_learning_rate: Any = 1.0
) -> Algorithm:
    """FedADC: GHBM with tau = 1, its momentum applied before the gradient is taken.

    Args:
      optimizer: the clients' optimiser, as for `fedavg`.
      beta: the weight of the momentum, not negative; 0 is FedAvg.
      server_learning_rate: eta_s, not negative.

    Returns:
      An `Algorithm` without client state that sends the momentum beside the model.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedadc(fo.optimizers.sgd(0.1), beta=0.9)

    Reference:
      Ozfatura, Ozfatura, Gunduz. FedADC: accelerated federated learning with drift control. 2021.
    """
    return ghbm(optimizer, 1, beta, server_learning_rate, nesterov=True)


def init_with_past(tau, variables):
    """The model, and room for the parameters of tau rounds."""
    past = jax.tree.map(lambda x: jnp.zeros((int(tau), *x.shape), x.dtype), variables.params)
    return Server(variables, past, jnp.zeros((), jnp.int32))


def _broadcast(server):
    return Message(server.variables, server.momentum)


def push(variables, factor, direction):
    """variables + factor * direction, in the parameters alone."""
    return variables._replace(params=trees.add_scaled(variables.params, factor, direction))


def _step(optimizer, beta, local, objective, batch, context):
    gradient, evaluation = objective.gradient(local.variables, batch)
    moved = descend(optimizer, local, gradient, evaluation)
    share = beta * trees.reciprocal(context.num_steps)
    pushed = push(moved.variables, share, context.message.momentum)
    return moved._replace(variables=pushed), evaluation


def _nesterov_step(optimizer, beta, local, objective, batch, context):
    share = beta * trees.reciprocal(context.num_steps)
    local = local._replace(variables=push(local.variables, share, context.message.momentum))
    gradient, evaluation = objective.gradient(local.variables, batch)
    return descend(optimizer, local, gradient, evaluation), evaluation


def _server_step(server_learning_rate, server, aggregate, situation):
    del situation
    return server.remember(move(server.variables, aggregate, server_learning_rate))
