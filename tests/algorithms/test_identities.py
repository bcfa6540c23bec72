"""Where two algorithms are one: equalities that hold in every round, to 1e-12.

Weights are unequal throughout, and so are the numbers of steps unless an identity needs them equal: then
it is shown to fail for unequal ones. Every identity is also shown to fail for hyperparameters nearby.
All is done on linear regression, whose gradient a test can write down.
"""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

NUM_CLIENTS, SIZE, STEPS, ROUNDS = 6, 2, 3, 7
LR, BETA = 0.1, 0.6

few = helpers.examples(5)
SEEDS = st.integers(0, 2**32 - 1)
BETAS = st.floats(0.1, 0.9)
RATES = st.floats(0.03, 0.12)


def _problem(seed, num_clients=NUM_CLIENTS, **keywords):
    rng = np.random.default_rng(seed)
    sizes = {"rounds": ROUNDS, "size": SIZE, "steps": STEPS, "num_clients": num_clients}
    return helpers.random_params(rng, "linear"), helpers.random_rounds(rng, **sizes, **keywords)


def _play(algorithm, params, rounds, num_clients=NUM_CLIENTS, **keywords):
    """The states before the rounds and after each."""
    counts = {"num_clients": num_clients, "steps": STEPS}
    return helpers.play(algorithm, helpers.LINEAR, params, rounds, **counts, **keywords)[0]


def _assert_same(ours, expected):
    """The models of all rounds are equal, and moved."""
    for a, b in zip(ours, expected, strict=True):
        helpers.assert_close(a.variables, b.variables, 1e-12)
    assert helpers.distance(ours[0].variables, ours[-1].variables) > 1e-2


def _assert_apart(ours, expected):
    """The models of the last round are not equal."""
    assert helpers.distance(ours[-1].variables, expected[-1].variables) > 1e-7


def _scaled(scale, tree):
    return jax.tree.map(lambda leaf: scale * np.asarray(leaf), tree)


# FedCM, FedGBO and GHBM -----------------------------------------------------------------------


@few
@given(seed=SEEDS, beta=BETAS, lr=RATES, server_lr=st.floats(0.5, 1.2))
def test_fedgbo_with_sgdm_is_fedcm(seed, beta, lr, server_lr):
    """SGDm(beta) is alpha = 1 - beta, also for unequal K; the momentum is the direction."""
    problem = _problem(seed)
    ours = _play(fo.fedgbo(opt.sgdm(lr, beta), server_lr), *problem)
    expected = _play(fo.fedcm(opt.sgd(lr), 1 - beta, server_lr), *problem)
    _assert_same(ours, expected)
    for a, b in zip(ours, expected, strict=True):
        helpers.assert_close(a.server.optimizer.m, b.server.direction, 1e-12)
    _assert_apart(ours, _play(fo.fedcm(opt.sgd(lr), 0.99 * (1 - beta), server_lr), *problem))


@few
@given(seed=SEEDS, beta=BETAS, lr=RATES)
def test_ghbm_with_tau_one_is_fedcm_with_a_larger_step(seed, beta, lr):
    """alpha = 1 - beta and eta / (1 - beta), if all take K steps; b is -eta K d / (1 - beta)."""
    params, rounds = _problem(seed)
    equal = helpers.equal_steps(rounds, STEPS)
    ghbm, fedcm = fo.ghbm(opt.sgd(lr), 1, beta), fo.fedcm(opt.sgd(lr / (1 - beta)), 1 - beta)
    ours, expected = _play(ghbm, params, equal), _play(fedcm, params, equal)
    _assert_same(ours, expected)
    for a, b in zip(ours, expected, strict=True):
        moved = _scaled(-lr * STEPS / (1 - beta), b.server.direction)
        helpers.assert_close(a.server.momentum, moved, 1e-12)
    _assert_apart(_play(ghbm, params, rounds), _play(fedcm, params, rounds))
    _assert_apart(_play(fo.ghbm(opt.sgd(lr), 1, 0.99 * beta), params, equal), expected)


