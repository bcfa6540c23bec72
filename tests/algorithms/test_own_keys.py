"""A key in an optimiser's statistics: of each client and round its own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt

pytestmark = pytest.mark.slow  # every run is compiled

# Nothing moves but the noise.
MODEL = fo.Model(None, lambda variables, batch, key: (0.0 * jnp.sum(variables.params), fo.Aux()))
MAKES = {
    "fedavg": lambda: fo.fedavg(optax.noisy_sgd(0.1, key=0)),
    "chain": lambda: fo.fedavg(
        opt.chain(optax.add_noise(1.0, 0.0, jax.random.key(0)), opt.sgd(1.0))
    ),
    "scaffold": lambda: fo.scaffold(optax.noisy_sgd(0.1, key=0)),
    "private": lambda: fo.private(fo.fedavg(optax.noisy_sgd(0.1, key=0)), "state"),
    "pfedme": lambda: fo.pfedme(optax.noisy_sgd(0.1, key=0), 1.0, 0.1, 2),
}


@pytest.fixture(autouse=True)
def _optax_promotes():
    with jax.numpy_dtype_promotion("standard"):
        yield


def _played(make, rounds=2, steps=2, clients=3):
    """The models after each round in which one client alone has a say, `[rounds, clients, 4]`."""
    algorithm = make()
    play = jax.jit(fo.make_round(algorithm, MODEL))
    start = fo.Variables(jnp.zeros(4), jnp.zeros(1))
    batches = {"x": jnp.zeros((clients, steps, 1, 1))}
    found = []
    for weights in np.eye(clients):
        state = fo.first_state(algorithm, start, clients)
        for _ in range(rounds):
            before = state.variables.params
            state, _ = play(state, jnp.arange(clients), batches, weights=jnp.asarray(weights))
            found.append(np.asarray(state.variables.params - before))
    return found


@pytest.mark.parametrize("name", MAKES)
def test_noise_differs_between_clients_and_rounds(name):
    found = _played(MAKES[name])
    for one, other in itertools.combinations(found, 2):
        assert np.all(one != other)
    for one, again in zip(found, _played(MAKES[name]), strict=True):
        np.testing.assert_array_equal(one, again)


def test_steps_of_a_round_draw_as_the_optimiser_does():
    """From one key per round: the second step's noise is not the first's."""
    [once], [twice] = (_played(MAKES["chain"], rounds=1, steps=k, clients=1) for k in (1, 2))
    assert np.all(np.abs(twice - 2 * once) > 1e-6)
