"""What algorithms and wrappers do in a round, by hand, on linear regression."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

MODEL = helpers.LINEAR
NUM_CLIENTS, STEPS, LR = 5, 3, 0.3


def _problem(seed=0, **keywords):
    rng = np.random.default_rng(seed)
    rounds = helpers.random_rounds(rng, num_clients=NUM_CLIENTS, steps=STEPS, **keywords)
    return helpers.random_params(rng, "linear"), rounds


def _play(algorithm, params, rounds, model=MODEL, **keywords):
    counts = {"num_clients": NUM_CLIENTS, "steps": STEPS}
    return helpers.play(algorithm, model, params, rounds, **counts, **keywords)[0]


def test_dsgd_is_fedavg_on_the_larger_minibatch():
    """All gradients are taken at the global model, and one step along their mean."""
    params, rounds = _problem()
    rounds = helpers.equal_steps(rounds, 2)
    merged = [
        {**rnd, "batches": [[tuple(map(np.concatenate, zip(*b, strict=True)))] for b in rnd["batches"]]}
        for rnd in rounds
    ]  # fmt: skip
    expected = _play(fo.fedavg(opt.sgd(LR)), params, merged)
    states = _play(fo.dsgd(opt.sgd(LR)), params, rounds)
    helpers.assert_close(states[-1].variables, expected[-1].variables, 1e-12)


# Wrappers by hand -----------------------------------------------------------------------------

WRAPPED = {
    "dsgd": fo.dsgd(opt.sgd(LR)),
    "fedavg": fo.fedavg(opt.sgdm(LR, 0.5)),
    "mfl": fo.mfl(opt.adam(LR)),
    "fedgbo": fo.fedgbo(opt.adam(LR)),
    "mimelite": fo.mimelite(opt.sgdm(LR)),
    "scaffold-1": fo.scaffold(opt.sgd(LR), 1),
    "scaffold-2": fo.scaffold(opt.sgd(LR), 2),
    "mime": fo.mime(opt.sgdm(LR)),
    "fedhbm": fo.fedhbm(opt.sgd(LR)),
    "feddyn": fo.feddyn(opt.sgd(LR), 0.5),
    "feddc": fo.feddc(opt.sgd(LR)),
}


# The wrapper with a weight of 0.8, and the point from which its penalty (0.4 times a square) pulls away.
PENALTIES = {
    "proximal": (fo.proximal, lambda x: x),
    "weight_decay": (fo.weight_decay, lambda x: jax.tree.map(jnp.zeros_like, x)),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", PENALTIES)
@pytest.mark.parametrize("name", WRAPPED)
def test_a_penalty_is_a_term_in_the_loss(name, wrapper):
    """One round of any algorithm, probes included; the loss that is noted has no penalty."""
    params, rounds = _problem(rounds=1)
    wrap, pulled_to = PENALTIES[wrapper]
    anchor = pulled_to(jax.tree.map(jnp.asarray, params))

    def penalty(at):
        return 0.4 * sum(jnp.sum((at[leaf] - x) ** 2) for leaf, x in anchor.items())

    def loss(variables, batch, key):
        value, aux = MODEL.loss(variables, batch, key)
        return value + penalty(variables.params), aux

    counts = {"num_clients": NUM_CLIENTS, "steps": STEPS}
    penalised, noted = helpers.play(WRAPPED[name], fo.Model(None, loss), params, rounds, **counts)
    (_, wrapped), infos = helpers.play(wrap(WRAPPED[name], 0.8), MODEL, params, rounds, **counts)
    helpers.assert_close(wrapped.server, penalised[-1].server, 1e-12)
    helpers.assert_close(wrapped.clients, penalised[-1].clients, 1e-12)
    first = noted[0].first_loss - infos[0].first_loss
    helpers.assert_close(first, np.broadcast_to(penalty(params), np.shape(first)), 1e-12)
    without = _play(wrap(WRAPPED[name], 0.0), params, rounds)[-1]
    # dsgd never leaves x, where a proximal term is flat.
    flat = (name, wrapper) == ("dsgd", "proximal")
    assert (helpers.distance(without.variables, wrapped.variables) > 1e-4) != flat


# Local optimisers -----------------------------------------------------------------------------

DECAYED = optax.add_decayed_weights(helpers.DECAY)
MOMENTUM = {
    "optax": optax.chain(DECAYED, optax.sgd(LR / 10, momentum=0.9)),
    # Its momentum is normalised, by 1 - beta.
    "triple": opt.chain(DECAYED, opt.sgdm(LR, 0.9)),
}


@pytest.mark.parametrize("optimizer", MOMENTUM)
@pytest.mark.parametrize("make", [fo.fedavg, fo.scaffold], ids=["fedavg", "scaffold"])
def test_local_momentum_starts_afresh_in_every_round(make, optimizer):
    """m <- 0.9 m + g + decay y, y <- y - eta m, as PyTorch's; c_i is the mean of g, without either."""
    params, rounds = _problem(rounds=4)
    states = _play(make(MOMENTUM[optimizer]), params, rounds)
    c, controls, x = np.zeros(3), np.zeros((NUM_CLIENTS, 3)), params["w"]
    for rnd, ours in zip(rounds, states[1:], strict=True):
        ends, old = [], controls.copy()
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            y, m, gradients = x, 0.0, []
            for batch in batches:
                gradients.append(helpers.linear({"w": y}, *batch)[1]["w"])
                corrected = gradients[-1] - old[client] + c
                m = 0.9 * m + corrected + helpers.DECAY * y
                y = y - LR / 10 * m
            ends.append(y)
            if make is fo.scaffold:
                controls[client] = np.mean(gradients, axis=0)
        x, c = np.average(ends, axis=0, weights=rnd["weights"]), controls.mean(axis=0)
        helpers.assert_close(ours.variables.params["w"], x, 1e-12)
        if make is fo.scaffold:
            helpers.assert_close(ours.clients.control["w"], controls, 1e-12)


