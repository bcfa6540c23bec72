"""The references of momentum.py and regularised.py against trajectories and against themselves."""

import numpy as np
import pytest

from . import momentum as mom
from . import reference as ref
from . import regularised as reg
from .test_reference import TOLERANCE, _combine, _distance, _init, _uneven_rounds

N = 6  # clients of the problem


def _zeros(tree):
    return {k: np.zeros_like(v) for k, v in tree.items()}


def _scaled(scale, tree):
    return _combine([scale], [tree])


def _ghbm(p, r, h):
    options = {k: h[k] for k in ("beta", "tau", "nesterov") if k in h}
    return mom.ghbm(p, r, ref.logreg, lr=h["client_lr"], weight_decay=h["weight_decay"], **options)


# How each trajectory's hyperparameters map onto a reference.
CASES = {
    "adabest": lambda p, r, h: reg.adabest(
        p, r, ref.logreg, mu=h["mu"], beta=h["beta"], lr=h["client_lr"]
    ),
    "fedacg": lambda p, r, h: mom.fedacg(
        p, r, ref.logreg, lam=h["lambda"], beta=2 * h["prox_weight"], lr=h["local_lr"]
    ),
    "fedcm": lambda p, r, h: mom.fedcm(p, r, ref.logreg, alpha=h["alpha"], lr=h["client_lr"]),
    "feddc": lambda p, r, h: reg.feddc(
        p, r, ref.logreg, alpha=h["alpha"], lr=h["lr"], num_clients=N
    ),
    "feddyn": lambda p, r, h: reg.feddyn(
        p, r, ref.logreg, alpha=h["alpha"], lr=h["local_lr"], num_clients=N
    ),
    "fedhbm": lambda p, r, h: mom.fedhbm(
        p, r, ref.logreg, beta=h["beta"], lr=h["client_lr"], num_clients=N
    ),
    "fedmax": lambda p, r, h: reg.fedmax(
        p, r, ref.mlp, beta=h["fedmax_beta"], lr=h["client_lr"], server_lr=h["server_lr"]
    ),
    "ghbm-tau1": _ghbm,
    "ghbm-tau2": _ghbm,
    "ghbm-tau2-nesterov": _ghbm,
    "ghbm-tau3": _ghbm,
    "localghbm": lambda p, r, h: mom.localghbm(
        p, r, ref.logreg, beta=h["beta"], lr=h["client_lr"], num_clients=N
    ),
    "mimemom": lambda p, r, h: mom.mimemom(
        p, r, ref.logreg, momentum=h["momentum"], lr=h["client_lr"], server_lr=h["server_lr"]
    ),
    "mimesgd": lambda p, r, h: mom.mime(p, r, ref.logreg, optimizer="sgd", lr=h["client_lr"]),
    "moon-nomomentum": lambda p, r, h: reg.moon(
        p, r, ref.mlp, mu=h["mu"], temperature=h["temperature"], lr=h["lr"]
    ),
}


def _minus_mean_delta(ours, *_):
    return _scaled(-1 / 3, _combine([1.0] * 3, list(ours["deltas"].values())))


