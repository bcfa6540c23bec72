"""Every published trajectory for which there is an algorithm, to 1e-12.

Clients are scanned; that every other strategy gives the same numbers is what test_matrix.py asks. The
batch-norm models of MTFL are held to 1e-10, in the server's values and in each client's own.
"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers
from tests.oracles import personal
from tests.oracles import reference as ref

NUM_CLIENTS, STEPS = 6, 3


def _adam(lr, h):
    return opt.adam(lr, h["beta1"], h["beta2"], h["eps"])


def _rmsprop(h):
    return opt.rmsprop(h["lr"], h["beta"], h["eps"])


def _ghbm(h):
    rates = h["beta"], h["server_lr"]
    return fo.ghbm(opt.sgd(h["client_lr"]), h["tau"], *rates, nesterov=h.get("nesterov", False))


# The algorithm that each file's hyperparameters stand for.
ALGORITHMS = {
    "fedavg": lambda h: fo.fedavg(opt.sgd(h["client_lr"]), h["server_lr"]),
    "fedavgm": lambda h: fo.fedavgm(opt.sgd(h["client_lr"]), h["server_lr"], h["server_momentum"]),
    "fedprox": lambda h: fo.fedprox(opt.sgd(h["lr"]), h["mu"]),
    "adaptivefedopt-adam": lambda h: fo.adaptive_fedopt(
        opt.sgd(h["client_lr"]), _adam(h["server_lr"], h)
    ),
    "adaptivefedopt-sgdm": lambda h: fo.adaptive_fedopt(
        opt.sgd(h["client_lr"]), opt.sgdm(h["server_lr"], h["beta"])
    ),
    "mfl-adam": lambda h: fo.mfl(_adam(h["lr"], h)),
    "mfl-sgdm": lambda h: fo.mfl(opt.sgdm(h["lr"], h["beta"])),
    "fedgbo-adam": lambda h: fo.fedgbo(_adam(h["lr"], h)),
    "fedgbo-rmsprop": lambda h: fo.fedgbo(_rmsprop(h)),
    "fedgbo-sgdm": lambda h: fo.fedgbo(opt.sgdm(h["lr"], h["beta"])),
    "mimelite-rmsprop": lambda h: fo.mimelite(_rmsprop(h)),
    "mimelite-sgdm": lambda h: fo.mimelite(opt.sgdm(h["lr"], h["beta"])),
    "mimexlite-sgdm": lambda h: fo.mimexlite(opt.sgdm(h["lr"], h["beta"])),
    "scaffold": lambda h: fo.scaffold(opt.sgd(h["client_lr"]), 2, h["server_lr"]),
    "mimemom": lambda h: fo.mimemom(opt.sgd(h["client_lr"]), h["momentum"], h["server_lr"]),
    "mimesgd": lambda h: fo.mime(opt.sgd(h["client_lr"]), h["server_lr"]),
    # The published weight is of ||y - z||^2, without the half.
    "fedacg": lambda h: fo.fedacg(opt.sgd(h["local_lr"]), h["lambda"], 2 * h["prox_weight"]),
    "fedcm": lambda h: fo.fedcm(opt.sgd(h["client_lr"]), h["alpha"], h["server_lr"]),
    "ghbm-tau1": _ghbm,
    "ghbm-tau2": _ghbm,
    "ghbm-tau2-nesterov": _ghbm,
    "ghbm-tau3": _ghbm,
    "localghbm": lambda h: fo.localghbm(opt.sgd(h["client_lr"]), h["beta"], h["server_lr"]),
    "fedhbm": lambda h: fo.fedhbm(opt.sgd(h["client_lr"]), h["beta"], h["server_lr"]),
    "feddyn": lambda h: fo.feddyn(opt.sgd(h["local_lr"]), h["alpha"]),
    "adabest": lambda h: fo.adabest(opt.sgd(h["client_lr"]), h["mu"], h["beta"]),
    "feddc": lambda h: fo.feddc(opt.sgd(h["lr"]), h["alpha"]),
    "fedmax": lambda h: fo.fedmax(opt.sgd(h["client_lr"]), h["fedmax_beta"], h["server_lr"]),
    "moon-nomomentum": lambda h: fo.moon(opt.sgd(h["lr"]), h["mu"], h["temperature"]),
    "perfedavg": lambda h: fo.per_fedavg(opt.sgd(h["beta_outer_lr"]), h["alpha_inner_lr"]),
}
# Where a local step takes more than one of the problem's minibatches.
ROUNDS = {"perfedavg": personal.per_fedavg_trajectory_rounds}


def _subtract(a, b, scale=1.0):
    """a - scale * b."""
    return jax.tree.map(lambda a, b: a - scale * b, a, b)


def _scaled(scale, tree):
    return jax.tree.map(lambda leaf: scale * leaf, tree)


# What the published codes record of the server, of our server before and after the round; see
# tests/oracles/README.md for the conventions of each.
SERVER_STATE = {
    "scaffold": lambda old, new, h: {"controls": new.control},
    # c is what the momentum has taken up.
    "mimemom": lambda old, new, h: {
        "optimizer_momentum_buffer": new.optimizer.m,
        "controls": _subtract(new.optimizer.m, old.optimizer.m, h["momentum"]),
    },
    "fedacg": lambda old, new, h: {
        "global_momentum": new.momentum,
        "global_delta": _subtract(new.momentum, old.momentum, h["lambda"]),
    },
    "fedcm": lambda old, new, h: {"momentum": _scaled(h["client_lr"] * h["J"], new.direction)},
    "ghbm": lambda old, new, h: {
        "momentum": _scaled(-1.0, new.momentum), "past_models_queue": helpers.past(new)
    },
    "feddyn": lambda old, new, h: {"global_momentum": new.h},
    # The published code keeps h of the last leaf alone: how far the mean is from what is sent.
    "adabest": lambda old, new, h: {
        "h_RAW_TENSOR": _subtract(new.mean, new.variables.params)["b"], "last_avg_model": new.mean
    },
    "feddc": lambda old, new, h: {
        "global_gradient_state": new.control,
        "avg_selected_model": _subtract(new.variables.params, new.drift),
    },
    "fedmax": lambda old, new, h: {
        "pseudogradient": _subtract(old.variables.params, new.variables.params)
    },
}  # fmt: skip
SERVER_STATE["fedavg"] = SERVER_STATE["fedmax"]

# And of the clients.
CLIENT_STATE = {
    "scaffold": lambda client: {"client_controls": client.control},
    "localghbm": lambda client: {"anchor_model": client.anchor},
    "fedhbm": lambda client: {"anchor_model": client.anchor},
    "feddyn": lambda client: {"local_delta": client.h},
    # Rounds count from 1 there, and 0 is before them.
    "adabest": lambda client: {"prev_grads": client.h, "last_round": client.last_round + 1},
    "feddc": lambda client: {"correction": client.correction},
    "moon-nomomentum": lambda client: {"local_model": client.previous.params},
}


def _recorded_state(name, before, after, hyper):
    """Our server state after a round in the names, and the normalisation, of the published code."""
    old, new = jax.device_get((before.server, after.server))
    convert = SERVER_STATE.get("ghbm" if name.startswith("ghbm") else name)
    if convert is not None:
        return convert(old, new, hyper)
    state = helpers.statistics(after) if hasattr(new, "optimizer") else {}
    if name == "fedavgm":
        # Its buffer is beta m + d, ours is (1 - beta) times that.
        return {
            "optimizer_momentum_buffer": _scaled(1 / (1 - hyper["server_momentum"]), state["m"])
        }
    if name == "mfl-sgdm":
        return {"momentum": state["m"]}
    if name.startswith("fedgbo"):
        # The paper's own form of the inverse: from the two global models and K.
        triple = {"sgdm": opt.sgdm, "rmsprop": opt.rmsprop, "adam": opt.adam}[name[7:]]
        rename = {"lr": "learning_rate", "beta1": "b1", "beta2": "b2"}
        triple = triple(**{rename.get(k, k): v for k, v in hyper.items()})
        models = before.variables.params, after.variables.params
        state["biased_gradient"] = triple.inverse(*models, before.server.optimizer, STEPS)
    return state


# Recorded by the published code, but no part of our state: FedAvg's clients give the first, and
# tests/oracles/README.md says of the second that it is always zero, as FedDyn's third is. Mime's
# controls are not kept by the server, and leave no trace if there is no momentum.
NOT_KEPT = {"pseudogradient", "avg_gradient_times_M", "global_delta", "controls"}


def _check(ours, theirs):
    """Null stands for zeros, and queues of models are lists."""
    if theirs is None:
        theirs = jax.tree.map(jnp.zeros_like, ours)
    helpers.assert_close(ours, theirs, 1e-12)


def _read_together(recorded, alpha):
    """FedDC's clients keep what their steps read of two things that are recorded: alpha h_i - c_i."""

    def correction(state):
        drift, control = state["drift_h"], state["gradient_state"]
        return {name: alpha * np.asarray(drift[name]) - np.asarray(control[name]) for name in drift}

    return {client: {"correction": correction(state)} for client, state in recorded.items()}


