"""GHBM: heavy-ball momentum over the last tau rounds, and the forms that its paper relates to it.

    GHBM         b = (x_t - x_{t-tau}) / tau,   0 while there is no x_{t-tau}
                 message  x_t, b
                 local    y <- y - eta g + (beta / K) b
    FedADC       GHBM with tau = 1, in Nesterov's form
    LocalGHBM    a_i = the model that client i received when it last took part
                 local    y <- y - eta g + (beta C / K) (x - a_i)
    FedHBM       a_i = the model with which client i finished when it last took part
                 local    y <- y - eta g + (beta C / K) (y - a_i),     y as it is in every step
    by_absence   LocalGHBM and FedHBM with 1 / (t - t_i) for C, t_i the round in which i last took part
    momentum_in_step
                 GHBM with   y <- y - eta (g - (beta / K) b)
    all these    Nesterov's form: the momentum is applied before g is taken
                 upload   y - x
                 server   x+ = x + eta_s sum_i w_i (y_i - x)

    on the server    local    y <- y - eta g
                     server   x+ = x + eta_s sum_i w_i (y_i - x) + beta b

    in theory        local    y <- y - eta (beta g + (1 - beta) m)
                     server   g_t = sum_i w_i (mean of the gradients g that client i used in round t)
                              m+  = (1 - beta) m + beta (g_t + g_{t-1} + ... + g_{t-tau+1}) / tau
                              x+  = x - eta_s eta K m+

K is each client's own, so all clients take beta b in total. tau = 1 / C is the paper's choice: then the
last tau cohorts are, on average, everybody. LocalGHBM and FedHBM have C = |S| / N for 1 / tau, since a
client takes part every 1 / C rounds on average, and no momentum in a client's first round; under cyclic
participation LocalGHBM is GHBM with tau = 1 / C. With tau = 1 GHBM is classical momentum (FedCM with
alpha = 1 - beta and the step eta / (1 - beta)), and its form on the server is FedAvgM.

In theory's form beta weighs the gradient, elsewhere the momentum. g_t is read off the
displacements: the mean of (x - y_i) / (eta K_i) is beta g_t + (1 - beta) m. Rounds before the first
count as zero gradients. The model moves along m+, the new momentum, and not by the mean
displacement: the proof bounds ||x_t - x_{t-1}|| by the norm of m (57). K is the mean number of
local steps. With tau = 1 m+ is the mean displacement itself, and the algorithm is FedCM with alpha
= beta.

References:
  Zaccone, Karimireddy, Masone, Ciccone. Communication-efficient federated learning with generalized
  heavy-ball momentum. 2024. Algorithms 1 to 3, equations 4 and 6, lemmas 4.6 and B.7.
  Ozfatura, Ozfatura, Gunduz. FedADC: accelerated federated learning with drift control. ISIT 2021.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.tree_util import Partial

from fedjax_opt.algorithms import _inversion as inversion
from fedjax_opt.algorithms.fedcm import mix
from fedjax_opt.algorithms.local_training import as_sent, averaged, local_training
from fedjax_opt.core import Algorithm, StaticInt, Variables, checks, move, move_state, trees
from fedjax_opt.core.calls import constructor
from fedjax_opt.optimizers import Triple
from fedjax_opt.optimizers.triple import stands_still


class Ring(NamedTuple):
    """What was written in the last tau rounds.

    Attributes:
      past: `[tau, ...]`: what round t wrote is at the place t mod tau, so the oldest is at the place
        that comes next.
      count: t.
      tau: its length, also where nothing is in it (all parameters are private).
    """

    past: chex.ArrayTree
    count: jax.Array
    tau: StaticInt

    @classmethod
    def empty(cls, tau: StaticInt, like: chex.ArrayTree) -> "Ring":
        """Zeros, before the first round."""
        past = jax.tree.map(lambda x: jnp.zeros((int(tau), *x.shape), x.dtype), like)
        return cls(past, jnp.zeros((), jnp.int32), tau)

    def write(self, tree: chex.ArrayTree) -> "Ring":
        """With a tree in the place of the oldest one."""
        place = self.count % int(self.tau)
        past = jax.tree.map(lambda ring, x: ring.at[place].set(x), self.past, tree)
        return Ring(past, self.count + 1, self.tau)

    def slope(self, tree: chex.ArrayTree) -> chex.ArrayTree:
        """(tree - oldest) / tau, and zero for the first tau rounds."""
        known, place = self.count >= int(self.tau), self.count % int(self.tau)

        def slope(x, ring, tau):
            return jnp.where(known, (x - ring[place]) / tau, 0)

        return trees.each(slope, tree, self.past, tau=self.tau)

    @property
    def mean(self) -> chex.ArrayTree:
        """The mean of the last tau, of which those before the first round are zero."""
        return jax.tree.map(lambda ring: jnp.mean(ring, axis=0), self.past)


class Server(NamedTuple):
    """The model, and the parameters of the last tau rounds."""

    variables: Variables
    ring: Ring

    @property
    def momentum(self) -> chex.ArrayTree:
        """b."""
        return self.ring.slope(self.variables.params)

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """What the momentum says about the gradient, up to a positive factor."""
        return jax.tree.map(jnp.negative, self.momentum)


class Message(NamedTuple):
    """The model, and b; or m, and a schedule's count."""

    variables: Variables
    momentum: chex.ArrayTree
    optimizer: Any = ()


