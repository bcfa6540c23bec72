"""The triple (U, T, I): an optimiser over frozen statistics that is an optax transformation.

    update  U(g, s)             the change of the model for a gradient g; s is read, never changed
    track   T(g, s)             the statistics after seeing g
    inverse I(x, x+, s, K)      the mean gradient that led from x to x+ in K updates with s frozen

Frozen means that U reads the statistics it was handed. Throwing away the new state of an ordinary
optax transformation is not that: `optax.adam` still mixes the local g^2 into v.

Reference:
  Mills, Hu, Min, Jin, Zheng, Wang. Accelerating federated learning with a global biased optimiser.
  IEEE Transactions on Computers, 2022. Table 2.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial

from fedjax_opt.core import checks
from fedjax_opt.core.algorithm import as_partial


class Triple(optax.GradientTransformation):
    """An optax transformation that can also track statistics and be inverted.

    It is the pair (`init`, `update`) that optax expects, usable in `optax.chain`, `optax.masked` and
    `optax.multi_transform`, and carries the rest as attributes. It is also a pytree whose leaves are
    its hyperparameters.

    Attributes:
      init: params -> statistics.
      update: (grads, statistics, params) -> (updates, statistics). Updates are added to the params.
      track: (grads, statistics) -> statistics.
      inverse: (old_params, new_params, statistics, num_steps) -> mean gradient.
      moving_update: as `update`, with statistics that change in every step; see `moving`.
      averages: true if `inverse` reads a mean that `update` accumulates in the statistics, instead
        of solving for it; such a mean must travel with the model.
      preprocesses: true if `inverse` returns the mean of what preprocessors made of the gradients.

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
    moving_update: Callable[..., Any]
    averages: bool
    preprocesses: bool

    def __new__(
        cls, init, update, track, inverse, moving_update=None, averages=False, preprocesses=False
    ):
        self = super().__new__(cls, as_partial(init), as_partial(update))
        self.track = as_partial(track)
        self.inverse = as_partial(inverse)
        self.moving_update = as_partial(moving_update)
        self.averages = averages
        self.preprocesses = preprocesses
        return self


def _flatten(triple: Triple):
    children = (triple.init, triple.update, triple.track, triple.inverse, triple.moving_update)
    return children, (triple.averages, triple.preprocesses)


def _unflatten(kind: tuple[bool, bool], children) -> Triple:
    averages, preprocesses = kind
    return Triple(*children, averages=averages, preprocesses=preprocesses)


jax.tree_util.register_pytree_node(Triple, _flatten, _unflatten)


def affine(
    update: Callable[..., Any],
    track: Callable[..., Any],
    init: Callable[[Any], Any] = lambda params: (),
    moving_update: Callable[..., Any] | None = None,
) -> Triple:
    """A triple from U and T alone: I follows if U is elementwise affine in the gradient.

    For frozen statistics let `U(g) = A g + b` with `A` diagonal. Then `b = U(0)`, `A = U(1) - U(0)`,
    and K updates change the model by `K (A mean(g) + b)`, so

        I(x, x+, s, K) = ((x+ - x)/K - b) / A.

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
    return Triple(
        init=Partial(_affine_init, as_partial(init), as_partial(update)),
        update=Partial(_affine_update, as_partial(update)),
        track=Partial(_track_without_params, as_partial(track)),
        inverse=Partial(_affine_inverse, as_partial(update)),
        moving_update=moving_update,
    )


def _affine_init(init, update, params):
    stats = init(params)
    if not checks.is_traced(params, stats, update):
        _check_affine(update, stats, params)
    return stats


def _check_affine(update, stats, params):
    # Elementwise affine means U(r) = U(0) + (U(1) - U(0)) r for every r; one random r tells.
    generator = np.random.default_rng(0)
    random = jax.tree.map(
        lambda p: jnp.asarray(generator.uniform(-3.0, 3.0, p.shape), p.dtype), params
    )
    at_zero = update(jax.tree.map(jnp.zeros_like, params), stats)
    at_one = update(jax.tree.map(jnp.ones_like, params), stats)
    parts = (update(random, stats), at_zero, at_one, random)
    for found, zero, one, r in zip(*map(jax.tree.leaves, parts), strict=True):
        slope = one - zero
        tolerance = 100 * jnp.finfo(r.dtype).eps * (jnp.abs(zero) + 3 * jnp.abs(slope))
        if not jnp.all(jnp.abs(found - (zero + slope * r)) <= tolerance):
            raise ValueError(
                "update must be elementwise affine in the gradient for frozen statistics, so that"
                " it can be inverted; this one is not. Use from_optax, which averages the gradients"
                " instead."
            )


def _affine_update(update, grads, stats, params=None):
    del params
    return update(grads, stats), stats


def _track_without_params(track, grads, stats, params=None):
    del params
    return track(grads, stats)


def _affine_inverse(update, old_params, new_params, stats, num_steps):
    offset = update(jax.tree.map(jnp.zeros_like, old_params), stats)
    at_one = update(jax.tree.map(jnp.ones_like, old_params), stats)

    def solve(old, new, b, a_plus_b):
        return ((new - old) / jnp.asarray(num_steps, old.dtype) - b) / (a_plus_b - b)

    return jax.tree.map(solve, old_params, new_params, offset, at_one)


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
    if triple.moving_update is not None:
        return optax.GradientTransformation(triple.init, triple.moving_update)
    return optax.GradientTransformation(
        triple.init, Partial(_update_then_track, triple.update, triple.track)
    )


def _update_then_track(update, track, grads, stats, params=None):
    updates, _ = update(grads, stats, params)
    return updates, track(grads, stats, params)


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
    return optimizer._replace(init=Partial(_init_if_it_moves, *optimizer))


def _init_if_it_moves(init, update, params):
    """Refuses a triple inside of another transformation if nobody moves its statistics."""
    before = init(params)
    if _statistics(before):
        _, after = update(jax.tree.map(jnp.zeros_like, params), before, params)
        for old, new in zip(_statistics(before), _statistics(after), strict=True):
            if all(map(operator.is_, jax.tree.leaves(old), jax.tree.leaves(new))):
                raise ValueError(
                    "optimizer must not hold a triple inside of an optax transformation: its update"
                    " leaves the statistics as they are, and optax never tracks them. Use"
                    " fedjax_opt.optimizers.chain in place of optax.chain, or"
                    " fedjax_opt.optimizers.moving(triple) inside of it."
                )
    return before


def _statistics(state: Any) -> list[Any]:
    """The statistics of our own triples, inside of another transformation's state."""

    def is_ours(node):
        return type(node).__module__.startswith(f"{__package__}.") and bool(jax.tree.leaves(node))

    return [node for node in jax.tree.leaves(state, is_leaf=is_ours) if is_ours(node)]


def as_pytree(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optax transformation as a pytree: its functions are structure."""
    return optax.GradientTransformation(as_partial(tx.init), as_partial(tx.update))
