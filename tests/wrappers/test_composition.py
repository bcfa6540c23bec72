"""Algorithms and wrappers put together: they run, they do what both say, or they say why not.

The rounds ask five clients, of whom three report, with unequal weights and unequal numbers of steps.
"""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.core import get_variables
from tests.algorithms import helpers

NUM_CLIENTS, STEPS, LR = 5, 3, 0.2
B = "params/b"


def _loss(variables, batch, key):
    """Linear regression in two leaves; its features are what each input adds to the prediction."""
    del key
    features = batch["x"] * variables.params["w"][None, :]
    errors = jnp.sum(features, axis=1) + variables.params["b"] - batch["y"].astype(features.dtype)
    return jnp.mean(errors**2) / 2, fo.Aux(features=features)


MODEL = fo.Model(None, _loss)
PARAMS = {"w": np.array([0.8, -0.5, 0.3]), "b": np.array(0.4)}
SGD, ADAM, SGDM = opt.sgd(LR), opt.adam(LR, eps=0.1), opt.sgdm(LR, 0.5)
SCAFFOLD, GHBM, MIME = fo.scaffold(SGD), fo.ghbm(SGD, 2, 0.5), fo.mime(ADAM)
FEDACG, FEDDYN = fo.fedacg(SGD, 0.5, beta=0.1), fo.feddyn(SGD, 2.0)
LOCALGHBM, MOON = fo.localghbm(SGD), fo.moon(SGD, 0.5)
TRIMMED = fo.aggregators.trimmed_mean
FEDAVG = fo.fedavg(SGD)
CODED = fo.compressed(FEDAVG, fo.compression.ce_fedavg(0.5))

COMBINATIONS = {
    "FedMAX, FedGBO with Adam": fo.max_entropy(fo.fedgbo(ADAM), 0.5),
    "FedProx, FedACG": fo.proximal(FEDACG, 0.3),
    "SCAFFOLD, FedAdam": fo.server_optimizer(SCAFFOLD, opt.adam(0.1, eps=0.1)),
    "GHBM": GHBM,
    "GHBM, FedAdam": fo.server_optimizer(GHBM, opt.adam(0.1, eps=0.1)),
    "MOON, FedACG": fo.contrastive(FEDACG, 0.5),
    "FedProx, FedDC": fo.proximal(fo.feddc(SGD, 0.1), 0.8),
    "FedMAX, MOON, SCAFFOLD": fo.max_entropy(fo.contrastive(SCAFFOLD, 0.5), 0.3),
    "trimmed SCAFFOLD": fo.aggregated(SCAFFOLD, TRIMMED(0.34)),
    "decayed, clipped Mime with Adam": fo.weight_decay(fo.clipped(MIME, 0.5), 0.1),
    "private GHBM": fo.private(GHBM, B),
    "private LocalGHBM": fo.private(LOCALGHBM, B),
    "private FedDyn": fo.private(FEDDYN, B),
    "private MOON": fo.private(MOON, B),
    "private FedACG": fo.private(FEDACG, B),
    "private FedGBO with SGDm, by its geometric median": fo.aggregated(
        fo.private(fo.fedgbo(SGDM), B), fo.aggregators.geometric_median()
    ),
    "private, uniform Mime": fo.private(fo.aggregated(MIME, fo.aggregators.uniform_mean()), B),
    "MOON, private Mime": fo.contrastive(fo.private(MIME, B), 0.5),
    "MOON, private SCAFFOLD by its full gradient": fo.contrastive(
        fo.private(fo.scaffold(SGD, 1), B), 0.5
    ),
    "FedProx, coded FedAvg": fo.proximal(CODED, 0.1),
    "FedAdam, coded FedAvg": fo.server_optimizer(CODED, opt.adam(0.1, eps=0.1)),
    "median of coded FedAvg": fo.aggregated(CODED, fo.aggregators.coordinate_median()),
    "FedYogi, private SCAFFOLD-M": fo.server_optimizer(
        fo.private(fo.scaffold_m(SGD, 0.5), B), opt.yogi(0.5, eps=0.1)
    ),
}


