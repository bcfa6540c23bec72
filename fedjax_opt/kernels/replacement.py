"""Puts our ways of computing into the traced program of a function, in whatever library it is written.

The function is traced to a jaxpr, and equations of it get another primitive, of the same arguments and
results. Those inside of loops, branches and nested calls are found too. No module is patched.
"""

import logging
import weakref
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.extend import core

from fedjax_opt.kernels import convolution, pooling

Setting = bool | Literal["winograd"]
# (An equation, what the user asked for) -> the equation that takes its place, or None.
Rule = Callable[[core.JaxprEqn, Setting], core.JaxprEqn | None]

LOGGER = logging.getLogger("fedjax_opt")
# By platform and primitive. XLA's gradients of these are slow inside of loops on CPUs alone.
RULES: dict[str, dict[str, Rule]] = {
    "cpu": {
        "conv_general_dilated": convolution.faster,
        "reduce_window_max": pooling.faster,
        "reduce_window_sum": pooling.faster,
    }
}

# Functions in which something was replaced, which the log says once; and those without, which are called
# as they are from then on.
_changed, _plain = weakref.WeakSet(), weakref.WeakSet()


def fast_convolutions(function: Callable[..., Any], ways: Setting = True) -> Callable[..., Any]:
    """The function with convolutions and pools computed in ways that are fast inside of compiled loops.

    Which of them are replaced, and by what, depends on their shapes and on JAX's default platform: on
    CPUs most are, elsewhere none. Derivatives, `vmap` and `jit` are as before. A `Model` does this to
    its loss; it is for programs with a loop of their own.

    Args:
      function: a function of arrays, in whatever library its layers are written.
      ways: True for ways that round as XLA does; 'winograd' to compute 3x3 kernels of many channels
        by Winograd's minimal filtering too, which is faster and has rounding errors that batch
        normalisation can magnify to 1e-3; False leaves the function as it is.

    Returns:
      A function of the same arguments. If it has such convolutions, it is traced once for arguments of
      the same shapes.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def loss(w, x):
      ...     return jnp.sum(jax.lax.conv(x, w, (1, 1), "SAME") ** 2)
      >>> arrays = jnp.ones((3, 2, 3, 3)), jnp.ones((1, 2, 5, 5))
      >>> gradient = jax.grad(fo.models.fast_convolutions(loss))(*arrays)
      >>> bool(jnp.allclose(gradient, jax.grad(loss)(*arrays)))
      True
    """
    check_setting("ways", ways)
    rules = RULES.get(jax.default_backend(), {})
    if not (ways and rules):
        return function

    def replaced(*args: Any, **kwargs: Any) -> Any:
        if function in _plain:
            return function(*args, **kwargs)
        # JAX remembers what a function traced to: a round, its probe and its evaluation share it.
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
        changed, number = _replaced(program.jaxpr, rules, ways)
        if not number:
            _plain.add(function)
        elif function not in _changed:
            _changed.add(function)
            LOGGER.info(
                "Convolutions and pools replaced: %d, by ways that are faster inside of loops on a CPU."
                " Model(fast_convolutions=False) leaves them to XLA.",
                number,
            )
        compute = core.jaxpr_as_fun(program.replace(jaxpr=changed))
        leaves = compute(*jax.tree.leaves((args, kwargs)))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    return replaced


def check_setting(name: str, value: object) -> None:
    """Refuses what does not say which ways are allowed."""
    if not (isinstance(value, bool) or value == "winograd"):
        raise ValueError(f"{name} must be True, False or 'winograd', got {value!r}.")


def _replaced(jaxpr: core.Jaxpr, rules: dict[str, Rule], ways: Setting) -> tuple[core.Jaxpr, int]:
    """The program with other equations, and how many; itself if there are none."""
    equations, total = [], 0
    for equation in jaxpr.eqns:
        rule = rules.get(equation.primitive.name)
        other = rule(equation, ways) if rule else None
        number = int(other is not None)
        if other is None:
            params = {}
            for name, value in equation.params.items():
                params[name], inside = _replaced_inside(value, rules, ways)
                number += inside
            other = equation.replace(params=params) if number else equation
        equations.append(other)
        total += number
    return (jaxpr.replace(eqns=equations) if total else jaxpr), total


def _replaced_inside(value: Any, rules: dict[str, Rule], ways: Setting) -> tuple[Any, int]:
    """A parameter of an equation, in which programs may be: of a loop's body, of branches."""
    if isinstance(value, core.Jaxpr):
        return _replaced(value, rules, ways)
    if isinstance(value, core.ClosedJaxpr):
        jaxpr, number = _replaced(value.jaxpr, rules, ways)
        return (value.replace(jaxpr=jaxpr) if number else value), number
    if isinstance(value, (tuple, list)):
        parts = [_replaced_inside(part, rules, ways) for part in value]
        number = sum(n for _, n in parts)
        return (type(value)(part for part, _ in parts) if number else value), number
    return value, 0
