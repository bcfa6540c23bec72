"""What the papers' models compute: against NumPy, against Flax's own layers, and by training."""

import dataclasses

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import fedjax_opt as fo
from fedjax_opt.core import Objective
from fedjax_opt.models.networks.images import (
    CNN,
    DNN,
    Block,
    CifarCNN,
    MobileNetV2,
    ResNet,
    Unit,
    VisionTransformer,
)
from fedjax_opt.models.networks.recurrent import GRULayer, LSTMLayer

RNG = np.random.default_rng(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def randomised(init, *arguments):
    """Variables of which none is zero or one, so that each shows; only their shapes are `init`'s."""
    shapes = jax.eval_shape(init, jax.random.key(0), *arguments)
    return jax.tree.map(lambda p: (RNG.normal(size=p.shape) / 3).astype(p.dtype), shapes)


def train(model, variables, batch, steps, learning_rate):
    """The losses and Aux of SGD on one batch."""

    @jax.jit
    def run(variables):
        def step(params, _):
            def loss(p):
                return model.loss(variables._replace(params=p), batch, jax.random.key(0))

            (value, aux), gradient = jax.value_and_grad(loss, has_aux=True)(params)
            return jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient), (value, aux)

        return jax.lax.scan(step, variables.params, None, steps)[1]

    return run(variables)


# Texts ----------------------------------------------------------------------------------------


def test_gru_layer_is_its_equations():
    """A loop over time in NumPy."""
    x = RNG.normal(size=(5, 2, 3)).astype(np.float32)
    layer = GRULayer(4)
    variables = randomised(layer.init, x)
    w, b, u, c = (
        np.split(np.asarray(variables["params"][name], np.float64), 3, axis=-1)
        for name in ("input_kernel", "input_bias", "recurrent_kernel", "recurrent_bias")
    )
    h, states = np.zeros((2, 4)), []
    for t in range(5):
        r, z = (sigmoid(x[t] @ w[i] + b[i] + h @ u[i] + c[i]) for i in (0, 1))
        n = np.tanh(x[t] @ w[2] + b[2] + r * (h @ u[2] + c[2]))
        h = (1 - z) * n + z * h
        states.append(h)
    np.testing.assert_allclose(jax.jit(layer.apply)(variables, x), states, rtol=1e-5, atol=1e-6)


def test_gru_layer_has_its_derivatives():
    """Forward and backward, once and twice, against differences; and under vmap."""
    x = RNG.normal(size=(4, 2, 3))
    layer = GRULayer(2)
    variables = jax.tree.map(lambda p: p.astype(float), randomised(layer.init, np.float32(x)))

    @jax.jit
    def states(variables, x):
        return layer.apply(variables, x)

    check_grads(states, (variables, x), order=2, modes=("fwd", "rev"), rtol=1e-6, atol=1e-6)
    many = jax.tree.map(lambda p: np.stack([p, -p]), variables)
    gradient = jax.grad(lambda *inputs: jnp.sum(states(*inputs) ** 2))
    found = jax.vmap(gradient, in_axes=(0, None))(many, x)
    expected = gradient(jax.tree.map(lambda p: p[1], many), x)
    chex.assert_trees_all_close(jax.tree.map(lambda g: g[1], found), expected, rtol=1e-12)


