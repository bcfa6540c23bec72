"""Bytes per client and round, and memory, by evaluating an algorithm's functions on shapes alone."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from fedjax_opt.core import Algorithm, Aux, Context, Kept, Model, Objective, ProbeData, Variables


class Cost(NamedTuple):
    """What one round costs one client, and what is kept between rounds, in bytes.

    Attributes:
      bytes_down: what a client downloads: the message, and the cohort's report if its work reads it.
      bytes_up: what a client uploads: its report if there is a probe, and its upload.
      client_state: what a client keeps between rounds.
      server_state: what the server keeps between rounds.
    """

    bytes_down: int
    bytes_up: int
    client_state: int
    server_state: int


def of(algorithm: Algorithm, variables: Any) -> Cost:
    """The cost of an algorithm for a model, derived with `jax.eval_shape`.

    Args:
      algorithm: an `Algorithm`.
      variables: the model's `Variables`, or shapes of them.

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
    server = jax.eval_shape(algorithm.init, variables)
    client = jax.eval_shape(algorithm.init_client, variables)
    message = jax.eval_shape(algorithm.broadcast, server)
    report = ()
    if algorithm.probe is not None:
        any_data = ProbeData(_gradient, _gradient)
        probe = algorithm.probe
        report = jax.eval_shape(lambda m, c: probe(m, c, any_data), message, client)
    own_report = report
    report = report.shared if isinstance(report, Kept) else report
    upload, reads_report = _client_work(algorithm, message, client, report, own_report)
    return Cost(
        bytes_down=_size(message) + (_size(report) if reads_report else 0),
        bytes_up=_size(report) + _size(upload),
        client_state=_size(client),
        server_state=_size(server),
    )


def _gradient(variables):
    """A value of a gradient's shape, whatever data it is of."""
    return variables.params


def _loss(variables, batch, key):
    """A loss that depends on all parameters, whatever it is of."""
    del batch, key
    return jnp.asarray(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(variables.params))), Aux()


def _client_work(algorithm, message, client, report, own_report):
    objective = Objective(Model(init=lambda key, batch: Variables(()), loss=_loss))
    whole = jax.ShapeDtypeStruct((), jnp.int32)
    fraction = jax.ShapeDtypeStruct((), jnp.result_type(float))

    def work(message, client, report, own_report, steps, participation):
        context = Context(message, client, report, own_report, steps, steps, participation, steps)
        local = algorithm.start(message, client)
        local, _ = algorithm.step(local, objective, None, context)
        return algorithm.finish(local, context)

    arguments = (message, client, report, own_report, whole, fraction)
    closed, (upload, _) = jax.make_jaxpr(work, return_shape=True)(*arguments)
    before = len(jax.tree.leaves((message, client)))
    of_report = set(closed.jaxpr.invars[before : before + len(jax.tree.leaves(report))])
    return upload, bool(of_report & _needed(closed.jaxpr))


def _needed(jaxpr):
    """The variables on which the outputs of a program depend."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for equation in reversed(jaxpr.eqns):
        if needed & set(equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, Literal)}
    return needed


def _size(tree):
    return sum(leaf.size * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