GHBM_STATE = {
    # minus ours, and null while there is none
    "momentum": lambda ours, value, h: _scaled(-1.0, ours["m"]),
    "past_models_queue": lambda ours, value, h: ours["models"],
}
# What the published codes record of the server, in terms of a reference's entry.
SERVER_STATE = {
    "adabest": {
        # the code keeps the last leaf only
        "h_RAW_TENSOR": lambda ours, value, h: ours["h"]["b"],
        "last_avg_model": lambda ours, value, h: ours["xbar"],
    },
    "fedacg": {
        "global_momentum": lambda ours, value, h: ours["m"],
        "global_delta": lambda ours, value, h: ours["mean_delta"],
    },
    # not divided by lr K
    "fedcm": {"momentum": lambda ours, value, h: _scaled(h["client_lr"] * h["J"], ours["d"])},
    "feddc": {
        "global_gradient_state": lambda ours, value, h: ours["c"],
        "avg_selected_model": lambda ours, value, h: _combine([1, -1], [ours["params"], ours["h"]]),
    },
    "feddyn": {
        "global_momentum": lambda ours, value, h: ours["h"],
        # unused by that code
        "global_delta": lambda ours, value, h: _zeros(value),
    },
    "fedmax": {"pseudogradient": _minus_mean_delta},
    "ghbm-tau1": GHBM_STATE,
    "ghbm-tau2": GHBM_STATE,
    "ghbm-tau2-nesterov": GHBM_STATE,
    "ghbm-tau3": GHBM_STATE,
    "mimemom": {
        "controls": lambda ours, value, h: ours["c"],
        "optimizer_momentum_buffer": lambda ours, value, h: ours["m"],
    },
    "mimesgd": {"controls": lambda ours, value, h: ours["c"]},
}
# And of the clients, by the reference's name for it.
CLIENT_STATE = {
    "adabest": {"prev_grads": "client_h", "last_round": "last_round"},
    "feddc": {"drift_h": "client_h", "gradient_state": "client_controls"},
    "feddyn": {"local_delta": "client_h"},
    "fedhbm": {"anchor_model": "anchors"},
    "localghbm": {"anchor_model": "anchors"},
    "moon-nomomentum": {"local_model": "previous"},
}


def _assert_close(ours, recorded, label):
    if recorded is None:
        assert all(not leaf.any() for leaf in ours.values()), label
    elif isinstance(recorded, dict):
        assert _distance(ours, recorded) <= TOLERANCE, label
    elif isinstance(recorded, list):
        for a, b in zip(ours, recorded, strict=True):
            assert _distance(a, b) <= TOLERANCE, label
    else:
        assert np.shape(ours) == recorded.shape
        assert np.abs(ours - recorded).max() <= TOLERANCE, label


def _missing(name, value, init):
    """The state of a client that has not taken part yet."""
    if isinstance(value, dict):
        return init if name == "previous" else _zeros(value)
    return 0


@pytest.mark.parametrize("name", sorted(CASES))
def test_reference_reproduces_published_trajectory(name):
    trajectory, rounds = ref.load_trajectory(name), ref.trajectory_rounds(name)
    init, hyper = trajectory["init_state"]["params"], trajectory["hyperparameters"]
    history = CASES[name](init, rounds, hyper)
    assert len(history) == len(trajectory["rounds"]) == 6
    known = {"round", "clients", "params", "state", "client_state", "client_delta_x_minus_y"}
    known |= {"train_loss", "mean_local_loss", "local_lr"}
    for rnd, ours, recorded in zip(rounds, history, trajectory["rounds"], strict=True):
        assert set(recorded) <= known
        assert rnd["clients"] == recorded["clients"]
        _assert_close(ours["params"], recorded["params"], "params")
        server = recorded.get("state", {})
        assert set(server) == set(SERVER_STATE.get(name, {}))
        for key, value in server.items():
            _assert_close(SERVER_STATE[name][key](ours, value, hyper), value, key)
        for client, state in recorded.get("client_state", {}).items():
            for key, value in state.items():
                states = ours[CLIENT_STATE[name][key]]
                missing = _missing(CLIENT_STATE[name][key], value, init)
                _assert_close(states.get(client, missing), value, (client, key))
        for client, difference in recorded.get("client_delta_x_minus_y", {}).items():
            _assert_close(_scaled(-1.0, ours["deltas"][client]), difference, client)
        if "train_loss" in recorded:
            assert abs(ours["loss"] - recorded["train_loss"]) <= TOLERANCE
        if "mean_local_loss" in recorded:
            assert abs(ours["objective"] - recorded["mean_local_loss"]) <= TOLERANCE


# Where no trajectory reaches: limits, unequal K, weights, weight decay. -------------------------


