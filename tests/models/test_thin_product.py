"""The product of a small batch and a large matrix against the ordinary one."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_opt as fo

RNG = np.random.default_rng(0)
MATRICES = (((1,), (0,)), ((), ()))
X, W = RNG.normal(size=(2, 11)), RNG.normal(size=(11, 9))


def close(found, expected):
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def loss(dot):
    return lambda x, w: jnp.sum(jnp.sin(dot(jnp.tanh(x), w, MATRICES)))


def both(of):
    """What a function of a product gives for ours and for JAX's."""
    return jax.jit(lambda x, w: (of(fo.models.thin_dot)(x, w), of(lax.dot_general)(x, w)))(X, W)


@pytest.mark.parametrize(
    "of",
    [
        lambda dot: lambda x, w: dot(x, w, MATRICES),
        lambda dot: jax.grad(loss(dot), argnums=(0, 1)),
        lambda dot: jax.hessian(loss(dot), argnums=(0, 1)),
        lambda dot: jax.jacrev(jax.grad(loss(dot), argnums=(0, 1)), argnums=(0, 1)),
        lambda dot: lambda x, w: jax.jvp(loss(dot), (x, w), (jnp.cos(x), jnp.cos(w))),
        lambda dot: lambda x, w: jax.jvp(lambda x: loss(dot)(x, w), (x,), (jnp.cos(x),)),
    ],
    ids=["value", "gradient", "hessian", "twice reverse", "forward", "forward of one"],
)
def test_every_derivative_is_that_of_the_product(of):
    """Of first and second order, forward and reverse."""
    close(*both(of))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_it_maps_over_inputs_and_weights(axes):
    """As clients that are computed side by side need it, gradients included."""
    x, w = X, W
    if axes[0] == 0:
        x = jnp.stack([X, 2 * X, X - 1])
    if axes[1] == 0:
        w = jnp.stack([W, 2 * W, W - 1])

    @jax.jit
    def run(x, w):
        return [
            jax.vmap(jax.grad(loss(dot), argnums=(0, 1)), in_axes=axes)(x, w)
            for dot in (fo.models.thin_dot, lax.dot_general)
        ]

    close(*run(x, w))


def transposes(x, w, **options):
    """Whether the gradient has a product that contracts the last axes of both its operands."""

    def total(x, w):
        return jnp.sum(fo.models.thin_dot(x, w, MATRICES, **options) ** 2)

    program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(x, w).as_text()
    assert "dot_general" in program
    return "contracting_dims = [1] x [1]" in program


def test_a_large_matrix_is_not_transposed_for_a_small_batch():
    """A small one is, and a large one for a large batch, of which that is the smaller part."""
    assert not transposes(X, W)
    assert transposes(np.ones((3, 11)), W)
    assert transposes(np.ones((2, 7)), np.ones((7, 9)))


def test_other_products_are_those_of_jax(monkeypatch):
    """More axes, a preferred type; and any on accelerators."""
    many = RNG.normal(size=(2, 3, 11))
    axes = (((2,), (0,)), ((), ()))
    close(fo.models.thin_dot(many, W, axes), lax.dot_general(many, W, axes))
    short = jnp.asarray(X, jnp.bfloat16), jnp.asarray(W, jnp.bfloat16)
    wide = fo.models.thin_dot(*short, MATRICES, preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32
    assert transposes(X, W, preferred_element_type=np.float32)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert transposes(X, W)


def test_layers_of_flax_take_it():
    """The same parameters and the same outputs."""
    ours, theirs = (
        nn.Dense(9, param_dtype=X.dtype, dot_general=dot) for dot in (fo.models.thin_dot, None)
    )
    variables = ours.init(jax.random.key(0), X)
    close(variables, theirs.init(jax.random.key(0), X))
    close(ours.apply(variables, X), theirs.apply(variables, X))
