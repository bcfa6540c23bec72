"""The NumPy references against published code, and where nothing is published against their equations.

The models of six rounds show every state that a reference keeps. Its states themselves are compared in
tests/algorithms: the library's are the recorded ones, and the references' are the library's.
"""

import inspect

import numpy as np
import pytest

from . import momentum as mom
from . import personal
from . import reference as ref
from . import regularised as reg
from .reference import _add_scaled, _full_like, _weighted_sum

TOLERANCE = 1e-12

SOURCES = {
    "JedMills/FedGBO": (
        "5534f7d9e1fa2cb2f415625065a39e394a34e3f4",
        "fedavg fedprox adaptivefedopt-adam adaptivefedopt-sgdm mfl-adam mfl-sgdm fedgbo-adam"
        " fedgbo-rmsprop fedgbo-sgdm mimelite-rmsprop mimelite-sgdm mimexlite-sgdm fedmax",
    ),
    "RickZack/GHBM": (
        "41da4a901326a0698a8f2e246a64296f36991535",
        "fedavgm scaffold adabest fedcm fedhbm ghbm-tau1 ghbm-tau2 ghbm-tau2-nesterov ghbm-tau3"
        " localghbm mimemom mimesgd",
    ),
    "geehokim/FedACG": ("62b6e953f5511043bf3cdc161f518454190505f0", "fedacg feddyn"),
    "gaoliang13/FedDC": ("13440c23d3953cd137fa65b6e3b76eb8eb187798", "feddc"),
    "QinbinLi/MOON": ("8fcba3c4efc9a47eb24687a91ba94cfb2005103f", "moon-nomomentum"),
    "JedMills/MTFL-For-Personalised-DNNs": (
        "b46682201b34a07502e1bc0b7817f69e29f9b280",
        "mtfl-fedavg-yb mtfl-fedavg-usyb mtfl-fedavgadam-yb perfedavg",
    ),
}
# trajectory -> (reference, what its hyperparameters do not say)
CASES = {
    "fedavg": (ref.fedavg, {}),
    "fedavgm": (ref.adaptive_fedopt, {"server": "momentum"}),
    "fedprox": (ref.fedprox, {}),
    "adaptivefedopt-adam": (ref.adaptive_fedopt, {"server": "adam"}),
    "adaptivefedopt-sgdm": (ref.adaptive_fedopt, {"server": "sgdm"}),
    **{
        f"{name}-{optimizer}": (oracle, {"optimizer": optimizer})
        for name, oracle, optimizers in (
            ("mfl", ref.mfl, ("adam", "sgdm")),
            ("fedgbo", ref.fedgbo, ("adam", "rmsprop", "sgdm")),
            ("mimelite", ref.mimelite, ("rmsprop", "sgdm")),
            ("mimexlite", ref.mimelite, ("sgdm",)),
        )
        for optimizer in optimizers
    },
    "scaffold": (ref.scaffold, {"option": 2}),
    "adabest": (reg.adabest, {}),
    "fedacg": (mom.fedacg, {}),
    "fedcm": (mom.fedcm, {}),
    "feddc": (reg.feddc, {}),
    "feddyn": (reg.feddyn, {}),
    "fedhbm": (mom.fedhbm, {}),
    "fedmax": (reg.fedmax, {}),
    **dict.fromkeys(("ghbm-tau1", "ghbm-tau2", "ghbm-tau2-nesterov", "ghbm-tau3"), (mom.ghbm, {})),
    "localghbm": (mom.localghbm, {}),
    "mimemom": (mom.mimemom, {}),
    "mimesgd": (mom.mime, {"optimizer": "sgd"}),
    "moon-nomomentum": (reg.moon, {}),
    "perfedavg": (personal.per_fedavg, {}),
}
# The references' names for what the published codes call otherwise.
NAMES = {
    "client_lr": "lr",
    "local_lr": "lr",
    "beta_outer_lr": "lr",
    "alpha_inner_lr": "alpha",
    "server_momentum": "beta",
    "lambda": "lam",
    "equivalent_paper_beta": "beta",
    "fedmax_beta": "beta",
}


def _distance(a, b):
    assert a.keys() == b.keys()
    assert all(a[k].shape == b[k].shape for k in a)
    return max(np.abs(a[k] - b[k]).max() for k in a)


