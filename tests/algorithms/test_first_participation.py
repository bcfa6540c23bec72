"""A client that joins late starts cleanly: algorithms whose clients keep something, by hand.

Client 4 of 5 joins in the sixth round, when the model is far from where it began, and takes part again
two rounds later. All the weight of these two rounds is its own, so that the model shows what it did.
"""

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers
from tests.oracles import reference as ref
from tests.oracles import regularised as reg

NUM_CLIENTS, STEPS, LR = 5, 3, 0.1
ALPHA, BETA, MU, TEMPERATURE = 0.4, 0.7, 0.6, 0.5
LATE, FIRST, SECOND = 4, 5, 7
COHORTS = [[0, 1], [1, 2], [2, 0], [0, 3], [1, 3], [0, LATE], [2, 1], [LATE, 0]]
SHARE = 2 / NUM_CLIENTS

ALGORITHMS = {
    "localghbm": fo.localghbm(opt.sgd(LR), BETA),
    "fedhbm": fo.fedhbm(opt.sgd(LR), BETA),
    "scaffold": fo.scaffold(opt.sgd(LR), 2),
    "scaffold_m": fo.scaffold_m(opt.sgd(LR), BETA),
    "feddyn": fo.feddyn(opt.sgd(LR), ALPHA),
    "adabest": fo.adabest(opt.sgd(LR), MU, BETA),
    "feddc": fo.feddc(opt.sgd(LR), ALPHA),
    "moon": fo.moon(opt.sgd(LR), MU, TEMPERATURE),
}


def _gradient(name):
    return ref.mlp if name == "moon" else helpers.linear


def _play(name):
    """The rounds, and the states before them and after each, in NumPy."""
    model = "mlp" if name == "moon" else "linear"
    rng = np.random.default_rng(0)
    params = _combine([2.0], [helpers.random_params(rng, model)])
    counts = {"num_clients": NUM_CLIENTS, "steps": STEPS}
    rounds = helpers.random_rounds(rng, cohorts=COHORTS, **counts)
    for t in (FIRST, SECOND):
        rounds[t]["weights"] = np.array([float(client == LATE) for client in COHORTS[t]])
    models = helpers.MODELS | {"linear": helpers.LINEAR}
    states, _ = helpers.play(ALGORITHMS[name], models[model], params, rounds, **counts)
    return rounds, [jax.device_get(state._replace(key=None)) for state in states]


def _combine(weights, trees):
    """sum_i weights[i] * trees[i]."""
    return {
        key: sum(weight * tree[key] for weight, tree in zip(weights, trees, strict=True))
        for key in trees[0]
    }


# By hand --------------------------------------------------------------------------------------


def _direction(name, server, client, num_steps):
    """What a local step subtracts, before the learning rate, of (g, y, features)."""
    x = server.variables.params
    if name in ("localghbm", "fedhbm"):
        push = -BETA * SHARE / (num_steps * LR) if client.last_round >= 0 else 0.0
        model = (lambda y: y) if name == "fedhbm" else (lambda y: x)
        return lambda g, y, _: _combine([1, push, -push], [g, model(y), client.anchor])
    if name == "scaffold":
        return lambda g, y, _: _combine([1, 1, -1], [g, server.control, client.control])
    if name == "scaffold_m":
        return lambda g, y, _: _combine(
            [BETA, BETA, -BETA, 1 - BETA], [g, server.control, client.control, server.direction]
        )
    if name == "feddyn":
        return lambda g, y, _: _combine([1, -1, ALPHA, -ALPHA], [g, client.h, y, x])
    if name == "adabest":
        return lambda g, y, _: _combine([1, -1], [g, client.h])
    if name == "feddc":
        return lambda g, y, _: _combine(
            [1, 1, ALPHA, -ALPHA, 1], [g, client.correction, y, x, server.control]
        )
    previous = client.previous.params
    return lambda g, y, features: _combine(
        [1, 1], [g, reg.moon_term(y, features, x, previous, MU, TEMPERATURE)[1]]
    )


