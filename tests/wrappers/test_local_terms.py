"""What wrappers add to local gradients: weight decay, clipping, and terms on the model's features."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.core import Objective, get_variables, set_variables
from tests.algorithms import helpers

NUM_CLIENTS, STEPS, LR = 5, 3, 0.2


def _loss(variables, batch, key):
    """Linear regression; its features are what each input adds to the prediction."""
    del key
    features = batch["x"] * variables.params["w"][None, :]
    errors = jnp.sum(features, axis=1) - batch["y"].astype(features.dtype)
    return jnp.mean(errors**2) / 2, fo.Aux(losses=errors**2 / 2, features=features)


MODEL = fo.Model(None, _loss)

# One local step -------------------------------------------------------------------------------

SGD = fo.fedavg(opt.sgd(1.0))


@partial(jax.jit, static_argnames="model")
def _gradient(algorithm, w, batch, mask=None, start=None, previous=None, model=MODEL):
    """The gradient along which one local step of SGD(1) goes from w.

    The client began at `start`, and finished last time with `previous`.
    """
    at, start, previous = (fo.Variables({"w": w if x is None else x}) for x in (w, start, previous))
    message = algorithm.broadcast(algorithm.init(start))
    client = algorithm.init_client(previous)
    local = set_variables(algorithm.start(message, client), at)
    one, zero = jnp.int32(1), jnp.int32(0)
    context = fo.Context(message, client, (), (), one, zero, one, one, zero)
    moved, _ = algorithm.step(local, Objective(model, None, mask), batch, context)
    return w - get_variables(moved).params["w"]


def _batch(seed=0, rows=6):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 3)), "y": rng.normal(size=rows)}


W = np.array([0.8, -0.5, 0.3])
START, PREVIOUS = np.array([0.2, 0.9, -0.4]), np.array([-0.7, 0.1, 0.6])


def _plain(w, batch):
    """The gradient of the loss alone, by hand."""
    return batch["x"].T @ (batch["x"] @ w - batch["y"]) / len(batch["y"])


def _slope(function, w, step=1e-5):
    """Central differences: off by f''' h^2 / 6, and by rounding of about 1e-16 / h."""
    return np.array(
        [(function(w + step * e) - function(w - step * e)) / (2 * step) for e in np.eye(len(w))]
    )


def test_the_step_that_the_others_change():
    np.testing.assert_allclose(_gradient(SGD, W, _batch()), _plain(W, _batch()), rtol=1e-12)


def test_weight_decay_adds_the_weights():
    found = _gradient(fo.weight_decay(SGD, 0.3), W, _batch())
    np.testing.assert_allclose(found, _plain(W, _batch()) + 0.3 * W, rtol=1e-12)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), max_norm=st.floats(1e-3, 1e3), scale=st.floats(1e-3, 1e3))
def test_clipped_gradients_are_no_longer_than_allowed(seed, max_norm, scale):
    """They keep their direction, and those that are short enough are left as they are."""
    batch, w = _batch(seed), W * scale
    plain = np.asarray(_gradient(SGD, w, batch))
    found = np.asarray(_gradient(fo.clipped(SGD, max_norm), w, batch))
    length = np.linalg.norm(plain)
    # Read off a difference of numbers of the size of w and of the gradient.
    rounding = 4e-16 * (np.linalg.norm(w) + length)
    assert np.linalg.norm(found) <= max_norm + rounding
    np.testing.assert_allclose(found, plain * min(1, max_norm / length), rtol=0, atol=2 * rounding)
    if length < max_norm:
        np.testing.assert_array_equal(found, plain)


def test_a_gradient_of_zero_stays_zero():
    """And finite: nothing is divided by its length."""
    batch = {"x": np.zeros((6, 3)), "y": np.zeros(6)}
    np.testing.assert_array_equal(_gradient(fo.clipped(SGD, 0.1), W, batch), np.zeros(3))


@pytest.mark.parametrize(
    ("add", "term"),
    [
        (lambda a: fo.weight_decay(a, 5.0), 5.0 * W),
        (lambda a: fo.proximal(a, 5.0), 5.0 * (W - START)),
    ],
    ids=["weight_decay", "proximal"],
)
def test_what_is_clipped_holds_every_penalty(add, term):
    """In either order."""
    total = _plain(W, _batch()) + term
    assert np.linalg.norm(total) > 1.0
    for algorithm in (fo.clipped(add(SGD), 1.0), add(fo.clipped(SGD, 1.0))):
        found = _gradient(algorithm, W, _batch(), start=START)
        np.testing.assert_allclose(found, total / np.linalg.norm(total), rtol=1e-12)


def test_of_two_clippings_the_tighter_one_counts():
    for first, second in ((0.1, 2.0), (2.0, 0.1)):
        found = _gradient(fo.clipped(fo.clipped(SGD, first), second), W, _batch())
        np.testing.assert_allclose(np.linalg.norm(found), 0.1, rtol=1e-12)


# Terms on the features, against differences of what NumPy says that they are ------------------


def _numpy_loss(w, batch):
    return np.mean((batch["x"] @ w - batch["y"]) ** 2) / 2


def _numpy_entropy_term(w, batch):
    """The mean of KL(u || p), p the softmax of the features."""
    h = batch["x"] * w
    p = np.exp(h) / np.exp(h).sum(axis=1, keepdims=True)
    u = 1 / h.shape[1]
    return np.mean(np.sum(u * np.log(u / p), axis=1))


def _numpy_contrast(w, batch, start, previous, temperature):
    """The mean of -log(e^near / (e^near + e^far)), as it is written."""

    def cosine(a, b):
        return np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    z, of_start, of_previous = (batch["x"] * v for v in (w, start, previous))
    near, far = (np.exp(cosine(z, other) / temperature) for other in (of_start, of_previous))
    return np.mean(-np.log(near / (near + far)))


TERMS = {
    "max_entropy": (
        lambda a: fo.max_entropy(a, 2.0),
        lambda w, batch: 2.0 * _numpy_entropy_term(w, batch),
    ),
    "contrastive": (
        lambda a: fo.contrastive(a, 3.0, 0.4),
        lambda w, batch: 3.0 * _numpy_contrast(w, batch, START, PREVIOUS, 0.4),
    ),
    "both": (
        lambda a: fo.max_entropy(fo.contrastive(a, 3.0, 0.4), 2.0),
        lambda w, batch: (
            2.0 * _numpy_entropy_term(w, batch)
            + 3.0 * _numpy_contrast(w, batch, START, PREVIOUS, 0.4)
        ),
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_the_gradient_of_a_term_on_the_features(name):
    """Alone, and with rows that do not count, which may hold anything."""
    wrap, term = TERMS[name]
    batch = _batch(1)

    def total(batch):
        return _slope(lambda w: _numpy_loss(w, batch) + term(w, batch), W)

    def found(batch, mask=None):
        return _gradient(wrap(SGD), W, batch, mask, START, PREVIOUS)

    np.testing.assert_allclose(found(batch), total(batch), rtol=1e-8)
    assert np.linalg.norm(total(batch) - _plain(W, batch)) > 0.1
    mask = np.array([True, False, True, True, False, True])
    counted = {name: rows[mask] for name, rows in batch.items()}
    garbage = jax.tree.map(np.copy, batch)
    garbage["x"][~mask] = garbage["y"][~mask] = 9.0
    for rows in (batch, garbage):
        np.testing.assert_allclose(found(rows, mask), total(counted), rtol=1e-8)


def test_features_may_have_any_shape():
    """They are one vector per example."""

    def cubes(variables, batch, key):
        loss, aux = MODEL.loss(variables, batch, key)
        return loss, aux._replace(features=aux.features[:, None, :, None])

    wrap, _ = TERMS["both"]
    flat, found = (
        _gradient(wrap(SGD), W, _batch(1), None, START, PREVIOUS, model)
        for model in (MODEL, fo.Model(None, cubes))
    )
    np.testing.assert_allclose(found, flat, rtol=1e-12)


def test_alike_activations_have_no_entropy_to_gain():
    """All inputs and weights are equal: the term is flat there, and zero."""
    batch = {"x": np.ones((6, 3)), "y": np.arange(6.0)}
    w = np.full(3, 0.7)
    found = _gradient(fo.max_entropy(SGD, 5.0), w, batch)
    np.testing.assert_allclose(found, _plain(w, batch), rtol=1e-12)


def test_the_contrastive_term_is_flat_where_both_models_are_one():
    """As in the first round: the two cosines cancel, whatever the local model."""
    found = _gradient(fo.contrastive(SGD, 5.0), W, _batch(), None, START, START)
    np.testing.assert_allclose(found, _plain(W, _batch()), rtol=1e-12)


def test_features_of_zero_have_finite_gradients():
    """A model that starts at zero, or a ReLU that is off, has features without a direction."""
    zero = np.zeros(3)
    for start, previous in ((START, PREVIOUS), (zero, zero)):
        found = _gradient(TERMS["both"][0](SGD), zero, _batch(), None, start, previous)
        assert np.all(np.isfinite(found))


# Hyperparameters ------------------------------------------------------------------------------

BY_RATE = {
    "weight_decay": fo.weight_decay,
    "proximal": fo.proximal,
    "clipped": fo.clipped,
    "max_entropy": fo.max_entropy,
    "contrastive": fo.contrastive,
    "temperature": lambda a, rate: fo.contrastive(a, 1.0, rate),
}


@pytest.mark.parametrize("name", BY_RATE)
def test_a_rate_may_be_of_another_precision(name):
    """The model keeps its own."""
    wrap = BY_RATE[name]
    expected = _gradient(wrap(SGD, 0.25), W, _batch(), None, START, PREVIOUS)
    found = _gradient(wrap(SGD, np.float32(0.25)), W, _batch(), None, START, PREVIOUS)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.dtype == np.float64


def _single_precision_loss(variables, batch, key):
    loss, aux = MODEL.loss(variables, batch, key)
    return loss.astype(jnp.float32), aux


@pytest.mark.parametrize("model", [MODEL, fo.Model(None, _single_precision_loss)])
@pytest.mark.parametrize("name", BY_RATE)
def test_a_model_may_be_of_half_precision(name, model):
    """Its loss too, or not: nothing is promoted, and the gradient is the exact one up to rounding."""
    wrap = BY_RATE[name]
    exact = W, _batch(), None, START, PREVIOUS
    half = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), exact)
    found = _gradient(wrap(SGD, 0.25), *half, model)
    assert found.dtype == jnp.bfloat16
    # Eight bits: 0.004 in each of a handful of numbers around one.
    np.testing.assert_allclose(
        np.asarray(found, float), _gradient(wrap(SGD, 0.25), *exact), rtol=0, atol=0.03
    )


def _problem(seed=0, rounds=2):
    rng = np.random.default_rng(seed)
    rounds = helpers.random_rounds(rng, num_clients=NUM_CLIENTS, steps=STEPS, rounds=rounds)
    return {"w": rng.normal(size=3)}, rounds


def _play(algorithm, params, rounds, model=MODEL):
    return helpers.play(algorithm, model, params, rounds, num_clients=NUM_CLIENTS, steps=STEPS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fo.weight_decay(SGD, -0.1), r"rate must lie in \[0\.0, inf\], got -0\.1"),
        (lambda: fo.weight_decay(SGD, "0.1"), "rate must be a number, got '0.1'"),
        (lambda: fo.clipped(SGD, 0.0), r"max_norm must lie in \(0\.0, inf\], got 0\.0"),
        (lambda: fo.clipped(SGD, -1.0), r"max_norm must lie in \(0\.0, inf\], got -1\.0"),
        (lambda: fo.clipped(SGD, np.nan), "max_norm must lie in .* got nan"),
        (lambda: fo.max_entropy(SGD, -1.0), r"beta must lie in \[0\.0, inf\], got -1\.0"),
        (lambda: fo.contrastive(SGD, -1.0), r"mu must lie in \[0\.0, inf\], got -1\.0"),
        (lambda: fo.contrastive(SGD, 1.0, 0.0), r"temperature must lie in \(0\.0, inf\], got 0"),
    ],
)
def test_wrong_rates_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Whole rounds ---------------------------------------------------------------------------------

FEDAVG = fo.fedavg(opt.sgd(LR))
_CLIPPING = optax.clip_by_global_norm(0.3)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (fo.weight_decay(FEDAVG, helpers.DECAY), helpers.with_decay(opt.sgd(LR))),
        (fo.clipped(FEDAVG, 0.3), opt.chain(_CLIPPING, opt.sgd(LR))),
    ],
    ids=["weight_decay", "clipped"],
)
def test_around_fedavg_a_wrapper_is_the_preprocessor_of_optax(ours, theirs):
    """There is no correction between the gradient and the optimiser."""
    problem = _problem()
    found, expected = _play(ours, *problem)[0], _play(fo.fedavg(theirs), *problem)[0]
    helpers.assert_close(found[-1].server, expected[-1].server, 1e-12)
    plain = _play(FEDAVG, *problem)[0]
    assert helpers.distance(found[-1].variables, plain[-1].variables) > 1e-2


def test_masked_rows_of_a_round_may_hold_anything():
    """Also for terms on the features: the round is the one over smaller minibatches."""
    rng, algorithm = np.random.default_rng(3), TERMS["both"][0](fo.fedavg(opt.sgd(LR)))
    batches = {"x": rng.normal(size=(2, STEPS, 4, 3)), "y": rng.normal(size=(2, STEPS, 4))}
    fewer = jax.tree.map(lambda leaf: leaf[:, :, :3], batches)
    mask = np.broadcast_to(np.arange(4) < 3, (2, STEPS, 4))
    batches["x"][~mask] = batches["y"][~mask] = np.nan
    round_fn = fo.make_round(algorithm, MODEL, strategy="scan")
    state = fo.first_state(algorithm, {"w": W}, 2)
    whole = masked = state
    for _ in range(2):
        whole, _ = round_fn(whole, np.arange(2), fewer)
        masked, info = round_fn(masked, np.arange(2), batches, mask=mask)
        assert bool(info.finite)
    helpers.assert_close(masked.server, whole.server, 1e-12)
    helpers.assert_close(masked.clients, whole.clients, 1e-12)
    assert helpers.distance(masked.variables, state.variables) > 1e-2