@pytest.mark.parametrize("name", CASES)
def test_reference_reproduces_published_trajectory(name):
    trajectory, (oracle, fixed) = ref.load_trajectory(name), CASES[name]
    rounds = (
        personal.per_fedavg_trajectory_rounds()
        if name == "perfedavg"
        else ref.trajectory_rounds(name)
    )
    given = {NAMES.get(key, key): value for key, value in trajectory["hyperparameters"].items()}
    given |= {"num_clients": 6, **fixed}
    takes = set(inspect.signature(oracle).parameters)
    if "hyper" in takes:
        takes |= {"lr", *ref.HYPER}
    history = oracle(
        trajectory["init_state"]["params"],
        rounds,
        getattr(ref, trajectory["model"]),
        **{key: value for key, value in given.items() if key in takes},
    )
    for rnd, ours, recorded in zip(rounds, history, trajectory["rounds"], strict=True):
        assert rnd["clients"] == recorded["clients"]
        assert _distance(ours["params"], recorded["params"]) <= TOLERANCE
        for key, theirs in (("loss", "train_loss"), ("objective", "mean_local_loss")):
            if theirs in recorded:
                assert abs(ours[key] - recorded[theirs]) <= TOLERANCE


def test_trajectory_files_name_their_sources_and_start_at_the_problem():
    problem = ref.load_problem()
    readme = (ref.TRAJECTORIES.parent / "README.md").read_text(encoding="utf-8")
    found = set()
    for repository, (commit, names) in SOURCES.items():
        assert repository in readme and commit in readme
        for name in names.split():
            trajectory = ref.load_trajectory(name)
            source = trajectory["source"]
            assert (source["repo"], source["commit"]) == (repository, commit)
            assert f"`{name}`" in readme
            assert trajectory["dtype"] == "float64" and len(trajectory["rounds"]) == 6
            init = problem["init"][trajectory["model"]]
            assert _distance(trajectory["init_state"]["params"], init) == 0.0
            schedule = problem["schedules"][trajectory["schedule"]]
            assert [entry["clients"] for entry in trajectory["rounds"]] == schedule
            found.add(name)
    assert {path.stem for path in ref.TRAJECTORIES.glob("*.json")} == found | {"problem"}
    assert found == set(CASES) | {name for name in found if name.startswith("mtfl")}


# Gradients ------------------------------------------------------------------------------------


def _others():
    """Two models that are neither the initial one nor alike."""
    history = ref.fedavg(_init(), ref.trajectory_rounds("fedavg"), ref.mlp, lr=1.0)
    return history[0]["params"], history[-1]["params"]


