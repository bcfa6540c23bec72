"""Each algorithm against its NumPy oracle on random problems, to 1e-12.

Cohorts are random, or such that a client joins late. Clients have unequal weights and unequal numbers of
steps, hyperparameters are drawn anew for every example, and what clients keep lasts over the rounds:
there are enough of them for the momentum of GHBM to look back. Logistic regression is trained without
weight decay, the MLP with it. FedMAX and MOON look at the features of the MLP, the only ones that their
oracles know.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers
from tests.oracles import momentum as mom
from tests.oracles import reference as ref
from tests.oracles import regularised as reg

NUM_CLIENTS, STEPS = 5, 4
# A client that joins late, when the model is far from where it began, and takes part once more.
LATE = [[0, 1, 2], [1, 3, 2], [3, 0, 1], [2, 4, 0], [1, 3, 2], [0, 1, 4]]
TRIPLES = {
    "sgd": lambda lr, h: opt.sgd(lr),
    "sgdm": lambda lr, h: opt.sgdm(lr, h["beta"]),
    "rmsprop": lambda lr, h: opt.rmsprop(lr, h["beta"], h["eps"], h["v0"]),
    "adagrad": lambda lr, h: opt.adagrad(lr, h["eps"], h["v0"]),
    "adam": lambda lr, h: opt.adam(lr, h["beta1"], h["beta2"], h["eps"], h["v0"]),
    "yogi": lambda lr, h: opt.yogi(lr, h["beta1"], h["beta2"], h["eps"], h["v0"]),
}


def _same_names(*names):
    return dict(zip(names, names, strict=True))


STEP = _same_names("lr", "server_lr")
MOMENTS = STEP | _same_names("beta", "beta1", "beta2", "eps", "v0")


class Case(NamedTuple):
    """An algorithm of (hyperparameters, what to do to the local optimiser), and its oracle.

    `takes` has the name of each hyperparameter by the oracle's name for it, `fixed` what never changes.
    Of what the oracle returns `lost` is no part of our state. Adaptive steps play fewer rounds: small
    statistics amplify rounding errors, a thousandfold in five rounds.
    """

    make: Any
    oracle: Any
    takes: dict
    fixed: dict
    lost: tuple = ()
    models: tuple = tuple(helpers.MODELS)
    rounds: int = 5


def _sgd(h, local):
    return local(opt.sgd(h["lr"]))


def _adaptive(server):
    def make(h, local):
        if server == "momentum":
            return fo.fedavgm(_sgd(h, local), h["server_lr"], h["beta"])
        return fo.adaptive_fedopt(_sgd(h, local), TRIPLES[server](h["server_lr"], h))

    lost = ("pseudo_gradient",)
    return Case(make, ref.adaptive_fedopt, MOMENTS, {"server": server}, lost, rounds=3)


def _global(algorithm, oracle, name, lost):
    def make(h, local):
        return algorithm(local(TRIPLES[name](h["lr"], h)), h["server_lr"])

    return Case(make, oracle, MOMENTS, {"optimizer": name}, (lost,), rounds=3)


def _plain(algorithm, oracle, hyper=(), clients=False, **fixed):
    """SGD on the clients; `hyper` has (the oracle's name, ours) in the order of our arguments."""

    def make(h, local):
        values = [h[name] for _, name in hyper]
        return algorithm(_sgd(h, local), *fixed.values(), *values, h["server_lr"])

    counted = {"num_clients": NUM_CLIENTS} if clients else {}
    return Case(make, oracle, STEP | dict(hyper), fixed | counted)


BETA = (("beta", "beta"),)


def _ghbm(tau, nesterov=False, in_step=False):
    def make(h, local):
        return fo.ghbm(_sgd(h, local), tau, h["beta"], h["server_lr"], nesterov, in_step)

    fixed = {"tau": tau, "nesterov": nesterov, "in_step": in_step}
    return Case(make, mom.ghbm, STEP | dict(BETA), fixed)


def _regularised(algorithm, oracle, *hyper, clients=True):
    """Without a server's learning rate."""

    def make(h, local):
        return algorithm(_sgd(h, local), *(h[name] for name in hyper))

    fixed = {"num_clients": NUM_CLIENTS} if clients else {}
    return Case(make, oracle, _same_names("lr", *hyper), fixed)


CASES = {
    "fedavg": _plain(fo.fedavg, ref.fedavg)._replace(lost=("pseudo_gradient",)),
    "fednova": Case(
        lambda h, local: fo.fednova(local(opt.sgdm(h["lr"], h["beta"])), h["server_lr"]),
        ref.fednova,
        STEP | dict(BETA),
        {},
    ),
    "fedprox": _plain(fo.fedprox, ref.fedprox, (("mu", "mu"),)),
    **{
        f"adaptive-{server}": _adaptive(server)
        for server in ("sgd", "sgdm", "momentum", "adam", "yogi", "adagrad", "rmsprop")
    },
    **{
        f"{algorithm.__name__}-{name}": _global(algorithm, oracle, name, lost)
        for algorithm, oracle, lost in (
            (fo.mfl, ref.mfl, None),
            (fo.fedgbo, ref.fedgbo, "biased_gradient"),
            (fo.mimelite, ref.mimelite, "probe_gradient"),
            (fo.mime, mom.mime, "c"),
        )
        for name in ("sgdm", "rmsprop", "adam")
    },
    **{
        f"mimexlite-{name}": _global(fo.mimexlite, ref.mimelite, name, "probe_gradient")
        for name in ("sgdm", "rmsprop", "adam")
    },
    "mimemom": _plain(fo.mimemom, mom.mimemom, (("momentum", "beta"),))._replace(lost=("c",)),
    "scaffold-1": _plain(fo.scaffold, ref.scaffold, clients=True, option=1),
    "scaffold-2": _plain(fo.scaffold, ref.scaffold, clients=True, option=2),
    "scaffold_m": _plain(fo.scaffold_m, mom.scaffold_m, (("beta", "alpha"),), clients=True),
    "fedacg": _plain(fo.fedacg, mom.fedacg, (("lam", "beta"), ("beta", "mu")))._replace(
        lost=("mean_delta",)
    ),
    "fedcm": _plain(fo.fedcm, mom.fedcm, (("alpha", "alpha"),)),
    "ghbm-1": _ghbm(1),
    "ghbm-2": _ghbm(2),
    "ghbm-2-nesterov": _ghbm(2, nesterov=True),
    "ghbm-2-in-step": _ghbm(2, in_step=True),
    "fedadc": _plain(fo.fedadc, mom.fedadc, BETA),
    "ghbm_server": _plain(fo.ghbm_server, mom.ghbm_server, BETA, tau=2),
    "ghbm_theory": _plain(fo.ghbm_theory, mom.ghbm_theory, (("beta", "alpha"),), tau=2),
    "localghbm": _plain(fo.localghbm, mom.localghbm, BETA, clients=True),
    "fedhbm": _plain(fo.fedhbm, mom.fedhbm, BETA, clients=True),
    **{
        f"{algorithm.__name__}-by-absence": _plain(
            partial(algorithm, by_absence=True),
            partial(oracle, by_absence=True),
            BETA,
            clients=True,
        )
        for algorithm, oracle in ((fo.localghbm, mom.localghbm), (fo.fedhbm, mom.fedhbm))
    },
    "feddyn": _regularised(fo.feddyn, reg.feddyn, "alpha"),
    "adabest": _regularised(fo.adabest, reg.adabest, "mu", "beta", clients=False),
    "feddc": _regularised(fo.feddc, reg.feddc, "alpha"),
    "fedmax": _plain(fo.fedmax, reg.fedmax, (("beta", "mu"),))._replace(models=("mlp",)),
    "moon": _plain(fo.moon, reg.moon, (("mu", "mu"), ("temperature", "temperature")))._replace(
        models=("mlp",)
    ),
}

HYPERPARAMETERS = st.fixed_dictionaries(
    {
        "lr": st.floats(0.05, 0.4),
        "server_lr": st.floats(0.3, 1.5),
        "mu": st.floats(0.0, 1.0),
        "alpha": st.floats(0.1, 1.0),
        "temperature": st.floats(0.3, 2.0),
        "beta": st.floats(0.0, 0.95),
        "beta1": st.floats(0.0, 0.95),
        "beta2": st.floats(0.0, 0.99),
        "eps": st.floats(1e-2, 0.5),
        "v0": st.floats(0.1, 2.0),
    }
)


# Fields of server states by the oracles' names; the optimiser's statistics come to these.
SERVER = {"c": "control", "d": "direction", "m": "momentum", "xbar": "mean"}
CLIENT = {"client_controls": "control", "anchors": "anchor", "correction": "correction"}
# Returned by oracles beside the state.
NO_STATE = {"params", "loss", "objective", "deltas"}


def _server_state(state):
    """What the server keeps beside the model, in the oracles' names."""
    server = jax.device_get(state.server)
    found = {
        name: getattr(server, field) for name, field in SERVER.items() if hasattr(server, field)
    }
    if hasattr(server, "optimizer"):
        found |= helpers.statistics(state)
    if hasattr(server, "mean"):
        # AdaBest's h is how far the model that is sent is ahead of the mean.
        found["h"] = jax.tree.map(lambda mean, x: mean - x, server.mean, state.variables.params)
    if hasattr(server, "ring"):
        # Models of GHBM; gradients in theory, where momentum is a field.
        theory = "momentum" in server._fields
        past = helpers.past(server)
        found |= {"pseudo_gradient": past[-1]} if theory else {"models": past}
    for field in ("h", "drift"):
        if hasattr(server, field):
            found["h"] = getattr(server, field)
    return found


def _client_states(clients):
    """What clients keep, in the oracles' names; a participation in round t is t + 1 there."""
    found = {
        name: getattr(clients, field) for name, field in CLIENT.items() if hasattr(clients, field)
    }
    for field in ("h", "drift"):
        if hasattr(clients, field):
            found["client_h"] = getattr(clients, field)
    if hasattr(clients, "previous"):
        found["previous"] = clients.previous.params
    if hasattr(clients, "last_round"):
        found["last_round"] = clients.last_round + 1
    return found


def _check_clients(states, oracle, params):
    """Each client's state is the oracle's, and the initial one if it never took part."""
    for name, state in states.items():
        for client in range(NUM_CLIENTS):
            own = helpers.entry(state, client)
            initial = params if name == "previous" else jax.tree.map(np.zeros_like, own)
            helpers.assert_close(own, oracle[name].get(client, initial), 1e-12)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(name, model, marks=[] if model == case.models[-1] else pytest.mark.slow)
        for name, case in CASES.items()
        for model in case.models
    ],
)
@helpers.examples(8)
@given(seed=st.integers(0, 2**32 - 1), hyper=HYPERPARAMETERS, late=st.booleans())
def test_algorithm_is_its_oracle(name, model, seed, hyper, late):
    """Parameters, and all that server and clients keep, after each round."""
    case, rng = CASES[name], np.random.default_rng(seed)
    params = helpers.random_params(rng, model)
    cohorts = {"cohorts": LATE} if late and case.rounds == 5 else {"rounds": case.rounds}
    rounds = helpers.random_rounds(rng, num_clients=NUM_CLIENTS, steps=STEPS, **cohorts)
    if "mimexlite" in name:
        rounds = [{**rnd, "probe": [batches[0] for batches in rnd["batches"]]} for rnd in rounds]
    decayed = model == "mlp"
    expected = case.oracle(
        params, rounds, getattr(ref, model), **_keywords(case, hyper),
        weight_decay=helpers.DECAY * decayed,
    )  # fmt: skip
    algorithm = case.make(hyper, helpers.with_decay if decayed else lambda triple: triple)
    states, infos = helpers.play(
        algorithm, helpers.MODELS[model], params, rounds, num_clients=NUM_CLIENTS, steps=STEPS
    )
    last_round = {}
    for t, (state, info, oracle) in enumerate(zip(states[1:], infos, expected, strict=True)):
        helpers.assert_close(state.variables.params, oracle["params"], 1e-12)
        ours, clients = _server_state(state), _client_states(state.clients)
        last_round |= dict.fromkeys(rounds[t]["clients"], np.int32(t + 1))
        if "last_round" in clients:
            oracle = {"last_round": last_round, **oracle}
        if name == "feddc":
            # Clients keep what their steps read of both: alpha h_i - c_i.
            drifts, controls = oracle.pop("client_h"), oracle.pop("client_controls")
            oracle["correction"] = {
                i: jax.tree.map(lambda h, c: hyper["alpha"] * h - c, h_i, controls[i])
                for i, h_i in drifts.items()
            }
        if name == "adaptive-momentum":
            # FedAvgM's m is not normalised; the triple's is, by 1 - beta.
            oracle["m"] = jax.tree.map(lambda m: (1 - hyper["beta"]) * m, oracle["m"])
        assert set(ours) | set(clients) == set(oracle) - NO_STATE - set(case.lost)
        for key, value in ours.items():
            helpers.assert_close(value, oracle[key], 1e-12)
        _check_clients(clients, oracle, params)
        assert bool(info.finite)