def _same(a, b, tolerance=1e-13):
    for left, right in zip(a, b, strict=True):
        assert _distance(left["params"], right["params"]) <= tolerance


def _run(algorithm, rounds, **hyper):
    """Run from the initial MLP, which the algorithm must not write to."""
    params = _init("mlp")
    for leaf in params.values():
        leaf.setflags(write=False)
    return algorithm(params, rounds, ref.mlp, **{"lr": 0.1, **hyper})


LIMITS = {
    "ghbm": lambda r, **kw: _run(mom.ghbm, r, beta=0.0, tau=2, **kw),
    "ghbm nesterov": lambda r, **kw: _run(mom.ghbm, r, beta=0.0, tau=2, nesterov=True, **kw),
    "ghbm, tau never reached": lambda r, **kw: _run(mom.ghbm, r, beta=0.9, tau=6, **kw),
    "ghbm_server": lambda r, **kw: _run(mom.ghbm_server, r, beta=0.0, tau=2, **kw),
    "fedadc": lambda r, **kw: _run(mom.fedadc, r, beta=0.0, **kw),
    "localghbm": lambda r, **kw: _run(mom.localghbm, r, beta=0.0, num_clients=N, **kw),
    "fedhbm": lambda r, **kw: _run(mom.fedhbm, r, beta=0.0, num_clients=N, **kw),
    "fedacg": lambda r, **kw: _run(mom.fedacg, r, lam=0.0, beta=0.0, **kw),
    "fedcm": lambda r, **kw: _run(mom.fedcm, r, alpha=1.0, **kw),
    "fedmax": lambda r, **kw: _run(reg.fedmax, r, beta=0.0, **kw),
    "moon": lambda r, **kw: _run(reg.moon, r, mu=0.0, temperature=0.5, **kw),
}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_limit_is_fedavg(name):
    hyper = {"server_lr": 0.7, "weight_decay": 0.1}
    expected = _run(ref.fedavg, _uneven_rounds(), **hyper)
    _same(LIMITS[name](_uneven_rounds(), **hyper), expected)


def test_adabest_without_corrections_is_fedavg():
    rounds = _uneven_rounds()
    ours = _run(reg.adabest, rounds, mu=0.0, beta=0.0, weight_decay=0.1)
    _same(ours, _run(ref.fedavg, rounds, weight_decay=0.1))


def test_fedacg_without_momentum_is_fedprox():
    hyper = {"server_lr": 0.7, "weight_decay": 0.1}
    ours = _run(mom.fedacg, _uneven_rounds(), lam=0.0, beta=0.3, **hyper)
    _same(ours, _run(ref.fedprox, _uneven_rounds(), mu=0.3, **hyper))


def test_scaffold_m_without_momentum_is_scaffold():
    hyper = {"server_lr": 0.7, "weight_decay": 0.1, "num_clients": N}
    ours = _run(mom.scaffold_m, _uneven_rounds(), beta=1.0, **hyper)
    expected = _run(ref.scaffold, _uneven_rounds(), option=2, **hyper)
    _same(ours, expected)
    assert _distance(ours[-1]["c"], expected[-1]["c"]) < 1e-14


def test_scaffold_m_step_and_states_for_unequal_steps():
    rounds, lr, beta, zero = _uneven_rounds(), 0.1, 0.4, _zeros(_init("mlp"))
    c, d, controls = zero, zero, {}
    for rnd, ours in zip(
        rounds, _run(mom.scaffold_m, rounds, beta=beta, num_clients=N), strict=True
    ):
        directions = []
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            # The mean step is beta (mean g - c_i + c) + (1 - beta) d, and mean g is c_i+.
            trees = [ours["client_controls"][client], controls.get(client, zero), c, d]
            directions.append(_combine([beta, -beta, beta, 1 - beta], trees))
            delta = _scaled(-lr * len(batches), directions[-1])
            assert _distance(ours["deltas"][client], delta) < 1e-14
        c, d, controls = ours["c"], ours["d"], ours["client_controls"]
        assert _distance(d, _combine([0.5, 0.125, 0.375], directions)) < 1e-14
        assert _distance(c, _combine([1 / N] * len(controls), list(controls.values()))) < 1e-14


