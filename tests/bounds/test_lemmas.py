"""Lemmas are what they say: on simulated federations whose constants are known, in NumPy.

The left side never exceeds the right one, and reaches it where a lemma is tight. Where nothing is random
it is so in every run; else means are over so many runs that their error is far below the slack.
"""

import numpy as np
import pytest

from fedjax_opt import bounds

# FedAvg --------------------------------------------------------------------------------------------


def one_step_of_each(rng, clients, cohort, steps):
    """The last local step of a round and the average, exactly in one dimension, and Lemma 1's value.

    Clients are a_c (x - b_c)^2/2 with noise of deviation s_c. E is over all cohorts of the size, and
    over the noise by its variances.
    """
    a, b, s = rng.uniform(0.5, 2, clients), rng.normal(0, 1, clients), rng.uniform(0, 1, clients)
    optimum, start = np.sum(a * b) / a.sum(), rng.normal(0, 2)
    eta = 0.25 / a.max() * rng.uniform(0.05, 1)
    mean, variance, largest = np.full(clients, start), np.zeros(clients), 0.0
    for _ in range(steps):
        largest = max(largest, np.max(a**2 * ((mean - b) ** 2 + variance) + s**2))
        before = (mean.mean() - optimum) ** 2 + variance.mean() / clients
        mean, variance = mean - eta * a * (mean - b), (1 - eta * a) ** 2 * variance + (eta * s) ** 2
    # The mean of N drawn without replacement varies over draws.
    spread = mean.var() * (clients - cohort) / max(clients - 1, 1) / cohort
    after = (mean.mean() - optimum) ** 2 + spread + variance.mean() / cohort
    gamma = np.mean(a * (optimum - b) ** 2) / 2
    constants = bounds.FedAvgConstants(
        a.max(), a.min(), 0.0, np.sqrt(largest), cohort, noise=np.mean(s**2) / cohort,
        heterogeneity=gamma,
    )  # fmt: skip
    return after, bounds.fedavg_distance(constants, eta, steps, before, clients)


def test_lemma_1_of_fedavg_bounds_the_next_distance():
    rng = np.random.default_rng(0)
    for clients, cohort, steps in [(5, 5, 1), (5, 2, 1), (5, 1, 4), (5, 5, 6), (5, 3, 3)] * 8:
        after, bound = one_step_of_each(rng, clients, cohort, steps)
        assert bound.violated() == () and after <= bound.value


def test_lemma_1_of_fedavg_is_tight_at_the_optimum_of_equal_clients():
    constants = bounds.FedAvgConstants(2.0, 2.0, 0.0, 5.0, 4, noise=0.3)
    bound = bounds.fedavg_distance(constants, 0.1, 1, 0.0, num_clients=4)
    # x* + eta (mean of the noise): its variance is eta^2 sum p^2 sigma^2.
    np.testing.assert_allclose(bound.value, 0.1**2 * 0.3)


def test_the_schedules_of_lemma_2_are_the_theorem_times_their_steps():
    constants = bounds.FedAvgConstants(1.0, 0.5, 1.0, 0.0, 10, noise=0.2, heterogeneity=0.1)
    K, eta = np.array([8.0, 4.0, 1.0]), np.array([0.2, 0.1, 0.05])
    lemma = bounds.fedavg_gradients(constants, eta, K)
    np.testing.assert_allclose(
        lemma.value / np.sum(eta * K), bounds.fedavg(constants, eta, K).value
    )
    same = bounds.fedavg(constants, np.full(3, 0.1), K)
    np.testing.assert_allclose(same.value, bounds.fedavg(constants, 0.1, K).value)
    assert bounds.fedavg(constants, [0.3, 0.1, 0.1], K).violated() == ("eta <= 1/(4L)",)


