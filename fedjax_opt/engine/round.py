"""One federated round as one program: the two halves, and the way over the clients between them.

    cohort -> [invitation -> client_update -> contribution] per client -> Total -> server_update -> info

`client.py` says what a client does and `server.py` what the server makes of it; here they are laid over
a cohort by a function of `execution`, which sums the `Total` and stacks a `_Row` of each client.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Algorithm, Situation, Stacked, get_variables
from fedjax_opt.core.guard import Faults, Guard
from fedjax_opt.core.info import Info
from fedjax_opt.core.messages import received, sent
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine import diagnostics
from fedjax_opt.engine import guard as guards
from fedjax_opt.engine.client import ClientResult, Invitation, client_job, client_probe, probe_data
from fedjax_opt.engine.evaluate import mean_over_rows
from fedjax_opt.engine.minibatches import Feeds
from fedjax_opt.engine.server import (
    ServerInfo,
    Total,
    contribution,
    report_contribution,
    server_probe,
    server_update,
    streams,
    weighted,
)
from fedjax_opt.execution import client_table, placement
from fedjax_opt.execution.jobs import Job
from fedjax_opt.execution.lineup import Lineup
from fedjax_opt.execution.strategies import Strategy, map_reduce

# Client ids are below it, so this one never names a client's stream of random numbers.
_SERVER = 2**31 - 2


class Cohort(NamedTuple):
    """Who takes part in a round.

    Attributes:
      ids: `[S]`.
      weights: `[S]`, not negative; they need not sum to 1.
      num_steps: K of each `[S]`; 0 for one that does not report.
      invited: how many were asked, whether they report or not.
      asked: for a guard's report, the ids of those who were asked `[S]`, -1 for nobody.
      late: for a guard's report, which of those who do not report would miss the sampler's deadline.
    """

    ids: jax.Array
    weights: jax.Array
    num_steps: jax.Array
    invited: Any
    asked: Any = None
    late: Any = False


class How(NamedTuple):
    """What of a round is compiled in.

    Attributes:
      strategy: how the client axis is executed.
      static_steps: K, if all clients take as many steps and it is known beforehand; else None.
      diagnostics: names of what is measured.
      unequal: whether clients may differ in their numbers of steps: devices then get clients by work.
      by_examples: whether uploads are weighted by `ClientResult.example_weight`, known after the work.
    """

    strategy: Strategy
    static_steps: int | None = None
    diagnostics: tuple[str, ...] = ()
    unequal: bool = False
    by_examples: bool = False


class _Slot(NamedTuple):
    """One client of a round, or all on a leading axis; one that takes no step adds nothing."""

    id: jax.Array
    feed: Any
    num_steps: jax.Array
    weight: jax.Array
    own_report: Any = ()


class _Shared(NamedTuple):
    """What the work of all clients of a round reads; `()` for what nobody asked for."""

    algorithm: Algorithm
    model: Model
    message: Any
    key: jax.Array
    examples: Any
    states: Any
    round: jax.Array
    invited: jax.Array
    num_clients: jax.Array
    report: Any = ()
    reference: Any = ()
    test: Any = ()
    guard: Any = ()


class _Row(NamedTuple):
    """What is kept of each client beside its term of the `Total`; `()` where nobody asks.

    Attributes:
      accepted: whether it counts.
      weight: its weight in the total, 0 if it does not count.
      fault: why a guard left it out.
      contribution: what an `Aggregator` sees.
      own: what the client keeps: its report after the probe, its new state after the work.
      loss, bad_step, kept: what the history says of it after the work.
    """

    accepted: jax.Array
    weight: jax.Array
    fault: Any = ()
    contribution: Any = ()
    own: Any = ()
    loss: Any = ()
    bad_step: Any = ()
    kept: Any = ()


def federated_round(
    algorithm: Algorithm,
    model: Model,
    state: FederatedState,
    cohort: Cohort,
    feeds: Feeds,
    how: How,
    guard: Guard | None = None,
    client_test: Any = None,
) -> tuple[FederatedState, Info]:
    """One round, to be called inside a compiled program; see `make_round` and `run_rounds`.

    A client whose `num_steps` is 0 did not take part: it keeps its state and adds nothing. If nobody
    with a weight took part, or a loss is not finite, nothing changes. With a guard, a client that breaks
    a rule did not take part.
    """
    codes = []
    if guard is not None:
        codes.append(guards.before_work(cohort.asked, cohort.num_steps, cohort.late))
        cohort = cohort._replace(num_steps=jnp.where(codes[0] > 0, 0, cohort.num_steps))
    shared = _shared(algorithm, model, state, cohort, feeds, how, guard, client_test)
    situation = Situation(
        round=state.round,
        key=jax.random.fold_in(shared.key, _SERVER),
        num_clients=state.num_clients,
        invited=shared.invited,
    )
    lineup = _lineup(how, cohort.num_steps)
    slots = _Slot(cohort.ids, feeds.own, cohort.num_steps, cohort.weights)
    if lineup is not None:
        slots = lineup.seat(slots)
    if algorithm.probe is not None:
        over_clients = partial(map_reduce, how.strategy) if lineup is None else lineup.map
        total, rows = over_clients(partial(_probe, how, feeds), shared, slots)
        total, stacked = _completed(algorithm, lineup, total, rows, slots.id)
        report = server_probe(algorithm, total, situation, stacked)
        situation, shared = situation._replace(report=report), shared._replace(report=report)
        # Who was left out takes no step: it keeps its place, and is counted nowhere.
        steps = jnp.where(rows.accepted, slots.num_steps, 0)
        slots = slots._replace(num_steps=steps, own_report=rows.own)
        codes.append(_in_order(lineup, rows.fault))
    if lineup is None:
        total, rows = map_reduce(how.strategy, partial(_train_whole, how, feeds), shared, slots)
    else:
        job_of = partial(_train, how, feeds)
        total, rows = lineup.map_jobs(job_of, shared, slots, how.static_steps)
    total, stacked = _completed(algorithm, lineup, total, rows, slots.id)
    faults: Any = ()
    if guard is not None:
        skipped = total.count < guard.min_clients
        total = trees.select(skipped, trees.zeros_like(total), total)
        if stacked is not None:
            stacked = stacked._replace(ids=jnp.where(skipped, -1, stacked.ids))
        # Who breaks a rule takes no further step, and so breaks no other.
        faults = Faults(cohort.asked, sum(codes) + _in_order(lineup, rows.fault), skipped)
    server, told = server_update(
        algorithm, state.server, total, situation, stacked, state.aggregator
    )
    keeps = rows.accepted & (total.weight > 0) & told.finite
    clients = state.clients
    if jax.tree.leaves(clients):
        write_to = jnp.where(keeps, slots.id, state.num_clients)
        clients = client_table.write(how.strategy.mesh, clients, rows.own, write_to)
    new_state = state._replace(
        server=server,
        clients=clients,
        round=state.round + told.finite.astype(jnp.int32),
        aggregator=told.memory,
    )
    rows = _in_order(lineup, rows._replace(own=(), contribution=()))
    info = _info(state, cohort, rows, told)._replace(faults=faults)
    if how.strategy.mesh is None:
        return new_state, info
    return placement.keep_sharding((new_state, info), how.strategy.mesh)


def full_gradient(
    model: Model,
    strategy: Strategy,
    variables: Any,
    feeds: Feeds,
    weights: jax.Array,
    key: jax.Array,
) -> Any:
    """The mean, by the weights, of the gradients of all clients on all of their data."""
    ids = jnp.arange(weights.shape[0], dtype=jnp.int32)
    lineup = Lineup(strategy, jnp.ones_like(ids))
    slots = lineup.seat(_Slot(ids, feeds.own, jnp.ones_like(ids), weights / jnp.sum(weights)))

    def probe(shared, slot):
        model, variables, examples, key = shared
        data = probe_data(model, feeds.of(examples, slot.feed), key)
        return weighted(data.full_gradient(variables), slot.weight, slot.num_steps > 0), ()

    return lineup.map(probe, (model, variables, feeds.shared, key), slots)[0]


def _shared(algorithm, model, state, cohort, feeds, how, guard, client_test) -> _Shared:
    reference: Any = ()
    if "client_distance" in how.diagnostics:
        reference = get_variables(state.server).params
    return _Shared(
        algorithm=algorithm,
        model=model,
        message=algorithm.broadcast(state.server),
        key=jax.random.fold_in(state.key, state.round),
        examples=feeds.shared,
        states=state.clients,
        round=state.round,
        invited=jnp.asarray(cohort.invited, jnp.int32),
        num_clients=state.num_clients,
        reference=reference,
        test=() if client_test is None else client_test,
        guard=() if guard is None else guard,
    )


def _invitation(how: How, shared: _Shared, slot: _Slot) -> Invitation:
    return Invitation(
        message=shared.message,
        round=shared.round,
        id=slot.id,
        num_steps=slot.num_steps if how.static_steps is None else how.static_steps,
        invited=shared.invited,
        num_clients=shared.num_clients,
        key=jax.random.fold_in(shared.key, slot.id),
        report=shared.report,
    )


def _state_of(shared: _Shared, slot: _Slot) -> Any:
    """A client's own state, read where it is needed: nothing is gathered for the whole cohort.

    An absent slot may carry any id: it reads some client's state and writes to none.
    """
    states = shared.states
    return client_table.read(states, slot.id) if jax.tree.leaves(states) else states


def _probe(how: How, feeds: Feeds, shared: _Shared, slot: _Slot) -> tuple[Total, _Row]:
    feed, invitation = feeds.of(shared.examples, slot.feed), _invitation(how, shared, slot)
    own = client_probe(shared.algorithm, shared.model, feed, invitation, _state_of(shared, slot))
    accepted, fault = slot.num_steps > 0, ()
    if isinstance(shared.guard, Guard):
        fault = jnp.where(accepted, guards.of_report(shared.guard, sent(own)), 0)
        accepted &= fault == 0
    term = report_contribution(shared.algorithm, own, slot.weight, accepted)
    stacked = () if streams(shared.algorithm.aggregate) else sent(own)
    return term, _Row(accepted, term.weight, fault, stacked, own)


def _train(how: How, feeds: Feeds, shared: _Shared, slot: _Slot) -> Job[tuple[Total, _Row]]:
    observers = diagnostics.observers(how.diagnostics, shared.reference)
    invitation = _invitation(how, shared, slot)
    if not isinstance(shared.test, tuple):
        measure = partial(_own_metrics, shared.model, shared.test, slot.id)
        observers = (*observers, diagnostics.own_test(measure, invitation.num_steps))
    job = client_job(
        shared.algorithm,
        shared.model,
        feeds.of(shared.examples, slot.feed),
        invitation,
        _state_of(shared, slot),
        slot.own_report,
        observers,
    )
    return job._replace(finish=lambda carry: _concluded(how, shared, slot, job.finish(carry)))


def _train_whole(how: How, feeds: Feeds, shared: _Shared, slot: _Slot) -> tuple[Total, _Row]:
    return _train(how, feeds, shared, slot).whole()


def _concluded(how: How, shared: _Shared, slot: _Slot, result: ClientResult) -> tuple[Total, _Row]:
    """What the server and the history take of a client's work."""
    algorithm, fault, stacked, kept = shared.algorithm, (), (), {}
    accepted = slot.num_steps > 0
    if isinstance(shared.guard, Guard):
        made = received(algorithm, result.upload, result.num_steps)
        guards.check_uploaded_models(made, get_variables(shared.message))
        fault = jnp.where(accepted, guards.of_work(shared.guard, result, made), 0)
        accepted &= fault == 0
    if not streams(algorithm.aggregate):
        stacked = received(algorithm, result.upload, result.num_steps)
    noted: dict[str, Any] = {"first_loss": result.first_loss, "metrics": result.metrics}
    if result.observed:
        noted["diagnostics"], kept = diagnostics.joined(result.observed)
    weight = result.example_weight if how.by_examples else slot.weight
    term = contribution(
        algorithm, result.upload, result.num_steps, result.loss, weight, accepted, noted
    )
    return term, _Row(
        accepted, term.weight, fault, stacked, result.state, result.loss, result.bad_step, kept
    )