def _keywords(case, hyper):
    return {name: hyper[ours] for name, ours in case.takes.items()} | case.fixed


@pytest.mark.parametrize(
    ("name", "model"),
    [
        *((name, "logreg") for name in ("fedavg", "fedgbo-adam", "scaffold-2", "fedacg", "feddyn")),
        *((name, "mlp") for name in ("ghbm-2-nesterov", "fedmax", "moon")),
    ],
)
def test_reported_loss_is_the_weighted_mean_over_clients_of_their_mean_loss(name, model):
    """`Info.loss` with unequal weights and steps, from oracles of one client at a time.

    It is the model's loss, without what an algorithm adds to it.
    """
    rng = np.random.default_rng(7)
    params = helpers.random_params(rng, model)
    (rnd,) = helpers.random_rounds(rng, rounds=1, num_clients=NUM_CLIENTS, steps=STEPS)
    case, decayed = CASES[name], model == "mlp"
    hyper = {"lr": 0.2, "server_lr": 1.0, "mu": 0.5, "alpha": 0.5, "temperature": 0.5}
    hyper |= dict.fromkeys(("beta", "beta1", "beta2", "eps", "v0"), 0.5)
    keywords = _keywords(case, hyper) | {"weight_decay": helpers.DECAY * decayed}
    alone = [
        {**rnd, "clients": [client], "batches": [batches], "weights": None}
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True)
    ]
    losses = [case.oracle(params, [r], getattr(ref, model), **keywords)[0]["loss"] for r in alone]
    algorithm = case.make(hyper, helpers.with_decay if decayed else lambda triple: triple)
    _, (info,) = helpers.play(
        algorithm, helpers.MODELS[model], params, [rnd], num_clients=NUM_CLIENTS, steps=STEPS
    )
    np.testing.assert_allclose(info.client_loss, losses, rtol=1e-12)
    np.testing.assert_allclose(info.loss, np.average(losses, weights=rnd["weights"]), rtol=1e-12)