def _local(name, server, client, batches):
    """The client's local model after its steps, and the mean of its gradients."""
    direction = _direction(name, server, client, len(batches))
    y, gradients = server.variables.params, []
    for features, labels in batches:
        gradients.append(_gradient(name)(y, features, labels)[1])
        y = _combine([1, -LR], [y, direction(gradients[-1], y, features)])
    return y, _combine([1 / len(batches)] * len(batches), gradients)


def _kept(name, server, client, y, gradient, num_steps, t):
    """What the client keeps after the round, by field."""
    x = server.variables.params
    if name == "localghbm":
        return {"anchor": x, "last_round": t}
    if name == "fedhbm":
        return {"anchor": y, "last_round": t}
    if name in ("scaffold", "scaffold_m"):
        return {"control": gradient}
    if name == "feddyn":
        return {"h": _combine([1, -ALPHA, ALPHA], [client.h, y, x])}
    if name == "adabest":
        away = t - client.last_round
        return {"h": _combine([1 / away, MU, -MU], [client.h, x, y]), "last_round": t}
    if name == "feddc":
        # alpha (h_i + y - x) - (c_i - c + (x - y) / (eta K))
        rate = ALPHA + 1 / (LR * num_steps)
        parts = [client.correction, server.control, y, x]
        return {"correction": _combine([1, 1, rate, -rate], parts)}
    return {"previous": fo.Variables(y)}


def _model(name, before, after, y):
    """The server's model, if all weight is on y."""
    if name == "feddyn":
        return _combine([1, -1 / ALPHA], [y, after.h])
    if name == "adabest":
        return _combine([1 + BETA, -BETA], [y, before.mean])
    if name == "feddc":
        return _combine([1, 1], [y, after.drift])
    return y


@pytest.mark.parametrize("name", ALGORITHMS)
def test_first_and_second_participation_are_as_by_hand(name):
    """The model and the client's state; what it keeps matters the second time, and not the first."""
    rounds, states = _play(name)
    initial = helpers.entry(states[0].clients, LATE)
    assert helpers.distance(states[0].variables, states[FIRST].variables) > 0.5
    for t in (FIRST, SECOND):
        before, after = states[t].server, states[t + 1].server
        batches = rounds[t]["batches"][COHORTS[t].index(LATE)]
        client = initial if t == FIRST else helpers.entry(states[t].clients, LATE)
        y, gradient = _local(name, before, client, batches)
        helpers.assert_close(after.variables.params, _model(name, before, after, y), 1e-12)
        expected = _kept(name, before, client, y, gradient, len(batches), t)
        kept = helpers.entry(states[t + 1].clients, LATE)
        assert set(expected) == set(kept._fields) - {"inner"}
        for field, value in expected.items():
            helpers.assert_close(getattr(kept, field), value, 1e-12)
    anew, _ = _local(name, before, initial, batches)
    assert helpers.distance(anew, y) > 1e-3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_state_is_the_initial_one_until_a_client_takes_part(name):
    """Bit for bit: zeros, no round, and for MOON the initial model."""
    _, states = _play(name)
    initial = helpers.entry(states[0].clients, LATE)
    for field in set(initial._fields) - {"inner"}:
        value = getattr(initial, field)
        expected = {
            "last_round": np.int32(-1),
            "previous": states[0].variables,
        }.get(field, jax.tree.map(np.zeros_like, value))
        helpers.assert_same_bits(value, expected)
    for t in range(FIRST + 1):
        helpers.assert_same_bits(helpers.entry(states[t].clients, LATE), initial)
    assert helpers.distance(helpers.entry(states[FIRST + 1].clients, LATE), initial) > 1e-3
    # One that takes part earlier has something by then.
    assert helpers.distance(helpers.entry(states[FIRST].clients, 0), initial) > 1e-3


