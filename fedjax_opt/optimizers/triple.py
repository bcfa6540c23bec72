"""The triple (U, T, I): an optimiser over frozen statistics that is an optax transformation.

    update  U(g, s)             the change of the model for a gradient g; s is read, never changed
    track   T(g, s)             the statistics after seeing g
    inverse I(x, x+, s, K)      the mean gradient that led from x to x+ in K updates with s frozen

Frozen means that U reads the statistics it was handed. Throwing away the new state of an ordinary
optax transformation is not that: `optax.adam` still mixes the local g^2 into v.

I follows from U, which is elementwise affine in the gradient: U(g) = A g + b with A diagonal. K updates
change the model by K (A mean(g) + b), so I(x, x+, s, K) = ((x+ - x) / K - b) / A, with b and A from one
derivative of U. Where A = 0 (a schedule is at 0) nothing moved, and nothing can be found: I is 0 there.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Table 2.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import GetAttrKey, Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import as_partial
from fedjax_opt.core.calls import Call, constructor, replaced, shapes, shown

# The triples whose statistics were made while an optax transformation around them was asked for its own.
_FROZEN_INSIDE: ContextVar[list[None] | None] = ContextVar("frozen_inside", default=None)


class Triple(optax.GradientTransformationExtraArgs):
    """An optax transformation that can also track statistics and be inverted.

    It is the pair (`init`, `update`) that optax expects, and carries the rest as attributes. It is
    also a pytree whose leaves are its hyperparameters.

    Attributes:
      init: params -> statistics.
      update: (updates, state, params=None, **extra) -> (updates, state), of gradients and statistics.
        Updates are added to the params.
      track: (grads, statistics, params) -> statistics.
      inverse: (old_params, new_params, statistics, num_steps) -> mean gradient; derived if not given.
      moving_update: as `update`, with statistics that change in every step; see `moving`.
      averages: true if `inverse` reads a mean that `update` accumulates in the statistics, instead
        of solving for it; such a mean must travel with the model.
      preprocesses: true if `inverse` returns the mean of what preprocessors made of the gradients.
      call: the constructor that made it and what that was given, for its repr.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.sgdm(0.1, 0.9)
      >>> isinstance(opt, optax.GradientTransformation)
      True
      >>> x, g = jnp.array([1.0]), jnp.array([2.0])
      >>> stats = opt.init(x)
      >>> updates, stats = opt.update(g, stats, x)
      >>> round(float(opt.inverse(x, x + updates, stats, 1)[0]), 4)
      2.0
    """

    track: Callable[..., Any]
    inverse: Callable[..., Any]
    moving_update: Callable[..., Any] | None
    averages: bool
    preprocesses: bool
    call: Call | None

    def __new__(
        cls,
        init,
        update,
        track,
        inverse=None,
        moving_update=None,
        averages=False,
        preprocesses=False,
        call=None,
    ):
        init, update = as_partial(init), as_optax(update)
        init = init if init.func is _frozen_init else Partial(_frozen_init, init)
        self = super().__new__(cls, init, update)
        self.track = as_partial(track)
        self.inverse = Partial(_inverse, update) if inverse is None else as_partial(inverse)
        self.moving_update = None if moving_update is None else as_optax(moving_update)
        self.averages = averages
        self.preprocesses = preprocesses
        self.call = call
        return self

    def _parts(self) -> dict[str, Any]:
        return {"init": self.init, "update": self.update, **vars(self)}

    def __reduce__(self):
        """For copies: a tuple would be copied without its attributes."""
        return type(self), tuple(self._parts().values())

    def _replace(self, **changes):
        parts = {**self._parts(), "call": replaced(self, changes), **changes}
        return type(self)(**parts)

    def __repr__(self) -> str:
        return shown(self, self._parts())


_KINDS = "averages", "preprocesses"


def _flatten_with_keys(triple: Triple):
    children = [(GetAttrKey(k), x) for k, x in triple._parts().items() if k not in _KINDS]
    return children, tuple(getattr(triple, kind) for kind in _KINDS)


def _unflatten(kinds: tuple[bool, bool], children) -> Triple:
    *functions, call = children
    return Triple(*functions, averages=kinds[0], preprocesses=kinds[1], call=call)


jax.tree_util.register_pytree_with_keys(Triple, _flatten_with_keys, _unflatten)


def as_optax(update: Callable[..., Any]) -> Partial:
    """An update with optax's names of its arguments, that may be handed more of them."""
    bound: Any = as_partial(update)
    return bound if bound.func is _update else Partial(_update, bound)


