"""Lanczos' and Newton's methods on spectra and minima that are known, the awkward ones among them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_opt.bounds.estimators.estimate import Estimate, largest_of, root_of, smallest_of
from fedjax_opt.bounds.estimators.lanczos import extreme_eigenvalues, random_start
from fedjax_opt.bounds.estimators.newton import minimise

SIZE = 60
SPECTRA = {
    "spread evenly": np.linspace(0.5, 2.0, SIZE),
    "one large": np.append(np.linspace(0.0, 1.0, SIZE - 1), 50.0),
    "both signs": np.append(np.linspace(-1.0, 1.0, SIZE - 2), [-4.0, 9.0]),
    "ill-conditioned": np.geomspace(1e-4, 1.0, SIZE),
    "all negative": -np.geomspace(0.1, 3.0, SIZE),
    "identity": np.full(SIZE, 3.0),
    "zero": np.zeros(SIZE),
    "two values": np.repeat([1.0, 7.0], SIZE // 2),
    "rank one": np.append(np.zeros(SIZE - 1), -2.0),
}
# Ends that lie too close to their neighbours to be told apart so soon.
SLOW = {
    "one large": ("smallest",), "ill-conditioned": ("smallest",), "all negative": ("largest",),
}  # fmt: skip


@partial(jax.jit, static_argnames="iterations")
@partial(jax.vmap, in_axes=(0, 0, None))
def _ends(matrix, start, iterations):
    return extreme_eigenvalues(lambda v: jnp.dot(matrix, v), start, iterations)


def _matrices(dtype):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))[0]
    return jnp.asarray([(rotation * values) @ rotation.T for values in SPECTRA.values()], dtype)


def _found(dtype, iterations):
    matrices = _matrices(dtype)
    starts = jnp.stack([random_start(seed, SIZE, dtype) for seed in range(len(matrices))])
    found = jax.tree.map(lambda x: np.asarray(x, np.float64), _ends(matrices, starts, iterations))
    smallest, largest = (zip(*end, strict=True) for end in found)
    return zip(SPECTRA.items(), smallest, largest, strict=True)


@pytest.mark.parametrize(
    ("dtype", "rounded"),
    [(np.float64, 1e-14), pytest.param(np.float32, 5e-6, marks=pytest.mark.slow)],
)
def test_thirty_products_find_the_ends(dtype, rounded):
    for (name, values), smallest, largest in _found(dtype, 30):
        scale = np.abs(values).max()
        slow = SLOW.get(name, ())
        for end, truth in (("smallest", values.min()), ("largest", values.max())):
            value, residual = {"smallest": smallest, "largest": largest}[end]
            assert np.abs(values - value).min() <= residual + rounded * scale, (name, end)
            if end in slow:
                assert residual > 1e-6 * scale and abs(value - truth) <= 0.01 * scale, (name, end)
            else:
                assert abs(value - truth) <= 0.01 * abs(truth) + rounded * scale, (name, end)
            # From the inside: no estimate is beyond the spectrum.
            assert values.min() - rounded * scale <= value <= values.max() + rounded * scale


def test_as_many_products_as_rows_are_exact():
    for (name, values), smallest, largest in _found(np.float64, SIZE):
        for (value, residual), truth in ((smallest, values.min()), (largest, values.max())):
            assert abs(value - truth) <= residual + 1e-14 * np.abs(values).max(), name
            assert residual <= 1e-12 * np.abs(values).max(), name


def test_products_of_no_symmetric_matrix_are_noticed():
    """Products may be wrong by more than rounding: the residual is that of the products as they are."""
    twist = jnp.triu(jnp.full((SIZE, SIZE), 1e-4), 1)
    matrices = _matrices(np.float64) + (twist - twist.T)[None]
    starts = jnp.tile(random_start(0, SIZE, np.float64), (len(matrices), 1))
    found = _ends(matrices, starts, SIZE)
    assert min(found.largest.uncertainty.min(), found.smallest.uncertainty.min()) > 1e-4


def test_intervals_of_extremes_and_roots():
    uncertain = Estimate(np.array([1.0, 0.9]), np.array([0.01, 0.5]))
    value, uncertainty = largest_of(uncertain)  # in [0.99, 1.4]
    assert value == 1.0 and uncertainty == pytest.approx(0.4)
    value, uncertainty = smallest_of(uncertain)  # in [0.4, 1.01]
    assert value == 0.9 and uncertainty == pytest.approx(0.5)
    value, uncertainty = largest_of(Estimate(np.array([1.0, 0.1]), np.array([0.3, 0.1])))
    assert value == 1.0 and uncertainty == pytest.approx(0.3)
    value, uncertainty = root_of(Estimate(4.0, 1.75))  # in [1.5, 2.398]
    assert value == 2.0 and uncertainty == pytest.approx(0.5)
    value, uncertainty = root_of(Estimate(0.0, 1e-16))
    assert value == 0.0 and uncertainty == pytest.approx(1e-8)


def test_a_single_number():
    found = jax.jit(lambda v: extreme_eigenvalues(lambda v: -5.0 * v, v, 4))(jnp.array([0.3]))
    assert found.smallest.value == found.largest.value == -5.0


def _rosenbrock(x):
    """A curved valley that bends down in places; 0 at (1, ..., 1) alone."""
    return 100 * (x[1] - x[0] ** 2) ** 2 + jnp.sum((1 - x[jnp.array([0, 2, 3, 4])]) ** 2)


BOTTOM = np.array([11.3, 13.7, 17.9, 19.1, 23.3])


def _raised(x):
    """A bowl so high up that rounding hides its bottom: 1.5e-8 is the spacing of numbers there."""
    return 1e8 + jnp.sum(jnp.exp(x) - BOTTOM * x)


def _wells(x):
    """A maximum at 0, and minima of -1 wherever every entry is 1 or -1."""
    return jnp.mean(x**4 / 2 - x**2) * 2


@jax.jit
def _minima(x, tolerance, max_steps):
    return [
        minimise(jax.value_and_grad(function), x, max_steps, 8, tolerance)
        for function in (_rosenbrock, _wells, _raised)
    ]


def test_newton_goes_around_bends():
    start = jnp.array([-1.2, 1.0, 0.05, -0.1, 0.3])
    valley, wells, _ = _minima(start, jnp.asarray(1e-12), jnp.int32(200))
    np.testing.assert_allclose(valley.x, 1.0, atol=1e-8)
    np.testing.assert_allclose(np.abs(wells.x), 1.0, atol=1e-8)
    assert valley.loss < 1e-16 and wells.loss == pytest.approx(-1.0)
    assert 0 < wells.steps < 20 and valley.steps < 100
    # No step goes uphill, however early it ends; no step is taken where there is no way down.
    losses = [_minima(start, jnp.asarray(0.0), jnp.int32(k))[0].loss for k in range(1, 30)]
    assert np.all(np.diff([float(_rosenbrock(start)), *losses]) <= 0)
    _, _, bowl = _minima(start, jnp.asarray(0.0), jnp.int32(1000))
    np.testing.assert_allclose(bowl.x, np.log(BOTTOM), rtol=1e-12)
    assert bowl.steps < 30  # where rounding hides all, it ends
    _, there, _ = _minima(jnp.ones(5), jnp.asarray(0.0), jnp.int32(50))
    assert there.steps == 0 and there.loss == -1.0
