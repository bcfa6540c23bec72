"""Adapters: the same network in six forms, what they read of a batch, sequences, preprocessing."""

import functools

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedjax_opt as fo
from fedjax_opt.core import Objective

RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.normal(size=(6, 3)).astype(np.float32),
    "y": RNG.integers(0, 4, size=6).astype(np.int32),
}


class LinenNet(nn.Module):
    """One hidden layer."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(5)(x))
        return nn.Dense(4)(x), x


class NNXNet(nnx.Module):
    """The same."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 5, rngs=rngs)
        self.out = nnx.Linear(5, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.hidden(x))
        return self.out(x), x


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["hidden", "out", "activation", "steps", "scale"],
    meta_fields=["name"],
)
class TreeNet:
    """The same, as a pytree whose leaves are arrays, a function, a number and a counter."""

    def __init__(self, hidden, out, activation, steps, scale, name="net"):
        self.hidden, self.out, self.activation = hidden, out, activation
        self.steps, self.scale, self.name = steps, scale, name

    def __call__(self, x):
        (w, b), (v, c) = self.hidden, self.out
        h = self.activation(self.scale * (x @ w) + b)
        return h @ v + c, h


def create_tree(key):
    draws = jax.random.split(key)
    hidden = (jax.random.normal(draws[0], (3, 5), jnp.float32), jnp.zeros(5, jnp.float32))
    out = (jax.random.normal(draws[1], (5, 4), jnp.float32), jnp.zeros(4, jnp.float32))
    return TreeNet(hidden, out, jax.nn.relu, jnp.arange(2), 1.0)


class EquinoxNet(eqx.Module):
    """The same, of one example."""

    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        self.hidden = eqx.nn.Linear(3, 5, key=key)
        self.out = eqx.nn.Linear(5, 4, key=key)

    def __call__(self, x):
        h = jax.nn.relu(self.hidden(x))
        return self.out(h), h


@hk.transform
def haiku_net(x):
    """The same."""
    h = jax.nn.relu(hk.Linear(5)(x))
    return hk.Linear(4)(h), h


def with_leaves(tree, *leaves):
    """A tree of the same structure with these for the leaves of their shapes."""
    by_shape = {leaf.shape: leaf for leaf in leaves}
    return jax.tree.map(lambda leaf: by_shape[leaf.shape], tree)


def apply(params, x):
    h = jax.nn.relu(x @ params[0] + params[1][None])
    return h @ params[2] + params[3][None], h