def _update(update, updates, state, params=None, **extra_args):
    return update(updates, state, params)


def _frozen_init(init, params):
    stats = init(params)
    seen = _FROZEN_INSIDE.get()
    if seen is not None and jax.tree.leaves(stats):
        seen.append(None)
    return stats


def _inverse(update, old_params, new_params, stats, num_steps):
    b, a = _line(update, stats, old_params)

    def solve(old, new, b, a):
        moved = (new - old) / jnp.asarray(num_steps, old.dtype) - b
        return jnp.where(a == 0, 0, moved / jnp.where(a == 0, 1, a))

    return jax.tree.map(solve, old_params, new_params, b, a)


def _line(update, stats, params):
    """(b, A) of U(g) = A g + b."""
    zeros, ones = (jax.tree.map(of, params) for of in (jnp.zeros_like, jnp.ones_like))
    return jax.jvp(lambda grads: update(grads, stats, params)[0], (zeros,), (ones,))


@constructor
def affine(
    update: Callable[..., Any],
    track: Callable[..., Any],
    init: Callable[[Any], Any] = lambda params: (),
    moving_update: Callable[..., Any] | None = None,
) -> Triple:
    """A triple from U and T alone, of which U is checked to be elementwise affine in the gradient.

    Args:
      update: (grads, statistics) -> updates, to be added to the params.
      track: (grads, statistics) -> statistics.
      init: params -> statistics; none by default.
      moving_update: (grads, statistics, params) -> (updates, statistics), the form for `moving`; by
        default U is applied and then the statistics are tracked.

    Returns:
      A `Triple`. Its `init` refuses an `update` that is not elementwise affine.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> triple = fo.optimizers.affine(
      ...     update=lambda g, m: jax.tree.map(lambda g, m: -0.1 * (m + g), g, m),
      ...     track=lambda g, m: jax.tree.map(lambda g, m: 0.9 * m + g, g, m),
      ...     init=lambda params: jax.tree.map(jnp.zeros_like, params),
      ... )
      >>> m = triple.init(jnp.zeros(1))
      >>> float(triple.inverse(jnp.zeros(1), jnp.array([-0.3]), m, 1)[0])
      3.0
    """
    update = Partial(_affine_update, as_partial(update))
    return Triple(
        init=Partial(_affine_init, as_partial(init), update),
        update=update,
        track=Partial(_affine_track, as_partial(track)),
        moving_update=moving_update,
    )


def _affine_update(update, grads, stats, params=None):
    return update(grads, stats), stats


def _affine_track(track, grads, stats, params=None):
    return track(grads, stats)


