"""Programs of their own, as people write them, federated through `from_loss`: the step is their own."""

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.programs.steps import assert_same, federated_step, own_step, step_key

KEY = jax.random.key(7)
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape))


# A variational autoencoder: needs a key, returns (loss, dictionary) -----------------------------


def vae_init(key):
    a, b, c = jax.random.split(key, 3)
    return {
        "encoder": 0.3 * jax.random.normal(a, (6, 8)),
        "decoder": 0.3 * jax.random.normal(b, (4, 6)),
        "bias": jax.random.normal(c, (6,)),
    }


def vae_loss(params, batch, key):
    mean, log_var = jnp.split(jnp.tanh(batch @ params["encoder"]), 2, axis=1)
    noise = jax.random.normal(key, mean.shape)
    image = (mean + jnp.exp(0.5 * log_var) * noise) @ params["decoder"] + params["bias"][None]
    kl = 0.5 * jnp.mean(jnp.sum(mean**2 + jnp.exp(log_var) - log_var - 1, axis=1))
    error = jnp.mean(jnp.sum((image - batch) ** 2, axis=1))
    return error + kl, {"kl": kl, "parts": {"error": error}, "image": image}


def test_variational_autoencoder():
    """A key in training; in evaluation one of the batch's index, the same every time."""
    model = fo.models.from_loss(vae_init, vae_loss)
    x = normal(5, 6)
    variables = model.init(KEY, x)
    found, info = federated_step(model, variables, x, KEY)
    gradient, aux = jax.grad(vae_loss, has_aux=True)(variables.params, x, step_key(KEY))
    assert_same(found.params, own_step(variables.params, gradient))
    np.testing.assert_allclose(info.metrics["kl"], aux["kl"], rtol=1e-12)
    assert set(info.metrics) == {"kl", "parts/error"}
    test = normal(6, 6)
    once, again = (fo.evaluate(model, variables, test, batch_size=3) for _ in range(2))
    assert once == again
    keys = [jax.random.fold_in(jax.random.key(0), i) for i in (0, 1)]
    parts = [vae_loss(variables.params, test[3 * i : 3 * i + 3], keys[i])[0] for i in (0, 1)]
    np.testing.assert_allclose(once["loss"], np.mean(parts), rtol=1e-12)


def test_simulates_with_a_test_set():
    """The whole verb, where the loss needs a key in evaluation; client sizes are multiples of B."""
    model = fo.models.from_loss(vae_init, vae_loss)
    clients = fo.ClientData.from_list([np.asarray(normal(8, 6)) for _ in range(4)])
    federation = fo.Federation(
        model, clients, cohort=2, local_steps=3, batch_size=4, test=np.asarray(normal(10, 6))
    )
    result = fo.simulate(fo.fedavg(fo.optimizers.sgd(0.01)), federation, 3, progress=False)
    assert np.all(np.isfinite(result.evaluations["loss"])) and "kl" in result.evaluations


# Batch normalisation by hand: a state, and one more loss for evaluation -------------------------


def normed(params, state, x, training):
    h = x @ params["w"]
    mean, var = (h.mean(0), h.var(0)) if training else (state["mean"], state["var"])
    new = jax.tree.map(lambda old, now: 0.9 * old + 0.1 * now, state, {"mean": mean, "var": var})
    return (h - mean[None]) / jnp.sqrt(var + 1e-5)[None] @ params["v"], new


def norm_loss(params, state, batch):
    x, y = batch
    logits, state = normed(params, state, x, True)
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y]), state


def norm_test(params, state, batch):
    x, y = batch
    logits, _ = normed(params, state, x, False)
    right = jnp.argmax(logits, 1) == y
    loss = -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])
    return loss, (state, {"accuracy": right})


