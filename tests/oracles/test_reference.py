"""The NumPy references against trajectories of published code, and against themselves."""

import json

import numpy as np
import pytest

from . import reference as ref

TOLERANCE = 1e-12

FEDGBO = ("JedMills/FedGBO", "5534f7d9e1fa2cb2f415625065a39e394a34e3f4")
GHBM = ("RickZack/GHBM", "41da4a901326a0698a8f2e246a64296f36991535")
FEDACG = ("geehokim/FedACG", "62b6e953f5511043bf3cdc161f518454190505f0")
FEDDC = ("gaoliang13/FedDC", "13440c23d3953cd137fa65b6e3b76eb8eb187798")
MOON = ("QinbinLi/MOON", "8fcba3c4efc9a47eb24687a91ba94cfb2005103f")
MTFL = ("JedMills/MTFL-For-Personalised-DNNs", "b46682201b34a07502e1bc0b7817f69e29f9b280")
SOURCES = {
    "fedavg": FEDGBO,
    "fedavgm": GHBM,
    "fedprox": FEDGBO,
    "adaptivefedopt-adam": FEDGBO,
    "adaptivefedopt-sgdm": FEDGBO,
    "mfl-adam": FEDGBO,
    "mfl-sgdm": FEDGBO,
    "fedgbo-adam": FEDGBO,
    "fedgbo-rmsprop": FEDGBO,
    "fedgbo-sgdm": FEDGBO,
    "scaffold": GHBM,
    "mimelite-rmsprop": FEDGBO,
    "mimelite-sgdm": FEDGBO,
    "mimexlite-sgdm": FEDGBO,
    "mtfl-fedavg-yb": MTFL,
    "mtfl-fedavg-usyb": MTFL,
    "mtfl-fedavgadam-yb": MTFL,
    "perfedavg": MTFL,
    # Compared in test_more_references.py.
    "adabest": GHBM,
    "fedacg": FEDACG,
    "fedcm": GHBM,
    "feddc": FEDDC,
    "feddyn": FEDACG,
    "fedhbm": GHBM,
    "fedmax": FEDGBO,
    "ghbm-tau1": GHBM,
    "ghbm-tau2": GHBM,
    "ghbm-tau2-nesterov": GHBM,
    "ghbm-tau3": GHBM,
    "localghbm": GHBM,
    "mimemom": GHBM,
    "mimesgd": GHBM,
    "moon-nomomentum": MOON,
}
# How each trajectory's hyperparameters map onto a reference.
CASES = {
    "fedavg": lambda p, r, h: ref.fedavg(
        p, r, ref.logreg, lr=h["client_lr"], server_lr=h["server_lr"]
    ),
    "fedavgm": lambda p, r, h: ref.adaptive_fedopt(
        p,
        r,
        ref.logreg,
        server="momentum",
        lr=h["client_lr"],
        server_lr=h["server_lr"],
        beta=h["server_momentum"],
        weight_decay=h["weight_decay"],
    ),
    "fedprox": lambda p, r, h: ref.fedprox(p, r, ref.logreg, **h),
    "adaptivefedopt-adam": lambda p, r, h: _adaptive_fedopt(p, r, h, "adam"),
    "adaptivefedopt-sgdm": lambda p, r, h: _adaptive_fedopt(p, r, h, "sgdm"),
    "mfl-adam": lambda p, r, h: ref.mfl(p, r, ref.logreg, optimizer="adam", **h),
    "mfl-sgdm": lambda p, r, h: ref.mfl(p, r, ref.logreg, optimizer="sgdm", **h),
    "fedgbo-adam": lambda p, r, h: ref.fedgbo(p, r, ref.logreg, optimizer="adam", **h),
    "fedgbo-rmsprop": lambda p, r, h: ref.fedgbo(p, r, ref.logreg, optimizer="rmsprop", **h),
    "fedgbo-sgdm": lambda p, r, h: ref.fedgbo(p, r, ref.logreg, optimizer="sgdm", **h),
    "mimelite-rmsprop": lambda p, r, h: ref.mimelite(p, r, ref.logreg, optimizer="rmsprop", **h),
    "mimelite-sgdm": lambda p, r, h: ref.mimelite(p, r, ref.logreg, optimizer="sgdm", **h),
    "mimexlite-sgdm": lambda p, r, h: ref.mimelite(p, r, ref.logreg, optimizer="sgdm", **h),
    "scaffold": lambda p, r, h: ref.scaffold(
        p,
        r,
        ref.logreg,
        lr=h["client_lr"],
        server_lr=h["server_lr"],
        weight_decay=h["weight_decay"],
        num_clients=6,
        option=2,
    ),
}

