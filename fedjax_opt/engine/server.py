"""The server's half of a round: contributions are added up, and the server takes its step.

    total   = sum over clients of contribution(algorithm, upload, num_steps, loss, weight)
    server, info = server_update(algorithm, server, total, situation)

A `Total` is a sum that is not divided yet: weights need not sum to 1, contributions may be added in any
order and in any place, and a client that is left out adds zeros. A round in which nobody counts is the
zero. Only an `Aggregator` sees contributions side by side.

The compiled round, a loop of one's own and a server in a deployment call the same functions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import (
    Aggregator,
    Algorithm,
    Situation,
    Stacked,
    Uniform,
    UniformMean,
    get_variables,
    received,
    sent,
)
from fedjax_opt.core.aliases import Contribution, Number, Report, ServerState, Tree, Upload
from fedjax_opt.core.messages import contribution_shape, report_shape


class Total(NamedTuple):
    """What clients contributed, added up; `+` of two of them adds leaf by leaf.

    Attributes:
      value: the sum of w_i c_i, of parts marked as `Uniform` the sum of c_i; `()` where an `Aggregator`
        sees all contributions.
      weight: the sum of the weights w_i. A float32 sum of many equal weights that are added one after
        the other is biased (by 2e-5 for 10,000 of them): add up large cohorts in float64, or in groups.
      count: how many clients were counted, int32, whatever their weights.
      steps: the sum of w_i K_i.
      loss: the sum of w_i l_i, with l_i a client's mean loss over its local steps.
      noted: what else is averaged, by the same rules as `value`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> upload = fo.Variables({"w": jnp.ones(3)})
      >>> total = fo.contribution(algorithm, upload, num_steps=5, loss=0.5, weight=20)
      >>> total += fo.contribution(algorithm, upload, num_steps=5, loss=1.5, weight=60)
      >>> float(total.weight), float(total.mean_loss)
      (80.0, 1.25)
    """

    value: Contribution
    weight: jax.Array
    count: jax.Array
    steps: jax.Array
    loss: jax.Array
    noted: Tree = ()

    def __add__(self, other: "Total") -> "Total":  # type: ignore[override]
        """The sum of both; refuses another structure, shape or dtype."""
        if not isinstance(other, Total):
            return NotImplemented
        mine, theirs = trees.shapes_of(self), trees.shapes_of(other)
        same = jax.tree.structure(mine) == jax.tree.structure(theirs)
        if not same or jax.tree.leaves(mine) != jax.tree.leaves(theirs):
            raise ValueError(
                "Totals can be added if they have the same structure, shapes and dtypes; got"
                f" {mine} and {theirs}."
            )
        return trees.add(self, other)

    @property
    def mean(self) -> Contribution:
        """The mean contribution, without the marks of `Uniform` parts; zeros if nobody has a weight."""
        return self._mean_of(self.value)

    @property
    def mean_loss(self) -> jax.Array:
        """The mean loss; NaN if nobody has a weight."""
        return self._told()[0]

    def _told(self) -> tuple[jax.Array, Tree]:
        """The means of the loss and of what was noted; NaN if nobody has a weight."""
        means = self._mean_of((self.loss, self.noted))
        return jax.tree.map(lambda x: jnp.where(self.weight > 0, x, jnp.nan), means)

    def _mean_of(self, tree: Tree) -> Tree:
        # Made 1 before the division, not cut after it: a derivative would be NaN all the same.
        weight = jnp.where(self.weight > 0, self.weight, 1)
        count = jnp.maximum(self.count, 1)

        def mean(node):
            total, by = (node.value, count) if _is_uniform(node) else (node, weight)
            return jax.tree.map(lambda leaf: leaf / by.astype(leaf.dtype), total)

        return jax.tree.map(mean, tree, is_leaf=_is_uniform)


class ServerInfo(NamedTuple):
    """What the server's step tells.

    Attributes:
      loss: the mean loss over clients and local steps; NaN if nobody counts.
      num_steps: the mean of K; 0 if nobody counts.
      count: how many clients were counted.
      update_norm: the Euclidean norm of the change of the global parameters; 0 if nobody counts.
      finite: whether losses and the new state are finite. If not, the state came back as it was.
      applied: whether the step was taken: somebody counts (or the algorithm takes it on an empty round)
        and all is finite.
      noted: the means of `Total.noted`; NaN if nobody counts.
      memory: what the algorithm's `Aggregator` remembers.
    """

    loss: jax.Array
    num_steps: jax.Array
    count: jax.Array
    update_norm: jax.Array
    finite: jax.Array
    applied: jax.Array
    noted: Tree = ()
    memory: Tree = ()


def contribution(
    algorithm: Algorithm,
    upload: Upload,
    num_steps: Number,
    loss: Number,
    weight: Number,
    accepted: Number = True,
    noted: Tree = (),
) -> Total:
    """What one client's result adds to the `Total`.

    Args:
      algorithm: the algorithm.
      upload: what the client sent; of a `Coded` upload its value counts.
      num_steps: K_i, the local steps that it took.
      loss: its mean loss over them.
      weight: w_i, not negative: the number of its examples, or 1. Weights far from 1 (above 1e30) are
        better multiplied by one and the same power of two.
      accepted: whether it counts. One that does not adds zeros, whatever it sent, NaN too.
      noted: what else is to be averaged.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> bad = fo.Variables({"w": jnp.full(3, jnp.nan)})
      >>> total = fo.contribution(algorithm, bad, 5, jnp.nan, weight=20, accepted=False)
      >>> total.value.params["w"].tolist(), int(total.count)
      ([0.0, 0.0, 0.0], 0)
    """
    stacks = isinstance(algorithm.aggregate, Aggregator)
    value = () if stacks else received(algorithm, upload, num_steps)
    return _one(algorithm, value, num_steps, loss, weight, accepted, noted)


def report_contribution(
    algorithm: Algorithm, report: Report, weight: Number, accepted: Number = True
) -> Total:
    """What the report of one client's probe adds to the `Total` of reports.

    Args:
      report: what `client_probe` returned. Only what is shared of it is read.
      algorithm, weight, accepted: as for `contribution`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mime(fo.optimizers.sgd(0.1))
      >>> total = fo.report_contribution(algorithm, {"w": jnp.ones(3)}, weight=2)
      >>> total.value["w"].tolist()
      [2.0, 2.0, 2.0]
    """
    value = () if isinstance(algorithm.aggregate, Aggregator) else sent(report)
    return _one(algorithm, value, 0, 0.0, weight, accepted)


def zero_total(algorithm: Algorithm, server: ServerState, reports: bool = False) -> Total:
    """The `Total` of nobody: where a sum over clients begins.

    Args:
      algorithm: the algorithm.
      server: its server state, for the shapes.
      reports: whether reports of a probe are to be added up.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> server = algorithm.init(fo.Variables({"w": jnp.ones(3)}))
      >>> int(fo.zero_total(algorithm, server).count)
      0
    """
    shape = (report_shape if reports else contribution_shape)(algorithm, get_variables(server))
    value = () if isinstance(algorithm.aggregate, Aggregator) else shape
    one = jax.eval_shape(lambda value: _one(algorithm, value, 0, 0.0, 1.0, True), value)
    return trees.zeros_like(one)


def server_probe(
    algorithm: Algorithm, total: Total, situation: Situation, stacked: Stacked | None = None
) -> Report:
    """The cohort's mean report, which every client of the round is told.

    Args:
      algorithm: an algorithm with a probe.
      total: the sum of the reports, by `report_contribution`. A client that is not accepted there must
        not be asked to work in this round.
      situation: the round.
      stacked: the reports side by side with the weights as they were given, where `algorithm.aggregate`
        is an `Aggregator`. Its memory is of uploads: for reports it begins anew in every round.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.mime(fo.optimizers.sgd(0.1))
      >>> total = fo.report_contribution(algorithm, {"w": jnp.ones(3)}, weight=2)
      >>> situation = fo.Situation(0, jax.random.key(0), num_clients=8, invited=1)
      >>> fo.server_probe(algorithm, total, situation)["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    if not isinstance(algorithm.aggregate, Aggregator):
        return total.mean
    return _aggregated(algorithm.aggregate, total, _filled(situation, total), stacked)[0]


def server_update(
    algorithm: Algorithm,
    server: ServerState,
    total: Total,
    situation: Situation,
    stacked: Stacked | None = None,
    memory: Tree = (),
) -> tuple[ServerState, ServerInfo]:
    """The server's step on what all clients contributed.

    If nobody with a weight is in the total, or the loss or the new state is not finite, the server state
    and the memory come back as they were.

    Args:
      algorithm: the algorithm.
      server: its server state.
      total: the sum of the contributions.
      situation: what else the server knows of the round.
      stacked: the contributions (`received`) side by side, with the weights as they were given, where
        `algorithm.aggregate` is an `Aggregator`; else None.
      memory: what that remembers; `FederatedState.aggregator`.

    Returns:
      The new server state, and a `ServerInfo`.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
      >>> server = algorithm.init(fo.Variables({"w": jnp.zeros(3)}))
      >>> total = fo.contribution(
      ...     algorithm, fo.Variables({"w": jnp.ones(3)}), num_steps=5, loss=0.5, weight=20
      ... )
      >>> situation = fo.Situation(0, jax.random.key(0), num_clients=8, invited=1)
      >>> server, info = fo.server_update(algorithm, server, total, situation)
      >>> server.variables.params["w"].tolist(), float(info.loss)
      ([1.0, 1.0, 1.0], 0.5)
    """
    situation = _filled(situation, total)
    if isinstance(algorithm.aggregate, Aggregator):
        mean, new_memory = _aggregated(algorithm.aggregate, total, situation, stacked, memory)
    else:
        mean, new_memory = total.mean, memory
    new = algorithm.server_step(server, mean, situation)
    checks.same_shapes("server_step(...)", new, server)
    due = jnp.asarray(True) if algorithm.runs_on_empty else total.weight > 0
    # A loss that is not finite makes the sum so, also with weight 0.
    finite = (trees.all_finite((new, new_memory)) | ~due) & jnp.isfinite(total.loss)
    applied = due & finite
    change = trees.subtract(get_variables(new).params, get_variables(server).params)
    loss, noted = total._told()
    info = ServerInfo(
        loss=loss,
        num_steps=situation.num_steps,
        count=total.count,
        update_norm=jnp.where(due, trees.norm(change), 0),
        finite=finite,
        applied=applied,
        noted=noted,
        memory=trees.select(applied, new_memory, memory),
    )
    return trees.select(applied, new, server), info


def without_markers(tree: Tree) -> Tree:
    """The tree with the values in place of their `Uniform` markers."""
    return jax.tree.map(lambda n: n.value if _is_uniform(n) else n, tree, is_leaf=_is_uniform)


def weighted(tree: Tree, weight: jax.Array, accepted: jax.Array) -> Tree:
    """One client's term of each sum: weighted, or as it is where it is `Uniform`; float32 or better."""

    def term(node):
        factor = jnp.ones_like(weight) if _is_uniform(node) else weight

        def scale(leaf):
            wide = trees.sum_dtype(leaf.dtype)
            # Selected, not multiplied: what a client that is left out sent may be anything, NaN too.
            return jnp.where(accepted, factor.astype(wide) * leaf.astype(wide), 0)

        return jax.tree.map(scale, node)

    return jax.tree.map(term, tree, is_leaf=_is_uniform)


def _one(algorithm, value, num_steps, loss, weight, accepted, noted=()):
    dtype = jnp.result_type(float)
    accepted = jnp.asarray(accepted)
    weight = jnp.asarray(1 if isinstance(algorithm.aggregate, UniformMean) else weight, dtype)
    steps, loss = jnp.asarray(num_steps, dtype), jnp.asarray(loss, dtype)
    value, steps, loss, noted = weighted((value, steps, loss, noted), weight, accepted)
    return Total(
        value=value,
        weight=jnp.where(accepted, weight, 0),
        count=accepted.astype(jnp.int32),
        steps=steps,
        loss=loss,
        noted=noted,
    )


def _filled(situation: Situation, total: Total) -> Situation:
    return situation._replace(
        count=total.count, weight=total.weight, num_steps=total._mean_of(total.steps)
    )


def _aggregated(aggregator, total, situation, stacked, memory=None):
    """The aggregator's value and memory; without a memory it begins anew."""
    if stacked is None:
        raise ValueError(
            "stacked must be given: this algorithm's aggregator sees all contributions at once. Got"
            " None."
        )
    if memory is None:
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), stacked.value)
        memory = aggregator.init(one)
    has_say = stacked.ids >= 0
    weights = jnp.where(has_say, stacked.weights, 0)
    weights = weights / jnp.where(total.weight > 0, total.weight, 1)
    value, memory = aggregator.apply(stacked._replace(weights=weights), situation, memory)
    value = without_markers(value)
    # Nobody has a say in an empty round: whatever the rule made of that, the mean is 0.
    return trees.select(total.weight > 0, value, trees.zeros_like(value)), memory


def _is_uniform(node: object) -> bool:
    return isinstance(node, Uniform)