# Non-trainable state --------------------------------------------------------------------------


def _stateful_loss(variables, batch, key):
    """Linear regression that keeps a running mean of its inputs and counts its steps."""
    state = variables.state
    running = 0.5 * state["mean"] + 0.5 * jnp.mean(batch["x"], axis=0)
    new = {"mean": running, "count": state["count"] + 1}
    loss, aux = MODEL.loss(variables, batch, key)
    return loss, aux._replace(state=new)


STATEFUL = fo.Model(None, _stateful_loss)
# Each has a server of its own, or keeps models on the clients.
KEEPERS = WRAPPED | {
    "fedacg": fo.fedacg(opt.sgd(LR), 0.5, 0.1),
    "fedcm": fo.fedcm(opt.sgd(LR), 0.5, 0.7),
    "ghbm": fo.ghbm(opt.sgd(LR), 1, 0.5, 0.7),
    "ghbm_server": fo.ghbm_server(opt.sgd(LR), 1, 0.5, 0.7),
    "ghbm_theory": fo.ghbm_theory(opt.sgd(LR), 2, 0.5, 0.7),
    "scaffold_m": fo.scaffold_m(opt.sgd(LR), 0.5, 0.7),
    "adabest": fo.adabest(opt.sgd(LR), 0.1, 0.5),
    "moon": fo.moon(opt.sgd(LR)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KEEPERS)
def test_state_is_averaged_whole_and_counters_are_rounded(name):
    """Running means by the weights, whatever the step sizes; counters to the nearest whole number."""
    params, rounds = _problem(rounds=2)
    algorithm = KEEPERS[name]
    state = {"mean": np.array([3.0, -1.0, 2.0]), "count": np.int32(10)}
    states = _play(algorithm, fo.Variables(params, state), rounds, STATEFUL)
    mean, count = state["mean"], 10
    for rnd, ours in zip(rounds, states[1:], strict=True):
        weights = rnd["weights"] / rnd["weights"].sum()
        local = []
        for batches in rnd["batches"]:
            y = mean
            for x, _ in batches:
                y = 0.5 * y + 0.5 * x.mean(axis=0)
            local.append(y)
        mean = weights @ np.stack(local)
        count = np.rint(count + weights @ [len(b) for b in rnd["batches"]])
        helpers.assert_close(ours.variables.state["mean"], mean, 1e-12)
        assert ours.variables.state["count"].dtype == np.int32
        assert int(ours.variables.state["count"]) == count
    assert helpers.distance(states[0].variables.params, ours.variables.params) > 1e-3


def test_server_learning_rate_is_for_parameters_alone():
    """State moves all the way, parameters half of it."""
    params, rounds = _problem(rounds=1)
    state = {"mean": np.zeros(3), "count": np.int32(0)}
    variables = fo.Variables(params, state)
    whole = _play(fo.fedavg(opt.sgd(LR)), variables, rounds, STATEFUL)[-1].variables
    half = _play(fo.fedavg(opt.sgd(LR), 0.5), variables, rounds, STATEFUL)[-1].variables
    helpers.assert_close(whole.state, half.state, 0.0)
    middle = jax.tree.map(lambda a, b: (a + b) / 2, params, whole.params)
    helpers.assert_close(half.params, middle, 1e-12)