class Client(NamedTuple):
    """a_i, and the round in which the client last took part; -1 before it ever did."""

    anchor: chex.ArrayTree
    last_round: chex.Array


class TheoryServer(NamedTuple):
    """The model, m, the mean gradients of the last tau rounds, and a schedule's count."""

    variables: Variables
    momentum: chex.ArrayTree
    ring: Ring
    optimizer: Any

    @property
    def gradient_estimate(self) -> chex.ArrayTree:
        """m, a mean of gradients."""
        return self.momentum


@constructor
def ghbm(
    optimizer: optax.GradientTransformation,
    tau: int,
    beta: chex.Numeric = 0.9,
    server_learning_rate: chex.Numeric = 1.0,
    nesterov: bool = False,
    momentum_in_step: bool = False,
) -> Algorithm:
    """GHBM: `y <- y - eta g + (beta / (tau K)) (x_t - x_{t-tau})` in every local step.

    Args:
      optimizer, server_learning_rate: as for `fedavg`.
      tau: over how many rounds the momentum looks back, a Python int; 1 / C is the paper's choice.
      beta: the weight of the momentum, not negative; 0 is FedAvg.
      nesterov: whether the momentum is applied before the gradient is taken.
      momentum_in_step: whether the momentum is part of what the optimiser is handed, as in the paper's
        Algorithm 2, and so weighted by its learning rate. Algorithm 1 adds it beside the step.

    Returns:
      An `Algorithm` without client state that sends the momentum beside the model, and keeps tau models
      on the server.

    Example:
      With a tenth of the clients in every round:

      >>> import fedjax_opt as fo
      >>> algorithm = fo.ghbm(fo.optimizers.sgd(0.1), tau=10, beta=0.9)
    """
    tau = StaticInt(checks.integer("tau", tau, low=1))
    beta, eta = _checked(beta, server_learning_rate)
    if nesterov and momentum_in_step:
        raise ValueError(
            "nesterov=True moves the model before the step: momentum_in_step=True cannot."
        )
    plain = local_training(
        optimizer,
        init=Partial(_init, tau),
        broadcast=_broadcast,
        direction=Partial(_less_momentum, beta) if momentum_in_step else None,
        server_step=Partial(_server_step, eta),
    )
    if momentum_in_step:
        return plain
    return _pushed(plain, Partial(_global_push, beta), nesterov)


@constructor
def fedadc(
    optimizer: optax.GradientTransformation,
    beta: chex.Numeric = 0.9,
    server_learning_rate: chex.Numeric = 1.0,
) -> Algorithm:
    """FedADC: GHBM with tau = 1, its momentum applied before the gradient is taken.

    Args:
      optimizer, beta, server_learning_rate: as for `ghbm`.

    Returns:
      An `Algorithm` without client state that sends the momentum beside the model.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedadc(fo.optimizers.sgd(0.1), beta=0.9)
    """
    return ghbm(optimizer, 1, beta, server_learning_rate, nesterov=True)


