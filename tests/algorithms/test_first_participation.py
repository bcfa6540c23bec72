"""What clients keep before they first take part, and what their server keeps of all of them.

Client 4 of 5 joins in the sixth round, when the model is far from where it began, and takes part again
two rounds later. What it does then is asked by test_oracles.py, whose cohorts have such a client too.
"""

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

NUM_CLIENTS, STEPS, LR, ALPHA = 5, 3, 0.1, 0.4
LATE, FIRST = 4, 5
COHORTS = [[0, 1], [1, 2], [2, 0], [0, 3], [1, 3], [0, LATE], [2, 1], [LATE, 0]]
SGD = opt.sgd(LR)
ALGORITHMS = {
    "localghbm": fo.localghbm(SGD, 0.7),
    "fedhbm": fo.fedhbm(SGD, 0.7),
    "scaffold": fo.scaffold(SGD, 2),
    "scaffold_m": fo.scaffold_m(SGD, 0.7),
    "feddyn": fo.feddyn(SGD, ALPHA),
    "adabest": fo.adabest(SGD, 0.6, 0.7),
    "feddc": fo.feddc(SGD, ALPHA),
    "moon": fo.moon(SGD, 0.6, 0.5),
}
# The fields of which the server keeps the mean over all clients.
MEANS = {"scaffold": "control", "scaffold_m": "control", "feddyn": "h"}


def _play(name):
    """The states before the rounds and after each, in NumPy."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 2 * x, helpers.random_params(rng, "linear"))
    counts = {"num_clients": NUM_CLIENTS, "steps": STEPS}
    rounds = helpers.random_rounds(rng, cohorts=COHORTS, **counts)
    states, _ = helpers.play(ALGORITHMS[name], helpers.LINEAR, params, rounds, **counts)
    return [jax.device_get(state._replace(key=None)) for state in states]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_state_is_the_initial_one_until_a_client_takes_part(name):
    """Bit for bit: zeros, no round, and for MOON the initial model."""
    states = _play(name)
    initial = helpers.entry(states[0].clients, LATE)
    for field in set(initial._fields) - {"inner"}:
        value = getattr(initial, field)
        expected = {"last_round": np.int32(-1), "previous": states[0].variables}.get(
            field, jax.tree.map(np.zeros_like, value)
        )
        helpers.assert_same_bits(value, expected)
    for t in range(FIRST + 1):
        helpers.assert_same_bits(helpers.entry(states[t].clients, LATE), initial)
    assert helpers.distance(helpers.entry(states[FIRST + 1].clients, LATE), initial) > 1e-3
    # One that takes part earlier has something by then.
    assert helpers.distance(helpers.entry(states[FIRST].clients, 0), initial) > 1e-3


@pytest.mark.parametrize("name", [*MEANS, "feddc"])
def test_server_keeps_the_mean_over_all_clients(name):
    """Also over those who have not joined, who count as zero, and whatever the weights are."""
    for state in _play(name)[1:]:
        if name == "feddc":  # alpha h - c is the mean of alpha h_i - c_i
            drift, control = state.server.drift["w"], state.server.control["w"]
            kept, own = {"w": ALPHA * drift - control}, state.clients.correction
            assert helpers.distance(drift, control) > 1e-4
        else:
            kept, own = (getattr(part, MEANS[name]) for part in (state.server, state.clients))
        helpers.assert_close(kept, jax.tree.map(lambda leaf: leaf.mean(axis=0), own), 1e-12)
        assert helpers.distance(kept, jax.tree.map(np.zeros_like, kept)) > 1e-4