def _check_clients(name, clients, recorded):
    """All that is recorded of every client, and the initial state of those left out."""
    states = {i: CLIENT_STATE[name](helpers.entry(clients, i)) for i in range(NUM_CLIENTS)}
    for client, state in states.items():
        theirs = recorded.get(client, {})
        assert set(theirs) <= set(state)
        for key, value in state.items():
            _check(value, theirs.get(key))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_published_trajectory(name):
    """Parameters, server statistics, client states and training losses in all six rounds."""
    trajectory = ref.load_trajectory(name)
    rounds = ROUNDS[name]() if name in ROUNDS else ref.trajectory_rounds(name)
    hyper = trajectory["hyperparameters"]
    states, infos = helpers.play(
        ALGORITHMS[name](hyper),
        helpers.MODELS[trajectory["model"]],
        trajectory["init_state"]["params"],
        rounds,
        num_clients=NUM_CLIENTS,
        steps=STEPS,
        traced=False,
    )
    for t, recorded in enumerate(trajectory["rounds"]):
        before, after = states[t], states[t + 1]
        helpers.assert_close(after.variables.params, recorded["params"], 1e-12)
        ours = _recorded_state(name, before, after, hyper)
        theirs = recorded.get("state", {})
        assert set(ours) == set(theirs) - (NOT_KEPT - set(ours))
        for key in ours:
            _check(ours[key], theirs[key])
        assert ("client_state" in recorded) == (name in CLIENT_STATE)
        if name in CLIENT_STATE:
            kept = recorded["client_state"]
            kept = _read_together(kept, hyper["alpha"]) if name == "feddc" else kept
            _check_clients(name, after.clients, kept)
        if "train_loss" in recorded:
            assert abs(float(infos[t].loss) - recorded["train_loss"]) <= 1e-12