@constructor
def localghbm(
    optimizer: optax.GradientTransformation,
    beta: chex.Numeric = 0.9,
    server_learning_rate: chex.Numeric = 1.0,
    nesterov: bool = False,
    by_absence: bool = False,
) -> Algorithm:
    """LocalGHBM: `y <- y - eta g + (beta C / K) (x - a_i)`, a_i the model received last time.

    Args:
      optimizer, beta, server_learning_rate, nesterov: as for `ghbm`.
      by_absence: whether the momentum is divided by the rounds since the client last took part, its own
        tau_i, as Algorithm 1 has it. Otherwise it is multiplied by C, which is 1 / tau_i on average.

    Returns:
      An `Algorithm` whose clients keep a model, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.localghbm(fo.optimizers.sgd(0.1), beta=0.9)
    """
    return _with_anchors(_received, optimizer, beta, server_learning_rate, nesterov, by_absence)


@constructor
def fedhbm(
    optimizer: optax.GradientTransformation,
    beta: chex.Numeric = 1.0,
    server_learning_rate: chex.Numeric = 1.0,
    nesterov: bool = False,
    by_absence: bool = False,
) -> Algorithm:
    """FedHBM: `y <- y - eta g + (beta C / K) (y - a_i)`, a_i the client's own last model.

    Args:
      optimizer, beta, server_learning_rate, nesterov: as for `ghbm`.
      by_absence: as for `localghbm`.

    Returns:
      An `Algorithm` whose clients keep a model, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedhbm(fo.optimizers.sgd(0.1), beta=1.0)
    """
    return _with_anchors(_trained, optimizer, beta, server_learning_rate, nesterov, by_absence)


@constructor
def ghbm_server(
    optimizer: optax.GradientTransformation,
    tau: int,
    beta: chex.Numeric = 0.9,
    server_learning_rate: chex.Numeric = 1.0,
) -> Algorithm:
    """GHBM on the server: `x+ = x + eta_s mean(y - x) + (beta / tau) (x_t - x_{t-tau})`.

    Args:
      optimizer, server_learning_rate: as for `fedavg`.
      tau: over how many rounds the momentum looks back, a Python int.
      beta: the weight of the momentum, not negative; 0 is FedAvg.

    Returns:
      An `Algorithm` without client state, at FedAvg's cost of communication.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.ghbm_server(fo.optimizers.sgd(0.1), tau=10, beta=0.9)
    """
    tau = StaticInt(checks.integer("tau", tau, low=1))
    beta, eta = _checked(beta, server_learning_rate)
    return local_training(
        optimizer, init=Partial(_init, tau), server_step=Partial(_pushing_server_step, beta, eta)
    )


