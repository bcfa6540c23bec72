"""The papers' models: as many parameters as their layers have, and a gradient for each of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.core.model import Objective
from fedjax_opt.models.networks.images import MobileNetV2, VisionTransformer


def dense(*widths):
    return sum(m * n + n for m, n in itertools.pairwise(widths))


def conv(size, inputs, outputs, bias=True):
    return size * size * inputs * outputs + bias * outputs


def norm(*features):
    """A scale and a shift for each."""
    return 2 * sum(features)


def residual_blocks(inputs, features, blocks, project):
    """Two unbiased 3x3 convolutions in each block, with a norm after either."""
    first = conv(3, inputs, features, False) + conv(3, features, features, False)
    more = (blocks - 1) * 2 * conv(3, features, features, False)
    shortcut = conv(1, inputs, features, False) + norm(features) if project else 0
    return first + more + norm(*[features] * 2 * blocks) + shortcut


def inverted_residual(inputs, outputs, expansion):
    """Expand (unless by 1), 3x3 on each channel, project."""
    width = expansion * inputs
    expand = conv(1, inputs, width, False) + norm(width) if expansion > 1 else 0
    return expand + 9 * width + norm(width) + conv(1, width, outputs, False) + norm(outputs)


def mobilenet(num_classes):
    total, inputs = conv(3, 3, 32, False) + norm(32), 32
    table = "1 16 1, 6 24 2, 6 32 3, 6 64 4, 6 96 3, 6 160 3, 6 320 1"
    for row in table.split(", "):
        expansion, outputs, blocks = map(int, row.split())
        for _ in range(blocks):
            total += inverted_residual(inputs, outputs, expansion)
            inputs = outputs
    return total + conv(1, 320, 1280, False) + norm(1280) + dense(1280, num_classes)


def transformer(tokens, width, depth, mlp, num_classes):
    block = 4 * dense(width, width) + norm(width, width) + dense(width, mlp, width)
    embedding = dense(16 * 16 * 3, width) + width + tokens * width
    return embedding + depth * block + norm(width) + dense(width, num_classes)


def gru_layer(inputs, size):
    return 3 * (inputs * size + size * size + 2 * size)


def lstm_layer(inputs, size):
    return 4 * (inputs * size + size * size + size)


def images(*shape):
    return {"x": np.zeros((2, *shape), np.uint8), "y": np.zeros(2, np.int32)}


TEXT = {"x": np.zeros((2, 7), np.uint8), "y": np.zeros((2, 7), np.int8)}
LAST = {"x": np.zeros((2, 7), np.int32), "y": np.zeros(2, np.uint8)}
CIFAR_BODY = sum(
    conv(3, i, o) + norm(o)
    for i, o in ((3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128))
)
SIZES = {
    "bag of words": (fo.models.bag_of_words(), TEXT | {"y": np.zeros(2, int)}, dense(5000, 2)),
    "dnn": (fo.models.dnn(), images(28, 28), dense(784, 200, 200, 62)),
    "dnn, norm": (fo.models.dnn(10, True), images(28, 28), dense(784, 200, 200, 10) + norm(200)),
    "cnn, femnist": (
        fo.models.cnn(62),
        images(28, 28),
        conv(3, 1, 32) + conv(3, 32, 64) + dense(1600, 512, 62),
    ),
    "cnn, cifar100": (
        fo.models.cnn(),
        images(32, 32, 3),
        conv(3, 3, 32) + conv(3, 32, 64) + dense(2304, 512, 100),
    ),
    "cnn, norm": (
        fo.models.cnn(10, True),
        images(32, 32, 3),
        conv(3, 3, 32) + conv(3, 32, 64) + norm(32, 64) + dense(2304, 512, 10),
    ),
    "mnist cnn": (
        fo.models.mnist_cnn(),
        images(28, 28, 1),
        conv(5, 1, 32) + conv(5, 32, 64) + dense(7 * 7 * 64, 512, 10),
    ),
    "cifar cnn": (fo.models.cifar_cnn(), images(8, 8, 3), CIFAR_BODY + dense(8 * 8 * 128, 10)),
    "lenet": (
        fo.models.lenet(),
        images(32, 32, 3),
        conv(5, 3, 64) + conv(5, 64, 64) + dense(1600, 384, 192, 10),
    ),
    "resnet20": (
        fo.models.resnet20(),
        images(32, 32, 3),
        conv(3, 3, 16, False)
        + norm(16)
        + residual_blocks(16, 16, 3, False)
        + residual_blocks(16, 32, 3, False)
        + residual_blocks(32, 64, 3, False)
        + dense(64, 10),
    ),
    "resnet18": (
        fo.models.resnet18(),
        images(32, 32, 3),
        conv(3, 3, 64, False)
        + norm(64)
        + residual_blocks(64, 64, 2, False)
        + residual_blocks(64, 128, 2, True)
        + residual_blocks(128, 256, 2, True)
        + residual_blocks(256, 512, 2, True)
        + dense(512, 10),
    ),
    "gru": (
        fo.models.gru(),
        TEXT,
        79 * 8 + gru_layer(8, 128) + gru_layer(128, 128) + dense(128, 79),
    ),
    "lstm": (
        fo.models.lstm(),
        LAST,
        80 * 8 + lstm_layer(8, 100) + lstm_layer(100, 100) + dense(100, 80),
    ),
    "stack overflow": (
        fo.models.stack_overflow_lstm(),
        TEXT,
        10_004 * 96 + lstm_layer(96, 670) + dense(670, 96, 10_004),
    ),
    "mobilenet, short": (
        fo.models.from_linen(MobileNetV2(5, stages=((1, 16, 1, 1), (6, 24, 1, 2))), features=1),
        images(32, 32, 3),
        conv(3, 3, 32, False)
        + norm(32)
        + inverted_residual(32, 16, 1)
        + inverted_residual(16, 24, 6)
        + conv(1, 24, 1280, False)
        + norm(1280)
        + dense(1280, 5),
    ),
    "transformer, small": (
        fo.models.from_linen(VisionTransformer(5, width=8, depth=1, heads=2, mlp=12), features=1),
        images(32, 48, 3),
        transformer(1 + 2 * 3, 8, 1, 12, 5),
    ),
}


def size(variables):
    return sum(leaf.size for leaf in jax.tree.leaves(variables.params))


SLOW = ("resnet18", "resnet20")  # Seconds to trace; test_networks takes the gradient of a block.


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SIZES]
)
def test_sizes_are_those_of_the_layers_and_all_are_trained(name):
    """Traced, not run: shapes of the variables, and of a training step's gradient, losses, features."""
    model, batch, expected = SIZES[name]
    key = jax.random.key(0)
    variables = jax.eval_shape(model.init, key, batch)
    assert size(variables) == expected

    def step(variables, key):
        objective = Objective(model, key)
        return objective.gradient(variables, batch)

    gradient, evaluation = jax.eval_shape(step, variables, key)
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, variables.params)
    assert set(evaluation.metrics) == {"accuracy"} and evaluation.loss.shape == ()
    if name != "bag of words":
        assert evaluation.features.shape[0] == 2
        assert evaluation.features.ndim == 2


