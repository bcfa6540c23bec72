"""What the tests of FedAvg's bounds share: the bound in plain NumPy, and federations of quadratics.

A federation's constants are known exactly. Client c has f_c(x) = (x - b_c)^T H_c (x - b_c)/2 + a_c, and
its stochastic gradient adds one of the 2d vectors +-sigma_c e_j, all equally likely: their mean is 0,
and their squared length is sigma_c^2.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo
from fedjax_opt import bounds

# These programs are compiled for one run or two: a fast compiler is better than fast code.
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
ONE = bounds.FedAvgConstants(
    smoothness=2.0,
    strong_convexity=0.5,
    initial_loss=3.0,
    gradient_bound=1.5,
    cohort_size=4,
    optimal_loss=1.0,
    noise=0.7,
    heterogeneity=0.3,
)
LINK = bounds.Link(megabits=6.0, download_mbps=20.0, upload_mbps=5.0, seconds_per_step=0.1)
CLIENTS, DIMENSION = 5, 4
SHARES = [1, 1, 2, 3, 3]  # how many times each client holds its 2d examples


def log_uniform(generator, low, high, count):
    return np.exp(generator.uniform(np.log(low), np.log(high), count))


def random_constants(count, seed):
    """Constants over many orders of magnitude; noise and heterogeneity are sometimes absent."""
    generator = np.random.default_rng(seed)

    def draw(low, high):
        return log_uniform(generator, low, high, count)

    def sometimes(values):
        return np.where(generator.random(count) < 0.2, 0.0, values)

    L, F0 = draw(1e-4, 1e8), draw(1e-4, 1e6)
    return bounds.FedAvgConstants(
        smoothness=L,
        strong_convexity=L / draw(1.0, 1e8),
        initial_loss=F0,
        gradient_bound=draw(1e-4, 1e6),
        cohort_size=np.floor(draw(1.0, 1e4)),
        optimal_loss=sometimes(F0 * generator.random(count)),
        noise=sometimes(draw(1e-6, 1e8)),
        heterogeneity=sometimes(draw(1e-6, 1e4)),
    )


def random_link(count, seed):
    generator = np.random.default_rng(seed)
    return bounds.Link(
        megabits=log_uniform(generator, 0.01, 1e5, count),
        download_mbps=log_uniform(generator, 0.01, 1e4, count),
        upload_mbps=log_uniform(generator, 0.01, 1e4, count),
        seconds_per_step=log_uniform(generator, 1e-5, 100.0, count),
    )


def numpy_terms(constants, eta, seconds_per_iteration, steps):
    """(8) from the paper's page, term by term; T = 1/(time of an iteration) in a unit of time."""
    L, mu, F0, G, N, F_star, noise, gamma = (np.asarray(x) for x in constants)
    kappa = L / mu
    A = kappa * F0 - F_star
    return [
        *(2 * kappa * A * part / eta for part in seconds_per_iteration),
        eta * kappa * L * noise,
        eta * kappa * L * 6 * L * gamma,
        eta * kappa * L * 8 * G**2 * steps**2,
        eta * kappa * L * 4 / N * G**2 * steps**2,
    ]


def by_runtime(constants, link, eta, steps, seconds):
    """The terms of (8) after W seconds: an iteration takes (|x|/D + |x|/U)/K + beta of them."""
    size, D, U, beta = (np.asarray(x) for x in link)
    times = (size / D / steps / seconds, size / U / steps / seconds, beta / seconds)
    return numpy_terms(constants, eta, times, steps)


def by_rounds(constants, eta, steps, rounds):
    return numpy_terms(constants, eta, (1 / (steps * rounds),), steps)


# ----------------------------------------------------------------------------------------------


class Federation(NamedTuple):
    """Quadratics of `[CLIENTS]` clients, and where training starts; with a leading axis, many."""

    curvature: Any  # H_c
    centre: Any  # b_c
    offset: Any  # a_c
    sigma: Any
    weight: Any  # p_c
    start: Any  # x_0