def test_batch_normalisation_with_state():
    params = {"w": normal(4, 8), "v": normal(8, 3)}
    state = {"mean": jnp.zeros(8), "var": jnp.ones(8)}
    model = fo.models.from_loss((params, state), norm_loss, stateful=True, evaluation=norm_test)
    batch = (normal(6, 4), jnp.asarray(RNG.integers(0, 3, 6)))
    variables = model.init(KEY, batch)
    found, _ = federated_step(model, variables, batch, KEY)
    gradient, new = jax.grad(norm_loss, has_aux=True)(params, state, batch)
    assert_same(found.params, own_step(params, gradient))
    assert_same(found.state, new)
    assert set(fo.evaluate(model, variables, batch)) == {"accuracy", "loss"}
    (_, aux), (_, plain) = model.loss(variables, batch, None), model.loss(variables, batch, KEY)
    assert_same(aux.state, state)
    assert_same(plain.state, new)


# Flax Linen with dropout and batch statistics ----------------------------------------------------


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(nn.relu(x)))


def test_linen_program_with_state_and_key():
    net = LinenNet()

    def init(key, batch):
        variables = net.init(key, batch["image"], train=False)
        return variables["params"], variables["batch_stats"]

    def loss(params, batch_stats, batch, rng):
        logits, new = net.apply(
            {"params": params, "batch_stats": batch_stats}, batch["image"], train=True,
            rngs={"dropout": rng}, mutable=["batch_stats"],
        )  # fmt: skip
        labels = jax.nn.one_hot(batch["label"], 3, dtype=logits.dtype)
        losses = -jnp.sum(labels * jax.nn.log_softmax(logits), axis=1)
        return losses.mean(), (new["batch_stats"], {"first": logits[0, 0]})

    model = fo.models.from_loss(init, loss, stateful=True)
    batch = {
        "image": normal(6, 4).astype(np.float32),
        "label": jnp.asarray(RNG.integers(0, 3, 6)),
    }
    variables = model.init(KEY, batch)
    found, info = federated_step(model, variables, batch, KEY)
    gradient, (new, aux) = jax.grad(loss, has_aux=True)(*variables, batch, step_key(KEY))
    assert_same(found.params, own_step(variables.params, gradient))
    assert_same(found.state, new)
    np.testing.assert_allclose(info.metrics["first"], aux["first"], rtol=1e-5)


# Haiku: the key comes second ----------------------------------------------------------------------


def test_haiku_program():
    def forward(tokens):
        h = hk.Embed(11, 8)(tokens)
        h = hk.dropout(hk.next_rng_key(), 0.2, hk.LayerNorm(-1, True, True)(h))
        return hk.Linear(11)(jax.nn.gelu(hk.Linear(16)(h)))

    net = hk.transform(forward)

    def loss(params, rng, batch):
        logits = net.apply(params, rng, batch["obs"])
        targets = jax.nn.one_hot(batch["target"], 11)
        return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))

    model = fo.models.from_loss(lambda key, batch: net.init(key, batch["obs"]), loss, key="second")
    tokens = RNG.integers(0, 11, (4, 9))
    batch = {"obs": tokens[:, :-1], "target": tokens[:, 1:]}
    variables = model.init(KEY, batch)
    found, _ = federated_step(model, variables, batch, KEY)
    gradient = jax.grad(loss)(variables.params, step_key(KEY), batch)
    assert_same(found.params, own_step(variables.params, gradient))
    assert np.isfinite(fo.evaluate(model, variables, batch)["loss"])


# Equinox: the module is the weights ---------------------------------------------------------------


class Attention(eqx.Module):
    """Layers, a function, a number, a table of integers and a lambda among its leaves."""

    embed: eqx.nn.Embedding
    out: eqx.nn.MLP
    positions: jax.Array
    scale: float

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.embed = eqx.nn.Embedding(7, 4, key=a)
        self.out = eqx.nn.MLP(4, 7, 8, 1, activation=lambda x: jnp.tanh(x), key=b)
        self.positions = jnp.arange(5)
        self.scale = 0.5

    def __call__(self, tokens):
        h = jax.vmap(self.embed)(tokens) * jnp.cos(self.positions * self.scale)[:, None]
        return jax.vmap(self.out)(jax.nn.softmax(h @ h.T) @ h)


def equinox_loss(model, batch):
    scores = jax.nn.log_softmax(jax.vmap(model)(batch["x"]))
    return -jnp.mean(jnp.take_along_axis(scores, batch["y"][..., None], axis=-1))


