"""Convolution and pooling against JAX's and Flax's own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import fedjax_opt as fo

RNG = np.random.default_rng(0)
LAYOUTS = {
    1: ("NHC", "HIO", "NHC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC"),
}  # fmt: skip


def close(found, expected, dtype=np.float64):
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    assert found.dtype == expected.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def both(x, w, **options):
    """Output and gradients of a weighted sum of it, by patches and by JAX, in one program."""
    options = {"dimension_numbers": LAYOUTS[x.ndim - 2], **options}
    shape = jax.eval_shape(lambda x, w: lax.conv_general_dilated(x, w, **options), x, w).shape
    weights = RNG.normal(size=shape).astype(x.dtype)

    @jax.jit
    def results(x, w, weights):
        def run(conv):
            y, pullback = jax.vjp(lambda x, w: conv(x, w, **options), x, w)
            return y, *pullback(weights)

        return run(fo.models.patch_conv), run(lax.conv_general_dilated)

    return results(x, w, weights)


@st.composite
def convolutions(draw):
    axes = draw(st.sampled_from([1, 2]))

    def sizes(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.sampled_from([1, 2, 4]))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    x = RNG.normal(size=(draw(st.sampled_from([1, 3, 4])), *sizes(4, 7), inputs))
    kernel, dilation = sizes(1, 3), sizes(1, 2)
    pads = tuple(zip(sizes(0, 2), sizes(0, 2), strict=True))
    options = {
        "window_strides": sizes(1, 3),
        "padding": draw(st.sampled_from(["SAME", "VALID", "SAME_LOWER", pads])),
        "rhs_dilation": dilation,
        "feature_group_count": groups,
    }
    return x, RNG.normal(size=(*kernel, inputs // groups, outputs)), options


@settings(max_examples=10)
@given(convolutions())
def test_patches_give_the_convolution_and_its_gradients(case):
    """For strides, paddings, dilations and groups, in one and two dimensions; empty results too."""
    x, w, options = case
    for found, expected in zip(*both(x, w, **options), strict=True):
        close(found, expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_patches_agree_in_single_precision(groups):
    """Dense, grouped and depthwise, whose two outputs for each input are in JAX's order."""
    x = RNG.normal(size=(2, 5, 4, 4)).astype(np.float32)
    w = RNG.normal(size=(3, 2, 4 // groups, 8)).astype(np.float32)
    options = {"window_strides": (2, 1), "padding": "SAME", "feature_group_count": groups}
    for found, expected in zip(*both(x, w, **options), strict=True):
        close(found, expected, np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((0, 2), (1, 0))], ids=str)
def test_minimal_filtering_gives_the_convolution_and_its_gradients(padding, dtype):
    """Sixteen channels are enough for it; outputs of odd and even height and width, down to 1."""
    for size in [(5, 6), (4, 7), (3, 3)]:
        x = RNG.normal(size=(2, *size, 16)).astype(dtype)
        w = RNG.normal(size=(3, 3, 16, 3)).astype(dtype) / 12  # outputs of about 1
        options = {"window_strides": (1, 1), "padding": padding}
        for found, expected in zip(*both(x, w, **options), strict=True):
            close(found, expected, dtype)


def test_minimal_filtering_is_for_many_channels_of_long_floats():
    """Few channels, other windows and strides, and short floats are products of patches."""

    def num_products(channels=16, window=(3, 3), strides=(1, 1), dtype=jnp.float32):
        x, w = jnp.ones((2, 6, 6, channels), dtype), jnp.ones((*window, channels, 2), dtype)
        program = jax.make_jaxpr(
            lambda x, w: fo.models.patch_conv(x, w, strides, "SAME", dimension_numbers=LAYOUTS[2])
        )(x, w)
        return str(program).count("dot_general[")

    assert num_products() >= 16
    other = [{"channels": 8}, {"window": (3, 1)}, {"strides": (2, 1)}, {"dtype": jnp.bfloat16}]
    assert [num_products(**options) for options in other] == [1, 1, 1, 1]


def test_patches_of_three_dimensions():
    x, w = RNG.normal(size=(2, 3, 4, 5, 2)), RNG.normal(size=(2, 2, 3, 2, 3))
    for found, expected in zip(*both(x, w, window_strides=(1, 2, 1), padding="SAME"), strict=True):
        close(found, expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(jnp.int8, jnp.int32), (jnp.bfloat16, jnp.float32)],
    ids=["int8", "bfloat16"],
)
def test_products_have_the_type_that_is_preferred(groups, dtype, wide):
    """Those of int8 do not wrap, those of bfloat16 are not rounded."""
    x = jnp.asarray(RNG.integers(-99, 99, (2, 4, 4, 4))).astype(dtype)
    w = jnp.asarray(RNG.integers(-99, 99, (2, 2, 4 // groups, 4))).astype(dtype)
    options = {"window_strides": (1, 1), "padding": "VALID", "dimension_numbers": LAYOUTS[2],
               "feature_group_count": groups, "preferred_element_type": wide}  # fmt: skip
    found = fo.models.patch_conv(x, w, **options)
    # In float64, where all of these are exact.
    exact = lax.conv_general_dilated(
        x.astype(float), w.astype(float), **{**options, "preferred_element_type": None}
    )
    assert found.dtype == wide
    np.testing.assert_array_equal(np.asarray(found, float), exact)
    if groups == 4:
        np.testing.assert_array_equal(found, lax.conv_general_dilated(x, w, **options))


@pytest.mark.parametrize("channels", [2, 16])
def test_patches_map_over_kernels_and_go_through_loops(channels):
    """One kernel per client by `vmap`, and a carry through `scan`; a derivative of a derivative."""
    x = RNG.normal(size=(2, 3, 4, 4, channels))
    w = RNG.normal(size=(2, 3, 3, channels, channels)) / channels

    def run(conv):
        def once(x, w):
            return conv(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[2])

        def loop(w, x):
            return jnp.sum(lax.scan(lambda h, _: (jnp.tanh(once(h, w)), None), x, None, 3)[0])

        gradient = jax.vmap(jax.grad(loop))
        return jax.jit(lambda w, x: jax.jvp(lambda w: gradient(w, x), (w,), (w,)))(w, x)

    for found, expected in zip(
        run(fo.models.patch_conv), run(lax.conv_general_dilated), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize(("width", "channels"), [(3, 1), (3, 2), (5, 3), (7, 2)])
@pytest.mark.parametrize("size", [8, 9])
def test_pairs_of_outputs_give_the_convolution_and_its_gradients(width, channels, size):
    """An even and an odd number of them, in one, two and three dimensions."""
    for shape in [(size,), (6, size), (3, 2, size)]:
        x = RNG.normal(size=(2, *shape, channels))
        w = RNG.normal(size=(*(2,) * (len(shape) - 1), width, channels, 3))
        options = {"window_strides": (*(2,) * (len(shape) - 1), 1), "padding": "SAME"}
        for found, expected in zip(*both(x, w, **options), strict=True):
            close(found, expected)


def test_pairs_of_outputs_are_for_few_channels():
    """And for windows that move by one: else every output has a patch."""

    def width_of_patches(channels=1, window=(3, 3), strides=(1, 1), dilation=(1, 1)):
        x, w = jnp.ones((2, 8, 8, channels)), jnp.ones((*window, channels, 2))
        options = {"rhs_dilation": dilation, "dimension_numbers": LAYOUTS[2]}
        program = jax.make_jaxpr(
            lambda x, w: fo.models.patch_conv(x, w, strides, "SAME", **options)
        )(x, w)
        (product,) = [e for e in program.eqns if e.primitive.name == "dot_general"]
        return product.invars[0].aval.shape[-1]

    assert [width_of_patches(c, (k, k)) for c, k in ((1, 3), (2, 5))] == [3 * 4, 5 * 6 * 2]
    assert width_of_patches(128, (5, 5)) == 128 * 25
    others = [{"window": (3, 2)}, {"window": (3, 1)}, {"strides": (1, 2)}, {"dilation": (1, 2)}]
    assert [width_of_patches(**options) for options in others] == [6, 3, 9, 9]


def test_patches_are_what_is_multiplied():
    """No convolution is left in the program, in either direction; JAX's own would leave some."""
    x, w = jnp.ones((2, 4, 4, 2)), jnp.ones((3, 3, 2, 2))

    def program(conv):
        def total(x, w):
            return jnp.sum(jnp.sin(conv(x, w, (1, 1), "VALID", dimension_numbers=LAYOUTS[2])))

        return str(jax.make_jaxpr(jax.grad(total, argnums=(0, 1)))(x, w))

    assert "conv_general" not in program(fo.models.patch_conv)
    assert "conv_general" in program(lax.conv_general_dilated)


def test_accelerators_have_the_ordinary_convolution(monkeypatch):
    """The default backend decides, while the program is traced."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    x, w = jnp.ones((2, 4, 4, 2)), jnp.ones((3, 3, 2, 2))
    program = jax.make_jaxpr(
        lambda x, w: fo.models.patch_conv(x, w, (1, 1), "VALID", dimension_numbers=LAYOUTS[2])
    )(x, w)
    assert "conv_general" in str(program)


def test_layers_of_flax_take_it():
    """Linen's and NNX's, with all that they pass; a preferred dtype and a precision are heard."""
    x = RNG.normal(size=(2, 6, 5, 4)).astype(np.float32)
    options = {"strides": (2, 1), "kernel_dilation": (1, 2), "feature_group_count": 2}
    ours = nn.Conv(6, (3, 2), conv_general_dilated=fo.models.patch_conv, **options)
    variables = ours.init(jax.random.key(0), x)
    close(ours.apply(variables, x), nn.Conv(6, (3, 2), **options).apply(variables, x), np.float32)
    layers = [
        nnx.Conv(4, 6, (3, 2), conv_general_dilated=conv, rngs=nnx.Rngs(0), **options)
        for conv in (fo.models.patch_conv, lax.conv_general_dilated)
    ]
    close(layers[0](x), layers[1](x), np.float32)
    for groups in (1, 2, 4):
        y = fo.models.patch_conv(
            x, jnp.ones((1, 1, 4 // groups, 4), jnp.float32), (1, 1), "VALID",
            dimension_numbers=LAYOUTS[2], feature_group_count=groups, precision="highest",
            preferred_element_type=jnp.float64,
        )  # fmt: skip
        assert y.dtype == jnp.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lhs_dilation": (2, 1)}, "lhs_dilation must be all 1 .* use jax.lax"),
        ({"batch_group_count": 2}, "batch_group_count must be 1 .* use jax.lax"),
        ({"out_sharding": "mesh"}, "out_sharding must be None .* use jax.lax"),
        ({"dimension_numbers": None}, "channels last .* use jax.lax"),
        ({"dimension_numbers": ("NHWC", "OIHW", "NHWC")}, "channels last .* use jax.lax"),
        ({"feature_group_count": 3}, "feature_group_count"),
    ],
)
def test_what_patches_cannot_do_is_refused(options, message):
    """By name, and with what to use instead; what makes no sense, by JAX."""
    x, w = jnp.ones((2, 4, 4, 2)), jnp.ones((3, 3, 2, 2))
    arguments = {"dimension_numbers": LAYOUTS[2], **options}
    with pytest.raises(ValueError, match=message):
        fo.models.patch_conv(x, w, (1, 1), "VALID", **arguments)


POOLS = [
    ((2, 2), (2, 2), "VALID"),
    ((2, 3), (2, 3), "SAME"),
    ((3, 2), (2, 1), "SAME"),
    ((2, 2), None, "VALID"),
    ((2, 2), (2, 2), ((1, 0), (0, 1))),
    ((3, 3), (2, 2), ((1, 1), (1, 1))),
]


@pytest.mark.parametrize(("window", "strides", "padding"), POOLS)
def test_pools_are_those_of_flax(window, strides, padding):
    """Values and gradients, also of equal maxima; with and without padding in the mean."""
    x = RNG.integers(5, size=(2, 7, 6, 3)) - 7.0
    arguments = (window, strides, padding)
    weights = RNG.normal(size=nn.max_pool(x, *arguments).shape)

    @jax.jit
    def results(x, weights):
        def run(pool, **options):
            y, pullback = jax.vjp(lambda x: pool(x, *arguments, **options), x)
            return y, *pullback(weights)

        ours = [run(fo.models.max_pool), run(fo.models.avg_pool)]
        ours.append(run(fo.models.avg_pool, count_include_pad=False))
        with jax.numpy_dtype_promotion("standard"):  # Flax divides by an integer.
            theirs = [run(nn.max_pool), run(nn.avg_pool)]
            theirs.append(run(nn.avg_pool, count_include_pad=False))
        return ours, theirs

    for found, expected in zip(*map(jax.tree.leaves, results(x, weights)), strict=True):
        close(found, expected)


def test_pools_take_any_leading_axes_and_one_dimension():
    """None, two, and a single spatial axis; integers have a least number for padding too."""
    x = RNG.normal(size=(2, 3, 4, 6, 5))
    for part, window in ((x[0, 0], (2, 2)), (x, (2, 2)), (x[0], (3,))):
        expected = nn.max_pool(part, window, window)
        close(fo.models.max_pool(part, window, window), expected)
    counts = jnp.array([[[-5], [-7], [-6]]])
    assert fo.models.max_pool(counts, (2,), (2,), "SAME").ravel().tolist() == [-5, -6]


def test_the_first_of_equal_maxima_has_the_gradient():
    """In the order of memory, as in Flax, whose rule the gradients above agree with."""
    gradient = jax.grad(lambda x: jnp.sum(fo.models.max_pool(x, (2, 2), (2, 2))))
    x = jnp.array([[0.0, 1.0], [1.0, 1.0]])[None, :, :, None]
    assert gradient(x)[0, :, :, 0].tolist() == [[0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("window", "strides"),
    [((3, 3), None), ((0, 1), None), ((2, 2), (1,)), ((1, 1, 1, 1), None), ((2, 2), 2), (2, None),
     ((), None)],
)  # fmt: skip
def test_pools_refuse_windows_that_do_not_fit(window, strides):
    """By name."""
    with pytest.raises(ValueError, match=r"window_shape .* must|window_shape must"):
        fo.models.max_pool(jnp.ones((1, 2, 2, 1)), window, strides)


def test_pools_of_nothing():
    """No examples give none; no pixels are refused."""
    assert fo.models.max_pool(jnp.ones((0, 4, 4, 3)), (2, 2), (2, 2)).shape == (0, 2, 2, 3)
    with pytest.raises(ValueError, match="window_shape must fit into the padded inputs"):
        fo.models.max_pool(jnp.ones((2, 0, 0, 3)), (2, 2), (2, 2))
