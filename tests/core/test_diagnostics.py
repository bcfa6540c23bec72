"""Drift of the clients: each diagnostic against NumPy, and that asking for it changes nothing else."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.engine import diagnostics
from tests.algorithms import helpers
from tests.core import problems

CLIENTS, COHORT, STEPS, ROWS, RATE = 6, 5, 3, 4, 0.1
OF_CLIENTS = ("client_distance", "client_update_norm", "perturbation_norm")
FEDAVG = fo.fedavg(opt.sgd(RATE))
ROUND = fo.make_round(FEDAVG, problems.MODEL, strategy="scan", diagnostics=OF_CLIENTS)
IDS = np.array([4, 0, 3, 1, 5])


def _arguments(seed=0, num_steps=(3, 1, 2, 3, 2), dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {
        "cohort": IDS,
        "batches": {
            "x": rng.normal(size=(COHORT, STEPS, ROWS, 3)).astype(dtype),
            "y": rng.normal(size=(COHORT, STEPS, ROWS)).astype(dtype),
        },
        "weights": rng.uniform(0.2, 3.0, size=COHORT),
        "num_steps": np.array(num_steps),
    }


def _walk(w, arguments, i, rate=RATE):
    """The models of one client, step by step, and its gradients there and at w."""
    models, here, there = [w], [], []
    for k in range(arguments["num_steps"][i]):
        x, y = arguments["batches"]["x"][i, k], arguments["batches"]["y"][i, k]
        here.append(problems.gradient(models[-1], x, y))
        there.append(problems.gradient(w, x, y))
        models.append(models[-1] - rate * here[-1])
    return models, here, there


def _cosine_distance(a, b):
    return 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def _expected(w, arguments):
    """All three, of those who reported."""
    took_part = np.flatnonzero(arguments["num_steps"])
    walks = {i: _walk(w, arguments, i) for i in took_part}
    ends = [walks[i][0][-1] for i in took_part]
    pairs = list(itertools.combinations(ends, 2))
    weights = arguments["weights"][took_part] / arguments["weights"][took_part].sum()
    changes = [np.mean(np.subtract(walks[i][1], walks[i][2]), axis=0) for i in took_part]
    norms = np.zeros(COHORT)
    norms[took_part] = [np.linalg.norm(end - w) for end in ends]
    return {
        "client_distance": np.mean([_cosine_distance(*p) for p in pairs]) if pairs else 0.0,
        "client_update_norm": norms,
        "perturbation_norm": np.linalg.norm(weights @ np.array(changes)),
    }


def _start(algorithm=FEDAVG):
    return problems.start(algorithm, CLIENTS)


@pytest.mark.parametrize(
    "num_steps", [(3, 1, 2, 3, 2), (0, 2, 3, 0, 1), (0, 0, 3, 0, 0), (1, 1, 1, 1, 1)]
)
def test_drift_is_what_numpy_says(num_steps):
    """Unequal weights and steps, and clients that never report."""
    arguments = _arguments(1, num_steps)
    state = _start()
    _, info = ROUND(state, **arguments)
    expected = _expected(np.asarray(state.variables.params["w"]), arguments)
    assert set(info.diagnostics) == set(OF_CLIENTS)
    for name, value in expected.items():
        np.testing.assert_allclose(info.diagnostics[name], value, rtol=1e-12, atol=1e-15)
    several = np.count_nonzero(num_steps) > 1
    assert (float(info.diagnostics["client_distance"]) > 1e-4) == several
    # With one step, every gradient is at the model that was sent.
    assert (float(info.diagnostics["perturbation_norm"]) > 1e-4) == (max(num_steps) > 1)


def test_a_round_in_which_nobody_reports_has_no_drift():
    """Means of nobody are NaN; what is noted by client is 0."""
    _, info = ROUND(_start(), **_arguments(num_steps=(0,) * COHORT))
    for value in info.diagnostics.values():
        assert np.all(np.isnan(value)) if value.ndim == 0 else not np.any(value)


def test_neither_padding_nor_absence_counts():
    """Five clients in chunks of two, one of whom never reports."""
    arguments = _arguments(2, (3, 0, 2, 3, 1))
    _, expected = ROUND(_start(), **arguments)
    chunked = fo.make_round(
        FEDAVG, problems.MODEL, strategy=helpers.STRATEGIES["chunked"], diagnostics=OF_CLIENTS
    )
    _, info = chunked(_start(), **arguments)
    helpers.assert_close(info.diagnostics, expected.diagnostics, 1e-12)


@pytest.mark.parametrize("step", [1e-2, 1e-4])
def test_nearly_equal_models_are_told_apart_in_float32(step):
    """1 - cos would lose all its digits: it is of the size of the square of the step."""
    algorithm = fo.fedavg(opt.sgd(step))
    found = {}
    for dtype in (np.float32, np.float64):
        arguments = _arguments(3, dtype=dtype)
        state = fo.first_state(algorithm, {"w": np.array([0.3, -0.2, 0.1], dtype)}, CLIENTS)
        round_fn = fo.make_round(algorithm, problems.MODEL, strategy="scan", diagnostics=OF_CLIENTS)
        found[dtype] = round_fn(state, **arguments)[1].diagnostics
    # A coordinate of a unit vector is rounded by 2^-24; the models are more than a step apart.
    precision = 2.0**-24 / step
    for name in OF_CLIENTS:
        ours, exact = found[np.float32][name], found[np.float64][name]
        np.testing.assert_allclose(ours, exact, rtol=4 * precision)
    assert 0 < float(found[np.float64]["client_distance"]) < 20 * step**2


# Momentum -------------------------------------------------------------------------------------

SIZES = (5, 8, 3, 12, 6)
DATA = problems.ragged(SIZES)
EVERYTHING = (*OF_CLIENTS, "momentum_deviation")
SGD = opt.sgd(RATE)
SCAFFOLD, FEDACG = fo.scaffold(SGD), fo.fedacg(SGD, 0.6)
# The cohort and the minibatches that compile fastest.
BASE = fo.Federation(
    problems.MODEL, DATA, cohort=fo.cohorts.cyclic(3), local_steps=3, batch_size=4,
    batching="replacement",
)  # fmt: skip


def _run(algorithm, state, rounds=1, **options):
    options = {"diagnostics": ["momentum_deviation"], "strategy": "scan"} | options
    federation, options = problems.changed(BASE, options)
    return fo.run_rounds(algorithm, federation, state, rounds, **options)


def _one_by_one(algorithm, rounds, **options):
    """The states before and after each round, and the diagnostics of each."""
    states, found = [problems.start(algorithm, len(SIZES))], []
    for _ in range(rounds):
        run = _run(algorithm, states[-1], **options)
        states.append(run.state)
        found.append({name: np.asarray(v[0]) for name, v in run.history.diagnostics.items()})
    return states, found


def _path(states):
    return [np.asarray(state.variables.params["w"]) for state in states]


def _full_gradient(w, weighting="samples"):
    gradients = [problems.gradient(w, DATA[i]["x"], DATA[i]["y"]) for i in range(len(SIZES))]
    return np.average(gradients, axis=0, weights=SIZES if weighting == "samples" else None)


def _deviation(m, f):
    return np.linalg.norm(m / np.linalg.norm(m) - f / np.linalg.norm(f))


@pytest.fixture(scope="module")
def watched():
    """Four rounds of SCAFFOLD with all diagnostics."""
    return _one_by_one(SCAFFOLD, 4, diagnostics=EVERYTHING)


def test_scaffolds_c_is_compared_with_the_full_gradient(watched):
    """c is the mean of all c_i, whoever took part; NaN while it is zero."""
    states, found = watched
    assert np.isnan(found[0]["momentum_deviation"])
    for state, diagnosed in zip(states[1:], found[1:], strict=False):
        c = np.mean(state.clients.control["w"], axis=0)
        expected = _deviation(c, _full_gradient(_path([state])[0]))
        np.testing.assert_allclose(diagnosed["momentum_deviation"], expected, rtol=1e-9)


def test_fedacgs_momentum_is_compared_at_the_global_model():
    """Not at the one that is sent, which is ahead; the weighting is that of the full gradient too."""
    states, found = _one_by_one(FEDACG, 4, weighting="uniform")
    path = _path(states)
    assert np.isnan(found[0]["momentum_deviation"])
    for before, here, diagnosed in zip(path, path[1:], found[1:], strict=False):
        expected = _deviation(before - here, _full_gradient(here, "uniform"))
        np.testing.assert_allclose(diagnosed["momentum_deviation"], expected, rtol=1e-9)
        other = _deviation(before - here, _full_gradient(here, "samples"))
        assert abs(other - expected) > 1e-3


@pytest.mark.parametrize(
    ("algorithm", "rounds_back"),
    [
        (fo.fedcm(SGD, 0.5), 1),
        (fo.fedgbo(opt.sgdm(RATE, 0.5)), 1),
        (fo.ghbm(SGD, 2, 0.5), 2),
        (fo.fedavgm(SGD, 0.5, 0.7), 1),
    ],
    ids=["fedcm", "fedgbo", "ghbm", "fedavgm"],
)
def test_momentum_points_where_the_model_came_from(algorithm, rounds_back):
    """With equal K it is the last change of the model, GHBM's that of tau rounds, up to a factor."""
    round_fn, states = (
        fo.make_round(algorithm, problems.MODEL, strategy="scan"),
        [_start(algorithm)],
    )
    for t in range(4):
        states.append(round_fn(states[-1], **_arguments(t, (2,) * COHORT))[0])
    path = _path(states)
    for t, state in enumerate(states):
        f = _full_gradient(path[t])
        found = diagnostics.momentum_deviation(state.server, {"w": jnp.asarray(f)})
        if t < rounds_back:
            assert np.isnan(found)
        else:
            expected = _deviation(path[t - rounds_back] - path[t], f)
            np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vmap", "chunked", "sharded"])
