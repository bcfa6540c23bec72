"""Estimators on a convolutional network with batch statistics, too large for a dense Hessian."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo

SIZES = (5, 12, 7)


class Net(nn.Module):
    """A small network with batch statistics; most of its parameters are in its first dense layer."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(8, (3, 3), strides=2)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.relu(x).reshape(len(x), -1)
        return nn.Dense(10)(nn.tanh(nn.Dense(128)(x)))


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(0)
    rows = {
        "x": rng.normal(size=(24, 28, 28, 1)).astype(np.float32),
        "y": rng.integers(10, size=24),
    }
    data = fo.ClientData.from_arrays(rows, np.repeat(np.arange(3), SIZES))
    model = fo.models.from_linen(Net(), train_argument="train")
    shapes = jax.eval_shape(model.init, jax.random.key(0), rows)

    def draw(leaf):  # on the host: a generator would be compiled for every shape
        fan_in = max(np.prod(leaf.shape[:-1]), 1)
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(fan_in), leaf.dtype)

    params = jax.tree.map(draw, shapes.params)
    state = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.7, leaf.dtype), shapes.state)
    return model, data, fo.Variables(params, state)


@pytest.mark.slow
def test_a_convolutional_network(network):
    model, data, variables = network
    assert sum(leaf.size for leaf in jax.tree.leaves(variables.params)) > 2e5
    curvature = fo.bounds.estimate_curvature(
        model, data, variables, per_client=False, tolerance=1e-3
    )
    assert curvature.strong_convexity.value < 0 < curvature.smoothness.value  # it is not convex
    noise = fo.bounds.estimate_noise(
        model, data, variables, batch_size=4, batching="replacement", weighting="uniform"
    )
    checked = _with_all_data_at_once(variables, data.examples, model)
    largest, gradients = map(np.asarray, checked)
    np.testing.assert_allclose(curvature.largest.value, largest, rtol=0.01)
    by_client = np.split(gradients, np.cumsum(SIZES)[:-1])
    variances = [np.sum((own - own.mean(0)) ** 2) / len(own) for own in by_client]
    np.testing.assert_allclose(noise.clients.value, np.array(variances) / 4, rtol=1e-4)
    np.testing.assert_allclose(noise.weighted.value, np.sum(variances) / 4 / 9, rtol=1e-4)


@partial(jax.jit, static_argnames="model")
def _with_all_data_at_once(variables, rows, model):
    """The largest eigenvalue by power iteration, and the gradients of all examples in one stack."""

    def gradient(params, batch):
        return jax.grad(lambda p: model.loss(variables._replace(params=p), batch, None)[0])(params)

    def flat(tree):
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])

    def one_row(row):
        return flat(gradient(variables.params, jax.tree.map(lambda x: x[None], row)))

    def step(_, carry):
        vector, _ = carry
        image = jax.jvp(lambda p: gradient(p, rows), (variables.params,), (vector,))[1]
        norm = jnp.linalg.norm(flat(image))
        return jax.tree.map(lambda x: x / norm, image), flat(vector) @ flat(image)

    gradients = jax.lax.map(one_row, rows)
    start = jax.tree.map(jnp.ones_like, variables.params)
    norm = jnp.linalg.norm(flat(start))
    start = jax.tree.map(lambda x: x / norm, start)
    return jax.lax.fori_loop(0, 30, step, (start, jnp.zeros((), gradients.dtype)))[1], gradients
