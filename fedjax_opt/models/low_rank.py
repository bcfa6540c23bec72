"""Weights with a low-rank part, in the traced program of a function of any library.

    x (W + s A B)  is computed as  x W + s (x A) B

The function is traced to a jaxpr. Its products with such a weight are found, also where the weight was
transposed or cast before, and inside of loops, remat and nested calls. Wherever a weight is used for
anything else, W + s A B is made there: the numbers are the same, and the memory is that of another W.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from fedjax_opt.core.compatibility import scan_sizes
from fedjax_opt.core.struct import changed, struct

# The axis of A and B that they share, where others are named by the axis of W that they are.
_RANK = -1


class Roles(NamedTuple):
    """What a weight's axes are in its product: of one matrix for each, contracted, or the outputs'."""

    batch: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@struct("roles")
class Adapter:
    """The low-rank part of a weight W.

    Attributes:
      a: A, the axes of W that a product contracts, then the rank: `[inputs, r]` for a matrix.
      b: B, the rank, then the other axes of W: `[r, outputs]`. If W is several matrices, such as those
        of layers that are computed in a loop, A and B are as many.
      roles: which axes of W are which.
    """

    a: jax.Array
    b: jax.Array
    roles: Roles

    @classmethod
    def new(cls, key: jax.Array, weight: jax.Array, roles: Roles, rank: int) -> "Adapter":
        """A normal A of variance 1 / inputs, and B = 0."""
        batch, inputs, outputs = ([weight.shape[i] for i in axes] for axes in roles)
        a = jax.random.normal(key, (*batch, *inputs, rank), weight.dtype)
        b = jnp.zeros((*batch, rank, *outputs), weight.dtype)
        return cls(a * math.prod(inputs) ** -0.5, b, roles)

    def beside(self, weight: jax.Array, scale: float) -> "Weight":
        """W + scale A B, as yet unmade."""
        batch, inputs, outputs = self.roles
        names = (tuple(range(weight.ndim)), (*batch, *inputs, _RANK), (*batch, _RANK, *outputs))
        return Weight(weight, self.a, self.b * scale, names)


@struct("names", "place")
class Weight:
    """W + A B, of which each array's axes are named by those that W had in the beginning.

    Where A and B are None, `place` says which weight it is whose uses are looked for.
    """

    w: Any
    a: Any
    b: Any
    names: tuple[tuple[int, ...], ...]
    place: int = 0

    def whole(self) -> jax.Array:
        """W + A B."""
        if self.a is None:
            return self.w
        of_w, of_a, of_b = self.names
        letters = dict(zip((_RANK, *of_w), "abcdefghijklmnopqrstuvwxyz", strict=False))
        formula = ["".join(letters[name] for name in names) for names in (of_a, of_b, of_w)]
        return self.w + jnp.einsum("{},{}->{}".format(*formula), self.a, self.b).astype(
            self.w.dtype
        )


def run(function: Callable[[Any], Any], tree: Any) -> Any:
    """function(tree), where leaves of the tree may be a `Weight`."""
    if not any(map(is_weight, jax.tree.leaves(tree, is_leaf=is_weight))):
        return function(tree)
    return _run(function, tree, _product)


def roles_of(function: Callable[[Any], Any], tree: Any) -> dict[int, Roles]:
    """{a leaf's place in the tree: its roles}, of those that the function multiplies something with."""
    found = {}

    def note(equation, x, weight, pairs):
        """The first product of each weight."""
        contracted, batch = ([weight.names[0][i] for i in pair[1]] for pair in pairs)
        outputs = {*weight.names[0]} - {*contracted, *batch}
        rest = {*range(jnp.ndim(leaves[weight.place]))} - {*contracted} - outputs
        axes = (tuple(sorted(names)) for names in (rest, contracted, outputs))
        if contracted and outputs:
            found.setdefault(weight.place, Roles(*axes))

    leaves, structure = jax.tree.flatten(tree)

    def look(arrays):
        names = [(tuple(range(array.ndim)), (), ()) for array in arrays]
        weights = [Weight(x, None, None, n, i) for i, (x, n) in enumerate(zip(arrays, names))]  # noqa: B905
        return _run(function, jax.tree.unflatten(structure, weights), note)

    jax.eval_shape(look, [jnp.asarray(leaf) for leaf in leaves])
    return found


def _run(function, tree, product):
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_weight)

    def plain(arrays):
        return function(jax.tree.unflatten(structure, arrays))

    arrays = [leaf.w if is_weight(leaf) else leaf for leaf in leaves]
    program, shapes = jax.make_jaxpr(plain, return_shape=True)(arrays)
    found = _interpret(program.jaxpr, program.consts, leaves, product)
    return jax.tree.unflatten(jax.tree.structure(shapes), list(map(whole, found)))


def is_weight(value: object) -> bool:
    return isinstance(value, Weight)


def whole(value: Any) -> Any:
    return value.whole() if is_weight(value) else value


# The program, equation by equation ------------------------------------------------------------


