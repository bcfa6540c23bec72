"""Bytes per client and round, and memory, by evaluating an algorithm's functions on shapes alone."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from fedjax_opt.core import Aggregator, Algorithm, Aux, Model, Variables, checks, trees
from fedjax_opt.core.messages import array_bytes, contribution_shape, expected_bytes
from fedjax_opt.costs.round_on_shapes import round_on_shapes


class Cost(NamedTuple):
    """What one round costs one client and the server, in bytes.

    Attributes:
      bytes_down: what a client downloads: the message, and the cohort's report if its work reads it.
      bytes_up: what a client uploads: its report if there is a probe, and its upload. What a codec makes
        of either is counted as it is on average over positions.
      client_memory: what a client holds while it takes a local step: its local state, its own report
        until it is sent, what the step reads of the message and of the cohort's report, and what its
        work reads of the client's own state. Gradients and activations are not in it, nor is what only
        a difference in the upload (y - x) needs: a server could take that difference itself.
      client_state: what a client keeps between rounds.
      server_memory: what the server holds while it aggregates: its state, and one sum of uploads; or
        all uploads, under a rule that has to see them at once.
      server_state: what the server keeps between rounds.
    """

    bytes_down: int
    bytes_up: int
    client_memory: int
    client_state: int
    server_memory: int
    server_state: int


def of(algorithm: Algorithm, variables: Variables, cohort_size: int = 1) -> Cost:
    """The cost of an algorithm for a model, derived with `jax.eval_shape`.

    Args:
      algorithm: an `Algorithm`.
      variables: the model's `Variables`, or shapes of them.
      cohort_size: S, which matters only to the memory of a server that must see all uploads at once.

    Returns:
      A `Cost`.

    Example:
      SCAFFOLD sends a control variate beside the model, both ways:

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> variables = fo.Variables({"w": jnp.zeros(1000)})
      >>> fo.costs.of(fo.fedavg(fo.optimizers.sgd(0.1)), variables)[:2]
      (4000, 4000)
      >>> fo.costs.of(fo.scaffold(fo.optimizers.sgd(0.1)), variables)[:2]
      (8000, 8000)
    """
    checks.integer("cohort_size", cohort_size, low=1)
    # Six, since Per-FedAvg parts a minibatch into two or three.
    rows = jax.ShapeDtypeStruct((6,), jnp.float32)
    model = Model(init=lambda key, batch: variables, loss=_loss)
    server, known, carry, _, _, step, finish = round_on_shapes(
        algorithm, model, variables, rows, rows
    )
    upload = jax.eval_shape(finish, carry, known).upload
    in_step = _bytes_read(step, carry, known)
    in_upload = _bytes_read(lambda *given: finish(*given).upload, carry, known)
    uploads = cohort_size if isinstance(algorithm.aggregate, Aggregator) else 1
    contribution = array_bytes(contribution_shape(algorithm, variables))
    report = array_bytes(known.report)
    return Cost(
        bytes_down=expected_bytes(known.message)
        + (report if in_step["report"] or in_upload["report"] else 0),
        bytes_up=report + expected_bytes(upload),
        client_memory=array_bytes(carry[0])
        + in_step["message"]
        + in_step["report"]
        + max(in_step["client"], in_upload["client"])
        + array_bytes(known.own_report),
        client_state=array_bytes(known.client),
        server_memory=array_bytes(server) + uploads * contribution,
        server_state=array_bytes(server),
    )


def _loss(variables, batch, key):
    """A loss whose gradient depends on all parameters, whatever it is of; so do its features."""
    del batch, key
    total = trees.squared_norm(variables.params)
    return total, Aux(features=total[None, None])


def _bytes_read(function, carry, known) -> dict[str, int]:
    """Of each part of what a client knows, the bytes of the leaves on which the outputs depend."""
    jaxpr = jax.make_jaxpr(function)(carry, known).jaxpr
    read = {v for equation in needed_equations(jaxpr) for v in _variables(equation.invars)}
    read |= set(_variables(jaxpr.outvars))
    inputs = iter(jaxpr.invars[len(jax.tree.leaves(carry)) :])
    found = {}
    for name, part in zip(known._fields, known, strict=True):
        leaves = [leaf for leaf in jax.tree.leaves(part) if next(inputs) in read]
        found[name] = array_bytes(leaves) if name in ("message", "client", "report") else 0
    return found


def needed_equations(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """The equations on which the outputs of a program depend, the last one first."""
    needed, found = set(_variables(jaxpr.outvars)), []
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= set(_variables(equation.invars))
            found.append(equation)
    return found


def _variables(atoms: Sequence[Var | Literal]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]
