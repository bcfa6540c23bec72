"""FedACG's bounds against what the paper states and its lemmas give, and where the convex one fails."""

import jax
import numpy as np

import fedjax_opt as fo
from benchmarks.papers import printed
from fedjax_opt.bounds import FedACGConstants
from tests.bounds.theorems import draw_fedacg, fedacg_rate

CONSTANTS = FedACGConstants(
    smoothness=2.0, initial_loss=3.0, num_clients=20.0, cohort_size=5.0, gradient_bound=1.5,
    noise_variance=0.4, optimal_loss=0.5, distance_squared=4.0, gradients_squared=9.0,
)  # fmt: skip
COUNT = 64


def close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=rtol)


def draw():
    return draw_fedacg(np.random.default_rng(0), COUNT)


def test_the_nonconvex_bound_as_printed():
    constants, scale, lam, K, T = draw()
    found = printed.fedacg_nonconvex(constants, scale, lam, K, T)
    derived = fo.bounds.fedacg_nonconvex(constants, scale, lam, K, T)
    assert derived.violated() == ()
    close(found["initial"] / derived.terms["initial"], K)
    # The printed noise is too small: 1 - lambda^2 is more than (1 - lambda)^2.
    assert (found["noise"] < derived.terms["noise"]).all()
    gradient = derived.terms["drift"] + derived.terms["momentum and sampling"]
    assert (found["gradient"] > gradient * (1 + 1e-12)).any()
    close(fo.bounds.fedacg_learning_rate(constants, scale, lam, K, T),
          fedacg_rate(constants, scale, lam, K, T))  # fmt: skip


def test_nonconvex_limits():
    # Where all clients take part nothing is sampled, also if there is but one.
    def spread(clients, cohort, lam=0.0):
        constants = CONSTANTS._replace(num_clients=clients, cohort_size=cohort)
        bound = fo.bounds.fedacg_nonconvex(constants, 0.1, lam, 1, 100)
        return bound.terms["momentum and sampling"]

    close(spread(20.0, 20.0), spread(1.0, 1.0))
    close(spread(20.0, 20.0), 0.1 / 10 * 2.0 * 1.5**2)
    assert spread(20.0, 5.0) > spread(20.0, 10.0) > spread(20.0, 20.0)
    assert spread(20.0, 20.0, 0.5) > spread(20.0, 20.0)
    more = fo.bounds.fedacg_nonconvex(CONSTANTS._replace(cohort_size=30.0), 0.1, 0.5, 5, 100)
    assert more.violated() == ("|S| <= N",)
    low = fo.bounds.fedacg_nonconvex(CONSTANTS._replace(initial_loss=0.0), 0.1, 0.5, 5, 100)
    assert low.violated() == ("F(z0) >= F*",)


def test_the_main_texts_proximal_weight_is_never_allowed():
    constants, _, lam, _, T = draw()
    bound = fo.bounds.fedacg_convex_main_text(constants, lam, T)
    assert not np.asarray(bound.assumptions["beta >= L/(1-lambda)"]).any()
    assert (
        "beta >= L/(1-lambda)" in fo.bounds.fedacg_convex_main_text(CONSTANTS, 0.6, 10).violated()
    )


def test_kappa_0_has_the_sign_of_the_papers_formula():
    rng = np.random.default_rng(1)
    lam, beta = rng.uniform(0.5, 0.999, COUNT), 10 ** rng.uniform(-0.5, 1.5, COUNT) * 2.0
    L = 2.0
    below = beta**2 - 4 * L**2 - 4 * beta**2 * lam**2
    kappa = 2 / (beta * (1 - lam)) * (4 * L * (L - beta - lam * beta) / below - 1)
    repeated = jax.tree.map(lambda leaf: np.full(COUNT, leaf), CONSTANTS)
    found = fo.bounds.fedacg_convex(repeated, beta, lam, np.full(COUNT, 10.0))
    np.testing.assert_array_equal(found.assumptions["kappa_0 > 0"], kappa > 0)
    assert (kappa > 0).any() and (kappa < 0).any()
    # The paper says that it is positive whenever beta >= L/(1-lambda): at equality, only up to 3/4.
    for weight, positive in [(0.6, True), (0.74, True), (0.76, False), (0.9, False)]:
        bound = fo.bounds.fedacg_convex(CONSTANTS, 2.0 / (1 - weight), weight, 10)
        assert bound.violated() == (() if positive else ("kappa_0 > 0",))


def test_convex_assumptions_are_reported_by_name():
    def violated(beta=5.5, lam=0.6, **changes):
        return fo.bounds.fedacg_convex(CONSTANTS._replace(**changes), beta, lam, 10).violated()

    assert violated() == violated(beta=5.0) == ()
    assert "1/2 < lambda < 1" in violated(lam=0.5)
    assert "beta >= L/(1-lambda)" in violated(beta=4.9)
    assert violated(optimal_gradients_squared=0.1) == ("grad f_i(x*) = 0",)


def play(curvatures, optima, start, beta, lam, rounds):
    """FedACG with exact local solutions on quadratics: the loss gap at the mean of the models."""
    best = (curvatures * optima).sum() / curvatures.sum()
    x, m, total = start, 0.0, 0.0
    for _ in range(rounds):
        total += x
        ahead = x + lam * m
        after = ((curvatures * optima + beta * ahead) / (curvatures + beta)).mean()
        x, m = after, after - x
    away = total / rounds - best
    return curvatures.mean() * away**2 / 2, best


def test_the_convex_bound_fails_where_clients_disagree():
    """L = 1, lambda = 0.6, beta = L/(1-lambda): all that the paper asks for."""
    curvatures, optima, rounds = np.array([1.0, 0.1]), np.array([1.0, -1.0]), 3000
    _, best = play(curvatures, optima, 0.0, 2.5, 0.6, 1)
    gap, _ = play(curvatures, optima, best, 2.5, 0.6, rounds)
    gradients = (curvatures * (best - optima)) ** 2
    constants = FedACGConstants(1.0, distance_squared=0.0, gradients_squared=gradients.mean())
    assert gap > 10 * fo.bounds.fedacg_convex(constants, 2.5, 0.6, rounds).value
    told = constants._replace(optimal_gradients_squared=gradients.mean())
    assert fo.bounds.fedacg_convex(told, 2.5, 0.6, rounds).violated() == ("grad f_i(x*) = 0",)
    # Clients that agree on x* get there.
    gap, _ = play(curvatures, np.array([0.0, 0.0]), 1.0, 2.5, 0.6, rounds)
    constants = FedACGConstants(1.0, distance_squared=1.0, gradients_squared=(curvatures**2).mean())
    bound = fo.bounds.fedacg_convex(constants, 2.5, 0.6, rounds)
    assert gap < bound.value and bound.violated() == ()
