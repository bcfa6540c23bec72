"""Estimated constants against closed forms of quadratics, and SciPy on logistic regression."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fedjax_opt as fo
from tests.bounds.estimate_problems import (
    L2,
    MODEL,
    OWNER,
    POINTS,
    PROBLEMS,
    ROWS_OF,
    SIZES,
    TRACES,
    VARIABLES,
    WEIGHTS,
    D,
    N,
    Quadratic,
    client_data,
    point,
    vector,
)

# Chunks that no client's size is a multiple of: the last one of each is partly filled.
CHUNK = {"chunk_size": 7}


@pytest.fixture(params=PROBLEMS)
def problem(request):
    return PROBLEMS[request.param]


def covers(estimate, truth, rounding=1e-12):
    """Whether the truth is within the residual, but for rounding, which makes 1e-32 of some zeros."""
    allowed = estimate.residual + rounding * np.max(np.abs(truth))
    return np.abs(estimate.value - truth) <= allowed


def assert_covers(estimate, truth, rtol):
    np.testing.assert_allclose(estimate.value, truth, rtol=rtol)
    assert np.all(covers(estimate, truth, rtol)), (estimate, truth)


@pytest.mark.parametrize("scope", ["clients", "uniform"])
def test_both_ends_of_the_spectrum(problem, scope):
    options = {"per_client": scope == "clients", **CHUNK}
    if scope != "clients":
        options["weighting"] = scope
    found = fo.bounds.estimate_curvature(MODEL, client_data(problem.rows), VARIABLES, **options)
    hessians = np.stack([problem.hessians(w) for w in POINTS])
    if scope != "clients":
        hessians = np.einsum("c,pcij->pij", WEIGHTS[scope], hessians)[:, None]
    spectra = np.linalg.eigvalsh(hessians)
    assert_covers(found.largest, spectra[..., -1], 1e-12)
    assert_covers(found.smallest, spectra[..., 0], 1e-11)
    assert_covers(found.smoothness, spectra.max(), 1e-12)
    assert_covers(found.strong_convexity, spectra.min(), 1e-11)
    assert np.max(found.largest.residual) < 1e-12
    if isinstance(problem, Quadratic) and scope == "clients":
        np.testing.assert_allclose(found.largest.value, problem.spectra[:, -1][None].repeat(3, 0))


def test_a_concave_direction_is_reported():
    rows = {**PROBLEMS["quadratic"].rows}
    rows["A"] = np.where(OWNER[:, None, None] == 2, np.diag([-9.0, 1, 2, 3, 4, 5])[None], rows["A"])
    found = fo.bounds.estimate_curvature(MODEL, client_data(rows), VARIABLES, **CHUNK)
    assert_covers(found.strong_convexity, -9.0, 1e-12)
    assert_covers(found.smoothness, 9.0, 1e-12)  # the gradient changes as fast downwards as upwards
    np.testing.assert_allclose(found.largest.value[:, 2], 5.0)


@pytest.mark.parametrize("batching", ["shuffled", "replacement"])
@pytest.mark.parametrize("batch_size", [1, 2, 9, 64])
def test_the_noise_of_minibatches(problem, batching, batch_size):
    rows, p = client_data(problem.rows), WEIGHTS["uniform"]
    found = fo.bounds.estimate_noise(
        MODEL,
        rows,
        VARIABLES,
        batch_size=batch_size,
        batching=batching,
        weighting="uniform",
        **CHUNK,
    )
    each = np.stack([problem.example_gradients(w) for w in POINTS])
    centred = each - np.stack([problem.gradients(w) for w in POINTS])[:, OWNER]
    squares = (centred**2).sum(-1)
    variance = np.max([[row[own].mean() for own in ROWS_OF] for row in squares], axis=0)
    if isinstance(problem, Quadratic):
        np.testing.assert_allclose(variance, problem.variance, rtol=1e-12, atol=1e-28)
    expected = variance * [_share(n, batch_size, batching) for n in SIZES]
    np.testing.assert_allclose(found.clients.value, expected, rtol=1e-10, atol=1e-25)
    assert np.all(found.clients.residual == 0)
    assert_covers(found.largest, expected.max(), 1e-10)
    assert_covers(found.weighted, p**2 @ expected, 1e-10)
    largest = np.linalg.norm(each, axis=-1).max()
    np.testing.assert_allclose(found.example_gradient, largest, rtol=1e-12)


def _share(n, batch_size, batching):
    """The variance of a minibatch's mean over that of a row, over the minibatches of an epoch."""
    if batching == "replacement":
        return 1 / batch_size
    sizes = [min(batch_size, n - first) for first in range(0, n, batch_size)]
    return np.mean([_all_minibatches(n, b) if n < 10 else (n - b) / (b * (n - 1)) for b in sizes])