def test_every_trajectory_is_played():
    """A trajectory that is added to the folder has to be added here."""
    files = {path.stem for path in ref.TRAJECTORIES.glob("*.json")} - {"problem"}
    assert files == set(ALGORITHMS) | set(MTFL)


# MTFL -----------------------------------------------------------------------------------------


def _batch_norm_loss(variables, batch, key):
    """tanh layer, batch norm with torch's semantics, linear layer."""
    p, s = variables.params, variables.state
    row = lambda v: v[None, :]  # noqa: E731
    hidden = jnp.tanh(batch["x"] @ p["w1"] + row(p["b1"]))
    mean, biased, state = s["mu"], s["var"], s
    if key is not None:
        mean, biased = jnp.mean(hidden, axis=0), jnp.var(hidden, axis=0)
        unbiased = jnp.var(hidden, axis=0, ddof=1)
        state = {"mu": 0.9 * s["mu"] + 0.1 * mean, "var": 0.9 * s["var"] + 0.1 * unbiased}
    normal = (hidden - row(mean)) / jnp.sqrt(row(biased) + 1e-5)
    logits = (row(p["gamma"]) * normal + row(p["beta"])) @ p["w2"] + row(p["b2"])
    return fo.models.cross_entropy(logits, batch["y"], state=state)