@few
@given(seed=SEEDS, beta=BETAS, lr=RATES, server_lr=st.floats(0.5, 1.2))
def test_ghbm_in_theory_with_tau_one_is_fedcm(seed, beta, lr, server_lr):
    """alpha = beta, if all take K steps; m is the direction."""
    params, rounds = _problem(seed)
    equal = helpers.equal_steps(rounds, STEPS)
    theory = fo.ghbm_theory(opt.sgd(lr), 1, beta, server_lr)
    fedcm = fo.fedcm(opt.sgd(lr), beta, server_lr)
    ours, expected = _play(theory, params, equal), _play(fedcm, params, equal)
    _assert_same(ours, expected)
    for a, b in zip(ours, expected, strict=True):
        helpers.assert_close(a.server.momentum, b.server.direction, 1e-12)
    _assert_apart(_play(theory, params, rounds), _play(fedcm, params, rounds))
    nearby = fo.ghbm_theory(opt.sgd(lr), 1, 0.99 * beta, server_lr)
    _assert_apart(_play(nearby, params, equal), expected)


# Momentum by hand -----------------------------------------------------------------------------


def test_ghbm_with_tau_one_and_one_step_is_the_heavy_ball():
    """x+ = x - eta grad + beta (x_t - x_{t-1}), with everyone in every round."""
    params, rounds = _problem(0, num_clients=SIZE)
    rounds = helpers.equal_steps(rounds, 1)
    states = _play(fo.ghbm(opt.sgd(LR), 1, BETA), params, rounds, num_clients=SIZE)
    previous = now = params["w"]
    for rnd, state in zip(rounds, states[1:], strict=True):
        gradients = [helpers.linear({"w": now}, *batches[0])[1]["w"] for batches in rnd["batches"]]
        gradient = np.average(gradients, axis=0, weights=rnd["weights"])
        previous, now = now, now - LR * gradient + BETA * (now - previous)
        helpers.assert_close(state.variables.params["w"], now, 1e-12)
    nearby = _play(fo.ghbm(opt.sgd(LR), 1, 0.99 * BETA), params, rounds, num_clients=SIZE)
    _assert_apart(nearby, states)


def _mean_of_local_sgd(start, rnd):
    """The mean of the cohort's local models, by plain SGD from one point."""
    finals = []
    for batches in rnd["batches"]:
        y = start
        for x, labels in batches:
            y = y - LR * helpers.linear({"w": y}, x, labels)[1]["w"]
        finals.append(y)
    return np.average(finals, axis=0, weights=rnd["weights"])


def test_fedacg_without_regulariser_is_nesterov_on_the_server():
    """z = x_t + lambda (x_t - x_{t-1}) is sent, and x+ is where local SGD leads from there."""
    params, rounds = _problem(1)
    algorithm = fo.fedacg(opt.sgd(LR), BETA)
    states = _play(algorithm, params, rounds)
    previous = now = params["w"]
    for rnd, (before, after) in zip(rounds, itertools.pairwise(states), strict=True):
        ahead = now + BETA * (now - previous)
        helpers.assert_close(algorithm.broadcast(before.server).variables.params["w"], ahead, 1e-12)
        previous, now = now, _mean_of_local_sgd(ahead, rnd)
        helpers.assert_close(after.variables.params["w"], now, 1e-12)
    _assert_apart(_play(fo.fedacg(opt.sgd(LR), 0.99 * BETA), params, rounds), states)
    _assert_apart(_play(fo.fedacg(opt.sgd(LR), BETA, 0.01), params, rounds), states)


def test_fedacg_without_momentum_is_fedprox():
    """z is x, and the regulariser is FedProx's."""
    problem = _problem(2)
    expected = _play(fo.fedprox(opt.sgd(LR), 0.4, 0.7), *problem)
    _assert_same(_play(fo.fedacg(opt.sgd(LR), 0.0, 0.4, 0.7), *problem), expected)
    _assert_apart(_play(fo.fedacg(opt.sgd(LR), 0.0, 0.404, 0.7), *problem), expected)


def test_adabest_without_client_estimates_is_fedacg():
    """The mean of AdaBest's clients is FedACG's model, what AdaBest sends is FedACG's message."""
    problem = _problem(3)
    fedacg = fo.fedacg(opt.sgd(LR), BETA)
    ours, expected = _play(fo.adabest(opt.sgd(LR), 0.0, BETA), *problem), _play(fedacg, *problem)
    for a, b in zip(ours, expected, strict=True):
        helpers.assert_close(a.server.mean, b.variables.params, 1e-12)
        helpers.assert_close(a.variables, fedacg.broadcast(b.server).variables, 1e-12)
    assert helpers.distance(ours[-1].server.mean, ours[-1].variables.params) > 1e-4
    _assert_apart(_play(fo.adabest(opt.sgd(LR), 0.0, 0.99 * BETA), *problem), ours)
    _assert_apart(_play(fo.adabest(opt.sgd(LR), 0.01, BETA), *problem), ours)