def test_every_strategy_gives_the_same_diagnostics(watched, strategy):
    """For a cohort of three of five clients, which neither two nor four divides."""
    start = helpers.place(problems.start(SCAFFOLD, len(SIZES)), strategy)
    options = {"strategy": helpers.STRATEGIES[strategy], "diagnostics": EVERYTHING}
    history = _run(SCAFFOLD, start, 4, **options).history
    assert set(history.diagnostics) == set(EVERYTHING)
    for t, diagnosed in enumerate(watched[1]):
        for name, value in diagnosed.items():
            other = history.diagnostics[name][t]
            np.testing.assert_allclose(other, value, rtol=1e-9, err_msg=name)


def test_asking_changes_no_state(watched):
    states, _ = watched
    plain = _run(SCAFFOLD, states[0], 4, diagnostics=())
    assert plain.history.diagnostics == {}
    problems.assert_close(states[-1], plain.state)
    assert helpers.distance(states[0].variables, plain.state.variables) > 1e-2


def test_momentum_may_be_measured_where_leaves_are_private():
    """Of the leaves that are shared, at the global model: the others are at home."""
    algorithm = fo.private(fo.fedcm(SGD, 0.5), "params/b")

    def loss(variables, batch, key):
        shifted = {**batch, "y": batch["y"] - variables.params["b"]}
        return problems.MODEL.loss(fo.Variables({"w": variables.params["w"]}), shifted, key)

    params = {"w": np.array([0.3, -0.2, 0.1]), "b": np.array(0.0)}
    start = fo.first_state(algorithm, params, len(SIZES))
    run = _run(algorithm, start, 2, model=fo.Model(None, loss))
    first, second = run.history.diagnostics["momentum_deviation"]
    assert np.isnan(first) and 0 < second < 2


