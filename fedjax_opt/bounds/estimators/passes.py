"""Passes over the clients' data: mean losses, their gradients, and Hessian-vector products.

    f_c(x) = the mean loss of client c over its n_c rows,    F(x) = sum_c p_c f_c(x)

with p_c = n_c / n ('samples') or 1 / N ('uniform'). A pass walks over clients and over chunks of their
rows, so that no more than one chunk's activations and one gradient are held. The model is called with
`key=None`: dropout is off, and batch statistics are those of `variables.state`.

A function from parameters to (loss, gradient), both means over data, is called a slope here. Its
parameters and gradient are one flat vector, since what is built on it is linear algebra.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Model, Objective, Variables, checks, trees
from fedjax_opt.core.federation import WEIGHTINGS
from fedjax_opt.core.struct import struct
from fedjax_opt.engine.minibatches import rows_feed
from fedjax_opt.execution import Strategy, strategies
from fedjax_opt.execution.jobs import counted_loop

# One client after the other: the others' gradients are not in memory.
_ONE_BY_ONE = Strategy("scan")

Slope = Callable[[jax.Array], tuple[jax.Array, jax.Array]]


class Problem(NamedTuple):
    """The data as arguments of a compiled program; `weights` are the p_c."""

    examples: Any
    offsets: jax.Array
    sizes: jax.Array
    weights: jax.Array

    @property
    def feeds(self) -> tuple[jax.Array, jax.Array]:
        """Where each client's rows begin, and how many there are."""
        return self.offsets, self.sizes

    @property
    def num_rows(self) -> int:
        """The number of all rows."""
        return jax.tree.leaves(self.examples)[0].shape[0]


@struct("chunk_size", "pooled_chunk")
class Fixed:
    """The model, and how many rows are looked at together, which is compiled in.

    Where F is the mean over all rows, a chunk of `pooled_chunk` rows may hold those of several clients.
    """

    model: Model
    chunk_size: int
    pooled_chunk: int | None

    @property
    def by_client(self) -> "Fixed":
        """The same for a program that looks at one client at a time, whatever their weights."""
        return dataclasses.replace(self, pooled_chunk=None)


class Layout(NamedTuple):
    """How a tree of parameters lies in one vector; sums are kept in float32 or better."""

    structure: Any
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, tree: Any) -> "Layout":
        """The layout of a tree of arrays."""
        leaves, structure = jax.tree.flatten(tree)
        return cls(structure, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves))

    @property
    def dtype(self) -> Any:
        """The widest of the leaves' types, float32 at least."""
        return max(
            (trees.sum_dtype(leaf.dtype) for leaf in self.leaves), key=lambda d: jnp.finfo(d).bits
        )

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(leaf.size for leaf in self.leaves)

    def vector(self, tree: Any) -> jax.Array:
        """The tree as one vector."""
        return jnp.concatenate([x.ravel().astype(self.dtype) for x in jax.tree.leaves(tree)])

    def tree(self, vector: jax.Array) -> Any:
        """The vector as a tree."""
        ends = np.cumsum([leaf.size for leaf in self.leaves])[:-1]
        parts = jnp.split(vector, ends)
        leaves = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, self.leaves, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)


def prepare(model: Model, data: Any, weighting: str, chunk_size: int) -> tuple[Problem, Fixed]:
    """Checks the data, and parts what is traced from what is compiled in."""
    checks.choice("weighting", weighting, WEIGHTINGS)
    chunk_size = checks.integer("chunk_size", chunk_size, low=1)
    offsets, sizes = np.asarray(data.offsets), np.asarray(data.sizes)
    (num_rows,) = checks.leading_axes("data.examples", data.examples, (None,), "n")
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise ValueError(
            f"data must have no empty client, whose mean loss is not defined, but {len(empty)} hold no"
            f" example, client {empty[0]} among them. Select the others: data[data.sizes > 0]."
        )
    in_order = np.array_equal(offsets, np.cumsum(sizes) - sizes) and sizes.sum() == num_rows
    problem = Problem(
        jax.tree.map(jnp.asarray, data.examples),
        jnp.asarray(offsets, jnp.int32),
        jnp.asarray(sizes, jnp.int32),
        jnp.asarray(client_weights(sizes, weighting), jnp.result_type(float)),
    )
    pooled_chunk = min(chunk_size, num_rows) if weighting == "samples" and in_order else None
    return problem, Fixed(model, min(chunk_size, int(sizes.max())), pooled_chunk)


