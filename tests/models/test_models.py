"""Models: their formulas against NumPy, and Flax modules with batch statistics and dropout."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.oracles import reference as ref

RNG = np.random.default_rng(0)
BATCH = {"x": RNG.normal(size=(6, 3)), "y": RNG.integers(0, 4, size=6)}


def _numpy_losses(logits, labels):
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -log_probabilities[np.arange(len(labels)), labels]


# Plain functions ------------------------------------------------------------------------------


def test_cross_entropy_is_the_mean_negative_log_likelihood():
    """With each example's loss, whether it was right, and any further field of Aux."""
    logits = RNG.normal(size=(6, 4))
    loss, aux = fo.models.cross_entropy(jnp.asarray(logits), BATCH["y"], features="given")
    losses = _numpy_losses(logits, BATCH["y"])
    np.testing.assert_allclose(aux.losses, losses, rtol=1e-12)
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-12)
    np.testing.assert_array_equal(aux.metrics["accuracy"], logits.argmax(1) == BATCH["y"])
    assert (aux.state, aux.features) == (None, "given")


@pytest.mark.parametrize("hidden", [[], [5], [5, 2]])
def test_mlp_is_relu_layers(hidden):
    """The loss of a forward pass written in NumPy; no hidden layer is softmax regression."""
    model = fo.models.mlp(hidden, num_classes=4)
    variables = model.init(jax.random.key(1), BATCH)
    assert variables.state == ()
    x, layers = BATCH["x"], [variables.params[f"layer_{i}"] for i in range(len(hidden) + 1)]
    assert len(variables.params) == len(layers)
    for i, layer in enumerate(layers):
        x = x @ np.asarray(layer["w"]) + np.asarray(layer["b"])
        x = np.maximum(x, 0) if i < len(hidden) else x
    loss, aux = model.loss(variables, BATCH, None)
    np.testing.assert_allclose(aux.losses, _numpy_losses(x, BATCH["y"]), rtol=1e-12)
    np.testing.assert_allclose(loss, _numpy_losses(x, BATCH["y"]).mean(), rtol=1e-12)


@pytest.mark.parametrize("hidden", [[], [5], [5, 2]])
def test_features_of_an_mlp_are_the_inputs_of_its_last_layer(hidden):
    """Activations after the ReLU; the inputs themselves if there is no hidden layer."""
    model = fo.models.mlp(hidden, num_classes=4)
    variables = model.init(jax.random.key(1), BATCH)
    features = BATCH["x"]
    for i in range(len(hidden)):
        layer = variables.params[f"layer_{i}"]
        features = np.maximum(features @ np.asarray(layer["w"]) + np.asarray(layer["b"]), 0)
    for key in (None, jax.random.key(2)):
        _, aux = model.loss(variables, BATCH, key)
        np.testing.assert_allclose(aux.features, features, rtol=1e-12)


def test_mlp_starts_within_its_bounds():
    """Uniform within sqrt(6 / fan_in), the last layer within sqrt(1 / fan_in), biases at 0."""
    model = fo.models.mlp([300], num_classes=200)
    params = model.init(jax.random.key(0), {"x": jnp.zeros((1, 150))}).params
    for layer, bound in (("layer_0", (6 / 150) ** 0.5), ("layer_1", (1 / 300) ** 0.5)):
        weights = np.abs(params[layer]["w"])
        assert 0.99 * bound < weights.max() <= bound
        np.testing.assert_allclose(weights.mean(), bound / 2, rtol=0.02)
        assert not np.any(params[layer]["b"])
    assert params["layer_0"]["w"].shape == (150, 300)
    again = model.init(jax.random.key(0), {"x": jnp.zeros((1, 150))}).params
    np.testing.assert_array_equal(params["layer_0"]["w"], again["layer_0"]["w"])
    other = model.init(jax.random.key(1), {"x": jnp.zeros((1, 150))}).params
    assert np.any(params["layer_0"]["w"] != other["layer_0"]["w"])


@pytest.mark.parametrize(
    ("arguments", "name"), [(([0], 3), "hidden"), (([2.5], 3), "hidden"), (([], 1), "num_classes")]
)
def test_mlp_refuses_widths_that_make_no_network(arguments, name):
    """By the argument's name."""
    with pytest.raises(ValueError, match=rf"^{name} must be .* at least"):
        fo.models.mlp(*arguments)