def test_fedadc_with_one_step_is_fedacg():
    """The gradient is taken at x + beta b by both; with more steps, FedADC is pushed in each."""
    params, rounds = _problem(4)
    fedadc, fedacg = fo.fedadc(opt.sgd(LR), BETA), fo.fedacg(opt.sgd(LR), BETA)
    one = helpers.equal_steps(rounds, 1)
    _assert_same(_play(fedadc, params, one), _play(fedacg, params, one))
    _assert_apart(_play(fedadc, params, rounds), _play(fedacg, params, rounds))


@few
@given(seed=SEEDS, beta=BETAS, lr=RATES, server_lr=st.floats(0.5, 1.2))
def test_ghbm_on_the_server_with_tau_one_is_fedavgm(seed, beta, lr, server_lr):
    """From the first round: x_t - x_{t-1} is -eta_s m / (1 - beta), m normalised and zero at first."""
    problem = _problem(seed)
    ours = _play(fo.ghbm_server(opt.sgd(lr), 1, beta, server_lr), *problem)
    expected = _play(fo.fedavgm(opt.sgd(lr), server_lr, beta), *problem)
    _assert_same(ours, expected)
    for a, b in zip(ours, expected, strict=True):
        moved = _scaled(-server_lr / (1 - beta), helpers.statistics(b)["m"])
        helpers.assert_close(a.server.momentum, moved, 1e-12)
    _assert_apart(_play(fo.ghbm_server(opt.sgd(lr), 1, 0.99 * beta, server_lr), *problem), expected)


CYCLE = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("nesterov", [False, True])
def test_localghbm_is_ghbm_under_cyclic_participation(nesterov):
    """tau = N / |S| = 3: both are FedAvg for the first three rounds, and push from the fourth on.

    Then a client's a_i is x_{t-3}, and C is 1 / 3. In another order they differ.
    """
    params, rounds = _problem(5, cohorts=3 * CYCLE)
    localghbm = fo.localghbm(opt.sgd(LR), BETA, 0.8, nesterov)
    ghbm, without = (fo.ghbm(opt.sgd(LR), 3, beta, 0.8, nesterov) for beta in (BETA, 0.0))
    ours, expected = _play(localghbm, params, rounds), _play(ghbm, params, rounds)
    _assert_same(ours, expected)
    for t, fedavg in enumerate(_play(without, params, rounds)):
        apart = helpers.distance(ours[t].variables, fedavg.variables)
        assert (apart > 1e-4) if t > 3 else (apart <= 1e-12)
    _assert_apart(
        _play(fo.localghbm(opt.sgd(LR), 0.99 * BETA, 0.8, nesterov), params, rounds), ours
    )
    params, rounds = _problem(5, cohorts=CYCLE + CYCLE[::-1] + CYCLE)
    _assert_apart(_play(localghbm, params, rounds), _play(ghbm, params, rounds))


# Control variates -----------------------------------------------------------------------------


@few
@given(seed=SEEDS, lr=RATES, server_lr=st.floats(0.5, 1.2))
def test_scaffold_m_without_momentum_is_scaffold(seed, lr, server_lr):
    """beta = 1 is option 2, in the model, c and all c_i."""
    problem = _problem(seed)
    ours = _play(fo.scaffold_m(opt.sgd(lr), 1.0, server_lr), *problem)
    expected = _play(fo.scaffold(opt.sgd(lr), 2, server_lr), *problem)
    _assert_same(ours, expected)
    for a, b in zip(ours, expected, strict=True):
        helpers.assert_close(a.server.control, b.server.control, 1e-12)
        helpers.assert_close(a.clients, b.clients, 1e-12)
    assert helpers.distance(ours[0].clients, ours[-1].clients) > 1e-3
    _assert_apart(_play(fo.scaffold_m(opt.sgd(lr), 0.99, server_lr), *problem), expected)


