"""MTFL: leaves that stay at home, batch norm and Adam, against published trajectories.

The oracle is the published code, and `private` is the oracle, to 1e-10.
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
