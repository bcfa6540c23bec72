"""FedAvg stays under Theorem 1, on federations of quadratics whose constants are known exactly."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt import bounds
from tests.bounds.fedavg_problems import (
    CLIENTS,
    DIMENSION,
    Federation,
    compiled,
    engine_rounds,
    exact_constants,
    log_uniform,
    measure,
    optimum,
    random_federations,
    true_gradient,
)

ITERATIONS, SEEDS = 300, 4
ALL, SAMPLED = slice(0, 200), slice(200, 300)  # random federations, by who takes part
SMALL_COHORT = 2
LARGEST_K = 20
ENGINE_ROUNDS, ENGINE_SEEDS = 10, 2
theorem = compiled(jax.vmap(bounds.fedavg))


def at_its_optimum(curvature=1.0, centre=0.0, sigma=0.0, away=0.0):
    """A federation with F* = 0 whose clients agree but for what is given; `away` moves the start."""

    def each(values):
        return np.broadcast_to(np.asarray(values, float), CLIENTS)[None]

    axis = np.eye(DIMENSION)[0]
    curvature = each(curvature)[..., None, None] * np.eye(DIMENSION)
    centre = each(centre)[..., None] * axis
    start = optimum(curvature, centre, each(1 / CLIENTS)) + away * axis
    made = Federation(curvature, centre, each(0.0), each(sigma), each(1 / CLIENTS), start)
    gamma = exact_constants(made, CLIENTS).heterogeneity
    return made._replace(offset=each(-gamma))


# For each term: a federation, eta and N for which, with K = 1, the measurement lies between the bound
# and the bound without the term.
DOMINATED = {
    "initial": (at_its_optimum(away=1.0), 0.0004, CLIENTS),
    "noise": (at_its_optimum(sigma=1.0), 0.25, CLIENTS),
    "heterogeneity": (at_its_optimum(centre=[-2, -1, 0, 1, 2]), 0.25, 1),
}
DOMINATED_ROWS = {term: SAMPLED.stop + i for i, term in enumerate(DOMINATED)}


def schedules(first, decays):
    """K_r `[n, R]`, zero when the iterations are used up, and where rounds end, `[n, T]`."""
    rounds = np.arange(1.0, ITERATIONS + 1)
    steps = np.where(decays[:, None], np.ceil(first[:, None] * rounds ** (-1 / 3)), first[:, None])
    done = np.cumsum(steps, axis=1)
    steps = np.where(done <= ITERATIONS, steps, 0.0)
    ends = np.zeros((len(first), ITERATIONS), bool)
    for row, (taken, last) in enumerate(zip(steps, done.astype(int), strict=True)):
        ends[row, last[taken > 0] - 1] = True
    return steps, ends


@pytest.fixture(scope="module")
def everything():
    """All federations: they, their constants, eta, schedules, and what one program measured."""
    parts = [
        random_federations(ALL.stop, seed=1),
        random_federations(SAMPLED.stop - SAMPLED.start, seed=2, uniform=True),
        *(federation for federation, _, _ in DOMINATED.values()),
    ]
    federations = Federation(*(np.concatenate(leaves) for leaves in zip(*parts, strict=True)))
    generator, count = np.random.default_rng(3), len(federations.start)
    cohorts = np.full(count, float(CLIENTS))
    cohorts[SAMPLED] = SMALL_COHORT
    constants = exact_constants(federations, CLIENTS)
    eta = 0.25 / constants.smoothness * log_uniform(generator, 0.01, 1.0, count)
    first = np.floor(log_uniform(generator, 1.0, LARGEST_K + 1, count))
    for (_, rate, cohort), row in zip(DOMINATED.values(), DOMINATED_ROWS.values(), strict=True):
        eta[row], cohorts[row], first[row] = rate, cohort, 1
    steps, ends = schedules(first, decays=np.arange(count) % 2 == 0)
    keys = jax.random.split(jax.random.key(0), count)
    program = compiled(jax.vmap(partial(measure, seeds=SEEDS)))
    measured = program(jax.tree.map(jnp.asarray, federations), eta, ends, cohorts, keys)
    constants = constants._replace(cohort_size=cohorts)
    return federations, constants, eta, steps, jax.tree.map(np.asarray, measured)


def honest(constants, measured):
    """G as the proof needs it: the largest root mean square gradient of any client at any step."""
    return constants._replace(gradient_bound=np.sqrt(measured.largest.max(axis=1)))


def after(share, steps, gradient):
    """The schedule of the first rounds, and the mean and the minimum over their local steps."""
    rounds = np.maximum(np.floor(share * (steps > 0).sum(axis=1)), 1)
    steps = np.where(np.arange(steps.shape[1]) < rounds[:, None], steps, 0.0)
    inside = np.arange(ITERATIONS) < steps.sum(axis=1)[:, None]
    mean = np.where(inside, gradient, 0.0).sum(axis=1) / inside.sum(axis=1)
    return steps, mean, np.where(inside, gradient, np.inf).min(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.03, 0.3, 1.0])
def test_the_mean_over_all_steps_is_under_the_bound(everything, share):
    """What the proof bounds, for a G that bounds the clients' gradients; the smallest is below it."""
    _, constants, eta, steps, measured = everything
    steps, mean, smallest = after(share, steps, measured.gradient)
    bound = theorem(honest(constants, measured), eta, steps)
    assert np.all(bound.holds)
    assert np.all(mean <= bound.value)
    assert np.all(smallest <= bound.value)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.03, 0.3, 1.0])