FORMS = {
    "linen": lambda: fo.models.from_linen(LinenNet(), features=1),
    "nnx": lambda: fo.models.from_nnx(NNXNet, features=1),
    "haiku": lambda: fo.models.from_haiku(haiku_net, features=1),
    "equinox": lambda: fo.models.from_equinox(EquinoxNet, features=1),
    "pytree": lambda: fo.models.from_pytree(create_tree, features=1),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_one_network_agree(form):
    """Losses, accuracies, features and gradients from the same four arrays as plain functions have."""
    w, b, v, c = (
        jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((3, 5), (5,), (5, 4), (4,))
    )
    plain, model = fo.models.classifier(None, apply, features=1), FORMS[form]()
    variables = model.init(jax.random.key(1), BATCH)
    params = with_leaves(variables.params, w, b, v, c, w.T, v.T)

    @jax.jit
    def gradients(first, other):
        def loss(model, variables, params):
            return model.loss(variables._replace(params=params), BATCH, jax.random.key(0))

        empty = fo.Variables(())
        return [
            jax.grad(functools.partial(loss, m, start), has_aux=True)(params)
            for m, start, params in ((plain, empty, first), (model, variables, other))
        ]

    (expected, aux), (gradient, found) = gradients([w, b, v, c], params)
    for name in ("losses", "features"):
        np.testing.assert_allclose(getattr(found, name), getattr(aux, name), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.metrics["accuracy"], aux.metrics["accuracy"])
    again = with_leaves(gradient, *expected, expected[0].T, expected[2].T)
    for ours, wanted in zip(*map(jax.tree.leaves, (gradient, again)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)


# What is read of a batch ----------------------------------------------------------------------


def squares(outputs, labels):
    return jnp.mean((outputs - labels) ** 2, axis=1)


@pytest.mark.parametrize(
    ("apply", "reading"),
    [
        (lambda w, a: a @ w, {"inputs": "a"}),
        (lambda w, a, b: a @ w + 0 * b, {"inputs": ("a", "b")}),
        (lambda w, a: a @ w, {"inputs": lambda batch: batch["a"]}),
        (lambda w, a, b: a @ w + 0 * b, {"inputs": lambda batch: (batch["a"], batch["b"])}),
        (lambda w, a: {"mean": a @ w}, {"inputs": "a", "output": "mean"}),
        (lambda w, a: TreeNet(a @ w, 0, 0, 0, 0), {"inputs": "a", "output": "hidden"}),
        (lambda w, a: (0, 0, a @ w), {"inputs": "a", "output": lambda heads: heads[2]}),
        (lambda w, a: a @ w, {"inputs": "a", "loss": lambda *pair: jnp.mean(squares(*pair))}),
        (
            lambda w, a: a @ w,
            {"inputs": "a", "loss": lambda *p: (squares(*p).mean(), fo.Aux(losses=squares(*p)))},
        ),
    ],
)
def test_adapters_read_what_they_are_told(apply, reading):
    """Inputs and outputs by key, several, or by a function; losses of three kinds."""
    batch = {name: RNG.normal(size=(5, 2)) for name in "abc"}
    w = jnp.asarray(RNG.normal(size=(2, 2)))
    model = fo.models.classifier(None, apply, **{"labels": "c", "loss": squares, **reading})
    loss, aux = model.loss(fo.Variables(w), batch, None)
    losses = squares(batch["a"] @ w, batch["c"])
    np.testing.assert_allclose(loss, losses.mean(), rtol=1e-12)
    if aux.losses is not None:
        np.testing.assert_allclose(aux.losses, losses, rtol=1e-12)


@pytest.mark.parametrize(
    ("apply", "reading", "message"),
    [
        (lambda w, x: x, {"inputs": "image"}, r"inputs must .* got 'image' .* keys \['x', 'y'\]"),
        (lambda w, x: x, {"labels": "label"}, "labels must be keys of a batch.* got 'label'"),
        (lambda w, x: {"a": x}, {}, r"returns a dict with the keys \['a'\].* output= must say"),
        (lambda w, x: (x, x), {}, "returns a tuple of 2, .* output= must say .*features=1"),
        (lambda w, x: (x, x), {"output": 2}, "output must be a key, a place, .* a tuple, got 2"),
        (
            lambda w, x: {"a": x},
            {"output": "b"},
            r"output must .* a dict with the keys \['a'\], got 'b'",
        ),
        (lambda w, x: x, {"features": "h"}, "output must be .* got 0"),
        (lambda w, x: x, {"loss": optax.l2_loss, "labels": "x"}, "loss must return a scalar, the"),
    ],
)
def test_what_does_not_fit_is_refused(apply, reading, message):
    """With what was found, and the argument that is to say more."""
    model = fo.models.classifier(None, apply, **reading)
    with pytest.raises(ValueError, match=message):
        model.loss(fo.Variables(()), BATCH, None)


class Off(nn.Module):
    """Adds one where it is told that it is not training."""

    name_of_flag: str

    @nn.compact
    def __call__(self, x, **flags):
        return nn.Dense(4)(x) * 0 + jnp.float32(flags[self.name_of_flag])


@pytest.mark.parametrize("argument", ["deterministic", "not frozen"])
def test_an_argument_may_say_that_the_module_is_not_training(argument):
    """By names that mean it, or by 'not '."""
    net = Off(argument.removeprefix("not "))
    model = fo.models.from_linen(net, argument, loss=lambda outputs, _: jnp.mean(outputs))
    variables = model.init(jax.random.key(0), BATCH)
    losses = [model.loss(variables, BATCH, key)[0] for key in (jax.random.key(0), None)]
    assert losses == [0, 1]


def test_what_a_module_sows_is_no_state():
    class Sowing(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "x", x)
            return nn.Dense(4)(x)

    model = fo.models.from_linen(Sowing())
    assert model.init(jax.random.key(0), BATCH).state == {}


# Equinox and Haiku ----------------------------------------------------------------------------


class StatefulNet(eqx.Module):
    """Batch statistics and dropout, of one example."""

    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    steps: jax.Array

    def __init__(self, key):
        self.linear = eqx.nn.Linear(3, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.steps = jnp.arange(2)

    def __call__(self, x, state, *, key=None):
        x, state = self.norm(self.linear(x), state)
        return self.dropout(x, key=key), state


@hk.transform_with_state
def haiku_with_state(x, is_training):
    x = hk.BatchNorm(True, True, 0.9)(hk.Linear(4)(x), is_training)
    return hk.dropout(hk.next_rng_key(), 0.5, x) if is_training else x


STATEFUL = {
    "equinox": lambda: fo.models.from_equinox(eqx.nn.make_with_state(StatefulNet)),
    "haiku": lambda: fo.models.from_haiku(haiku_with_state, "is_training"),
}


@pytest.mark.parametrize("form", STATEFUL)
def test_state_and_keys_of_other_libraries(form):
    """Statistics move in training alone, dropout follows the key; a round goes through."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        _check_state_and_keys(STATEFUL[form]())


def _check_state_and_keys(model):
    variables = model.init(jax.random.key(0), BATCH)
    loss = jax.jit(lambda key: model.loss(variables, BATCH, key)[1])
    one, same, other = (loss(jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one.losses, same.losses)
    assert np.abs(one.losses - other.losses).max() > 1e-3
    assert jax.tree.structure(one.state) == jax.tree.structure(variables.state)
    leaves = zip(*map(jax.tree.leaves, (one.state, variables.state)), strict=True)
    assert any(np.any(new != old) for new, old in leaves)
    quiet, again = (jax.jit(lambda: model.loss(variables, BATCH, None)[1])() for _ in range(2))
    np.testing.assert_array_equal(quiet.losses, again.losses)
    assert quiet.state is None
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    batches = {name: jnp.stack([value[None]] * 2) for name, value in BATCH.items()}
    state, info = fo.make_round(algorithm, model, strategy="scan")(
        fo.first_state(algorithm, variables, 2), np.array([0, 1]), batches
    )
    assert np.isfinite(info.loss)
    assert jax.tree.structure(state.variables) == jax.tree.structure(variables)


# NNX ------------------------------------------------------------------------------------------


class Full(nnx.Module):
    """A layer with batch statistics, and dropout with a stream of its own."""

    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(3, 16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(16, momentum=0.8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.layers[0](x))
        return self.layers[1](self.dropout(nnx.relu(x)))


def test_nnx_module_trains_with_keys_and_evaluates_without():
    """Dropout follows the key; statistics move in training alone; no random stream is in the state."""
    model = fo.models.from_nnx(Full)
    variables = model.init(jax.random.key(0), BATCH)
    again = model.init(jax.random.key(1), BATCH)
    kernel = variables.params["layers"][0]["kernel"]
    assert np.any(kernel != again.params["layers"][0]["kernel"])
    assert jax.tree.structure(variables.state) == jax.tree.structure(
        {"norm": {"mean": 0, "var": 0}}
    )
    loss = jax.jit(lambda key: model.loss(variables, BATCH, key)[1])
    one, same, other = (loss(jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one.losses, same.losses)
    assert np.abs(one.losses - other.losses).max() > 1e-3
    hidden = BATCH["x"] @ np.asarray(kernel)
    np.testing.assert_allclose(
        one.state["norm"]["mean"], 0.2 * hidden.mean(axis=0), rtol=1e-4, atol=1e-6
    )
    still = jax.jit(lambda: model.loss(variables, BATCH, None)[1])()
    assert still.state is None
    # Evaluation by hand: statistics of mean 0 and variance 1, and nothing dropped.
    relu = np.maximum(hidden / np.sqrt(1 + 1e-5), 0)
    logits = relu @ np.asarray(variables.params["layers"][1]["kernel"])
    expected, _ = fo.models.cross_entropy(jnp.asarray(logits), BATCH["y"])
    np.testing.assert_allclose(np.mean(still.losses), expected, rtol=1e-4)


# Pytrees --------------------------------------------------------------------------------------


def test_pytree_keeps_what_is_not_trained():
    """Integers are state, functions and numbers part of the program, and a round leaves them be."""
    model = fo.models.from_pytree(create_tree, features=1)
    variables = model.init(jax.random.key(0), BATCH)
    shapes = [leaf.shape for leaf in jax.tree.leaves(variables.params)]
    assert shapes == [(3, 5), (5,), (5, 4), (4,)]
    assert [leaf.tolist() for leaf in jax.tree.leaves(variables.state)] == [[0, 1]]
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    state = fo.first_state(algorithm, variables, 2)
    batches = {name: jnp.stack([value[None]] * 2) for name, value in BATCH.items()}
    state, _ = fo.make_round(algorithm, model, strategy="scan")(state, np.array([0, 1]), batches)
    assert jax.tree.leaves(state.variables.state)[0].tolist() == [0, 1]
    assert isinstance(state.variables.params, TreeNet)
    assert model.loss(state.variables, BATCH, None)[0] < model.loss(variables, BATCH, None)[0]


def test_pytree_is_called_as_one_says():
    """With the module, the inputs and the key, which is None in evaluation."""

    def call(module, x, key):
        noise = 0.0 if key is None else jax.random.normal(key, (), jnp.float32)
        return jax.vmap(module)(x)[0] + noise * jnp.arange(4, dtype=jnp.float32)[None]

    plain, noisy = (
        fo.models.from_pytree(create_tree, c, output=o) for c, o in ((None, 0), (call, None))
    )
    variables = plain.init(jax.random.key(0), BATCH)

    @jax.jit
    def losses(keys):
        quiet = [model.loss(variables, BATCH, None)[0] for model in (plain, noisy)]
        return quiet, [noisy.loss(variables, BATCH, key)[0] for key in keys]

    (expected, quiet), noisy_losses = losses(jax.random.split(jax.random.key(0)))
    np.testing.assert_allclose(quiet, expected, rtol=1e-6)
    assert len({float(expected), *map(float, noisy_losses)}) == 3


# Labels and sequences -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (np.zeros(3), r"float64\[3\]"),
        (np.zeros((3, 1), int), r"int64\[3, 1\]"),
        (np.eye(3, 5, dtype=int), r"int64\[3, 5\]"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused(labels, found):
    with pytest.raises(ValueError, match=rf"labels must be whole numbers of shape \[3\].*{found}"):
        fo.models.cross_entropy(jnp.zeros((3, 5)), labels)


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_that_is_no_class_has_no_loss(label):
    loss, aux = fo.models.cross_entropy(jnp.zeros((3, 5)), np.array([0, label, 4]))
    np.testing.assert_array_equal(np.isnan(aux.losses), [False, True, False])
    assert np.isnan(loss)


def test_labels_may_be_integers_of_any_width():
    """Under strict promotion too; a byte is compared with classes beyond 255 as the number it is."""
    logits = RNG.normal(size=(3, 300))
    logits[1, 7 + 256] = logits[0, 0] = 9.0
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    @jax.jit
    def run(logits, labels):
        return [fo.models.cross_entropy(logits, y)[1] for y in labels]

    labels = [np.array([0, 7, 255]).astype(t) for t in (np.uint8, np.int16, np.int32, np.int64)]
    for aux in run(logits, labels):
        np.testing.assert_allclose(aux.losses, -log_p[np.arange(3), labels[0]], rtol=1e-12)
        assert aux.metrics["accuracy"].tolist() == [True, False, False]


def test_sequence_losses_are_means_over_own_tokens():
    """By a loop; a row of padding has 0 and no NaN in its gradient; the last position alone."""
    logits = RNG.normal(size=(3, 4, 5))
    labels = np.array([[0, 1, 4, 2], [3, -1, 2, -1], [-1, -1, -1, -1]], np.int8)

    def losses(logits):
        loss, aux = fo.models.sequence_cross_entropy(logits, labels, features="given")
        return loss, (aux.losses, aux.metrics["accuracy"], jnp.zeros(aux.features == "given"))

    run = jax.jit(jax.value_and_grad(losses, has_aux=True))
    (loss, (found, accuracy, given)), gradient = run(jnp.asarray(logits))
    log_p = np.asarray(jax.nn.log_softmax(logits))
    expected, right = np.zeros(3), np.zeros(3)
    for i, row in enumerate(labels):
        own = [t for t in range(4) if row[t] >= 0]
        if own:
            expected[i] = np.mean([-log_p[i, t, row[t]] for t in own])
            right[i] = np.mean([logits[i, t].argmax() == row[t] for t in own])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(accuracy, right, rtol=1e-12)
    np.testing.assert_allclose(loss, expected.mean(), rtol=1e-12)
    assert given.shape == (1,) and np.all(np.isfinite(gradient)) and not np.any(gradient[2])
    last = fo.models.sequence_cross_entropy(jnp.asarray(logits), labels[:, 0] % 5)
    once = fo.models.cross_entropy(jnp.asarray(logits[:, -1]), labels[:, 0] % 5)
    np.testing.assert_array_equal(last[1].losses, once[1].losses)
    none = fo.models.sequence_cross_entropy(jnp.asarray(logits), labels[:, 0])  # 0, 3 and -1
    np.testing.assert_array_equal(none[1].losses, [*once[1].losses[:2], 0.0])
    assert none[0] == none[1].losses.mean() and none[1].metrics["accuracy"][2] == 0
    with pytest.raises(ValueError, match=r"labels must have shape \[3, 4\] or \[3\]"):
        fo.models.sequence_cross_entropy(jnp.asarray(logits), labels[:, :2])


def test_plain_functions_take_the_loss_of_sequences():
    """A table of logits for the next symbol."""
    model = fo.models.classifier(
        lambda key, batch: jnp.zeros((3, 3)),
        lambda params, x: params[x],
        loss=fo.models.sequence_cross_entropy,
    )
    batch = {"x": jnp.array([[0, 1]]), "y": jnp.array([[1, -1]])}
    variables = model.init(jax.random.key(0), batch)
    loss, aux = jax.jit(lambda: model.loss(variables, batch, None))()
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-12)
    assert aux.losses.shape == (1,)


# Preprocessing --------------------------------------------------------------------------------


def shift(batch, key):
    """Adds noise in training and one in evaluation."""
    noise = 1.0 if key is None else jax.random.normal(key, ())
    return {**batch, "x": batch["x"] + noise}


def double(batch, key):
    del key
    return {**batch, "x": jnp.concatenate([batch["x"]] * 2, axis=1)}


def spy_model(seen):
    def loss(variables, batch, key):
        seen.append((batch["x"], key))
        return jnp.sum(variables.params), fo.Aux(losses=jnp.zeros(2))

    return fo.Model(lambda key, batch: fo.Variables(batch["x"]), loss)


def test_steps_come_before_the_model():
    """In order, in `init` without a key; each has a key of its own, the model too, or None."""
    seen = []
    model = fo.models.preprocessed(spy_model(seen), shift, double, shift)
    batch = {"x": jnp.zeros((2, 3)), "y": jnp.zeros(2, int)}
    variables = model.init(jax.random.key(0), batch)
    np.testing.assert_array_equal(variables.params, np.full((2, 6), 2.0))
    model.loss(variables, batch, None)
    model.loss(variables, batch, jax.random.key(3))
    (quiet, no_key), (noisy, key) = seen
    np.testing.assert_array_equal(quiet, np.full((2, 6), 2.0))
    assert no_key is None
    keys = jax.random.split(jax.random.key(3), 4)
    first, third = (jax.random.normal(keys[i], ()) for i in (0, 2))
    np.testing.assert_allclose(noisy, np.full((2, 6), first + third), rtol=1e-12)
    assert jax.random.key_data(key).tolist() == jax.random.key_data(keys[3]).tolist()


# What modules note down, penalties, axes ---------------------------------------------------------


class Noting(nn.Module):
    """Sows a loss and an activation, needs noise in evaluation too, and averages over an axis."""

    @nn.compact
    def __call__(self, x, train):
        self.sow("losses", "size", 3 * jnp.mean(x**2))
        self.sow("seen", "x", x)
        x = nn.BatchNorm(use_running_average=not train, axis_name="batch")(x)
        return nn.Dense(4)(x) + 0 * jax.random.normal(self.make_rng("noise"), (1, 4), jnp.float32)


class Term(nnx.Variable):
    """A loss that a module notes down."""


class NotingNNX(nnx.Module):
    """The same, of which one term begins as a variable of the module."""

    def __init__(self, rngs):
        self.dense = nnx.Linear(3, 4, rngs=rngs)
        self.term = Term(jnp.zeros((), jnp.float32))

    def __call__(self, x):
        self.term[...] = jnp.mean(x**2)
        self.sow(nnx.Intermediate, "seen", x)
        self.sow(Term, "more", 2 * jnp.mean(x**2))
        return self.dense(x)


def of_linen(**more):
    options = {"rngs": ("noise",), "dropped": ("seen", "losses"), "axis_name": "batch"}
    return fo.models.from_linen(Noting(), "train", **options | more)


def of_nnx(**more):
    return fo.models.from_nnx(NotingNNX, **{"dropped": (Term,)} | more)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
@pytest.mark.parametrize("key", [None, jax.random.key(3)])
@pytest.mark.parametrize(
    ("make", "dropping", "adding"),
    [
        (of_linen, {"added": ()}, {"dropped": ("seen",)}),
        (of_nnx, {}, {"dropped": (), "added": (Term,)}),
    ],
)
def test_what_modules_note_down_is_added_or_dropped(make, dropping, adding, key):
    """In a collection or of a type; a penalty on the parameters is added likewise."""

    def penalty(params):
        return jnp.float32(0.1) * optax.tree.norm(params, squared=True)

    plain, noted, both = make(**dropping), make(**adding), make(penalty=penalty, **adding)
    variables = plain.init(jax.random.key(0), BATCH)
    assert not set(variables.state) & {"losses", "seen", "term"}
    found = [model.loss(variables, BATCH, key)[0] for model in (plain, noted, both)]
    np.testing.assert_allclose(found[1] - found[0], 3 * np.mean(BATCH["x"] ** 2), rtol=1e-4)
    np.testing.assert_allclose(found[2] - found[1], penalty(variables.params), rtol=1e-4)
    masked = Objective(both, key, jnp.arange(6) < 4).evaluate(variables, BATCH).loss
    rows = plain.loss(variables, BATCH, key)[1].losses[:4].mean()
    np.testing.assert_allclose(masked - rows, found[2] - found[0], rtol=1e-4)
