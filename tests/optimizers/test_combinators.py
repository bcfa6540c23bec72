"""`chain` and `from_optax`: what the inverse returns, and what is frozen."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_opt import optimizers as opt
from fedjax_opt.optimizers.triple import local_form
from tests.optimizers import helpers

NAMES = pytest.mark.parametrize("name", helpers.TRIPLES)
SHAPES = {"a": (3,), "b": [()]}
DECAY = 0.1
# What stands before the triple, and what it makes of (gradient, params).
PREPROCESSORS = {
    "clip": (optax.clip(1.0), lambda g, p: np.clip(g, -1, 1)),
    "decay": (optax.add_decayed_weights(DECAY), lambda g, p: g + DECAY * p),
}


def _random(seed):
    return helpers.draw(np.random.default_rng(seed), SHAPES)


def _leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


# chain ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", PREPROCESSORS)
@NAMES
def test_inverse_of_a_chain_is_the_mean_of_preprocessed_gradients(name, before):
    """The gradients as the optimiser used them: clipped, or with the decay of the moving model."""
    transformation, formula = PREPROCESSORS[before]
    triple = opt.chain(transformation, helpers.TRIPLES[name](0.3))
    assert isinstance(triple, opt.Triple)
    params = moved = _random(0)
    stats = triple.init(params)
    used = [[] for _ in _leaves(params)]
    for seed in range(1, 5):
        gradient = _random(seed)
        for i, (g, p) in enumerate(zip(_leaves(gradient), _leaves(moved), strict=True)):
            used[i].append(formula(g, p))
        updates, stats = triple.update(gradient, stats, moved)
        moved = optax.apply_updates(moved, updates)
    helpers.assert_trees_close(stats, triple.init(params), rtol=0)
    for found, seen in zip(_leaves(triple.inverse(params, moved, stats, 4)), used, strict=True):
        np.testing.assert_allclose(found, np.mean(seen, axis=0), rtol=1e-10, atol=1e-12)


@NAMES
def test_chain_is_the_triple_on_preprocessed_gradients(name):
    """In its updates, in its moving form and in `track`, which takes the mean as it is."""
    inner = helpers.TRIPLES[name](0.3)
    triple = opt.chain(optax.scale(2.0), optax.clip(1.0), inner)
    params, gradient = _random(0), _random(1)
    used = jax.tree.map(lambda g: jnp.clip(2 * g, -1, 1), gradient)
    stats, inner_stats = triple.init(params), inner.init(params)
    updates, _ = triple.update(gradient, stats, params)
    helpers.assert_trees_close(updates, inner.update(used, inner_stats)[0], rtol=1e-15)
    tracked = triple.track(used, stats).triple
    helpers.assert_trees_close(tracked, inner.track(used, inner_stats), rtol=1e-15)
    moving, stats = opt.moving(triple), triple.init(params)
    updates, stats = moving.update(gradient, stats, params)
    expected, inner_stats = opt.moving(inner).update(used, inner_stats, params)
    helpers.assert_trees_close(updates, expected, rtol=1e-15)
    helpers.assert_trees_close(stats.triple, inner_stats, rtol=1e-15)


def test_state_of_a_preprocessor_is_frozen_and_moves_in_the_moving_form():
    """optax.trace adds half of its last output, which only the moving form remembers."""
    triple = opt.chain(optax.trace(0.5), opt.sgd(1.0))
    gradient, start = jnp.array([1.0]), triple.init(jnp.zeros(1))
    updates, stats = triple.update(gradient, start)
    again, _ = triple.update(gradient, stats)
    assert (float(updates[0]), float(again[0])) == (-1.0, -1.0)
    moving = opt.moving(triple)
    updates, stats = moving.update(gradient, start)
    again, _ = moving.update(gradient, stats)
    assert (float(updates[0]), float(again[0])) == (-1.0, -1.5)


def test_chain_of_an_averaging_triple_averages_what_was_preprocessed():
    """And stays an averaging one."""
    triple = opt.chain(optax.clip(1.0), opt.from_optax(opt.sgd(0.1)))
    assert triple.averages
    stats = triple.init(jnp.zeros(1))
    for g in (0.5, 9.0):
        _, stats = triple.update(jnp.array([g]), stats, jnp.zeros(1))
    assert float(triple.inverse(None, None, stats, 2)[0]) == 0.75


# from_optax -----------------------------------------------------------------------------------


@pytest.fixture(params=["adam", "sgd", "lion", "triple"])
def averaging(request):
    """A transformation and its averaging triple; optax.adam mixes dtypes in its own code."""
    tx = {
        "adam": lambda: optax.adam(0.1),
        "sgd": lambda: optax.sgd(0.1, momentum=0.9),
        "lion": lambda: optax.lion(0.1),
        "triple": lambda: opt.adam(0.1),
    }[request.param]()
    with jax.numpy_dtype_promotion("standard"):
        yield tx, opt.from_optax(tx)


def test_averaging_inverse_is_the_mean_of_the_gradients_seen(averaging):
    """Whatever models and numbers of steps it is handed; `update` never moves the inner state."""
    _, triple = averaging
    assert triple.averages
    params = _random(0)
    start = stats = triple.init(params)
    seen = [_random(seed) for seed in range(1, 6)]
    for gradient in seen:
        _, stats = triple.update(gradient, stats, params)
    helpers.assert_trees_close(stats.inner, start.inner, rtol=0)
    mean = jax.tree.map(lambda *gs: sum(gs) / len(gs), *seen)
    helpers.assert_trees_close(triple.inverse(None, None, stats, 99), mean, rtol=1e-14)


def test_averaging_track_gives_the_mean_gradient_to_the_transformation(averaging):
    """The inner state is the transformation's after one step, and the sum is empty again."""
    tx, triple = averaging
    moving = local_form(tx)
    params, mean = _random(0), _random(1)
    _, stats = triple.update(_random(2), triple.init(params), params)
    tracked = triple.track(mean, stats, params)
    _, expected = moving.update(mean, moving.init(params), params)
    helpers.assert_trees_close(tracked.inner, expected, rtol=0)
    assert int(tracked.gradient_count) == 0
    assert all(not np.any(leaf) for leaf in _leaves(tracked.gradient_sum))
    assert jax.tree.structure(tracked) == jax.tree.structure(stats)