def test_a_falling_learning_rate_is_bounded_on_quadratics():
    """All clients, without noise: sum eta_t ||grad F(xbar_t)||^2 over the local steps."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        a, b = rng.uniform(0.5, 2, 4), rng.normal(0, 1, 4)
        K, eta = np.array([6, 5, 3, 1]), 0.25 / a.max() * np.sort(rng.uniform(0.1, 1, 4))[::-1]
        optimum = np.sum(a * b) / a.sum()
        lowest = np.mean(a * (optimum - b) ** 2) / 2
        # F* = 0 by an offset, which Gamma is then made of.
        x, total, largest = rng.normal(0, 2), 0.0, 0.0
        first = np.mean(a * (x - b) ** 2) / 2 - lowest
        for steps, rate in zip(K, eta, strict=True):
            y = np.full(4, x)
            for _ in range(steps):
                total += rate * np.mean(a * (y.mean() - b)) ** 2
                largest = max(largest, np.max(np.abs(a * (y - b))))
                y = y - rate * a * (y - b)
            x = y.mean()
        constants = bounds.FedAvgConstants(
            a.max(), a.min(), first, largest, 4, heterogeneity=lowest
        )
        lemma = bounds.fedavg_gradients(constants, eta, K.astype(float))
        theorem = bounds.fedavg(constants, eta, K.astype(float))
        assert lemma.violated() == () and theorem.violated() == ()
        assert total <= lemma.value and total / np.sum(eta * K) <= theorem.value


# FedACG, without a proximal term ---------------------------------------------------------------------


def fedacg_rounds(rng, clients, cohort, K, lam, eta, sigma, runs=400, rounds=6):
    """Each round's left sides, means over runs, and the constants. f_i = a_i/2 ||x - b_i||^2 in 2-d."""
    a, b = rng.uniform(0.2, 1, clients), rng.normal(0, 1, (clients, 2))
    x, m = np.tile(rng.normal(0, 2, 2), (runs, 1)), np.zeros((runs, 2))

    def loss(x):
        return np.mean(a * np.sum((x[:, None] - b) ** 2, -1), -1) / 2

    def gradient(x):
        return np.mean(a[:, None] * (x[:, None] - b), axis=1)

    longest, seen = 0.0, []
    for _ in range(rounds):
        ahead, z = x + lam * m, x + lam / (1 - lam) * m
        y = np.repeat(ahead[:, None], clients, 1)
        exact = np.zeros_like(y)
        for _ in range(K):
            g = a[:, None] * (y - b)
            noise = sigma * rng.choice([-1.0, 1.0], y.shape[:2])
            noisy = g + noise[..., None] * np.array([1.0, 0.0])
            longest = max(longest, np.sqrt((noisy**2).sum(-1)).max(), np.sqrt((g**2).sum(-1)).max())
            exact, y = exact - eta * g, y - eta * noisy
        drawn = np.argsort(rng.random((runs, clients)), axis=1)[:, :cohort, None]
        update = np.take_along_axis(y - ahead[:, None], drawn, axis=1).mean(1)
        delta = exact.mean(1)
        longest = max(longest, np.sqrt((gradient(z) ** 2).sum(-1)).max())
        m = lam * m + update
        x = x + m
        new_z = x + lam / (1 - lam) * m
        seen.append([
            np.mean(loss(new_z) - loss(z)), np.mean(np.sum(gradient(ahead) ** 2, -1)),
            np.mean(np.sum((delta / eta + K * gradient(ahead)) ** 2, -1)),
            np.mean(np.sum((gradient(z) - gradient(ahead)) ** 2, -1)),
            np.mean(np.sum((update - delta) ** 2, -1)),
        ])  # fmt: skip
    constants = bounds.FedACGConstants(a.max(), None, clients, cohort, longest, sigma**2)
    return np.array(seen), constants


@pytest.mark.parametrize(
    ("clients", "cohort", "K", "lam", "sigma"),
    [(4, 4, 3, 0.5, 0.0), (6, 2, 4, 0.8, 0.5), (5, 1, 1, 0.9, 1.0), (3, 3, 8, 0.0, 0.3)],
)
def test_lemmas_1_to_4_of_fedacg_bound_every_round(clients, cohort, K, lam, sigma):
    rng, eta = np.random.default_rng(2), 0.5 * (1 - lam) / K
    seen, constants = fedacg_rounds(rng, clients, cohort, K, lam, eta, sigma)
    change, slope, drift, lookahead, sampling = seen.T
    descent = [bounds.fedacg_descent(constants, eta, lam, K, g) for g in slope]
    assert all(bound.violated() == () for bound in descent)
    assert np.all(change <= [bound.value for bound in descent])
    assert np.all(drift <= bounds.fedacg_drift(constants, eta, K).value)
    assert np.all(lookahead <= bounds.fedacg_lookahead(constants, eta, lam, K).value)
    assert np.all(sampling <= bounds.fedacg_sampling(constants, eta, K).value + 1e-30)


