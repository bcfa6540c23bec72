"""x W + (x A) B in programs of every library: the numbers of merged weights, and none of their size."""

import os
import pathlib
import re
import subprocess
import sys

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_opt as fo

RNG = np.random.default_rng(0)
BATCH = {
    "x": RNG.normal(size=(3, 6, 8)).astype(np.float32),
    "y": RNG.integers(5, size=3).astype(np.int32),
}
CLIENTS = 29
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Recurrent(nn.Module):
    """A loop over the positions, attention, and a kernel of ours; all in half precision but the last."""

    @nn.compact
    def __call__(self, x):
        x = nn.RNN(nn.LSTMCell(11))(x)
        x = nn.MultiHeadDotProductAttention(2, qkv_features=12, dtype=jnp.bfloat16)(x)
        x = nn.remat(nn.Dense)(20)(x.mean(1).astype(jnp.float32))
        return nn.Dense(17, dot_general=fo.models.thin_dot)(x)


class OfNnx(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, 10, decode=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(self.attention(x)).mean(1))


class OfEquinox(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(2, 8, dtype=jnp.float32, key=keys[0])
        self.cell = eqx.nn.GRUCell(8, 9, dtype=jnp.float32, key=keys[1])
        self.head = eqx.nn.Linear(9, 5, use_bias=False, dtype=jnp.float32, key=keys[2])

    def __call__(self, x):
        x = self.attention(x, x, x)
        start = jnp.zeros(9, x.dtype)
        h, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), start, x)
        return self.head(h)


def of_haiku(x):
    return hk.Linear(5)(
        hk.MultiHeadAttention(2, 7, w_init=hk.initializers.Constant(0.1))(x, x, x)[:, 0]
    )


def of_functions(params, x):
    """A stack of layers in a loop, a branch, experts, a transposed product; a bias is summed."""
    is_positive = x.sum() > 0
    x, _ = jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, params["stack"])
    x = jax.lax.cond(is_positive, lambda x: x @ params["one"], lambda x: 2 * x @ params["one"], x)
    x = jnp.einsum("bpd,edh->behp", x, params["experts"]).sum(1)
    return (x.mean(-1) @ params["out"].T) + params["bias"].sum()


def begin(key, batch):
    shapes = {
        "stack": (4, 8, 8),
        "one": (8, 9),
        "experts": (3, 9, 13),
        "out": (5, 13),
        "bias": (2, 2),
    }
    return {
        name: 0.4 * jax.random.normal(jax.random.fold_in(key, i), shape, jnp.float32)
        for i, (name, shape) in enumerate(shapes.items())
    }


# A model, and the shapes of its weights that have adapters.
MODELS = {
    "linen": (fo.models.from_linen(Recurrent()), 4 * 2 + 4 + 2),
    "nnx": (fo.models.from_nnx(OfNnx), 5),
    "equinox": (fo.models.from_equinox(OfEquinox), 4 + 2 + 1),
    "haiku": (fo.models.from_haiku(hk.transform(of_haiku)), 5),
    "functions": (fo.models.classifier(begin, of_functions), 4),
}


def adapters(variables):
    found = jax.tree.leaves(variables.params, is_leaf=lambda leaf: hasattr(leaf, "roles"))
    return [leaf for leaf in found if hasattr(leaf, "roles")]


