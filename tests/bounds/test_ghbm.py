"""GHBM's bounds against what the paper states, and the experiments that show where it errs."""

import itertools

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.bounds import GHBMConstants
from tests.bounds import transformations

CONSTANTS = GHBMConstants(
    smoothness=2.0, initial_loss=3.0, num_clients=20, participation=0.25, noise_variance=0.5,
    dissimilarity=0.8, optimal_loss=0.5,
)  # fmt: skip
COUNT = 64


def draw(seed=0, extreme=False):
    """Random constants, tau, ||grad f||^2, J, T and G_tau."""
    rng = np.random.default_rng(seed)

    def between(low, high):
        return 10 ** rng.uniform(low, high, COUNT)

    constants = GHBMConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-1, 3),
        num_clients=np.ceil(between(1, 4)),
        participation=between(-2, -0.5),
        noise_variance=between(-3, 3),
        dissimilarity=between(-3, 2),
        optimal_loss=-between(-3, 1),
    )
    # tau C from 0.1 to 0.9, and T up to a billion.
    tau = rng.uniform(0.1, 0.9, COUNT) / constants.participation
    rounds = np.ceil(between(1, 9 if extreme else 4))
    return constants, tau, between(-3, 2), np.ceil(between(0, 2)), rounds, between(-2, 2)


def wide(*values):
    return jax.tree.map(np.longdouble, values)


# Compiled as a whole, which is quicker than operation by operation.
step_sizes = jax.jit(fo.bounds.ghbm_step_sizes, static_argnames="as_printed")


def close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=rtol)


def test_corollary_4_5_is_the_statement_and_vanishes_when_all_are_heard():
    constants, tau, gradient, *_ = draw()
    c, t, g = wide(constants, tau, gradient)
    bound = jax.jit(fo.bounds.ghbm_cyclic_deviation)(constants, tau, gradient)
    close(bound.value, 8 * (1 - t * c.participation) ** 2 * (c.dissimilarity**2 + g))
    close(bound.value, sum(bound.terms.values()))
    for clients in range(1, 60):  # 1/C is rounded in many of them
        alike = CONSTANTS._replace(participation=1 / clients)
        assert fo.bounds.ghbm_cyclic_deviation(alike, clients, 1.0).value == 0
    beyond = fo.bounds.ghbm_cyclic_deviation(CONSTANTS, 5, 1.0)
    assert beyond.violated() == ("tau C <= 1",)


def test_lemma_4_4_is_the_statement():
    constants, tau, gradient, *_ = draw()
    unseen = np.random.default_rng(1).uniform(0, 1, COUNT)
    c, u, g = wide(constants, unseen, gradient)
    bound = jax.jit(fo.bounds.ghbm_momentum_deviation)(constants, tau, gradient, unseen)
    close(bound.value, 8 * u * (c.dissimilarity**2 + g))
    close(bound.value, sum(bound.terms.values()))
    # In one round of a quarter, three quarters are not seen: then it is the corollary.
    close(fo.bounds.ghbm_momentum_deviation(CONSTANTS, 1, 0.3).value,
          fo.bounds.ghbm_cyclic_deviation(CONSTANTS, 1, 0.3).value)  # fmt: skip


def test_lemma_4_4_holds_on_average_over_cohorts():
    """All pairs of cohorts of 2 among 5 clients, whose gradients are one far from the rest."""
    gradients = np.array([[4.0, 0.0], [-1.0, 0.3], [-1.0, 0.1], [-1.0, -0.6], [-1.0, 0.2]])
    mean = gradients.mean(0)
    dissimilarity = np.sqrt(((gradients - mean) ** 2).sum(1).mean())
    constants = GHBMConstants(1.0, 1.0, 5, participation=0.4, dissimilarity=dissimilarity)
    cohorts = list(itertools.combinations(range(5), 2))
    for tau in (1, 2):
        seen = [sorted(set().union(*draw)) for draw in itertools.product(cohorts, repeat=tau)]
        away = np.mean([((gradients[s].mean(0) - mean) ** 2).sum() for s in seen])
        assert away <= fo.bounds.ghbm_momentum_deviation(constants, tau, (mean**2).sum()).value