def _affine_init(init, update, params):
    """The statistics; refuses a U that is not A g + b at a random g."""
    stats = init(params)
    if checks.is_traced(params, stats, update):
        return stats
    generator = np.random.default_rng(0)
    random = jax.tree.map(
        lambda p: jnp.asarray(generator.uniform(-3.0, 3.0, p.shape), p.dtype), params
    )
    # Differences, not a derivative: that of a rounded gradient says nothing.
    ones = jax.tree.map(jnp.ones_like, params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    parts = [*(update(g, stats)[0] for g in (random, zeros, ones)), random]
    if checks.is_traced(parts):  # the functions close over what is
        return stats
    for found, zero, one, r in zip(*map(jax.tree.leaves, parts), strict=True):
        slope = one - zero
        tolerance = 100 * jnp.finfo(r.dtype).eps * (jnp.abs(zero) + 3 * jnp.abs(slope))
        if not jnp.all(jnp.abs(found - (zero + slope * r)) <= tolerance):
            raise ValueError(
                "update must be elementwise affine in the gradient for frozen statistics, so that"
                " it can be inverted; this one is not. Use from_optax, which averages the gradients"
                " instead."
            )
    return stats


def moving(triple: Triple) -> optax.GradientTransformation:
    """The same optimiser with statistics that change in every step, as MFL and servers use it.

    Args:
      triple: a `Triple`.

    Returns:
      An optax transformation. It is not a triple: what moved cannot be inverted.

    Example:
      >>> import jax.numpy as jnp
      >>> import fedjax_opt as fo
      >>> opt = fo.optimizers.moving(fo.optimizers.sgdm(0.1, 0.5))
      >>> _, stats = opt.update(jnp.ones(1), opt.init(jnp.ones(1)))
      >>> float(stats.m[0])
      0.5
    """
    if not isinstance(triple, Triple):
        raise ValueError(f"triple must be a Triple, got {type(triple).__name__}.")
    update = triple.moving_update
    if update is None:
        update = as_optax(Partial(_update_then_track, triple.update, triple.track))
    return optax.GradientTransformationExtraArgs(moving_init(triple), update)


def moving_init(triple: Triple) -> Partial:
    """`init` of statistics that will move: allowed wherever it stands."""
    init: Any = triple.init
    return init.args[0]


def _update_then_track(update, track, grads, stats, params=None):
    updates, _ = update(grads, stats, params)
    return updates, track(grads, stats, params)


def track_inverted(
    triple: Triple, grads: chex.ArrayTree, stats: Any, params: chex.ArrayTree
) -> Any:
    """T(g, s) of a mean gradient that was found by inversion.

    Where a schedule is at 0 nothing could be found: the statistics stay, and its count goes on.
    """
    tracked = triple.track(grads, stats, params)
    still = stands_still(triple, stats, params)
    if still is None:
        return tracked

    def chosen(new, old):
        return jnp.where(still, old, new) if jnp.issubdtype(new.dtype, jnp.inexact) else new

    return jax.tree.map(chosen, tracked, stats)


def stands_still(triple: Triple, stats: Any, params: chex.ArrayTree) -> chex.Array | None:
    """Whether no gradient moves the model: a schedule is at 0. None where there is no schedule."""
    counts = any(jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(stats))
    if triple.averages or not counts:
        return None
    # The inverse of one step that moved everything is 0 only where it could find nothing.
    zeros, ones = (jax.tree.map(of, params) for of in (jnp.zeros_like, jnp.ones_like))
    found = triple.inverse(zeros, ones, stats, 1), triple.inverse(ones, zeros, stats, 1)
    zero = [jnp.all(x == 0) for x in jax.tree.leaves(found)]
    return jnp.all(jnp.stack(zero)) if zero else None


def local_form(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser for local training from fresh statistics: they move, or it would learn nothing."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            "optimizer must be an optax.GradientTransformation, such as"
            f" fedjax_opt.optimizers.sgd(0.1), got {optimizer!r}."
        )
    if isinstance(optimizer, Triple):
        return moving(optimizer)
    optimizer = as_pytree(optimizer)
    _refuse_needs(optimizer, {"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)})
    return optimizer._replace(init=Partial(_checked_init, optimizer))


def _checked_init(optimizer, params):
    """Refuses a triple inside of another transformation: nobody would move its statistics."""
    init = optimizer.init
    seen: list[None] = []
    token = _FROZEN_INSIDE.set(seen)
    try:
        state = init(params)
    finally:
        _FROZEN_INSIDE.reset(token)
    if seen:
        raise ValueError(
            "optimizer must not hold a triple inside of an optax transformation: its update"
            " leaves the statistics as they are, and optax never tracks them. Use"
            " fedjax_opt.optimizers.chain in place of optax.chain, or"
            " fedjax_opt.optimizers.moving(triple) inside of it."
        )
    _refuse_needs(optimizer, params)  # again: it may have looked at leaves that are only here
    return state


# How optax says that an update needs the loss, a function or the slow parameters.
_NEEDS = (
    "required keyword-only argument",
    "must be provided",
    "need to pass",  # momo of optax 0.2.6
    "has no attribute 'fast'",
)


def _refuse_needs(optimizer: optax.GradientTransformation, params: Any) -> None:
    """Refuses an optimiser whose update wants more than gradients, statistics and parameters."""
    try:
        # Only what it asks for matters here, not how it promotes dtypes.
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            updates = jax.eval_shape(lambda x: optimizer.update(x, optimizer.init(x), x)[0], params)
    except Exception as error:
        if any(sign in str(error) for sign in _NEEDS):
            raise ValueError(
                "optimizer must need no more than gradients, as local steps and servers have them, but"
                f" optax's says: {error}"
            ) from error
        return  # about these parameters (labels of other leaves, say), or raised again by its use
    found, wanted = ([x.shape for x in jax.tree.leaves(tree)] for tree in (updates, params))
    if found != wanted:
        raise ValueError(
            "optimizer must return updates of the shapes of the parameters; of parameters of the shapes"
            f" {shapes(params)} its updates have {shapes(updates)}. One that wants the gradient of each"
            " example, as optax.contrib.dpsgd does, cannot be used here."
        )


def as_pytree(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optax transformation as a pytree: its functions are structure."""
    return optax.GradientTransformation(as_partial(tx.init), as_partial(tx.update))
