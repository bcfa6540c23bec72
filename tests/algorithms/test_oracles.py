"""Each algorithm against its NumPy oracle on random problems, to 1e-12.

Cohorts are random, clients have unequal weights and unequal numbers of steps, hyperparameters are drawn
anew for every example, and what clients keep lasts over the rounds. Logistic regression is trained
without weight decay, the MLP with it.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers
from tests.oracles import reference as ref

NUM_CLIENTS, STEPS = 5, 4
TRIPLES = {
    "sgd": lambda lr, h: opt.sgd(lr),
    "sgdm": lambda lr, h: opt.sgdm(lr, h["beta"]),
    "rmsprop": lambda lr, h: opt.rmsprop(lr, h["beta"], h["eps"], h["v0"]),
    "adagrad": lambda lr, h: opt.adagrad(lr, h["eps"], h["v0"]),
    "adam": lambda lr, h: opt.adam(lr, h["beta1"], h["beta2"], h["eps"], h["v0"]),
    "yogi": lambda lr, h: opt.yogi(lr, h["beta1"], h["beta2"], h["eps"], h["v0"]),
}
MOMENTS = ("beta", "beta1", "beta2", "eps", "v0")


class Case(NamedTuple):
    """An algorithm of (hyperparameters, what to do to the local optimiser), and its oracle."""

    make: Any
    oracle: Any
    takes: tuple
    fixed: dict


def _sgd(h, local):
    return local(opt.sgd(h["lr"]))


def _adaptive(server):
    def make(h, local):
        if server == "momentum":
            return fo.fedavgm(_sgd(h, local), h["server_lr"], h["beta"])
        return fo.adaptive_fedopt(_sgd(h, local), TRIPLES[server](h["server_lr"], h))

    return Case(make, ref.adaptive_fedopt, MOMENTS, {"server": server})


def _global(algorithm, oracle, name):
    def make(h, local):
        return algorithm(local(TRIPLES[name](h["lr"], h)), h["server_lr"])

    return Case(make, oracle, MOMENTS, {"optimizer": name})


def _scaffold(option):
    def make(h, local):
        return fo.scaffold(_sgd(h, local), option, h["server_lr"])

    return Case(make, ref.scaffold, (), {"option": option, "num_clients": NUM_CLIENTS})


CASES = {
    "fedavg": Case(lambda h, local: fo.fedavg(_sgd(h, local), h["server_lr"]), ref.fedavg, (), {}),
    "fedprox": Case(
        lambda h, local: fo.fedprox(_sgd(h, local), h["mu"], h["server_lr"]), ref.fedprox, ("mu",), {}
    ),
    **{
        f"adaptive-{server}": _adaptive(server)
        for server in ("sgd", "sgdm", "momentum", "adam", "yogi", "adagrad", "rmsprop")
    },
    **{
        f"{algorithm.__name__}-{name}": _global(algorithm, oracle, name)
        for algorithm, oracle in (
            (fo.mfl, ref.mfl), (fo.fedgbo, ref.fedgbo), (fo.mimelite, ref.mimelite)
        )
        for name in ("sgdm", "rmsprop", "adam")
    },
    "mimexlite-adam": _global(fo.mimexlite, ref.mimelite, "adam"),
    "scaffold-1": _scaffold(1),
    "scaffold-2": _scaffold(2),
}  # fmt: skip

HYPERPARAMETERS = st.fixed_dictionaries(
    {
        "lr": st.floats(0.05, 0.4),
        "server_lr": st.floats(0.3, 1.5),
        "mu": st.floats(0.0, 1.0),
        "beta": st.floats(0.0, 0.95),
        "beta1": st.floats(0.0, 0.95),
        "beta2": st.floats(0.0, 0.99),
        "eps": st.floats(1e-2, 0.5),
        "v0": st.floats(0.1, 2.0),
    }
)


def _server_state(state):
    """What the server keeps beside the model, in the oracles' names."""
    if hasattr(state.server, "control"):
        return {"c": state.server.control}
    return helpers.statistics(state) if hasattr(state.server, "optimizer") else {}


def _check_clients(state, controls):
    """A client's control is the oracle's, and zero for one that never took part."""
    for client in range(NUM_CLIENTS):
        own = jax.tree.map(lambda c, i=client: c[i], state.clients.control)
        zero = jax.tree.map(np.zeros_like, own)
        helpers.assert_close(own, controls.get(client, zero), 1e-12)


@pytest.mark.parametrize("model", helpers.MODELS)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), hyper=HYPERPARAMETERS)
def test_algorithm_is_its_oracle(name, model, seed, hyper):
    """Parameters, statistics and client states after each of three rounds."""
    case, rng = CASES[name], np.random.default_rng(seed)
    params = helpers.random_params(rng, model)
    rounds = helpers.random_rounds(rng, num_clients=NUM_CLIENTS, steps=STEPS)
    if "mimexlite" in name:
        rounds = [{**rnd, "probe": [batches[0] for batches in rnd["batches"]]} for rnd in rounds]
    decayed = model == "mlp"
    keywords = {key: hyper[key] for key in ("lr", "server_lr", *case.takes)} | case.fixed
    expected = case.oracle(
        params, rounds, getattr(ref, model), **keywords, weight_decay=helpers.DECAY * decayed
    )
    algorithm = case.make(hyper, helpers.with_decay if decayed else lambda triple: triple)
    states, infos = helpers.play(
        algorithm, helpers.MODELS[model], params, rounds, num_clients=NUM_CLIENTS, steps=STEPS
    )
    for state, info, oracle in zip(states[1:], infos, expected, strict=True):
        helpers.assert_close(state.variables.params, oracle["params"], 1e-12)
        ours = _server_state(state)
        if name == "adaptive-momentum":
            # FedAvgM's m is not normalised; the triple's is, by 1 - beta.
            oracle["m"] = jax.tree.map(lambda m: (1 - hyper["beta"]) * m, oracle["m"])
        assert set(ours) == {"m", "v", "c"} & set(oracle)
        for key, value in ours.items():
            helpers.assert_close(value, oracle[key], 1e-12)
        if "client_controls" in oracle:
            _check_clients(state, oracle["client_controls"])
        assert bool(info.finite)


@pytest.mark.parametrize("name", ["fedavg", "fedgbo-adam", "scaffold-2"])
def test_reported_loss_is_the_weighted_mean_over_clients_of_their_mean_loss(name):
    """`Info.loss` with unequal weights and steps, from oracles of one client at a time."""
    rng = np.random.default_rng(7)
    params = helpers.random_params(rng, "logreg")
    (rnd,) = helpers.random_rounds(rng, rounds=1, num_clients=NUM_CLIENTS, steps=STEPS)
    hyper = {"lr": 0.2, "server_lr": 1.0, **dict.fromkeys(MOMENTS, 0.5)}
    case = CASES[name]
    keywords = {key: hyper[key] for key in ("lr", "server_lr", *case.takes)} | case.fixed
    alone = [
        {**rnd, "clients": [client], "batches": [batches], "weights": None}
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True)
    ]
    losses = [case.oracle(params, [r], ref.logreg, **keywords)[0]["loss"] for r in alone]
    _, (info,) = helpers.play(
        case.make(hyper, lambda triple: triple), helpers.MODELS["logreg"], params, [rnd],
        num_clients=NUM_CLIENTS, steps=STEPS,
    )  # fmt: skip
    np.testing.assert_allclose(info.client_loss, losses, rtol=1e-12)
    np.testing.assert_allclose(info.loss, np.average(losses, weights=rnd["weights"]), rtol=1e-12)