def test_ghbm_with_tau_one_is_fedcm():
    rounds, beta, lr = ref.trajectory_rounds("fedavg"), 0.6, 0.1
    ours = _run(mom.ghbm, rounds, beta=beta, tau=1, lr=lr)
    _same(ours, _run(mom.fedcm, rounds, alpha=1 - beta, lr=lr / (1 - beta)))


def test_fedcm_is_fedgbo_with_sgdm():
    ours = _run(mom.fedcm, _uneven_rounds(), alpha=0.3, weight_decay=0.1, server_lr=0.7)
    # FedGBO's decay is inside the gradient, that is multiplied by 1 - beta.
    hyper = {"optimizer": "sgdm", "beta": 0.7, "weight_decay": 0.1 / 0.3, "server_lr": 0.7}
    expected = _run(ref.fedgbo, _uneven_rounds(), **hyper)
    _same(ours, expected)
    assert _distance(ours[-1]["d"], expected[-1]["m"]) < 1e-13


def test_ghbm_theory_with_tau_one_is_fedcm():
    rounds = ref.trajectory_rounds("fedavg")
    hyper = {"server_lr": 0.7, "weight_decay": 0.1}
    ours = _run(mom.ghbm_theory, rounds, beta=0.3, tau=1, **hyper)
    expected = _run(mom.fedcm, rounds, alpha=0.3, **hyper)
    _same(ours, expected)
    assert _distance(ours[-1]["m"], expected[-1]["d"]) < 1e-13


@pytest.mark.parametrize("eta", [None, 0.25])
def test_ghbm_theory_follows_its_equations(eta):
    beta, tau, lr, log = 0.3, 3, 0.1, []

    def gradient(params, x, y):
        loss, grads = ref.mlp(params, x, y)
        log.append(grads)
        return loss, grads

    x = _init("mlp")
    m, seen = _zeros(x), []
    history = mom.ghbm_theory(
        x, _uneven_rounds(), gradient, beta=beta, tau=tau, lr=lr, eta=eta, server_lr=0.7
    )
    for ours in history:
        g, log[:6] = log[:6], []
        weights = [0.5, 0.125 / 2, 0.125 / 2, 0.375 / 3, 0.375 / 3, 0.375 / 3]
        seen.append(_combine(weights, g))
        assert _distance(ours["pseudo_gradient"], seen[-1]) < 1e-13
        last = seen[-tau:]
        m = _combine([1 - beta] + [beta / tau] * len(last), [m, *last])
        # 1, 2 and 3 steps with these weights: 1.875 on average.
        x = _combine([1.0, -(eta or 0.7 * lr * 1.875)], [x, m])
        assert _distance(ours["m"], m) < 1e-13
        assert _distance(ours["params"], x) < 1e-13


def test_ghbm_on_the_server_with_tau_one_is_fedavgm():
    hyper = {"beta": 0.6, "server_lr": 0.7, "weight_decay": 0.1}
    ours = _run(mom.ghbm_server, _uneven_rounds(), tau=1, **hyper)
    _same(ours, _run(ref.adaptive_fedopt, _uneven_rounds(), server="momentum", **hyper))


def test_ghbm_on_the_server_looks_tau_rounds_back():
    models = [_init("mlp")]
    for rnd, ours in zip(
        _uneven_rounds(),
        _run(mom.ghbm_server, _uneven_rounds(), beta=0.6, tau=2, server_lr=0.7),
        strict=True,
    ):
        (local,) = ref.fedavg(models[-1], [rnd], ref.mlp, lr=0.1, server_lr=0.7)
        expected = local["params"]
        if len(models) > 2:
            expected = _combine([1.0, 0.3, -0.3], [expected, models[-1], models[-3]])
        assert _distance(ours["params"], expected) < 1e-14
        models.append(ours["params"])