@pytest.mark.parametrize("given", (True, False), ids=("weights", "constructor"))
def test_equinox_module(given):
    module = Attention(KEY)
    model = fo.models.from_loss(module if given else Attention, equinox_loss)
    tokens = jnp.asarray(RNG.integers(0, 7, (3, 6)))
    batch = {"x": tokens[:, :-1], "y": tokens[:, 1:]}
    variables = model.init(KEY, batch)
    found, _ = federated_step(model, variables, batch, KEY)
    gradient = eqx.filter_grad(equinox_loss)(module, batch)
    weights = eqx.filter(module, eqx.is_inexact_array)
    assert_same(found.params, own_step(weights, gradient))
    np.testing.assert_array_equal(found.state[1][0], np.arange(5))
    assert jax.tree.structure(model.init(jax.random.key(1), batch)) == jax.tree.structure(found)


class Normed(eqx.Module):
    layer: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.layer = eqx.nn.Linear(4, 3, key=key)
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")

    def __call__(self, x, state):
        return self.norm(self.layer(x), state)


def test_equinox_state():
    """A state that may be used only once, and a batch normalisation with the name of an axis."""

    def loss(model, state, batch):
        run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        out, state = run(batch[0], state)
        return jnp.mean((out - batch[1]) ** 2), state

    def init(key):
        return eqx.nn.make_with_state(Normed)(key)

    model = fo.models.from_loss(init, loss, stateful=True)
    batch = (normal(6, 4), normal(6, 3))
    variables = model.init(KEY, batch)
    found, _ = federated_step(model, variables, batch, KEY)
    module, state = init(KEY)
    gradient, new = eqx.filter_grad(loss, has_aux=True)(module, state, batch)
    assert_same(found.params, own_step(eqx.filter(module, eqx.is_inexact_array), gradient))
    assert_same(found.state, new)


# No loss of an example exists -----------------------------------------------------------------------


def test_generator_and_discriminator_with_aux():
    """Two players in one tree: each one's gradient is stopped in the other's loss."""

    def loss(params, batch, key):
        noise = jax.random.normal(key, (batch.shape[0], 2))
        stopped = jax.lax.stop_gradient(params)
        fake = jnp.tanh(noise @ params["generator"])
        real_score = batch @ params["critic"]
        critic = jnp.mean(jax.nn.softplus(-real_score)) + jnp.mean(
            jax.nn.softplus(jnp.tanh(noise @ stopped["generator"]) @ params["critic"])
        )
        generator = jnp.mean(jax.nn.softplus(-(fake @ stopped["critic"])))
        return critic + generator, (critic, generator)

    params = {"generator": normal(2, 3), "critic": normal(3)}
    model = fo.models.from_loss(params, loss)
    batch = normal(6, 3)
    found, info = federated_step(model, model.init(KEY, batch), batch, KEY)
    gradient, aux = jax.grad(loss, has_aux=True)(params, batch, step_key(KEY))
    assert_same(found.params, own_step(params, gradient))
    np.testing.assert_allclose(info.metrics["1"], aux[1], rtol=1e-12)


def test_residuals_of_a_differential_equation():
    """u'' = f on sorted collocation points: second derivatives, and neighbours in the loss."""

    def u(params, x):
        return jnp.tanh(x * params["a"] + params["b"]) @ params["c"]

    def loss(params, batch):
        x = jnp.sort(batch["x"])
        residual = jax.vmap(jax.grad(jax.grad(lambda t: u(params, t))))(x) - jnp.sin(x)
        ends = u(params, 0.0) ** 2 + u(params, 1.0) ** 2
        return jnp.sum(jnp.diff(x) * residual[1:] ** 2) + ends

    params = {"a": normal(8), "b": normal(8), "c": normal(8)}
    model = fo.models.from_loss(params, loss)
    batch = {"x": normal(9)}
    found, _ = federated_step(model, model.init(KEY, batch), batch, KEY)
    assert_same(found.params, own_step(params, jax.grad(loss)(params, batch)))


