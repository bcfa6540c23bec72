"""FedACG's bounds against what the paper states and its lemmas give, and where the convex one fails."""

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.bounds import FedACGConstants
from tests.bounds import transformations

CONSTANTS = FedACGConstants(
    smoothness=2.0, initial_loss=3.0, num_clients=20.0, cohort_size=5.0, gradient_bound=1.5,
    noise_variance=0.4, optimal_loss=0.5, distance_squared=4.0, gradients_squared=9.0,
)  # fmt: skip
COUNT = 64


def draw(seed=0, extreme=False):
    """Random constants, C, lambda, K and T."""
    rng = np.random.default_rng(seed)

    def between(low, high):
        return 10 ** rng.uniform(low, high, COUNT)

    clients = np.ceil(between(0.5, 4))
    constants = FedACGConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-1, 3),
        num_clients=clients,
        cohort_size=np.ceil(clients * rng.uniform(0.01, 0.9, COUNT)),
        gradient_bound=between(-2, 2),
        noise_variance=between(-3, 2),
        optimal_loss=-between(-3, 1),
        distance_squared=between(-3, 3),
        gradients_squared=between(-3, 3),
        optimal_gradients_squared=between(-3, 3),
    )
    scale = between(-3, 1) / constants.smoothness
    lam = rng.uniform(0.01, 0.99, COUNT)
    rounds = np.ceil(between(1, 9 if extreme else 5))
    return constants, scale, lam, np.ceil(between(0, 2)), rounds


def wide(*values):
    return jax.tree.map(np.longdouble, values)


# Compiled as a whole, which is quicker than operation by operation.
nonconvex = jax.jit(fo.bounds.fedacg_nonconvex, static_argnames="as_printed")
convex = jax.jit(fo.bounds.fedacg_convex)


def close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=rtol)


def lemmas(c, eta, lam, K):
    """B' of Lemma 1: the terms I* to V*, each as its lemma bounds it, with their factors."""
    L, G2, s2 = c.smoothness, c.gradient_bound**2, c.noise_variance
    N, S = c.num_clients, c.cohort_size
    P = 4 * N / (S * (N - 1)) * (1 - S / N)
    one = eta**2 * G2
    two = eta**2 * L**2 * K**4 * G2 / 3
    three = eta**2 * lam**4 * L**2 * K**2 * (G2 * (1 + P) + s2) / (1 - lam) ** 4
    four = eta**2 * K**2 * s2 + eta**2 * K**2 * P * G2
    five = eta**2 * K**2 * G2
    return (
        (one + two) / (2 * (1 - lam)) + three / (4 * L) + L / (2 * (1 - lam) ** 2) * (four + five)
    )


def printed_b(c, lam, K):
    """B'' as printed below (13)."""
    L, G2, N, S = c.smoothness, c.gradient_bound**2, c.num_clients, c.cohort_size
    carried = lam**4 * K**2 / (2 * (1 - lam) ** 2)
    of_gradients = (
        (1 + L**2 * K**4 / 3) * (1 - lam)
        + carried * L
        + (1 + 4 * N / (S * (N - 1)) * (1 - S / N)) * (L * K**2 + L * carried)
    )
    of_noise = L * K**2 / 2 * (2 + lam**4 / (1 - lam**2))
    return (of_gradients * G2 + of_noise * c.noise_variance) / ((1 - lam) * K)


def test_the_nonconvex_bound_is_12_with_the_lemmas_put_in():
    arguments = draw()
    c, C, lam, K, T = wide(*arguments)
    gap, size = c.initial_loss - c.optimal_loss, C / np.sqrt(T)
    eta = np.minimum((1 - lam) / (2 * c.smoothness * K), size)
    close(fo.bounds.fedacg_learning_rate(*arguments), eta)
    # (12) for eta, and its second term, linear in eta, at the larger C/sqrt(T).
    expected = 2 * gap * (1 - lam) / (eta * K * T)
    expected = expected + 2 * (1 - lam) / (size * K) * lemmas(c, size, lam, K)
    bound = nonconvex(*arguments)
    close(bound.value, expected)
    close(bound.value, sum(bound.terms.values()))
    assert bound.violated() == ()


def test_the_nonconvex_bound_as_printed():
    arguments = draw()
    c, C, lam, K, T = wide(*arguments)
    gap = c.initial_loss - c.optimal_loss
    largest = np.maximum(2 * c.smoothness * K / (1 - lam), np.sqrt(T) / C)
    expected = 2 * gap * (1 - lam) / T * largest + C / np.sqrt(T) * printed_b(c, lam, K)
    printed = nonconvex(*arguments, as_printed=True)
    close(printed.value, expected)
    derived = nonconvex(*arguments)
    close(printed.terms["initial"] / derived.terms["initial"], K)
    # The printed noise is too small: 1 - lambda^2 is more than (1 - lambda)^2.
    assert (printed.terms["noise"] < derived.terms["noise"]).all()


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


