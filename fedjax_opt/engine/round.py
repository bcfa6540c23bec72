"""One federated round as one program: the two halves, and the way over the clients between them.

    cohort -> [invitation -> client_update -> contribution] per client -> Total -> server_update -> info

`client.py` says what a client does and `server.py` what the server makes of it; here they are laid over
a cohort by a function of `execution`, which sums the `Total` and stacks a `_Row` of each client.
"""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_opt.core import guard as guards
from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import (
    Aggregator,
    Algorithm,
    Situation,
    Stacked,
    get_variables,
    received,
    sent,
)
from fedjax_opt.core.aliases import ClientState, Contribution, Message, Params, Report, Tree
from fedjax_opt.core.client_data import ClientData
from fedjax_opt.core.guard import Faults, Guard
from fedjax_opt.core.info import Info
from fedjax_opt.core.model import Model, Variables
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine import diagnostics
from fedjax_opt.engine.client import (
    ClientResult,
    Invitation,
    Observer,
    client_job,
    client_probe,
    probe_data,
)
from fedjax_opt.engine.evaluate import mean_over_rows
from fedjax_opt.engine.minibatches import Feed, Feeds
from fedjax_opt.engine.server import (
    ServerInfo,
    Total,
    contribution,
    report_contribution,
    server_probe,
    server_update,
    weighted,
)
from fedjax_opt.execution import client_table, placement
from fedjax_opt.execution.jobs import Job, whole
from fedjax_opt.execution.lineup import Lineup
from fedjax_opt.execution.strategies import Strategy, map_reduce

# Client ids are below it, so this one never names a client's stream of random numbers.
_SERVER = 2**31 - 2


class Cohort(NamedTuple):
    """Who takes part in a round; arrays `[S]`."""

    ids: jax.Array
    weights: jax.Array  # not negative; they need not sum to 1
    num_steps: jax.Array  # 0 for one that does not report
    invited: jax.Array | int  # how many were asked
    asked: jax.Array  # for a guard's report: their ids, -1 for nobody
    late: jax.Array | bool = False  # and which of them would miss the sampler's deadline
    unequal: bool = False  # they may differ in their steps: devices then get clients by work


class How(NamedTuple):
    """What of a round is compiled in."""

    strategy: Strategy
    static_steps: int | None = None  # K, if it is known beforehand
    diagnostics: tuple[str, ...] = ()
    by_examples: bool = False  # uploads are weighted by `ClientResult.example_weight`


class _Slot(NamedTuple):
    """One client of a round, or all on a leading axis; one that takes no step adds nothing."""

    id: jax.Array
    feed: Tree
    num_steps: jax.Array
    weight: jax.Array
    own_report: Report = ()


class _Shared(NamedTuple):
    """What the work of all clients of a round reads."""

    algorithm: Algorithm
    model: Model
    message: Message
    key: chex.PRNGKey
    examples: Tree
    states: ClientState
    round: jax.Array
    invited: jax.Array
    num_clients: jax.Array
    report: Report = ()
    reference: Params = ()
    test: ClientData | None = None
    guard: Guard | None = None


class _Row(NamedTuple):
    """What is kept of each client beside its term of the `Total`; `()` where nobody asks."""

    accepted: jax.Array
    weight: jax.Array  # in the total
    fault: Tree = ()  # why a guard left it out
    contribution: Contribution = ()  # what an `Aggregator` sees
    own: ClientState = ()  # its report after the probe, its new state after the work
    loss: Tree = ()  # this and what follows is for the history
    bad_step: Tree = ()
    kept: Tree = ()


