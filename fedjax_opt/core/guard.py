"""Rules by which a round leaves a client out, and the codes of what it did wrong."""

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_opt.core import checks


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

    max_norm: Any = None
    max_report_norm: Any = None
    min_clients: Any = 1


def check_guard(guard: Any, cohort_size: int | None = None) -> Guard | None:
    """A guard as arrays, after checking its numbers against the cohort."""
    if guard is None:
        return None
    if not isinstance(guard, Guard):
        raise ValueError(f"guard must be a Guard or None, got {guard!r}.")
    found = {}
    for name in ("max_norm", "max_report_norm"):
        value = getattr(guard, name)
        if value is not None:
            value = _one(name, checks.number(f"guard.{name}", value, low=0.0, open_low=True))
        found[name] = value
    fewest = guard.min_clients
    if not checks.is_traced(fewest):
        known = fewest.item() if isinstance(fewest, jax.Array) and fewest.ndim == 0 else fewest
        checks.integer("guard.min_clients", known, low=1, high=cohort_size)
    return Guard(**found, min_clients=jnp.asarray(fewest, jnp.int32))


def _one(name: str, value: Any) -> jax.Array:
    value = jnp.asarray(value, jnp.result_type(float))
    if value.ndim:
        raise ValueError(f"guard.{name} must be one number, got shape {list(value.shape)}.")
    return value
