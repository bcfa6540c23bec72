"""Each refusal is a ValueError that names the argument and the value."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from fedjax_opt.optimizers.triple import local_form

CONSTRUCTORS = [opt.sgd, opt.sgdm, opt.rmsprop, opt.adagrad, opt.adam, opt.yogi]
BAD_NUMBERS = [
    *((make, "learning_rate", bad) for make in CONSTRUCTORS for bad in (-0.1, 0.0, np.nan, np.inf)),
    *((make, "beta", bad) for make in (opt.sgdm, opt.rmsprop) for bad in (1.0, -0.25, 1.5)),
    *((make, name, bad)
      for make in (opt.adam, opt.yogi) for name in ("b1", "b2") for bad in (1.0, -0.25)),
    *((make, "eps", bad) for make in CONSTRUCTORS[2:] for bad in (0.0, -1e-3)),
    *((make, "initial_v", -1.0) for make in CONSTRUCTORS[2:]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "bad"), BAD_NUMBERS)
def test_numbers_out_of_range_are_refused(make, name, bad):
    """By the constructor, before anything is traced."""
    with pytest.raises(ValueError, match=rf"^{name} must .*{bad}"):
        make(**{"learning_rate": 0.1, name: bad})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda m=make: m("fast"), "learning_rate must be a number, got 'fast'")
            for make in CONSTRUCTORS
        ),
        *(
            (lambda f=f: f(0.1), r"must be a Triple, got (float|0\.1)")
            for f in (opt.chain, opt.moving)
        ),
        *(
            (lambda f=f: f(optax.sgd(0.1)), "must be a Triple, got Gradient")
            for f in (opt.chain, opt.moving)
        ),
        (lambda: opt.chain(), "must be a Triple, got"),
        (lambda: opt.chain(0.1, opt.sgd(0.1)), r"Argument 0 of chain must .* got 0\.1"),
        (lambda: opt.chain("clip", opt.sgd(0.1)), "Argument 0 of chain must .* got 'clip'"),
        *(
            (lambda f=f: f(0.1), r"optimizer must be an optax.GradientTransformation.*0\.1")
            for f in (opt.from_optax, local_form)
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_given(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("function", [opt.from_optax, local_form])
@pytest.mark.parametrize(
    "inside",
    [
        lambda triple: optax.chain(optax.clip(1.0), triple),
        lambda triple: optax.masked(triple, True),
        lambda triple: optax.chain(optax.chain(triple), optax.clip(1.0)),
        # Whose states are new arrays after every update, moved or not.
        lambda triple: optax.MultiSteps(triple, 1).gradient_transformation(),
        lambda triple: optax.GradientTransformation(triple.init, jax.jit(triple.update)),
    ],
)
def test_a_triple_inside_of_optax_is_refused_if_its_statistics_would_never_move(function, inside):
    with pytest.raises(ValueError, match=r"Use fedjax_opt\.optimizers\.chain in place of optax"):
        function(inside(opt.sgdm(0.1, 0.9))).init(jnp.ones(2))
    # None to move, or moved by itself.
    function(inside(opt.sgd(0.1))).init(jnp.ones(2))
    function(inside(opt.moving(opt.sgdm(0.1, 0.9)))).init(jnp.ones(2))


@pytest.mark.parametrize("make", [fo.fedavg, fo.dsgd, fo.scaffold, fo.optimizers.from_optax])
@pytest.mark.parametrize(
    ("needy", "wants"),
    [
        (optax.polyak_sgd(), "'value'"),
        (optax.chain(optax.clip(1.0), optax.lbfgs()), "'value_fn'"),
        (optax.contrib.sophia(1e-3), "obj_fn"),
        (optax.contrib.momo(), "value"),
        (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), "'value'"),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), "'fast'"),
    ],
    ids=["polyak_sgd", "lbfgs", "sophia", "momo", "reduce_on_plateau", "lookahead"],
)
def test_an_optimiser_that_needs_more_than_gradients_is_refused(make, needy, wants):
    with pytest.raises(ValueError, match=f"optimizer must need no more than gradients.*{wants}"):
        make(needy)


def test_an_optimiser_that_needs_more_for_the_models_own_parameters_is_refused_by_init():
    """What it does with other parameters does not show it."""
    masked = local_form(optax.masked(optax.polyak_sgd(), {"a": True}))
    with pytest.raises(ValueError, match=r"optimizer must need no more than.*'value'"):
        masked.init({"a": jnp.ones(2)})


def test_an_optimiser_that_wants_the_gradient_of_each_example_is_refused():
    private = optax.contrib.differentially_private_aggregate(1.0, 0.1, 0)
    with pytest.raises(ValueError, match=r"\{'w': float32\[2, 3\]\} .* \{'w': float32\[3\]\}\."):
        fo.fedavg(optax.chain(private, optax.sgd(0.1)))


@pytest.mark.parametrize("function", [opt.from_optax, local_form])
@pytest.mark.parametrize(
    "triple",
    [opt.from_optax(optax.sgd(0.1)), opt.affine(lambda g, s: g, lambda g, s: g, lambda p: p)],
)
def test_statistics_of_any_type_are_known_as_frozen(function, triple):
    with pytest.raises(ValueError, match=r"optimizer must not hold a triple inside"):
        function(optax.chain(optax.clip(1.0), triple)).init(jnp.ones(2))
    moving = opt.moving(opt.chain(optax.clip(1.0), triple))
    function(optax.chain(optax.clip(1.0), moving)).init(jnp.ones(2))


# affine ---------------------------------------------------------------------------------------


def _each(function):
    """An update that treats every leaf by the same function."""
    return lambda grads, stats: jax.tree.map(function, grads)


def _couples_scalars(grads, stats):
    return {"a": -grads["a"] - grads["b"], "b": -grads["b"]}


NOT_AFFINE = {
    "square": _each(lambda g: -g * g),
    "clip": _each(lambda g: -jnp.clip(g, -1.5, 1.5)),
    "mean": _each(lambda g: jnp.mean(g) - g),
    "cumulative": _each(lambda g: -jnp.cumsum(g.ravel()).reshape(g.shape)),
    # Linear, and each entry reads those after it.
    "reversed": _each(lambda g: -jnp.cumsum(g.ravel()[::-1])[::-1].reshape(g.shape)),
    # The identity at whole numbers, and nowhere else.
    "round": _each(lambda g: -jnp.round(g)),
}


@pytest.mark.parametrize("update", NOT_AFFINE)
def test_an_update_that_is_not_elementwise_affine_is_refused(update):
    """When the statistics are made, which is before any inverse could be wrong."""
    triple = opt.affine(NOT_AFFINE[update], track=lambda g, s: s)
    with pytest.raises(ValueError, match=r"update must be elementwise affine.*from_optax"):
        triple.init({"w": jnp.ones((2, 3)), "b": jnp.ones(3)})


def test_an_update_that_couples_scalar_leaves_is_refused():
    """Elementwise means: no other leaf's gradient either, were it a single number."""
    triple = opt.affine(_couples_scalars, track=lambda g, s: s)
    with pytest.raises(ValueError, match=r"update must be elementwise affine"):
        triple.init({"a": jnp.ones(()), "b": jnp.ones(())})


def test_an_affine_update_is_accepted():
    """With an offset, another factor for each entry, and leaves of any size."""
    factors = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.array(4.0), "c": jnp.zeros((0, 2))}
    triple = opt.affine(
        lambda g, s: jax.tree.map(lambda g, f: 0.5 - f * g, g, factors), track=lambda g, s: s
    )
    stats = triple.init(factors)
    moved = optax.apply_updates(factors, triple.update(factors, stats)[0])
    found = triple.inverse(factors, moved, stats, 1)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(factors), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_an_affine_update_may_close_over_what_is_traced():
    """A sweep maps a function of the learning rate, with the model from outside of it."""

    def first(rate):
        update = lambda g, s: jax.tree.map(lambda g: -rate * g, g)  # noqa: E731
        triple = opt.affine(update, track=lambda g, s: s)
        return triple.update(jnp.ones(2), triple.init(jnp.ones(2)))[0][0]

    np.testing.assert_allclose(jax.vmap(first)(jnp.array([0.1, 0.2])), [-0.1, -0.2])