@pytest.mark.parametrize("nesterov", [False, True])
def test_ghbm_adds_beta_times_the_momentum_whatever_the_steps(nesterov):
    log, models, beta, tau = [], [_init("mlp")], 0.8, 2

    def gradient(params, x, y):
        loss, grads = ref.mlp(params, x, y)
        log.append(_combine([1.0, 0.1], [grads, params]))
        return loss, grads

    history = mom.ghbm(
        models[0],
        _uneven_rounds(),
        gradient,
        beta=beta,
        tau=tau,
        lr=0.1,
        nesterov=nesterov,
        weight_decay=0.1,
    )
    for rnd, ours in zip(_uneven_rounds(), history, strict=True):
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            k = len(batches)
            g, log[:k] = log[:k], []
            expected = _combine([-0.1] * k, g)
            if len(models) > tau:
                trees = [expected, models[-1], models[-1 - tau]]
                expected = _combine([1.0, beta / tau, -beta / tau], trees)
            assert _distance(ours["deltas"][client], expected) < 1e-14
        models.append(ours["params"])


def test_localghbm_is_ghbm_under_cyclic_participation():
    rounds = ref.trajectory_rounds("fedavg", schedule="cyclic")
    for rnd in rounds:
        rnd["batches"] = [b[: i + 2] for i, b in enumerate(rnd["batches"])]
        rnd["weights"] = [3.0, 1.0]
    hyper = {"beta": 0.8, "server_lr": 0.7, "weight_decay": 0.1}
    ours = _run(mom.localghbm, rounds, num_clients=N, **hyper)
    _same(ours, _run(mom.ghbm, rounds, tau=3, **hyper))
    assert _distance(ours[-1]["params"], LIMITS["ghbm"](rounds)[-1]["params"]) > 1e-3


def test_fedadc_with_one_step_is_fedacg():
    rounds = ref.trajectory_rounds("fedavg")
    for rnd in rounds:
        rnd["batches"] = [b[:1] for b in rnd["batches"]]
    ours = _run(mom.fedadc, rounds, beta=0.7, weight_decay=0.1)
    _same(ours, _run(mom.fedacg, rounds, lam=0.7, beta=0.0, weight_decay=0.1))


def test_fedacg_without_penalty_is_nesterov_on_the_server():
    x, lam = _init("mlp"), 0.6
    previous = x
    for rnd, ours in zip(
        _uneven_rounds(), _run(mom.fedacg, _uneven_rounds(), lam=lam, beta=0.0), strict=True
    ):
        ahead = _combine([1 + lam, -lam], [x, previous])
        (local,) = ref.fedavg(ahead, [rnd], ref.mlp, lr=0.1)
        previous, x = x, local["params"]
        assert _distance(ours["params"], x) < 1e-13


def test_fedhbm_follows_its_scalar_rule_for_unequal_steps():
    # f = (y - target)^2/2 for one parameter; the minibatch is the target.
    def gradient(params, target, _):
        return 0.0, {"y": params["y"] - target}

    beta, lr, decay = 0.9, 0.1, 0.2
    rounds = [
        {"clients": [0, 1], "batches": [[(1.0, None)], [(-2.0, None)] * 3], "weights": [1, 3]},
        {"clients": [1, 2], "batches": [[(3.0, None)] * 2, [(1.0, None)]], "weights": [2, 2]},
    ]
    x, anchors = 0.5, {}
    history = mom.fedhbm(
        {"y": np.array(x)}, rounds, gradient, beta=beta, lr=lr, num_clients=4, weight_decay=decay
    )
    for rnd, ours in zip(rounds, history, strict=True):
        finals = []
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            y = x
            for target, _ in batches:
                push = beta * 0.5 / len(batches) * (y - anchors[client]) if client in anchors else 0
                y = y - lr * (y - target + decay * y) + push
            finals.append(y)
        anchors.update(zip(rnd["clients"], finals, strict=True))
        total = sum(rnd["weights"])
        x = sum(w / total * y for w, y in zip(rnd["weights"], finals, strict=True))
        assert abs(ours["params"]["y"] - x) < 1e-15
        assert all(abs(ours["anchors"][i]["y"] - anchors[i]) < 1e-15 for i in anchors)