def test_lstm_layer_is_its_equations():
    """A loop over time in NumPy."""
    x = RNG.normal(size=(5, 2, 3)).astype(np.float32)
    layer = LSTMLayer(4)
    variables = randomised(layer.init, x)
    w, u, b = (
        np.split(np.asarray(variables["params"][name], np.float64), 4, axis=-1)
        for name in ("input_kernel", "recurrent_kernel", "bias")
    )
    h, c, states = np.zeros((2, 4)), np.zeros((2, 4)), []
    for t in range(5):
        i, f, o, g = (x[t] @ w[k] + h @ u[k] + b[k] for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    np.testing.assert_allclose(jax.jit(layer.apply)(variables, x), states, rtol=1e-5, atol=1e-6)


def test_recurrent_weights_start_within_their_bounds():
    """Uniform within 1 / sqrt(units)."""
    x = jnp.zeros((1, 1, 30), jnp.float32)
    params = jax.jit(GRULayer(25).init)(jax.random.key(0), x)["params"]
    for leaf in params.values():
        assert 0.18 < np.abs(leaf).max() <= 0.2


def test_language_model_learns_a_sequence():
    """Every position predicts the next of a cycle; ids of bytes, one row padded, the features last."""
    model = fo.models.gru(vocabulary=5, embedding=4, hidden=(8,))
    x = (np.arange(6)[None] + np.arange(4)[:, None]) % 5
    y = (x + 1) % 5
    y[3, 2:] = -1
    batch = {"x": x.astype(np.uint8), "y": y.astype(np.int8)}
    variables = randomised(model.init, batch)
    losses, aux = train(model, variables, batch, steps=60, learning_rate=0.5)
    assert losses[-1] < 0.3 < 1.2 < losses[0]
    np.testing.assert_array_equal(aux.metrics["accuracy"][-1], 1)
    assert aux.features.shape == (60, 4, 8)


@pytest.mark.parametrize("normalise", [True, False])
def test_bag_of_words_is_counts_times_a_matrix(normalise):
    """Logits and gradients of the dense product; padding and unknown ids count for nothing."""
    ids = np.array([[3, 0, 3, -1], [-1, -1, -1, -1], [6, 2, 7, -9]], np.int16)
    model = fo.models.bag_of_words(7, 3, normalise=normalise)
    batch = {"x": ids, "y": np.array([0, 1, 2])}
    counts = np.array([[(row == i).sum() for i in range(7)] for row in ids], float)
    if normalise:
        counts /= np.maximum(counts.sum(axis=1, keepdims=True), 1)
    variables = model.init(jax.random.key(0), batch)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(variables))
    params = {"w": RNG.normal(size=(7, 3)), "b": RNG.normal(size=3)}
    dense = fo.models.classifier(None, lambda p, x: x @ p["w"] + p["b"][None])

    def run(model, x):
        def loss(p):
            return model.loss(fo.Variables(p), {**batch, "x": x}, None)

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    for found, expected in zip(
        *map(jax.tree.leaves, (run(model, ids), run(dense, counts))), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


# Images ---------------------------------------------------------------------------------------


class Ordinary(nn.Module):
    """The CNN of Flax's own layers, in the same order, with fewer features."""

    @nn.compact
    def __call__(self, x):
        for features in (4, 6):
            x = nn.relu(nn.Conv(features, (3, 3), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(7)(x.reshape(x.shape[0], -1)))
        return nn.Dense(5)(x)


def test_cnn_is_the_one_of_flax_layers_and_learns():
    """The same logits; grey bytes are scaled and gain a channel; ten images are learnt by heart."""
    x = RNG.integers(0, 256, size=(10, 10, 10)).astype(np.uint8)
    batch = {"x": x, "y": np.arange(10) % 5}
    net = CNN(5, features=(4, 6), hidden=(7,))
    model = fo.models.from_linen(net, "train", features=1)
    variables = randomised(model.init, batch)
    scaled = x[..., None].astype(np.float32) / 255

    @jax.jit
    def logits(params, x, scaled):
        collections = {"params": params}
        return net.apply(collections, x)[0], Ordinary().apply(collections, scaled)

    found, expected = logits(variables.params, x, scaled)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    losses, _ = train(model, variables, batch, steps=150, learning_rate=0.2)
    assert losses[-1] < losses[0] / 2


def test_residual_network_has_the_numbers_of_either_convolution():
    """Losses, and gradients of all parameters, with our ways of convolving and with XLA's."""
    batch = {"x": RNG.normal(size=(2, 6, 6, 3)).astype(np.float32), "y": np.arange(2)}
    model = fo.models.from_linen(ResNet(5, ((16, 1), (32, 1))), features=1)
    variables = randomised(model.init, batch)

    @jax.jit
    def run(variables):
        models = [
            dataclasses.replace(model, fast_convolutions=s) for s in ("winograd", True, False)
        ]
        return [Objective(m, jax.random.key(0)).gradient(variables, batch)[0] for m in models]

    winograd, products, expected = run(variables)
    for found, tolerance in ((winograd, 1e-4), (products, 1e-5)):
        for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


def test_shortcut_without_parameters_pads_its_features():
    """Blocks of zeros leave the stem's biases, in the middle of the features."""
    x = RNG.normal(size=(2, 8, 8, 3)).astype(np.float32)
    net = ResNet(5, ((4, 0), (8, 1)), project=False)
    variables = jax.tree.map(np.zeros_like, randomised(net.init, x))
    variables["params"]["GroupNorm_0"]["bias"] += np.arange(1, 5, dtype=np.float32)
    features = jax.jit(net.apply)(variables, x)[1]
    np.testing.assert_allclose(features, [[0, 0, 1, 2, 3, 4, 0, 0]] * 2, atol=1e-6)


def test_inverted_residual_adds_its_input():
    """Where a block projects to nothing, what it was given goes on, and tells two images apart."""
    x = RNG.normal(size=(2, 4, 4, 3)).astype(np.float32)
    net = MobileNetV2(3, stages=((1, 8, 1, 1),), stem=8, head=8, groups=2)
    variables = randomised(net.init, x)
    projection = variables["params"]["Unit_2"]
    projection["GroupNorm_0"] = jax.tree.map(np.zeros_like, projection["GroupNorm_0"])
    one, other = jax.jit(net.apply)(variables, x)[1]
    assert np.abs(one - other).max() > 1e-3


def test_patches_of_the_transformer_are_squares():
    """The embedding of a patch sees its own square of the image and nothing else."""
    net = VisionTransformer(3, patch=2, width=4, depth=0)
    x = np.zeros((1, 4, 6, 1), np.float32)
    variables = randomised(net.init, x)

    @jax.jit
    def tokens(x):
        _, seen = net.apply(variables, x, capture_intermediates=True)
        return seen["intermediates"]["Dense_0"]["__call__"][0][0]

    base = np.asarray(tokens(x))
    x[0, 2:4, 4:6] = RNG.normal(size=(2, 2, 1))
    changed = np.abs(np.asarray(tokens(x)) - base).max(axis=1) > 1e-6
    assert changed.tolist() == [False, False, False, False, False, True]
    with pytest.raises(ValueError, match="multiples of 2, got 3 x 4"):
        jax.eval_shape(net.init, jax.random.key(0), np.zeros((1, 3, 4, 1), np.float32))


@pytest.mark.parametrize(
    "net",
    [
        CifarCNN(4, features=(4,), dropout=(0.5,)),
        CNN(4, features=(4,), hidden=(6,), batch_norm=True),
        DNN(4, hidden=(6, 5), batch_norm=True),
    ],
    ids=["cifar cnn", "cnn", "dnn"],
)
def test_dropout_and_batch_statistics_are_for_training_alone(net):
    """Evaluation reads the statistics and leaves them; dropout, where there is any, follows the key."""
    batch = {"x": RNG.normal(size=(4, 4, 4, 3)).astype(np.float32), "y": np.arange(4)}
    model = fo.models.from_linen(net, "train", ("dropout",), features=1)
    variables = randomised(model.init, batch)
    variables = variables._replace(state=jax.tree.map(np.abs, variables.state))

    @jax.jit
    def run(variables, keys):
        shifted = variables._replace(state=jax.tree.map(lambda s: s + 1, variables.state))
        quiet = [model.loss(v, batch, None)[1] for v in (variables, shifted)]
        return quiet, [model.loss(variables, batch, key)[1] for key in keys]

    (quiet, shifted), (one, same, other) = run(variables, [jax.random.key(k) for k in (1, 1, 2)])
    np.testing.assert_array_equal(one.losses, same.losses)
    assert (np.abs(one.losses - other.losses).max() > 1e-3) == isinstance(net, CifarCNN)
    assert np.abs(quiet.losses - shifted.losses).max() > 1e-3
    assert quiet.state is None
    before, after = (state["batch_stats"]["BatchNorm_0"] for state in (variables.state, one.state))
    assert np.abs(after["mean"] - before["mean"]).max() > 1e-4


def test_strided_convolutions_are_padded_on_both_sides():
    """The first window of a residual block and of a mobile unit is centred on the first pixel."""
    x = np.zeros((1, 4, 4, 8), np.float32)
    x[0, 0, 0] = 1
    for net in (Block(8, 2, 2, True), Unit(8, 3, 2, groups=2)):
        variables = jax.tree.map(np.zeros_like, randomised(net.init, x))
        variables["params"]["Conv_0"]["kernel"][1, 1] = 1.0
        apply = jax.jit(lambda v, x, net=net: net.apply(v, x, capture_intermediates=True)[1])
        seen = apply(variables, x)["intermediates"]["Conv_0"]["__call__"][0]
        assert seen.shape == (1, 2, 2, 8)
        assert np.all(np.asarray(seen[0, 0, 0]) == 8) and not np.any(seen[0, 1:, 1:])


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        ("cnn", np.zeros((2, 64), np.float32), "x must be images .* got shape"),
        (
            "cnn",
            np.zeros((2, 5, 9), np.uint8),
            r"x must be images of which 2 .* got shape \[2, 5, 9",
        ),
        ("lenet", np.zeros((2, 4, 4), np.uint8), r"x must be images of which 2 .*\(5, 5\)"),
        ("cnn", np.zeros((2, 28, 28), np.int32), "x must be uint8 .* got int32"),
        ("dnn", np.zeros((2, 28, 28), bool), "x must be uint8 .* got bool"),
        ("gru", np.zeros((2, 80), np.float32), "x must be integers"),
        ("gru", np.zeros(80, np.uint8), "x must be integers"),
    ],
)
def test_models_refuse_what_is_not_their_input(model, x, message):
    """By name, with what came."""
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(getattr(fo.models, model)().init, jax.random.key(0), {"x": x})