def _interpret(jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Any], product: Any) -> list:
    """The results of a program, some of whose arguments are weights."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(variable):
        return variable.val if isinstance(variable, core.Literal) else known[variable]

    for equation in jaxpr.eqns:
        values = list(map(read, equation.invars))
        rule = _RULES.get(equation.primitive.name) if any(map(is_weight, values)) else None
        found = rule(equation, values, product) if rule else None
        if found is None:
            found = _bound(equation, map(whole, values))
        known.update(zip(equation.outvars, found, strict=True))
    return list(map(read, jaxpr.outvars))


def _bound(equation, values):
    """The equation as JAX computes it."""
    found = equation.primitive.get_bind_params(equation.params)
    # In older versions of JAX functions, which come first, are apart from the rest.
    functions, params = found if isinstance(found, tuple) else ((), found)
    with equation.ctx.manager:
        results = equation.primitive.bind(*functions, *values, **params)
    return results if equation.primitive.multiple_results else [results]


def _dot(equation, values, product):
    """A product of a weight, which is its second factor or its first."""
    if all(map(is_weight, values)):
        return None
    second = is_weight(values[1])
    weight, x = values[second], values[not second]
    pairs = equation.params.get("dimension_numbers", (((1,), (0,)), ((), ())))
    low = product(equation, x, weight, [(p[not second], p[second]) for p in pairs])
    y = _bound(equation, [x, weight.w] if second else [weight.w, x])[0]
    if low is None:
        return [y] if weight.a is None else None
    if not second:  # The weight's axes come first in the result.
        count = len(pairs[1][0])
        free = y.ndim - count - (x.ndim - len(pairs[0][0]) - count)
        low = jnp.moveaxis(low, range(low.ndim - free, low.ndim), range(count, count + free))
    return [y + low.astype(y.dtype)]


def _product(equation, x, weight, pairs):
    """(x A) B, with the axes of x before those of B; None where A is not what is contracted."""
    (own, contracted), (own_batch, batch) = pairs
    of_w, of_a, of_b = weight.names
    inputs, many = ([of_w[i] for i in axes] for axes in (contracted, batch))
    outputs = [name for name in of_w if name not in (*inputs, *many)]
    if {*of_a} != {*inputs, *many, _RANK} or {*of_b} != {*outputs, *many, _RANK}:
        return None
    options = {"precision": equation.params.get("precision")}
    numbers = (own, tuple(map(of_a.index, inputs))), (own_batch, tuple(map(of_a.index, many)))
    low = lax.dot_general(x.astype(weight.a.dtype), weight.a, numbers, **options)
    places = tuple(range(len(many)))
    numbers = ((low.ndim - 1,), (of_b.index(_RANK),)), (places, tuple(map(of_b.index, many)))
    low = lax.dot_general(low, weight.b, numbers, **options)
    found = [name for name in of_b if name in outputs]
    first = low.ndim - len(found)
    return jnp.transpose(low, (*range(first), *(first + found.index(name) for name in outputs)))


def _transposed(equation, values, product):
    del product
    (weight,), order = values, equation.params["permutation"]
    names = (tuple(weight.names[0][i] for i in order), *weight.names[1:])
    return [changed(weight, w=lax.transpose(weight.w, order), names=names)]


def _cast(equation, values, product):
    del product
    cast = [
        None if x is None else x.astype(equation.params["new_dtype"]) for x in _arrays(values[0])
    ]
    return [changed(values[0], **dict(zip("wab", cast, strict=True)))]


def _arrays(weight):
    return weight.w, weight.a, weight.b


def _call(equation, values, product):
    program = equation.params["jaxpr"]
    return _interpret(program.jaxpr, program.consts, values, product)


def _remat(equation, values, product):
    params = equation.params

    def inside(values):
        return list(map(whole, _interpret(params["jaxpr"], (), values, product)))

    options = {name: params[name] for name in ("prevent_cse", "policy")}
    return jax.checkpoint(inside, **options)(values)


def _branches(equation, values, product):
    index, *values = values

    def inside(program):
        return lambda values: list(
            map(whole, _interpret(program.jaxpr, program.consts, values, product))
        )

    return lax.switch(whole(index), list(map(inside, equation.params["branches"])), values)


def _loop(equation, values, product):
    """A scan: a weight may be the same in all steps, or one in each."""
    program, (fixed, carried) = equation.params["jaxpr"], scan_sizes(equation.params)
    ends = [0, fixed, fixed + carried, len(values)]
    consts, carry, each = (values[i:j] for i, j in itertools.pairwise(ends))
    each = [x if is_weight(x) and _by_step(x) else whole(x) for x in each]

    def body(carry, now):
        now = [changed(x, names=_without_first(x)) if is_weight(x) else x for x in now]
        found = _interpret(program.jaxpr, program.consts, [*consts, *carry, *now], product)
        found = list(map(whole, found))
        return found[:carried], found[carried:]

    options = {name: equation.params[name] for name in ("reverse", "length", "unroll")}
    carry, results = lax.scan(body, list(map(whole, carry)), each, **options)
    return [*carry, *results]


def _by_step(weight):
    """Whether a weight, its A and its B begin with one and the same axis."""
    return weight.a is None or len({names[0] for names in weight.names}) == 1


def _without_first(weight):
    return tuple(names[1:] for names in weight.names)


_RULES: dict[str, Callable[..., list | None]] = {
    "dot_general": _dot,
    "thin_dot": _dot,
    "transpose": _transposed,
    "convert_element_type": _cast,
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "remat2": _remat,
    "checkpoint": _remat,
    "cond": _branches,
    "scan": _loop,
}