def test_lemmas_2_to_4_of_fedacg_are_reached():
    one = bounds.FedACGConstants(2.0, None, 1, 1, gradient_bound=3.0)
    # Lemma 2: a quadratic's gradient falls by the share eta L in each of many small steps.
    eta, K = 1e-8, 1000
    shares = (1 - eta * 2.0) ** np.arange(K)
    found = (3.0 * np.sum(1 - shares)) ** 2 / bounds.fedacg_drift(one, eta, K).value
    assert 0.74 < found < 0.751  # (sum k)^2 is 3/4 of K^4/3
    # Lemma 3: for a linear loss m tends to eta K G/(1-lambda); L^2 ||z - ahead||^2 is the value.
    lam, m = 0.6, 0.0
    for _ in range(80):
        m = lam * m + 0.1 * 5 * 3.0
    apart = 2.0**2 * (lam**2 / (1 - lam) * m) ** 2
    np.testing.assert_allclose(bounds.fedacg_lookahead(one, 0.1, lam, 5).value, apart)
    # Lemma 4: one client and one step, whose error is the noise.
    noisy = one._replace(noise_variance=0.7)
    np.testing.assert_allclose(bounds.fedacg_sampling(noisy, 0.1, 1).value, 0.1**2 * 0.7)
    # Small steps along a steep slope lose eta K/(1-lambda) ||grad F||^2, as Lemma 1 has it.
    descent = bounds.fedacg_descent(one, 1e-9, 0.5, 4, 9.0).value
    np.testing.assert_allclose(descent, -1e-9 * 4 / 0.5 * 9.0, rtol=1e-6)


def test_lemma_1_of_fedacg_is_what_equation_13_is_made_of():
    """Its B', divided by B at eta <= (1-lambda)/(2 L K), is all of (13) but the first term."""
    c = bounds.FedACGConstants(2.0, 1.0, 20.0, 5.0, gradient_bound=3.0, noise_variance=0.7)
    lam, K, rounds, scale = 0.6, 4, 1e6, 0.5
    eta = bounds.fedacg_learning_rate(c, scale, lam, K, rounds)
    excess = bounds.fedacg_descent(c, eta, lam, K, 0.0).value
    theorem = bounds.fedacg_nonconvex(c, scale, lam, K, rounds)
    rest = theorem.value - theorem.terms["initial"]
    np.testing.assert_allclose(2 * (1 - lam) / (eta * K) * excess, rest)


# FedACG with exact solutions of clients' problems ------------------------------------------------------


def proximal_rounds(rng, clients, agree, beta, lam, rounds=40):
    """(eps_t, ||x_t - x_{t-1}||^2, ||x_t - x*||^2, f(x_t) - f*) for all clients, and the constants."""
    a, b = rng.uniform(0.2, 1, clients), rng.normal(0, 0 if agree else 1, (clients, 3))
    optimum = np.sum(a[:, None] * b, 0) / a.sum()
    x, m = rng.normal(0, 2, 3), np.zeros(3)
    seen = [[0.0, 0.0, np.sum((x - optimum) ** 2), a.mean() * np.sum((x - optimum) ** 2) / 2]]
    for _ in range(rounds):
        y = (a[:, None] * b + beta * (x + lam * m)) / (a[:, None] + beta)
        eps, m = np.mean(np.sum((y - x) ** 2, -1)), y.mean(0) - x
        x = x + m
        away = np.sum((x - optimum) ** 2)
        seen.append([eps, np.sum(m**2), away, a.mean() * away / 2])
    gradients = np.mean(a**2 * np.sum((optimum - b) ** 2, -1))
    return np.array(seen), bounds.FedACGConstants(a.max(), optimal_gradients_squared=gradients)


@pytest.mark.parametrize("lam", [0.1, 0.7])
@pytest.mark.parametrize("agree", [True, False])
def test_lemmas_7_and_9_of_fedacg(agree, lam):
    for seed in range(10):
        seen, constants = proximal_rounds(np.random.default_rng(seed), 5, agree, 4.0, lam)
        drift, moved, _, gap = seen.T
        assert np.all(moved <= drift + 1e-15)
        for t in range(1, len(seen)):
            bound = bounds.fedacg_convex_drift(constants, 4.0, lam, drift[t - 1], gap[t - 1])
            assert drift[t] <= bound.value and bound.holds
        # As printed, without the disagreement at x*, it fails where clients disagree.
        last = bounds.fedacg_convex_drift(constants, 4.0, lam, drift[-2], gap[-2])
        if lam == 0.1 and not agree:
            assert drift[-1] > 2 * (last.value - last.terms["disagreement"])
    # Lemma 7 is an equality for clients that are all alike.
    alike, _ = proximal_rounds(np.random.default_rng(0), 1, True, 4.0, 0.7)
    np.testing.assert_allclose(alike[1:, 0], alike[1:, 1])


