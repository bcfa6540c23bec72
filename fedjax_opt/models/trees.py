"""Weights in any pytree, such as an Equinox module: which leaves are trained, and models of them."""

import inspect
import types
from collections.abc import Callable
from typing import Any, Unpack

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_opt.core import Model, Variables
from fedjax_opt.models.adapters import Reader, Reading

ARRAYS = (jax.Array, np.ndarray, np.generic)


class Fixed:
    """Stands in a tree of parameters for a leaf that is not trained, and has no leaves itself.

    Attributes:
      value: a part of the program, such as an activation function; `ARRAY` where the leaf is an array,
        which is then kept beside the parameters.
    """

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and _same(self.value, other.value)

    def __hash__(self) -> int:
        if isinstance(self.value, types.FunctionType):
            return hash(self.value.__code__)
        try:
            return hash(self.value)
        except TypeError:
            return hash(type(self.value))

    def __repr__(self) -> str:
        return f"Fixed({self.value!r})"


ARRAY = "an array that is not trained"
jax.tree_util.register_pytree_node(Fixed, lambda fixed: ((), fixed), lambda fixed, _: fixed)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, types.FunctionType) and isinstance(b, types.FunctionType):
        # A constructor that is called twice makes a lambda twice.
        plain = a.__closure__ is None and b.__closure__ is None
        return plain and a.__code__ == b.__code__ and a.__defaults__ == b.__defaults__
    return type(a) is type(b) and bool(a == b)


def is_array(leaf: object) -> bool:
    """Whether a leaf is an array, traced ones and single numbers of NumPy included."""
    return isinstance(leaf, ARRAYS)


def pack(tree: chex.ArrayTree, state: chex.ArrayTree = ()) -> Variables:
    """What of a tree is trained, and beside it in the state the arrays that are not.

    What `jax.grad` takes as a whole is trained as a whole, else its floating-point arrays are, and
    `Fixed` stands in the place of each other leaf.
    """
    leaves, structure = jax.tree.flatten(tree)
    whole = all(
        isinstance(leaf, float) or (is_array(leaf) and _is_floating(leaf)) for leaf in leaves
    )
    params, others = [], []
    for leaf in leaves:
        if whole or (is_array(leaf) and _is_floating(leaf)):
            params.append(jnp.asarray(leaf))
            continue
        if is_array(leaf):
            others.append(leaf)
        params.append(Fixed(ARRAY if is_array(leaf) else leaf))
    state = (state, tuple(others)) if others else state
    return Variables(jax.tree.unflatten(structure, params), state)


def unpack(
    variables: Variables,
) -> tuple[chex.ArrayTree, chex.ArrayTree, Callable[[chex.ArrayTree], chex.ArrayTree]]:
    """The tree and the state that were packed, and a function that packs a new state."""
    params, state = variables
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, Fixed))
    if not any(isinstance(leaf, Fixed) and leaf.value is ARRAY for leaf in leaves):
        others, packed = (), lambda new: new
    else:
        state, others = state
        packed = lambda new: (new, others)  # noqa: E731
    rest = iter(others)

    def leaf_of(leaf):
        if not isinstance(leaf, Fixed):
            return leaf
        return next(rest) if leaf.value is ARRAY else leaf.value

    tree = jax.tree.map(leaf_of, params, is_leaf=lambda leaf: isinstance(leaf, Fixed))
    # A state is handed over as a copy: Equinox's may be used only once.
    return tree, jax.tree.map(lambda x: x, state), packed


def _is_floating(leaf: chex.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


# Models ---------------------------------------------------------------------------------------


def from_pytree(
    create: Callable[[jax.Array], Any],
    call: Callable[..., Any] | None = None,
    **reading: Unpack[Reading],
) -> Model:
    """A model from a callable pytree. For an Equinox module, `from_equinox` knows more.

    The module's floating-point arrays are trained. Its other arrays are state that stays as it is; all
    else among its leaves (activation functions, sizes, flags) is part of the program.

    Args:
      create: (key) -> module. Leaves that are no arrays must not depend on the key.
      call: (module, *inputs, key) -> logits `[B, classes]`, or what `reading` wants; the key is None
        in evaluation, where dropout must be off. By default the module itself, mapped over the examples,
        without a key.
      **reading: `inputs`, `labels`, `output`, `loss` and the rest, as in `classifier`.

    Returns:
      A `Model`. Its `params` have the structure of the module.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> def create(key):
      ...     return jax.tree_util.Partial(jnp.dot, jax.random.normal(key, (3, 2)))
      >>> model = fo.models.from_pytree(create)
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> variables = model.init(jax.random.key(0), batch)
      >>> [leaf.shape for leaf in jax.tree.leaves(variables.params)]
      [(3, 2)]
    """

    def compute(module, state, key, arguments):
        if call is None:
            return jax.vmap(module)(*arguments), state
        return call(module, *arguments, key), state

    return _of_tree(lambda key: (create(key), ()), compute, Reader(**reading))


def from_equinox(
    create: Callable[[jax.Array], Any], batch_axis: str = "batch", **reading: Unpack[Reading]
) -> Model:
    """A model from an Equinox module of one example, which is mapped over the batch.

    The module gets `key=`, one for each example, and `state=` where its call has arguments of these
    names. In evaluation it is in inference mode and has no key. What is trained is as in `from_pytree`.

    Args:
      create: (key) -> module; or (module, `eqx.nn.State`), as `eqx.nn.make_with_state` makes
        them. The module then returns (output, state).
      batch_axis: the name of the batch's axis, which batch normalisation asks for.
      **reading: `inputs`, `labels`, `output`, `loss` and the rest, as in `classifier`.

    Returns:
      A `Model`. Its `params` have the structure of the module.

    Example:
      >>> import equinox as eqx
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> model = fo.models.from_equinox(lambda key: eqx.nn.MLP(2, 3, 8, depth=1, key=key))
      >>> batch = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 2, 0])}
      >>> model.init(jax.random.key(0), batch).params.layers[0].weight.shape
      (8, 2)
    """
    import equinox as eqx

    if any(map(is_array, jax.tree.leaves(create))):
        raise ValueError(
            f"create must be a function of a key that makes the module, got a {type(create).__name__}:"
            " lambda key: module begins with one that is made."
        )

    def begin(key):
        made = create(key)
        has_state = isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], eqx.nn.State)
        return made if has_state else (made, ())

    def compute(module, state, key, arguments):
        names = inspect.signature(type(module).__call__).parameters
        has_state = isinstance(state, eqx.nn.State)
        module = eqx.nn.inference_mode(module, value=key is None)

        def one(key, *arguments):
            named = {"state": state} if has_state else {}
            named |= {"key": key} if "key" in names else {}
            found = module(*arguments, **named)
            return found if has_state else (found, ())

        size = jax.tree.leaves(arguments)[0].shape[0]
        keys = None if key is None else jax.random.split(key, size)
        axes = (None if key is None else 0, *[0] * len(arguments))
        return jax.vmap(one, axes, out_axes=(0, None), axis_name=batch_axis)(keys, *arguments)

    return _of_tree(begin, compute, Reader(**reading))


def _of_tree(create, compute, reader):
    """A model of create(key) -> (module, state), and (module, state, key, inputs) -> (output, state)."""

    @jax.jit
    def initialise(key):
        return pack(*create(key))

    def call(variables, arguments, key):
        module, state, packed = unpack(variables)
        returned, state = compute(module, state, key, arguments)
        return returned, packed(state), ()

    def evaluate(variables, batch, key):
        return reader.evaluate(call, variables, batch, key)

    return Model(lambda key, batch: initialise(key), evaluate)