def test_corollary_4_5_fails_in_an_order_of_the_clients_and_says_so():
    """Of n clients the first k are equal and the others balance them: (1 - tau C)/(tau C) G^2 apart."""
    n = 20
    for k in range(1, n):
        first = np.where(np.arange(n) < k, 1.0, -k / (n - k))
        assert abs(first.sum()) < 1e-12
        dissimilarity = np.sqrt((first**2).mean())
        constants = GHBMConstants(1.0, 1.0, n, participation=1 / n, dissimilarity=dissimilarity)
        bound = fo.bounds.ghbm_cyclic_deviation(constants, k, 0.0)
        away = first[:k].mean() ** 2
        close(away, dissimilarity**2 * (1 - k / n) / (k / n))
        fails = away > bound.value
        assert fails == (k / n < 0.1464 or k / n > 0.8536)
        assert bound.violated() == (("G^2 (1 - tau C)/(tau C) <= bound",) if fails else ())


def test_lemma_4_6_is_the_statement():
    rng = np.random.default_rng(2)
    drifts, gradients, errors = rng.uniform(0, 2, 4), rng.uniform(0, 2, 3), rng.uniform(0, 2, 3)
    arguments = CONSTANTS, 5, 0.1, drifts, gradients, errors
    L2, lag = 4.0, (gradients + errors).sum()
    terms = {
        "noise": 3 * 0.5 / (20 * 0.25 * 4 * 5),
        "drift": 3 * L2 * drifts.mean(),
        "lag": 3 * (4 - 1) * L2 * 0.1**2 * lag,
    }
    bound = fo.bounds.ghbm_momentum_error(*arguments)
    assert list(bound.terms) == list(terms) and bound.violated() == ()
    for name, term in terms.items():
        close(bound.terms[name], term)
    close(bound.value, sum(terms.values()))
    printed = fo.bounds.ghbm_momentum_error(*arguments, as_printed=True)
    close(printed.terms["lag"], 3 * 2 * L2 * 0.1**2 * lag)
    # One round has no lag, and up to three the print is the larger one.
    one = fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.1, [1.0], [], [])
    assert one.terms["lag"] == 0
    five = fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.1, [1.0] * 5, [1.0] * 4, [1.0] * 4)
    assert five.violated() == ("tau C <= 1",)


def descend(tau, eta, rounds, smoothness=1.0, weight=1.0):
    """GHBM in theory on equal quadratics L x^2/2, without noise or drift: x_0, x_1 .. and m_1, m_2 .."""
    x, m, past = [1.0], [], [0.0] * tau
    for t in range(rounds):
        past[t % tau] = smoothness * x[-1]
        m.append((1 - weight) * (m[-1] if m else 0.0) + weight * np.mean(past))
        x.append(x[-1] - eta * m[-1])
    return np.array(x), np.array(m)


@pytest.mark.parametrize("tau", [2, 10, 26, 40])
def test_lemma_4_6_holds_on_a_quadratic_and_its_print_does_not(tau):
    eta, t = 1e-4, 200
    x, m = descend(tau, eta, t)
    window = np.arange(t - tau, t)  # x_{k-1} for k = t-tau+1 .. t
    left = (x[window].mean() - x[t - 1]) ** 2
    gradients, errors = x[window[:-1]] ** 2, (x[window[:-1]] - m[window[:-1]]) ** 2
    constants = GHBMConstants(1.0, 0.5, num_clients=tau, participation=1 / tau)
    arguments = constants, 1, eta, np.zeros(tau), gradients, errors
    assert left <= fo.bounds.ghbm_momentum_error(*arguments).value
    holds = left <= fo.bounds.ghbm_momentum_error(*arguments, as_printed=True).value
    assert holds == (tau <= 25)


