"""Parts of a model that are trained beside a frozen rest: what is learnt, and what is merged."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.core import Objective

RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(24, 6, 8)).astype(np.float32),
    "y": RNG.integers(5, size=24).astype(np.int32),
}
BATCH = {name: x[:4] for name, x in DATA.items()}


class Attention(nn.Module):
    """A dense layer, attention (kernels of three axes), and a head."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(16)(x)
        x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
        return nn.Dense(5, name="head")(x.mean(1))


MODEL = fo.models.from_linen(Attention())
VARIABLES = jax.jit(MODEL.init)(jax.random.key(0), BATCH)
HEAD = "params/head/**"


def value(model, variables, key=None):
    return jax.jit(lambda v: Objective(model, key).evaluate(v, BATCH).loss)(variables)


def train(model, algorithm=None):
    """The variables after two rounds, and the run's rows."""
    clients = fo.ClientData.from_arrays(DATA, np.arange(24) % 3)
    task = fo.Federation(model, clients, cohort=2, local_steps=2, batch_size=4)
    algorithm = algorithm or fo.fedavg(fo.optimizers.sgd(0.3))
    run = fo.run_rounds(algorithm, task, fo.init_state(algorithm, task), 2)
    return run.state.variables


@pytest.mark.parametrize("kind", ["part", "lora"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_model_begins_as_it_was_learns_and_is_merged(kind, wrapped):
    """Also under compression and a control variate; what is frozen is in no variables of the run."""
    if kind == "part":
        model = fo.models.trainable(MODEL, VARIABLES, HEAD)
    else:
        model = fo.models.lora(MODEL, VARIABLES, rank=2)
    start = model.init(jax.random.key(1), BATCH)
    expected = value(MODEL, VARIABLES)
    np.testing.assert_allclose(value(model, start), expected, rtol=1e-6)
    algorithm = fo.scaffold(fo.optimizers.sgd(0.3)) if wrapped else None
    found = train(model, algorithm)
    assert value(model, found) < expected
    size = sum(leaf.size for leaf in jax.tree.leaves(found.params))
    layers = [(8, 16)] + 4 * [(16, 16)] + [(16, 5)]
    assert size == (16 * 5 + 5 if kind == "part" else sum(2 * (m + n) for m, n in layers))
    whole = fo.models.merged(model, found)
    assert jax.tree.map(jnp.shape, whole) == jax.tree.map(jnp.shape, VARIABLES)
    np.testing.assert_allclose(value(MODEL, whole), value(model, found), rtol=1e-5)


def test_a_part_may_be_the_whole():
    model = fo.models.trainable(MODEL, VARIABLES, "params/**")
    variables = model.init(None, BATCH)
    assert value(model, variables) == value(MODEL, VARIABLES)
    assert jax.tree.structure(fo.models.merged(model, variables)) == jax.tree.structure(VARIABLES)


def test_a_part_has_the_gradient_of_the_whole():
    model = fo.models.trainable(MODEL, VARIABLES, HEAD)
    part, whole = (
        jax.jit(lambda v, m=m: Objective(m, jax.random.key(0)).gradient(v, BATCH)[0])(v)
        for m, v in ((model, model.init(None, BATCH)), (MODEL, VARIABLES))
    )
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(part["head"][name], whole["head"][name], rtol=1e-5, atol=1e-6)
    assert jax.tree.leaves(part["Dense_0"]) == []


def test_adapters_are_where_they_are_wanted_and_scaled():
    """By path; the weights are W + s A B."""
    model = fo.models.lora(
        MODEL, VARIABLES, rank=3, where="params/**/{query,out}/kernel", scale=2.0
    )
    variables = model.init(jax.random.key(0), BATCH)
    attention = "MultiHeadDotProductAttention_0"
    adapters = {name: x["kernel"] for name, x in variables.params[attention].items()}
    assert adapters["key"] is None and variables.params["head"] == {"kernel": None, "bias": None}
    variables = jax.tree.map(lambda x: x + jnp.float32(0.1), variables)
    whole = fo.models.merged(model, variables)
    for name in ("query", "out", "key"):
        kernels = (v.params[attention][name]["kernel"] for v in (whole, VARIABLES))
        found, before = (np.asarray(kernel).reshape(16, 16) for kernel in kernels)
        adapter = variables.params[attention][name]["kernel"]
        added = 0 if adapter is None else 2 * (adapter.a.reshape(16, 3) @ adapter.b.reshape(3, 16))
        np.testing.assert_allclose(found, before + added, rtol=1e-6)
    np.testing.assert_allclose(value(MODEL, whole), value(model, variables), rtol=1e-5)


def test_no_product_of_a_weights_size_is_made():
    """x W + (x A) B under `vmap`: one base for all clients, and no A B."""
    model = fo.models.lora(MODEL, VARIABLES, rank=2, where="params/head/kernel")
    variables = model.init(jax.random.key(0), BATCH)
    many = jax.tree.map(lambda x: jnp.stack([x] * 7), variables)

    def losses(frozen, many):
        return jax.vmap(lambda v: model.loss(v, BATCH, None, frozen)[0])(many)

    program = str(jax.make_jaxpr(jax.grad(lambda m: losses(model.frozen, m).sum()))(many))
    assert "[7,16,2]" in program and "[7,16,5]" not in program


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: fo.models.trainable(MODEL, VARIABLES, "params/tail/**"),
            "where must choose param",
        ),
        (lambda: fo.models.lora(MODEL, VARIABLES, 0), "rank must be .* got 0"),
        (
            lambda: fo.models.lora(MODEL, VARIABLES, 2, "tail").init(jax.random.key(0), BATCH),
            r"where must choose weights .* got 'tail'; these are \['params/Dense_0/kernel'",
        ),
        (lambda: fo.models.merged(MODEL, VARIABLES), "model must be what trainable or lora"),
    ],
)
def test_what_chooses_nothing_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
