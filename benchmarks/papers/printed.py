"""Forms that the papers print and that their own derivations contradict, in plain NumPy.

docs/errata.md says why each is wrong; tests show that what is derived is another thing. Arguments are as
in `fedjax_opt.bounds`. Mills et al. (2023) is decaying K, Mills et al. (2022) FedGBO.
"""

import numpy as np


def _gap(c):
    return c.smoothness / c.strong_convexity * c.initial_loss - c.optimal_loss


def local_steps_9(c, learning_rate, seconds):
    """Mills et al. (2023), equation 9: without G^2, and with |x|/D twice."""
    link = seconds.link
    return local_steps_10(
        c, learning_rate, seconds.seconds / (2 * link.megabits / link.download_mbps)
    )


def local_steps_10(c, learning_rate, rounds):
    """Mills et al. (2023), equation 10: without G^2."""
    weight = 8 * learning_rate**2 * c.smoothness * (1 + 1 / (2 * c.cohort_size))
    return np.cbrt(_gap(c) / (weight * rounds))


def learning_rate_11(c, local_steps, seconds):
    """Mills et al. (2023), equation 11: without K below the line."""
    link = seconds.link
    a_round = link.communication_seconds + link.seconds_per_step * local_steps
    return learning_rate_12(c, local_steps, seconds.seconds / a_round)


def learning_rate_12(c, local_steps, rounds):
    """Mills et al. (2023), equation 12: without K below the line."""
    drift = (8 + 4 / c.cohort_size) * c.gradient_bound**2 * local_steps**2
    Z = c.noise + 6 * c.smoothness * c.heterogeneity + drift
    return np.sqrt(2 * _gap(c) / (c.smoothness * Z) / rounds)


def fedgbo_momentum_term(bound, momentum):
    """Mills et al. (2022), appendix: the last term of Theorem 1 with (1-beta) for (1-beta)^2."""
    return bound.terms["momentum"] * (1 - momentum)


def fedgbo_perturbation(bound):
    """Mills et al. (2022), equation 3: without the 18."""
    return bound.value / 18


def ghbm_server_learning_rate(c, gradient_weight):
    """Zaccone et al. (2024), equation 122: sqrt(8 L) for sqrt(8) L."""
    beta = np.asarray(gradient_weight)
    return np.minimum(1 / (24 * c.smoothness), beta / np.sqrt(8 * c.smoothness))


def ghbm_momentum_error(bound, tau):
    """Zaccone et al. (2024), Lemma 4.6: 2 for tau - 1 in the lag."""
    return bound.value + (2 / (tau - 1) - 1) * bound.terms["lag"]


def fedacg_nonconvex(c, scale, momentum, local_steps, rounds):
    """Kim et al. (2024), (13): no 1/K in the first term, and B'' as it stands; its parts by name."""
    L, G2, N, S = c.smoothness, c.gradient_bound**2, c.num_clients, c.cohort_size
    lam, K, size = momentum, local_steps, scale / np.sqrt(rounds)
    largest = np.maximum(2 * L * K / (1 - lam), np.sqrt(rounds) / scale)
    carried = L * lam**4 * K**2 / (2 * (1 - lam) ** 2)
    sampling = 4 * N / (S * (N - 1)) * (1 - S / N)
    of_gradients = (1 + L**2 * K**4 / 3) * (1 - lam) + carried
    of_gradients = of_gradients + (1 + sampling) * (L * K**2 + carried)
    of_noise = L * K**2 / 2 * (2 + lam**4 / (1 - lam**2))
    return {
        "initial": 2 * (c.initial_loss - c.optimal_loss) * (1 - lam) / rounds * largest,
        "gradient": size * of_gradients * G2 / ((1 - lam) * K),
        "noise": size * of_noise * c.noise_variance / ((1 - lam) * K),
    }
