"""One federated round as one program: the only round there is; an algorithm says what differs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Algorithm, Context, Facts, Kept, get_variables
from fedjax_opt.core.guard import Faults, Guard
from fedjax_opt.core.info import Info
from fedjax_opt.core.model import Model
from fedjax_opt.core.state import FederatedState
from fedjax_opt.engine import aggregate, diagnostics, local, members
from fedjax_opt.engine import guard as guards
from fedjax_opt.engine.evaluate import mean_over_rows
from fedjax_opt.engine.feeding import Feeding, probe_data
from fedjax_opt.engine.members import Member
from fedjax_opt.execution import balance, client_rows, meshes, relay, strategies
from fedjax_opt.execution.strategies import Strategy

# Client ids are below it, so this one never names a client's stream of random numbers.
_SERVER = 2**31 - 2


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
    watch: tuple[str, ...] = (),
    client_test: Any = None,
    guard: Guard | None = None,
    asked: Any = None,
    late: Any = False,
    unequal: bool = False,
) -> tuple[FederatedState, Info]:
    """One round, to be called inside a compiled program; see `make_round` for the arguments.

    A client whose `num_steps` is 0 did not take part: it keeps its state and is left out of every
    mean. If nobody with a weight took part, or a loss is not finite, nothing changes. With a guard,
    a client that breaks a rule did not take part; `asked` names those who were to, -1 for nobody, and
    `late` says which of those who do not report would miss the sampler's deadline. If
    the numbers of steps are said to be `unequal`, devices get clients by work, not by count.
    """
    size = cohort.shape[0]
    asked = cohort if asked is None else asked
    fault: Any = ()
    if guard is not None:
        fault = guards.before_work(guard, asked, num_steps, late)
        num_steps = jnp.where(fault > 0, 0, num_steps)
    present = num_steps > 0
    dtype = jnp.result_type(float)
    if aggregate.is_uniform_mean(algorithm.aggregate):
        weights = jnp.ones_like(weights)
    weights = jnp.where(present, weights, 0).astype(dtype)
    somebody = jnp.sum(weights) > 0
    weights = weights / jnp.where(somebody, jnp.sum(weights), 1)
    message = algorithm.broadcast(state.server)
    round_key = jax.random.fold_in(state.key, state.round)
    test_rows, test_examples = (), ()
    if client_test is not None:
        test_rows = jnp.asarray(client_test.offsets)[cohort], jnp.asarray(client_test.sizes)[cohort]
        test_examples = client_test.examples
    clients = Member(cohort, feeding.feed, num_steps, weights, (), test_rows, fault)
    clients = members.pad(strategy, clients)
    padded = clients.id.shape[0] > size
    dealt = balance.order(strategy, clients.num_steps, size, unequal)
    if dealt is not None:
        clients = jax.tree.map(lambda x: x[dealt], clients)
    absent = members.is_absent if padded and balance.num_parts(strategy) > 1 else None
    participation = members.participation(clients, state.num_clients)
    shared = (
        algorithm,
        message,
        round_key,
        feeding.shared,
        state.clients,
        participation,
        state.round,
        test_examples,
        guard,
    )

    def client_key(round_key, client):
        return jax.random.fold_in(round_key, client.id)

    report = ()
    if algorithm.probe is not None:

        def probe(shared, client):
            algorithm, message, round_key, examples, states, *_ = shared
            key = client_key(round_key, client)
            data = probe_data(model, feeding, examples, client.feed, key, client.id)
            assert algorithm.probe is not None  # as above: this is the same algorithm, traced
            own = algorithm.probe(message, _state_of(client, states), data)
            fault = guards.of_report(shared[-1], _sent(own))
            return _summed(algorithm, _sent(own), members.unless(fault, client)), (own, fault)

        found = strategies.map_reduce(strategy, probe, shared, clients, absent)
        report, (own_reports, faulty) = found
        clients, left = guards.exclude(clients, faulty)
        report = _mean(algorithm, report, _sent(own_reports), clients, left)
        clients = clients._replace(own_report=own_reports)
        participation = members.participation(clients, state.num_clients)
        shared = (*shared[:5], participation, *shared[6:])

    def train(shared_and_report, client):
        shared, report = shared_and_report
        algorithm, message, round_key, examples, states, share, round_number, test, guard = shared
        context = Context(
            message=message,
            client=_state_of(client, states),
            report=report,
            own_report=client.own_report,
            num_steps=_divisor(client),
            step=jnp.zeros((), jnp.int32),
            participation=share,
            round=round_number,
            id=client.id,
        )
        job = local.work(
            algorithm,
            model,
            partial(feeding.draw, examples),
            client.feed,
            client_key(round_key, client),
            context,
            client.num_steps if static_steps is None else static_steps,
            watch,
            partial(_own_metrics, model, test, client.test_rows) if client.test_rows else None,
        )
        return job._replace(finish=lambda end: conclude(shared, client, job.finish(end)))

    def conclude(shared, client, result):
        """What the server and the history take of a client's work."""
        algorithm, message, *_, guard = shared
        upload, new_state, tally, (averaged, kept) = result
        contribution, num_steps = upload, _divisor(client)
        if algorithm.receive is not None:
            contribution = algorithm.receive(upload, num_steps)
        if guard is not None:
            guards.check_uploaded_models(contribution, get_variables(message))
        steps = num_steps.astype(tally.loss_sum.dtype)
        noted = {
            "loss": tally.loss_sum / steps,
            "first_loss": tally.first_loss,
            "metrics": jax.tree.map(lambda x: x / steps.astype(x.dtype), tally.metric_sums),
        }
        fault = guards.of_work(guard, noted["loss"], upload, contribution, new_state)
        client = members.unless(fault, client)
        means = {"noted": noted, "num_steps": steps, "watched": averaged}
        means = aggregate.weighted(means, *members.say(client))
        stacked = () if aggregate.streams(algorithm.aggregate) else contribution
        own = (new_state, fault, noted["loss"], tally.bad_step, kept)
        return (_summed(algorithm, contribution, client), means), (own, stacked)

    def train_whole(known, client):
        return train(known, client).whole()

    known = (shared, report)
    if relay.applies(strategy, size, unequal):
        steps = jnp.max(clients.num_steps) if static_steps is None else static_steps
        trained = relay.map_reduce(strategy, train, known, clients, size, steps)
    else:
        trained = strategies.map_reduce(strategy, train_whole, known, clients, absent)
    (summed, means), (own, contributions) = trained
    new_states, found, *noted = own

    def in_order(tree):
        """What stands by client, in the order of the cohort and without padding."""
        tree = tree if dealt is None else balance.undo(dealt, tree)
        return jax.tree.map(lambda x: x[:size], tree)

    client_loss, bad_step, kept = in_order(noted)
    bad_step = jnp.where(num_steps > 0, bad_step, -1)  # also where nothing was computed
    clients, left = guards.exclude(clients, found)
    present = clients.num_steps > 0
    means = aggregate.finish_mean(means, jnp.sum(present, dtype=jnp.int32), left)
    mean = _mean(algorithm, summed, contributions, clients, left)
    participation = members.participation(clients, state.num_clients)
    server_key = jax.random.fold_in(round_key, _SERVER)
    facts = Facts(report, means["num_steps"], participation, state.round, server_key)
    server = algorithm.server_step(state.server, mean, facts)
    here = in_order(present)
    finite, faults = trees.all_finite(server), ()
    if guard is not None:
        guards.check_shapes("server_step(...)", server, state.server)
        skipped = jnp.sum(present, dtype=jnp.int32) < guard.min_clients
        somebody = (jnp.sum(clients.weight) > 0) & ~skipped
        finite, faults = finite | ~somebody, Faults(asked, in_order(clients.fault), skipped)
        num_steps, client_loss = in_order(clients.num_steps), jnp.where(here, client_loss, 0)
        server = trees.select(somebody, server, state.server)
    finite &= jnp.all(jnp.isfinite(jnp.where(here, client_loss, 0)))
    old_params = get_variables(state.server).params
    change = trees.subtract(get_variables(server).params, old_params)
    write_to = jnp.where(present & somebody & finite, clients.id, state.num_clients)
    info = Info(
        round=state.round,
        update_norm=jnp.sqrt(trees.squared_norm(change)),
        cohort=jnp.where(here, cohort, -1),
        client_loss=client_loss,
        num_steps=num_steps,
        bad_step=bad_step,
        finite=finite,
        diagnostics=diagnostics.of_round(means["watched"], kept, here),
        faults=faults,
        **means["noted"],
    )
    state = state._replace(
        server=trees.select(finite & somebody, server, state.server),
        clients=client_rows.write(strategy, state.clients, new_states, write_to),
        round=state.round + finite.astype(jnp.int32),
    )
    return meshes.settled((state, info), strategy.mesh)