def federated_round(
    algorithm: Algorithm,
    model: Model,
    state: FederatedState,
    cohort: Cohort,
    feeds: Feeds,
    how: How,
    guard: Guard | None = None,
    client_test: ClientData | None = None,
) -> tuple[FederatedState, Info]:
    """One round, to be called inside a compiled program; see `make_round` and `run_rounds`."""
    apart = "client_distance" in how.diagnostics
    shared = _Shared(
        algorithm=algorithm,
        model=model,
        message=algorithm.broadcast(state.server),
        key=jax.random.fold_in(state.key, state.round),
        examples=feeds.shared,
        states=state.clients,
        round=state.round,
        invited=jnp.asarray(cohort.invited, jnp.int32),
        num_clients=state.num_clients,
        reference=get_variables(state.server).params if apart else (),
        test=client_test,
        guard=guard,
    )
    server_key = jax.random.fold_in(shared.key, _SERVER)
    situation = Situation(state.round, server_key, state.num_clients, shared.invited)
    slots = _Slot(cohort.ids, feeds.own, cohort.num_steps, cohort.weights)
    lineup = None
    if how.strategy.name in ("chunked", "sharded"):
        lineup = Lineup(how.strategy, cohort.num_steps, cohort.unequal)
        slots = lineup.seat(slots)
    found: Tree = 0
    if algorithm.probe is not None:
        report, slots, found = _probed(how, feeds, shared, slots, situation, lineup)
        situation, shared = situation._replace(report=report), shared._replace(report=report)
    job_of = partial(_train, how, feeds)
    if lineup is None:
        total, rows = map_reduce(how.strategy, partial(whole, job_of), shared, slots)
    else:
        total, rows = lineup.map_jobs(job_of, shared, slots, how.static_steps)
    total, stacked = _completed(algorithm, lineup, total, rows, slots.id)
    faults = ()
    if guard is not None:
        skipped = total.count < guard.min_clients
        total = trees.select(skipped, trees.zeros_like(total), total)
        if stacked is not None:
            stacked = stacked._replace(ids=jnp.where(skipped, -1, stacked.ids))
        # Who breaks a rule takes no further step, and so breaks no other.
        code = guards.before_work(cohort.asked, cohort.num_steps, cohort.late)
        code += found + _in_order(lineup, rows.fault)
        faults = Faults(cohort.asked, code, skipped)
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
    info = _info(state, cohort, rows, told, faults)
    if how.strategy.mesh is None:
        return new_state, info
    return placement.keep_sharding((new_state, info), how.strategy.mesh)


def momentum_deviation(
    model: Model, strategy: Strategy, state: FederatedState, feeds: Feeds, weights: jax.Array
) -> jax.Array:
    """The server's momentum beside the mean, by the weights, of all clients' gradients on all data."""
    ids = jnp.arange(weights.shape[0], dtype=jnp.int32)
    lineup = Lineup(strategy, jnp.ones_like(ids))
    slots = lineup.seat(_Slot(ids, feeds.own, jnp.ones_like(ids), weights / jnp.sum(weights)))

    def probe(shared, slot):
        model, variables, examples, key = shared
        data = probe_data(model, feeds.of(examples, slot.feed), key)
        return weighted(data.full_gradient(variables), slot.weight, slot.num_steps > 0), ()

    key = jax.random.fold_in(state.key, state.round)
    shared = model, get_variables(state.server), feeds.shared, key
    return diagnostics.momentum_deviation(state.server, lineup.map(probe, shared, slots)[0])


def _client(
    how: How, feeds: Feeds, shared: _Shared, slot: _Slot
) -> tuple[Feed, Invitation, ClientState]:
    """What a client works with. Its state is read here: nothing is gathered for the whole cohort."""
    invitation = Invitation(
        message=shared.message,
        round=shared.round,
        id=slot.id,
        num_steps=slot.num_steps if how.static_steps is None else how.static_steps,
        invited=shared.invited,
        num_clients=shared.num_clients,
        key=jax.random.fold_in(shared.key, slot.id),
        report=shared.report,
    )
    state = shared.states  # of an absent slot anybody's: it is read, and written nowhere
    if jax.tree.leaves(state):
        state = client_table.read(state, slot.id)
    return feeds.of(shared.examples, slot.feed), invitation, state