def test_step_sizes_are_equation_122():
    constants, _, _, J, T, first = draw()
    c, j, t, g = wide(constants, J, T, first)
    L, S, tau, gap = (
        c.smoothness,
        c.num_clients,
        1 / c.participation,
        c.initial_loss - c.optimal_loss,
    )
    beta = np.minimum(1, np.sqrt(S * j * L * gap / (c.noise_variance * t)))
    assert (beta < 1).any() and (beta == 1).any()
    eta = np.minimum(1 / (24 * L), beta / (np.sqrt(np.longdouble(8)) * L))
    limits = [np.ones(COUNT), 1 / (beta * eta * L * np.sqrt(tau) * t),
              np.sqrt(L * gap / (beta**3 * tau * g * t)), 1 / np.sqrt(beta * S),
              (1 / (beta**3 * S * j)) ** 0.25]  # fmt: skip
    found = step_sizes(constants, J, T, first)
    close(found.gradient_weight, beta)
    close(found.server_learning_rate, eta)
    close(found.local_learning_rate, np.min(limits, 0) / (j * L))
    printed = step_sizes(constants, J, T, first, as_printed=True)
    close(printed.server_learning_rate, np.minimum(1 / (24 * L), beta / np.sqrt(8 * L)))
    # What the proof asks for in (80): 2 L^2 eta^2/beta <= 2 beta/8. The print breaks it for large L.
    allowed = (1 + 1e-9) * beta / 4
    assert (2 / beta * (L * np.asarray(found.server_learning_rate)) ** 2 <= allowed).all()
    assert (2 / beta * (L * np.asarray(printed.server_learning_rate)) ** 2 > allowed).any()
    # Without noise the gradient has all the weight.
    noiseless = fo.bounds.ghbm_step_sizes(CONSTANTS._replace(noise_variance=0.0), 5, 100, 1.0)
    assert noiseless.gradient_weight == 1


def test_theorem_4_7_is_the_statement():
    constants, _, _, J, T, _ = draw()
    c, j, t = wide(constants, J, T)
    gap = c.smoothness * (c.initial_loss - c.optimal_loss) / t
    bound = jax.jit(fo.bounds.ghbm_rate)(constants, J, T)
    close(bound.terms["initial"], gap)
    close(bound.terms["noise"], np.sqrt(gap * c.noise_variance / (c.num_clients * j)))
    close(bound.value, sum(bound.terms.values()))


def test_theorem_4_7_fails_where_the_lag_is_too_long_and_says_so():
    """With its steps and no noise, the gradient falls for tau = 10, and grows without bound for 150."""
    for tau, grows in [(10, False), (150, True)]:
        constants = GHBMConstants(3.0, 1.5, num_clients=tau, participation=1 / tau)
        steps = fo.bounds.ghbm_step_sizes(constants, 1, 1e5, 1.0)
        assert steps.gradient_weight == 1
        x, _ = descend(tau, float(steps.server_learning_rate), 12_000, smoothness=3.0)
        assert (abs(x[-1000:]).max() > 100) == grows
    violated = ("beta (tau - 1) <= 1",)
    assert fo.bounds.ghbm_rate(constants, 1, 1e5).violated() == violated
    noisy = constants._replace(noise_variance=1e6)
    assert fo.bounds.ghbm_rate(noisy, 1, 1e5).violated() == ()


def test_the_rates_other_assumptions_are_reported_by_name():
    def violated(**changes):
        constants = CONSTANTS._replace(noise_variance=1e9, **changes)
        return fo.bounds.ghbm_rate(constants, 5, 1000).violated()

    assert violated() == violated(participation=1 / 3) == violated(participation=1.0) == ()
    assert violated(participation=0.3) == ("1/C is whole",)
    assert violated(participation=0.01) == ("C |S| >= 1",)
    assert violated(initial_loss=0.0) == ("f(x0) >= f*",)


FUNCTIONS = {
    "deviation": lambda c, tau, g, *_: fo.bounds.ghbm_momentum_deviation(c, tau, g),
    "cyclic": lambda c, tau, g, *_: fo.bounds.ghbm_cyclic_deviation(c, tau, g),
    "rate": lambda c, tau, g, J, T, first: fo.bounds.ghbm_rate(c, J, T),
}


def test_transformations_and_float32():
    transformations.check(FUNCTIONS, draw(3), draw(4, extreme=True))