def _completed(
    algorithm: Algorithm, lineup: Lineup | None, total: Total, rows: _Row, ids: Any
) -> tuple[Total, Stacked | None]:
    """The total with the exact sum of its weights; and what an `Aggregator` sees, if there is one."""
    # Added up by pairs: one after the other, many equal float32 weights would err to one side.
    total = total._replace(weight=jnp.sum(rows.weight))
    if streams(algorithm.aggregate):
        return total, None
    ids = jnp.where(rows.accepted, ids, -1)
    return total, _in_order(lineup, Stacked(rows.contribution, rows.weight, ids))


def _lineup(how: How, num_steps: jax.Array) -> Lineup | None:
    """Who is computed in which place, if the places are not those of the cohort."""
    if how.strategy.name in ("chunked", "sharded"):
        return Lineup(how.strategy, num_steps, how.unequal)
    return None


def _in_order(lineup: Lineup | None, by_place: Any) -> Any:
    return by_place if lineup is None else lineup.in_order(by_place)


def _info(state: FederatedState, cohort: Cohort, rows: _Row, told: ServerInfo) -> Info:
    here = rows.accepted
    measured = {}
    if "diagnostics" in told.noted:
        measured = diagnostics.of_round(told.noted["diagnostics"], rows.kept, here)
    return Info(
        round=state.round,
        loss=told.loss,
        first_loss=told.noted["first_loss"],
        metrics=told.noted["metrics"],
        update_norm=told.update_norm,
        cohort=jnp.where(here, cohort.ids, -1),
        client_loss=jnp.where(here, rows.loss, 0),
        num_steps=jnp.where(here, cohort.num_steps, 0),
        # Also of a client that its work has excluded; -1 where nothing was computed.
        bad_step=jnp.where(cohort.num_steps > 0, rows.bad_step, -1),
        finite=told.finite,
        diagnostics=measured,
    )


def _own_metrics(model: Model, test: Any, client: Any, variables: Any) -> dict[str, jax.Array]:
    """A model's metrics on a client's own test examples, by the names that the history gives them."""
    offset, size = jnp.asarray(test.offsets)[client], jnp.asarray(test.sizes)[client]
    found = mean_over_rows(model, variables, test.examples, offset, size)
    return {f"user_{name}": value for name, value in found.items()}
