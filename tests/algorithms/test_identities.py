"""Where two algorithms are one: a table of equalities that hold in every round, to 1e-12.

Weights are unequal throughout, and so are the numbers of steps, unless an identity needs them equal: it
is then shown to fail for unequal ones. Every identity is also shown to fail for a setting nearby.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

NUM_CLIENTS, SIZE, STEPS, ROUNDS = 6, 2, 3, 7


class Draw(NamedTuple):
    """Hyperparameters of one draw."""

    lr: Any
    beta: Any
    eta: Any

    @property
    def sgd(self):
        return opt.sgd(self.lr)


def _variables(state, h):
    return state.variables


class Identity(NamedTuple):
    """`ours` is `theirs`, and `near` is not; each makes an algorithm of a draw.

    `equal_steps` is the K that all clients must take; `ours_seen` and `theirs_seen` read off a state
    (and the draw) what is compared in every round, the model and more.
    """

    ours: Callable[[Draw], fo.Algorithm]
    theirs: Callable[[Draw], fo.Algorithm]
    near: Callable[[Draw], fo.Algorithm]
    equal_steps: int | None = None
    ours_seen: Callable = _variables
    theirs_seen: Callable = _variables


def _scaled(scale, tree):
    return jax.tree.map(lambda leaf: scale * np.asarray(leaf), tree)


def _fedavg(h):
    return fo.fedavg(h.sgd)


def _limit(make, limit, near):
    """An algorithm of (draw, one hyperparameter), the value at which it is FedAvg, and one nearby."""
    return Identity(lambda h: make(h, limit), _fedavg, lambda h: make(h, near))


IDENTITIES = {
    # FedAvg in a limit
    "fedprox, mu = 0": _limit(lambda h, x: fo.fedprox(h.sgd, x), 0.0, 0.01),
    "proximal mfl, mu = 0": _limit(lambda h, x: fo.proximal(fo.mfl(h.sgd), x), 0.0, 0.01),
    "max_entropy fedgbo, 0": _limit(lambda h, x: fo.max_entropy(fo.fedgbo(h.sgd), x), 0.0, 0.01),
    "contrastive mfl, 0": _limit(lambda h, x: fo.contrastive(fo.mfl(h.sgd), x), 0.0, 0.01),
    "fedmax, beta = 0": _limit(lambda h, x: fo.fedmax(h.sgd, x), 0.0, 0.01),
    "moon, mu = 0": _limit(lambda h, x: fo.moon(h.sgd, x), 0.0, 0.01),
    "fedgbo, beta = 0": _limit(lambda h, x: fo.fedgbo(opt.sgdm(h.lr, x)), 0.0, 0.01),
    "mfl, beta = 0": _limit(lambda h, x: fo.mfl(opt.sgdm(h.lr, x)), 0.0, 0.01),
    "mimelite, beta = 0": _limit(lambda h, x: fo.mimelite(opt.sgdm(h.lr, x)), 0.0, 0.01),
    "fedavgm, momentum = 0": _limit(lambda h, x: fo.fedavgm(h.sgd, momentum=x), 0.0, 0.01),
    "fednova, eta = 0.9": Identity(
        lambda h: fo.fednova(h.sgd, h.eta), lambda h: fo.fedavg(h.sgd, h.eta),
        lambda h: fo.fednova(h.sgd, 0.99 * h.eta), equal_steps=STEPS,
    ),
    "adaptive_fedopt, sgd(1)": _limit(lambda h, x: fo.adaptive_fedopt(h.sgd, opt.sgd(x)), 1.0, 0.99),
    "adaptive_fedopt, optax.sgd(1)": _limit(
        lambda h, x: fo.adaptive_fedopt(h.sgd, optax.sgd(x)), 1.0, 0.99
    ),
    "optax.sgd": Identity(
        lambda h: fo.fedavg(optax.sgd(h.lr)), _fedavg, lambda h: fo.fedavg(optax.sgd(0.99 * h.lr))
    ),
    "averaging sgd": Identity(
        lambda h: fo.fedgbo(opt.from_optax(optax.sgd(h.lr))), _fedavg,
        lambda h: fo.fedgbo(opt.from_optax(optax.sgd(0.99 * h.lr))),
    ),
    "fedacg, lambda = 0": _limit(lambda h, x: fo.fedacg(h.sgd, x), 0.0, 0.01),
    "fedacg, beta = 0": _limit(lambda h, x: fo.fedacg(h.sgd, 0.0, x), 0.0, 0.01),
    "fedcm, alpha = 1": _limit(lambda h, x: fo.fedcm(h.sgd, x), 1.0, 0.99),
    "ghbm, tau = 1, beta = 0": _limit(lambda h, x: fo.ghbm(h.sgd, 1, x), 0.0, 0.01),
    "ghbm, tau = 3, beta = 0": _limit(lambda h, x: fo.ghbm(h.sgd, 3, x), 0.0, 0.01),
    "ghbm, nesterov, beta = 0": _limit(
        lambda h, x: fo.ghbm(h.sgd, 2, x, nesterov=True), 0.0, 0.01
    ),
    "ghbm_server, beta = 0": _limit(lambda h, x: fo.ghbm_server(h.sgd, 2, x), 0.0, 0.01),
    "fedadc, beta = 0": _limit(lambda h, x: fo.fedadc(h.sgd, x), 0.0, 0.01),
    "localghbm, beta = 0": _limit(lambda h, x: fo.localghbm(h.sgd, x), 0.0, 0.01),
    "fedhbm, beta = 0": _limit(lambda h, x: fo.fedhbm(h.sgd, x), 0.0, 0.01),
    "adabest, mu = 0": _limit(lambda h, x: fo.adabest(h.sgd, x, 0.0), 0.0, 0.01),
    "adabest, beta = 0": _limit(lambda h, x: fo.adabest(h.sgd, 0.0, x), 0.0, 0.01),
    "dsgd, K = 1": Identity(
        lambda h: fo.dsgd(h.sgd), _fedavg, lambda h: fo.dsgd(opt.sgd(0.99 * h.lr)), equal_steps=1
    ),
    # eta = 1 / lambda moves y all the way to theta, whatever lambda.
    "pfedme, one inner step and the inverse rate": Identity(
        lambda h: fo.pfedme(h.sgd, 1 + 20 * h.beta, 1 / (1 + 20 * h.beta), 1, h.eta),
        lambda h: fo.fedavg(h.sgd, h.eta),
        lambda h: fo.pfedme(h.sgd, 1 + 20 * h.beta, 0.99 / (1 + 20 * h.beta), 1, h.eta),
    ),
    # Momenta
    "fedgbo with sgdm is fedcm": Identity(
        lambda h: fo.fedgbo(opt.sgdm(h.lr, h.beta), h.eta),
        lambda h: fo.fedcm(h.sgd, 1 - h.beta, h.eta),
        lambda h: fo.fedgbo(opt.sgdm(h.lr, 0.99 * h.beta), h.eta),
        ours_seen=lambda state, h: (state.variables, state.server.optimizer.m),
        theirs_seen=lambda state, h: (state.variables, state.server.direction),
    ),
    "an averaging triple is the triple inverted": Identity(
        lambda h: fo.fedgbo(opt.from_optax(opt.sgdm(h.lr, 0.0)), h.eta),
        lambda h: fo.fedgbo(opt.sgdm(h.lr, 0.0), h.eta),
        lambda h: fo.fedgbo(opt.from_optax(opt.sgdm(h.lr, 0.01)), h.eta),
        ours_seen=lambda state, h: (state.variables, state.server.optimizer.inner.m),
        theirs_seen=lambda state, h: (state.variables, state.server.optimizer.m),
    ),
    # b is -eta K d / (1 - beta).
    "ghbm with tau = 1 is fedcm with a larger step": Identity(
        lambda h: fo.ghbm(h.sgd, 1, h.beta),
        lambda h: fo.fedcm(opt.sgd(h.lr / (1 - h.beta)), 1 - h.beta),
        lambda h: fo.ghbm(h.sgd, 1, 0.99 * h.beta),
        equal_steps=STEPS,
        ours_seen=lambda state, h: (state.variables, state.server.momentum),
        theirs_seen=lambda state, h: (
            state.variables, _scaled(-h.lr * STEPS / (1 - h.beta), state.server.direction)
        ),
    ),
    "ghbm in theory with tau = 1 is fedcm": Identity(
        lambda h: fo.ghbm_theory(h.sgd, 1, h.beta, h.eta),
        lambda h: fo.fedcm(h.sgd, h.beta, h.eta),
        lambda h: fo.ghbm_theory(h.sgd, 1, 0.99 * h.beta, h.eta),
        equal_steps=STEPS,
        ours_seen=lambda state, h: (state.variables, state.server.momentum),
        theirs_seen=lambda state, h: (state.variables, state.server.direction),
    ),
    # x_t - x_{t-1} is -eta_s m / (1 - beta), m normalised and zero at first.
    "ghbm on the server with tau = 1 is fedavgm": Identity(
        lambda h: fo.ghbm_server(h.sgd, 1, h.beta, h.eta),
        lambda h: fo.fedavgm(h.sgd, h.eta, h.beta),
        lambda h: fo.ghbm_server(h.sgd, 1, 0.99 * h.beta, h.eta),
        ours_seen=lambda state, h: (state.variables, state.server.momentum),
        theirs_seen=lambda state, h: (
            state.variables, _scaled(-h.eta / (1 - h.beta), helpers.statistics(state)["m"])
        ),
    ),
    "fedacg without momentum is fedprox": Identity(
        lambda h: fo.fedacg(h.sgd, 0.0, h.beta, h.eta),
        lambda h: fo.fedprox(h.sgd, h.beta, h.eta),
        lambda h: fo.fedacg(h.sgd, 0.0, 0.99 * h.beta, h.eta),
    ),
    "proximal fedacg is a stronger regulariser": Identity(
        lambda h: fo.proximal(fo.fedacg(h.sgd, h.beta, 0.1), 0.3),
        lambda h: fo.fedacg(h.sgd, h.beta, 0.4),
        lambda h: fo.proximal(fo.fedacg(h.sgd, h.beta, 0.1), 0.29),
    ),
    # The mean of AdaBest's clients is FedACG's model, what AdaBest sends is FedACG's message.
    "adabest without estimates is fedacg": Identity(
        lambda h: fo.adabest(h.sgd, 0.0, h.beta),
        lambda h: fo.fedacg(h.sgd, h.beta),
        lambda h: fo.adabest(h.sgd, 0.01, h.beta),
        ours_seen=lambda state, h: (state.server.mean, state.variables.params),
        theirs_seen=lambda state, h: (
            state.variables.params, fo.fedacg(h.sgd, h.beta).broadcast(state.server).variables.params
        ),
    ),
    # The gradient is taken at x + beta b by both; with more steps, FedADC is pushed in each.
    "fedadc with one step is fedacg": Identity(
        lambda h: fo.fedadc(h.sgd, h.beta),
        lambda h: fo.fedacg(h.sgd, h.beta),
        lambda h: fo.fedadc(h.sgd, 0.99 * h.beta),
        equal_steps=1,
    ),
    # Control variates
    "scaffold_m without momentum is scaffold": Identity(
        lambda h: fo.scaffold_m(h.sgd, 1.0, h.eta),
        lambda h: fo.scaffold(h.sgd, 2, h.eta),
        lambda h: fo.scaffold_m(h.sgd, 0.99, h.eta),
        ours_seen=lambda state, h: (state.variables, state.server.control, state.clients),
        theirs_seen=lambda state, h: (state.variables, state.server.control, state.clients),
    ),
    "terms of no weight around scaffold": Identity(
        lambda h: fo.max_entropy(fo.contrastive(fo.scaffold(h.sgd), 0.0), 0.0),
        lambda h: fo.scaffold(h.sgd),
        lambda h: fo.max_entropy(fo.contrastive(fo.scaffold(h.sgd), 0.0), 0.01),
        ours_seen=lambda state, h: (state.server, state.clients.inner),
        theirs_seen=lambda state, h: (state.server, state.clients),
    ),
    # Mime: that momentum is 1 - beta times this one.
    "mimemom is mime with sgdm and a larger step": Identity(
        lambda h: fo.mimemom(h.sgd, h.beta, h.eta),
        lambda h: fo.mime(opt.sgdm(h.lr / (1 - h.beta), h.beta), h.eta),
        lambda h: fo.mimemom(h.sgd, 0.99 * h.beta, h.eta),
        ours_seen=lambda state, h: (
            state.variables, _scaled(1 - h.beta, state.server.optimizer.m)
        ),
        theirs_seen=lambda state, h: (state.variables, state.server.optimizer.m),
    ),
    "mimelitemom is mimelite with sgdm and a larger step": Identity(
        lambda h: fo.mimemom(h.sgd, h.beta, h.eta, lite=True),
        lambda h: fo.mimelite(opt.sgdm(h.lr / (1 - h.beta), h.beta), h.eta),
        lambda h: fo.mimemom(h.sgd, h.beta, h.eta),
        ours_seen=lambda state, h: (
            state.variables, _scaled(1 - h.beta, state.server.optimizer.m)
        ),
        theirs_seen=lambda state, h: (state.variables, state.server.optimizer.m),
    ),
    "mimemom without momentum is mime with sgd": Identity(
        lambda h: fo.mimemom(h.sgd, 0.0, h.eta),
        lambda h: fo.mime(h.sgd, h.eta),
        lambda h: fo.mimemom(h.sgd, 0.01, h.eta),
    ),
}  # fmt: skip


def _problem(seed, **keywords):
    rng = np.random.default_rng(seed)
    sizes = {"rounds": ROUNDS, "size": SIZE, "steps": STEPS, "num_clients": NUM_CLIENTS}
    params = helpers.random_params(rng, "linear")
    return params, helpers.random_rounds(rng, **sizes, **keywords)


def _play(algorithm, params, rounds):
    """The states before the rounds and after each."""
    counts = {"num_clients": NUM_CLIENTS, "steps": STEPS}
    return helpers.play(algorithm, helpers.LINEAR, params, rounds, **counts)[0]


def _differ(ours, theirs):
    return helpers.distance(ours[-1].variables, theirs[-1].variables) > 1e-7


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", IDENTITIES)
def test_two_algorithms_are_one(name, seed):
    """In every round, and neither nearby nor, where equal steps are needed, with unequal ones."""
    row, rng = IDENTITIES[name], np.random.default_rng(seed)
    h = Draw(rng.uniform(0.03, 0.12), rng.uniform(0.1, 0.9), rng.uniform(0.5, 1.2))
    params, rounds = _problem(seed)
    equal = rounds if row.equal_steps is None else helpers.equal_steps(rounds, row.equal_steps)
    theirs = _play(row.theirs(h), params, equal)
    ours = _play(row.ours(h), params, equal)
    for a, b in zip(ours, theirs, strict=True):
        helpers.assert_close(row.ours_seen(a, h), row.theirs_seen(b, h), 1e-12)
    assert helpers.distance(ours[0].variables, ours[-1].variables) > 1e-2
    near = _play(row.near(h), params, equal)
    assert _differ(near, ours)
    if row.equal_steps is not None:
        assert _differ(_play(row.ours(h), params, rounds), _play(row.theirs(h), params, rounds))


CYCLE = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("nesterov", [False, True])
def test_localghbm_is_ghbm_under_cyclic_participation(nesterov):
    """tau = N / |S| = 3: both are FedAvg for the first three rounds, and push from the fourth on.

    Then a client's a_i is x_{t-3}, and C is 1 / 3. In another order they differ.
    """
    sgd, beta = opt.sgd(0.1), 0.6
    localghbm, nearby = (fo.localghbm(sgd, b, 0.8, nesterov) for b in (beta, 0.99 * beta))
    ghbm, without = (fo.ghbm(sgd, 3, b, 0.8, nesterov) for b in (beta, 0.0))
    params, rounds = _problem(5, cohorts=3 * CYCLE)
    ours, expected = _play(localghbm, params, rounds), _play(ghbm, params, rounds)
    for t, fedavg in enumerate(_play(without, params, rounds)):
        helpers.assert_close(ours[t].variables, expected[t].variables, 1e-12)
        apart = helpers.distance(ours[t].variables, fedavg.variables)
        assert (apart > 1e-4) if t > 3 else (apart <= 1e-12)
    assert _differ(_play(nearby, params, rounds), ours)
    params, rounds = _problem(5, cohorts=CYCLE + CYCLE[::-1] + CYCLE)
    assert _differ(_play(localghbm, params, rounds), _play(ghbm, params, rounds))
