"""Operations of any function, model or algorithm, counted on its program: what the mathematics asks for.

A product of matrices or a convolution takes two operations, a multiplication and an addition, for each
pair of numbers that meet (a convolution's padding is no number). Anything else takes one for each
number that it makes: a sum, a root, an exponential, a comparison; a reduction one for each number that
it takes in. What moves data, and what is done to whole numbers, counts as nothing; what a kernel of
one's own hides is not seen. It does not depend on XLA, on the platform, and on the ways by which a
model's convolutions are computed there.

A `lax.scan` (or a `fori_loop` between known bounds) counts as often as it turns, of several branches
the dearest. A `while_loop` is refused, since nobody knows how often it turns; but for what a client does
once in a round: there it counts as one turn. (A codec looks for its threshold in a few, each a pass over
the model.)
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from fedjax_opt.core import Algorithm, Model, Situation, Variables, checks
from fedjax_opt.costs.round_on_shapes import round_on_shapes
from fedjax_opt.costs.traffic import needed_equations
from fedjax_opt.engine.server import contribution, server_update

# What moves numbers, or writes them in another form, and computes none.
_MOVES = {
    "bitcast_convert_type", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p",
    "device_put", "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "iota",
    "optimization_barrier", "pad", "reduce_precision", "reshape", "rev", "scatter", "select_n",
    "sharding_constraint", "slice", "split", "squeeze", "stack", "stop_gradient", "tile", "transpose",
    "unstack",
}  # fmt: skip
_REDUCTIONS = ("reduce_", "arg", "cum", "select_and_")


class Flops(NamedTuple):
    """The operations of a client in a round, and of the server.

    Attributes:
      step: one local step: the gradient of a minibatch and its update.
      probe: before local work begins: MimeLite's and Mime's full-batch gradient.
      start: from the message to the local state.
      finish: from the local state to the upload.
      server: the server's step with its checks, once in a round; the sum of the uploads is not in it.
    """

    step: chex.Numeric
    probe: chex.Numeric = 0.0
    start: chex.Numeric = 0.0
    finish: chex.Numeric = 0.0
    server: chex.Numeric = 0.0

    def client(self, num_steps: chex.Numeric) -> chex.Numeric:
        """A client's operations in a round of K local steps; K is a number or an array."""
        return self.probe + self.start + num_steps * self.step + self.finish


