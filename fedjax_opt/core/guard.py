"""Rules by which a round leaves a client out: what it sent, or when, is not fit to be averaged.

A client that breaks a rule did not take part: it adds zeros to the `Total`, by selection, C counts the
rest, and its own state stays as it was. If fewer are left than `min_clients`, nobody counts: nothing
changes but the round's number, so that the next round asks another cohort.

    before any work    who never reported, who would miss the deadline
    after the probe    a report that is not finite, or too large: it would reach every client
    after the work     a loss, an upload or a client state that is not finite; an upload too large

All of it runs inside of the compiled round. Without a guard none of it is traced.
"""

import enum
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks, trees
from fedjax_opt.core.algorithm import Uniform
from fedjax_opt.core.aliases import Contribution, Number, Tree, Upload
from fedjax_opt.core.model import Variables


class Fault(enum.IntEnum):
    """Why a guard left a client out of a round; the codes of `Info.faults`.

    Example:
      >>> import fedjax_opt as fo
      >>> fo.Fault(4).name
      'UPLOAD_NOT_FINITE'
    """

    NONE = 0
    DROPPED_OUT = 1
    TIMED_OUT = 2
    LOSS_NOT_FINITE = 3
    UPLOAD_NOT_FINITE = 4
    UPLOAD_TOO_LARGE = 5
    STATE_NOT_FINITE = 6
    REPORT_NOT_FINITE = 7
    REPORT_TOO_LARGE = 8


class Faults(NamedTuple):
    """Who was left out of a round, and why.

    Attributes:
      client: the ids of the clients that were asked `[S]`; -1 for a slot that nobody filled.
      code: a `Fault` for each of them `[S]`; 0 for whoever took part.
      skipped: whether fewer than `min_clients` were left, and the round changed nothing.
    """

    client: jax.Array
    code: jax.Array
    skipped: jax.Array


class Guard(NamedTuple):
    """Rules that a client must keep for a round to count it; numbers that may be traced.

    Losses, uploads, reports of a probe and client states that are not finite always break them.

    Attributes:
      max_norm: the largest Euclidean norm of an upload, each of its parts (the change of the
        parameters, of a control variate) on its own; None for no limit.
      max_report_norm: the same for the report of a probe.
      min_clients: how many must be left; in a round with fewer nobody counts, and it is skipped.

    Example:
      >>> import fedjax_opt as fo
      >>> model, data, optimum = fo.data.quadratics(num_clients=10, dimension=3)
      >>> algorithm = fo.attacks.nan_upload(fo.fedavg(fo.optimizers.sgd(0.1)), clients=[3])
      >>> guard = fo.Guard(max_norm=100.0, min_clients=5)
      >>> federation = fo.Federation(
      ...     model, data, cohort=10, local_steps=2, batch_size=1, guard=guard
      ... )
      >>> result = fo.simulate(algorithm, federation, 5, progress=False)
      >>> result.history["excluded"].tolist()
      [1, 1, 1, 1, 1]
    """

    max_norm: Number | None = None
    max_report_norm: Number | None = None
    min_clients: Number = 1


def check_guard(guard: Guard | None, cohort_size: int | None = None) -> Guard | None:
    """A guard as arrays, after checking its numbers against the cohort."""
    if guard is None:
        return None
    if not isinstance(guard, Guard):
        raise ValueError(f"guard must be a Guard or None, got {guard!r}.")
    limits = {}
    for name in ("max_norm", "max_report_norm"):
        value = getattr(guard, name)
        if value is not None:
            value = checks.number(f"guard.{name}", value, low=0.0, open_low=True)
            value = jnp.asarray(value, jnp.result_type(float))
            if value.ndim:
                raise ValueError(f"guard.{name} must be one number, got shape {list(value.shape)}.")
        limits[name] = value
    fewest = guard.min_clients
    if not checks.is_traced(fewest):
        known = fewest.item() if isinstance(fewest, jax.Array) and fewest.ndim == 0 else fewest
        checks.integer("guard.min_clients", known, low=1, high=cohort_size)
    return Guard(**limits, min_clients=jnp.asarray(fewest, jnp.int32))


def before_work(asked: jax.Array, num_steps: jax.Array, late: jax.Array | bool) -> jax.Array:
    """The faults of those who were asked and do not report `[S]`; late by the sampler's deadline."""
    away = (asked >= 0) & (num_steps == 0)
    return _first((away & late, Fault.TIMED_OUT), (away, Fault.DROPPED_OUT))


def of_report(guard: Guard, report: Tree) -> jax.Array:
    """The fault of one client's report."""
    return _first(
        (~trees.all_finite(report), Fault.REPORT_NOT_FINITE),
        (_too_large(report, guard.max_report_norm), Fault.REPORT_TOO_LARGE),
    )


def of_work(
    guard: Guard, loss: jax.Array, upload: Upload, contribution: Contribution, state: Tree
) -> jax.Array:
    """The fault of one client's work."""
    upload = trees.decoded(upload)
    return _first(
        (~jnp.isfinite(loss), Fault.LOSS_NOT_FINITE),
        (~trees.all_finite((upload, contribution)), Fault.UPLOAD_NOT_FINITE),
        (_too_large(upload, guard.max_norm), Fault.UPLOAD_TOO_LARGE),
        (~trees.all_finite(state), Fault.STATE_NOT_FINITE),
    )


def check_uploaded_models(contribution: Contribution, model: Variables) -> None:
    """Refuses an upload in which a model has another shape than the one that was broadcast."""
    nodes = jax.tree_util.tree_leaves_with_path(
        contribution, is_leaf=lambda node: isinstance(node, Variables)
    )
    for path, node in nodes:
        if isinstance(node, Variables):
            checks.same_shapes(f"upload{jax.tree_util.keystr(path)}", node, model)


def _first(*rules: tuple[jax.Array, Fault]) -> jax.Array:
    """The code of the first rule that is broken."""
    code = jnp.int32(Fault.NONE)
    for broken, fault in reversed(rules):
        code = jnp.where(broken, jnp.int32(fault), code)
    return code


def _too_large(tree: Tree, limit: Number | None) -> jax.Array:
    if limit is None:
        return jnp.asarray(False)
    norms = [trees.norm(part) for part in _parts(trees.decoded(tree))]
    return jnp.any(jnp.stack(norms) > limit) if norms else jnp.asarray(False)


def _parts(tree: Tree) -> list[Tree]:
    """What has a unit of its own: fields of an upload, parameters and state of a model."""
    if isinstance(tree, Uniform):
        return _parts(tree.value)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return [part for field in tree for part in _parts(field)]
    return [tree] if jax.tree.leaves(tree) else []