# The names that the published codes give to the references' entries.
STATE_NAMES = {
    "m": "m",
    "v": "v",
    "momentum": "m",
    "optimizer_momentum_buffer": "m",
    "controls": "c",
    "pseudogradient": "pseudo_gradient",
    "biased_gradient": "biased_gradient",
}


def _adaptive_fedopt(params, rounds, hyper, server):
    hyper = dict(hyper)
    lr = hyper.pop("client_lr")
    return ref.adaptive_fedopt(params, rounds, ref.logreg, server=server, lr=lr, **hyper)


def _distance(a, b):
    assert a.keys() == b.keys()
    assert all(a[k].shape == b[k].shape for k in a)
    return max(np.abs(a[k] - b[k]).max() for k in a)


def _combine(weights, trees):
    return {k: sum(w * t[k] for w, t in zip(weights, trees, strict=True)) for k in trees[0]}


def _check_state(ours, recorded):
    """Compare the server's recorded state, in whatever names the code gave it."""
    for name, value in recorded.items():
        if name == "avg_gradient_times_M":
            # The files hold zeros here; m or v shows the gradient that was used.
            assert all(not leaf.any() for leaf in value.values())
        else:
            assert _distance(ours[STATE_NAMES[name]], value) <= TOLERANCE, name


def _check_clients(ours, recorded):
    """Compare the recorded displacements and controls of the clients."""
    for client, difference in recorded.get("client_delta_x_minus_y", {}).items():
        delta = {k: -v for k, v in ours["deltas"][client].items()}
        assert _distance(delta, difference) <= TOLERANCE
    for client, state in recorded.get("client_state", {}).items():
        assert set(state) == {"client_controls"}
        control = ours["client_controls"][client]
        assert _distance(control, state["client_controls"]) <= TOLERANCE


@pytest.mark.parametrize("name", sorted(CASES))
def test_reference_reproduces_published_trajectory(name):
    trajectory = ref.load_trajectory(name)
    rounds = ref.trajectory_rounds(name)
    init = trajectory["init_state"]["params"]
    history = CASES[name](init, rounds, trajectory["hyperparameters"])
    assert len(history) == len(trajectory["rounds"]) == 6
    for rnd, ours, recorded in zip(rounds, history, trajectory["rounds"], strict=True):
        assert rnd["clients"] == recorded["clients"]
        assert _distance(ours["params"], recorded["params"]) <= TOLERANCE
        _check_state(ours, recorded.get("state", {}))
        _check_clients(ours, recorded)
        if "train_loss" in recorded:
            assert abs(ours["loss"] - recorded["train_loss"]) <= TOLERANCE


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_trajectory_file_names_its_source_and_starts_at_the_problem(name):
    problem, trajectory = ref.load_problem(), ref.load_trajectory(name)
    assert (trajectory["source"]["repo"], trajectory["source"]["commit"]) == SOURCES[name]
    assert trajectory["dtype"] == "float64"
    init = problem["init"][trajectory["model"]]
    assert _distance(trajectory["init_state"]["params"], init) == 0.0
    schedule = problem["schedules"][trajectory["schedule"]]
    assert [entry["clients"] for entry in trajectory["rounds"]] == schedule


def test_every_trajectory_file_is_listed():
    found = {path.stem for path in ref.TRAJECTORIES.glob("*.json")}
    assert found == set(SOURCES) | {"problem"}
    readme = (ref.TRAJECTORIES.parent / "README.md").read_text(encoding="utf-8")
    for name, (repo, commit) in SOURCES.items():
        assert all(text in readme for text in (f"`{name}`", repo, commit))


