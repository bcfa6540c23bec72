"""Rules by which a round leaves a client out: what it sent, or when, is not fit to be averaged.

A client that breaks a rule did not take part: it adds zeros to the `Total`, by selection, C counts the
rest, and its own state stays as it was. If fewer are left than `min_clients`, nobody counts: nothing
changes but the round's number, so that the next round asks another cohort.

    before any work    who never reported, who would miss the deadline
    after the probe    a report that is not finite, or too large: it would reach every client
    after the work     a loss, an upload or a client state that is not finite; an upload too large

Everything here runs inside of the compiled round. Without a guard none of it is traced.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_opt.core import trees
from fedjax_opt.core.algorithm import Uniform
from fedjax_opt.core.coded import decoded
from fedjax_opt.core.guard import Fault, Guard
from fedjax_opt.core.model import Variables
from fedjax_opt.engine.client import ClientResult
from fedjax_opt.engine.server import check_shapes


def before_work(asked: jax.Array, num_steps: jax.Array, late: Any = False) -> jax.Array:
    """The faults that are known before any client works, `[S]`.

    Args:
      asked: the ids of those who were asked; -1 for nobody.
      num_steps: K for each, 0 for who does not report.
      late: whether that is because of the sampler's deadline.
    """
    away = (asked >= 0) & (num_steps == 0)
    why = jnp.where(late, jnp.int32(Fault.TIMED_OUT), jnp.int32(Fault.DROPPED_OUT))
    return jnp.where(away, why, jnp.int32(Fault.NONE))


def of_report(guard: Guard, report: Any) -> jax.Array:
    """The fault of one client's report."""
    return _first(
        (~trees.all_finite(report), Fault.REPORT_NOT_FINITE),
        (_too_large(report, guard.max_report_norm), Fault.REPORT_TOO_LARGE),
    )


def of_work(guard: Guard, result: ClientResult, contribution: Any) -> jax.Array:
    """The fault of one client's work."""
    return _first(
        (~jnp.isfinite(result.loss), Fault.LOSS_NOT_FINITE),
        (~trees.all_finite((decoded(result.upload), contribution)), Fault.UPLOAD_NOT_FINITE),
        (_too_large(result.upload, guard.max_norm), Fault.UPLOAD_TOO_LARGE),
        (~trees.all_finite(result.state), Fault.STATE_NOT_FINITE),
    )


def check_uploaded_models(contribution: Any, model: Variables) -> None:
    """Refuses an upload in which a model has another shape than the one that was broadcast."""
    nodes = jax.tree_util.tree_leaves_with_path(
        contribution, is_leaf=lambda node: isinstance(node, Variables)
    )
    for path, node in nodes:
        if isinstance(node, Variables):
            check_shapes(f"upload{jax.tree_util.keystr(path)}", node, model)


def _first(*rules: tuple[jax.Array, Fault]) -> jax.Array:
    """The code of the first rule that is broken."""
    code = jnp.int32(Fault.NONE)
    for broken, fault in reversed(rules):
        code = jnp.where(broken, jnp.int32(fault), code)
    return code


def _too_large(tree: Any, limit: Any) -> jax.Array:
    if limit is None:
        return jnp.asarray(False)
    norms = [jnp.sqrt(trees.squared_norm(part)) for part in _parts(decoded(tree))]
    return jnp.any(jnp.stack(norms) > limit) if norms else jnp.asarray(False)


def _parts(tree: Any) -> list[Any]:
    """What has a unit of its own: fields of an upload, parameters and state of a model."""
    if isinstance(tree, Uniform):
        return _parts(tree.value)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return [part for field in tree for part in _parts(field)]
    return [tree] if jax.tree.leaves(tree) else []