def random_federations(count, seed, uniform=False):
    """Federations whose heterogeneity, noise, condition and start vary over orders of magnitude."""
    generator = np.random.default_rng(seed)
    shape = (count, CLIENTS)
    rotation = np.linalg.qr(generator.normal(size=(*shape, DIMENSION, DIMENSION)))[0]
    L = log_uniform(generator, 0.1, 10.0, count)
    kappa = log_uniform(generator, 1.0, 30.0, count)
    eigenvalues = (L / kappa ** generator.random((DIMENSION, CLIENTS, count))).T
    eigenvalues[:, 0, 0], eigenvalues[:, 1, 0] = L, L / kappa  # L and mu are attained
    curvature = np.einsum("fcij,fcj,fckj->fcik", rotation, eigenvalues, rotation)
    spread = log_uniform(generator, 0.01, 3.0, count)[:, None, None]
    centre = spread * generator.normal(size=(*shape, DIMENSION))
    scale = np.where(generator.random(count) < 0.3, 0.0, log_uniform(generator, 0.01, 10.0, count))
    sigma = scale[:, None] * generator.uniform(0.5, 1.5, shape)
    weight = np.array([generator.permutation(SHARES) / sum(SHARES) for _ in range(count)])
    weight = np.full(shape, 1 / CLIENTS) if uniform else weight
    far = log_uniform(generator, 0.01, 10.0, count)[:, None]
    start = optimum(curvature, centre, weight) + far * generator.normal(size=(count, DIMENSION))
    federation = Federation(curvature, centre, np.zeros(shape), sigma, weight, start)
    # F* = 0 for half of them, where the bound is tightest, and above for the others.
    lift = generator.random(count) * (generator.random(count) < 0.5)
    offset = np.repeat((lift - optimal_loss(federation))[:, None], CLIENTS, axis=1)
    return federation._replace(offset=offset)


def optimum(curvature, centre, weight):
    total = np.einsum("fc,fcij->fij", weight, curvature)
    pull = np.einsum("fc,fcij,fcj->fi", weight, curvature, centre)
    return np.linalg.solve(total, pull[..., None])[..., 0]


def loss(federation, x):
    away = x[:, None] - federation.centre
    values = np.einsum("fci,fcij,fcj->fc", away, federation.curvature, away) / 2 + federation.offset
    return np.sum(federation.weight * values, axis=1)


def optimal_loss(federation):
    return loss(federation, optimum(*federation[:2], federation.weight))


def true_gradient(federation, x):
    """grad F at `x` [n, ..., d]."""
    total = np.einsum("fc,fcij->fij", federation.weight, federation.curvature)
    away = x - optimum(*federation[:2], federation.weight).reshape(
        -1, *[1] * (x.ndim - 2), DIMENSION
    )
    return np.einsum("fij,f...j->f...i", total, away)


def exact_constants(federation, cohort_size, gradient_bound=None):
    """The constants of Theorem 1; G = L ||x_0 - x*|| as the paper has it, unless it is given."""
    eigenvalues = np.linalg.eigvalsh(federation.curvature)
    L, F_star = eigenvalues.max(axis=(1, 2)), optimal_loss(federation)
    away = federation.start - optimum(*federation[:2], federation.weight)
    as_the_paper = L * np.linalg.norm(away, axis=1)
    return bounds.FedAvgConstants(
        smoothness=L,
        strong_convexity=eigenvalues.min(axis=(1, 2)),
        initial_loss=loss(federation, federation.start),
        gradient_bound=as_the_paper if gradient_bound is None else gradient_bound,
        cohort_size=np.full(len(L), float(cohort_size)),
        optimal_loss=np.maximum(F_star, 0.0),  # 0 to rounding where it is made to be 0
        noise=np.sum(federation.weight**2 * federation.sigma**2, axis=1),
        heterogeneity=F_star - np.sum(federation.weight * federation.offset, axis=1),
    )


class Measured(NamedTuple):
    """Means over seeds, at the local steps t = 0 .. T-1.

    Attributes:
      gradient: E||grad F(xbar_t)||^2.
      largest: the largest E||g_c||^2 of any client.
      model: xbar_t of the first seed.
    """

    gradient: Any
    largest: Any
    model: Any