GRADIENTS = {
    "logreg": lambda params, x, y: ref.logreg(params, x, y),
    "mlp": lambda params, x, y: ref.mlp(params, x, y),
    "fedmax": lambda params, x, y: reg.fedmax_term(params, x, 0.7),
    "moon": lambda params, x, y: reg.moon_term(params, x, *_others(), 2.0, 0.5),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree_with_finite_differences(name):
    problem = ref.load_problem()
    params, x, y = problem["init"][name if name == "logreg" else "mlp"], *_first_client(problem)
    _, grads = GRADIENTS[name](params, x, y)
    h = 1e-5
    for leaf, value in params.items():
        for index in np.ndindex(value.shape):
            losses = []
            for sign in (1.0, -1.0):
                moved = {k: v.copy() for k, v in params.items()}
                moved[leaf][index] += sign * h
                losses.append(GRADIENTS[name](moved, x, y)[0])
            # Central differences are off by O(h^2) and by rounding over h: both near 1e-10.
            assert abs((losses[0] - losses[1]) / (2 * h) - grads[leaf][index]) < 1e-9


def _first_client(problem):
    return problem["X"][0], problem["y"][0]


def test_terms_in_the_features_are_flat_where_they_should_be():
    """FedMAX's for equal features, with value 0; MOON's for equal models, with mu log 2."""
    params, (positive, _) = _init(), _others()
    x, _ = _first_client(ref.load_problem())
    for (value, grads), expected in (
        (reg.fedmax_term(_full_like(params, 0.0), x, 0.7), 0.0),
        (reg.moon_term(params, x, positive, positive, 2.0, 0.5), 2.0 * np.log(2.0)),
    ):
        assert abs(value - expected) < 1e-15
        assert all(np.abs(leaf).max() < 1e-15 for leaf in grads.values())
    assert reg.fedmax_term(params, x, 0.7)[0] > 0.01
    with pytest.raises(ValueError, match="MLP"):
        reg.fedmax_term(ref.load_problem()["init"]["logreg"], x, 0.7)


# What no published code does: unequal steps and weights, decay, GHBM on the server and in theory -----

WEIGHTS, DECAY, LR = np.array([4.0, 1.0, 3.0]) / 8, 0.1, 0.1


def _init():
    return ref.load_problem()["init"]["mlp"]


def _uneven_rounds():
    """The fedavg rounds with 1, 2 and 3 local steps and weights that do not sum to 1."""
    rounds = ref.trajectory_rounds("fedavg")
    for rnd in rounds:
        rnd["batches"] = [b[: i + 1] for i, b in enumerate(rnd["batches"])]
        rnd["weights"] = 8 * WEIGHTS
    return rounds


class _Recorded:
    """The gradients, decay included, that an algorithm used, by client."""

    def __init__(self):
        self.log = []

    def __call__(self, params, x, y):
        loss, grads = ref.mlp(params, x, y)
        self.log.append(_add_scaled(grads, DECAY, params))
        return loss, grads

    def sums(self):
        """Of the next round's clients, who take 1, 2 and 3 steps."""
        used, self.log = self.log[:6], self.log[6:]
        return [
            _weighted_sum([1.0] * k, g) for k, g in ((1, used[:1]), (2, used[1:3]), (3, used[3:]))
        ]


@pytest.mark.parametrize("optimizer", ["sgdm", "rmsprop", "adam"])
def test_fedgbo_recovers_the_mean_gradient_for_unequal_steps(optimizer):
    gradient = _Recorded()
    history = ref.fedgbo(
        _init(), _uneven_rounds(), gradient, optimizer=optimizer, lr=LR, weight_decay=DECAY
    )
    for ours in history:
        expected = _weighted_sum(WEIGHTS / [1, 2, 3], gradient.sums())
        assert _distance(ours["biased_gradient"], expected) < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_ghbm_pushes_by_beta_times_the_momentum_whatever_the_steps(nesterov):
    gradient, models, beta, tau = _Recorded(), [_init()], 0.8, 2
    history = mom.ghbm(
        models[0], _uneven_rounds(), gradient, beta=beta, tau=tau, lr=LR, nesterov=nesterov,
        weight_decay=DECAY,
    )  # fmt: skip
    for rnd, ours in zip(_uneven_rounds(), history, strict=True):
        for client, total in zip(rnd["clients"], gradient.sums(), strict=True):
            expected = _weighted_sum([-LR], [total])
            if len(models) > tau:
                trees = [expected, models[-1], models[-1 - tau]]
                expected = _weighted_sum([1.0, beta / tau, -beta / tau], trees)
            assert _distance(ours["deltas"][client], expected) < 1e-14
        models.append(ours["params"])


def test_ghbm_on_the_server_looks_tau_rounds_back():
    models, rounds = [_init()], _uneven_rounds()
    history = mom.ghbm_server(models[0], rounds, ref.mlp, beta=0.6, tau=2, lr=LR, server_lr=0.7)
    for rnd, ours in zip(rounds, history, strict=True):
        (local,) = ref.fedavg(models[-1], [rnd], ref.mlp, lr=LR, server_lr=0.7)
        expected = local["params"]
        if len(models) > 2:
            expected = _weighted_sum([1.0, 0.3, -0.3], [expected, models[-1], models[-3]])
        assert _distance(ours["params"], expected) < 1e-14
        models.append(ours["params"])


@pytest.mark.parametrize("eta", [None, 0.25])
def test_ghbm_theory_follows_its_equations(eta):
    beta, tau, gradient = 0.3, 3, _Recorded()
    x, m, seen = _init(), _full_like(_init(), 0.0), []
    history = mom.ghbm_theory(
        x, _uneven_rounds(), gradient, beta=beta, tau=tau, lr=LR, eta=eta, server_lr=0.7,
        weight_decay=beta * DECAY,
    )  # fmt: skip
    for ours in history:
        seen.append(_weighted_sum(WEIGHTS / [1, 2, 3], gradient.sums()))
        assert _distance(ours["pseudo_gradient"], seen[-1]) < 1e-13
        last = seen[-tau:]
        m = _weighted_sum([1 - beta] + [beta / tau] * len(last), [m, *last])
        # 1, 2 and 3 steps with these weights: 1.875 on average.
        x = _add_scaled(x, -(eta or 0.7 * LR * 1.875), m)
        assert _distance(ours["m"], m) < 1e-13
        assert _distance(ours["params"], x) < 1e-13


def test_scaffold_m_steps_and_means_for_unequal_steps():
    beta, zero, rounds = 0.4, _full_like(_init(), 0.0), _uneven_rounds()
    c, d, controls = zero, zero, {}
    history = mom.scaffold_m(_init(), rounds, ref.mlp, beta=beta, lr=LR, num_clients=6)
    for rnd, ours in zip(rounds, history, strict=True):
        directions = []
        for client, batches in zip(rnd["clients"], rnd["batches"], strict=True):
            # The mean step is beta (mean g - c_i + c) + (1 - beta) d, and mean g is c_i+.
            trees = [ours["client_controls"][client], controls.get(client, zero), c, d]
            directions.append(_weighted_sum([beta, -beta, beta, 1 - beta], trees))
            delta = _weighted_sum([-LR * len(batches)], directions[-1:])
            assert _distance(ours["deltas"][client], delta) < 1e-14
        c, d, controls = ours["c"], ours["d"], ours["client_controls"]
        assert _distance(d, _weighted_sum(WEIGHTS, directions)) < 1e-14
        mean = _weighted_sum([1 / 6] * len(controls), list(controls.values()))
        assert _distance(c, mean) < 1e-14
