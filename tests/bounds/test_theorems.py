"""Asked of every theorem: the paper's value, the same under jit, vmap and grad, float32 at extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.bounds.theorems import FAMILIES

DRAWS = 1000


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def compiled(family):
    """All theorems of a family as one program, which is most of the time that this takes."""

    def everything(*arguments):
        return {name: theorem.call(*arguments) for name, theorem in family.theorems.items()}

    return jax.jit(everything)


def test_every_bound_is_the_papers(family):
    arguments = family.draw(np.random.default_rng(0), DRAWS, extreme=False)
    wide = jax.tree.map(np.longdouble, arguments)
    for name, bound in compiled(family)(*arguments).items():
        expected = np.asarray(family.theorems[name].paper(*wide), np.float64)
        assert bound.value.shape == (DRAWS,)
        np.testing.assert_allclose(bound.value, expected, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(bound.value, sum(bound.terms.values()), rtol=1e-12)
        assert all(flag.shape == (DRAWS,) for flag in bound.assumptions.values())


def test_jit_vmap_and_single_numbers_agree(family):
    arguments = family.draw(np.random.default_rng(1), 16, extreme=False)
    together = compiled(family)(*arguments)
    one_by_one = jax.jit(jax.vmap(compiled(family)))(*arguments)
    first = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim > 1 else float(leaf[0]), arguments)
    alone = {name: theorem.call(*first) for name, theorem in family.theorems.items()}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), one_by_one, together)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], rtol=1e-12), alone, together)


@pytest.mark.slow
def test_derivatives_are_those_of_differences(family, step=1e-6):
    """Of logarithms: derivatives are then relative ones, in which no bound hides another."""
    arguments = family.draw(np.random.default_rng(2), 16, extreme=False)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, arguments))

    def logarithm(*leaves):
        found = compiled(family)(*structure.unflatten(leaves))
        return sum(jnp.sum(jnp.log(bound.value)) for bound in found.values())

    def logarithms(*leaves):
        found = compiled(family)(*structure.unflatten(leaves))
        return sum(np.log(np.asarray(bound.value)) for bound in found.values())

    slopes = jax.jit(jax.grad(logarithm, argnums=tuple(range(len(leaves)))))(*leaves)
    for i, leaf in enumerate(leaves):
        up, down = (
            logarithms(*leaves[:i], leaf * (1 + d), *leaves[i + 1 :]) for d in (step, -step)
        )
        relative = np.asarray(slopes[i] * leaf).reshape(16, -1).sum(axis=1)
        np.testing.assert_allclose(relative, (up - down) / (2 * step), rtol=1e-5, atol=1e-7)


def test_float32_agrees_with_float64_at_the_extremes(family):
    arguments = family.draw(np.random.default_rng(3), DRAWS, extreme=True)
    single = jax.tree.map(np.float32, arguments)
    narrow = compiled(family)(*single)
    wide = compiled(family)(*jax.tree.map(np.float64, single))
    for name, bound in narrow.items():
        for found, expected in zip(
            jax.tree.leaves((bound.value, bound.terms)),
            jax.tree.leaves((wide[name].value, wide[name].terms)),
            strict=True,
        ):
            assert found.dtype == np.float32 and expected.dtype == np.float64
            assert np.isfinite(found).all()
            # Below the smallest normal number of float32 there is nothing to compare.
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-38, err_msg=name)