def test_classifier_has_the_gradients_of_the_oracle():
    """Softmax regression against the reference's analytic derivative."""
    model = fo.models.classifier(
        init=lambda key, batch: {"w": jnp.zeros((3, 4)), "b": jnp.zeros(4)},
        apply=lambda params, x: x @ params["w"] + params["b"][None, :],
    )
    params = {"w": RNG.normal(size=(3, 4)), "b": RNG.normal(size=4)}
    loss, grads = ref.logreg(params, BATCH["x"], BATCH["y"])
    (found, _), gradient = jax.value_and_grad(
        lambda p: model.loss(fo.Variables(p), BATCH, None), has_aux=True
    )(jax.tree.map(jnp.asarray, params))
    np.testing.assert_allclose(found, loss, rtol=1e-12)
    for name in params:
        np.testing.assert_allclose(gradient[name], grads[name], rtol=1e-12, atol=1e-14)
    assert model.init(jax.random.key(0), BATCH).params["w"].shape == (3, 4)


def test_classifier_passes_on_the_features_that_it_is_given():
    """Beside the same logits; there are none if `apply` returns the logits alone."""

    def logits(params, x):
        return x @ params

    def both(params, x):
        return x @ params, 2 * x

    params = fo.Variables(jnp.asarray(RNG.normal(size=(3, 4))))
    plain = fo.models.classifier(None, logits)
    rich = fo.models.classifier(None, both, features=1)
    (loss, aux), (same, with_features) = (m.loss(params, BATCH, None) for m in (plain, rich))
    assert aux.features is None
    np.testing.assert_array_equal(with_features.features, 2 * BATCH["x"])
    np.testing.assert_array_equal(same, loss)
    np.testing.assert_array_equal(with_features.losses, aux.losses)


# Flax -----------------------------------------------------------------------------------------

BATCH32 = {"x": BATCH["x"].astype(np.float32), "y": BATCH["y"]}


class Norm(nn.Module):
    """A layer with batch statistics."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(5)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8)(x)
        return nn.Dense(4)(nn.relu(x))


class Drop(nn.Module):
    """A layer with dropout, which also says so under another name."""

    @nn.compact
    def __call__(self, x, deterministic=True):
        x = nn.relu(nn.Dense(16)(x))
        return nn.Dense(4)(nn.Dropout(0.5, deterministic=deterministic)(x))


class Plain(nn.Module):
    """Without an argument for training."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)


NORM = fo.models.from_linen(Norm(), train_argument="train")


def _losses(model, variables, key):
    return np.asarray(model.loss(variables, BATCH32, key)[1].losses)


def test_module_without_extras_is_its_own_logits():
    """With and without a key."""
    model = fo.models.from_linen(Plain())
    variables = model.init(jax.random.key(0), BATCH32)
    logits = np.asarray(Plain().apply({"params": variables.params}, BATCH32["x"]))
    for key in (None, jax.random.key(1)):
        np.testing.assert_allclose(
            _losses(model, variables, key), _numpy_losses(logits, BATCH["y"]), rtol=1e-5
        )
        assert model.loss(variables, BATCH32, key)[1].state is None


class Headed(nn.Module):
    """The layer with batch statistics, which also returns its penultimate activations."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(5)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.8)(x))
        return nn.Dense(4)(x), x


def test_module_may_return_features_beside_its_logits():
    """In training and in evaluation, whose activations differ; loss and state are as without."""
    model = fo.models.from_linen(Headed(), train_argument="train", features=1)
    variables = model.init(jax.random.key(0), BATCH32)
    collections = {"params": variables.params, **variables.state}
    seen = []
    for key in (None, jax.random.key(1)):
        (_, features), _ = Headed().apply(
            collections, BATCH32["x"], train=key is not None, mutable=["batch_stats"]
        )
        loss, aux = model.loss(variables, BATCH32, key)
        plain_loss, plain_aux = NORM.loss(variables, BATCH32, key)
        np.testing.assert_allclose(aux.features, features, rtol=1e-6)
        np.testing.assert_array_equal(loss, plain_loss)
        assert plain_aux.features is None
        assert jax.tree.structure(aux.state) == jax.tree.structure(plain_aux.state)
        seen.append(np.asarray(aux.features))
    assert seen[0].shape == (6, 5)
    assert np.abs(seen[0] - seen[1]).max() > 1e-2


def test_batch_statistics_move_in_training_alone():
    """By Flax's rule, 0.8 old + 0.2 of the batch; evaluation reads them and leaves them."""
    variables = NORM.init(jax.random.key(0), BATCH32)
    params, statistics = variables.params, variables.state["batch_stats"]["BatchNorm_0"]
    hidden = BATCH32["x"] @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"][None, :]
    _, aux = NORM.loss(variables, BATCH32, jax.random.key(1))
    moved = aux.state["batch_stats"]["BatchNorm_0"]
    assert jax.tree.structure(aux.state) == jax.tree.structure(variables.state)
    expected = 0.8 * statistics["mean"] + 0.2 * hidden.mean(axis=0)
    np.testing.assert_allclose(moved["mean"], expected, rtol=1e-4, atol=1e-6)
    expected = 0.8 * statistics["var"] + 0.2 * hidden.var(axis=0)
    np.testing.assert_allclose(moved["var"], expected, rtol=1e-4, atol=1e-6)
    after = fo.Variables(params, aux.state)
    assert NORM.loss(after, BATCH32, None)[1].state is None
    logits = Norm().apply({"params": params, **after.state}, BATCH32["x"], train=False)
    losses = _numpy_losses(np.asarray(logits), BATCH["y"])
    np.testing.assert_allclose(_losses(NORM, after, None), losses, rtol=1e-4)
    assert np.abs(losses - _losses(NORM, variables, None)).max() > 1e-3