def full_gradient(
    model: Model,
    strategy: Strategy,
    variables: Any,
    feeding: Feeding,
    weights: jax.Array,
    key: jax.Array,
) -> Any:
    """The mean, by the weights, of the gradients of all clients on all of their data."""
    ones = jnp.ones(weights.shape, jnp.int32)
    ids = jnp.arange(weights.shape[0], dtype=jnp.int32)
    clients = Member(ids, feeding.feed, ones, weights / jnp.sum(weights), (), ())
    clients = members.pad(strategy, clients)

    def probe(shared, client):
        variables, examples, key = shared
        data = probe_data(model, feeding, examples, client.feed, key)
        return aggregate.weighted(data.full_gradient(variables), *members.say(client)), ()

    shared = (variables, feeding.shared, key)
    return strategies.map_reduce(strategy, probe, shared, clients)[0]


def _divisor(client: Member) -> jax.Array:
    """K; 1 for an absent client, which takes no step: whatever divides by it must stay finite."""
    return jnp.maximum(client.num_steps, 1)


def _state_of(client: Member, states: Any) -> Any:
    """A client's own state, read where it is needed: nothing is gathered for the whole cohort.

    An absent slot may carry any id: it reads some client's state and writes to none.
    """
    return client_rows.read(states, client.id)


def _own_metrics(model: Model, examples: Any, rows: Any, variables: Any) -> dict[str, jax.Array]:
    """A model's metrics on a client's own test examples, by the names that the history gives them."""
    found = mean_over_rows(model, variables, examples, *rows)
    return {f"user_{name}": value for name, value in found.items()}


def _summed(algorithm: Algorithm, upload: Any, client: Member) -> Any:
    """What is summed over the clients: nothing where a rule wants to see all uploads at once."""
    return (
        aggregate.weighted(upload, *members.say(client))
        if aggregate.streams(algorithm.aggregate)
        else ()
    )


def _mean(algorithm: Algorithm, summed: Any, stacked: Any, clients: Member, left: Any) -> Any:
    present = clients.num_steps > 0
    if aggregate.streams(algorithm.aggregate):
        return aggregate.finish_mean(summed, jnp.sum(present, dtype=jnp.int32), left)
    assert algorithm.aggregate is not None  # the weighted mean streams
    return aggregate.apply(algorithm.aggregate, stacked, clients.weight, present)


def _sent(report: Any) -> Any:
    """The part of a report that leaves its client."""
    return report.shared if isinstance(report, Kept) else report
