"""A learning rate that is 0 in some round: a warm-up's first, a decay's last."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.algorithms import helpers

RATES = (0.0, 0.1, 0.0, 0.1)


def _rate(count):
    return jnp.asarray(RATES)[count]


# What reads a gradient off a displacement, and which of its server's fields a round at 0 leaves alone.
FIELDS = {
    "fedgbo-sgdm": (lambda: fo.fedgbo(opt.sgdm(_rate)), ("variables", "optimizer")),
    "fedgbo-adam": (lambda: fo.fedgbo(opt.adam(_rate)), ("variables", "optimizer")),
    "fedgbo-clipped": (
        lambda: fo.fedgbo(opt.chain(optax.clip(0.5), opt.adam(_rate))),
        ("variables", "optimizer"),
    ),
    "fedcm": (lambda: fo.fedcm(opt.sgd(_rate), 0.5), ("variables", "direction")),
    "feddc": (lambda: fo.feddc(opt.sgd(_rate)), ("control",)),  # h moves the model in every round
    # Its clients' gradients are summed, so their mean c moves.
    "scaffold-m": (lambda: fo.scaffold_m(opt.sgd(_rate), 0.5), ("variables", "direction")),
    "ghbm-theory": (
        lambda: fo.ghbm_theory(opt.sgd(_rate), 2, 0.5),
        ("variables", "momentum", "ring"),
    ),
}


def _floats(server, fields):
    leaves = jax.tree.leaves([getattr(server, field) for field in fields])
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


@pytest.mark.parametrize("name", FIELDS)
def test_nothing_moves_in_a_round_at_0_and_the_next_goes_on(name):
    make, fields = FIELDS[name]
    rng = np.random.default_rng(0)
    params = helpers.random_params(rng, "linear")
    rounds = helpers.random_rounds(rng, rounds=len(RATES), num_clients=3)
    states, infos = helpers.play(make(), helpers.LINEAR, params, rounds, num_clients=3, steps=4)
    for t, (before, after, info) in enumerate(zip(states[:-1], states[1:], infos, strict=True)):
        assert bool(info.finite) and int(after.round) == t + 1
        pairs = zip(_floats(before.server, fields), _floats(after.server, fields), strict=True)
        same = [np.array_equal(old, new) for old, new in pairs]
        assert all(same) if RATES[t] == 0 else not any(same), t


def test_summed_gradients_are_known_in_a_round_at_0():
    """No displacement shows them: SCAFFOLD-M's control variates move all the same."""
    rng = np.random.default_rng(0)
    params = helpers.random_params(rng, "linear")
    rounds = helpers.random_rounds(rng, rounds=1, num_clients=3)
    algorithm = fo.scaffold_m(opt.sgd(_rate), 0.5)
    (before, after), _ = helpers.play(
        algorithm, helpers.LINEAR, params, rounds, num_clients=3, steps=4
    )
    assert helpers.distance(before.server.control, after.server.control) > 1e-3
