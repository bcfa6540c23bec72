"""The client's half of a round: from its invitation to its result.

    result = client_update(algorithm, model, feed, invitation, state)

A client knows its invitation, its own examples and its own state, and nothing else. With a probe it is
asked twice: `client_probe` first, then, with the mean report in its invitation, for the work. The
compiled round, a loop of one's own and a client in a deployment call the same functions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Algorithm, Context, ProbeData
from fedjax_opt.core.aliases import ClientState, Message, Number, Report, Tree, Upload
from fedjax_opt.core.model import Model, Objective
from fedjax_opt.engine.minibatches import Feed
from fedjax_opt.execution.jobs import Job, counted_loop

# Never the number of a local step, nor of the stream of rows (minibatches.py).
_OWN, _PROBE = 2**31 - 5, 2**31 - 1


class Invitation(NamedTuple):
    """All that a client is told for its work in a round.

    Attributes:
      message: what the server broadcast, of this round or, in asynchronous runs, of an earlier one:
        clients of one round need not share it.
      round: t, counted from 0.
      id: the client's number.
      num_steps: K, how many local steps it shall take. A Python int is compiled in, and makes the work
        differentiable in reverse mode.
      invited: how many clients were asked to take part.
      num_clients: N, the size of the population.
      key: the client's own in this round, and never the run's, from which the others' follow:
        `client_key`.
      report: the cohort's mean report, after a probe; else `()`.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> state = fo.first_state(algorithm, {"x": jax.numpy.zeros(2)}, num_clients=4)
      >>> invitation = fo.Invitation(
      ...     algorithm.broadcast(state.server), round=0, id=2, num_steps=5, invited=1, num_clients=4,
      ...     key=fo.client_key(state.key, round_number=0, client=2),
      ... )
    """

    message: Message
    round: Number
    id: Number
    num_steps: jax.Array | int
    invited: Number
    num_clients: Number
    key: chex.PRNGKey
    report: Report = ()


class ClientResult(NamedTuple):
    """What comes of a client's work.

    Attributes:
      upload: what it sends; a `Coded` where it is compressed.
      num_steps: K, the local steps that it took.
      num_examples: n_i: a server that does not know it could not weigh.
      loss: the mean loss over the local steps.
      state: the client's persistent state, which it keeps.
      first_loss: the loss of the first step: that of the model that it received.
      metrics: the means of the model's metrics over the local steps.
      bad_step: the first step with a loss that is not finite; -1 if there was none.
      example_weight: the sum of the weights (`Aux.weights`, else 1) of the examples that it used.
      observed: what observers noted, in their order.
    """

    upload: Upload
    num_steps: jax.Array
    num_examples: Number
    loss: jax.Array
    state: ClientState
    first_loss: jax.Array
    metrics: dict[str, jax.Array]
    bad_step: jax.Array
    example_weight: jax.Array
    observed: Sequence[Tree] = ()


class Observer(NamedTuple):
    """Looks on while a client works: how diagnostics are measured.

    Attributes:
      begin: local state -> what is noted before the first step.
      step: (noted, local state before, local state after, objective, batch, context) -> noted.
      end: (noted, local state, upload, context) -> what is handed out as `ClientResult.observed`.
    """

    begin: Callable[[Tree], Tree]
    step: Callable[..., Tree]
    end: Callable[..., Tree]


def client_key(key: chex.PRNGKey, round_number: Number, client: Number) -> chex.PRNGKey:
    """The key of a client in a round: a server's to make, since the run's key gives away all others.

    Args:
      key: the run's key, `FederatedState.key`.
      round_number, client: t, and the client's id.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> key = fo.client_key(jax.random.key(0), round_number=3, client=7)
    """
    return jax.random.fold_in(jax.random.fold_in(key, round_number), client)


def client_probe(
    algorithm: Algorithm,
    model: Model,
    feed: Feed,
    invitation: Invitation,
    state: ClientState = (),
) -> Report:
    """What a client reports before the work begins, for algorithms with a probe.

    Args:
      algorithm, model, feed, invitation, state: as for `client_update`.

    Returns:
      The report: `report_contribution` adds it up on the server, and the client hands it to
      `client_update`. Of a `Kept` only `shared` is sent.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> algorithm = fo.mime(fo.optimizers.sgd(0.1))
      >>> message = algorithm.broadcast(algorithm.init(fo.Variables({"x": jax.numpy.zeros(2)})))
      >>> invitation = fo.Invitation(message, 0, 2, 5, 1, 4, jax.random.key(0))
      >>> fo.client_probe(algorithm, model, fo.feed(data[2], 1), invitation)["x"].shape
      (2,)
    """
    if algorithm.probe is None:
        raise ValueError("algorithm must have a probe to be probed; this one asks for no report.")
    data = probe_data(model, feed, invitation.key, jnp.asarray(invitation.id))
    return algorithm.probe(invitation.message, state, data)


def client_update(
    algorithm: Algorithm,
    model: Model,
    feed: Feed,
    invitation: Invitation,
    state: ClientState = (),
    own_report: Report = (),
) -> ClientResult:
    """A client's work in a round: start, K local steps, finish.

    Args:
      algorithm: the algorithm.
      model: the model.
      feed: the client's examples; `feed` makes it of arrays.
      invitation: what the client is told.
      state: its persistent state: that of its last result, at first `algorithm.init_client(variables)`.
      own_report: what its probe returned, for algorithms with one.

    Returns:
      A `ClientResult`. Upload, numbers of steps and of examples and the loss are sent; the state stays.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> message = algorithm.broadcast(algorithm.init(fo.Variables({"x": jax.numpy.zeros(2)})))
      >>> invitation = fo.Invitation(message, 0, 2, 5, 1, 4, jax.random.key(0))
      >>> result = fo.client_update(algorithm, model, fo.feed(data[2], 1), invitation)
      >>> int(result.num_steps), result.upload.params["x"].shape
      (5, (2,))
    """
    return client_job(algorithm, model, feed, invitation, state, own_report).whole()


def client_job(
    algorithm: Algorithm,
    model: Model,
    feed: Feed,
    invitation: Invitation,
    state: ClientState = (),
    own_report: Report = (),
    observers: Sequence[Observer] = (),
) -> Job[ClientResult]:
    """The work of `client_update` in steps, which can be laid down between two of them.

    Args:
      algorithm, model, feed, invitation, state, own_report: as for `client_update`.
      observers: who looks on; see `ClientResult.observed`.

    Returns:
      A job: `carry = begin()`, then `carry = step(carry, k)` for k = 0, ..., K - 1, then
      `finish(carry)`, which is a `ClientResult`.

    Example:
      >>> import jax
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=4, dimension=2)
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> message = algorithm.broadcast(algorithm.init(fo.Variables({"x": jax.numpy.zeros(2)})))
      >>> invitation = fo.Invitation(message, 0, 2, 5, 1, 4, jax.random.key(0))
      >>> job = fo.client_job(algorithm, model, fo.feed(data[2], 1), invitation)
      >>> carry = job.begin()
      >>> for k in range(job.num_steps):
      ...     carry = job.step(carry, k)
      >>> result = job.finish(carry)
    """
    # 1 for a client that takes no step, and counts for nothing: what divides by it stays finite.
    num_steps = jnp.maximum(jnp.asarray(invitation.num_steps, jnp.int32), 1)
    context = Context(
        message=invitation.message,
        client=state,
        report=invitation.report,
        own_report=own_report,
        num_steps=num_steps,
        step=jnp.zeros((), jnp.int32),
        invited=jnp.asarray(invitation.invited, jnp.int32),
        num_clients=jnp.asarray(invitation.num_clients, jnp.int32),
        round=jnp.asarray(invitation.round, jnp.int32),
        key=jax.random.fold_in(invitation.key, _OWN),
        id=jnp.asarray(invitation.id, jnp.int32),
    )

    def one_step(local, k):
        batch, mask = feed.draw(invitation.key, k)
        objective = Objective(model, jax.random.fold_in(invitation.key, k), mask)
        here = context._replace(step=jnp.asarray(k, jnp.int32))
        new, evaluation = algorithm.step(local, objective, batch, here)
        return new, evaluation, (objective, batch, here)

    def begin():
        local = algorithm.start(context.message, context.client)
        shape = jax.eval_shape(lambda local, k: one_step(local, k)[1], local, jnp.int32(0))
        loss, metrics = trees.zeros_like((shape.loss, shape.metrics))
        weight = jnp.zeros((), jnp.result_type(float))
        noted = [observer.begin(local) for observer in observers]
        return local, (loss, metrics, weight), loss, jnp.int32(-1), noted

    def step(carry, k):
        local, sums, first_loss, bad_step, noted = carry
        new, evaluation, around = one_step(local, k)
        loss = evaluation.loss
        noted = [
            observer.step(seen, local, new, *around)
            for observer, seen in zip(observers, noted, strict=True)
        ]
        sums = trees.add(sums, (loss, evaluation.metrics, evaluation.weight))
        first_loss = jnp.where(k == 0, loss, first_loss)
        bad = (bad_step < 0) & ~jnp.isfinite(loss)
        return new, sums, first_loss, jnp.where(bad, jnp.asarray(k, jnp.int32), bad_step), noted

    def finish(carry):
        local, (loss, metrics, weight), first_loss, bad_step, noted = carry
        upload, new_state = algorithm.finish(local, context)
        return ClientResult(
            upload=upload,
            num_steps=num_steps,
            num_examples=feed.num_examples,
            loss=loss / num_steps.astype(loss.dtype),
            state=new_state,
            first_loss=first_loss,
            metrics=jax.tree.map(lambda x: x / num_steps.astype(x.dtype), metrics),
            bad_step=bad_step,
            example_weight=weight,
            observed=[
                observer.end(seen, local, upload, context)
                for observer, seen in zip(observers, noted, strict=True)
            ],
        )

    return Job(begin, step, finish, invitation.num_steps)


def probe_data(
    model: Model, feed: Feed, key: chex.PRNGKey, client: jax.Array | None = None
) -> ProbeData:
    """The gradients of one client that a probe may ask for, by the client's key in the round."""
    own_key, key = jax.random.fold_in(key, _OWN), jax.random.fold_in(key, _PROBE)
    dtype = jnp.result_type(float)

    def gradient_of(variables, batch, mask, adjust):
        objective = Objective(model, key, mask)
        objective = objective if adjust is None else adjust(objective, batch)
        return objective.gradient(variables, batch)

    def full_gradient(variables, adjust=None):
        def body(carry, chunk):
            total, weight = carry
            batch, mask = feed.chunk(chunk)
            gradient, found = gradient_of(variables, batch, mask, adjust)
            here = jnp.asarray(found.weight, dtype)
            return trees.add_scaled(total, here, gradient), weight + here

        zero = trees.zeros_like(variables.params), jnp.zeros((), dtype)
        total, weight = counted_loop(feed.num_chunks, body, zero)
        return trees.scale(1 / jnp.where(weight > 0, weight, 1), total)

    def minibatch_gradient(variables, adjust=None):
        batch, mask = feed.extra(key)
        return gradient_of(variables, batch, mask, adjust)[0]

    return ProbeData(full_gradient, minibatch_gradient, client, own_key)