@pytest.mark.parametrize("model", ["logreg", "mlp"])
def test_analytic_gradients_agree_with_finite_differences(model):
    problem = ref.load_problem()
    gradient, params = getattr(ref, model), problem["init"][model]
    x, y = problem["X"][0], problem["y"][0]
    _, grads = gradient(params, x, y)
    h = 1e-5
    for name, value in params.items():
        for index in np.ndindex(value.shape):
            losses = []
            for sign in (1.0, -1.0):
                moved = {k: v.copy() for k, v in params.items()}
                moved[name][index] += sign * h
                losses.append(gradient(moved, x, y)[0])
            # Central differences are off by O(h^2) and by rounding over h: both near 1e-10.
            assert abs((losses[0] - losses[1]) / (2 * h) - grads[name][index]) < 1e-9


# Where no trajectory reaches: unequal K, weights, weight decay, other optimisers. --------------


def _uneven_rounds():
    """The fedavg rounds with 1, 2 and 3 local steps and unnormalised weights."""
    rounds = ref.trajectory_rounds("fedavg")
    for rnd in rounds:
        rnd["batches"] = [b[: i + 1] for i, b in enumerate(rnd["batches"])]
        rnd["weights"] = [4.0, 1.0, 3.0]
    return rounds


def _init(model="logreg"):
    return ref.load_problem()["init"][model]


def _recording(log):
    """A gradient that also logs what it returned and where, with weight decay 0.1 added."""

    def gradient(params, x, y):
        loss, grads = ref.mlp(params, x, y)
        log.append({k: grads[k] + 0.1 * params[k] for k in grads})
        return loss, grads

    return gradient


@pytest.mark.parametrize("optimizer", ["sgdm", "rmsprop", "adam"])
def test_fedgbo_inverse_recovers_mean_gradient_for_unequal_steps(optimizer):
    log, rounds = [], _uneven_rounds()
    history = ref.fedgbo(
        _init("mlp"), rounds, _recording(log), optimizer=optimizer, lr=0.1, weight_decay=0.1
    )
    for ours in history:
        used = [log.pop(0) for _ in range(6)]
        means = [_combine([1 / k] * k, part) for k, part in ((1, used[:1]), (2, used[1:3]))]
        means.append(_combine([1 / 3] * 3, used[3:]))
        assert _distance(ours["biased_gradient"], _combine([0.5, 0.125, 0.375], means)) < 1e-12


def test_fedgbo_sgdm_momentum_is_the_normalised_displacement():
    x, lr = _init(), 0.3
    rounds = ref.trajectory_rounds("fedgbo-sgdm")
    for ours in ref.fedgbo(x, rounds, ref.logreg, optimizer="sgdm", lr=lr, beta=0.9):
        expected = {k: (x[k] - ours["params"][k]) / (3 * lr) for k in x}
        assert _distance(ours["m"], expected) < 1e-14
        x = ours["params"]


def test_scaffold_option_two_equals_its_closed_form():
    rounds, lr = _uneven_rounds(), 0.2
    zero = {k: np.zeros_like(v) for k, v in _init().items()}
    c, controls = zero, {}
    history = ref.scaffold(_init(), rounds, ref.logreg, lr=lr, num_clients=6, option=2)
    for rnd, ours in zip(rounds, history, strict=True):
        new = dict(controls)
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            trees = [controls.get(client, zero), c, ours["deltas"][client]]
            new[client] = _combine([1.0, -1.0, -1.0 / (lr * len(batches))], trees)
            assert _distance(ours["client_controls"][client], new[client]) < 1e-14
        c, controls = ours["c"], ours["client_controls"]
        # c is the mean of all clients' controls, absent ones counting as zero.
        assert _distance(c, _combine([1 / 6] * len(controls), list(controls.values()))) < 1e-14


def test_scaffold_option_one_keeps_full_gradients_at_the_global_model():
    rounds, x = _uneven_rounds(), _init()
    history = ref.scaffold(x, rounds, ref.logreg, lr=0.2, num_clients=6, option=1, weight_decay=0.1)
    for rnd, ours in zip(rounds, history, strict=True):
        for client, data in zip(rnd["clients"], rnd["full"], strict=True):
            assert _distance(ours["client_controls"][client], ref.logreg(x, *data)[1]) == 0.0
        x = ours["params"]