def measured_flops(function: Callable[..., Any], *args: Any) -> float:
    """The operations of a function of arrays; nothing is computed, shapes are enough.

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
      >>> fo.costs.measured_flops(power, a, b)
      40000.0
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr, refuse_while=True)


def client_flops(
    algorithm: Algorithm, model: Model, batch: Any, samples: int | None = None
) -> Flops:
    """The operations of a round of any algorithm, counted part by part.

    A step is counted once and multiplied by K; so is every part of a round that a paper's formula
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
      >>> round((steps[1] - steps[0]) / (64 * 10 + 10), 1)
      3.0
    """
    (size,) = checks.leading_axes("batch", batch, (None,), "B")
    samples = size if samples is None else checks.integer("samples", samples, low=1)
    shapes, examples = (
        jax.tree.map(lambda x, n=n: jax.ShapeDtypeStruct((n, *x.shape[1:]), x.dtype), batch)
        for n in (size, samples)
    )
    model = dataclasses.replace(model, fast_convolutions=False)
    variables = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)), shapes)
    variables = variables if isinstance(variables, Variables) else Variables(variables)
    server, known, carry, probe, begin, step, finish = round_on_shapes(
        algorithm, model, variables, shapes, examples
    )
    # Whatever the aggregator: what it makes of the contributions has the shapes of their mean.
    summed = algorithm._replace(aggregate=None)
    upload = jax.eval_shape(finish, carry, known).upload
    total = jax.eval_shape(lambda upload: contribution(summed, upload, 1, 0.0, 1.0), upload)

    def of_server(server, total, report, key):
        situation = Situation(0, key, num_clients=1, invited=1, report=report)
        return server_update(summed, server, total, situation)[0]

    def flops(function, *args):
        return _count(jax.make_jaxpr(function)(*args).jaxpr, refuse_while=False)

    return Flops(
        step=measured_flops(step, carry, known),
        probe=measured_flops(probe, known),
        start=flops(begin, known),
        finish=flops(finish, carry, known),
        server=flops(of_server, server, total, known.report, known.key),
    )


def _count(jaxpr: Jaxpr, refuse_while: bool) -> float:
    """The operations on which the outputs of a program depend."""
    total = 0.0
    for equation in needed_equations(jaxpr):
        name, params = equation.primitive.name, equation.params
        if name == "while" and refuse_while:
            raise ValueError(
                "function must not hold a while loop, nor a fori_loop between traced bounds: how often"
                " it turns is not known. Use lax.scan, or a fori_loop between Python ints."
            )
        inner = [_count(each, refuse_while) for each in _inner(params)]
        if name == "cond":
            total += max(inner)
        elif name == "custom_linear_solve":  # its solver; the rest is for derivatives
            total += inner[2]
        elif name == "scan":
            total += params["length"] * sum(inner)
        elif inner and not name.startswith(("reduce", "scatter")):  # whose programs are one sum
            total += sum(inner)
        elif name not in _MOVES and any(_is_floating(v.aval) for v in equation.invars):
            total += _of_one(name, equation)
    return total


def _of_one(name: str, equation: JaxprEqn) -> int:
    if name in ("dot_general", "thin_dot"):
        return 2 * _of_product(equation)
    if name == "conv_general_dilated":
        return 2 * _of_convolution(equation)
    sizes = [math.prod(shape) for shape in _shapes(equation.invars)]
    if name.startswith("scatter"):  # into an array, at indices, so many numbers
        return sizes[2]
    if name.startswith(_REDUCTIONS):
        return max(sizes)
    return math.prod(_shapes(equation.outvars)[0])


def _of_product(equation: JaxprEqn) -> int:
    of_matrices = (((1,), (0,)), ((), ()))  # as `kernels.thin_product` has it
    (contracted, _), _ = equation.params.get("dimension_numbers", of_matrices)
    (left, _), (out,) = _shapes(equation.invars), _shapes(equation.outvars)
    return math.prod(out) * math.prod(left[axis] for axis in contracted)


def _of_convolution(equation: JaxprEqn) -> int:
    """How often a number of the input meets one of the kernel."""
    (left, right), (out,) = _shapes(equation.invars), _shapes(equation.outvars)
    params, numbers = equation.params, equation.params["dimension_numbers"]
    meetings = out[numbers.out_spec[0]] * out[numbers.out_spec[1]] * right[numbers.rhs_spec[1]]
    for axis, (stride, (padding, _), spread, gap) in enumerate(
        zip(
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        ),
        start=2,
    ):
        outputs = np.arange(out[numbers.out_spec[axis]])[:, None] * stride
        position = outputs + np.arange(right[numbers.rhs_spec[axis]]) * gap - padding
        # Padding, and the zeros between the numbers of a dilated input, are not computed with.
        inside = (position >= 0) & (position <= (left[numbers.lhs_spec[axis]] - 1) * spread)
        meetings *= int(np.sum(inside & (position % spread == 0)))
    return meetings


def _inner(params: dict[str, Any]) -> list[Jaxpr]:
    """The programs inside of an equation: loops, branches, calls, derivatives by hand, checkpoints."""
    parts = [p for v in params.values() for p in (v if isinstance(v, (tuple, list)) else (v,))]
    programs = [p.jaxpr if isinstance(p, ClosedJaxpr) else p for p in parts]
    return [program for program in programs if isinstance(program, Jaxpr)]


def _shapes(atoms: Sequence[Any]) -> list[tuple[int, ...]]:
    return [atom.aval.shape for atom in atoms]


def _is_floating(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)
