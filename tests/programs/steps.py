"""A step of a program of its own, and the same step as one local step of one client."""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

RATE = 0.1


def step_key(key):
    """The key that client 0's first step of round 0 gets."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, 0), 0), 0)


def federated_step(model, variables, batch, key):
    """The variables after one step of SGD on one client, and the round's `Info`."""
    algorithm = fo.fedavg(fo.optimizers.sgd(RATE))
    state = fo.first_state(algorithm, variables, 1, key)
    batches = jax.tree.map(lambda x: jnp.asarray(x)[None, None], batch)
    state, info = fo.make_round(algorithm, model, strategy="scan")(state, np.array([0]), batches)
    return state.variables, info


def arrays_of(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, (jax.Array, np.ndarray))]


def own_step(weights, gradient):
    """What SGD makes of the weights with the program's own gradient."""
    return [w - RATE * g for w, g in zip(arrays_of(weights), arrays_of(gradient), strict=True)]


def assert_same(found, expected):
    """To 1e-10 of a leaf's largest entry in float64, 1e-5 in float32."""
    for a, b in zip(arrays_of(found), arrays_of(expected), strict=True):
        assert a.dtype == b.dtype
        tolerance = 1e-10 if a.dtype == jnp.float64 else 1e-5
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(np.abs(b).max(), 1e-3))