def test_the_convex_bound_is_the_statement():
    constants, beta, lam, _, T = draw()
    c, b, l, t = wide(constants, beta, lam, T)
    bound = convex(constants, beta, lam, T)
    close(bound.value, (b * (1 - l) * c.distance_squared + l / b * c.gradients_squared) / t)
    close(bound.value, sum(bound.terms.values()))


def test_the_main_texts_proximal_weight_is_never_allowed():
    constants, _, lam, _, T = draw()
    c, l, t = wide(constants, lam, T)
    bound = fo.bounds.fedacg_convex_main_text(constants, lam, T)
    rest = c.smoothness * c.distance_squared + c.gradients_squared / c.smoothness
    close(bound.value, np.sqrt(l * (1 - l)) / t * rest)
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
    found = convex(repeated, beta, lam, np.full(COUNT, 10.0))
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


def test_the_best_proximal_weight_is_that_of_a_numerical_minimiser():
    constants, _, lam, _, T = draw()
    best = fo.bounds.fedacg_optimal_proximal_weight(constants, lam, T)
    least = constants.smoothness / (1 - lam)

    def stated(beta):
        return beta * (1 - lam) * constants.distance_squared + (
            lam / beta * constants.gradients_squared
        )

    for found, lowest in [(best.unconstrained, -40.0), (best.value, np.log(least))]:
        low, high = np.broadcast_to(lowest, COUNT).copy(), np.full(COUNT, 40.0)
        ratio = (np.sqrt(5) - 1) / 2
        for _ in range(50):
            left, right = high - ratio * (high - low), low + ratio * (high - low)
            go_left = stated(np.exp(left)) <= stated(np.exp(right))
            low, high = np.where(go_left, low, left), np.where(go_left, right, high)
        close(found, np.exp((low + high) / 2), rtol=1e-6)
    clipped = np.asarray(best.clipped)
    assert clipped.any() and not clipped.all()
    close(best.bound.value, stated(np.asarray(best.value)) / T)
    assert np.asarray(best.bound.assumptions["beta >= L/(1-lambda)"]).all()
    # Clients that agree on x* have M <= L^2 ||x_0 - x*||^2, and then the condition binds.
    agreeing = CONSTANTS._replace(gradients_squared=2.0**2 * 4.0)
    assert fo.bounds.fedacg_optimal_proximal_weight(agreeing, 0.999, 10).clipped


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


FUNCTIONS = {
    "nonconvex": fo.bounds.fedacg_nonconvex,
    "convex": lambda c, scale, lam, K, T: fo.bounds.fedacg_convex(c, c.smoothness * K, lam, T),
    "main text": lambda c, scale, lam, K, T: fo.bounds.fedacg_convex_main_text(c, lam, T),
    "optimum": lambda c, scale, lam, K, T: (
        fo.bounds.fedacg_optimal_proximal_weight(c, lam, T).bound
    ),
}


def test_transformations_and_float32():
    transformations.check(FUNCTIONS, draw(2), draw(3, extreme=True))


def test_bad_input_is_refused():
    for name, value in [("smoothness", 0.0), ("initial_loss", np.nan), ("num_clients", 0.0),
                        ("cohort_size", 0.0), ("gradient_bound", -1.0), ("noise_variance", -1.0),
                        ("optimal_loss", np.inf), ("initial_loss", None)]:  # fmt: skip
        with pytest.raises(ValueError, match=f"constants.{name} must"):
            fo.bounds.fedacg_nonconvex(CONSTANTS._replace(**{name: value}), 0.1, 0.5, 5, 100)
    for name, value in [("distance_squared", -1.0), ("gradients_squared", None),
                        ("optimal_gradients_squared", -1.0), ("smoothness", -1.0)]:  # fmt: skip
        with pytest.raises(ValueError, match=f"constants.{name} must"):
            fo.bounds.fedacg_convex(CONSTANTS._replace(**{name: value}), 5.0, 0.6, 100)
    good = {"scale": 0.1, "momentum": 0.5, "local_steps": 5, "rounds": 100}
    for name, value in [("scale", 0.0), ("momentum", 1.0), ("momentum", -0.1), ("local_steps", 0),
                        ("rounds", 0)]:  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must lie"):
            fo.bounds.fedacg_nonconvex(CONSTANTS, **{**good, name: value})
        with pytest.raises(ValueError, match=f"{name} must lie"):
            fo.bounds.fedacg_learning_rate(CONSTANTS, **{**good, name: value})
    with pytest.raises(ValueError, match="proximal_weight must lie"):
        fo.bounds.fedacg_convex(CONSTANTS, 0.0, 0.6, 100)
    with pytest.raises(ValueError, match="momentum must lie"):
        fo.bounds.fedacg_convex_main_text(CONSTANTS, 0.0, 100)
    with pytest.raises(ValueError, match=r"constants.distance_squared must lie"):
        fo.bounds.fedacg_optimal_proximal_weight(CONSTANTS._replace(distance_squared=0.0), 0.6, 9)