def _probed(
    how: How,
    feeds: Feeds,
    shared: _Shared,
    slots: _Slot,
    situation: Situation,
    lineup: Lineup | None,
) -> tuple[Report, _Slot, Tree]:
    """The cohort's mean report, the slots with their own, and who was left out."""
    over_clients = partial(map_reduce, how.strategy) if lineup is None else lineup.map
    total, rows = over_clients(partial(_probe, how, feeds), shared, slots)
    total, stacked = _completed(shared.algorithm, lineup, total, rows, slots.id)
    report = server_probe(shared.algorithm, total, situation, stacked)
    # Who was left out takes no step: it keeps its place, and is counted nowhere.
    steps = jnp.where(rows.accepted, slots.num_steps, 0)
    slots = slots._replace(num_steps=steps, own_report=rows.own)
    return report, slots, _in_order(lineup, rows.fault)


def _probe(how: How, feeds: Feeds, shared: _Shared, slot: _Slot) -> tuple[Total, _Row]:
    algorithm = shared.algorithm
    own = client_probe(algorithm, shared.model, *_client(how, feeds, shared, slot))
    accepted, fault = slot.num_steps > 0, ()
    if shared.guard is not None:
        fault = jnp.where(accepted, guards.of_report(shared.guard, sent(own)), 0)
        accepted &= fault == 0
    term = report_contribution(algorithm, own, slot.weight, accepted)
    stacked = sent(own) if isinstance(algorithm.aggregate, Aggregator) else ()
    return term, _Row(accepted, term.weight, fault, stacked, own)


def _train(how: How, feeds: Feeds, shared: _Shared, slot: _Slot) -> Job[tuple[Total, _Row]]:
    feed, invitation, state = _client(how, feeds, shared, slot)
    observers: tuple[Observer, ...] = ()
    if how.diagnostics:
        observers = diagnostics.observers(how.diagnostics, shared.reference)
    if shared.test is not None:
        measure = partial(_own_metrics, shared.model, shared.test, slot.id)
        observers += (diagnostics.own_test(measure, invitation.num_steps),)
    begin, step, finish, num_steps = client_job(
        shared.algorithm, shared.model, feed, invitation, state, slot.own_report, observers
    )
    return Job(begin, step, lambda carry: _concluded(how, shared, slot, finish(carry)), num_steps)


def _concluded(how: How, shared: _Shared, slot: _Slot, result: ClientResult) -> tuple[Total, _Row]:
    """What the server and the history take of a client's work."""
    algorithm, fault, stacked, kept = shared.algorithm, (), (), {}
    accepted = slot.num_steps > 0
    if shared.guard is not None:
        made = received(algorithm, result.upload, result.num_steps)
        guards.check_uploaded_models(made, get_variables(shared.message))
        fault = guards.of_work(shared.guard, result.loss, result.upload, made, result.state)
        fault = jnp.where(accepted, fault, 0)
        accepted &= fault == 0
    if isinstance(algorithm.aggregate, Aggregator):
        stacked = received(algorithm, result.upload, result.num_steps)
    noted: dict[str, Tree] = {"first_loss": result.first_loss, "metrics": result.metrics}
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
    algorithm: Algorithm, lineup: Lineup | None, total: Total, rows: _Row, ids: jax.Array
) -> tuple[Total, Stacked | None]:
    """The total with the exact sum of its weights; and what an `Aggregator` sees, if there is one."""
    # Added up by pairs: one after the other, many equal float32 weights would err to one side.
    total = total._replace(weight=jnp.sum(rows.weight))
    if not isinstance(algorithm.aggregate, Aggregator):
        return total, None
    ids = jnp.where(rows.accepted, ids, -1)
    return total, _in_order(lineup, Stacked(rows.contribution, rows.weight, ids))


def _in_order(lineup: Lineup | None, by_place: Tree) -> Tree:
    return by_place if lineup is None else lineup.in_order(by_place)


def _info(
    state: FederatedState, cohort: Cohort, rows: _Row, told: ServerInfo, faults: Tree
) -> Info:
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
        faults=faults,
    )


def _own_metrics(
    model: Model, test: ClientData, client: jax.Array, variables: Variables
) -> dict[str, jax.Array]:
    """A model's metrics on a client's own test examples, by the names that the history gives them."""
    offset, size = jnp.asarray(test.offsets)[client], jnp.asarray(test.sizes)[client]
    found = mean_over_rows(model, variables, test.examples, offset, size)
    return {f"user_{name}": value for name, value in found.items()}
