"""Convolutions that are replaced in a traced program, and pools, against JAX's and Flax's own."""

import logging

import equinox as eqx
import flax.linen as nn
import haiku as hk
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
    1: [("NHC", "HIO", "NHC"), ("NCH", "OIH", "NCH")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CNHW", "IHWO", "HNCW")],
    3: [("NDHWC", "DHWIO", "NDHWC"), ("NCDHW", "OIDHW", "NCDHW")],
}


def close(found, expected, tolerance=1e-12):
    """By the largest entry of each array."""
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        scale = np.abs(other).max(initial=1e-3)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


def compare(x, w, ways=True, tolerance=1e-12, derivatives="all", **options):
    """A loss with a convolution and what can be asked of it, with and without the replacement."""
    options = {"dimension_numbers": LAYOUTS[x.ndim - 2][0], **options}

    def loss(x, w):
        return jnp.sum(jnp.sin(lax.conv_general_dilated(x, w, **options)))

    def asked(loss, x, w):
        gradient = jax.grad(loss, (0, 1))
        found = [loss(x, w), gradient(x, w)]
        if derivatives == "all":
            many_x, many_w = jnp.stack([x, 2 * x]), jnp.stack([w, w - 1])
            found += [
                jax.jvp(gradient, (x, w), (w.mean() * x, w))[1],
                jax.vmap(gradient, (0, None))(many_x, w),
                jax.vmap(gradient, (None, 0))(x, many_w),
                jax.grad(lambda *args: jax.vmap(loss)(*args).sum(), (0, 1))(many_x, many_w),
            ]
        return found

    fast = fo.models.fast_convolutions(loss, ways)
    close(*jax.jit(lambda x, w: [asked(f, x, w) for f in (fast, loss)])(x, w), tolerance)
    return str(jax.make_jaxpr(fast)(x, w))


def arrays(size, kernel, dtype=np.float64):
    """An input and a kernel, channels last, whose convolution has outputs of about 1."""
    x, w = RNG.normal(size=size), RNG.normal(size=kernel) / np.prod(kernel[:-1]) ** 0.5
    return x.astype(dtype), w.astype(dtype)


# What is computed -----------------------------------------------------------------------------


