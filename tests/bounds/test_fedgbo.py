"""FedGBO's best step size, limits and assumptions; the statements are in test_theorems."""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo
from benchmarks.papers import printed
from fedjax_opt.bounds import FedGBOConstants
from tests.bounds.theorems import draw_fedgbo, fedgbo_theorem_1

CONSTANTS = FedGBOConstants(
    smoothness=2.0, initial_loss=3.0, gradient_bound=1.5, dissimilarity=0.7, noise_variance=0.4,
    optimal_loss=0.5, update_bound=1.2,
)  # fmt: skip


def close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=rtol)


def test_the_print_is_another_thing():
    bound = fo.bounds.fedgbo(CONSTANTS, 0.01, 0.9, 5, 100)
    assert list(bound.terms) == ["initial", "perturbation", "momentum"]
    close(printed.fedgbo_momentum_term(bound, 0.9), 0.1 * bound.terms["momentum"])
    # K steps on y^2/2 from 1 move the mean gradient by eta~ (K-1)/(2 K), more than (3) says without 18.
    equal = FedGBOConstants(smoothness=1.0, initial_loss=1.0, gradient_bound=1.0)
    bound = fo.bounds.fedgbo_perturbation(equal, 0.1, 5, 0.1)
    y, visited = 1.0, []
    for _ in range(5):
        visited.append(y)
        y = y * (1 - 0.1 / 5)
    assert printed.fedgbo_perturbation(bound) < (np.mean(visited) - 1) ** 2 < bound.value


def test_corollary_1_is_the_limit_of_theorem_1():
    constants, _, beta, K, T = draw_fedgbo(np.random.default_rng(0), 64)
    scale = 10 ** np.random.default_rng(1).uniform(-3, 1, 64)
    bound = fo.bounds.fedgbo_corollary(constants, scale, beta, K, T)
    exact = fo.bounds.fedgbo(constants, 2 * scale * (1 - beta) / np.sqrt(T), beta, K, T)
    assert (bound.value <= exact.value).all()
    near = np.asarray(bound.assumptions["T~ >= 0.99 T"])
    assert near.any() and not near.all()
    assert (exact.value[near] <= bound.value[near] / 0.99).all()
    plain = fo.bounds.fedgbo(CONSTANTS, 0.1, 0.0, 3, 100).value
    close(fo.bounds.fedgbo_corollary(CONSTANTS, 0.5, 0.0, 3, 100).value, plain)


def test_the_pseudo_learning_rate_makes_sgdm_the_papers_momentum():
    """K steps of `sgdm`, m frozen, move the model by eta~ (beta m/(1-beta) + mean g)."""
    beta, eta, K = 0.8, 0.3, 4
    triple = fo.optimizers.sgdm(eta, beta)
    m, gradients = jnp.array(0.7), jnp.array([0.5, -1.0, 2.0, 0.25])
    stats = triple.init(m)._replace(m=m)
    moved = sum(-triple.update(g, stats)[0] for g in gradients)
    pseudo = fo.bounds.fedgbo_pseudo_learning_rate(eta, beta, K)
    close(moved, pseudo * (beta * m / (1 - beta) + gradients.mean()))


def test_the_optimal_learning_rate_is_that_of_a_numerical_minimiser():
    constants, _, beta, K, T = draw_fedgbo(np.random.default_rng(3), 1000)
    best = jax.jit(fo.bounds.fedgbo_optimal_learning_rate)(constants, beta, K, T)
    # Golden sections of an interval of its logarithm. Near the minimum the bound changes by the square
    # of the distance: float64 tells apart what differs by 1e-8.
    low, high = np.full(1000, -60.0), np.full(1000, 30.0)
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(43):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        values = [fedgbo_theorem_1(constants, np.exp(x), beta, K, T) for x in (left, right)]
        go_left = values[0] < values[1]
        low, high = np.where(go_left, low, left), np.where(go_left, right, high)
    close(best.value, np.exp((low + high) / 2), rtol=1e-6)
    close(best.bound.value, fedgbo_theorem_1(constants, np.asarray(best.value), beta, K, T))
    assert (best.value == best.unconstrained).all() and not best.clipped.any()


