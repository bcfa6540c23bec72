"""Tiny problems that the tests of the core share, and what NumPy says about them."""

import contextlib
import dataclasses
import sqlite3

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo

DIMENSION = 3


def _init(key, batch):
    return fo.Variables({"w": jax.random.normal(key, batch["x"].shape[1:])})


def _loss(variables, batch, key):
    del key
    residuals = batch["x"] @ variables.params["w"] - batch["y"]
    losses = residuals**2 / 2
    return losses.mean(), fo.Aux(losses=losses, metrics={"distance": jnp.abs(residuals)})


# Linear regression. One object for all tests: a model is compiled in, so sharing it shares programs.
MODEL = fo.Model(_init, _loss)


def counted():
    """The same model as a new object, and a list that grows whenever its loss is traced."""
    traces = []

    def loss(variables, batch, key):
        traces.append(None)
        return _loss(variables, batch, key)

    return fo.Model(_init, loss), traces


def ragged(sizes, seed=0):
    """Clients of the given sizes, each with a linear problem of its own."""
    generator = np.random.default_rng(seed)
    clients = []
    for size in sizes:
        x = generator.normal(size=(size, DIMENSION))
        y = x @ generator.normal(size=DIMENSION) + 0.1 * generator.normal(size=size)
        clients.append({"x": x, "y": y})
    return fo.ClientData.from_list(clients)


def changed(federation, options):
    """The federation with those options that are fields of it, and the other options."""
    names = {field.name for field in dataclasses.fields(fo.Federation)}
    fields = {name: value for name, value in options.items() if name in names}
    rest = {name: value for name, value in options.items() if name not in names}
    return federation.replace(**fields), rest


def start_at():
    """A model that is not at any special point."""
    return fo.Variables({"w": jnp.array([0.3, -0.2, 0.1])})


def start(algorithm, num_clients, seed=0):
    """A state with such a model."""
    return fo.first_state(algorithm, start_at(), num_clients, seed)


def gradient(w, x, y):
    """The gradient of the mean loss over the rows of x."""
    return x.T @ (x @ w - y) / len(y)


def mean_loss(w, x, y):
    """The mean loss over the rows of x."""
    return np.mean((x @ w - y) ** 2) / 2


def arrays(tree):
    """The leaves as NumPy arrays, keys as the words that they hold."""
    return [
        np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        for leaf in jax.tree.leaves(tree)
    ]


def _is_key(leaf):
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def assert_identical(left, right):
    """Two pytrees hold the same bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


def assert_close(left, right, rtol=1e-12):
    """Two pytrees agree up to the rounding of sums in another order."""
    for a, b in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def stored_clients(folder):
    """The clients that have a row of their own in a folder of client states."""
    found = set()
    for path in sorted(folder.glob("*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as database:
            found |= set(database.execute("SELECT client FROM rows WHERE client >= 0").fetchall())
    return sorted(client for (client,) in found)
