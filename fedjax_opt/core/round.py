"""One federated round as one program: the only round there is; an algorithm says what differs."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import local, strategies, trees
from fedjax_opt.core.algorithm import (
    Algorithm,
    Context,
    Facts,
    Kept,
    ProbeData,
    Uniform,
    get_variables,
)
from fedjax_opt.core.model import Model, Objective
from fedjax_opt.core.state import FederatedState
from fedjax_opt.core.strategies import Strategy

# Client ids are below 2^31 - 1, so this one never names a client's stream of random numbers.
_PROBE_STEP = 2**31 - 1


class Info(NamedTuple):
    """What happened in a round. Clients that did not take part count for nothing in the means.

    Attributes:
      round: the round's number, counted from 0.
      loss: the mean training loss over the cohort (aggregation weights) and the local steps.
      first_loss: the same of the first local step alone: the loss of the broadcast model.
      metrics: the mean of each of the model's metrics, as `loss`.
      update_norm: the Euclidean norm of the change of the global parameters.
      cohort: the ids of the clients `[S]`; -1 for a slot that nobody filled.
      client_loss: the mean loss over each client's local steps `[S]`.
      num_steps: the local steps that each client took `[S]`; 0 if it did not take part.
      bad_step: the first local step with a non-finite loss, by client `[S]`; -1 if none.
      finite: whether losses and the aggregate were finite. If not, the round was not applied: the
        state is the last good one.
    """

    round: jax.Array
    loss: jax.Array
    first_loss: jax.Array
    metrics: dict[str, jax.Array]
    update_norm: jax.Array
    cohort: jax.Array
    client_loss: jax.Array
    num_steps: jax.Array
    bad_step: jax.Array
    finite: jax.Array


class Feeding(NamedTuple):
    """Where a round's examples come from.

    Attributes:
      draw: (shared, feed, key, step) -> (batch, mask): one client's next minibatch.
      full: (shared, feed) -> (chunk -> (batch, mask), number of chunks): a pass over all data.
      extra: (shared, feed, key) -> (batch, mask): one more minibatch, for a probe.
      shared: arrays that all clients read.
      feed: what differs between clients, `[S, ...]`.
    """

    draw: Callable[..., Any]
    full: Callable[..., Any]
    extra: Callable[..., Any]
    shared: Any
    feed: Any


class _Client(NamedTuple):
    id: jax.Array
    state: Any
    feed: Any
    num_steps: jax.Array
    weight: jax.Array
    own_report: Any


def federated_round(
    algorithm: Algorithm,
    model: Model,
    strategy: Strategy,
    state: FederatedState,
    cohort: jax.Array,
    feeding: Feeding,
    weights: jax.Array,
    num_steps: jax.Array,
    static_steps: int | None,
) -> tuple[FederatedState, Info]:
    """One round, to be called inside a compiled program; see `make_round` for the arguments.

    A client whose `num_steps` is 0 did not take part: it keeps its state and is left out of every
    mean. If nobody took part, or a loss is not finite, the server keeps its state as well.
    """
    present = num_steps > 0
    count = jnp.sum(present, dtype=jnp.int32)
    dtype = jnp.result_type(float)
    weights = jnp.where(present, weights, 0).astype(dtype)
    weights = weights / jnp.where(jnp.sum(weights) > 0, jnp.sum(weights), 1)
    participation = count.astype(dtype) / state.num_clients.astype(dtype)
    message = algorithm.broadcast(state.server)
    round_key = jax.random.fold_in(state.key, state.round)
    # An absent slot may carry any id: it reads some client's state and writes to none.
    gathered = jax.tree.map(lambda x: x.at[cohort].get(mode="clip"), state.clients)
    clients = _Client(cohort, gathered, feeding.feed, num_steps, weights, ())
    shared = (algorithm, message, round_key, feeding.shared, participation, state.round)

    def client_key(round_key, client):
        return jax.random.fold_in(round_key, client.id)

    report = ()
    if algorithm.probe is not None:

        def probe(shared, client):
            algorithm, message, round_key, examples, *_ = shared
            probe_data = _probe_data(
                model, feeding, examples, client.feed, client_key(round_key, client)
            )
            assert algorithm.probe is not None  # as above: this is the same algorithm, traced
            own = algorithm.probe(message, client.state, probe_data)
            sent = own.shared if isinstance(own, Kept) else own
            return _weighted(sent, client), own

        report, own_reports = strategies.map_reduce(strategy, probe, shared, clients, _pad)
        report = _finish_mean(report, count)
        clients = clients._replace(own_report=own_reports)

    def train(shared_and_report, client):
        shared, report = shared_and_report
        algorithm, message, round_key, examples, participation, round_number = shared
        context = Context(
            message=message,
            client=client.state,
            report=report,
            own_report=client.own_report,
            # An absent client takes no step, yet whatever divides by K must stay finite.
            num_steps=jnp.maximum(client.num_steps, 1),
            step=jnp.zeros((), jnp.int32),
            participation=participation,
            round=round_number,
        )
        upload, new_state, tally = local.work(
            algorithm,
            model,
            partial(feeding.draw, examples),
            client.feed,
            client_key(round_key, client),
            context,
            client.num_steps if static_steps is None else static_steps,
        )
        contribution = upload
        if algorithm.receive is not None:
            contribution = algorithm.receive(upload, context.num_steps)
        steps = context.num_steps.astype(tally.loss_sum.dtype)
        noted = {
            "loss": tally.loss_sum / steps,
            "first_loss": tally.first_loss,
            "metrics": jax.tree.map(lambda x: x / steps.astype(x.dtype), tally.metric_sums),
        }
        means = _weighted({"noted": noted, "num_steps": steps}, client)
        return (_weighted(contribution, client), means), (new_state, noted["loss"], tally.bad_step)

    (aggregate, means), (new_states, client_loss, bad_step) = strategies.map_reduce(
        strategy, train, (shared, report), clients, _pad
    )
    aggregate = _finish_mean(aggregate, count)
    facts = Facts(report, means["num_steps"], participation, state.round)
    server = algorithm.server_step(state.server, aggregate, facts)
    losses_finite = jnp.all(jnp.isfinite(jnp.where(present, client_loss, 0)))
    finite = losses_finite & trees.all_finite(server)
    old_params = get_variables(state.server).params
    change = trees.subtract(get_variables(server).params, old_params)
    write_to = jnp.where(present & finite, cohort, state.num_clients)
    info = Info(
        round=state.round,
        update_norm=jnp.sqrt(trees.squared_norm(change)),
        cohort=jnp.where(present, cohort, -1),
        client_loss=client_loss,
        num_steps=num_steps,
        bad_step=bad_step,
        finite=finite,
        **means["noted"],
    )
    state = FederatedState(
        server=trees.select(finite & (count > 0), server, state.server),
        clients=jax.tree.map(
            lambda old, new: old.at[write_to].set(new, mode="drop"), state.clients, new_states
        ),
        round=state.round + finite.astype(jnp.int32),
        key=state.key,
        num_clients=state.num_clients,
    )
    return state, info


def _is_uniform(node: Any) -> bool:
    return isinstance(node, Uniform)


def _weighted(tree: Any, client: _Client) -> Any:
    """One client's term of each mean; sums are kept in float32 or better."""
    present = client.num_steps > 0

    def term(node):
        weight = present if _is_uniform(node) else client.weight

        def scale(leaf):
            wide = trees.sum_dtype(leaf.dtype)
            # Selected, not multiplied: what an absent client computed may be anything, NaN too.
            return jnp.where(present, weight.astype(wide) * leaf.astype(wide), 0)

        return jax.tree.map(scale, node)

    return jax.tree.map(term, tree, is_leaf=_is_uniform)