def test_lemma_6_of_fedacg_is_false_where_clients_disagree_and_says_so():
    seen, constants = proximal_rounds(np.random.default_rng(3), 5, False, 2.5, 0.6, rounds=400)
    drift, _, away, gap = seen.T
    bound = bounds.fedacg_convex_descent(constants, 2.5, 0.6, away[-2], drift[-2], gap[-2])
    kappa = float(bound.terms["drift"] / drift[-2])
    assert bound.violated() == ("grad f_i(x*) = 0",)
    assert away[-1] + kappa * drift[-1] > bound.value
    # kappa and kappa_0 as they are printed.
    L, beta, lam = constants.smoothness, 2.5, 0.6
    below = beta**2 - 4 * L**2 - 4 * beta**2 * lam**2
    top = L - beta - beta * lam
    np.testing.assert_allclose(kappa, 4 * beta * lam**2 * top / (below * (1 - lam)))
    kappa_0 = 2 / (beta * (1 - lam)) * (4 * L * top / below - 1)
    np.testing.assert_allclose(bound.terms["loss"], -kappa_0 * gap[-2])


# GHBM ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1, 2, 5])
def test_heavy_ball_is_the_momentum_over_tau_rounds(tau):
    rng, eta, beta = np.random.default_rng(4), 0.1, 0.8
    models, momenta = [rng.normal(0, 1, 3)] * (tau + 1), [np.zeros(3)] * tau
    for _ in range(12):
        g = rng.normal(0, 1, 3) + models[-1]
        momenta.append(beta / tau * np.sum(momenta[-tau:], axis=0) + g)
        by_momentum = models[-1] - eta * momenta[-1]
        found = bounds.ghbm_heavy_ball(np.stack(models[-tau - 1 :]), g, eta, beta)
        np.testing.assert_allclose(found, by_momentum, rtol=1e-12)
        models.append(by_momentum)


class Run:
    """GHBM's form in theory on quadratics in 2-d, clients taking turns; means over runs."""

    def __init__(self, seed, beta, eta, local_rate, tau=4, J=3, sigma=0.0, runs=200, rounds=30):
        rng, per = np.random.default_rng(seed), 2
        clients = tau * per
        a, b = rng.uniform(0.3, 1, clients), rng.normal(0, 1, (clients, 2))
        self.constants = bounds.GHBMConstants(
            a.max(), 0.0, clients, 1 / tau, noise_variance=sigma**2
        )
        x, m = np.tile(rng.normal(0, 2, 2), (runs, 1)), np.zeros((runs, 2))
        recent = []

        def loss(x):
            return np.mean(a * np.sum((x[:, None] - b) ** 2, -1), -1) / 2

        def gradient(x, of=slice(None)):
            return np.mean(a[of, None] * (x[:, None] - b[of]), axis=1)

        def mean_square(v):
            return np.mean(np.sum(v**2, -1))

        self.slopes, self.errors = [mean_square(gradient(x))], [mean_square(gradient(x) - m)]
        self.deviations, self.changes, self.firsts, self.drifts = [], [], [], []
        self.initial = []
        for t in range(rounds):
            of = np.arange(per) + per * (t % tau)
            slopes = a[:, None] * (x[:, None] - b)
            self.firsts.append(mean_square(local_rate * ((1 - beta) * m[:, None] + beta * slopes)))
            if t < tau:
                self.initial.append(mean_square(slopes[:, of]))
            y, used, drift = np.repeat(x[:, None], clients, 1), np.zeros((runs, clients, 2)), []
            for _ in range(J):
                drift.append(mean_square(y - x[:, None]))
                noise = sigma * rng.choice([-1.0, 1.0], y.shape[:2])[..., None]
                g = a[:, None] * (y - b) + noise * np.array([1.0, 0.0])
                used += g / J
                y = y - local_rate * (beta * g + (1 - beta) * m[:, None])
            self.drifts.append(np.mean(drift))
            recent = [*recent, used[:, of].mean(1)][-tau:]
            estimate = np.sum(recent, axis=0) / tau
            m = (1 - beta) * m + beta * estimate
            self.deviations.append(mean_square(gradient(x) - estimate))
            self.errors.append(mean_square(gradient(x) - m))
            new = x - eta * m
            self.changes.append(np.mean(loss(new) - loss(x)))
            self.slopes.append(mean_square(gradient(x)))
            x = new


