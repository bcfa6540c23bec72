"""What makes a triple one, for random trees, statistics, numbers of steps and hyperparameters."""

import jax
import numpy as np
import optax
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedjax_opt import optimizers as opt
from tests.optimizers import helpers

# A failing example is not shrunk: other shapes are other programs.
SETTINGS = settings(max_examples=25, phases=[Phase.explicit, Phase.generate])
SEEDS = st.integers(0, 2**32 - 1)
NAMES = pytest.mark.parametrize("name", helpers.TRIPLES)


def _mean(trees):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


@pytest.mark.parametrize("copied", [False, True], ids=["triple", "affine"])
@NAMES
@SETTINGS
@given(shapes=helpers.TREES, hyper=helpers.HYPER, steps=st.integers(1, 20), seed=SEEDS)
def test_inverse_of_frozen_updates_is_the_mean_gradient(name, copied, shapes, hyper, steps, seed):
    """I(x, x+, s, K) to 1e-10 of the gradients' scale, also of a user's own U and T."""
    rng = np.random.default_rng(seed)
    triple = helpers.TRIPLES[name](**hyper)
    triple = helpers.affine_copy(triple) if copied else triple
    params = helpers.draw(rng, shapes)
    frozen = stats = helpers.draw_statistics(rng, triple, params, shapes)
    moved, seen = params, []
    for _ in range(steps):
        gradient = helpers.draw(rng, shapes)
        seen.append(gradient)
        updates, stats = triple.update(gradient, stats, moved)
        moved = optax.apply_updates(moved, updates)
    found = triple.inverse(params, moved, stats, steps)
    helpers.assert_trees_close(found, _mean(seen), rtol=0, atol=1e-10 * helpers.SCALE)
    helpers.assert_trees_close(stats, frozen, rtol=0)


@NAMES
@SETTINGS
@given(shapes=helpers.TREES, hyper=helpers.HYPER, seed=SEEDS)
def test_update_and_track_are_their_formulas(name, shapes, hyper, seed):
    """U and T leaf by leaf against NumPy; U leaves the statistics alone."""
    rng = np.random.default_rng(seed)
    triple = helpers.TRIPLES[name](**hyper)
    params, gradient = helpers.draw(rng, shapes), helpers.draw(rng, shapes)
    stats = helpers.draw_statistics(rng, triple, params, shapes)
    updates, same = triple.update(gradient, stats, params)
    tracked = triple.track(gradient, stats)
    assert jax.tree.structure(tracked) == jax.tree.structure(stats)
    assert all(a is b for a, b in zip(jax.tree.leaves(same), jax.tree.leaves(stats), strict=True))
    g = [np.asarray(leaf) for leaf in jax.tree.leaves(gradient)]
    m = jax.tree.leaves(getattr(stats, "m", ())) or [None] * len(g)
    v = jax.tree.leaves(getattr(stats, "v", ())) or [None] * len(g)
    m, v = ([None if x is None else np.asarray(x) for x in xs] for xs in (m, v))
    for i, update in enumerate(jax.tree.leaves(updates)):
        new_m = helpers.numpy_first_moment(name, hyper["b1"], g[i], m[i])
        expected = helpers.numpy_step(name, hyper["lr"], hyper["eps"], new_m, v[i])
        np.testing.assert_allclose(update, expected, rtol=1e-12, atol=1e-12)
        if name in helpers.HAS_M:
            np.testing.assert_allclose(jax.tree.leaves(tracked.m)[i], new_m, rtol=1e-12, atol=1e-12)
        if name in helpers.HAS_V:
            new_v = helpers.numpy_second_moment(name, hyper["b2"], g[i], v[i])
            np.testing.assert_allclose(jax.tree.leaves(tracked.v)[i], new_v, rtol=1e-12, atol=1e-12)


@NAMES
def test_the_inverse_loses_no_digits_in_float32(name):
    """Whatever the size of the statistics beside the gradient: A and b come from no difference."""
    hyper = {"lr": 0.1, "b1": 0.9, "b2": 0.8, "eps": 0.1}
    triple = helpers.TRIPLES[name](**hyper)
    rng, shapes = np.random.default_rng(0), {"w": (50,)}

    def found(dtype):
        params, new = (jax.tree.map(lambda x: x.astype(dtype), tree) for tree in models)
        cast = jax.tree.map(lambda x: x.astype(dtype), stats)
        return np.asarray(triple.inverse(params, new, cast, 3)["w"], np.float64)

    models = [helpers.draw(rng, shapes, dtype=np.float32) for _ in range(2)]
    stats = triple.init(models[0])
    if name in helpers.HAS_M:
        stats = stats._replace(m=jax.tree.map(lambda p: 1e4 * p, models[0]))
    exact = found(np.float64)
    np.testing.assert_allclose(found(np.float32), exact, rtol=0, atol=2e-6 * np.max(np.abs(exact)))


@NAMES
@SETTINGS
@given(shapes=helpers.TREES, hyper=helpers.HYPER, steps=st.integers(1, 6), seed=SEEDS)
def test_moving_form_is_a_numpy_loop(name, shapes, hyper, steps, seed):
    """Statistics change in every step; m and v are read after they moved."""
    rng = np.random.default_rng(seed)
    triple = helpers.TRIPLES[name](**hyper)
    moving = opt.moving(triple)
    assert not isinstance(moving, opt.Triple)
    params = helpers.draw(rng, shapes)
    stats = helpers.draw_statistics(rng, triple, params, shapes)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    m = [np.asarray(x) for x in jax.tree.leaves(getattr(stats, "m", ()))] or [None] * len(leaves)
    v = [np.asarray(x) for x in jax.tree.leaves(getattr(stats, "v", ()))] or [None] * len(leaves)
    for _ in range(steps):
        gradient = helpers.draw(rng, shapes)
        updates, stats = moving.update(gradient, stats, params)
        params = optax.apply_updates(params, updates)
        for i, g in enumerate(map(np.asarray, jax.tree.leaves(gradient))):
            direction = helpers.numpy_first_moment(name, hyper["b1"], g, m[i])
            m[i] = direction if name in helpers.HAS_M else None
            if name in helpers.HAS_V:
                v[i] = helpers.numpy_second_moment(name, hyper["b2"], g, v[i])
            leaves[i] = leaves[i] + helpers.numpy_step(
                name, hyper["lr"], hyper["eps"], direction, v[i]
            )
    for ours, expected in (
        (params, leaves),
        (getattr(stats, "m", ()), m if name in helpers.HAS_M else []),
        (getattr(stats, "v", ()), v if name in helpers.HAS_V else []),
    ):
        for a, b in zip(jax.tree.leaves(ours), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