def test_the_minimum_is_under_the_bound_with_the_papers_g(everything, share):
    _, constants, eta, steps, measured = everything
    steps, _, smallest = after(share, steps, measured.gradient)
    bound = theorem(constants, eta, steps)
    assert np.all(bound.holds)
    assert np.all(smallest <= bound.value)


@pytest.mark.slow
def test_the_papers_g_does_not_bound_the_clients_gradients(everything):
    """L ||x_0 - x*|| is small where training starts near x*; clients that disagree still drift."""
    _, constants, _, _, measured = everything
    exceeded = np.sqrt(measured.largest.max(axis=1)) > constants.gradient_bound * (1 + 1e-9)
    assert 0.2 < exceeded[ALL].mean() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("term", DOMINATED)
def test_without_any_of_the_first_terms_it_would_not_be_a_bound(everything, term):
    """With the paper's G, for one that bounds the clients' gradients would hide the other terms."""
    _, constants, eta, steps, measured = everything
    _, mean, _ = after(1.0, steps, measured.gradient)
    bound, row = theorem(constants, eta, steps), DOMINATED_ROWS[term]
    without = bound.value - bound.terms[term]
    assert 1.2 * without[row] < mean[row] < bound.value[row]


@pytest.mark.slow
def test_without_the_term_of_the_local_steps_it_would_not_be_a_bound():
    """Clients that disagree drift for 2000 steps. With the paper's G, 0 at x*, it is no bound either."""
    federation = at_its_optimum(curvature=[1, 1, 1, 1 / 3, 1 / 3], centre=[0, 0, 0, 1, 1])
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), federation)
    ends = jnp.arange(2000) == 1999
    measured = compiled(partial(measure, seeds=1))(one, 0.0045, ends, 5.0, jax.random.key(0))
    paper = exact_constants(federation, CLIENTS)
    assert paper.gradient_bound < 1e-12
    proof = paper._replace(gradient_bound=np.sqrt([measured.largest.max()]))
    with_paper, with_proof = (
        bounds.fedavg(c, 0.0045, 2000, bounds.Rounds(1)) for c in (paper, proof)
    )
    mean = measured.gradient.mean()
    assert mean > 2 * with_paper.value
    assert mean > 2 * (with_proof.value - with_proof.terms["local steps"])
    assert mean < with_proof.value


@pytest.mark.slow
def test_the_library_s_fedavg_is_under_the_bound(everything):
    """Measured between rounds only, where the smallest is no smaller than over all steps."""
    federations, constants, eta, steps, measured = (
        jax.tree.map(lambda leaf: leaf[ALL], part) for part in everything
    )
    steps = steps[:, :ENGINE_ROUNDS]
    assert np.all(steps > 0)
    seeds = jax.vmap(engine_rounds, in_axes=(None, None, None, 0))
    program = compiled(jax.vmap(seeds, in_axes=(0, 0, 0, None)))
    inputs = jax.tree.map(jnp.asarray, (federations, eta, steps))
    models = np.asarray(program(*inputs, jax.random.split(jax.random.key(1), ENGINE_SEEDS)))
    gradient = true_gradient(federations, models)
    smallest = np.mean(np.sum(gradient**2, axis=-1), axis=1).min(axis=1)
    assert np.all(smallest <= theorem(constants, eta, steps).value)
    assert np.all(smallest <= theorem(honest(constants, measured), eta, steps).value)
    # Without noise nothing is random: it is the paper's form, step by step.
    calm = federations.sigma[:, 0] == 0
    before = np.cumsum(steps, axis=1) - steps
    in_steps = np.take_along_axis(measured.model, before.astype(int)[..., None], axis=1)
    assert calm.sum() > 30
    np.testing.assert_allclose(models[calm, 0], in_steps[calm], rtol=1e-9, atol=1e-12)