@functools.cache
def _all_minibatches(n, b):
    """The variance by looking at every minibatch of b of n rows."""
    if b == n:
        return 0.0
    values = np.random.default_rng(n).normal(size=n)
    means = [np.mean(batch) for batch in itertools.combinations(values, b)]
    return np.var(means) / np.var(values)


def test_a_sample_of_rows_is_within_two_standard_errors():
    data = client_data(PROBLEMS["logistic"].rows)
    options = {"batch_size": 1, "batching": "replacement"}
    truth = fo.bounds.estimate_noise(MODEL, data, VARIABLES, **options, **CHUNK)
    # Row by row, so that what is known of the spread comes from merging alone.
    options |= {"samples": 20, "chunk_size": 1}
    found = [
        fo.bounds.estimate_noise(MODEL, data, VARIABLES, seed=seed, **options) for seed in range(40)
    ]
    large = SIZES.index(40)
    covered = [covers(f.clients, truth.clients.value) for f in found]
    assert np.mean(covered, axis=0)[large] >= 0.9
    assert np.mean([covers(f.weighted, truth.weighted.value) for f in found]) >= 0.9
    # All rows of the other clients are seen, so that nothing about them is uncertain.
    small = np.delete(np.arange(N), large)
    assert np.all(np.delete(covered, large, axis=1))
    assert max(f.clients.residual[small].max() for f in found) == 0
    values = np.array([f.clients.value[large] for f in found])
    residual = np.mean([f.clients.residual[large] for f in found])
    # Unbiased, and no more uncertain than it is: 2 standard deviations of what was found.
    assert abs(values.mean() - truth.clients.value[large]) < 3 * values.std() / np.sqrt(40)
    np.testing.assert_allclose(residual, 2 * values.std(), rtol=0.25)


def test_the_dissimilarity_of_gradients(problem):
    for weighting, p in WEIGHTS.items():
        found = fo.bounds.estimate_dissimilarity(
            MODEL, client_data(problem.rows), VARIABLES, weighting=weighting, **CHUNK
        )
        _check_dissimilarity(problem, found, p)
    # One point leaves B at 1, and then G is the spread.
    alone = fo.bounds.estimate_dissimilarity(MODEL, client_data(problem.rows), VARIABLES[0])
    assert alone.slope == 1 and alone.offset == alone.spread