def test_mime_sgdm_is_mimemom_up_to_the_normalisation():
    beta, lr, hyper = 0.8, 0.3, {"server_lr": 0.7, "weight_decay": 0.1}
    ours = _run(mom.mime, _uneven_rounds(), optimizer="sgdm", beta=beta, lr=lr, **hyper)
    expected = _run(mom.mimemom, _uneven_rounds(), momentum=beta, lr=lr * (1 - beta), **hyper)
    _same(ours, expected)
    assert _distance(ours[-1]["m"], _scaled(1 - beta, expected[-1]["m"])) < 1e-14


@pytest.mark.parametrize("optimizer", ["sgd", "sgdm", "rmsprop", "adam"])
def test_mime_with_one_step_takes_the_weighted_full_gradient(optimizer):
    rounds, x = _uneven_rounds(), _init("mlp")
    for rnd in rounds:
        rnd["batches"] = [b[:1] for b in rnd["batches"]]
    m, v, b1, b2, eps, lr = (
        _zeros(x),
        {k: np.ones_like(p) for k, p in x.items()},
        0.8,
        0.9,
        1e-2,
        0.1,
    )
    hyper = {"optimizer": optimizer, "beta": 0.8, "beta1": b1, "beta2": b2, "eps": eps, "lr": lr}
    if optimizer == "rmsprop":
        b2 = 0.8
    for rnd, ours in zip(rounds, _run(mom.mime, rounds, **hyper), strict=True):
        c = _combine([0.5, 0.125, 0.375], [ref.mlp(x, *data)[1] for data in rnd["full"]])
        assert _distance(ours["c"], c) < 1e-15
        # With one step g(y) - g(x) is zero, and all clients take the same one.
        step = c
        if optimizer in ("sgdm", "adam"):
            step = {k: b1 * m[k] + (1 - b1) * c[k] for k in c}
        if optimizer in ("rmsprop", "adam"):
            step = {k: step[k] / (np.sqrt(v[k]) + eps) for k in c}
        x = _combine([1.0, -lr], [x, step])
        m = {k: b1 * m[k] + (1 - b1) * c[k] for k in c}
        v = {k: b2 * v[k] + (1 - b2) * c[k] ** 2 for k in c}
        assert _distance(ours["params"], x) < 1e-14
        assert "m" not in ours or _distance(ours["m"], m) < 1e-15
        assert "v" not in ours or _distance(ours["v"], v) < 1e-15


# The regularised ones -----------------------------------------------------------------------


def test_feddyn_states_are_means_over_all_clients():
    rounds, x, alpha = _uneven_rounds(), _init("mlp"), 0.3
    history = _run(reg.feddyn, rounds, alpha=alpha, num_clients=N, weight_decay=0.1)
    for rnd, ours in zip(rounds, history, strict=True):
        h_i = list(ours["client_h"].values())
        assert _distance(ours["h"], _combine([1 / N] * len(h_i), h_i)) < 1e-14
        trees = [ours["deltas"][i] for i in rnd["clients"]]
        expected = _combine([1.0, 0.5, 0.125, 0.375, -1 / alpha], [x, *trees, ours["h"]])
        assert _distance(ours["params"], expected) < 1e-13
        x = ours["params"]