@st.composite
def convolutions(draw):
    axes = draw(st.sampled_from([1, 2]))

    def sizes(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    groups = draw(st.sampled_from([1, 2, 4]))
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    layout = draw(st.sampled_from(LAYOUTS[axes]))
    x, w = arrays(
        (draw(st.sampled_from([1, 3, 4])), *sizes(4, 7), inputs),
        (*sizes(1, 3), inputs // groups, outputs),
    )
    of_x = [LAYOUTS[axes][0][0].index(name) for name in layout[0]]
    of_w = [LAYOUTS[axes][0][1].index(name) for name in layout[1]]
    pads = tuple(zip(sizes(0, 2), sizes(-1, 2), strict=True))
    options = {
        "window_strides": sizes(1, 3),
        "padding": draw(st.sampled_from(["SAME", "VALID", "SAME_LOWER", pads])),
        "rhs_dilation": sizes(1, 2),
        "feature_group_count": groups,
        "dimension_numbers": layout,
    }
    return x.transpose(of_x), w.transpose(of_w), options


@settings(max_examples=10)
@given(convolutions())
def test_any_convolution_and_its_gradients(case):
    """For layouts, strides, paddings that also cut, dilations and groups; empty results too."""
    x, w, options = case
    compare(x, w, derivatives="first", **options)


@pytest.mark.parametrize(
    ("way", "kernel", "options"),
    [
        ("products", (3, 3, 16, 2), {}),
        ("products", (3, 2, 2, 3), {"window_strides": (2, 2), "rhs_dilation": (1, 2)}),
        ("pairs", (3, 3, 2, 3), {}),
        ("winograd", (3, 3, 16, 2), {"ways": "winograd"}),
        ("depthwise", (3, 3, 1, 4), {"feature_group_count": 2}),
        ("grouped", (3, 3, 2, 4), {"feature_group_count": 2}),
    ],
)
def test_every_way_has_every_derivative_and_maps(way, kernel, options):
    """First and second order; many inputs, and a kernel for each client, in and around a gradient."""
    channels = kernel[2] * options.get("feature_group_count", 1)
    x, w = arrays((2, 5, 6, channels), kernel)
    program = compare(x, w, **{"window_strides": (1, 1), "padding": "SAME", **options})
    assert f"way={way}" in program and "conv_general_dilated" not in program


@pytest.mark.parametrize("ways", [True, "winograd"])
def test_single_precision(ways):
    """Rounding errors are those of float32."""
    x, w = arrays((8, 9, 8, 32), (3, 3, 32, 16), np.float32)
    options = {"window_strides": (1, 1), "padding": "SAME", "derivatives": "first"}
    compare(x, w, ways, 2e-6 if ways is True else 1e-5, **options)


@pytest.mark.parametrize(("width", "channels"), [(3, 1), (5, 3), (7, 2)])
@pytest.mark.parametrize("size", [8, 9])
def test_pairs_of_outputs(width, channels, size):
    """An even and an odd number of them, in one, two and three dimensions."""
    for shape in [(size,), (6, size), (3, 2, size)]:
        x, w = arrays((2, *shape, channels), (*(2,) * (len(shape) - 1), width, channels, 3))
        strides = (*(2,) * (len(shape) - 1), 1)
        program = compare(x, w, window_strides=strides, padding="SAME", derivatives="first")
        assert "way=pairs" in program


@pytest.mark.parametrize("size", [(5, 6), (4, 7), (3, 3)])
@pytest.mark.parametrize("padding", ["SAME", "VALID", ((0, 2), (1, 0))], ids=str)
def test_minimal_filtering(padding, size):
    """Outputs of odd and even height and width, down to 1."""
    x, w = arrays((2, *size, 16), (3, 3, 16, 3))
    options = {"window_strides": (1, 1), "padding": padding, "derivatives": "first"}
    assert "way=winograd" in compare(x, w, "winograd", **options)


# What is replaced -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ways", "kernel", "options", "expected"),
    [
        (True, (3, 3, 15, 2), {}, "pairs"),
        (True, (3, 3, 16, 2), {}, "products"),
        (True, (3, 3, 2, 2), {"window_strides": (1, 2)}, "products"),
        ("winograd", (3, 3, 16, 2), {"window_strides": (2, 1)}, "products"),
        ("winograd", (3, 1, 16, 2), {}, "products"),
        ("winograd", (3, 3, 8, 2), {}, "pairs"),
        (True, (12, 12, 1, 2), {}, None),
        (True, (3, 3, 4, 2), {"lhs_dilation": (2, 1), "padding": [(0, 0)] * 2}, None),
        (True, (3, 3, 4, 2), {"batch_group_count": 2}, None),
        (True, (3, 3, 4, 2), {"preferred_element_type": jnp.float64}, None),
        (False, (3, 3, 16, 2), {}, None),
    ],
)
def test_shapes_choose_the_way(ways, kernel, options, expected):
    """Where there is no faster one, the program stays as it is."""
    x, w = jnp.ones((2, 12, 12, kernel[2]), jnp.float32), jnp.ones(kernel, jnp.float32)
    options = {"window_strides": (1, 1), "padding": "SAME", **options}

    def run(x, w):
        return lax.conv_general_dilated(x, w, dimension_numbers=LAYOUTS[2][0], **options)

    program = str(jax.make_jaxpr(fo.models.fast_convolutions(run, ways))(x, w))
    assert (f"way={expected}" in program) == (expected is not None)
    assert ("conv_general_dilated" in program) == (expected is None)


def test_convolutions_inside_of_loops_and_branches_are_found():
    """In a scan, a branch, a checkpoint, a call; what has a derivative of its own keeps it."""
    x, w = arrays((2, 4, 4, 2), (3, 3, 2, 2))

    def once(x):
        return jnp.tanh(
            lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=LAYOUTS[2][0])
        )

    odd = jax.custom_vjp(once)
    odd.defvjp(lambda x: (once(x), None), lambda _, g: (3 * g,))

    def loss(x):
        x = lax.scan(lambda x, _: (once(x), None), x, None, 2)[0]
        x = lax.cond(jnp.sum(x) > 0, once, lambda x: x, x)
        return jnp.sum(odd(jax.jit(jax.checkpoint(once))(x)))

    fast = fo.models.fast_convolutions(loss)
    close(*jax.jit(lambda x: [jax.value_and_grad(f)(x) for f in (fast, loss)])(x))
    program = str(jax.make_jaxpr(fast)(x))
    assert program.count("fast_convolution[") == 4 and "conv_general_dilated" not in program


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(3, (3, 3))(x)


def nnx_conv():
    graph, state = nnx.split(nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0)))
    return state, lambda state, x: nnx.merge(graph, state)(x)