def test_sum_over_the_examples():
    """A log likelihood: the step follows the sum, evaluation is a mean over the examples."""

    def loss(params, batch):
        return jnp.sum((batch["x"] @ params["w"] - batch["y"]) ** 2) / 2

    params = {"w": normal(3)}
    model = fo.models.from_loss(params, loss, reduction="sum")
    batch = {"x": normal(6, 3), "y": normal(6)}
    variables = model.init(KEY, batch)
    found, info = federated_step(model, variables, batch, KEY)
    assert_same(found.params, own_step(params, jax.grad(loss)(params, batch)))
    np.testing.assert_allclose(info.loss, loss(params, batch), rtol=1e-12)
    for size in (2, 6):
        evaluated = fo.evaluate(model, variables, batch, batch_size=size)["loss"]
        np.testing.assert_allclose(evaluated, loss(params, batch) / 6, rtol=1e-12)


# What is refused -----------------------------------------------------------------------------------

WEIGHTS = {"w": np.zeros(2)}


@pytest.mark.parametrize(
    ("loss", "options", "words"),
    [
        (lambda params, rng, batch: 0, {}, r"key='last' calls loss\(params, batch, key\).*'second'"),
        (lambda params, x, y: 0, {}, r"loss\(params, x, y\).*lambda params, batch: loss"),
        (lambda params, state, batch: 0, {}, r"stateful=True, key='none' calls loss\(params, st"),
        (lambda batch, params: 0, {}, r"loss\(batch, params\)"),
        (lambda p, b, mask=None: 0, {}, r"key='none' calls loss\(params, batch\); .*key='last'"),
        (lambda p, *rest: 0, {}, r"loss\(p, \*args\) can be read"),
        (lambda p: 0, {}, r"loss\(p\) fits none"),
        (lambda p, s, b: 0, {"stateful": True, "key": "last"}, r"does not fit stateful=True, key='la"),
        (lambda p, b, *, rate: 0, {}, r"functools.partial\(loss, rate=\.\.\.\)"),
        (lambda p, b: 0, {"stateful": True}, r"loss\(p, b\).*stateful=False"),
        (lambda p, b: 0, {"reduction": "max"}, "reduction must be one of"),
        (lambda p, b: 0, {"key": "first"}, "key must be one of"),
        ("loss", {}, "loss must be a function, got str"),
    ],
)  # fmt: skip
def test_losses_that_can_be_read_in_two_ways_are_refused(loss, options, words):
    weights = (WEIGHTS, ()) if options.get("stateful") else WEIGHTS
    with pytest.raises(ValueError, match=words):
        fo.models.from_loss(weights, loss, **options)


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, b, r: p["w"].sum() * jax.random.normal(r),
        lambda p, b, key=None: p["w"].sum() * jax.random.normal(key),
        lambda p, b, l2=0.1: p["w"].sum() * l2,
        lambda p, b, train=True: p["w"].sum() if train else None,
    ],
)
def test_losses_with_one_reading(loss):
    model = fo.models.from_loss(WEIGHTS, loss)
    value, _ = model.loss(model.init(KEY, WEIGHTS), WEIGHTS, KEY)
    assert value.shape == ()


def test_weights_and_returns_are_checked():
    with pytest.raises(ValueError, match="init_or_params must be a function"):
        fo.models.from_loss({"w": "text"}, lambda p, b: 0)
    with pytest.raises(ValueError, match=r"must take \(key\) or \(key, batch\)"):
        fo.models.from_loss(lambda: 0, lambda p, b: 0)
    with pytest.raises(ValueError, match=r"must give \(params, state\), got dict"):
        fo.models.from_loss(WEIGHTS, lambda p, s, b: 0, stateful=True)
    model = fo.models.from_loss(WEIGHTS, lambda p, b: (0.0, 1, 2))
    with pytest.raises(ValueError, match=r"a scalar or \(scalar, aux\), got a tuple of 3"):
        model.loss(fo.Variables(WEIGHTS), WEIGHTS, None)
    model = fo.models.from_loss((WEIGHTS, ()), lambda p, s, b: 0.0, stateful=True)
    with pytest.raises(ValueError, match=r"\(scalar, state\) or .*, got a float"):
        model.loss(fo.Variables(WEIGHTS), WEIGHTS, None)
