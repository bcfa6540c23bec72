"""A triple is an optax transformation: in optax's combinators, with its schedules, and as a pytree."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.optimizers import helpers

NAMES = pytest.mark.parametrize("name", helpers.TRIPLES)
PARAMS = {"a": jnp.array([1.0, -2.0]), "b": [jnp.array(0.5)]}
GRADS = {"a": jnp.array([0.3, 4.0]), "b": [jnp.array(-1.5)]}


def _update(triple, grads=GRADS, params=PARAMS):
    return triple.update(grads, triple.init(params), params)[0]


@NAMES
def test_is_a_gradient_transformation(name):
    """As optax checks it, and of the two functions that optax unpacks."""
    triple = helpers.TRIPLES[name](0.1)
    assert isinstance(triple, optax.GradientTransformation)
    init, update = triple
    assert (init, update) == (triple.init, triple.update)


@NAMES
def test_in_optaxs_combinators(name):
    """Clipped and scaled, on masked leaves alone, and on the leaves of its label."""
    triple, other = helpers.TRIPLES[name](0.1), opt.sgd(7.0)
    chained = optax.chain(optax.clip(1.0), triple, optax.scale(0.5))
    clipped = jax.tree.map(lambda g: jnp.clip(g, -1, 1), GRADS)
    expected = jax.tree.map(lambda u: 0.5 * u, _update(triple, clipped))
    helpers.assert_trees_close(_update(chained), expected, rtol=1e-15)
    masked, own = optax.masked(triple, {"a": True, "b": [False]}), _update(triple)["a"]
    helpers.assert_trees_close(_update(masked), {"a": own, "b": GRADS["b"]}, rtol=1e-15)
    both = optax.multi_transform({"x": triple, "y": other}, {"a": "x", "b": ["y"]})
    labelled = {"a": own, "b": [-7.0 * GRADS["b"][0]]}
    helpers.assert_trees_close(_update(both), labelled, rtol=1e-15)


@NAMES
def test_update_takes_what_optax_hands_on(name):
    """By optax's names, and with arguments that it has no use for."""
    triple = helpers.TRIPLES[name](0.1)
    for tx in (triple, opt.moving(triple)):
        state = tx.init(PARAMS)
        found, _ = tx.update(updates=GRADS, state=state, params=PARAMS, value=1.0)
        helpers.assert_trees_close(found, tx.update(GRADS, state, PARAMS)[0], rtol=0)


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "replace": lambda value: value._replace(init=value.init),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize(
    "value",
    [
        *(make(0.1) for make in helpers.TRIPLES.values()),
        opt.from_optax(opt.adam(0.1)),
        opt.chain(opt.sgd(0.1)),
        fo.fedgbo(opt.adam(0.1)),
        fo.proximal(fo.scaffold(opt.sgdm(0.1)), 0.1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_copies_are_whole(value, how):
    """optuna, ray and multiprocessing copy what they are given."""
    copied = COPIES[how](value)
    assert type(copied) is type(value)
    assert jax.tree.structure(copied) == jax.tree.structure(value)
    assert jax.tree.leaves(copied) == jax.tree.leaves(value)


# Schedules ------------------------------------------------------------------------------------


def _standard(schedule):
    """A schedule whose own code mixes dtypes; the triple's stays strict."""
    return lambda count: jax.numpy_dtype_promotion("standard")(schedule)(count)


SCHEDULES = {
    # No power of two, so that float32 would show: a count of 32 bits would give it.
    "exponential": (optax.exponential_decay(0.3, 1, 0.8), lambda t: 0.3 * 0.8**t),
    "linear": (_standard(optax.linear_schedule(0.7, 0.1, 3)), lambda t: max(0.7 - t / 5, 0.1)),
    "function": (_standard(lambda count: 0.125 * (1 + count)), lambda t: 0.125 * (1 + t)),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@NAMES
def test_schedule_is_a_function_of_how_often_the_statistics_were_tracked(name, schedule):
    """A round's updates share a learning rate; `track` moves to the next, and the inverse knows it."""
    schedule, value = SCHEDULES[schedule]
    triple = helpers.TRIPLES[name](schedule)
    stats = triple.init(PARAMS)
    for t in range(4):
        constant = helpers.TRIPLES[name](value(t))
        plain = stats._replace(count=())
        moved = PARAMS
        for _ in range(2):
            updates, stats = triple.update(GRADS, stats, moved)
            helpers.assert_trees_close(updates, constant.update(GRADS, plain)[0], rtol=1e-12)
            assert int(stats.count) == t
            moved = optax.apply_updates(moved, updates)
        helpers.assert_trees_close(triple.inverse(PARAMS, moved, stats, 2), GRADS, rtol=1e-9)
        stats = triple.track(GRADS, stats)
        assert int(stats.count) == t + 1
        assert stats.count.dtype == jnp.int32


@NAMES
def test_schedule_of_the_moving_form_is_a_function_of_the_step(name):
    """There, every update tracks."""
    schedule, value = SCHEDULES["exponential"]
    moving = opt.moving(helpers.TRIPLES[name](schedule))
    stats = moving.init(PARAMS)
    for t in range(3):
        constant = opt.moving(helpers.TRIPLES[name](value(t)))
        expected, _ = constant.update(GRADS, stats._replace(count=()))
        updates, stats = moving.update(GRADS, stats)
        helpers.assert_trees_close(updates, expected, rtol=1e-12)
        assert int(stats.count) == t + 1


# Dtypes and tracing ---------------------------------------------------------------------------


@pytest.mark.parametrize("scheduled", [False, True], ids=["constant", "schedule"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@NAMES
def test_dtypes_stay_what_they_are(name, dtype, scheduled):
    """With x64 on, nothing becomes float64: updates, statistics, mean gradients, the moving form."""
    rate = SCHEDULES["exponential"][0] if scheduled else np.float64(0.1)
    triple = helpers.TRIPLES[name](rate)
    cast = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)  # noqa: E731
    params, grads = cast(PARAMS), cast(GRADS)
    stats = triple.init(params)
    updates, same = triple.update(grads, stats, params)
    moved = optax.apply_updates(params, updates)
    found = triple.inverse(params, moved, same, jnp.int32(1))
    _, moving_stats = opt.moving(triple).update(grads, stats, params)
    for tree, like in (
        (updates, params),
        (moved, params),
        (found, params),
        (same, stats),
        (triple.track(grads, stats), stats),
        (moving_stats, stats),
    ):
        assert jax.tree.map(lambda x: x.dtype, tree) == jax.tree.map(lambda x: x.dtype, like)
    if dtype == jnp.float32:
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(grads), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4)


@NAMES
def test_learning_rate_may_be_traced(name):
    """The triple is made inside jit, vmap and grad; updates are linear in the learning rate."""

    def first(rate):
        return _update(helpers.TRIPLES[name](rate))["a"][1]

    unit = float(first(1.0))
    assert unit < 0
    np.testing.assert_allclose(jax.jit(first)(0.3), 0.3 * unit, rtol=1e-12)
    rates = jnp.array([0.1, 0.2, 0.7])
    np.testing.assert_allclose(jax.vmap(first)(rates), rates * unit, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(first)(0.3), unit, rtol=1e-12)


# Pytrees --------------------------------------------------------------------------------------


@NAMES
def test_leaves_are_the_hyperparameters(name):
    """And nothing else; RMSProp's first decay, which it has not, is no leaf."""
    hyper = {"lr": 0.125, "b1": 0.5, "b2": 0.75, "eps": 0.0625}
    read = {
        "sgd": {"lr"},
        "sgdm": {"lr", "b1"},
        "rmsprop": {"lr", "b2", "eps"},
        "adagrad": {"lr", "eps"},
        "adam": {"lr", "b1", "b2", "eps"},
        "yogi": {"lr", "b1", "b2", "eps"},
    }[name]
    # 1.0 is the initial v.
    expected = {hyper[key] for key in read} | ({1.0} if name in helpers.HAS_V else set())
    assert set(jax.tree.leaves(helpers.TRIPLES[name](**hyper))) == expected


@NAMES
def test_mapped_triple_is_the_triple_of_the_mapped_hyperparameters(name):
    """tree.map keeps every part, track and inverse among them."""
    hyper = {"lr": 0.2, "b1": 0.4, "b2": 0.8, "eps": 0.1}
    mapped = jax.tree.map(lambda x: x / 2, helpers.TRIPLES[name](**hyper))
    halved = helpers.TRIPLES[name](**{key: value / 2 for key, value in hyper.items()})
    assert isinstance(mapped, opt.Triple)
    assert mapped.averages == halved.averages
    stats = mapped.init(PARAMS)
    if name in helpers.HAS_V:
        np.testing.assert_array_equal(stats.v["a"], [0.5, 0.5])
    helpers.assert_trees_close(mapped.track(GRADS, stats), halved.track(GRADS, stats), rtol=0)
    updates, _ = mapped.update(GRADS, stats)
    helpers.assert_trees_close(updates, halved.update(GRADS, stats)[0], rtol=0)
    moved = optax.apply_updates(PARAMS, updates)
    found = mapped.inverse(PARAMS, moved, stats, 1)
    helpers.assert_trees_close(found, halved.inverse(PARAMS, moved, stats, 1), rtol=0)
    moving = opt.moving(mapped).update(GRADS, stats)
    helpers.assert_trees_close(moving, opt.moving(halved).update(GRADS, stats), rtol=0)


@pytest.mark.parametrize("wrap", [lambda t: t, opt.moving, opt.from_optax, opt.chain])
@NAMES
def test_triples_that_differ_in_numbers_share_a_compilation(name, wrap):
    """Equal treedefs; a jitted function of the triple is traced once."""
    traces = []

    @jax.jit
    def update(triple):
        traces.append(None)
        return _update(triple)

    triples = [wrap(helpers.TRIPLES[name](rate)) for rate in (0.1, 0.2)]
    assert jax.tree.structure(triples[0]) == jax.tree.structure(triples[1])
    small, large = map(update, triples)
    assert len(traces) == 1
    helpers.assert_trees_close(jax.tree.map(lambda u: 2 * u, small), large, rtol=1e-12)


def test_second_moments_of_complex_gradients_are_those_of_their_magnitudes():
    """As in optax: v is not negative, and training converges."""
    params, gradient = jnp.ones(1, jnp.complex64), jnp.array([2j], jnp.complex64)
    for name, v in {"rmsprop": 1.6, "adagrad": 5.0, "adam": 1.6, "yogi": 1.8}.items():
        triple = helpers.TRIPLES[name](0.1)
        np.testing.assert_allclose(triple.track(gradient, triple.init(params)).v, [v], rtol=1e-6)