def client_weights(sizes: np.ndarray, weighting: str) -> np.ndarray:
    """The p_c, which sum to 1."""
    counts = np.asarray(sizes) if weighting == "samples" else np.ones(len(sizes))
    return counts / counts.sum()


def stack_points(variables: Variables | Sequence[Variables]) -> Variables:
    """Checked points of the parameter space as one `Variables` with a leading axis."""
    points = [variables] if isinstance(variables, Variables) else list(variables)
    if not points or not all(isinstance(point, Variables) for point in points):
        raise ValueError(
            f"variables must be a Variables or a list with at least one of them, got {variables!r}."
        )
    points = [jax.tree.map(jnp.asarray, point) for point in points]
    checks.trainable(points[0].params)
    for i, point in enumerate(points):
        checks.same_structure(f"variables[{i}]", point, points[0], "that of variables[0]")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)


def layout_of_stack(params: Any) -> Layout:
    """The layout of the parameters of one of several stacked points."""
    return Layout.of(jax.eval_shape(lambda tree: jax.tree.map(lambda x: x[0], tree), params))


def row_slope(fixed: Fixed, problem: Problem, variables: Variables, feed: Any) -> Slope:
    """The mean loss over the rows of one client, and its gradient; the state stays as it is."""
    layout = Layout.of(variables.params)
    _, size = feed
    own = rows_feed(fixed.chunk_size, "shuffled", False, None, problem.examples, feed)

    def slope(x):
        here = variables._replace(params=layout.tree(x))

        def body(carry, chunk):
            batch, mask = own.chunk(chunk)
            gradient, found = Objective(fixed.model, None, mask).gradient(here, batch)
            part = found.loss.astype(layout.dtype), layout.vector(gradient)
            return trees.add_scaled(carry, jnp.sum(mask, dtype=layout.dtype), part)

        nothing = jnp.zeros((), layout.dtype), jnp.zeros_like(x)
        total = counted_loop(own.num_chunks, body, nothing)
        return trees.scale(1 / size.astype(layout.dtype), total)

    return slope


def global_slope(fixed: Fixed, problem: Problem, variables: Variables) -> Slope:
    """F and its gradient; with weights by samples, rows of several clients share a chunk."""
    if fixed.pooled_chunk is not None:
        everything = jnp.zeros((), jnp.int32), jnp.asarray(problem.num_rows, jnp.int32)
        pooled = dataclasses.replace(fixed, chunk_size=fixed.pooled_chunk)
        return row_slope(pooled, problem, variables, everything)

    def slope(x):
        def weighted(feed, weight):
            return trees.scale(weight, row_slope(fixed, problem, variables, feed)(x)), ()

        return over_clients(weighted, (problem.feeds, problem.weights))[0]

    return slope


def over_clients(function: Callable[..., tuple[Any, Any]], clients: tuple) -> tuple[Any, Any]:
    """function(*one client's inputs) for all: the first result summed, the second stacked `[N, ...]`."""

    def one(shared, client):
        del shared
        return function(*client)

    return strategies.map_reduce(_ONE_BY_ONE, one, (), clients)


def hessian_product(slope: Slope, x: jax.Array, direction: jax.Array) -> jax.Array:
    """The Hessian at x times a direction: the gradient's derivative along it, with no matrix."""
    return jax.jvp(lambda y: slope(y)[1], (x,), (direction,))[1]
