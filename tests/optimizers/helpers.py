"""The triples under test, random trees for them, and their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from fedjax_opt import optimizers as opt

# Constructors of (learning rate, decays in [0, 1), eps).
TRIPLES = {
    "sgd": lambda lr, b1=0.9, b2=0.8, eps=0.1: opt.sgd(lr),
    "sgdm": lambda lr, b1=0.9, b2=0.8, eps=0.1: opt.sgdm(lr, b1),
    "rmsprop": lambda lr, b1=0.9, b2=0.8, eps=0.1: opt.rmsprop(lr, b2, eps),
    "adagrad": lambda lr, b1=0.9, b2=0.8, eps=0.1: opt.adagrad(lr, eps),
    "adam": lambda lr, b1=0.9, b2=0.8, eps=0.1: opt.adam(lr, b1, b2, eps),
    "yogi": lambda lr, b1=0.9, b2=0.8, eps=0.1: opt.yogi(lr, b1, b2, eps),
}
HAS_M, HAS_V = {"sgdm", "adam", "yogi"}, {"rmsprop", "adagrad", "adam", "yogi"}


def affine_copy(triple):
    """The same optimiser from its U and T alone; `affine` has to find the inverse."""
    return opt.affine(
        update=lambda g, s: triple.update(g, s)[0], track=triple.track, init=triple.init
    )


# Trees: few shapes, so that JAX compiles each operation once; scalars and empty arrays among them.
SHAPES = [(), (1,), (3,), (2, 3), (0,), (2, 0)]
TREES = st.recursive(
    st.sampled_from(SHAPES),
    lambda part: (
        st.lists(part, min_size=1, max_size=3)
        | st.tuples(part, part)
        | st.dictionaries(st.sampled_from("abc"), part, min_size=1, max_size=3)
    ),
    max_leaves=5,
)
HYPER = st.fixed_dictionaries(
    {
        "lr": st.floats(0.01, 1.0),
        "b1": st.floats(0.0, 0.95),
        "b2": st.floats(0.0, 0.99),
        "eps": st.floats(1e-3, 1.0),
    }
)


def is_shape(node):
    """Leaves of the trees of shapes are tuples of ints, so a tuple of parts is not one."""
    return isinstance(node, tuple) and all(isinstance(n, int) for n in node)


# Models, gradients and momenta are drawn from [-SCALE, SCALE].
SCALE = 5.0


def draw(rng, shapes, low=-SCALE, high=SCALE, dtype=np.float64):
    """A tree of random arrays of the given shapes."""
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.uniform(low, high, size=shape), dtype),
        shapes,
        is_leaf=is_shape,
    )


def draw_statistics(rng, triple, params, shapes):
    """The triple's statistics with random m, and random positive v."""
    stats = triple.init(params)
    if jax.tree.leaves(getattr(stats, "m", ())):
        stats = stats._replace(m=draw(rng, shapes))
    if jax.tree.leaves(getattr(stats, "v", ())):
        stats = stats._replace(v=draw(rng, shapes, 1e-3, 10.0))
    return stats


def numpy_first_moment(name, b1, g, m):
    """m after g, or g itself where there is no m."""
    return b1 * m + (1 - b1) * g if name in HAS_M else g


def numpy_second_moment(name, b2, g, v):
    """v after g."""
    if name == "adagrad":
        return v + g * g
    if name == "yogi":
        return np.where(v > g * g, v - (1 - b2) * g * g, v + (1 - b2) * g * g)
    return b2 * v + (1 - b2) * g * g


def numpy_step(name, lr, eps, direction, v):
    """What is added to the parameters."""
    return -lr * direction / (np.sqrt(v) + eps) if name in HAS_V else -lr * direction


def assert_trees_close(a, b, rtol, atol=0.0):
    """Same structure, shapes and dtypes, and close values."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), rtol=rtol, atol=atol)