def test_sizes_of_the_papers():
    """The megabits of the decaying-K paper's Table 1, and the counts that are well known."""
    expected = {
        "bag of words": 10_002,
        "dnn": 209_662,
        "cnn, cifar100": 1_250_852,
        "gru": 162_887,
        "mnist cnn": 1_663_370,
        "lenet": 797_962,
        "resnet20": 269_722,
        "resnet18": 11_173_962,
        "stack overflow": 4_050_748,
    }
    assert {name: SIZES[name][2] for name in expected} == expected
    megabits = {"bag of words": 0.32, "dnn": 6.71, "cnn, cifar100": 40.0, "gru": 5.21}
    for name, value in megabits.items():
        assert round(32e-6 * SIZES[name][2], 1 if value == 40 else 2) == value
    assert (mobilenet(1000), transformer(197, 768, 12, 3072, 1000)) == (3_504_872, 86_567_656)


@pytest.mark.parametrize(
    ("model", "side", "expected"),
    [
        (fo.models.resnet18(), 32, 11_173_962),
        (fo.models.resnet20(), 32, 269_722),
        (fo.models.mobilenet_v2(1000), 224, 3_504_872),
        (fo.models.vit_b16(1000), 224, 86_567_656),
    ],
    ids=["resnet18", "resnet20", "mobilenet_v2", "vit_b16"],
)
def test_large_models_have_their_sizes(model, side, expected):
    """In full, by their shapes alone."""
    variables = jax.eval_shape(model.init, jax.random.key(0), images(side, side, 3))
    assert size(variables) == expected


@pytest.mark.parametrize("name", ["dnn", "cnn", "mnist_cnn", "cifar_cnn", "lenet", "resnet18"])
def test_one_class_is_refused(name):
    """By the argument's name."""
    with pytest.raises(ValueError, match=r"num_classes must be .* at least 2, got 1"):
        getattr(fo.models, name)(num_classes=1)
