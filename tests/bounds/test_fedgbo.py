"""FedGBO's bounds against what the paper states, written out in extended precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.bounds import FedGBOConstants
from tests.bounds import transformations

CONSTANTS = FedGBOConstants(
    smoothness=2.0, initial_loss=3.0, gradient_bound=1.5, dissimilarity=0.7, noise_variance=0.4,
    optimal_loss=0.5, update_bound=1.2,
)  # fmt: skip


COUNT = 64  # one shape for all, so that operations are compiled once


def draw(count=COUNT, seed=0, extreme=False):
    """Random constants, eta~, beta, K and T."""
    rng = np.random.default_rng(seed)

    def between(low, high):
        return 10 ** rng.uniform(low, high, count)

    constants = FedGBOConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-3, 3),
        gradient_bound=between(-4, 8) if extreme else between(-1, 1),
        dissimilarity=between(-3, 1),
        noise_variance=between(-3, 1),
        optimal_loss=-between(-3, 1),
        update_bound=between(-1, 2),
    )
    # The step in units of 1/L: steps that are sensible, and some that are not.
    eta = between(-12 if extreme else -6, 1) / constants.smoothness
    beta = 1 - between(-3 if extreme else -2, 0)
    rounds = between(3.1, 9) if extreme else between(3.1, 5)
    return constants, eta, beta, np.ceil(between(0, 2)), np.ceil(rounds)


def wide(*values):
    return jax.tree.map(np.longdouble, values)


def y_of(c, K):
    return 18 * c.update_bound**2 * c.smoothness**2 * (
        c.gradient_bound**2 + c.dissimilarity**2 + c.noise_variance / K
    )  # fmt: skip


def statement(c, eta, beta, K, T, power=2):
    less, Y = T - beta / (1 - beta), y_of(c, K)
    return (
        2 * (1 - beta) / (eta * less) * (c.initial_loss - c.optimal_loss)
        + T * eta**2 * Y / less
        + 2 * T * eta * c.smoothness * (1 + beta) * (c.gradient_bound**2 + eta**2 * Y)
        / (less * (1 - beta) ** power)
    )  # fmt: skip


def theorem_1(*arguments, power=2):
    return statement(*wide(*arguments), power=power)


# Compiled as a whole, which is quicker than operation by operation.
theorem = jax.jit(fo.bounds.fedgbo, static_argnames="as_printed")
lemma = jax.jit(fo.bounds.fedgbo_momentum, static_argnames="normalised")
perturbation = jax.jit(fo.bounds.fedgbo_perturbation, static_argnames="as_printed")


def close(found, expected, rtol=1e-12):
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=rtol)


def test_theorem_1_is_the_statement():
    arguments = draw()
    bound = theorem(*arguments)
    close(bound.value, theorem_1(*arguments))
    close(bound.value, sum(bound.terms.values()))
    close(theorem(*arguments, as_printed=True).value, theorem_1(*arguments, power=1))


def test_corollary_1_is_the_statement_and_the_limit_of_theorem_1():
    constants, _, beta, K, T = draw()
    scale = 10 ** np.random.default_rng(1).uniform(-3, 1, COUNT)
    c, C, b, k, t = wide(constants, scale, beta, K, T)
    Z = 4 * C**2 * (1 - b) ** 2 * y_of(c, k)
    expected = (
        (c.initial_loss - c.optimal_loss) / (C * np.sqrt(t))
        + 4 * C * c.smoothness * (1 + b) * (c.gradient_bound**2 + Z / t) / ((1 - b) * np.sqrt(t))
        + Z / t
    )
    bound = jax.jit(fo.bounds.fedgbo_corollary)(constants, scale, beta, K, T)
    close(bound.value, expected)
    close(bound.value, sum(bound.terms.values()))
    exact = theorem(constants, 2 * scale * (1 - beta) / np.sqrt(T), beta, K, T)
    assert (bound.value <= exact.value).all()
    near = np.asarray(bound.assumptions["T~ >= 0.99 T"])
    assert near.any() and not near.all()
    assert (exact.value[near] <= bound.value[near] / 0.99).all()
    close(fo.bounds.fedgbo_corollary(CONSTANTS, 0.5, 0.0, 3, 100).value,
          fo.bounds.fedgbo(CONSTANTS, 0.1, 0.0, 3, 100).value)  # fmt: skip


def test_lemma_1_is_the_statement():
    constants, eta, beta, K, _ = draw()
    c, e, b, k = wide(constants, eta, beta, K)
    sum_of_gradients = 2 * (c.gradient_bound**2 + e**2 * y_of(c, k)) / (1 - b) ** 2
    bound = lemma(constants, eta, beta, K)
    close(bound.value, sum_of_gradients)
    close(bound.value, sum(bound.terms.values()))
    normalised = lemma(constants, eta, beta, K, normalised=True)
    close(normalised.value, sum_of_gradients * (1 - b) ** 2)


def test_equation_3_is_the_statement():
    constants, eta, _, K, _ = draw()
    gradient, momentum = np.random.default_rng(2).uniform(0, 4, (2, COUNT))
    c, e, k, g, m = wide(constants, eta, K, gradient, momentum)
    printed = (c.update_bound * c.smoothness * e) ** 2 * (
        g + c.dissimilarity**2 + c.noise_variance / k
    )
    bound = perturbation(constants, eta, K, gradient)
    close(bound.value, 18 * printed)
    close(perturbation(constants, eta, K, gradient, as_printed=True).value, printed)
    with_momentum = perturbation(constants, eta, K, gradient, momentum)
    close(with_momentum.value, 18 * (printed + (c.smoothness * e) ** 2 * m))
    # For the longest gradients it is eta~^2 Y.
    close(perturbation(constants, eta, K).value, e**2 * y_of(c, k))


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
    constants, _, beta, K, T = draw(10_000, seed=3)
    best = jax.jit(fo.bounds.fedgbo_optimal_learning_rate)(constants, beta, K, T)
    # Golden sections of an interval of its logarithm. Near the minimum the bound changes by the square
    # of the distance: float64 tells apart what differs by 1e-8.
    low, high = np.full(10_000, -60.0), np.full(10_000, 30.0)
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(43):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        go_left = statement(constants, np.exp(left), beta, K, T) < statement(
            constants, np.exp(right), beta, K, T
        )
        low, high = np.where(go_left, low, left), np.where(go_left, right, high)
    close(best.value, np.exp((low + high) / 2), rtol=1e-6)
    close(best.bound.value, theorem_1(constants, best.value, beta, K, T))
    assert (best.value == best.unconstrained).all() and not best.clipped.any()


def test_limits():
    # Without momentum T~ = T; without smoothness's share, only the first term is left.
    plain = fo.bounds.fedgbo(CONSTANTS, 0.01, 0.0, 5, 100)
    close(plain.terms["initial"], 2 * 2.5 / (0.01 * 100))
    close(fo.bounds.fedgbo(CONSTANTS, 0.01, 0.0, 5, 100, as_printed=True).value, plain.value)
    flat = CONSTANTS._replace(smoothness=1e-30)
    close(fo.bounds.fedgbo(flat, 0.01, 0.0, 5, 100).value, plain.terms["initial"])
    # One step has all of the noise, many have none.
    one = fo.bounds.fedgbo_perturbation(CONSTANTS, 0.1, 1)
    many = fo.bounds.fedgbo_perturbation(CONSTANTS, 0.1, 1e12)
    close(one.value - many.value, 18 * (1.2 * 2 * 0.1) ** 2 * 0.4, rtol=1e-9)
    # At the best step a small step's and a large step's terms balance: more rounds, lower bound.
    best = [fo.bounds.fedgbo_optimal_learning_rate(CONSTANTS, 0.5, 5, T) for T in (100, 10_000)]
    assert best[1].value < best[0].value and best[1].bound.value < best[0].bound.value


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


def test_there_is_no_bound_before_the_momentum_has_settled():
    for T in (1, 8, 9):  # T~ = T - 9
        bound = fo.bounds.fedgbo(CONSTANTS, 0.01, 0.9, 5, T)
        assert bound.value == np.inf and "T > 1/(1-beta)" in bound.violated()


def optimum(constants, eta, beta, K, T):
    """The best eta~ as a value: at the bound there, an error of its derivative would not show."""
    del eta
    best = fo.bounds.fedgbo_optimal_learning_rate(constants, beta, K, T)
    return best.bound._replace(value=best.value)


FUNCTIONS = {
    "theorem": fo.bounds.fedgbo,
    "corollary": fo.bounds.fedgbo_corollary,
    "optimum": optimum,
    "momentum": lambda c, eta, beta, K, T: fo.bounds.fedgbo_momentum(c, eta, beta, K),
    "perturbation": lambda c, eta, beta, K, T: fo.bounds.fedgbo_perturbation(c, eta, K, T, T),
}


def test_transformations_and_float32():
    transformations.check(FUNCTIONS, draw(seed=4), draw(seed=5, extreme=True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("smoothness", 0.0), ("smoothness", np.inf), ("initial_loss", np.nan),
        ("gradient_bound", -1.0), ("dissimilarity", -1.0), ("noise_variance", -0.1),
        ("optimal_loss", np.inf), ("update_bound", -1.0), ("smoothness", "2"),
    ],
)  # fmt: skip
def test_bad_constants_are_refused(name, value):
    with pytest.raises(ValueError, match=f"constants.{name} must"):
        fo.bounds.fedgbo(CONSTANTS._replace(**{name: value}), 0.1, 0.5, 5, 100)


def test_bad_arguments_are_refused():
    good = {"pseudo_learning_rate": 0.1, "momentum": 0.5, "local_steps": 5, "rounds": 100}
    bad = [("pseudo_learning_rate", 0.0), ("momentum", 1.0), ("momentum", -0.1),
           ("local_steps", 0), ("rounds", 0), ("rounds", np.nan)]  # fmt: skip
    for name, value in bad:
        with pytest.raises(ValueError, match=f"{name} must lie in"):
            fo.bounds.fedgbo(CONSTANTS, **{**good, name: value})
    with pytest.raises(ValueError, match="scale must"):
        fo.bounds.fedgbo_corollary(CONSTANTS, 0.0, 0.5, 5, 100)
    with pytest.raises(ValueError, match="gradient_norm_squared must"):
        fo.bounds.fedgbo_perturbation(CONSTANTS, 0.1, 5, -1.0)
    with pytest.raises(ValueError, match="momentum_norm_squared must"):
        fo.bounds.fedgbo_perturbation(CONSTANTS, 0.1, 5, 1.0, -1.0)
    with pytest.raises(ValueError, match=r"initial_loss - constants.optimal_loss must"):
        fo.bounds.fedgbo_optimal_learning_rate(CONSTANTS._replace(initial_loss=0.5), 0.5, 5, 100)
    with pytest.raises(ValueError, match=r"constants.gradient_bound must"):
        fo.bounds.fedgbo_optimal_learning_rate(CONSTANTS._replace(gradient_bound=0.0), 0.5, 5, 100)
    with pytest.raises(ValueError, match="learning_rate must"):
        fo.bounds.fedgbo_pseudo_learning_rate(-1.0, 0.5, 5)