def test_averaging_update_and_moving_form_are_the_transformation(averaging):
    """The updates are its own; the moving form moves on and counts nothing."""
    tx, triple = averaging
    plain, moving = local_form(tx), opt.moving(triple)
    params, gradient = _random(0), _random(1)
    state, stats = plain.init(params), triple.init(params)
    expected, state = plain.update(gradient, state, params)
    helpers.assert_trees_close(triple.update(gradient, stats, params)[0], expected, rtol=0)
    updates, stats = moving.update(gradient, stats, params)
    helpers.assert_trees_close(updates, expected, rtol=0)
    helpers.assert_trees_close(stats.inner, state, rtol=0)
    assert int(stats.gradient_count) == 0


def test_discarding_the_state_of_optax_adam_is_not_freezing_it():
    """Its update reads v with the local g^2 mixed in: doubling g does not double the step."""
    params, gradient = jnp.zeros(1), jnp.array([2.0])
    triple = opt.adam(0.1, b1=0.0, b2=0.99, eps=1e-3)
    stats = triple.init(params)
    double = triple.update(2 * gradient, stats)[0]
    np.testing.assert_allclose(double, 2 * triple.update(gradient, stats)[0], rtol=1e-12)
    with jax.numpy_dtype_promotion("standard"):
        discarding = opt.from_optax(optax.adam(0.1, b1=0.0, b2=0.99, eps=1e-3))
        stats = discarding.init(params)
        one = float(discarding.update(gradient, stats, params)[0][0])
        two = float(discarding.update(2 * gradient, stats, params)[0][0])
    # From v = 0, bias-corrected Adam takes the sign of g: both steps are nearly one learning rate.
    np.testing.assert_allclose([one, two], [-0.1, -0.1], rtol=1e-3)