@pytest.mark.parametrize(("beta", "sigma"), [(1.0, 0.0), (0.5, 0.4), (0.2, 1.0)])
def test_lemmas_b5_to_b8_of_ghbm(beta, sigma):
    for seed in range(3):
        eta, local_rate = min(beta / 4, 1 / 24), 0.05
        run = Run(seed, beta, eta, local_rate, sigma=sigma)
        c = run.constants
        # E_t and the gradients from t = 0 on, whose x_{-1} is x_0.
        bound = bounds.ghbm_update_errors(
            c, beta, eta, run.errors[0], run.slopes[:-1], run.deviations
        )
        assert bound.holds and np.sum(run.errors[1:]) <= bound.value * (1 + 1e-12)
        if beta == 1.0:  # then m is the estimate
            np.testing.assert_allclose(bound.value, np.sum(run.errors[1:]))
        for first, drift in zip(run.firsts, run.drifts, strict=True):
            allowed = bounds.ghbm_drift(c, 3, local_rate, beta, first)
            assert allowed.holds and drift <= allowed.value
        steps = bounds.ghbm_first_steps(
            c, 4, eta, local_rate, beta, max(run.initial), run.slopes[:-1], run.errors[:-1]
        )
        assert steps.violated() == () and np.sum(run.firsts) <= steps.value
        for t, change in enumerate(run.changes):
            descent = bounds.ghbm_descent(c, eta, run.slopes[t + 1], run.errors[t + 1])
            assert descent.holds and change <= descent.value


def test_lemma_b8_of_ghbm_is_nearly_reached():
    """On a quadratic with m = rho f': f(x - eta m) - f(x) against it, at the eta that is allowed."""
    eta = 1 / 24
    ratios = []
    for rho in np.linspace(-3, 5, 81):
        change = ((1 - eta * rho) ** 2 - 1) / 2
        bound = float(
            bounds.ghbm_descent(bounds.GHBMConstants(1.0, 1.0, 1), eta, 1.0, (1 - rho) ** 2).value
        )
        assert change <= bound + 1e-15
        ratios.append((bound - change) / eta)
    # In units of eta ||f'||^2, where 13/12 (1 - rho) = 1 - eta rho.
    rho = (13 / 12 - 1) / (13 / 12 - eta)
    least = -11 / 24 + 13 / 24 * (1 - rho) ** 2 + rho - eta * rho**2 / 2
    np.testing.assert_allclose(min(ratios), least, rtol=5e-3)
    assert least < 0.09


def test_conditions_are_named():
    c = bounds.GHBMConstants(1.0, 1.0, 8, participation=0.25)
    assert bounds.ghbm_descent(c, 0.1, 1.0, 1.0).violated() == ("eta <= 1/(24 L)",)
    assert bounds.ghbm_drift(c, 10, 0.5, 0.5, 1.0).violated() == ("eta_l L <= 1/(beta J)",)
    late = bounds.ghbm_first_steps(c, 3, 0.1, 0.1, 0.5, 1.0, [1.0] * 4, [1.0] * 4)
    assert late.violated() == ("tau C = 1", "T >= 2 tau + 1")
    wild = bounds.ghbm_update_errors(c, 0.5, 0.5, 1.0, [1.0], [1.0])
    assert wild.violated() == ("c < 1",) and np.isinf(wild.value)
    near = bounds.FedACGConstants(1.0, None, 4, 5, gradient_bound=1.0)
    assert bounds.fedacg_convex_drift(near, 1.5, 0.6, 1.0, 1.0).violated() == ("beta > 2 L",)
    assert bounds.fedacg_sampling(near, 0.1, 2).violated() == ("|S| <= N",)
    few = bounds.FedAvgConstants(1.0, 0.5, 1.0, 0.1, 10)
    assert bounds.fedavg_distance(few, 0.1, 2, 1.0, num_clients=5).violated() == ("N <= C",)
