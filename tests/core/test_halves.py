"""A round played by hand, client by client, with the two halves: equal to the compiled one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import received, sent
from fedjax_opt.core.compatibility import enable_x64
from fedjax_opt.engine.round import _SERVER
from tests.algorithms import helpers
from tests.algorithms.matrix import ROWS

N, COHORT, STEPS, B = 7, (5, 0, 3), 3, 4
WEIGHTS, NUM_STEPS = np.array([2.0, 0.5, 1.5]), np.array([3, 1, 2])
MODEL = helpers.MODELS["logreg"]
FEDAVG, SCAFFOLD = fo.fedavg(opt.sgd(0.1), 0.9), fo.scaffold(opt.sgd(0.1))
MORE = {
    "FedAvg, a median": fo.aggregated(FEDAVG, fo.aggregators.coordinate_median()),
    "SCAFFOLD, uniform": fo.aggregated(SCAFFOLD, fo.aggregators.uniform_mean()),
    "Mime, trimmed": fo.aggregated(fo.mime(opt.sgd(0.1)), fo.aggregators.trimmed_mean(0.34)),
    "private LocalGHBM": fo.private(fo.localghbm(opt.sgd(0.1)), "params/b"),
    "compressed SCAFFOLD": fo.compressed(
        SCAFFOLD, upload=fo.compression.uniform(8), error_feedback=True
    ),
    "downloads coded": fo.compressed(FEDAVG, download=fo.compression.uniform(8)),
}


def _examples(rng, *axes):
    return {"x": rng.normal(size=(*axes, B, 3)), "y": rng.integers(0, 2, size=(*axes, B))}


def _given(batches, probes):
    """The feed of a client whose minibatches are given, as `make_round` has them."""
    return fo.Feed(
        draw=lambda key, k: (jax.tree.map(lambda x: jnp.asarray(x)[k], batches), None),
        chunk=lambda i: (jax.tree.map(lambda x: jnp.asarray(x)[i], probes), None),
        num_chunks=2,
        extra=lambda key: (jax.tree.map(lambda x: jnp.asarray(x)[0], probes), None),
        num_examples=2 * B,
    )


def _by_hand(algorithm, state, feeds, weights=WEIGHTS, messages=None, invited=3):
    """One round in plain Python: what a deployment does."""
    own_message = algorithm.broadcast(state.server)
    messages = messages or [own_message] * len(COHORT)
    round_key = jax.random.fold_in(state.key, state.round)
    situation = fo.Situation(
        state.round, jax.random.fold_in(round_key, _SERVER), state.num_clients, invited
    )
    invitations = [
        fo.Invitation(
            message, state.round, i, k, invited, state.num_clients,
            fo.client_key(state.key, state.round, i),
        )
        for i, k, message in zip(COHORT, NUM_STEPS.tolist(), messages, strict=True)
    ]  # fmt: skip
    states = [jax.tree.map(lambda x, i=i: x[i], state.clients) for i in COHORT]
    rows = list(zip(invitations, feeds, states, weights.tolist(), strict=True))
    streams = not isinstance(algorithm.aggregate, fo.Aggregator)
    reports: list = [()] * len(COHORT)
    if algorithm.probe is not None:
        total = fo.zero_total(algorithm, state.server, reports=True)
        reports = [
            fo.client_probe(algorithm, MODEL, feed, invitation, own)
            for invitation, feed, own, _ in rows
        ]
        for report, (*_, weight) in zip(reports, rows, strict=True):
            total += fo.report_contribution(algorithm, report, weight)
        stacked = None if streams else _stacked([sent(r) for r in reports], weights)
        report = fo.server_probe(algorithm, total, situation, stacked)
        situation = situation._replace(report=report)
        rows = [(row[0]._replace(report=report), *row[1:]) for row in rows]
    total, seen, clients = fo.zero_total(algorithm, state.server), [], state.clients
    for (invitation, feed, own, weight), report in zip(rows, reports, strict=True):
        result = fo.client_update(algorithm, MODEL, feed, invitation, own, report)
        total += fo.contribution(algorithm, result.upload, result.num_steps, result.loss, weight)
        seen.append(received(algorithm, result.upload, result.num_steps))
        clients = jax.tree.map(
            lambda table, x, i=invitation.id: table.at[i].set(x), clients, result.state
        )
    server, info = fo.server_update(
        algorithm, state.server, total, situation, None if streams else _stacked(seen, weights),
        state.aggregator,
    )  # fmt: skip
    return state._replace(
        server=server, clients=clients, round=state.round + 1, aggregator=info.memory
    ), info


def _stacked(values, weights):
    value = jax.tree.map(lambda *rows: jnp.stack(rows), *values)
    return fo.Stacked(value, jnp.asarray(weights), jnp.array(COHORT, jnp.int32))


def _data(seed):
    rng = np.random.default_rng(seed)
    return _examples(rng, len(COHORT), STEPS), _examples(rng, len(COHORT), 2)


def _feeds(batches, probes):
    return [
        _given(*jax.tree.map(lambda x, i=place: x[i], (batches, probes)))
        for place in range(len(COHORT))
    ]


def _start(algorithm):
    params = helpers.random_params(np.random.default_rng(0), "logreg")
    return fo.first_state(algorithm, jax.tree.map(jnp.asarray, params), N)


@pytest.mark.parametrize("name", [*ROWS, *MORE])
def test_a_round_by_hand_is_the_compiled_round(name):
    algorithm = MORE[name] if name in MORE else ROWS[name].make(ROWS[name].learning_rate)
    state = by_hand = _start(algorithm)
    round_fn = fo.make_round(algorithm, MODEL, strategy="scan")

    @jax.jit
    def hand_fn(algorithm, state, batches, probes):
        return _by_hand(algorithm, state, _feeds(batches, probes))

    for t in range(2):
        batches, probes = _data(t)
        state, info = round_fn(
            state, np.array(COHORT), batches, WEIGHTS, NUM_STEPS, probe_batches=probes
        )
        by_hand, told = hand_fn(algorithm, by_hand, batches, probes)
        for found, expected in ((by_hand.server, state.server), (by_hand.clients, state.clients)):
            helpers.assert_close(found, expected, 1e-13)
        for what in ("loss", "update_norm"):
            helpers.assert_close(getattr(told, what), getattr(info, what), 1e-13)


# Weights that need not sum to 1 ---------------------------------------------------------------


def _round(algorithm, weights, num_steps=NUM_STEPS, dtype=jnp.float64, guard=None):
    params = helpers.random_params(np.random.default_rng(0), "logreg")
    state = fo.first_state(algorithm, jax.tree.map(lambda x: jnp.asarray(x, dtype), params), N)
    batches, probes = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == float else x, _data(0))
    round_fn = fo.make_round(algorithm, MODEL, strategy="scan", guard=guard)
    return state, *round_fn(
        state, np.array(COHORT), batches, weights, num_steps, probe_batches=probes
    )


@pytest.mark.parametrize("name", ["FedAvg", "FedAvg, a median", "Mime, trimmed"])
@pytest.mark.parametrize("scale", [2.0**-133, 2.0**-20, 2.0**124])
def test_the_scale_of_the_weights_changes_no_bit(name, scale):
    """From what is 0 in float32 to what overflows when it is added up."""
    algorithm = {**MORE, "FedAvg": FEDAVG}[name]
    with enable_x64(False):
        _, one, info = _round(algorithm, WEIGHTS, dtype=jnp.float32)
        _, other, scaled = _round(algorithm, scale * WEIGHTS, dtype=jnp.float32)
    helpers.assert_same_bits(one, other)
    helpers.assert_same_bits(info, scaled)


def test_weights_that_are_known_only_inside_of_a_program_are_scaled_too():
    params = {"w": jnp.zeros((3, 2), jnp.float32), "b": jnp.zeros(2, jnp.float32)}
    state = fo.first_state(FEDAVG, params, N)
    batches = jax.tree.map(lambda x: x.astype(np.float32) if x.dtype == float else x, _data(0)[0])
    round_fn = fo.make_round(FEDAVG, MODEL, strategy="scan")

    @jax.jit
    def loss(weights):
        return round_fn(state, np.array(COHORT), batches, weights)[1].loss

    with enable_x64(False):
        losses = [loss(jnp.asarray(s * WEIGHTS, jnp.float32)) for s in (1.0, 2.0**124, 2.0**-120)]
    assert float(losses[0]) == float(losses[1]) == float(losses[2]) > 0


@pytest.mark.parametrize("strategy", ["scan", "chunked"])
def test_many_equal_weights_are_added_up_by_pairs(strategy):
    """One after the other, 20,000 of them are off by 3e-5."""
    size = 20_000

    def loss(variables, batch, key):
        del key
        return jnp.sum(variables.params["x"] * batch), fo.Aux()

    def weight(server, mean, situation):
        del mean
        return server._replace(variables=fo.Variables({"x": situation.weight}))

    algorithm = FEDAVG._replace(server_step=weight)
    with enable_x64(False):
        state = fo.first_state(algorithm, {"x": jnp.zeros((), jnp.float32)}, size)
        round_fn = fo.make_round(
            algorithm, fo.Model(None, loss), strategy=helpers.STRATEGIES[strategy]
        )
        weights = np.full(size, 0.7, np.float32)
        batches = np.ones((size, 1, 1), np.float32)
        after, _ = round_fn(state, np.arange(size), batches, weights)
        found = float(after.variables.params["x"])
    assert abs(found / (size * float(weights[0])) - 1) < 1e-6
    assert abs(np.cumsum(weights)[-1] / (size * float(weights[0])) - 1) > 1e-5


@pytest.mark.parametrize("name", ["scaffold-2", "feddyn"])
def test_a_weight_of_zero_counts_where_all_count_alike(name):
    """Its change of a control variate is in the plain mean, its model is in no weighted one."""
    algorithm = ROWS[name].make(0.1)
    start, zero, info = _round(algorithm, np.array([2.0, 0.0, 1.5]))
    _, absent, _ = _round(algorithm, np.array([2.0, 1.0, 1.5]), np.array([3, 0, 2]))
    assert info.cohort.tolist() == list(COHORT)
    part = "control" if name == "scaffold-2" else "h"
    assert helpers.distance(getattr(zero.server, part), getattr(absent.server, part)) > 1e-3
    # It took part, so what it keeps has changed.
    here, there = (helpers.entry(s.clients, COHORT[1]) for s in (zero, start))
    assert helpers.distance(here, there) > 1e-3


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedAvgM", "FedAvg, a median"])
@pytest.mark.parametrize("how", ["absent", "weightless"])
def test_an_empty_round_changes_nothing_and_means_nothing(name, how):
    algorithm = {
        **MORE, "FedAvg": FEDAVG, "SCAFFOLD": SCAFFOLD, "FedAvgM": fo.fedavgm(opt.sgd(0.1), 0.5),
    }[name]  # fmt: skip
    _, state, _ = _round(algorithm, WEIGHTS)
    round_fn = fo.make_round(algorithm, MODEL, strategy="scan")
    steps = np.zeros(3, int) if how == "absent" else NUM_STEPS
    weights = WEIGHTS if how == "absent" else jnp.zeros(3)

    @jax.jit  # where weights are not known, they may all be 0
    def play(weights):
        return round_fn(state, np.array(COHORT), _data(1)[0], weights, steps)

    after, info = play(weights)
    helpers.assert_same_bits(after._replace(round=state.round), state)
    assert int(after.round) == 2 and bool(info.finite) and float(info.update_norm) == 0
    assert np.isnan(info.loss) and np.isnan(info.first_loss)


def test_a_derivative_through_an_empty_round_is_zero():
    batches = _data(0)[0]

    @jax.grad
    def slope(scale):
        params = helpers.random_params(np.random.default_rng(0), "logreg")
        state = fo.first_state(FEDAVG, jax.tree.map(lambda x: scale * x, params), N)
        round_fn = fo.make_round(FEDAVG, MODEL, strategy="scan")
        after, _ = round_fn(state, np.array(COHORT), batches, 0 * scale * jnp.ones(3))
        return jnp.sum(after.variables.params["w"])

    expected = helpers.random_params(np.random.default_rng(0), "logreg")["w"].sum()
    np.testing.assert_allclose(slope(1.0), expected, rtol=1e-12)


def test_an_algorithm_may_take_its_step_in_an_empty_round():
    """Noise for privacy must not depend on who is there."""

    def noisy(server, mean, situation):
        moved = FEDAVG.server_step(server, mean, situation)
        return moved._replace(variables=jax.tree.map(lambda x: x + 1, moved.variables))

    steps = np.zeros(3, int)
    for always in (False, True):
        algorithm = FEDAVG._replace(server_step=noisy, runs_on_empty=always)
        start, after, info = _round(algorithm, WEIGHTS, steps)
        expected = trees.add(start.variables, jax.tree.map(jnp.ones_like, start.variables))
        expected = expected if always else start.variables
        helpers.assert_same_bits(after.variables, expected)
        assert np.isnan(info.loss) and (float(info.update_norm) > 0) == always
    hash(jax.tree.structure(algorithm))  # it is structure, not a hyperparameter
    assert fo.private(algorithm, "params/b").runs_on_empty


# Contributions --------------------------------------------------------------------------------


def test_a_client_that_is_left_out_adds_zeros_whatever_it_sent():
    bad = fo.Variables({"w": jnp.array([jnp.nan, jnp.inf]), "b": jnp.ones(())})
    good = jax.tree.map(lambda x: jnp.ones_like(x), bad)
    out = fo.contribution(FEDAVG, bad, 3, jnp.nan, 2.0, accepted=False)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(out))
    total = fo.contribution(FEDAVG, good, 3, 0.5, 2.0)
    helpers.assert_same_bits(total + out, total)


def test_totals_of_another_kind_are_not_added():
    upload = fo.Variables({"w": jnp.ones(2)})
    total = fo.contribution(FEDAVG, upload, 3, 0.5, 2.0)
    for other in (
        fo.contribution(FEDAVG, fo.Variables({"w": jnp.ones(3)}), 3, 0.5, 2.0),
        fo.contribution(FEDAVG, fo.Variables({"w": jnp.ones(2, jnp.float32)}), 3, 0.5, 2.0),
        fo.contribution(FEDAVG, fo.Variables({"v": jnp.ones(2)}), 3, 0.5, 2.0),
    ):
        with pytest.raises(ValueError, match="same structure, shapes and dtypes"):
            total + other


def test_short_numbers_are_added_up_in_float32():
    upload = fo.Variables({"w": jnp.ones(2, jnp.bfloat16)})
    assert fo.contribution(FEDAVG, upload, 3, 0.5, 2.0).value.params["w"].dtype == jnp.float32


def test_a_nan_of_an_unguarded_client_stops_the_round_whatever_its_weight():
    batches, _ = _data(0)
    batches["x"][1] = np.nan
    state, round_fn = _start(FEDAVG), fo.make_round(FEDAVG, MODEL, strategy="scan")
    weights = np.array([1.0, 0.0, 1.0])
    after, info = round_fn(state, np.array(COHORT), batches, weights)
    assert not info.finite
    helpers.assert_same_bits(after, state)


# Messages, invitations and what a client may know ----------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "feddyn", "scaffold-2"])
def test_clients_of_one_round_may_start_from_different_messages(name):
    """In an asynchronous run one of them still works on an older model."""
    algorithm = ROWS[name].make(0.1)
    old, new, _ = _round(algorithm, WEIGHTS)
    batches, probes = _data(1)
    messages = [algorithm.broadcast(s.server) for s in (new, old, new)]
    mixed, _ = _by_hand(algorithm, new, _feeds(batches, probes), messages=messages)
    own = [
        _by_hand(algorithm, new, _feeds(batches, probes), WEIGHTS * mask, messages=[m] * 3)[0]
        for m, mask in ((messages[0], [1, 0, 1]), (messages[1], [0, 1, 0]))
    ]
    for state in own:
        assert helpers.distance(state.variables, mixed.variables) > 1e-4
    # Its upload is what it would have sent in a round of its own.
    only = helpers.entry(own[1].clients, COHORT[1])
    helpers.assert_close(helpers.entry(mixed.clients, COHORT[1]), only, 1e-15)
    if name == "fedavg":
        share = (WEIGHTS * [1, 0, 1]).sum() / WEIGHTS.sum()
        expected = jax.tree.map(
            lambda a, b: share * a + (1 - share) * b, *(s.variables for s in own)
        )
        helpers.assert_close(mixed.variables, expected, 1e-14)


def test_clients_know_who_was_asked_and_the_server_who_reported():
    """Of four asked one never reports: 4 / 7 for the clients, 3 / 7 for the server."""

    def step(local, objective, batch, context):
        local, evaluation = FEDAVG.step(local, objective, batch, context)
        seen = {"C": context.participation, "asked": context.invited, "N": context.num_clients}
        return local, evaluation._replace(
            metrics={name: jnp.asarray(x, float) for name, x in seen.items()}
        )

    def server_step(server, mean, situation):
        del mean
        counted = jnp.stack([situation.participation, situation.count.astype(float)])
        return server._replace(variables=fo.Variables({"w": counted}))

    algorithm = FEDAVG._replace(step=step, server_step=server_step)

    def loss(variables, batch, key):
        del key
        return jnp.mean((variables.params["w"][None] - batch) ** 2), fo.Aux()

    round_fn = fo.make_round(algorithm, fo.Model(None, loss), strategy="scan")
    state = fo.first_state(algorithm, {"w": jnp.zeros(2)}, N)
    steps = np.array([2, 0, 1, 2])
    after, info = round_fn(state, np.array([1, 2, 3, 4]), np.ones((4, 2, 1, 2)), None, steps)
    found = {name: float(value) for name, value in info.metrics.items()}
    assert found == pytest.approx({"C": 4 / 7, "asked": 4, "N": 7})
    np.testing.assert_allclose(after.variables.params["w"], [3 / 7, 3])


def test_localghbm_pushes_by_the_fraction_that_was_asked():
    """Of three asked one never reports; the two others cannot know, so C is 3 / 7 for them, not 2 / 7.

    y = x - eta (x - b_i) + beta C (x - a_i), with one step and a_i the model of the round before.
    """
    rate, beta, targets = 0.1, 0.5, np.array([1.0, 2.0, 4.0])

    def loss(variables, batch, key):
        del key
        return jnp.mean((variables.params["x"] - batch) ** 2) / 2, fo.Aux()

    algorithm = fo.localghbm(opt.sgd(rate), beta)
    round_fn = fo.make_round(algorithm, fo.Model(None, loss), strategy="scan")
    state = fo.first_state(algorithm, {"x": jnp.zeros(())}, N)
    here, models = np.array([1, 0, 1]), [0.0]
    for t in range(2):
        state, _ = round_fn(state, np.array(COHORT), targets[:, None, None], None, here)
        x = models[-1]
        push = beta * 3 / 7 * (x - models[0]) if t else 0.0
        models.append(float(np.mean((x - rate * (x - targets) + push)[here > 0])))
        np.testing.assert_allclose(state.variables.params["x"], models[-1], rtol=1e-13)


def test_a_client_alone_draws_the_minibatches_of_a_simulation():
    """A deployed client needs its examples, its invitation and nothing else; compiled, or not."""
    rng = np.random.default_rng(0)
    data = fo.ClientData.from_list(
        [{"x": rng.normal(size=(n, 3)), "y": rng.integers(0, 2, size=n)} for n in (5, 8, 3)]
    )
    model = fo.Model(lambda key, batch: fo.Variables(_start(SCAFFOLD).variables.params), MODEL.loss)
    federation = fo.Federation(model, data, cohort=3, local_steps=4, batch_size=2)
    state = fo.init_state(SCAFFOLD, federation, 3)
    after, history = fo.run_rounds(SCAFFOLD, federation, state, 1, strategy="scan")
    work = jax.jit(fo.client_update)
    total, results = fo.zero_total(SCAFFOLD, state.server), {}
    for client in range(3):
        invitation = fo.Invitation(
            SCAFFOLD.broadcast(state.server), 0, client, 4, 3, 3,
            fo.client_key(state.key, 0, client),
        )  # fmt: skip
        own = helpers.entry(state.clients, client)
        result = work(SCAFFOLD, model, fo.feed(data[client], 2), invitation, own)
        results[client] = result.state
        total += fo.contribution(
            SCAFFOLD, result.upload, result.num_steps, result.loss, result.num_examples
        )
        helpers.assert_close(helpers.entry(after.clients, client), result.state, 1e-13)
    situation = fo.Situation(0, jax.random.key(0), 3, 3)
    server, info = fo.server_update(SCAFFOLD, state.server, total, situation)
    helpers.assert_close(server, after.server, 1e-13)
    helpers.assert_close(info.loss, history.loss[0], 1e-13)
    tested = sum(
        [fo.client_evaluate(model, server.variables, fo.feed(data[i], 2)) for i in (1, 2)],
        start=fo.client_evaluate(model, server.variables, fo.feed(data[0], 2)),
    )
    expected = fo.evaluate(model, server.variables, data)
    helpers.assert_close({**tested.mean, "loss": tested.mean_loss}, expected, 1e-13)


# Aggregators ------------------------------------------------------------------------------------


def _counting():
    """The mean of whole uploads; it remembers how often each client was counted."""

    def apply(stacked, situation, memory):
        del situation
        mean = jax.tree.map(lambda x: jnp.tensordot(stacked.weights, x, axes=1), stacked.value)
        return mean, memory.at[jnp.where(stacked.ids < 0, N, stacked.ids)].add(1, mode="drop")

    return fo.Aggregator(lambda shapes: jnp.zeros(N, jnp.int32), apply)


def test_an_aggregator_remembers_what_it_saw_unless_the_round_changed_nothing():
    algorithm = fo.aggregated(FEDAVG, _counting())
    _, state, _ = _round(algorithm, WEIGHTS, np.array([2, 0, 1]))
    assert state.aggregator.tolist() == [0, 0, 0, 1, 0, 1, 0]
    helpers.assert_close(
        state.server, _round(FEDAVG, WEIGHTS, np.array([2, 0, 1]))[1].server, 1e-14
    )
    round_fn = fo.make_round(algorithm, MODEL, strategy="scan")
    batches = _data(1)[0]
    empty, _ = round_fn(state, np.array(COHORT), batches, WEIGHTS, np.zeros(3, int))
    helpers.assert_same_bits(empty._replace(round=state.round), state)
    batches["x"][0] = np.nan
    diverged, info = round_fn(state, np.array(COHORT), batches, WEIGHTS)
    assert not info.finite
    helpers.assert_same_bits(diverged, state)


@pytest.mark.parametrize("strategy", ["vmap", "chunked", "sharded"])
def test_an_aggregator_sees_the_cohort_in_its_order_under_every_strategy(strategy):
    def apply(stacked, situation, memory):
        del situation
        assert stacked.ids.shape == (3,)
        mean = jax.tree.map(lambda x: jnp.tensordot(stacked.weights, x, axes=1), stacked.value)
        return mean, stacked.ids + 0 * memory

    rule = fo.Aggregator(lambda shapes: jnp.zeros(3, jnp.int32), apply)
    algorithm = fo.aggregated(FEDAVG, rule)
    round_fn = fo.make_round(algorithm, MODEL, strategy=helpers.STRATEGIES[strategy])
    state = helpers.place(_start(algorithm), strategy)
    after, _ = round_fn(state, np.array(COHORT), _data(0)[0], WEIGHTS, NUM_STEPS)
    assert after.aggregator.tolist() == list(COHORT)
    helpers.assert_close(after.server, _round(FEDAVG, WEIGHTS)[1].server, 1e-14)


def test_a_state_without_the_aggregators_memory_is_refused():
    round_fn = fo.make_round(fo.aggregated(FEDAVG, _counting()), MODEL, strategy="scan")
    with pytest.raises(ValueError, match=r"state\.aggregator must have"):
        round_fn(_start(FEDAVG), np.array(COHORT), _data(0)[0])
    with pytest.raises(ValueError, match="stacked must be given"):
        algorithm = fo.aggregated(FEDAVG, _counting())
        server = _start(algorithm).server
        total = fo.zero_total(algorithm, server)
        fo.server_update(algorithm, server, total, fo.Situation(0, jax.random.key(0), N, 3))


# Coded uploads --------------------------------------------------------------------------------


def test_a_coded_upload_is_sent_in_its_very_bytes_and_is_not_computed_with():
    algorithm = fo.compressed(FEDAVG, upload=fo.compression.ce_fedavg(sparsity=0.5))
    state = _start(algorithm)
    feed, key = _feeds(*_data(0))[0], fo.client_key(state.key, 0, 5)
    invitation = fo.Invitation(algorithm.broadcast(state.server), 0, 5, 3, 3, N, key)
    upload = jax.jit(lambda: fo.client_update(algorithm, MODEL, feed, invitation).upload)()
    sent = fo.compression.bytes_of_coded(upload)
    assert len(sent) == int(upload.num_bytes)
    read = fo.compression.decode(upload.codec, sent, upload.inner)
    helpers.assert_same_bits(read, upload.inner)
    for compute in (
        lambda: trees.scale(0.01, upload),
        lambda: trees.add(upload, upload),
        lambda: trees.subtract(upload, upload),
        lambda: trees.add_scaled(upload, 0.5, upload),
    ):
        with pytest.raises(ValueError, match="would change the number of its bytes"):
            compute()
    changed = upload.changed(jax.tree.map(jnp.zeros_like, upload.inner))
    with pytest.raises(ValueError, match="was changed after it was coded"):
        fo.compression.bytes_of_coded(changed)