def test_feddc_without_penalty_is_scaffold_whose_server_adds_the_drift():
    """From the same model and controls it makes SCAFFOLD's round, and then adds h to the mean."""
    params, rounds = _problem(6)
    feddc, scaffold = fo.feddc(opt.sgd(LR), 0.0), fo.scaffold(opt.sgd(LR), 2)
    states = _play(feddc, params, rounds)
    by_hand = fo.first_state(scaffold, params, NUM_CLIENTS)
    for rnd, ours in zip(rounds, states[1:], strict=True):
        by_hand = _play(scaffold, params, [rnd], state=by_hand)[-1]
        helpers.assert_close(ours.server.control, by_hand.server.control, 1e-12)
        # Without a penalty clients keep -c_i.
        controls = _scaled(-1, ours.clients.correction)
        helpers.assert_close(controls, by_hand.clients.control, 1e-12)
        moved = jax.tree.map(lambda x, h: x + h, by_hand.variables.params, ours.server.drift)
        helpers.assert_close(ours.variables.params, moved, 1e-12)
        assert helpers.distance(ours.variables, by_hand.variables) > 1e-3
        by_hand = by_hand._replace(server=by_hand.server._replace(variables=ours.variables))
    _assert_apart(_play(fo.feddc(opt.sgd(LR), 0.001), params, rounds), states)


# Mime -----------------------------------------------------------------------------------------


@few
@given(seed=SEEDS, beta=BETAS, lr=RATES, server_lr=st.floats(0.5, 1.2))
def test_mimemom_is_mime_with_sgdm_and_a_larger_step(seed, beta, lr, server_lr):
    """The step is eta / (1 - beta), and that momentum is 1 - beta times this one."""
    problem = _problem(seed)
    ours = _play(fo.mimemom(opt.sgd(lr), beta, server_lr), *problem)
    expected = _play(fo.mime(opt.sgdm(lr / (1 - beta), beta), server_lr), *problem)
    _assert_same(ours, expected)
    for a, b in zip(ours, expected, strict=True):
        moment = _scaled(1 - beta, a.server.optimizer.m)
        helpers.assert_close(moment, b.server.optimizer.m, 1e-12)
    _assert_apart(_play(fo.mimemom(opt.sgd(lr), 0.99 * beta, server_lr), *problem), expected)


def test_mimemom_without_momentum_is_mime_with_sgd():
    """Whatever m has become."""
    problem = _problem(7)
    expected = _play(fo.mime(opt.sgd(LR), 0.7), *problem)
    _assert_same(_play(fo.mimemom(opt.sgd(LR), 0.0, 0.7), *problem), expected)
    _assert_apart(_play(fo.mimemom(opt.sgd(LR), 0.01, 0.7), *problem), expected)


def test_mime_with_one_step_takes_the_gradient_of_all_data():
    """At x the minibatch cancels: x+ = x - eta sum_i w_i d_i, d_i over all that client i has."""
    params, rounds = _problem(10)
    one = helpers.equal_steps(rounds, 1)
    states = _play(fo.mime(opt.sgd(LR)), params, one)
    for rnd, (before, after) in zip(one, itertools.pairwise(states), strict=True):
        x = jax.device_get(before.variables.params)
        gradients = [helpers.linear(x, *data)[1]["w"] for data in rnd["full"]]
        expected = x["w"] - LR * np.average(gradients, axis=0, weights=rnd["weights"])
        helpers.assert_close(after.variables.params["w"], expected, 1e-12)
    _assert_apart(_play(fo.fedavg(opt.sgd(LR)), params, one), states)


# Terms in the features ------------------------------------------------------------------------

CONTRASTED = {
    "moon": (fo.moon(opt.sgd(LR), 2.0), fo.fedavg(opt.sgd(LR))),
    "contrastive fedcm": (
        fo.contrastive(fo.fedcm(opt.sgd(LR), 0.5), 2.0), fo.fedcm(opt.sgd(LR), 0.5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRASTED)
def test_contrastive_term_is_flat_in_the_very_first_round(name):
    """The received and the previous model are the initial one; in the second round it acts."""
    params, rounds = _problem(8)
    (ours, expected) = (_play(algorithm, params, rounds[:2]) for algorithm in CONTRASTED[name])
    _assert_same(ours[:2], expected[:2])
    assert helpers.distance(ours[2].variables, expected[2].variables) > 1e-4


def test_fedmax_takes_fedavgs_step_where_the_features_are_all_alike():
    """At zero weights all features are zero: the term has its minimum. A step later they differ."""
    params, rounds = _problem(9)
    params = _scaled(0.0, params)
    fedmax, fedavg = fo.fedmax(opt.sgd(LR), 5.0), fo.fedavg(opt.sgd(LR))
    one, two = (helpers.equal_steps(rounds[:1], steps) for steps in (1, 2))
    _assert_same(_play(fedmax, params, one), _play(fedavg, params, one))
    _assert_apart(_play(fedmax, params, two), _play(fedavg, params, two))
