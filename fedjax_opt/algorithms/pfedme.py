"""pFedMe: every client has a model of its own, held near a global one by a Moreau envelope.

    objective  (1 / N) sum_i min over theta of f_i(theta) + (lambda / 2) ||theta - x||^2
    local      R times  theta <- theta - U(g(theta) + lambda (theta - y)),   on one minibatch
               y <- y - eta lambda (y - theta),   along the gradient of the envelope
    upload     y - x
    server     x+ = x + beta sum_i w_i (y_i - x)

Both y and theta are x when a round begins; theta then goes on from where it is. A client's personal
model is its theta at the end of the last round in which it took part. (The paper has R local steps of K
inner ones; here K are the local steps, as everywhere.)

Batch statistics follow theta, the only model that sees data. What is uploaded of them is how they moved,
so the global model has the mean of those of the personal ones.

With eta = 1 / lambda and R = 1 it is FedAvg. With lambda = 0 the global model stays where it is, and
theta is trained by R K local steps from there.

Reference:
  T. Dinh, Tran, Nguyen. Personalized federated learning with Moreau envelopes. NeurIPS 2020.
  Algorithm 1.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms.local_training import Local as Theta
from fedjax_opt.algorithms.local_training import averaged, descend, local_training
from fedjax_opt.core import Algorithm, Evaluation, StaticInt, Variables, checks, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers.triple import local_form


class Client(NamedTuple):
    """The personal model, and the round in which the client last took part; -1 before it ever did."""

    personal: Variables
    last_round: chex.Array


class Local(NamedTuple):
    """y with the statistics of theta, the parameters theta, and the state of theta's optimiser."""

    variables: Variables
    theta: chex.ArrayTree
    optimizer: Any


@constructor
def pfedme(
    optimizer: optax.GradientTransformation,
    regularisation: chex.Numeric,
    learning_rate: chex.Numeric,
    inner_steps: int,
    server_learning_rate: chex.Numeric = 1.0,
) -> Algorithm:
    """The pFedMe algorithm: `y <- y - eta lambda (y - theta)`, theta near the prox point of y.

    Args:
      optimizer: the optimiser of theta, a triple or any optax transformation. Its statistics move in
        every inner step and start afresh in every round.
      regularisation: lambda, not negative: how strongly theta is pulled towards y; 15 in the paper's
        experiments.
      learning_rate: eta, not negative: the step size of y.
      inner_steps: R, a Python int of at least 1: the steps of theta in one local step, all on its
        minibatch.
      server_learning_rate: beta, not negative.

    Returns:
      An `Algorithm` whose clients keep their personal model, which `personal` returns; for a client that
      never took part that is the global model. The loss that is reported is theta's before its inner
      steps: in the first local step, the global model's.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.pfedme(fo.optimizers.sgd(0.1), 15.0, learning_rate=0.01, inner_steps=5)
      >>> state = fo.first_state(algorithm, {"w": jnp.ones(3)}, num_clients=4)
      >>> fo.personal_variables(algorithm, state)(2).params["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    lam = checks.number("regularisation", regularisation, low=0.0)
    eta = checks.number("learning_rate", learning_rate, low=0.0)
    inner_steps = StaticInt(checks.integer("inner_steps", inner_steps, low=1))
    server_learning_rate = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    optimizer = local_form(optimizer)
    form = local_training(
        optimizer,
        init_client=_init_client,
        start=Partial(_start, optimizer),
        upload=_upload,
        server_step=Partial(averaged, server_learning_rate),
    )
    step = Partial(_step, optimizer, lam, eta, inner_steps)
    return form._replace(step=step, personal=_personal)


def _init_client(variables):
    return Client(variables, jnp.full((), -1, jnp.int32))


def _start(optimizer, message, client):
    variables = message.variables
    return Local(variables, variables.params, optimizer.init(variables.params))


def _step(optimizer, lam, eta, inner_steps, local, objective, batch, context):
    y, state = local.variables

    def inner_step(theta, _):
        gradient, evaluation = objective.gradient(theta.variables, batch)
        away = trees.subtract(theta.variables.params, y)
        pulled = trees.add_scaled(gradient, lam, away)
        moved = descend(optimizer, theta, pulled, evaluation, context)
        return moved, (evaluation.loss, evaluation.metrics, evaluation.weight)

    theta = Theta(Variables(local.theta, state), local.optimizer)
    theta, seen = jax.lax.scan(inner_step, theta, None, length=int(inner_steps))
    loss, metrics, weight = jax.tree.map(lambda x: x[0], seen)
    (params, state), optimizer_state = theta
    envelope = trees.scale(lam, trees.subtract(y, params))
    y = trees.add_scaled(y, -eta, envelope)
    # The features of every inner step would be kept for nobody.
    evaluation = Evaluation(loss, state, metrics, None, weight)
    return Local(Variables(y, state), params, optimizer_state), evaluation


def _upload(delta, local, context):
    personal = Variables(local.theta, local.variables.state)
    return delta, Client(personal, context.round)


def _personal(server, client):
    return trees.select(client.last_round >= 0, client.personal, server.variables)