def test_dropout_follows_the_key():
    """The same key drops the same units, another others, and evaluation none."""
    model = fo.models.from_linen(Drop(), rngs=("dropout",))
    off = model.init(jax.random.key(0), BATCH32)
    np.testing.assert_array_equal(
        _losses(model, off, jax.random.key(1)), _losses(model, off, None)
    )  # Nobody told the module that it is training.

    class Training(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return Drop(name="inner")(x, deterministic=not train)

    model = fo.models.from_linen(Training(), train_argument="train", rngs=("dropout",))
    variables = model.init(jax.random.key(0), BATCH32)
    one, same, other = (_losses(model, variables, jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-3
    logits = Training().apply({"params": variables.params}, BATCH32["x"], train=False)
    expected = _numpy_losses(np.asarray(logits), BATCH["y"])
    np.testing.assert_allclose(_losses(model, variables, None), expected, rtol=1e-5)


def _round_inputs(size=2, steps=2):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(size, steps, 6, 3)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 4, size=(size, steps, 6))}


@jax.jit
def _gradient(variables, batch):
    def loss(params):
        return NORM.loss(variables._replace(params=params), batch, jax.random.key(0))

    return jax.grad(loss, has_aux=True)(variables.params)


def _local_training(variables, batches):
    """One client's SGD steps, by hand."""
    for k in range(batches["y"].shape[0]):
        grads, aux = _gradient(variables, jax.tree.map(lambda leaf, k=k: leaf[k], batches))
        params = jax.tree.map(lambda p, g: p - jnp.float32(0.1) * g, variables.params, grads)
        variables = fo.Variables(params, aux.state)
    return variables


def test_batch_statistics_are_averaged_by_fedavg():
    """Parameters and statistics of two clients trained by hand."""
    variables, batches = NORM.init(jax.random.key(0), BATCH32), _round_inputs()
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    state = fo.first_state(algorithm, variables, 2)
    state, _ = fo.make_round(algorithm, NORM, strategy="scan")(state, np.array([0, 1]), batches)
    clients = [
        _local_training(variables, jax.tree.map(lambda leaf, i=i: leaf[i], batches)) for i in (0, 1)
    ]
    for ours, a, b in zip(*map(jax.tree.leaves, (state.variables, *clients)), strict=True):
        np.testing.assert_allclose(ours, (a + b) / 2, rtol=1e-4, atol=1e-6)
        assert ours.dtype == jnp.float32


def test_batch_norm_stays_private_by_its_path():
    """The patterns of the documentation find Flax's names, in params and in state."""
    where = ["params/**/BatchNorm_*/{scale,bias}", "state/**"]
    algorithm = fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where)
    variables, batches = NORM.init(jax.random.key(0), BATCH32), _round_inputs()
    state = fo.first_state(algorithm, variables, 2)
    state, _ = fo.make_round(algorithm, NORM, strategy="scan")(state, np.array([0, 1]), batches)
    shared = state.server.inner.variables
    assert shared.params["BatchNorm_0"] == {"scale": None, "bias": None}
    assert shared.params["Dense_0"]["kernel"].shape == (3, 5)
    for i in (0, 1):
        personal = fo.personal_variables(algorithm, state)(i)
        own = _local_training(variables, jax.tree.map(lambda leaf, i=i: leaf[i], batches))
        for ours, expected in (
            (personal.params["BatchNorm_0"], own.params["BatchNorm_0"]),
            (personal.state, own.state),
        ):
            for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
