"""Quadratics whose answer is known: it is where the mean gradient vanishes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo


def mean_gradient(model, data, x):
    """The gradient of the mean of all clients' losses, each client counting once."""

    def loss(x):
        values = [model.loss(fo.Variables({"x": x}), data[i], None)[0] for i in range(len(data))]
        return sum(values) / len(data)

    return jax.grad(loss)(jnp.asarray(x))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heterogeneity": 0.0},
        {"noise": 0.7, "num_examples": 5},
        {"heterogeneity": 10.0, "seed": 3},
    ],
)
def test_the_mean_gradient_vanishes_at_the_optimum(options):
    model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3, **options)
    np.testing.assert_allclose(mean_gradient(model, data, optimum), 0, atol=1e-13)
    assert np.linalg.norm(mean_gradient(model, data, optimum + 0.1)) > 0.05


def test_curvature_and_spread_are_as_promised():
    _, data, optimum = fo.data.quadratics(num_clients=20, dimension=4, num_examples=3, noise=1.0)
    for i in range(20):
        curvature = data[i]["A"][0]
        np.testing.assert_allclose(curvature, curvature.T, atol=1e-14)
        eigenvalues = np.linalg.eigvalsh(curvature)
        assert eigenvalues.min() > 0.5 - 1e-12 and eigenvalues.max() < 2 + 1e-12
        np.testing.assert_array_equal(data[i]["A"], np.repeat(curvature[None], 3, axis=0))
    assert data.sizes.tolist() == [3] * 20 and optimum.shape == (4,)


def test_spread_noise_and_seed_do_what_they_say():
    """Without heterogeneity all agree; noise moves examples and not their mean; seeds differ."""

    def made(**options):
        return fo.data.quadratics(num_clients=3, dimension=2, num_examples=4, **options)

    model, data, optimum = made(heterogeneity=0.0)
    np.testing.assert_array_equal(optimum, 0)
    losses = fo.evaluate_clients(model, fo.Variables({"x": jnp.asarray(optimum)}), data)["loss"]
    np.testing.assert_array_equal(losses, 0)
    calm, noisy, again, other = (
        made(**options)[1] for options in ({}, {"noise": 0.5}, {}, {"seed": 2})
    )
    for i in range(3):
        assert np.std(noisy[i]["b"]) > 0 and np.all(calm[i]["b"] == calm[i]["b"][0])
        np.testing.assert_allclose(noisy[i]["b"].mean(0), calm[i]["b"][0], atol=1e-14)
    np.testing.assert_array_equal(calm.examples["b"], again.examples["b"])
    assert np.all(calm.examples["b"] != other.examples["b"])


def test_federated_training_reaches_it():
    """Full participation and one step per round is gradient descent on the mean."""
    model, data, optimum = fo.data.quadratics(num_clients=4, dimension=3)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.5))
    state = fo.first_state(algorithm, {"x": jnp.zeros(3)}, 4)
    run = fo.run_rounds(
        algorithm, fo.Federation(model, data, cohort=4, local_steps=1, batch_size=1), state, 200
    )
    np.testing.assert_allclose(run.state.variables.params["x"], optimum, atol=1e-12)


@pytest.mark.parametrize("name", ["num_clients", "dimension", "num_examples"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be .*at least 1, got 0"):
        fo.data.quadratics(**{"num_clients": 2, "dimension": 2} | {name: 0})