def measure(federation, eta, ends, cohort_size, key, seeds):
    """FedAvg in the paper's own form, (2): all clients step, and at `ends` [T] a cohort is averaged.

    A cohort of all clients is averaged with the weights p_c, a smaller one, drawn without replacement,
    with equal ones.
    """
    directions = jnp.concatenate([jnp.eye(DIMENSION), -jnp.eye(DIMENSION)])

    def one(y, t):
        kind_key, cohort_key = jax.random.split(jax.random.fold_in(key, t))
        mean = jnp.einsum("c,scd->sd", federation.weight, y)
        pulls = jnp.einsum(
            "cij,scj->sci", federation.curvature, mean[:, None] - federation.centre[None]
        )
        gradient = jnp.einsum("c,sci->si", federation.weight, pulls)
        kinds = jax.random.randint(kind_key, (seeds, CLIENTS), 0, 2 * DIMENSION, jnp.int32)
        noise = federation.sigma[None, :, None] * directions[kinds]
        local = noise + jnp.einsum(
            "cij,scj->sci", federation.curvature, y - federation.centre[None]
        )
        y = y - eta * local
        lots = jax.random.uniform(cohort_key, (seeds, CLIENTS), jnp.float32)
        places = jnp.sum(lots[:, :, None] > lots[:, None], axis=-1, dtype=float)
        drawn = jnp.where(places < cohort_size, 1 / cohort_size, 0.0)
        share = jnp.where(cohort_size == CLIENTS, federation.weight[None], drawn)
        averaged = jnp.broadcast_to(jnp.einsum("sc,scd->sd", share, y)[:, None], y.shape)
        seen = Measured(
            jnp.mean(jnp.sum(gradient**2, axis=-1)),
            jnp.max(jnp.mean(jnp.sum(local**2, axis=-1), axis=0)),
            mean[0],
        )
        return jnp.where(ends[t], averaged, y), seen

    first = jnp.broadcast_to(federation.start, (seeds, CLIENTS, DIMENSION))
    return jax.lax.scan(one, first, jnp.arange(len(ends)))[1]


def _init(key, batch):
    del key
    return fo.Variables(jnp.zeros_like(batch["centre"][0]))


def _loss(variables, batch, key):
    del key
    x = variables.params[None]
    away = x - batch["centre"]
    losses = jnp.einsum("ni,nij,nj->n", away, batch["curvature"], away) / 2 + batch["offset"]
    return jnp.mean(losses + jnp.sum(batch["noise"] * x, axis=-1)), fo.Aux()


MODEL = fo.Model(_init, _loss)


def engine_rounds(federation, eta, steps, key):
    """The library's FedAvg with all clients, K_r in `steps` [R]: the model before each round, `[R, d]`.

    A minibatch is one example, and an example is a direction of the noise. A client holds them as often
    as its weight asks for, so that the mean of its examples is f_c, and its share of them p_c.
    """
    copies = jnp.round(federation.weight * sum(SHARES)).astype(jnp.int32)
    owner = jnp.repeat(jnp.arange(CLIENTS), copies, total_repeat_length=sum(SHARES))
    directions = jnp.concatenate([jnp.eye(DIMENSION), -jnp.eye(DIMENSION)])
    owner = jnp.repeat(owner, len(directions))
    examples = {
        "curvature": federation.curvature[owner],
        "centre": federation.centre[owner],
        "offset": federation.offset[owner],
        "noise": federation.sigma[owner][:, None] * jnp.tile(directions, (sum(SHARES), 1)),
    }
    sizes = copies * len(directions)
    data = fo.ClientData(examples, jnp.cumsum(sizes, dtype=jnp.int32) - sizes, sizes)
    algorithm = fo.fedavg(fo.optimizers.sgd(eta))

    def one(state, local_steps):
        run = fo.run_rounds(
            algorithm,
            fo.Federation(
                MODEL,
                data,
                cohort=CLIENTS,
                local_steps=local_steps.astype(jnp.int32),
                batch_size=1,
                batching="replacement",
                weighting="samples",
            ),
            state,
            1,
            strategy="vmap",
        )
        return run.state, state.variables.params

    state = fo.first_state(algorithm, fo.Variables(federation.start), CLIENTS, key)
    return jax.lax.scan(one, state, steps)[1]