# Names ----------------------------------------------------------------------------------------


def test_the_history_of_a_simulation_has_them_by_name():
    result = fo.simulate(SCAFFOLD, BASE, 3, strategy="scan", diagnostics=EVERYTHING, progress=False)
    shapes = {name: result.history[name].shape for name in EVERYTHING}
    assert shapes == {
        "client_distance": (3,),
        "client_update_norm": (3, 3),
        "perturbation_norm": (3,),
        "momentum_deviation": (3,),
    }
    assert np.isnan(result.history["momentum_deviation"][0])
    assert np.all(result.history["momentum_deviation"][1:] > 0)
    assert np.all(result.history["client_distance"] > 0)


def _filled(algorithm):
    """A server state whose every leaf is a number of its own, so that parts can be told apart."""
    server = algorithm.init(fo.Variables({"w": jnp.zeros(3)}))
    leaves, structure = jax.tree.flatten(server)
    return structure.unflatten([jnp.full_like(x, i + 1) for i, x in enumerate(leaves)])


@pytest.mark.parametrize(
    ("algorithm", "find"),
    [
        (fo.proximal(fo.fedcm(SGD), 0.1), lambda s: s.direction),
        (fo.server_optimizer(SCAFFOLD, SGD), lambda s: s.inner.control),
        (fo.server_optimizer(SCAFFOLD, opt.adam(RATE)), lambda s: s.optimizer.m),
        (fo.fedadam(SGD), lambda s: s.optimizer.m),
        (fo.fedgbo(helpers.with_decay(opt.adam(RATE))), lambda s: s.optimizer.triple.m),
        (fo.fedgbo(opt.from_optax(opt.sgdm(RATE))), lambda s: s.optimizer.inner.m),
        (fo.mimemom(SGD), lambda s: s.optimizer.m),
        (fo.feddc(SGD), lambda s: s.control),
        (fo.scaffold_m(SGD), lambda s: s.direction),
        (fo.ghbm_theory(SGD, 2), lambda s: s.momentum),
    ],
    ids=[
        "proximal-fedcm", "scaffold-sgd", "scaffold-adam", "fedadam", "chain", "averaging",
        "mimemom", "feddc", "scaffold-m", "ghbm-theory",
    ],
)  # fmt: skip
def test_the_momentum_is_found_inside_of_wrappers_and_optimisers(algorithm, find):
    server = _filled(algorithm)
    problems.assert_identical(diagnostics.gradient_estimate(server), find(server))


