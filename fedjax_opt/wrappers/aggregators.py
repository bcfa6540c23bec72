"""How a server makes one update of many: means, and rules that outliers cannot drag away.

A rule is a function of (values `[S, ...]`, weights `[S]`). The weights sum to 1, and whoever has weight
0 has no say. The two means are summed from client to client; the others see all uploads at once, so the
server holds S of them. A rule that needs more, such as whole uploads, ids, the round or a memory, is an
`Aggregator`.

References:
  median, trimmed mean: Yin, Chen, Ramchandran, Bartlett. Byzantine-robust distributed learning. ICML
    2018.
  geometric median: Pillutla, Kakade, Harchaoui. Robust aggregation for federated learning. IEEE TSP
    2022.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from fedjax_opt.core import Aggregator, Algorithm, StaticInt, checks, trees
from fedjax_opt.core.algorithm import Uniform, UniformMean, Variables, as_partial
from fedjax_opt.core.calls import constructor


@constructor
def aggregated(algorithm: Algorithm, aggregator: Any) -> Algorithm:
    """The algorithm with another rule for what its server makes of the uploads.

    The reports of a probe are aggregated by the same rule.

    Args:
      algorithm: any algorithm that has no such rule yet.
      aggregator: a rule of `fedjax_opt.aggregators`; or a function of your own, (values `[S, ...]`,
        weights `[S]`) -> value, on any pytree, which is handed each part of an upload (the change of the
        model, the change of a control variate) on its own; or an `Aggregator`, which sees whole uploads,
        the clients' ids and the round, and may remember earlier rounds.

    Returns:
      The algorithm with that aggregator.

    Example:
      >>> import fedjax_opt as fo
      >>> algorithm = fo.aggregated(
      ...     fo.fedavg(fo.optimizers.sgd(0.1)), fo.aggregators.trimmed_mean(0.1)
      ... )
    """
    if algorithm.aggregate is not None:
        raise ValueError(
            "aggregated goes around an algorithm once: this one has an aggregator, which would be lost."
        )
    if isinstance(aggregator, Aggregator):
        return algorithm._replace(aggregate=aggregator)
    if not callable(aggregator):
        raise ValueError(
            "aggregator must be a function of (values, weights), such as"
            f" fedjax_opt.aggregators.coordinate_median(), or an Aggregator, got {aggregator!r}."
        )
    rule = as_partial(aggregator)
    if rule.func is _weighted_mean:
        return algorithm
    if rule.func is _uniform_mean:
        return algorithm._replace(aggregate=UniformMean())
    return algorithm._replace(aggregate=Aggregator(_no_memory, Partial(_by_parts, rule)))


def _no_memory(shapes):
    return ()


def weighted_mean() -> Partial:
    """The mean by the round's weights: every algorithm's own rule.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> rule = fo.aggregators.weighted_mean()
      >>> float(rule(jnp.array([0.0, 10.0]), jnp.array([0.75, 0.25])))
      2.5
    """
    return Partial(_weighted_mean)


def uniform_mean() -> Partial:
    """The plain mean over the clients that reported: the round's weights, all of them, become one.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> rule = fo.aggregators.uniform_mean()
      >>> float(rule(jnp.array([0.0, 10.0]), jnp.array([0.75, 0.25])))
      5.0
    """
    return Partial(_uniform_mean)


def coordinate_median() -> Partial:
    """The median of each coordinate over the clients with a say, all of one weight.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> rule = fo.aggregators.coordinate_median()
      >>> float(rule(jnp.array([1.0, 2.0, 1e9]), jnp.full(3, 1 / 3)))
      2.0
    """
    return Partial(_median)


def trimmed_mean(fraction: Any = 0.1) -> Partial:
    """The mean of each coordinate without its largest and its smallest values.

    Of n clients with a say, floor(fraction n) are left out at either end; the rest have one weight.

    Args:
      fraction: what is left out at either end, in [0, 1/2).

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> rule = fo.aggregators.trimmed_mean(0.25)
      >>> float(rule(jnp.array([-1e9, 1.0, 3.0, 1e9]), jnp.full(4, 1 / 4)))
      2.0
    """
    fraction = checks.number("fraction", fraction, low=0.0, high=0.5, open_high=True)
    return Partial(_trimmed_mean, fraction)


def geometric_median(iterations: int = 32, smoothing: Any = 1e-6) -> Partial:
    """The point with the smallest weighted sum of distances to the clients' values.

    Weiszfeld's iteration: z <- sum_i b_i v_i / sum_i b_i with b_i = w_i / max(smoothing, ||v_i - z||).
    It starts at the mean of the values, those far from the coordinate median drawn in towards it; a
    value that is infinitely far away counts for nothing.

    Args:
      iterations: how many, a Python int.
      smoothing: the distance below which two points count as the same, positive.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> rule = fo.aggregators.geometric_median()
      >>> values = jnp.array([[0.0, 0.0], [0.0, 0.0], [8.0, 6.0]])
      >>> bool(jnp.all(jnp.abs(rule(values, jnp.full(3, 1 / 3))) < 1e-3))
      True
    """
    iterations = checks.integer("iterations", iterations, low=1)
    smoothing = checks.number("smoothing", smoothing, low=0.0, open_low=True)
    return Partial(_geometric_median, StaticInt(iterations), smoothing)


def _by_parts(rule, stacked, situation, memory):
    """Hands each part of the contributions to a rule of (values, weights).

    A part is a field of the contribution (the change of the model, the change of a control variate):
    they have different units, and a rule that measures distances must not mix them.
    """
    del situation
    present = (stacked.ids >= 0).astype(stacked.weights.dtype)
    uniform = present / jnp.maximum(jnp.sum(present), 1)

    def part(node):
        marked = isinstance(node, Uniform)
        value, weights = (node.value, uniform) if marked else (node, stacked.weights)
        wide = jax.tree.map(lambda leaf: leaf.astype(trees.sum_dtype(leaf.dtype)), value)
        return rule(wide, weights)

    value = stacked.value
    if hasattr(value, "_fields") and not isinstance(value, (Variables, Uniform)):
        return type(value)(*map(part, value)), memory
    return part(value), memory


def _uniform_mean(values, weights):
    votes = (weights > 0).astype(weights.dtype)
    return _weighted_mean(values, votes / jnp.maximum(jnp.sum(votes), 1))


def _weighted_mean(values, weights):
    def mean(leaf):
        return jnp.tensordot(weights.astype(leaf.dtype), _heard(leaf, weights, 0), axes=1)

    return jax.tree.map(mean, values)


def _heard(leaf, weights, instead):
    """The values of those who have a say; others may have computed anything, NaN too."""
    has_say = (weights > 0).reshape(-1, *[1] * (leaf.ndim - 1))
    return jnp.where(has_say, leaf, jnp.asarray(instead, leaf.dtype))


def _median(values, weights):
    count = jnp.sum(weights > 0, dtype=jnp.int32)
    lower, upper = jnp.maximum((count - 1) // 2, 0), count // 2

    def median(leaf):
        # Those without a say come last.
        ordered = jnp.sort(_heard(leaf, weights, jnp.inf), axis=0)
        return (ordered[lower] + ordered[upper]) / 2

    return jax.tree.map(median, values)


def _trimmed_mean(fraction, values, weights):
    count = jnp.sum(weights > 0, dtype=jnp.int32)
    cut = jnp.floor(jnp.asarray(fraction, weights.dtype) * count.astype(weights.dtype))
    cut = cut.astype(jnp.int32)

    def mean(leaf):
        ordered = jnp.sort(_heard(leaf, weights, jnp.inf), axis=0)
        place = jnp.arange(leaf.shape[0], dtype=jnp.int32)
        inside = ((place >= cut) & (place < count - cut)).reshape(-1, *[1] * (leaf.ndim - 1))
        kept = jnp.maximum(count - 2 * cut, 1).astype(leaf.dtype)
        return jnp.sum(jnp.where(inside, ordered, 0), axis=0) / kept

    return jax.tree.map(mean, values)


def _geometric_median(iterations, smoothing, values, weights):
    if not jax.tree.leaves(values):
        return values
    start = _median(values, weights)
    squares = _squared_distances(values, start)
    # Who is infinitely far away pulls nothing.
    weights = jnp.where(jnp.isfinite(squares), weights, 0)
    values = jax.tree.map(lambda leaf: _heard(leaf, weights, 0), values)
    smallest = jnp.asarray(smoothing, squares.dtype) ** 2

    def distances(centre):
        # Floored under the root, whose derivative is infinite at zero.
        return jnp.sqrt(jnp.maximum(_squared_distances(values, centre), smallest))

    def one(_, centre):
        pull = weights.astype(squares.dtype) / distances(centre)
        return _weighted_mean(values, pull / jnp.sum(pull))

    # From the mean of the values drawn in to the usual distance from the median: outliers start
    # near, and a median that is one of the values does not hold the iteration fast.
    away = distances(start)
    usual = _median(away, weights)
    share = jnp.minimum(usual / away, 1)

    def drawn_in(leaf, centre):
        factor = share.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
        return centre[None] + factor * (leaf - centre[None])

    near = jax.tree.map(drawn_in, values, start)
    centre = _weighted_mean(near, weights / jnp.sum(weights))
    return jax.lax.fori_loop(0, int(iterations), one, centre)


def _squared_distances(values, centre):
    away = jax.tree.map(lambda v, z: v - z[None], values, centre)
    return jax.vmap(trees.squared_norm)(away)