def _check_dissimilarity(problem, found, p):
    gradients = np.stack([problem.gradients(w) for w in POINTS])
    means = np.einsum("c,pci->pi", p, gradients)
    squares = np.einsum("c,pci->p", p, gradients**2)
    steep = (means**2).sum(1)
    spread = np.einsum("c,pci->p", p, (gradients - means[:, None]) ** 2)
    np.testing.assert_allclose(spread, squares - steep)
    np.testing.assert_allclose(found.losses, [problem.losses(w) for w in POINTS], atol=1e-13)
    np.testing.assert_allclose(found.client_norms, np.linalg.norm(gradients, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(found.global_norms, np.sqrt(steep), rtol=1e-12)
    largest = np.linalg.norm(gradients, axis=-1).max(), np.sqrt(steep.max()), np.sqrt(spread.max())
    np.testing.assert_allclose(
        [found.client_gradient, found.global_gradient, found.spread], largest, rtol=1e-12
    )
    best = scipy.optimize.linprog(
        [1, steep.mean()], A_ub=-np.stack([np.ones(3), steep], 1), b_ub=-squares,
        bounds=[(0, None), (1, None)],
    )  # fmt: skip
    G, B = found.offset, found.slope
    assert np.all(G**2 + B**2 * steep >= squares * (1 - 1e-12))
    np.testing.assert_allclose(G**2 + B**2 * steep.mean(), best.fun, rtol=1e-9)
    np.testing.assert_allclose([G, B], np.sqrt(best.x), rtol=1e-6, atol=1e-6)


def _truth_of_minima(problem, weighting):
    p = WEIGHTS[weighting]
    minimum, w = problem.minimum(p)
    clients = np.array([problem.minimum(np.eye(N)[c])[0] for c in range(N)])
    return minimum, w, clients, minimum - p @ clients


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_minima_and_the_gap_between_them(problem, weighting):
    data = client_data(problem.rows)
    options = {"weighting": weighting, **CHUNK}
    found = fo.bounds.estimate_heterogeneity(MODEL, data, VARIABLES[0], **options)
    minimum, w, clients, gap = _truth_of_minima(problem, weighting)
    assert_covers(found.minimum.loss, minimum, 1e-12)
    assert_covers(found.clients.loss, clients, 1e-12)
    assert_covers(found.gap, gap, 1e-11)
    assert gap > 0.1 and found.gap.residual < 1e-9
    distance = np.linalg.norm(vector(found.minimum.variables) - w)
    assert distance <= found.minimum.distance + 1e-12 < 1e-6
    # Ended far too early, the certificate covers what is missing, which is no rounding error.
    early = fo.bounds.estimate_heterogeneity(
        MODEL, data, VARIABLES[0], max_steps=1, tolerance=0.5, **options
    )
    missing = early.minimum.loss.value - minimum
    assert 1e-4 < missing <= early.minimum.loss.residual
    assert np.all(covers(early.clients.loss, clients)) and covers(early.gap, gap)
    below = early.minimum.loss.residual, WEIGHTS[weighting] @ early.clients.loss.residual
    assert early.gap.residual == max(below)
    assert np.max(early.minimum.steps) == 1
    assert np.linalg.norm(vector(early.minimum.variables) - w) <= early.minimum.distance


@pytest.fixture(scope="module")
def constants():
    """Everything at once, for logistic regression; three points, as in the other tests."""
    return fo.bounds.estimate_constants(
        MODEL, client_data(PROBLEMS["logistic"].rows), VARIABLES[0], batch_size=2, cohort_size=3,
        points=VARIABLES[1:2], **CHUNK,
    )  # fmt: skip


def test_all_constants_at_once(constants):
    problem, p, start = PROBLEMS["logistic"], WEIGHTS["samples"], POINTS[0]
    minimum, w, _, gap = _truth_of_minima(problem, "samples")
    places = [start, w, POINTS[1]]
    spectra = np.linalg.eigvalsh([problem.hessians(x) for x in places])
    variances = []
    for x in places:
        centred = problem.example_gradients(x) - problem.gradients(x)[OWNER]
        variances.append([(centred[own] ** 2).sum(1).mean() for own in ROWS_OF])
    shares = [_share(n, 2, "shuffled") for n in SIZES]
    truth = {
        "smoothness": spectra.max(),
        "strong_convexity": spectra.min(),
        "initial_loss": p @ problem.losses(start),
        "optimal_loss": minimum,
        "noise": p**2 @ (np.max(variances, 0) * shares),
        "heterogeneity": gap,
        "gradient_bound": spectra.max() * np.linalg.norm(start - w),
    }
    for name, value in truth.items():
        # The minimum, where some are looked at, is itself known up to its certificate only.
        found = getattr(constants.constants, name)
        np.testing.assert_allclose(found, value, rtol=1e-7, err_msg=name)
    for name, residual in constants.residuals.items():
        assert 0 <= residual < 1e-9, name
    assert set(truth) - set(constants.residuals) == {"initial_loss", "gradient_bound"}
    assert constants.constants.cohort_size == 3
    assert constants.assumptions == {"mu > 0": True, "F* >= 0": True, "F* is proven": True}
    assert fo.bounds.fedavg(constants.constants, 0.01, 5, fo.bounds.Rounds(100)).holds


def test_the_table_of_constants(constants):
    lines = constants.describe().splitlines()
    assert len(lines) == 9
    rows = {line.split()[0]: line for line in lines[2:]}
    assert set(rows) == set(fo.bounds.FedAvgConstants._fields) - {"cohort_size"}
    assert f"{constants.constants.optimal_loss:.6g}" in rows["optimal_loss"]
    assert f"{constants.residuals['optimal_loss']:.2g}" in rows["optimal_loss"]
    failing = constants._replace(assumptions={"mu > 0": False, "F* is proven": True})
    assert failing.describe().splitlines()[-1] == "does not hold: mu > 0"


def test_rows_that_are_not_in_order_count_for_their_clients_alone():
    """Clients that share rows, and rows of nobody: the mean over all rows is then not F."""
    problem = PROBLEMS["quadratic"]
    whole = client_data(problem.rows)
    offsets = whole.offsets.copy()
    offsets[3] = offsets[
        2
    ]  # the last client has some rows of the one before it; its own are nobody's
    data = fo.ClientData(whole.examples, offsets, whole.sizes)
    found = fo.bounds.estimate_curvature(MODEL, data, VARIABLES, per_client=False, **CHUNK)
    A = problem.A[[0, 1, 2, 2]]
    spectrum = np.linalg.eigvalsh(np.einsum("c,cij->ij", WEIGHTS["samples"], A))
    assert_covers(found.smoothness, spectrum[-1], 1e-12)
    assert_covers(found.strong_convexity, spectrum[0], 1e-11)


def test_the_state_is_read_and_held_fixed():
    data = client_data(PROBLEMS["quadratic"].rows)
    scaled = [point(w, scale=3.0) for w in POINTS]
    plain, tripled = (
        fo.bounds.estimate_curvature(MODEL, data, at, **CHUNK) for at in (VARIABLES, scaled)
    )
    np.testing.assert_allclose(tripled.smoothness.value, 3 * plain.smoothness.value)
    found = fo.bounds.estimate_heterogeneity(MODEL, data, scaled[0], **CHUNK)
    assert found.minimum.variables.state["scale"] == 3.0
    np.testing.assert_allclose(
        found.gap.value, 3 * _truth_of_minima(PROBLEMS["quadratic"], "samples")[3]
    )


def test_what_is_known_beforehand_is_used():
    data = client_data(PROBLEMS["logistic"].rows)
    truth = _truth_of_minima(PROBLEMS["logistic"], "samples")[0]
    found = fo.bounds.estimate_minimum(
        MODEL, data, VARIABLES[0], strong_convexity=L2, tolerance=0.1, **CHUNK
    )
    assert covers(found.loss, truth) and found.strong_convexity == (L2, 0)
    np.testing.assert_allclose(found.loss.residual, found.gradient_norm**2 / (2 * L2), rtol=1e-9)
    # A loss that is flat in a direction: nothing is proven, unless it cannot be negative.
    flat = {**PROBLEMS["logistic"].rows, "A": np.zeros_like(data.examples["A"])}
    flat["z"] = flat["z"] * (np.arange(D) < 4)
    data = client_data(flat)
    unknown = fo.bounds.estimate_heterogeneity(MODEL, data, VARIABLES[0], max_steps=5, **CHUNK)
    assert np.isinf(unknown.minimum.loss.residual) and np.isinf(unknown.gap.residual)
    assert np.all(np.isinf(unknown.clients.loss.residual)) and np.isinf(unknown.minimum.distance)
    bounded = fo.bounds.estimate_heterogeneity(
        MODEL, data, VARIABLES[0], max_steps=5, lower_bound=0.0, **CHUNK
    )
    np.testing.assert_allclose(bounded.minimum.loss.residual, bounded.minimum.loss.value)
    everything = fo.bounds.estimate_constants(
        MODEL,
        data,
        VARIABLES[0],
        batch_size=2,
        cohort_size=2,
        max_steps=5,
        points=VARIABLES[:1],
        **CHUNK,
    )
    assert everything.assumptions == {"mu > 0": False, "F* >= 0": False, "F* is proven": False}
    assert "does not hold: F* is proven" in everything.describe()
    with pytest.raises(ValueError, match=r"lower_bound must be a lower bound .* got 0.9"):
        fo.bounds.estimate_heterogeneity(
            MODEL, data, VARIABLES[0], max_steps=5, lower_bound=0.9, **CHUNK
        )


ESTIMATORS = {
    "curvature": fo.bounds.estimate_curvature,
    "noise": functools.partial(fo.bounds.estimate_noise, batch_size=2),
    "dissimilarity": fo.bounds.estimate_dissimilarity,
    "heterogeneity": fo.bounds.estimate_heterogeneity,
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_loss_that_is_not_finite_is_named(name):
    rows = {key: value.copy() for key, value in PROBLEMS["logistic"].rows.items()}
    rows["z"][SIZES[0] + SIZES[1] + 11] = np.nan  # a row of client 2
    at = VARIABLES[0] if name == "heterogeneity" else VARIABLES
    where = "The mean loss must be finite, but 1 of 1 are not, with nan: look at the model"
    where = where if name == "heterogeneity" else "nan at point 0 and client 2: "
    with pytest.raises(ValueError, match=where):
        ESTIMATORS[name](MODEL, client_data(rows), at, **CHUNK)


def test_float32_finds_the_same():
    problem, p = PROBLEMS["logistic"], WEIGHTS["samples"]
    data, at = client_data(problem.rows, np.float32), point(POINTS[0], np.float32)
    spectra = np.linalg.eigvalsh(problem.hessians(POINTS[0]))
    curvature = fo.bounds.estimate_curvature(MODEL, data, at, **CHUNK)
    minimum = fo.bounds.estimate_minimum(MODEL, data, at, **CHUNK)
    np.testing.assert_allclose(curvature.largest.value, spectra[None, :, -1], rtol=1e-5)
    np.testing.assert_allclose(minimum.loss.value, problem.minimum(p)[0], rtol=1e-5)
    assert minimum.variables.params["b"].dtype == jnp.float32
    assert minimum.steps < 20  # it ends where rounding hides what could still be gained


def test_other_numbers_compile_nothing(constants):
    """Points, data, batch sizes, tolerances and seeds are arguments of the programs."""
    estimates = fo.bounds
    rows = {name: value[::-1] for name, value in PROBLEMS["logistic"].rows.items()}
    data = fo.ClientData.from_arrays(rows, OWNER[::-1])
    other = [point(w + 1) for w in POINTS]
    before = len(TRACES)
    estimates.estimate_constants(
        MODEL, data, other[1], batch_size=3, cohort_size=1, batching="replacement", tolerance=1e-3,
        max_steps=7, seed=5, points=other[:1], **CHUNK,
    )  # fmt: skip
    estimates.estimate_dissimilarity(MODEL, data, other, weighting="uniform", **CHUNK)
    estimates.estimate_noise(MODEL, data, other, batch_size=4, weighting="uniform", **CHUNK)
    assert len(TRACES) == before


WIDE = 80  # more than what is built as a matrix
SPECTRA = {
    "spread evenly": np.linspace(0.5, 2.0, WIDE),
    "one large": np.append(np.linspace(0.0, 1.0, WIDE - 1), 50.0),
    "both signs": np.append(np.linspace(-1.0, 1.0, WIDE - 2), [-4.0, 9.0]),
    "ill-conditioned": np.geomspace(1e-4, 1.0, WIDE),
    "all negative": -np.geomspace(0.1, 3.0, WIDE),
    "identity": np.full(WIDE, 3.0),
    "zero": np.zeros(WIDE),
    "two values": np.repeat([1.0, 7.0], WIDE // 2),
    "rank one": np.append(np.zeros(WIDE - 1), -2.0),
}


def _quadratic_loss(variables, batch, key):
    w = variables.params
    losses = jnp.einsum("i,nij,j->n", w, batch, w) / 2
    return losses.mean(), fo.Aux(losses=losses)


def test_both_ends_of_many_dimensions():
    """One client for each spectrum; no matrix is built but by the loss itself."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(WIDE, WIDE)))[0]
    matrices = np.array([(rotation * values) @ rotation.T for values in SPECTRA.values()])
    model = fo.Model(init=lambda key, batch: fo.Variables(jnp.zeros(WIDE)), loss=_quadratic_loss)
    data = fo.ClientData.from_arrays(matrices, np.arange(len(matrices)))
    found = fo.bounds.estimate_curvature(model, data, fo.Variables(jnp.zeros(WIDE)), tolerance=1e-9)
    for name, low, high, *residuals in zip(
        SPECTRA, found.smallest.value[0], found.largest.value[0], found.smallest.residual[0],
        found.largest.residual[0], strict=True,
    ):  # fmt: skip
        scale = max(np.abs(SPECTRA[name]).max(), 1e-30)
        ends = SPECTRA[name].min(), SPECTRA[name].max()
        np.testing.assert_allclose([low, high], ends, atol=1e-8 * scale, err_msg=name)
        assert max(residuals) <= 1e-7 * scale, name


def test_what_a_residual_does_not_prove():
    """mu = 1e-7 is found from above, but not to so many digits: that it is positive is not supported."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(WIDE, WIDE)))[0]
    matrix = (rotation * np.geomspace(1e-7, 1.0, WIDE)) @ rotation.T
    model = fo.Model(init=lambda key, batch: fo.Variables(jnp.zeros(WIDE)), loss=_quadratic_loss)
    data = fo.ClientData.from_arrays(matrix[None], np.zeros(1, int))
    found = fo.bounds.estimate_constants(
        model, data, fo.Variables(jnp.ones(WIDE)), batch_size=1, cohort_size=1, max_steps=2
    )
    assert 0 < found.constants.strong_convexity < found.residuals["strong_convexity"]
    assert not found.assumptions["mu > 0"] and not found.assumptions["F* is proven"]
    # mu less its residual is what a distance is proven with.
    mu = fo.bounds.Estimate(0.5, 0.25)
    assert fo.bounds.Minimum(found.minima.gap, 1.0, mu, 0, None).distance == 4.0
    unsure = fo.bounds.Minimum(found.minima.gap, 1.0, fo.bounds.Estimate(0.5, 0.5), 0, None)
    assert np.isinf(unsure.distance)


def _rosenbrock_and_wells(variables, batch, key):
    """A curved valley that bends down in places, 0 at (1, ..., 1) alone; or minima of -1 at +-1."""
    x = variables.params
    valley = 100 * (x[1] - x[0] ** 2) ** 2 + jnp.sum((1 - x[jnp.array([0, 2, 3, 4])]) ** 2)
    losses = jnp.where(batch, valley, jnp.mean(x**4 / 2 - x**2) * 2)
    return losses.mean(), fo.Aux(losses=losses)


@pytest.mark.parametrize(("valley", "least"), [(True, 0.0), (False, -1.0)])
def test_newton_goes_around_bends(valley, least):
    model = fo.Model(init=lambda key, batch: fo.Variables(jnp.zeros(5)), loss=_rosenbrock_and_wells)
    data = fo.ClientData.from_arrays(np.array([valley]), np.zeros(1, int))
    start = fo.Variables(jnp.array([-1.2, 1.0, 0.05, -0.1, 0.3]))
    found = fo.bounds.estimate_minimum(model, data, start, max_steps=200)
    np.testing.assert_allclose(found.loss.value, least, atol=1e-12)
    np.testing.assert_allclose(np.abs(found.variables.params), 1.0, atol=1e-6)
    # Where it starts at the minimum, no step is taken.
    again = fo.bounds.estimate_minimum(model, data, fo.Variables(jnp.ones(5)))
    assert again.steps == 0 and again.loss.value == least


def test_what_a_model_reads_and_nobody_trains():
    """Frozen arrays are arguments of the programs: other ones are other losses, and compile nothing."""

    def loss(variables, batch, key, frozen):
        value, aux = MODEL.loss(variables, batch, key)
        return value * frozen, fo.Aux(losses=aux.losses * frozen)

    data, found = client_data(PROBLEMS["quadratic"].rows), []
    for frozen in (jnp.asarray(1.0), jnp.asarray(3.0)):
        traced = len(TRACES)
        model = fo.Model(MODEL.init, loss, frozen)
        found.append(fo.bounds.estimate_curvature(model, data, VARIABLES, **CHUNK).smoothness.value)
    assert len(TRACES) == traced
    np.testing.assert_allclose(found[1], 3 * found[0])


def test_empty_clients_are_refused():
    rows = {name: value[OWNER != 1] for name, value in PROBLEMS["logistic"].rows.items()}
    data = fo.ClientData.from_arrays(rows, OWNER[OWNER != 1], allow_empty=True)
    for estimator in ESTIMATORS.values():
        with pytest.raises(ValueError, match="client 1 among them"):
            estimator(MODEL, data, VARIABLES[0])


@pytest.mark.parametrize(
    ("estimator", "arguments", "message"),
    [
        ("curvature", {"weighting": "size"}, "weighting must be one of 'samples', 'uniform', got"),
        ("curvature", {"tolerance": 0.0}, r"tolerance must lie in \(0.0, inf\], got 0.0"),
        ("curvature", {"chunk_size": 0}, "chunk_size must be a whole number of at least 1, got 0"),
        ("curvature", {"variables": []}, "variables must be a Variables or a list with at least"),
        ("curvature", {"variables": [1.0]}, "variables must be a Variables or a list with at"),
        ("noise", {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ("noise", {"batching": "all"}, "batching must be one of 'shuffled', .*, got 'all'"),
        ("noise", {"samples": 1}, "samples must be a whole number of at least 2, got 1"),
        ("heterogeneity", {"tolerance": -1.0}, r"tolerance must lie in \[0.0, inf\], got -1.0"),
        ("heterogeneity", {"max_steps": 0}, "max_steps must be a whole number of at least 1"),
        ("heterogeneity", {"strong_convexity": 0.0}, r"strong_convexity must lie in \(0.0, inf\]"),
        ("heterogeneity", {"lower_bound": np.nan}, "lower_bound must lie in .*, got nan"),
        ("heterogeneity", {"variables": VARIABLES}, "variables must be a Variables or a list"),
        ("constants", {"cohort_size": 5}, "cohort_size must not be larger than .* got 5"),
        ("constants", {"points": [1.0]}, r"points\[0\] must have the tree structure"),
        ("constants", {"batch_size": 0}, "batch_size must be a whole number of at least 1"),
    ],
)
def test_bad_arguments_are_named(estimator, arguments, message):
    named = {"variables": VARIABLES[0]}
    if estimator == "constants":
        named |= {"batch_size": 2, "cohort_size": 1}
    named |= arguments
    estimator = {**ESTIMATORS, "constants": fo.bounds.estimate_constants}[estimator]
    with pytest.raises(ValueError, match=message):
        estimator(MODEL, client_data(PROBLEMS["logistic"].rows), **named)


def test_points_must_be_alike_and_trainable():
    data = client_data(PROBLEMS["logistic"].rows)
    longer = fo.Variables({**VARIABLES[0].params, "b": jnp.zeros(3)}, VARIABLES[0].state)
    with pytest.raises(ValueError, match=r"variables\[1\].*\['b'\] must be float64\[2\]"):
        fo.bounds.estimate_curvature(MODEL, data, [VARIABLES[0], longer])
    with pytest.raises(ValueError, match="parameters must be floating"):
        fo.bounds.estimate_curvature(MODEL, data, fo.Variables({"w": jnp.zeros(3, int)}))