@pytest.mark.parametrize("library", MODELS)
def test_numbers_are_those_of_merged_weights(library):
    """Loss and gradient, in training; and under vmap no client has an array of a weight's size."""
    model, number = MODELS[library]
    whole = jax.jit(model.init)(jax.random.key(0), BATCH)
    adapted = fo.models.lora(model, whole, rank=2, scale=0.5)
    start = adapted.init(jax.random.key(1), BATCH)
    assert len(adapters(start)) == number
    moved = jax.tree.map(lambda x: x + 0.2 * RNG.normal(size=x.shape).astype(x.dtype), start)
    key = jax.random.key(2)

    def own(params):
        return adapted.loss(moved._replace(params=params), BATCH, key, adapted.frozen)[0]

    def merged(params):
        variables = fo.models.merged(adapted, moved._replace(params=params))
        return model.loss(variables, BATCH, key)[0]

    (found, expected), gradients = jax.jit(
        lambda p: ((own(p), merged(p)), (jax.grad(own)(p), jax.grad(merged)(p)))
    )(moved.params)
    rounding = 2e-2 if library == "linen" else 1e-5  # bfloat16 has 8 bits.
    np.testing.assert_allclose(found, expected, rtol=rounding)
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(one, other, atol=rounding * np.abs(other).max())

    many = jax.tree.map(lambda x: jnp.stack([x] * CLIENTS), moved.params)
    program = str(jax.make_jaxpr(jax.grad(lambda p: jax.vmap(own)(p).sum()))(many))
    shapes = {
        tuple(map(int, s.split(","))) for s in re.findall(rf"\[{CLIENTS},([\d,]+)\]", program)
    }
    for adapter in adapters(start):
        outputs = [adapter.b.shape[adapter.b.ndim - len(adapter.roles.outputs) :]]
        inputs = adapter.a.shape[len(adapter.roles.batch) : -1]
        assert (*inputs, *outputs[0]) not in shapes


def test_what_looks_up_is_merged_there():
    """A table that embeds, and whose transpose gives the logits: right in both."""

    def apply(params, x):
        return params["table"][x].mean(1) @ params["table"].T

    model = fo.models.classifier(lambda key, batch: {"table": TABLE}, apply)
    batch = {"x": jnp.array([[0, 3], [2, 2]]), "y": jnp.array([4, 1])}
    whole = fo.Variables({"table": TABLE})
    adapted = fo.models.lora(model, whole, rank=2)
    start = adapted.init(jax.random.key(0), batch)
    moved = jax.tree.map(lambda x: x + jnp.float32(0.3), start)
    found, _ = adapted.loss(moved, batch, None, adapted.frozen)
    expected, _ = model.loss(fo.models.merged(adapted, moved), batch, None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, model.loss(whole, batch, None)[0])


TABLE = jnp.asarray(RNG.normal(size=(5, 7)), jnp.float32)


def run(algorithm, model, rounds=3):
    owners = np.arange(24) % 4
    data = {
        "x": RNG.normal(size=(24, 6, 8)).astype(np.float32),
        "y": RNG.integers(5, size=24).astype(np.int32),
    }
    clients = fo.ClientData.from_arrays(data, owners)
    task = fo.Federation(model, clients, cohort=4, local_steps=2, batch_size=3)
    diagnostics = ["upload_bytes"]
    return fo.run_rounds(
        algorithm, task, fo.init_state(algorithm, task), rounds, diagnostics=diagnostics
    )


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_adapters_compose(library):
    """With control variates, with matrices A that stay at home, and with compressed uploads."""
    model, _ = MODELS[library]
    whole = jax.jit(model.init)(jax.random.key(0), BATCH)
    adapted = fo.models.lora(model, whole, rank=2, where="params/**/head/**")
    first = adapted.init(jax.random.key(1), BATCH)
    (adapter,) = adapters(first)
    sgd = fo.optimizers.sgd(0.1)
    sizes = {}
    for name, algorithm in {
        "plain": fo.fedavg(sgd),
        "scaffold": fo.scaffold(sgd),
        "private": fo.private(fo.fedavg(sgd), "params/**/a"),
        "coded": fo.compressed(fo.fedavg(sgd), fo.compression.uniform(8)),
    }.items():
        found = run(algorithm, adapted)
        assert np.all(np.isfinite(found.history.loss))
        sizes[name] = float(found.history.diagnostics["upload_bytes"][0])
        if name == "private":
            kept = jax.tree.leaves(found.state.clients)
            assert any(leaf.shape == (4, *adapter.a.shape) for leaf in kept)
    state = 2 * 8 * 4 if library == "nnx" else 0
    assert sizes["plain"] == 4 * (adapter.a.size + adapter.b.size) + state
    assert sizes["scaffold"] == 2 * (sizes["plain"] - state) + state
    assert sizes["private"] == 4 * adapter.b.size + state
    assert sizes["coded"] < sizes["plain"]


def test_devices_sum_the_adapters_alone_and_hold_the_base_once():
    """The benchmark, which asserts it of the compiled program of 8 devices, on a small transformer."""
    finished = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "lora.py", "--width", "64", "--layers", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