@pytest.mark.parametrize("server", ["adam", "yogi", "adagrad", "rmsprop"])
def test_adaptive_servers_follow_their_scalar_rules(server):
    beta, beta1, beta2, eps, v0, server_lr = 0.8, 0.7, 0.95, 1e-2, 1e-3, 0.05
    history = ref.adaptive_fedopt(
        _init(),
        _uneven_rounds(),
        ref.logreg,
        server=server,
        lr=0.2,
        server_lr=server_lr,
        beta=beta,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        v0=v0,
    )
    # One coordinate, in Python floats.
    x, m, v = float(_init()["w"][2, 0]), 0.0, v0
    for ours in history:
        g = float(ours["pseudo_gradient"]["w"][2, 0])
        m = beta1 * m + (1 - beta1) * g if server in ("adam", "yogi") else g
        if server == "adam":
            v = beta2 * v + (1 - beta2) * g * g
        elif server == "rmsprop":
            v = beta * v + (1 - beta) * g * g
        elif server == "adagrad":
            v = v + g * g
        else:
            v = v + (1 - beta2) * g * g if v < g * g else v - (1 - beta2) * g * g
        x -= server_lr * m / (v**0.5 + eps)
        assert abs(ours["v"]["w"][2, 0] - v) < 1e-15
        assert abs(ours["params"]["w"][2, 0] - x) < 1e-14


def test_mfl_rmsprop_with_one_step_moves_with_the_new_statistics():
    rounds = ref.trajectory_rounds("mfl-sgdm")[:1]
    rounds[0].update(clients=[0], batches=[rounds[0]["batches"][0][:1]])
    x = _init()
    _, g = ref.logreg(x, *rounds[0]["batches"][0][0])
    (ours,) = ref.mfl(x, rounds, ref.logreg, optimizer="rmsprop", lr=0.1, beta=0.9, eps=1e-3)
    v = {k: 0.9 + 0.1 * g[k] ** 2 for k in g}
    expected = {k: x[k] - 0.1 * g[k] / (np.sqrt(v[k]) + 1e-3) for k in g}
    assert _distance(ours["v"], v) < 1e-15
    assert _distance(ours["params"], expected) < 1e-15


ALGORITHMS = {
    "fedavg": lambda p, r, **kw: ref.fedavg(p, r, ref.mlp, lr=0.1, **kw),
    "fedprox": lambda p, r, **kw: ref.fedprox(p, r, ref.mlp, lr=0.1, mu=0.3, **kw),
    "adaptive_fedopt": lambda p, r, **kw: ref.adaptive_fedopt(
        p, r, ref.mlp, server="yogi", lr=0.1, **kw
    ),
    "mfl": lambda p, r, **kw: ref.mfl(p, r, ref.mlp, optimizer="adam", lr=0.1, **kw),
    "fedgbo": lambda p, r, **kw: ref.fedgbo(p, r, ref.mlp, optimizer="adam", lr=0.1, **kw),
    "mimelite": lambda p, r, **kw: ref.mimelite(p, r, ref.mlp, optimizer="adam", lr=0.1, **kw),
    "scaffold": lambda p, r, **kw: ref.scaffold(p, r, ref.mlp, lr=0.1, num_clients=6, **kw),
}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_weights_are_normalised_and_default_to_uniform(name):
    run, rounds = ALGORITHMS[name], ref.trajectory_rounds("fedavg")
    uniform = run(_init("mlp"), rounds)
    scaled = run(_init("mlp"), [{**rnd, "weights": [5.0, 5.0, 5.0]} for rnd in rounds])
    assert _distance(uniform[-1]["params"], scaled[-1]["params"]) < 1e-14


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_weights_steps_decay_and_initial_model_are_respected(name):
    run, init = ALGORITHMS[name], _init("mlp")
    before = json.dumps({k: v.tolist() for k, v in init.items()})
    plain = run(init, ref.trajectory_rounds("fedavg"))[-1]["params"]
    uneven = run(init, _uneven_rounds())[-1]["params"]
    decayed = run(init, _uneven_rounds(), weight_decay=0.1)[-1]["params"]
    assert _distance(plain, uneven) > 1e-4
    assert _distance(uneven, decayed) > 1e-4
    assert json.dumps({k: v.tolist() for k, v in init.items()}) == before


def test_fedprox_without_penalty_is_fedavg():
    rounds = _uneven_rounds()
    a = ref.fedavg(_init(), rounds, ref.logreg, lr=0.2, server_lr=0.7, weight_decay=0.01)
    b = ref.fedprox(_init(), rounds, ref.logreg, lr=0.2, server_lr=0.7, weight_decay=0.01, mu=0)
    assert _distance(a[-1]["params"], b[-1]["params"]) < 1e-15
