"""Bytes per client and round, and memory, by evaluating an algorithm's functions on shapes alone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from fedjax_opt.core import (
    Algorithm,
    Aux,
    Context,
    Kept,
    Model,
    Objective,
    ProbeData,
    checks,
    trees,
)
from fedjax_opt.core.messages import any_gradient, array_bytes, expected_bytes, received
from fedjax_opt.engine.server import streams


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


def of(algorithm: Algorithm, variables: Any, cohort_size: int = 1) -> Cost:
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
    server = jax.eval_shape(algorithm.init, variables)
    client = jax.eval_shape(algorithm.init_client, variables)
    message = jax.eval_shape(algorithm.broadcast, server)
    report = ()
    if algorithm.probe is not None:
        any_data = ProbeData(any_gradient, any_gradient)
        probe = algorithm.probe
        report = jax.eval_shape(lambda m, c: probe(m, c, any_data), message, client)
    own_report = report
    report = report.shared if isinstance(report, Kept) else report
    work = _client_work(algorithm, variables, message, client, report, own_report)
    uploads = 1 if streams(algorithm.aggregate) else cohort_size
    return Cost(
        bytes_down=expected_bytes(message) + (array_bytes(report) if work.reads_report else 0),
        bytes_up=array_bytes(report) + expected_bytes(work.upload),
        client_memory=work.memory + array_bytes(own_report),
        client_state=array_bytes(client),
        server_memory=array_bytes(server) + uploads * array_bytes(work.contribution),
        server_state=array_bytes(server),
    )


def _loss(variables, batch, key):
    """A loss whose gradient depends on all parameters, whatever it is of; so do its features."""
    del batch, key
    total = trees.squared_norm(variables.params)
    return total, Aux(features=total[None, None])


class _Work(NamedTuple):
    upload: Any
    contribution: Any
    reads_report: bool
    memory: int


def _client_work(algorithm, variables, message, client, report, own_report):
    objective = Objective(Model(init=lambda key, batch: variables, loss=_loss))
    whole = jax.ShapeDtypeStruct((), jnp.int32)
    local = jax.eval_shape(algorithm.start, message, client)

    def context(message, client, report, own_report, steps, clients):
        key = jax.random.key(0)
        return Context(
            message, client, report, own_report, steps, steps, clients, clients, steps, key
        )

    def step(local, *known):
        return algorithm.step(local, objective, None, context(*known))

    def finish(local, *known):
        upload, _ = algorithm.finish(local, context(*known))
        return upload, received(algorithm, upload, known[4])

    known = (message, client, report, own_report, whole, whole)
    program, _ = jax.make_jaxpr(step, return_shape=True)(local, *known)
    ending, (upload, contribution) = jax.make_jaxpr(finish, return_shape=True)(local, *known)
    read = _inputs_read(program, (local, message, client, report))
    read_at_end = _inputs_read(ending, (local, message, client, report))
    return _Work(
        upload,
        contribution,
        bool(read[3] or read_at_end[3]),
        array_bytes(local) + read[1] + max(read[2], read_at_end[2]) + read[3],
    )


def _inputs_read(closed, parts):
    """The bytes of each of the first inputs, leaf by leaf, on which a program's outputs depend."""
    needed, variables = _needed(closed.jaxpr), iter(closed.jaxpr.invars)
    read = []
    for part in parts:
        leaves = [(next(variables), leaf) for leaf in jax.tree.leaves(part)]
        read.append(sum(array_bytes(leaf) for variable, leaf in leaves if variable in needed))
    return read


def _needed(jaxpr):
    """The variables on which the outputs of a program depend."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, Literal)}
    return needed