def _rounds(seed=0, rounds=3):
    """Arguments of a few rounds in which all are asked and two never report."""
    rng = np.random.default_rng(seed)

    def examples(*axes):
        return {"x": rng.normal(size=(*axes, 4, 3)), "y": rng.normal(size=(*axes, 4))}

    return [
        {
            "cohort": rng.permutation(NUM_CLIENTS),
            "batches": examples(NUM_CLIENTS, STEPS),
            "weights": rng.uniform(0.2, 3.0, size=NUM_CLIENTS),
            "num_steps": rng.permutation([0, 0, 1, 2, STEPS]),
            "probe_batches": examples(NUM_CLIENTS, 2),
        }
        for _ in range(rounds)
    ]


def _play(algorithm, rounds, model=MODEL):
    """The states before and after each round, and the infos."""
    round_fn = fo.make_round(algorithm, model, strategy="scan")
    states, infos = [fo.first_state(algorithm, PARAMS, NUM_CLIENTS)], []
    for arguments in rounds:
        state, info = round_fn(states[-1], **arguments)
        states.append(state)
        infos.append(info)
    return states, infos


def _patches(clients):
    """Every client's private leaf."""
    while not hasattr(clients, "patch"):
        clients = clients.inner
    return np.asarray(get_variables(clients.patch).params["b"])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_combination_runs(name):
    """Every round is finite and moves the model; clients that do not report keep their state."""
    rounds, reported = _rounds(), set()
    states, infos = _play(COMBINATIONS[name], rounds)
    for before, after, info, asked in zip(states[:-1], states[1:], infos, rounds, strict=True):
        assert bool(info.finite) and float(info.loss) > 0
        assert helpers.distance(before.variables.params["w"], after.variables.params["w"]) > 1e-3
        away = asked["cohort"][asked["num_steps"] == 0]
        helpers.assert_same_bits(*(helpers.entry(s.clients, away) for s in (before, after)))
        reported |= set(asked["cohort"].tolist()) - set(away.tolist())
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((after.server, after.clients)))
    if "private" in name:
        own = _patches(after.clients)
        assert len(np.unique(own[sorted(reported)])) == len(reported) > 3
        np.testing.assert_array_equal(after.variables.params["b"], PARAMS["b"])


# Numbers by hand ------------------------------------------------------------------------------


def test_fedadam_around_ghbm_is_both_by_hand():
    """Adam on the difference that GHBM would make; GHBM remembers the model that was."""
    rounds = _rounds(rounds=1)
    proposed = _play(GHBM, rounds)[0][-1].variables.params
    found = _play(COMBINATIONS["GHBM, FedAdam"], rounds)[0][-1].server
    for name, x in PARAMS.items():
        d = x - np.asarray(proposed[name])
        expected = x - 0.1 * 0.1 * d / (np.sqrt(0.99 + 0.01 * d**2) + 0.1)
        helpers.assert_close(found.inner.variables.params[name], expected, 1e-12)
        helpers.assert_close(helpers.past(found.inner)[0][name], x, 0.0)


FEDERATIONS_OF_ONE = {
    "private GHBM": GHBM,
    "private LocalGHBM": LOCALGHBM,
    "private FedDyn": FEDDYN,
    "private MOON": MOON,
    "private FedACG": FEDACG,
}


def _alike(rounds):
    """The same rounds in which all report, and are alike: a federation of one, five times."""
    rounds = [jax.tree.map(lambda x: np.repeat(x[:1], NUM_CLIENTS, axis=0), r) for r in rounds]
    for t, asked in enumerate(rounds):
        asked["cohort"], asked["num_steps"] = (
            np.arange(NUM_CLIENTS),
            np.full(NUM_CLIENTS, 3 - t % 2),
        )
    return rounds


@pytest.mark.parametrize("name", FEDERATIONS_OF_ONE)
def test_a_private_leaf_of_a_federation_of_one_moves_as_if_it_were_shared(name):
    """Its momentum, its drift and its past models with it."""
    rounds = _alike(_rounds(2, rounds=4))
    expected = _play(FEDERATIONS_OF_ONE[name], rounds)[0][-1]
    state = _play(COMBINATIONS[name], rounds)[0][-1]
    for client in range(NUM_CLIENTS):
        server = jax.tree.map(
            lambda shared, own: own[client] if shared is None else shared,  # noqa: B023
            state.server.inner,
            state.clients.patch,
            is_leaf=lambda node: node is None,
        )
        helpers.assert_close(server, expected.server, 1e-12)
    helpers.assert_close(state.clients.inner, expected.clients, 1e-12)
    # The own model is the global one, not the one that was sent where that is another.
    own = fo.personal_variables(COMBINATIONS[name], state)(0)
    helpers.assert_close(own, expected.variables, 1e-12)