def test_feddc_states_are_means_over_all_clients():
    rounds, x, lr = _uneven_rounds(), _init("mlp"), 0.1
    c, controls = _zeros(x), {}
    history = _run(reg.feddc, rounds, alpha=0.3, num_clients=N, weight_decay=0.1)
    for rnd, ours in zip(rounds, history, strict=True):
        for name, states in (("h", "client_h"), ("c", "client_controls")):
            values = list(ours[states].values())
            assert _distance(ours[name], _combine([1 / N] * len(values), values)) < 1e-13
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            trees = [controls.get(client, _zeros(x)), c, ours["deltas"][client]]
            expected = _combine([1.0, -1.0, -1.0 / (lr * len(batches))], trees)
            assert _distance(ours["client_controls"][client], expected) < 1e-13
        trees = [ours["deltas"][i] for i in rnd["clients"]]
        expected = _combine([1.0, 0.5, 0.125, 0.375, 1.0], [x, *trees, ours["h"]])
        assert _distance(ours["params"], expected) < 1e-13
        x, c, controls = ours["params"], ours["c"], ours["client_controls"]


def test_feddc_without_penalty_steps_as_scaffold():
    rounds = _uneven_rounds()[:1]
    ours = _run(reg.feddc, rounds, alpha=0.0, num_clients=N)
    expected = _run(ref.scaffold, rounds, num_clients=N, option=2)
    assert _distance(ours[0]["c"], expected[0]["c"]) < 1e-14
    for client, control in expected[0]["client_controls"].items():
        assert _distance(ours[0]["client_controls"][client], control) < 1e-14


def test_adabest_divides_by_the_rounds_since_the_last_participation():
    rounds, mu, x = _uneven_rounds(), 0.4, _init("mlp")
    h, last = {}, {}
    history = _run(reg.adabest, rounds, mu=mu, beta=0.5, weight_decay=0.1)
    for t, (rnd, ours) in enumerate(zip(rounds, history, strict=True)):
        for client in rnd["clients"]:
            trees = [h.get(client, _zeros(x)), ours["deltas"][client]]
            h[client] = _combine([1 / (t - last.get(client, -1)), -mu], trees)
            last[client] = t
            assert _distance(ours["client_h"][client], h[client]) < 1e-15
            assert ours["last_round"][client] == t + 1


def _check_gradient(value_and_gradient, params):
    """Compare a term's gradient with central differences."""
    _, grads = value_and_gradient(params)
    step = 1e-5
    for name, leaf in params.items():
        for index in np.ndindex(leaf.shape):
            values = []
            for sign in (1.0, -1.0):
                moved = {k: v.copy() for k, v in params.items()}
                moved[name][index] += sign * step
                values.append(value_and_gradient(moved)[0])
            difference = (values[0] - values[1]) / (2 * step)
            assert abs(difference - grads[name][index]) < 1e-9


def _other_models():
    """Two models away from the initial one."""
    history = _run(ref.fedavg, _uneven_rounds(), lr=1.0)
    return history[0]["params"], history[-1]["params"]


def test_fedmax_term_has_its_gradient_and_vanishes_for_equal_features():
    params, x = _init("mlp"), ref.load_problem()["X"][0]
    _check_gradient(lambda p: reg.fedmax_term(p, x, 0.7), params)
    value, grads = reg.fedmax_term(_zeros(params), x, 0.7)
    assert abs(value) < 1e-15
    assert all(np.abs(leaf).max() < 1e-15 for leaf in grads.values())
    assert reg.fedmax_term(params, x, 0.7)[0] > 0.01


def test_moon_term_has_its_gradient_and_is_log_two_for_equal_models():
    positive, negative = _other_models()
    params, x = _init("mlp"), ref.load_problem()["X"][0]
    _check_gradient(lambda p: reg.moon_term(p, x, positive, negative, 2.0, 0.5), params)
    value, grads = reg.moon_term(params, x, positive, positive, 2.0, 0.5)
    assert abs(value - 2.0 * np.log(2.0)) < 1e-15
    assert all(np.abs(leaf).max() < 1e-15 for leaf in grads.values())


