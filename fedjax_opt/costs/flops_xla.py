"""Operations of any function, model or algorithm, as counted by XLA's own cost analysis.

The analysis is of the program before it is optimised: it counts what the mathematics asks for, needs no
compilation, and does not lose products to library calls. A multiplication and an addition are two
operations; a root, an exponential or another elementary function is one.

XLA counts the body of a loop once, however often it runs. A `lax.scan` (or a `fori_loop` between known
bounds) says how often that is, so its body is counted apart and multiplied. A `while_loop` does not,
and is refused, but for what a client does once in a round: there it counts as one turn. (A codec looks
for its threshold in a few, each a pass over the model.) What custom calls hide (factorisations, kernels
of one's own) counts as nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from fedjax_opt.core import (
    Algorithm,
    Context,
    Model,
    Objective,
    ProbeData,
    Situation,
    Variables,
    checks,
)
from fedjax_opt.costs.flops import Flops
from fedjax_opt.engine.server import contribution, report_contribution


class Passes(NamedTuple):
    """The operations of a model for one sample.

    Attributes:
      forward: the loss.
      backward: what its gradient takes beside the loss.
    """

    forward: float
    backward: float


def measured_flops(function: Callable[..., Any], *args: Any) -> float:
    """The operations of a function of arrays, by XLA's cost analysis of its program.

    Nothing is computed: shapes are enough.

    Args:
      function: any function that `jax.jit` takes.
      *args: its arguments, pytrees of arrays or of `jax.ShapeDtypeStruct`.

    Returns:
      The number of operations.

    Example:
      A product takes 2 m n k, and a scan as often as it turns:

      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> a, b = jnp.ones((10, 20)), jnp.ones((20, 20))
      >>> fo.costs.measured_flops(jnp.dot, a, b)
      8000.0
      >>> def power(a, b):
      ...     return jax.lax.scan(lambda c, _: (c @ b, None), a, None, length=5)[0]
      >>> round(fo.costs.measured_flops(power, a, b), -2)
      40000.0
    """
    return _total(jax.make_jaxpr(function)(*args))


def pass_flops(model: Model, batch: Any) -> Passes:
    """The operations (fwd, bwd) of a model's loss and of its gradient, for one sample.

    Args:
      model: a `Model`.
      batch: a minibatch `[B, ...]`, arrays or shapes; the result is per sample.

    Returns:
      `Passes`, of which the sum is the (fwd + bwd) of `formula_flops`.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> batch = {"x": jnp.ones((32, 784)), "y": jnp.zeros(32, int)}
      >>> forward, backward = fo.costs.pass_flops(fo.models.mlp([200], num_classes=10), batch)
      >>> round(forward / (2 * (784 * 200 + 200 * 10)), 2)
      1.0
    """
    (size,) = checks.leading_axes("batch", batch, (None,), "B")
    variables, key = _variables(model, batch), _key()

    def loss(variables, batch, key):
        return Objective(model, key).evaluate(variables, batch).loss

    def gradient(variables, batch, key):
        found, evaluation = Objective(model, key).gradient(variables, batch)
        return found, evaluation.loss

    forward = measured_flops(loss, variables, batch, key)
    both = measured_flops(gradient, variables, batch, key)
    return Passes(forward / size, (both - forward) / size)


def client_flops(
    algorithm: Algorithm, model: Model, batch: Any, samples: int | None = None
) -> Flops:
    """The operations of a round of any algorithm, measured function by function.

    A step is measured once and multiplied by K; so is every part of a round that the paper's formula
    leaves out: corrections, control variates, penalties, momentum, and what the server does.

    Args:
      algorithm: an `Algorithm`, wrapped or not.
      model: a `Model`.
      batch: a minibatch `[B, ...]`, arrays or shapes.
      samples: n, the samples of the client, over which a probe may take a full-batch gradient; those of
        one minibatch by default.

    Returns:
      `Flops`; `client(K)` are those of a client, and `server` those of the server's step.

    Example:
      FedCM's direction adds three operations per parameter to a step: alpha g + (1 - alpha) d.

      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model, sgd = fo.models.mlp([], num_classes=10), fo.optimizers.sgd(0.1)
      >>> batch = {"x": jnp.ones((8, 64)), "y": jnp.zeros(8, int)}
      >>> steps = [fo.costs.client_flops(a, model, batch).step
      ...          for a in (fo.fedavg(sgd), fo.fedcm(sgd, 0.1))]
      >>> (steps[1] - steps[0]) / (64 * 10 + 10)
      3.0
    """
    (size,) = checks.leading_axes("batch", batch, (None,), "B")
    samples = size if samples is None else checks.integer("samples", samples, low=1)
    everything = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((samples, *x.shape[1:]), x.dtype), batch
    )
    variables, key = _variables(model, batch), _key()
    server = jax.eval_shape(algorithm.init, variables)
    client = jax.eval_shape(algorithm.init_client, variables)
    message = jax.eval_shape(algorithm.broadcast, server)
    local = jax.eval_shape(algorithm.start, message, client)

    def probe(message, client, batch, everything, key):
        if algorithm.probe is None:
            return ()
        gradients = (partial(_gradient, Objective(model, key), x) for x in (everything, batch))
        return algorithm.probe(message, client, ProbeData(*gradients))

    def step(local, batch, key, context):
        return algorithm.step(local, Objective(model, key), batch, context)

    def mean_of(local, context):
        upload, _ = algorithm.finish(local, context)
        return contribution(summed, upload, context.num_steps, 0.0, 1.0).mean

    # Whatever the aggregator: what it makes of the contributions has the shapes of their mean.
    summed = algorithm._replace(aggregate=None)
    probed = message, client, batch, everything, key
    own_report = jax.eval_shape(probe, *probed)
    report = jax.eval_shape(lambda own: report_contribution(summed, own, 1.0).mean, own_report)
    whole: Any = jax.ShapeDtypeStruct((), jnp.int32)
    fraction: Any = jax.ShapeDtypeStruct((), jnp.result_type(float))
    context = Context(message, client, report, own_report, whole, whole, whole, whole, whole, key)
    situation = Situation(whole, key, whole, whole, report, whole, fraction, fraction)
    mean = jax.eval_shape(mean_of, local, context)
    return Flops(
        step=measured_flops(step, local, batch, key, context),
        probe=measured_flops(probe, *probed),
        start=_flops(algorithm.start, message, client),
        finish=_flops(algorithm.finish, local, context),
        server=_flops(algorithm.server_step, server, mean, situation),
    )


def _gradient(objective, examples, variables, adjust=None):
    objective = objective if adjust is None else adjust(objective, examples)
    return objective.gradient(variables, examples)[0]


def _variables(model: Model, batch: Any) -> Variables:
    found = jax.eval_shape(model.init, _key(), batch)
    return found if isinstance(found, Variables) else Variables(found)


def _key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _flops(function: Callable[..., Any], *args: Any) -> float:
    """As `measured_flops`; a loop whose turns are not known counts as one."""
    return _total(jax.make_jaxpr(function)(*args), refuse=False)


def _total(closed: ClosedJaxpr, refuse: bool = True) -> float:
    return _counted_once(closed) + _further_turns(closed.jaxpr, refuse)


def _counted_once(closed: ClosedJaxpr) -> float:
    """XLA's count, in which every loop turns once."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    analysis = jax.jit(jaxpr_as_fun(closed)).lower(*shapes).cost_analysis()
    # Some versions return one analysis per device, and leave out what is zero.
    analysis = (analysis[0] if isinstance(analysis, list) else analysis) or {}
    return float(analysis.get("flops", 0.0)) + float(analysis.get("transcendentals", 0.0))


def _further_turns(jaxpr: Jaxpr, refuse: bool) -> float:
    """The operations of all loops beyond the one turn that XLA counts."""
    extra = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "while" and refuse:
            raise ValueError(
                "function must not hold a while loop, nor a fori_loop between traced bounds: how often"
                " it turns is not known. Use lax.scan, or a fori_loop between Python ints."
            )
        if name == "scan":
            # An unrolled loop has `unroll` copies of its body, and what is left over beside it.
            length, unroll = params["length"], int(params["unroll"])
            turns, rest = divmod(length, unroll)
            seen = (unroll if turns else 0) + rest
            body = params["jaxpr"]
            extra += length * _total(body, refuse) - seen * _counted_once(body)
        elif name == "cond":
            extra += max(_further_turns(branch.jaxpr, refuse) for branch in params["branches"])
        else:
            extra += sum(_further_turns(inner, refuse) for inner in _inner(params))
    return extra


def _inner(params: dict[str, Any]):
    """The programs inside of an equation: calls, derivatives by hand, checkpoints."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part.jaxpr
            elif isinstance(part, Jaxpr):
                yield part