def test_the_own_models_of_clients_are_found_under_a_contrastive_term():
    """They are the ones without it where it has no weight."""
    alone = fo.independent(SGD)
    own, expected = (
        fo.personal_variables(algorithm, _play(algorithm, _rounds())[0][-1])
        for algorithm in (fo.contrastive(alone, 0.0), alone)
    )
    for client in range(NUM_CLIENTS):
        helpers.assert_close(own(client), expected(client), 1e-12)
    assert helpers.distance(own(0), own(1)) > 1e-2


# Hyperparameters: of one wrapper, and three of its values; `ends` are models after two rounds.
HYPERPARAMETERS = {
    "weight_decay": (lambda x: fo.weight_decay(FEDAVG, x), (0.0, 0.1, 0.2)),
    "clipped": (lambda x: fo.clipped(FEDAVG, x), (0.2, 0.5, 0.9)),
    "proximal": (lambda x: fo.proximal(FEDAVG, x), (0.0, 0.3, 0.9)),
    "max_entropy": (lambda x: fo.max_entropy(FEDAVG, x), (0.0, 0.3, 1.0)),
    "contrastive": (lambda x: fo.contrastive(FEDAVG, x), (0.0, 0.4, 2.0)),
    "temperature": (lambda x: fo.contrastive(FEDAVG, 2.0, x), (0.2, 0.5, 0.8)),
    "server_optimizer": (lambda x: fo.server_optimizer(FEDAVG, opt.adam(x)), (0.1, 0.2, 0.3)),
    "trimmed_mean": (lambda x: fo.aggregated(FEDAVG, TRIMMED(x)), (0.0, 0.4)),
    "sign_flip": (lambda x: fo.attacks.sign_flip(FEDAVG, [0, 3], x), (0.5, 1.0, 3.0)),
    "scaling": (lambda x: fo.attacks.scaling(FEDAVG, [0, 3], x), (0.0, 1.0, 3.0)),
    "sparsity": (lambda x: fo.compressed_fedavg(SGD, x), (0.0, 0.5, 0.75)),
}


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_another_hyperparameter_compiles_nothing_and_may_be_traced(name):
    make, values = HYPERPARAMETERS[name]
    traces, rounds = [], _rounds(rounds=2)

    def loss(variables, batch, key):
        traces.append(None)
        return _loss(variables, batch, key)

    model = fo.Model(None, loss)

    def end(value):
        return _play(make(value), rounds, model)[0][-1].variables.params

    ends, counts = zip(*((end(value), len(traces)) for value in values), strict=True)
    assert set(counts) == {counts[0]} != {0}
    inside, counts = jax.jit(end), []
    for value, expected in zip(values, ends, strict=True):
        helpers.assert_close(inside(value), expected, 1e-12)
        counts.append(len(traces))
    assert set(counts) == {counts[0]}
    for one, other in itertools.pairwise(ends):
        assert helpers.distance(one, other) > 1e-3


# Refused --------------------------------------------------------------------------------------

INVERTING = {
    "FedCM": fo.fedcm,
    "FedDC": fo.feddc,
    "SCAFFOLD-M": fo.scaffold_m,
    "GHBM's theory form": lambda optimizer: fo.ghbm_theory(optimizer, 2),
    "MimeMom": fo.mimemom,
}


@pytest.mark.parametrize("name", INVERTING)
def test_what_cannot_be_inverted_is_refused_with_what_to_use(name):
    """Statistics, where the algorithm has a direction of its own; and all that is no plain triple.

    Where only SGD will do, neither Adam nor `from_optax` is a remedy.
    """
    make = INVERTING[name]
    for optimizer in (ADAM, SGDM, opt.chain(optax.clip(1.0), ADAM)):
        with pytest.raises(ValueError, match="optimizer must keep no statistics") as error:
            fo.first_state(make(optimizer), PARAMS, NUM_CLIENTS)
        assert "fedjax_opt.optimizers.sgd" in str(error.value)
        assert "see fedgbo, mime and mfl" in str(error.value)
    with pytest.raises(ValueError, match=f"^{name} reads the mean gradient off .*from_optax"):
        make(opt.from_optax(optax.sgd(LR)))
    with pytest.raises(ValueError, match=r"must be\s+fedjax_opt\.optimizers\.sgd") as error:
        make(optax.sgd(LR))
    assert "becomes one by" not in str(error.value) and "adam" not in str(error.value)


