"""What is asked of every calculator: the same numbers under jit and vmap, derivatives, float32."""

import jax
import jax.numpy as jnp
import numpy as np


def check(functions, ordinary, extreme, rtol=1e-4):
    """Functions of numbers give `Bound`s, of arrays `[n]` one for each, and transform right.

    They are compiled together, which is most of the time that this takes.

    Args:
      functions: name -> a function of the arguments.
      ordinary: arguments as arrays `[n]`, at which derivatives are compared with differences.
      extreme: likewise, at which float32 is compared with float64.
      rtol: how near float32 comes.
    """
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, ordinary))

    def bounds_of(*leaves):
        arguments = structure.unflatten(leaves)
        return {name: function(*arguments) for name, function in functions.items()}

    def logarithm(*leaves):
        """Of all values: its derivatives are relative ones, in which no bound hides another."""
        bounds = bounds_of(*leaves)
        return sum(jnp.log(bound.value) for bound in bounds.values()), bounds

    together = jax.jit(bounds_of)
    slopes_of = jax.grad(logarithm, argnums=tuple(range(len(leaves))), has_aux=True)
    bounds = together(*leaves)
    slopes, one_by_one = jax.jit(jax.vmap(slopes_of))(*leaves)
    alone = bounds_of(*(float(leaf[0]) for leaf in leaves))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one_by_one, bounds)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-12), alone, bounds)
    _check_slopes(together, leaves, slopes)
    _check_precision(together, jax.tree.leaves(extreme), rtol)


def _check_slopes(together, leaves, slopes, step=1e-6):
    def logarithm(*leaves):
        return sum(np.log(bound.value) for bound in together(*leaves).values())

    for i, leaf in enumerate(leaves):
        up, down = (logarithm(*leaves[:i], leaf * (1 + d), *leaves[i + 1 :]) for d in (step, -step))
        expected = (up - down) / (2 * step)
        np.testing.assert_allclose(slopes[i] * leaf, expected, rtol=1e-5, atol=1e-7)


def _check_precision(together, leaves, rtol):
    single = [jnp.asarray(leaf, jnp.float32) for leaf in leaves]
    narrow, wide = together(*single), together(*(leaf.astype(jnp.float64) for leaf in single))
    for name, bound in narrow.items():
        for found, expected in zip(
            jax.tree.leaves((bound.value, bound.terms)),
            jax.tree.leaves((wide[name].value, wide[name].terms)),
            strict=True,
        ):
            assert found.dtype == jnp.float32 and expected.dtype == jnp.float64
            assert np.isfinite(found).all()
            # Below the smallest normal number of float32 there is nothing to compare.
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=2e-38)
