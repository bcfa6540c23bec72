"""Synthetic federated problems whose answer is known."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Aux, Model, Variables, checks
from fedjax_opt.core.client_data import ClientData


def quadratics(
    num_clients: int, dimension: int, *, heterogeneity: float = 1.0, noise: float = 0.0,
    num_examples: int = 1, seed: int = 0,
) -> tuple[Model, ClientData, np.ndarray]:  # fmt: skip
    """Strongly convex quadratics, different for each client, with a known common optimum.

    Client i minimises `f_i(x) = (x - b_i)^T A_i (x - b_i) / 2` with A_i symmetric, eigenvalues in
    [1/2, 2], and b_i spread around the origin. The mean of all f_i is smallest at
    `x* = (sum A_i)^-1 sum A_i b_i`.

    Args:
      num_clients: N.
      dimension: d.
      heterogeneity: the spread of the b_i; 0 for clients that agree on the optimum.
      noise: the standard deviation of the examples of a client around its b_i; their mean is b_i.
      num_examples: the examples of each client.
      seed: of the random problem.

    Returns:
      (model, data, x*): parameters are `{"x": [d]}`, and an example is `{"A": [d, d], "b": [d]}`.
      The features of an example, for algorithms that look at them, are x - b.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=3, dimension=2)
      >>> optimum.shape
      (2,)
    """
    checks.integer("num_clients", num_clients, low=1)
    checks.integer("dimension", dimension, low=1)
    checks.integer("num_examples", num_examples, low=1)
    generator = np.random.default_rng(seed)
    rotations = np.linalg.qr(generator.normal(size=(num_clients, dimension, dimension)))[0]
    eigenvalues = generator.uniform(0.5, 2.0, size=(num_clients, dimension))
    curvature = np.einsum("nij,nj,nkj->nik", rotations, eigenvalues, rotations)
    centres = heterogeneity * generator.normal(size=(num_clients, dimension))
    scatter = generator.normal(size=(num_clients, num_examples, dimension))
    scatter -= scatter.mean(axis=1, keepdims=True)
    dtype = np.dtype(jnp.result_type(float))
    clients = [
        {
            "A": np.repeat(curvature[i][None], num_examples, axis=0).astype(dtype),
            "b": (centres[i] + noise * scatter[i]).astype(dtype),
        }
        for i in range(num_clients)
    ]
    optimum = np.linalg.solve(curvature.sum(0), np.einsum("nij,nj->i", curvature, centres))
    return Model(_init, _loss), ClientData.from_list(clients), optimum


def _init(key: Any, batch: Any) -> Variables:
    del key
    return Variables({"x": jnp.zeros(batch["b"].shape[-1], batch["b"].dtype)})


def _loss(variables, batch, key):
    del key
    away = variables.params["x"][None] - batch["b"]
    losses = jnp.einsum("ni,nij,nj->n", away, batch["A"], away) / 2
    return jnp.mean(losses), Aux(losses=losses, features=away)