@pytest.mark.parametrize("make", [fo.fedgbo, fo.mime, fo.mimelite, fo.mimexlite])
def test_an_optax_transformation_is_refused_where_statistics_are_frozen(make):
    """It becomes a triple by the function that the message names."""
    words = r"optimizer must be a Triple, such as .*, got Gradient.*optimizers\.from_optax"
    with pytest.raises(ValueError, match=re.compile(words, re.S)):
        make(optax.adam(LR))
    make(opt.from_optax(optax.adam(LR)))


def _featureless(variables, batch, key):
    loss, aux = MODEL.loss(variables, batch, key)
    return loss, aux._replace(features=None)


FEATURELESS = fo.Model(None, _featureless)
NO_FEATURES = r"needs the model's features.*Aux\(features=\.\.\.\)"


def _start(algorithm):
    return fo.first_state(algorithm, PARAMS, NUM_CLIENTS)


def _one_round(algorithm, model=MODEL):
    return _play(algorithm, _rounds(rounds=1), model)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fo.server_optimizer(GHBM, 0.1), r"optimizer must be .* got 0\.1"),
        (lambda: fo.private(GHBM, 3), "where must be a pattern, .* got 3"),
        (lambda: fo.private(GHBM, "params/{b"), "where has braces that do not match"),
        (lambda: fo.ghbm(SGD, 1.5), r"tau must be a whole number of at least 1, got 1\.5"),
        (lambda: fo.feddyn(SGD, 0.0), r"alpha must lie in \(0\.0, inf\], got 0\.0"),
        (lambda: fo.fedcm(SGD, 0.0), r"alpha must lie in \(0\.0, 1\.0\], got 0\.0"),
        (lambda: fo.adabest(SGD, beta=1.0), r"beta must lie in \[0\.0, 1\.0\), got 1\.0"),
        (lambda: _one_round(MOON, FEATURELESS), NO_FEATURES),
        (lambda: _one_round(fo.fedmax(SGD, 1.0), FEATURELESS), NO_FEATURES),
        (lambda: _one_round(fo.private(MOON, B), FEATURELESS), NO_FEATURES),
        (lambda: _one_round(fo.max_entropy(MIME, 1.0), FEATURELESS), NO_FEATURES),
        (
            lambda: _one_round(fo.contrastive(fo.per_fedavg(SGD, 0.1), 0.5)),
            "contrastive compares features on the whole minibatch",
        ),
        (
            lambda: _one_round(fo.server_optimizer(fo.independent(SGD), opt.adam(0.1))),
            "server_optimizer needs an algorithm whose server moves",
        ),
        (
            lambda: _start(
                fo.server_optimizer(fo.proximal(fo.private(SCAFFOLD, "params/scale"), 0.1), ADAM)
            ),
            r"where matches no leaf .* params/b, params/w",
        ),
        # Wrappers that keep state on the server or on the clients change what a state is.
        *(
            (
                lambda name=name: fo.make_round(COMBINATIONS[name], MODEL, strategy="scan")(
                    _start(SCAFFOLD), **_rounds(rounds=1)[0]
                ),
                r"state\.(server|clients) must have .* another one",
            )
            for name in ("SCAFFOLD, FedAdam", "FedMAX, MOON, SCAFFOLD")
        ),
    ],
)
def test_wrong_parts_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "algorithm",
    [fo.fedavg(ADAM), fo.fedprox(SGD, 0.1), FEDDYN, fo.fedgbo(opt.rmsprop(LR)), MOON],
    ids=["fedavg", "fedprox", "feddyn", "fedgbo-rmsprop", "moon"],
)
def test_the_deviation_of_a_momentum_that_is_nowhere_is_refused(algorithm):
    """A local optimiser's momentum starts afresh in every round: it is not the server's."""
    model, data, _ = fo.data.quadratics(num_clients=3, dimension=2)
    quadratics = fo.Federation(model, data, cohort=3, local_steps=1, batch_size=1)
    state = fo.init_state(algorithm, quadratics)
    with pytest.raises(ValueError, match=r"momentum_deviation.* needs .* keeps a momentum"):
        fo.run_rounds(algorithm, quadratics, state, 1, diagnostics=["momentum_deviation"])