def _finish_mean(tree: Any, count: jax.Array) -> Any:
    """Turns uniform sums into means, and takes the marker off."""

    def finish(node):
        if not _is_uniform(node):
            return node
        divide = lambda leaf: leaf / jnp.maximum(count, 1).astype(leaf.dtype)  # noqa: E731
        return jax.tree.map(divide, node.value)

    return jax.tree.map(finish, tree, is_leaf=_is_uniform)


def _pad(clients: _Client, extra: int) -> _Client:
    """Adds absent clients, so that a cohort divides evenly."""
    size = clients.num_steps.shape[0]
    rows = np.minimum(np.arange(size + extra), size - 1)
    padded = jax.tree.map(lambda x: x[rows], clients)
    return padded._replace(num_steps=padded.num_steps.at[size:].set(0))


def _probe_data(model, feeding, examples, feed, key) -> ProbeData:
    key = jax.random.fold_in(key, _PROBE_STEP)
    dtype = jnp.result_type(float)

    def full_gradient(variables):
        chunk_of, num_chunks = feeding.full(examples, feed)

        def body(carry, chunk):
            total, rows = carry
            batch, mask = chunk_of(chunk)
            gradient, _ = Objective(model, key, mask).gradient(variables, batch)
            here = jax.tree.leaves(batch)[0].shape[0] if mask is None else jnp.sum(mask)
            return trees.add_scaled(total, here, gradient), rows + jnp.asarray(here, dtype)

        zero = trees.zeros_like(variables.params), jnp.zeros((), dtype)
        total, rows = local.counted_loop(num_chunks, body, zero)
        return trees.scale(1 / jnp.maximum(rows, 1), total)

    def minibatch_gradient(variables):
        batch, mask = feeding.extra(examples, feed, key)
        return Objective(model, key, mask).gradient(variables, batch)[0]

    return ProbeData(full_gradient, minibatch_gradient)
