"""All theorems with what their papers derive in plain NumPy, and random constants for them.

A family draws arguments for its theorems. A theorem is a call of the library, and the same value written
from the page; the tests give it the arguments in extended precision.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_opt import bounds
from tests.bounds.fedavg_problems import by_rounds, by_runtime, numpy_terms


class Theorem(NamedTuple):
    call: Callable
    paper: Callable


class Family(NamedTuple):
    """`draw(generator, count, extreme)` -> arguments; both functions of a theorem take all of them."""

    draw: Callable
    theorems: dict[str, Theorem]


def powers(rng, count):
    """Random numbers over orders of magnitude, and the same that are sometimes 0."""

    def between(low, high):
        return 10 ** rng.uniform(low, high, count)

    def sometimes(values, share=0.1):
        return np.where(rng.random(count) < share, 0.0, values)

    return between, sometimes


# FedAvg ---------------------------------------------------------------------------------------


def draw_fedavg(rng, count, extreme):
    """Constants, link, eta, K, W (or R, or T) and a schedule `[count, 5]`."""
    between, _ = powers(rng, count)
    L = between(-4, 8) if extreme else between(-2, 2)
    loss = between(-3, 6) if extreme else between(-1, 1)
    constants = bounds.FedAvgConstants(
        smoothness=L,
        strong_convexity=L / (between(0, 8) if extreme else between(0, 2)),
        initial_loss=loss,
        gradient_bound=between(-4, 6) if extreme else between(-2, 1),
        cohort_size=np.floor(between(0, 4)),
        optimal_loss=loss * rng.random(count),
        noise=between(-6, 8) if extreme else between(-2, 1),
        heterogeneity=between(-6, 6) if extreme else between(-2, 1),
    )
    link = bounds.Link(between(-1, 2), between(0, 2), between(0, 2), between(-3, 0))
    eta = 0.25 / L * between(-4, 0)
    schedule = np.sort(np.ceil(between(0, 4)[:, None] * rng.random((count, 5))))[:, ::-1]
    steps, time = np.ceil(between(0, 6 if extreme else 3)), between(0, 9 if extreme else 4)
    return constants, link, eta, steps, time, schedule


def paper_schedule(c, eta, schedule):
    """Theorem 1, with T = sum K_r."""
    total = schedule.sum(-1)
    return sum(numpy_terms(c, eta, (1 / total,), np.sqrt((schedule**3).sum(-1) / total)))


def falling(eta, schedule):
    """A learning rate for each round of a schedule, that falls as K does."""
    return (eta[..., None] if np.ndim(eta) else eta) * (schedule / schedule[..., :1])


def paper_of_two_schedules(c, eta, K):
    """As A.2 has it before eta_r = eta, with 8 + 4/N for 16 and with its kappa F(x_0) - F*."""
    eta, kappa = falling(eta, K), c.smoothness / c.strong_convexity
    taken, scale = (eta * K).sum(-1), kappa * c.smoothness
    spread = c.noise + 6 * c.smoothness * c.heterogeneity
    drift = (8 + 4 / c.cohort_size) * c.gradient_bound**2 * (eta**2 * K**3).sum(-1)
    gap = kappa * c.initial_loss - c.optimal_loss
    return (2 * kappa * gap + scale * (spread * (eta**2 * K).sum(-1) + drift)) / taken


def paper_lemma_1(c, eta, K, distance):
    """(16), for 5 times as many clients as there are in a round."""
    N = c.cohort_size
    G, share = c.gradient_bound**2, 4 * N / (5 * N - 1)
    drift = 8 * (K - 1) ** 2 * G + share * 4 / N * K**2 * G
    spread = c.noise + 6 * c.smoothness * c.heterogeneity
    return (1 - eta * c.strong_convexity) * distance + eta**2 * (spread + drift)


def paper_lemma_2(c, eta, K):
    """(17), with K_t inside of the sum."""
    eta, kappa = falling(eta, K), c.smoothness / c.strong_convexity
    N, G = c.cohort_size[..., None], c.gradient_bound[..., None] ** 2
    spread = (c.noise + 6 * c.smoothness * c.heterogeneity)[..., None]
    each = spread + 8 * (K - 1) ** 2 * G + 4 / N * K**2 * G
    first = 2 * kappa * (kappa * c.initial_loss - c.optimal_loss)
    return first + kappa * c.smoothness * (eta**2 * K * each).sum(-1)


FEDAVG = Family(
    draw_fedavg,
    {
        "two schedules": Theorem(
            lambda c, link, eta, K, W, schedule: bounds.fedavg(c, falling(eta, schedule), schedule),
            lambda c, link, eta, K, W, schedule: paper_of_two_schedules(c, eta, schedule),
        ),
        "lemma 1": Theorem(
            lambda c, link, eta, K, W, _: bounds.fedavg_distance(c, eta, K, W, 5 * c.cohort_size),
            lambda c, link, eta, K, W, _: paper_lemma_1(c, eta, K, W),
        ),
        "lemma 2": Theorem(
            lambda c, link, eta, K, W, s: bounds.fedavg_gradients(c, falling(eta, s), s),
            lambda c, link, eta, K, W, s: paper_lemma_2(c, eta, s),
        ),
        "schedule": Theorem(
            lambda c, link, eta, K, W, schedule: bounds.fedavg(c, eta, schedule),
            lambda c, link, eta, K, W, schedule: paper_schedule(c, eta, schedule),
        ),
        "rounds": Theorem(
            lambda c, link, eta, K, R, _: bounds.fedavg(c, eta, K, bounds.Rounds(R)),
            lambda c, link, eta, K, R, _: sum(by_rounds(c, eta, K, R)),
        ),
        "seconds": Theorem(
            lambda c, link, eta, K, W, _: bounds.fedavg(c, eta, K, bounds.Seconds(W, link)),
            lambda c, link, eta, K, W, _: sum(by_runtime(c, link, eta, K, W)),
        ),
    },
)

# FedGBO ---------------------------------------------------------------------------------------


def draw_fedgbo(rng, count, extreme=False):
    """Constants, eta~, beta, K and T."""
    between, _ = powers(rng, count)
    constants = bounds.FedGBOConstants(
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


def y_of(c, K):
    scale = c.gradient_bound**2 + c.dissimilarity**2 + c.noise_variance / K
    return 18 * c.update_bound**2 * c.smoothness**2 * scale


def fedgbo_theorem_1(c, eta, beta, K, T):
    less, Y = T - beta / (1 - beta), y_of(c, K)
    momentum = 2 * T * eta * c.smoothness * (1 + beta) * (c.gradient_bound**2 + eta**2 * Y)
    return (
        2 * (1 - beta) / (eta * less) * (c.initial_loss - c.optimal_loss)
        + T * eta**2 * Y / less
        + momentum / (less * (1 - beta) ** 2)
    )


def fedgbo_corollary_1(c, C, b, K, T):
    Z = 4 * C**2 * (1 - b) ** 2 * y_of(c, K)
    momentum = 4 * C * c.smoothness * (1 + b) * (c.gradient_bound**2 + Z / T)
    gap = (c.initial_loss - c.optimal_loss) / (C * np.sqrt(T))
    return gap + momentum / ((1 - b) * np.sqrt(T)) + Z / T


def fedgbo_lemma_1(c, eta, beta, K, T):
    return 2 * (c.gradient_bound**2 + eta**2 * y_of(c, K)) / (1 - beta) ** 2


def fedgbo_equation_3(c, eta, beta, K, gradient):
    """With the 18, and beta^2 ||m||^2 = beta ||g||^2."""
    scale = gradient + c.dissimilarity**2 + c.noise_variance / K
    step = (c.smoothness * eta) ** 2
    return 18 * step * (c.update_bound**2 * scale + beta * gradient)


FEDGBO = Family(
    draw_fedgbo,
    {
        "theorem": Theorem(bounds.fedgbo, fedgbo_theorem_1),
        "corollary": Theorem(bounds.fedgbo_corollary, fedgbo_corollary_1),
        "momentum": Theorem(
            lambda c, eta, beta, K, T: bounds.fedgbo_momentum(c, eta, beta, K), fedgbo_lemma_1
        ),
        "normalised momentum": Theorem(
            lambda c, eta, beta, K, T: bounds.fedgbo_momentum(c, eta, beta, K, normalised=True),
            lambda c, eta, beta, K, T: (1 - beta) ** 2 * fedgbo_lemma_1(c, eta, beta, K, T),
        ),
        "perturbation": Theorem(
            lambda c, eta, b, K, g: bounds.fedgbo_perturbation(c, eta, K, g, b * g),
            fedgbo_equation_3,
        ),
        "longest gradients": Theorem(
            lambda c, eta, beta, K, T: bounds.fedgbo_perturbation(c, eta, K),
            lambda c, eta, beta, K, T: eta**2 * y_of(c, K),
        ),
    },
)

# GHBM -----------------------------------------------------------------------------------------


def draw_ghbm(rng, count, extreme=False):
    """Constants, tau, ||grad f||^2, J, T, the share of the unseen, and rows of four, three and three."""
    between, _ = powers(rng, count)
    constants = bounds.GHBMConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-1, 3),
        num_clients=np.ceil(between(1, 4)),
        participation=between(-2, -0.5),
        noise_variance=between(-3, 3),
        dissimilarity=between(-3, 2),
        optimal_loss=-between(-3, 1),
    )
    # tau C from 0.1 to 0.9, and T up to a billion.
    tau = rng.uniform(0.1, 0.9, count) / constants.participation
    rounds = np.ceil(between(1, 9 if extreme else 4))
    steps, gradient = np.ceil(between(0, 2)), between(-3, 2)
    return constants, tau, gradient, steps, rounds, rng.uniform(0.1, 1, count)


def of_unseen(c, unseen_squared, gradient):
    return 8 * unseen_squared * (c.dissimilarity**2 + gradient)


def unseen_share(c, tau):
    """E[(U/N)^2] by the probabilities that one client, and that two, are missed tau times."""
    N, S = c.num_clients, c.num_clients * c.participation
    one = 1 - S / N
    return (one**tau + (N - 1) * (one * np.maximum(1 - S / (N - 1), 0)) ** tau) / N


def ghbm_theorem_4_7(c, tau, g, J, T, unseen):
    gap = c.smoothness * (c.initial_loss - c.optimal_loss) / T
    return gap + np.sqrt(gap * c.noise_variance / (c.num_clients * J))


def _pair(x):
    return jnp.stack([x, 2 * x], axis=-1)


def ghbm_lemma_b5(c, tau, g, J, T, beta):
    """With eta L = beta/4, for which v = (1-beta) (beta^2 + 2 beta)/8."""
    carried = (1 - beta) * (beta**2 + 2 * beta) / 8
    kept = (1 - beta) * (1 + beta / 2) + carried
    return (kept * g + 3 * carried * g + 3 * beta * J) / (1 - kept)


def ghbm_lemma_b6(c, tau, g, J, T, beta):
    step = 0.5 * beta / c.smoothness
    noise = J * step**2 * c.noise_variance * (1 + 2 * J**3 * step**2 * c.smoothness**2)
    return 2 * np.exp(np.longdouble(2)) * J**2 * g + noise


def ghbm_equation_116(c, tau, g, J, T, beta):
    """Of two rounds with eta L = 0.1 and eta_l L = 0.5; G_tau is J."""
    e, step = np.exp(np.longdouble(1)), 0.5 / c.smoothness
    weight = (1 - beta) ** 2 + e * (0.2 * beta) ** 2
    momentum = 4 * step**2 * weight * 3 * (g + beta)
    return momentum + 2 * e * step**2 * beta**2 * (tau + 1) * 2 * J


GHBM = Family(
    draw_ghbm,
    {
        "deviation": Theorem(
            lambda c, tau, g, J, T, u: bounds.ghbm_momentum_deviation(c, tau, g, u),
            lambda c, tau, g, J, T, u: of_unseen(c, u, g),
        ),
        "deviation of random cohorts": Theorem(
            lambda c, tau, g, J, T, u: bounds.ghbm_momentum_deviation(c, tau, g),
            lambda c, tau, g, J, T, u: of_unseen(c, unseen_share(c, tau), g),
        ),
        "cyclic": Theorem(
            lambda c, tau, g, J, T, u: bounds.ghbm_cyclic_deviation(c, tau, g),
            lambda c, tau, g, J, T, u: of_unseen(c, (1 - tau * c.participation) ** 2, g),
        ),
        "rate": Theorem(lambda c, tau, g, J, T, u: bounds.ghbm_rate(c, J, T), ghbm_theorem_4_7),
        "update errors": Theorem(
            lambda c, tau, g, J, T, u: bounds.ghbm_update_errors(
                c, u, u / (4 * c.smoothness), g, _pair(g), _pair(J)
            ),
            ghbm_lemma_b5,
        ),
        "drift": Theorem(
            lambda c, tau, g, J, T, u: bounds.ghbm_drift(c, J, 0.5 / c.smoothness, u, g),
            ghbm_lemma_b6,
        ),
        "first steps": Theorem(
            lambda c, tau, g, J, T, u: bounds.ghbm_first_steps(
                c, tau + 1, 0.1 / c.smoothness, 0.5 / c.smoothness, u, J, _pair(g), _pair(u)
            ),
            ghbm_equation_116,
        ),
    },
)

# FedACG ---------------------------------------------------------------------------------------


def draw_fedacg(rng, count, extreme=False):
    """Constants, C, lambda, K and T."""
    between, _ = powers(rng, count)
    clients = np.ceil(between(0.5, 4))
    constants = bounds.FedACGConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-1, 3),
        num_clients=clients,
        cohort_size=np.maximum(
            np.floor(clients * rng.uniform(0.01, 0.9, count)), 1
        ),  # N > |S|: P has a kink
        gradient_bound=between(-2, 2),
        noise_variance=between(-3, 2),
        optimal_loss=-between(-3, 1),
        distance_squared=between(-3, 3),
        gradients_squared=between(-3, 3),
        optimal_gradients_squared=between(-3, 3),
    )
    scale = between(-3, 1) / constants.smoothness
    lam = rng.uniform(0.01, 0.99, count)
    rounds = np.ceil(between(1, 9 if extreme else 5))
    return constants, scale, lam, np.ceil(between(0, 2)), rounds


def fedacg_lemmas(c, eta, lam, K):
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


def fedacg_rate(c, scale, lam, K, T):
    return np.minimum((1 - lam) / (2 * c.smoothness * K), scale / np.sqrt(T))


def fedacg_equation_12(c, scale, lam, K, T):
    """(12) for eta, and its second term, linear in eta, at the larger C/sqrt(T)."""
    gap, size = c.initial_loss - c.optimal_loss, scale / np.sqrt(T)
    first = 2 * gap * (1 - lam) / (fedacg_rate(c, scale, lam, K, T) * K * T)
    return first + 2 * (1 - lam) / (size * K) * fedacg_lemmas(c, size, lam, K)


def fedacg_theorem_2(c, beta, lam, T):
    return (beta * (1 - lam) * c.distance_squared + lam / beta * c.gradients_squared) / T


def fedacg_theorem_1(c, scale, lam, K, T):
    rest = c.smoothness * c.distance_squared + c.gradients_squared / c.smoothness
    return np.sqrt(lam * (1 - lam)) / T * rest


def fedacg_p(c):
    N, S = c.num_clients, c.cohort_size
    return 4 * N / (S * (N - 1)) * (1 - S / N)


FEDACG = Family(
    draw_fedacg,
    {
        "nonconvex": Theorem(bounds.fedacg_nonconvex, fedacg_equation_12),
        "convex": Theorem(
            lambda c, scale, lam, K, T: bounds.fedacg_convex(c, c.smoothness * K, lam, T),
            lambda c, scale, lam, K, T: fedacg_theorem_2(c, c.smoothness * K, lam, T),
        ),
        "lemma 2": Theorem(
            lambda c, scale, lam, K, T: bounds.fedacg_drift(c, scale, K),
            lambda c, eta, lam, K, T: (eta * c.smoothness * K**2 * c.gradient_bound) ** 2 / 3,
        ),
        "lemma 3": Theorem(
            lambda c, scale, lam, K, T: bounds.fedacg_lookahead(c, scale, lam, K),
            lambda c, eta, lam, K, T: (
                lam**4
                / (1 - lam) ** 4
                * (eta * c.smoothness * K) ** 2
                * (c.gradient_bound**2 * (1 + fedacg_p(c)) + c.noise_variance)
            ),
        ),
        "lemma 4": Theorem(
            lambda c, scale, lam, K, T: bounds.fedacg_sampling(c, scale, K),
            lambda c, eta, lam, K, T: (
                eta**2 * K**2 * (c.noise_variance + fedacg_p(c) * c.gradient_bound**2)
            ),
        ),
        "lemma 9": Theorem(
            lambda c, scale, lam, K, T: bounds.fedacg_convex_drift(
                c, c.smoothness * (K + 2), lam, scale, T
            ),
            lambda c, scale, lam, K, T: (
                (
                    4 * lam**2 * scale
                    + 8 * T / (c.smoothness * (K + 2) ** 2)
                    + 4 * c.optimal_gradients_squared / (c.smoothness * (K + 2)) ** 2
                )
                / (1 - 4 / (K + 2) ** 2)
            ),
        ),
        "main text": Theorem(
            lambda c, scale, lam, K, T: bounds.fedacg_convex_main_text(c, lam, T), fedacg_theorem_1
        ),
    },
)

# Rates ----------------------------------------------------------------------------------------


def draw_rates(rng, count, extreme=False):
    between, _ = powers(rng, count)
    constants = bounds.RateConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-1, 3),
        num_clients=np.ceil(between(1, 4)),
        local_steps=np.ceil(between(0, 2)),
        rounds=np.ceil(between(1, 9 if extreme else 5)),
        participation=between(-2, -0.01),
        noise_variance=between(-3, 3),
        dissimilarity=between(-2, 2),
        gradient_bound=between(-2, 2),
        optimal_loss=-between(-3, 1),
    )
    return (constants,)


def table_1(c):
    """The rows of Table 1, with |S| for N and Delta for the gap, as it prints them."""
    L, D, s2, S = c.smoothness, c.initial_loss - c.optimal_loss, c.noise_variance, c.num_clients
    C, J, T, zeta, G = c.participation, c.local_steps, c.rounds, c.gradient_bound, c.dissimilarity
    full = (L * D * s2 / (S * J * T)) ** 0.5 + L * D / T
    third = np.longdouble(1) / 3
    spread = np.sqrt(s2) / J**0.5 + (S * C) ** 0.5 * (zeta + G)
    return {
        "FedAvg, all clients": full,
        "FedAvg": (L * D * s2 / (S * C * J * T)) ** 0.5 + L * D / T,
        "FedCM": (L * D * (s2 + S * C * J * zeta**2) / (S * C * J * T)) ** 0.5
        + (L * D * spread / ((S * C) ** 0.5 * T)) ** (2 * third),
        "FedCM, all clients": full,
        "SCAFFOLD-M": (L * D * s2 / (S * C * J * T)) ** 0.5
        + L * D / T * (1 + S ** (2 * third) / (S * C)),
        "GHBM": full,
    }


def _row(name):
    return Theorem(lambda c: bounds.rates(c)[name], lambda c: table_1(c)[name])


NAMES = ("FedAvg, all clients", "FedAvg", "FedCM", "FedCM, all clients", "SCAFFOLD-M", "GHBM")
RATES = Family(draw_rates, {name: _row(name) for name in NAMES})

FAMILIES = {"fedavg": FEDAVG, "fedgbo": FEDGBO, "ghbm": GHBM, "fedacg": FEDACG, "rates": RATES}