def linen_conv():
    net = Linen()
    return net.init(jax.random.key(0), np.zeros((1, 6, 6, 2), np.float32)), net.apply


def haiku_conv():
    net = hk.without_apply_rng(hk.transform(lambda x: hk.Conv2D(3, 3)(x)))
    return net.init(jax.random.key(0), np.zeros((1, 6, 6, 2), np.float32)), net.apply


def equinox_conv():
    layer = eqx.nn.Conv2d(2, 3, 3, padding=1, dtype=jnp.float32, key=jax.random.key(0))
    params, static = eqx.partition(layer, eqx.is_array)
    return params, lambda params, x: jax.vmap(eqx.combine(params, static))(jnp.moveaxis(x, -1, 1))


@pytest.mark.parametrize("make", [linen_conv, nnx_conv, haiku_conv, equinox_conv])
def test_layers_of_any_library(make):
    """A model's convolutions are replaced unless it says otherwise; gradients are the same."""
    params, apply = make()
    batch = {"x": RNG.normal(size=(2, 6, 6, 2)).astype(np.float32)}

    def loss(variables, batch, key):
        losses = jnp.sum(jnp.sin(apply(variables.params, batch["x"])), axis=(1, 2, 3))
        return losses.mean(), fo.Aux(losses=losses)

    def gradient(params, setting):
        model = fo.Model(None, loss, fast_convolutions=setting)
        return fo.core.Objective(model).gradient(fo.Variables(params), batch)[0]

    programs = [str(jax.make_jaxpr(gradient, static_argnums=1)(params, s)) for s in (True, False)]
    assert ["way=pairs" in program for program in programs] == [True, False]
    close(*(jax.jit(gradient, static_argnums=1)(params, s) for s in (True, False)), 1e-5)


def test_a_model_is_traced_once_and_says_what_is_replaced(caplog):
    """For a round, its evaluation and more rounds of the same shapes; one line of the log."""
    traces = []

    def loss(params, batch):
        traces.append(None)
        y = lax.conv(batch["x"], params, (1, 1), "SAME")
        return jnp.mean(y**2)

    params, x = jnp.ones((2, 2, 3, 3), jnp.float32), np.ones((12, 2, 5, 5), np.float32)
    clients = fo.ClientData.from_arrays({"x": x}, np.arange(12) % 2)
    task = fo.Federation(
        fo.models.from_loss(params, loss), clients, cohort=2, local_steps=2, batch_size=3
    )
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    with caplog.at_level(logging.INFO, logger="fedjax_opt"):
        for _ in range(2):
            fo.run_rounds(algorithm, task, fo.init_state(algorithm, task), 2)
    assert len(traces) == 1
    assert [r.message for r in caplog.records if "Convolutions and pools replaced: 1," in r.message]
    assert len(caplog.records) == 1


def test_accelerators_have_their_own(monkeypatch):
    """The default backend decides, while the program is traced."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def run(x):
        return lax.conv(x, x, (1, 1), "SAME")

    assert fo.models.fast_convolutions(run) is run


def test_settings_are_refused_by_name():
    with pytest.raises(ValueError, match=r"fast_convolutions must be True, False or .* got 'fft'"):
        fo.Model(None, None, fast_convolutions="fft")
    with pytest.raises(ValueError, match=r"ways must be True, False or 'winograd', got None"):
        fo.models.fast_convolutions(jnp.sin, None)


# Pools ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("window", "strides", "padding"), POOLS)
@pytest.mark.parametrize("pool", [nn.max_pool, nn.avg_pool])
def test_pools_of_any_library_are_replaced(pool, window, strides, padding):
    """Values, derivatives forward and backward, and under `vmap`."""
    x = jnp.asarray(RNG.integers(5, size=(2, 7, 6, 3)) - 7.0)

    def loss(x):
        with jax.numpy_dtype_promotion("standard"):
            return jnp.sum(jnp.sin(pool(x, window, strides, padding)))

    def asked(loss):
        gradient = jax.grad(loss)
        return loss(x), jax.jvp(gradient, (x,), (x,)), jax.vmap(gradient)(jnp.stack([x, 2 * x]))

    fast = fo.models.fast_convolutions(loss)
    close(*jax.jit(lambda: [asked(fast), asked(loss)])())
    assert "reduce_window" not in str(jax.make_jaxpr(fast)(x)).replace("original=reduce_window", "")


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