def test_one_name_may_stand_alone_and_order_does_not_matter():
    assert diagnostics.check("client_distance") == ("client_distance",)
    assert diagnostics.check(["momentum_deviation", "client_distance"] * 2) == (
        "client_distance",
        "momentum_deviation",
    )


@pytest.mark.parametrize("name", ["drift", "", 3])
def test_unknown_names_are_refused_with_those_that_exist(name):
    message = rf"diagnostics must be among client_distance, .*, user_metrics; got {name!r}"
    with pytest.raises(ValueError, match=message):
        fo.make_round(FEDAVG, problems.MODEL, strategy="scan", diagnostics=[name])
    with pytest.raises(ValueError, match=message):
        _run(FEDAVG, problems.start(FEDAVG, len(SIZES)), diagnostics=[name])


@pytest.mark.parametrize("names", [None, 3])
def test_what_is_not_a_list_of_names_is_refused(names):
    with pytest.raises(ValueError, match=f"diagnostics must be .*{names}"):
        fo.make_round(FEDAVG, problems.MODEL, strategy="scan", diagnostics=names)


def test_a_round_over_explicit_minibatches_cannot_know_the_full_gradient():
    """And says where it is known."""
    with pytest.raises(ValueError, match=r"needs data of the clients.*run_rounds or simulate"):
        fo.make_round(SCAFFOLD, problems.MODEL, strategy="scan", diagnostics=["momentum_deviation"])