def test_moon_contrasts_a_late_first_participation_with_the_initial_model():
    init, (first, second) = _init("mlp"), _uneven_rounds()[:2]
    assert 1 in second["clients"] and 1 not in first["clients"]
    history = _run(reg.moon, [first, second], mu=2.0, temperature=0.5)
    # The first round is FedAvg's: nobody has a previous model, and the term is zero.
    (plain,) = _run(ref.fedavg, [first])
    assert _distance(history[0]["params"], plain["params"]) < 1e-15
    x = history[0]["params"]
    (batch,) = second["batches"][second["clients"].index(1)]
    _, g = ref.mlp(x, *batch)
    _, extra = reg.moon_term(x, batch[0], x, init, 2.0, 0.5)
    assert _distance(history[1]["deltas"][1], _combine([-0.1, -0.1], [g, extra])) < 1e-15
    assert np.abs(extra["w1"]).max() > 1e-3


def test_features_are_those_of_the_mlp():
    with pytest.raises(ValueError, match="MLP"):
        reg.fedmax_term(_init("logreg"), ref.load_problem()["X"][0], 0.7)


ALGORITHMS = {
    "mime": lambda r, **kw: _run(mom.mime, r, optimizer="adam", **kw),
    "mimemom": lambda r, **kw: _run(mom.mimemom, r, momentum=0.5, **kw),
    "fedacg": lambda r, **kw: _run(mom.fedacg, r, lam=0.5, beta=0.1, **kw),
    "fedcm": lambda r, **kw: _run(mom.fedcm, r, alpha=0.5, **kw),
    "ghbm": lambda r, **kw: _run(mom.ghbm, r, beta=0.5, tau=2, **kw),
    "fedadc": lambda r, **kw: _run(mom.fedadc, r, beta=0.5, **kw),
    "ghbm_theory": lambda r, **kw: _run(mom.ghbm_theory, r, beta=0.5, tau=2, **kw),
    "ghbm_server": lambda r, **kw: _run(mom.ghbm_server, r, beta=0.5, tau=2, **kw),
    "localghbm": lambda r, **kw: _run(mom.localghbm, r, beta=0.5, num_clients=N, **kw),
    "fedhbm": lambda r, **kw: _run(mom.fedhbm, r, beta=0.5, num_clients=N, **kw),
    "scaffold_m": lambda r, **kw: _run(mom.scaffold_m, r, beta=0.5, num_clients=N, **kw),
    "feddyn": lambda r, **kw: _run(reg.feddyn, r, alpha=0.1, num_clients=N, **kw),
    "adabest": lambda r, **kw: _run(reg.adabest, r, mu=0.1, beta=0.5, **kw),
    "feddc": lambda r, **kw: _run(reg.feddc, r, alpha=0.1, num_clients=N, **kw),
    "fedmax": lambda r, **kw: _run(reg.fedmax, r, beta=0.5, **kw),
    "moon": lambda r, **kw: _run(reg.moon, r, mu=1.0, temperature=0.5, **kw),
}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_weights_steps_and_decay_are_respected(name):
    run, rounds = ALGORITHMS[name], ref.trajectory_rounds("fedavg")
    plain = run(rounds)
    scaled = run([{**rnd, "weights": [5.0, 5.0, 5.0]} for rnd in rounds])
    _same(plain, scaled)
    uneven = run(_uneven_rounds())
    assert _distance(plain[-1]["params"], uneven[-1]["params"]) > 1e-4
    decayed = run(_uneven_rounds(), weight_decay=0.1)
    assert _distance(uneven[-1]["params"], decayed[-1]["params"]) > 1e-4


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_order_of_the_cohort_does_not_matter(name):
    rounds = _uneven_rounds()
    turned = [{k: v[::-1] for k, v in rnd.items()} for rnd in rounds]
    _same(ALGORITHMS[name](rounds), ALGORITHMS[name](turned))