BATCH_NORM = fo.Model(init=None, loss=_batch_norm_loss)
STATE = ("mu", "var")


def _fedavg_adam(h):
    return fo.mfl(optax.adam(h["lr"], h["beta1"], h["beta2"], h["eps"]))


# The wrapped algorithm, and the names of the private leaves.
MTFL = {
    "mtfl-fedavg-yb": (lambda h: fo.fedavg(opt.sgd(h["lr"])), ("gamma", "beta")),
    "mtfl-fedavg-usyb": (lambda h: fo.fedavg(opt.sgd(h["lr"])), ("gamma", "beta", "mu", "var")),
    "mtfl-fedavgadam-yb": (_fedavg_adam, ("gamma", "beta")),
}


def _where(private):
    return [f"state/{leaf}" if leaf in STATE else f"params/{leaf}" for leaf in private]


def _variables(params):
    return fo.Variables(
        {name: leaf for name, leaf in params.items() if name not in STATE},
        {name: params[name] for name in STATE},
    )


def _promotion(adam):
    """The code of optax.adam mixes dtypes."""
    return jax.numpy_dtype_promotion("standard") if adam else contextlib.nullcontext()


def _check_adam(state, recorded, private):
    """The averaged moments of shared leaves, each client's own of private ones, and the count."""
    served, kept = state.server.inner.optimizer[0], state.clients.patch.optimizer[0]
    for leaf, step in recorded["state"]["step"].items():
        assert int(served.count) == step
        for name, served_tree, kept_tree in (("m", served.mu, kept.mu), ("v", served.nu, kept.nu)):
            if leaf not in private:
                helpers.assert_close(served_tree[leaf], recorded["state"][name][leaf], 1e-10)
                continue
            for client, theirs in recorded["client_state"].items():
                moment = theirs["adam_bn"][f"{leaf}_{name}"]
                helpers.assert_close(kept_tree[leaf][client], moment, 1e-10)


def _test_losses(algorithm, state):
    """Each client's loss on all of its examples, of the model that it would use."""
    problem = ref.load_problem()
    rows = zip(problem["X"], problem["y"], strict=True)
    data = fo.ClientData.from_list([{"x": x, "y": y} for x, y in rows])
    return fo.evaluate_clients(BATCH_NORM, fo.personal_variables(algorithm, state), data)["loss"]


@pytest.mark.parametrize("name", MTFL)
def test_published_mtfl_trajectory(name):
    """Shared leaves on the server, private ones and their Adam statistics on every client; user loss."""
    trajectory, rounds = ref.load_trajectory(name), ref.trajectory_rounds(name)
    make, private = MTFL[name]
    adam = "adam" in name
    with _promotion(adam):
        algorithm = fo.private(make(trajectory["hyperparameters"]), _where(private))
        states, _ = helpers.play(
            algorithm, BATCH_NORM, _variables(trajectory["init_state"]["params"]), rounds,
            num_clients=NUM_CLIENTS, steps=STEPS, traced=False,
        )  # fmt: skip
    for before, state, recorded in zip(states[:-1], states[1:], trajectory["rounds"], strict=True):
        losses = _test_losses(algorithm, before)[np.array(recorded["clients"])]
        theirs = recorded["mean_personal_test_loss_at_round_start"]
        assert float(losses.mean()) == pytest.approx(theirs, abs=1e-10)
        assert set(recorded["client_state"]) == set(range(NUM_CLIENTS))
        for client, kept in recorded["client_state"].items():
            assert set(kept["bn"]) == set(private)
            own = fo.personal_variables(algorithm, state)(client)
            expected = {**recorded["params"], **kept["bn"]}
            helpers.assert_close({**own.params, **own.state}, expected, 1e-10)
        if adam:
            _check_adam(state, recorded, private)