def test_lemma_4_6_transforms():
    rng = np.random.default_rng(5)
    windows = rng.uniform(0, 2, (7, 4)), rng.uniform(0, 2, (7, 3)), rng.uniform(0, 2, (7, 3))

    def error(drifts, gradients, errors):
        return fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.1, drifts, gradients, errors)

    batched = jax.jit(jax.vmap(error))(*windows)
    for i, window in enumerate(zip(*windows, strict=True)):
        jax.tree.map(lambda a, b, i=i: close(a[i], b), batched, error(*window))
    slopes = jax.grad(lambda *w: error(*w).value, (0, 1, 2))(*(w[0] for w in windows))
    for slope, exact in zip(slopes, (3 * 4 / 4, 9 * 4 * 0.01, 9 * 4 * 0.01), strict=True):
        close(slope, np.full(slope.shape, exact))
    # At L = 1e8, L^2 eta^2 is ordinary, though L^2 times a sum is not.
    steep = CONSTANTS._replace(smoothness=1e8)
    arguments = 5, 1e-8, [1e-16] * 4, [1e12] * 3, [1e12] * 3
    single = jax.tree.map(lambda leaf: np.float32(leaf), (steep, *arguments))
    narrow = fo.bounds.ghbm_momentum_error(*single[:3], *map(np.asarray, single[3:]))
    assert narrow.value.dtype == np.float32
    close(narrow.value, fo.bounds.ghbm_momentum_error(steep, *arguments).value, rtol=1e-4)


def test_step_sizes_transform():
    constants, _, _, J, T, first = draw(6, extreme=True)
    together = step_sizes(constants, J, T, first)
    batched = jax.jit(jax.vmap(fo.bounds.ghbm_step_sizes))(constants, J, T, first)
    jax.tree.map(close, batched, together)
    single = jax.tree.map(np.float32, (constants, J, T, first))
    for narrow, wide_one in zip(step_sizes(*single), together, strict=True):
        assert narrow.dtype == np.float32
        close(narrow, wide_one, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("smoothness", 0.0), ("initial_loss", np.inf), ("num_clients", 0), ("participation", 0.0),
        ("participation", 1.1), ("noise_variance", -1.0), ("dissimilarity", -1.0),
        ("optimal_loss", np.nan),
    ],
)  # fmt: skip
def test_bad_constants_are_refused(name, value):
    constants = CONSTANTS._replace(**{name: value})
    for call in (
        lambda: fo.bounds.ghbm_rate(constants, 5, 100),
        lambda: fo.bounds.ghbm_step_sizes(constants, 5, 100, 1.0),
        lambda: fo.bounds.ghbm_cyclic_deviation(constants, 2, 1.0),
        lambda: fo.bounds.ghbm_momentum_deviation(constants, 2, 1.0),
        lambda: fo.bounds.ghbm_momentum_error(constants, 5, 0.1, [1.0], [], []),
    ):
        with pytest.raises(ValueError, match=f"constants.{name} must lie"):
            call()


def test_bad_arguments_are_refused():
    for call, name in [
        (lambda: fo.bounds.ghbm_rate(CONSTANTS, 0, 100), "local_steps"),
        (lambda: fo.bounds.ghbm_rate(CONSTANTS, 5, 0), "rounds"),
        (lambda: fo.bounds.ghbm_step_sizes(CONSTANTS, 5, 100, -1.0), "first_gradients_squared"),
        (lambda: fo.bounds.ghbm_cyclic_deviation(CONSTANTS, 0, 1.0), "tau"),
        (lambda: fo.bounds.ghbm_momentum_deviation(CONSTANTS, 1, -1.0), "gradient_norm_squared"),
        (lambda: fo.bounds.ghbm_momentum_deviation(CONSTANTS, 1, 1.0, 1.5), "unseen_share_squared"),
        (
            lambda: fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.0, [1.0], [], []),
            "server_learning",
        ),
        (lambda: fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.1, [-1.0], [], []), "drifts"),
        (lambda: fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.1, [1.0], [1.0], []), "drifts"),
        (lambda: fo.bounds.ghbm_momentum_error(CONSTANTS, 5, 0.1, 1.0, [], []), "drifts"),
    ]:
        with pytest.raises(ValueError, match=name):
            call()