@constructor
def ghbm_theory(
    optimizer: Triple,
    tau: int,
    beta: chex.Numeric = 0.1,
    server_learning_rate: chex.Numeric = 1.0,
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
    """
    optimizer = inversion.check_plain(optimizer, "GHBM's theory form")
    tau = StaticInt(checks.integer("tau", tau, low=1))
    beta = checks.number("beta", beta, low=0.0, open_low=True, high=1.0)
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return local_training(
        optimizer,
        init=Partial(_theory_init, optimizer, tau),
        broadcast=_theory_broadcast,
        start=as_sent,
        direction=Partial(_theory_direction, beta),
        receive=inversion.per_step,
        server_step=Partial(_theory_server_step, optimizer, beta, eta),
    )


def _checked(beta, server_learning_rate):
    eta = checks.number("server_learning_rate", server_learning_rate, low=0.0)
    return checks.number("beta", beta, low=0.0), eta


# A push in every local step ----------------------------------------------------------------------


def _pushed(algorithm, push, nesterov):
    """The algorithm with push(local state, context) added to the parameters in every local step."""
    step = _push_and_step if nesterov else _step_and_push
    return algorithm._replace(step=Partial(step, algorithm.step, push))


def _step_and_push(step, push, local, objective, batch, context):
    change = push(local, context)
    local, evaluation = step(local, objective, batch, context)
    return _moved(local, change), evaluation


def _push_and_step(step, push, local, objective, batch, context):
    return step(_moved(local, push(local, context)), objective, batch, context)


def _moved(state, change):
    return state._replace(variables=_ahead(state.variables, change))


def _ahead(variables, change):
    return variables._replace(params=trees.add(variables.params, change))


# GHBM --------------------------------------------------------------------------------------------


def _init(tau, variables):
    return Server(variables, Ring.empty(tau, variables.params))


def _broadcast(server):
    return Message(server.variables, server.momentum)


def _global_push(beta, local, context):
    return trees.scale(beta * trees.reciprocal(context.num_steps), context.message.momentum)


def _less_momentum(beta, gradient, local, context):
    return trees.add_scaled(
        gradient, -beta * trees.reciprocal(context.num_steps), context.message.momentum
    )


def _server_step(eta, server, mean, situation):
    x = move(server.variables, mean, eta)
    return Server(x, server.ring.write(server.variables.params))


def _pushing_server_step(beta, eta, server, mean, situation):
    x = _ahead(move(server.variables, mean, eta), trees.scale(beta, server.momentum))
    return Server(x, server.ring.write(server.variables.params))


# LocalGHBM and FedHBM ----------------------------------------------------------------------------


def _with_anchors(model_of, optimizer, beta, server_learning_rate, nesterov, by_absence):
    beta, eta = _checked(beta, server_learning_rate)
    model_of = Partial(model_of)
    plain = local_training(
        optimizer,
        init_client=_init_client,
        upload=Partial(_upload, model_of),
        server_step=Partial(averaged, eta),
    )
    share = Partial(_per_round_away if by_absence else _participation)
    return _pushed(plain, Partial(_anchored_push, beta, model_of, share), nesterov)


def _received(local, context):
    """The model of which LocalGHBM speaks."""
    return context.message.variables.params


def _trained(local, context):
    """The model of which FedHBM speaks: the local one, as it is now."""
    return local.variables.params


def _init_client(variables):
    return Client(trees.zeros_like(variables.params), jnp.full((), -1, jnp.int32))


def _participation(context):
    return context.participation


def _per_round_away(context):
    return trees.reciprocal(context.round - context.client.last_round)


def _anchored_push(beta, model_of, share_of, local, context):
    away = trees.subtract(model_of(local, context), context.client.anchor)
    share = beta * share_of(context) * trees.reciprocal(context.num_steps)
    return trees.scale(jnp.where(context.client.last_round >= 0, share, 0), away)


def _upload(model_of, delta, local, context):
    return delta, Client(model_of(local, context), context.round)


# The form in theory ------------------------------------------------------------------------------


def _theory_init(optimizer, tau, variables):
    params = variables.params
    count = inversion.init_plain(optimizer, params)
    return TheoryServer(variables, trees.zeros_like(params), Ring.empty(tau, params), count)


def _theory_broadcast(server):
    return Message(server.variables, server.momentum, server.optimizer)


def _theory_direction(beta, gradient, local, context):
    return mix(beta, gradient, context.message.momentum)


def _theory_server_step(optimizer, beta, eta, server, mean, situation):
    m = server.momentum
    used = inversion.mean_gradient(optimizer, server.optimizer, mean.delta_per_step, otherwise=m)
    gradient = trees.each(lambda u, m, b: (u - (1 - b) * m) / b, used, m, b=beta)
    ring = server.ring.write(gradient)
    m = mix(beta, ring.mean, m)
    if (still := stands_still(optimizer, server.optimizer, m)) is not None:
        ring, m = trees.select(still, (server.ring, server.momentum), (ring, m))
    change = _displacement(optimizer, server.optimizer, m, situation.num_steps)
    x = Variables(
        trees.add_scaled(server.variables.params, eta, change),
        move_state(server.variables.state, mean.delta.state),
    )
    count = optimizer.track(m, server.optimizer, server.variables.params)
    return TheoryServer(x, m, ring, count)


def _displacement(optimizer, stats, gradient, num_steps):
    """-eta K g: how far K steps along g lead; where eta is 0, nowhere."""
    one = jax.tree.map(jnp.ones_like, gradient)
    per_eta = optimizer.inverse(one, trees.zeros_like(gradient), stats, 1)

    def lead(g, r, k):
        return jnp.where(r == 0, 0, -k * g / jnp.where(r == 0, 1, r))

    return trees.each(lead, gradient, per_eta, k=num_steps)