def _oracle(name, rounds, private):
    """The reference with the hyperparameters and from the start of a trajectory."""
    trajectory = ref.load_trajectory(name)
    hyper = {k: h for k, h in trajectory["hyperparameters"].items() if k != "bn_setting"}
    start = trajectory["init_state"]["params"]
    return personal.mtfl(start, rounds, private=private, num_clients=NUM_CLIENTS, **hyper)


@pytest.mark.parametrize("name", MTFL)
def test_mtfl_oracle_is_the_published_trajectory(name):
    """The server's averages of every entry, each client's own, and their moments."""
    trajectory, (_, private) = ref.load_trajectory(name), MTFL[name]
    entries = _oracle(name, ref.trajectory_rounds(name), private)
    for entry, recorded in zip(entries, trajectory["rounds"], strict=True):
        helpers.assert_close(entry["params"], recorded["params"], 1e-12)
        for client, kept in recorded["client_state"].items():
            helpers.assert_close(entry["personal"][client], kept["bn"], 1e-12)
            for key, moment in kept.get("adam_bn", {}).items():
                leaf, which = key.rsplit("_", 1)
                helpers.assert_close(entry[f"personal_{which}"][client][leaf], moment, 1e-12)
        for which in ("m", "v") if "state" in recorded else ():
            helpers.assert_close(entry[which], recorded["state"][which], 1e-12)
            assert all(step == entry["step"] for step in recorded["state"]["step"].values())


MODES = {
    "yb": ("gamma", "beta"), "usyb": ("gamma", "beta", "mu", "var"), "us": ("mu", "var"), "none": (),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["mtfl-fedavg-yb", "mtfl-fedavgadam-yb"])
def test_mtfl_is_its_oracle(name, mode):
    """All that may stay at home, with FedAvg and FedAvg-Adam and unequal weights: every own model."""
    rng, private, adam = np.random.default_rng(0), MODES[mode], "adam" in name
    rounds = [
        {**rnd, "weights": rng.uniform(0.2, 3.0, len(rnd["clients"]))}
        for rnd in ref.trajectory_rounds(name)
    ]
    trajectory = ref.load_trajectory(name)
    with _promotion(adam):
        algorithm = fo.private(MTFL[name][0](trajectory["hyperparameters"]), _where(private))
        states, infos = helpers.play(
            algorithm, BATCH_NORM, _variables(trajectory["init_state"]["params"]), rounds,
            num_clients=NUM_CLIENTS, steps=STEPS, traced=False,
        )  # fmt: skip
    entries = _oracle(name, rounds, private)
    for state, info, entry in zip(states[1:], infos, entries, strict=True):
        own = fo.personal_variables(algorithm, state)
        for client in range(NUM_CLIENTS):
            expected = _variables({**entry["params"], **entry["personal"][client]})
            helpers.assert_close(own(client), expected, 1e-10)
        assert float(jnp.mean(info.client_loss)) == pytest.approx(entry["loss"], abs=1e-10)
        if adam:
            server = state.server.inner if private else state.server
            served = server.optimizer[0]
            for name_of, tree in (("m", served.mu), ("v", served.nu)):
                shared = {leaf: x for leaf, x in tree.items() if x is not None}
                assert set(shared) == set(entry["m"]) - set(private)
                helpers.assert_close(shared, {leaf: entry[name_of][leaf] for leaf in shared}, 1e-10)