def test_derivatives_and_float32_of_the_optimal_learning_rate():
    """Of the value: at the bound there, an error of its derivative would not show."""

    def best(constants, beta, K, T):
        return fo.bounds.fedgbo_optimal_learning_rate(constants, beta, K, T).value

    constants, _, beta, K, T = draw_fedgbo(np.random.default_rng(4), 16)
    slopes = jax.grad(lambda *a: jnp.sum(jnp.log(best(*a))), argnums=(0, 1))(constants, beta, K, T)
    for d_constants, d_beta in [(1e-6, 0), (0, 1e-6)]:
        ends = [
            np.log(best(jax.tree.map(lambda x: x * (1 + sign * d_constants), constants),  # noqa: B023
                        beta * (1 + sign * d_beta), K, T))
            for sign in (1, -1)
        ]  # fmt: skip
        of_constants = sum(s * c for s, c in zip(slopes[0], constants, strict=True))
        expected = of_constants if d_constants else slopes[1] * beta
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-6, expected, rtol=1e-5, atol=1e-7)
    constants, _, beta, K, T = draw_fedgbo(np.random.default_rng(5), 1000, extreme=True)
    single = jax.tree.map(np.float32, (constants, beta, K, T))
    narrow, wide = best(*single), best(*jax.tree.map(np.float64, single))
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=2e-38)


def test_limits():
    # Without momentum T~ = T; without smoothness's share, only the first term is left.
    plain = fo.bounds.fedgbo(CONSTANTS, 0.01, 0.0, 5, 100)
    close(plain.terms["initial"], 2 * 2.5 / (0.01 * 100))
    flat = CONSTANTS._replace(smoothness=1e-30)
    close(fo.bounds.fedgbo(flat, 0.01, 0.0, 5, 100).value, plain.terms["initial"])
    # One step has all of the noise, many have none.
    one = fo.bounds.fedgbo_perturbation(CONSTANTS, 0.1, 1)
    many = fo.bounds.fedgbo_perturbation(CONSTANTS, 0.1, 1e12)
    close(one.value - many.value, 18 * (1.2 * 2 * 0.1) ** 2 * 0.4, rtol=1e-9)
    # More rounds, a lower bound with the best step.
    best = [fo.bounds.fedgbo_optimal_learning_rate(CONSTANTS, 0.5, 5, T) for T in (100, 10_000)]
    assert best[1].value < best[0].value and best[1].bound.value < best[0].bound.value
    for T in (1, 8, 9):  # T~ = T - 9: the momentum has not settled, and there is no bound
        bound = fo.bounds.fedgbo(CONSTANTS, 0.01, 0.9, 5, T)
        assert bound.value == np.inf and "T > 1/(1-beta)" in bound.violated()


def test_assumptions_are_reported_by_name():
    def violated(constants=CONSTANTS, beta=0.5, T=100):
        return fo.bounds.fedgbo(constants, 0.01, beta, 5, T).violated()

    assert violated() == ()
    assert violated(beta=0.5, T=2) == violated(beta=0.75, T=4) == ("T > 1/(1-beta)",)
    assert violated(beta=0.5, T=3) == ()
    assert violated(CONSTANTS._replace(initial_loss=0.0)) == ("F(x0) >= F*",)
    # sqrt(18) B < 1/(1-beta), and neither noise nor dissimilarity to make up for it.
    bare = FedGBOConstants(smoothness=2.0, initial_loss=3.0, gradient_bound=1.5)
    edge = 1 - 1 / np.sqrt(18)
    assert violated(bare, beta=edge - 1e-3) == violated(bare, beta=edge) == ()
    assert violated(bare, beta=edge + 1e-3) == ("Y >= (L R/(1-beta))^2",)
    assert violated(bare._replace(update_bound=2.0), beta=edge + 1e-3) == ()
    assert fo.bounds.fedgbo_momentum(bare, 0.1, 0.9, 5).violated() == ("Y >= (L R/(1-beta))^2",)
    assert fo.bounds.fedgbo_perturbation(CONSTANTS, 0.2, 5).violated() == ()
    assert fo.bounds.fedgbo_perturbation(CONSTANTS, 0.21, 5).violated() == ("eta~ B L <= 1/2",)
