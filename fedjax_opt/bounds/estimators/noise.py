"""The variance of minibatch gradients, from the gradients of single examples.

With g_j the gradient of row j of client c, s^2 = (1/n) sum_j ||g_j - grad f_c||^2, and the variance
of a minibatch's mean gradient,

    'replacement':  s^2 / B
    'shuffled':     the mean over the minibatches of an epoch of  s^2 (n - b) / (b (n - 1)),

with b = B rows in each minibatch but the last, which holds what is left. It is exact where all
rows are looked at. Of `samples` rows drawn without replacement, the mean of ||g_j - grad f_c||^2 is an
unbiased estimate of s^2, whose standard error is known, too.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.bounds.estimators import passes
from fedjax_opt.bounds.estimators.estimate import (
    Estimate,
    check_finite,
    largest_of,
    on_host,
    rounding,
    rounding_of_square,
)
from fedjax_opt.bounds.estimators.passes import Fixed, Layout, Problem
from fedjax_opt.core import Model, Objective, Variables, checks
from fedjax_opt.core.federation import BATCHINGS
from fedjax_opt.core.permutation import permuted
from fedjax_opt.execution.jobs import counted_loop

# How many numbers the gradients of the examples that are held at once may be together.
_ROOM = 2**24
# Standard errors in an uncertainty: about 95 of 100 estimates are within them.
_ERRORS = 2.0


class Noise(NamedTuple):
    """How much the gradients of minibatches scatter; at several points, how much they do at most.

    Attributes:
      weighted: sum_c p_c^2 sigma_c^2, as FedAvg's bound has it.
      largest: max_c sigma_c^2, the sigma^2 of bounds that have one for all clients.
      clients: sigma_c^2 of each client, `[N]`.
      example_gradient: the largest norm of the gradient of one example, which bounds that of every
        minibatch (the R of FedGBO's bound).
    """

    weighted: Estimate
    largest: Estimate
    clients: Estimate
    example_gradient: Estimate


def estimate_noise(
    model: Model,
    data: Any,
    variables: Variables | Sequence[Variables],
    *,
    batch_size: int,
    batching: str = "shuffled",
    weighting: str = "samples",
    samples: int | None = None,
    chunk_size: int = 256,
    seed: int = 0,
) -> Noise:
    """The variances sigma_c^2 of the clients' minibatch gradients, exact or from a sample of rows.

    With B the batch size, s^2 the variance of single examples and n the rows of a client, a minibatch
    with replacement has the variance s^2/B, one without s^2 (n - B)/(B (n - 1)). In shuffled epochs it
    is the mean over the minibatches of an epoch, of which the last may be smaller. Dropout is off, and
    adds nothing.

    The uncertainty is that of rounding if all rows are looked at, and two standard errors of the sample
    otherwise. A sample misses the largest gradient: `example_gradient` is then a lower bound.

    Args:
      model: the model, called with `key=None`, one example at a time.
      data: a `ClientData`.
      variables: the point to look at, or a list of points, of which each client's largest value counts.
      batch_size: B.
      batching: how a run would draw minibatches, in 'shuffled' epochs or with 'replacement'.
      weighting: the p_c, by 'samples' or 'uniform'.
      samples: how many rows of each client to look at, 2 at least; all of them by default, and those of
        clients that hold no more.
      chunk_size: the examples whose losses are computed at once; gradients of single examples are held
        for fewer at once if the model is large.
      seed: of the sample.

    Returns:
      A `Noise`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(3, 4, noise=0.5, num_examples=8)
      >>> at = fo.Variables({"x": jnp.zeros(4)})
      >>> found = fo.bounds.estimate_noise(model, data, at, batch_size=2)
      >>> found.clients.value.shape
      (3,)
      >>> float(fo.bounds.estimate_noise(model, data, at, batch_size=8).largest.value)
      0.0
    """
    check_sampling(batch_size, batching, samples)
    points = passes.stack_points(variables)
    problem, fixed = passes.prepare(model, data, weighting, chunk_size)
    seen = on_host(_scatter(problem, points, jax.random.key(seed), fixed.by_client, samples))
    check_finite("The norm of the gradient of an example", seen.largest, ("point", "client"))
    sizes = np.asarray(data.sizes, np.float64)
    dtype = passes.layout_of_stack(points.params).dtype
    # Of a finite population, without replacement: nothing is uncertain once all of it is seen.
    deviation = seen.squares / np.maximum(seen.count - 1, 1)
    error = _ERRORS * np.sqrt(deviation / seen.count * (1 - seen.count / sizes))
    error += rounding_of_square(seen.mean, seen.largest, sizes, dtype)
    share = _share(sizes, batch_size, batching)
    clients = largest_of(Estimate(share * seen.mean, share * error), axis=0)
    squares = passes.client_weights(data.sizes, weighting) ** 2
    # Errors of samples are independent; those of rounding may all be one way.
    together = np.sum if samples is None else np.linalg.norm
    weighted = Estimate(np.sum(squares * clients.value), together(squares * clients.uncertainty))
    norms = Estimate(seen.largest, rounding(seen.largest, sizes, dtype))
    return Noise(weighted, largest_of(clients), clients, largest_of(norms))


def check_sampling(batch_size: int, batching: str, samples: int | None) -> None:
    """Refuses minibatches that no run could draw, and samples without a standard error."""
    checks.integer("batch_size", batch_size, low=1)
    checks.choice("batching", batching, BATCHINGS)
    if samples is not None:
        checks.integer("samples", samples, low=2)


def _share(n: np.ndarray, batch_size: int, batching: str) -> np.ndarray:
    """The variance of a minibatch's mean in units of that of one example, for clients of n rows."""
    if batching == "replacement":
        return np.ones_like(n) / batch_size

    def without_replacement(b):
        return (n - b) / (b * np.maximum(n - 1, 1))

    left = n % batch_size
    last = np.where(left > 0, without_replacement(np.maximum(left, 1)), 0)
    return (n // batch_size * without_replacement(batch_size) + last) / np.ceil(n / batch_size)


class _Moments(NamedTuple):
    """Count, mean and sum of squared deviations of ||g_j - grad f_c||^2, and the largest ||g_j||."""

    count: jax.Array
    mean: jax.Array
    squares: jax.Array
    largest: jax.Array


@partial(jax.jit, static_argnames="samples")
def _scatter(
    problem: Problem, points: Variables, key: jax.Array, fixed: Fixed, samples: int | None
) -> _Moments:
    """The moments by point and client."""

    def at_point(variables):
        def of_client(feed, client):
            own_key = jax.random.fold_in(key, client)
            return (), _client_scatter(problem, variables, feed, own_key, fixed, samples)

        ids = jnp.arange(problem.sizes.shape[0], dtype=jnp.int32)
        return passes.over_clients(of_client, (problem.feeds, ids))[1]

    return jax.lax.map(at_point, points)


def _client_scatter(problem, variables, feed, key, fixed, samples):
    layout = Layout.of(variables.params)
    x = layout.vector(variables.params)
    centre = passes.row_slope(fixed, problem, variables, feed)(x)[1]
    offset, size = feed
    count = size if samples is None else jnp.minimum(size, samples)
    chunk = max(min(fixed.chunk_size, samples or fixed.chunk_size, _ROOM // layout.size), 1)

    def of_row(row):
        batch = jax.tree.map(lambda leaf: leaf[row][None], problem.examples)
        gradient = layout.vector(Objective(fixed.model).gradient(variables, batch)[0])
        return jnp.sum(jnp.square(gradient - centre)), jnp.linalg.norm(gradient)

    def body(moments, index):
        positions = index * chunk + jnp.arange(chunk, dtype=jnp.int32)
        rows = positions % size
        rows = rows if samples is None else permuted(key, rows, size)
        distances, norms = jax.vmap(of_row)(offset + rows)
        return _merged(moments, distances, norms, positions < count)

    zero = jnp.zeros((), layout.dtype)
    return counted_loop(-(-count // chunk), body, _Moments(zero, zero, zero, zero))


def _merged(moments, values, norms, mask):
    """The moments of what was seen and a chunk, without the cancellation of a sum of squares."""
    here = jnp.sum(mask, dtype=values.dtype)
    mean = jnp.sum(jnp.where(mask, values, 0)) / jnp.maximum(here, 1)
    squares = jnp.sum(jnp.where(mask, jnp.square(values - mean), 0))
    count = moments.count + here
    away = mean - moments.mean
    return _Moments(
        count,
        moments.mean + away * here / count,
        moments.squares + squares + jnp.square(away) * moments.count * here / count,
        jnp.maximum(moments.largest, jnp.max(jnp.where(mask, norms, 0))),
    )