@pytest.mark.parametrize("name", ["localghbm", "fedhbm"])
def test_there_is_no_momentum_in_a_first_participation(name):
    """Plain SGD from the received model: no push from zeros, nor from the initial model."""
    rounds, states = _play(name)
    before = states[FIRST].server
    batches = rounds[FIRST]["batches"][COHORTS[FIRST].index(LATE)]
    stored, y = helpers.entry(states[FIRST].clients, LATE), before.variables.params
    for batch in batches:
        y = _combine([1, -LR], [y, helpers.linear(y, *batch)[1]])
    helpers.assert_close(states[FIRST + 1].variables.params, y, 1e-12)
    for anchor in (_combine([0.0], [y]), states[0].variables.params):
        pushed, _ = _local(name, before, type(stored)(anchor, last_round=0), batches)
        assert helpers.distance(pushed, y) > 0.01


def test_moon_contrasts_a_late_first_participation_with_the_initial_model():
    """Only in the very first round of all is the term flat."""
    rounds, states = _play("moon")
    batches = rounds[FIRST]["batches"][COHORTS[FIRST].index(LATE)]
    y = states[FIRST].variables.params
    for batch in batches:
        y = _combine([1, -LR], [y, ref.mlp(y, *batch)[1]])
    assert helpers.distance(states[FIRST + 1].variables.params, y) > 1e-4


MEANS = {
    "scaffold": ("control",),
    "scaffold_m": ("control",),
    "feddyn": ("h",),
}


@pytest.mark.parametrize("name", MEANS)
def test_server_keeps_the_mean_over_all_clients(name):
    """Also over those who have not joined, who count as zero, and whatever the weights are."""
    _, states = _play(name)
    for state in states[1:]:
        for field in MEANS[name]:
            mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), getattr(state.clients, field))
            helpers.assert_close(getattr(state.server, field), mean, 1e-12)
            assert helpers.distance(mean, jax.tree.map(np.zeros_like, mean)) > 1e-4


def test_feddcs_server_keeps_the_means_that_its_clients_keep_together():
    """alpha h - c is the mean of alpha h_i - c_i."""
    _, states = _play("feddc")
    for state in states[1:]:
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), state.clients.correction)
        kept = _combine([ALPHA, -1], [state.server.drift, state.server.control])
        helpers.assert_close(kept, mean, 1e-12)
        assert helpers.distance(state.server.drift, state.server.control) > 1e-4


# AdaBest --------------------------------------------------------------------------------------


def test_adabest_fades_an_estimate_by_the_rounds_away():
    """h_i is divided by 1, 2 and 5 after so many rounds; the first time there is nothing to divide."""
    took_part = {2: None, 3: 1, 5: 2, 10: 5}
    cohorts = [[LATE, 0] if t in took_part else [t % 2, 2 + t % 2] for t in range(11)]
    rng = np.random.default_rng(1)
    params = helpers.random_params(rng, "linear")
    counts = {"num_clients": NUM_CLIENTS, "steps": STEPS}
    rounds = helpers.random_rounds(rng, cohorts=cohorts, **counts)
    states, _ = helpers.play(ALGORITHMS["adabest"], helpers.LINEAR, params, rounds, **counts)
    h = {"w": np.zeros(3)}
    for t, rnd in enumerate(rounds):
        kept = helpers.entry(states[t].clients, LATE)
        helpers.assert_close(kept.h, h, 1e-12)
        if t not in took_part:
            continue
        x = jax.device_get(states[t].variables.params)
        y = x
        for batch in rnd["batches"][0]:
            y = _combine([1, -LR, LR], [y, helpers.linear(y, *batch)[1], h])
        away, moved = took_part[t], _combine([MU, -MU], [x, y])
        if away is None:
            assert kept.last_round == -1
            away = 1
        else:
            assert t - kept.last_round == away
            # One more or less would be seen.
            assert (
                helpers.distance(_combine([1 / away], [h]), _combine([1 / (away + 1)], [h])) > 1e-3
            )
        h = _combine([1 / away, 1], [h, moved])
        after = helpers.entry(states[t + 1].clients, LATE)
        helpers.assert_close(after.h, h, 1e-12)
        assert after.last_round == t
    assert helpers.distance(h, {"w": np.zeros(3)}) > 1e-3
