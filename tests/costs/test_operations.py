"""Operations: arithmetic, and XLA's own count where the two must agree."""

import itertools

import jax
import jax.numpy as jnp
import pytest

import fedjax_opt as fo
from fedjax_opt.core import Context, Objective

# Functions ------------------------------------------------------------------------------------


def shapes(*sizes):
    return [jax.ShapeDtypeStruct(size, jnp.float32) for size in sizes]


def by_xla(function, *args):
    """XLA's analysis of the program before it is optimised; it counts every loop once."""
    analysis = jax.jit(function).lower(*args).cost_analysis()
    return (analysis[0] if isinstance(analysis, list) else analysis)["flops"]


CONVOLUTIONS = {
    "valid": {"padding": "VALID"},
    "same": {"padding": "SAME"},
    "strided": {"padding": "SAME", "window_strides": (2, 3)},
    "dilated kernel": {"padding": [(2, 1), (0, 3)], "rhs_dilation": (2, 1)},
    "dilated input": {"padding": [(2, 2), (1, 3)], "lhs_dilation": (2, 3)},
    "cropped": {"padding": [(-1, 2), (1, -2)]},
    "groups": {"padding": "SAME", "feature_group_count": 2},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_and_its_derivatives(name):
    """Each pair of numbers that meet, and no padding; XLA has the same count."""
    options = {"window_strides": (1, 1)} | CONVOLUTIONS[name]
    groups = options.get("feature_group_count", 1)
    x, w = shapes((3, 9, 8, 4), (3, 2, 4 // groups, 6))

    def convolution(x, w):
        return jax.lax.conv_general_dilated(
            x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
        )

    assert fo.costs.measured_flops(convolution, x, w) == by_xla(convolution, x, w)
    cotangent = jax.eval_shape(convolution, x, w)

    def derivatives(x, w, cotangent):
        return jax.vjp(convolution, x, w)[1](cotangent)

    found = fo.costs.measured_flops(derivatives, x, w, cotangent)
    assert found == by_xla(derivatives, x, w, cotangent)


@pytest.mark.parametrize(("m", "k", "n"), [(3, 5, 7), (2, 300, 128), (1024, 512, 2048)])
def test_a_product(m, k, n):
    assert fo.costs.measured_flops(jnp.matmul, *shapes((m, k), (k, n))) == 2 * m * k * n
    numbers = (((1,), (0,)), ((), ()))  # a primitive of our own where m is small
    thin = fo.costs.measured_flops(
        lambda x, w: fo.models.thin_dot(x, w, numbers), *shapes((m, k), (k, n))
    )
    assert thin == 2 * m * k * n
    batched = fo.costs.measured_flops(jnp.matmul, *shapes((4, m, k), (4, k, n)))
    assert batched == 4 * 2 * m * k * n


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x: x * 2.0 + 1.0, 2000),
        (jnp.sqrt, 1000),
        (lambda x: (x > 0) & (x < 1), 2000),
        (jnp.sum, 1000),
        (lambda x: jnp.cumsum(x)[-1], 1000),
        (lambda x: jnp.zeros(50, x.dtype).at[:7].add(x[:7]), 7),
        # What moves, what is written in another form, whole numbers; and what nobody reads.
        (lambda x: jnp.concatenate([x.reshape(10, 100).T, x.reshape(100, 10)]), 0),
        (lambda x: x.astype(jnp.bfloat16), 0),
        (lambda x: x.view(jnp.uint32) @ x.view(jnp.uint32) + 1, 0),
        (lambda x: (x, jnp.exp(x))[0], 0),
        (lambda x: jax.random.bits(jax.random.key(0), x.shape), 0),
    ],
)
def test_what_is_no_product(function, count):
    assert fo.costs.measured_flops(function, *shapes((1000,))) == count


SQUARE = 2 * 16 * 64 * 64


def repeated(length, inner=1, **options):
    """`length` times `inner` products."""

    def function(x, w):
        def turn(c, _):
            if inner == 1:
                return c @ w, None
            return jax.lax.scan(lambda d, _: (d @ w, None), c, None, length=inner)[0], None

        return jax.lax.scan(turn, x, None, length=length, **options)[0]

    return function


LOOPS = {
    "once": (repeated(1), 1),
    "many": (repeated(12), 12),
    "backwards": (repeated(12, reverse=True), 12),
    "nested": (repeated(5, inner=7), 35),
    "unrolled": (repeated(12, unroll=4), 12),
    "unrolled with a rest": (repeated(11, unroll=4), 11),
    "unrolled wholly": (repeated(6, unroll=True), 6),
    "never": (repeated(0), 0),
    "fori": (lambda x, w: jax.lax.fori_loop(0, 9, lambda i, c: c @ w, x), 9),
    "inside jit": (lambda x, w: jax.jit(repeated(8))(x, w) @ w, 9),
    "checkpointed": (lambda x, w: jax.checkpoint(repeated(8))(x, w), 8),
    "one branch": (
        lambda x, w: jax.lax.cond(x[0, 0] > 0, repeated(8), repeated(3), x, w),
        8,
    ),
    "two loops": (lambda x, w: repeated(3)(repeated(4)(x, w), w), 7),
    "mapped": (
        lambda x, w: jax.vmap(repeated(4), (0, None))(jnp.stack([x, x, x]), w),
        12,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_count_as_often_as_they_turn(name):
    function, products = LOOPS[name]
    found = fo.costs.measured_flops(function, *shapes((16, 64), (64, 64)))
    assert found == products * SQUARE + (name == "one branch")  # a comparison


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: jax.lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c @ w, x),
        lambda x, w: jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, c: c @ w, x))(3),
    ],
    ids=["while", "fori between traced bounds"],
)
def test_a_loop_of_unknown_length_is_refused(function):
    with pytest.raises(ValueError, match="must not hold a while loop"):
        fo.costs.measured_flops(function, *shapes((16, 64), (64, 64)))


# Models and algorithms ------------------------------------------------------------------------

B, WIDTHS = 32, (784, 200, 200, 62)
MODEL = fo.models.mlp(WIDTHS[1:-1], num_classes=WIDTHS[-1])
BATCH = {
    "x": jax.ShapeDtypeStruct((B, WIDTHS[0]), jnp.float32),
    "y": jax.ShapeDtypeStruct((B,), jnp.result_type(int)),
}
LAYERS = [a * b for a, b in itertools.pairwise(WIDTHS)]
SIZE = sum(LAYERS) + sum(WIDTHS[1:])
FORWARD = 2 * sum(LAYERS)
BACKWARD = 2 * FORWARD - 2 * LAYERS[0]  # nobody asks for the gradient of the input
SGD, SGDM = fo.optimizers.sgd(0.1), fo.optimizers.sgdm(0.1, 0.9)


ALGORITHMS = {
    "fedavg": fo.fedavg(SGD),
    "fedgbo": fo.fedgbo(fo.optimizers.adam(0.1)),
    "scaffold-1": fo.scaffold(SGD, 1),
    "mimelite": fo.mimelite(SGDM),
    "mimexlite": fo.mimexlite(SGDM),
    "mime": fo.mime(SGDM),
    "feddc": fo.feddc(SGD),
    "moon": fo.moon(SGD),
    "wrapped": fo.private(fo.proximal(fo.fedgbo(SGDM), 0.1), "**/layer_2/*"),
    "robust": fo.aggregated(fo.scaffold(SGD), fo.aggregators.coordinate_median()),
    "compressed": fo.compressed_fedavg(SGD, 0.9),  # whose threshold is searched in a while loop
}
# How often a step takes a gradient, and how often it computes features without the last layer; of what
# the probe takes the gradient.
GRADIENTS = {"mime": 2}
FEATURES = {"moon": 2}
PROBES = {"mimelite": "full", "mime": "full", "scaffold-1": "full", "mimexlite": "minibatch"}
# A codec compares, counts and rounds: more operations per parameter.
OPERATIONS = {"compressed": 60}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_round_of_any_algorithm(name):
    samples = 170
    flops = fo.costs.client_flops(ALGORITHMS[name], MODEL, BATCH, samples)
    both = FORWARD + BACKWARD
    step = B * (GRADIENTS.get(name, 1) * both + FEATURES.get(name, 0) * (FORWARD - 2 * LAYERS[-1]))
    assert step < flops.step < 1.02 * step + 20 * SIZE
    examples = {"full": samples, "minibatch": B, None: 0}[PROBES.get(name)]
    assert flops.probe == pytest.approx(examples * both, rel=0.01)
    for part in (flops.start, flops.finish, flops.server):
        assert 0 <= part < OPERATIONS.get(name, 35) * SIZE
    expected = flops.probe + flops.start + 7 * flops.step + flops.finish
    assert flops.client(7) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["fedavg", "feddc"])
def test_parts_make_the_whole(name):
    """A client's K steps as one program, its loop unrolled by hand, cost what the parts cost."""
    algorithm, steps = ALGORITHMS[name], 3
    variables = jax.eval_shape(MODEL.init, jax.random.key(0), BATCH)
    variables = variables if isinstance(variables, fo.Variables) else fo.Variables(variables)
    server = jax.eval_shape(algorithm.init, variables)
    client = jax.eval_shape(algorithm.init_client, variables)

    def work(server, client, batch):
        message = algorithm.broadcast(server)
        k, one = jnp.int32(0), jnp.int32(1)
        context = Context(message, client, (), (), jnp.int32(steps), k, one, one, k)
        state = algorithm.start(message, client)
        for k in range(steps):
            context = context._replace(step=jnp.int32(k))
            state, _ = algorithm.step(state, Objective(MODEL, jax.random.key(0)), batch, context)
        return algorithm.finish(state, context)

    whole = fo.costs.measured_flops(work, server, client, BATCH)
    parts = fo.costs.client_flops(algorithm, MODEL, BATCH).client(steps)
    assert parts == pytest.approx(whole, rel=2e-3)

    def in_a_loop(server, client, batch):
        feed = fo.Feed(lambda key, k: (batch, None), None, 0, None, 0)  # type: ignore[arg-type]
        invitation = fo.Invitation(
            algorithm.broadcast(server), 0, 0, steps, 1, 1, jax.random.key(0)
        )
        result = fo.client_update(algorithm, MODEL, feed, invitation, client)
        return result.upload, result.state

    assert fo.costs.measured_flops(in_a_loop, server, client, BATCH) == pytest.approx(
        whole, rel=2e-3
    )


def test_convolutions_count_as_what_they_are_however_they_are_computed():
    """8 x 8 pixels, 3 x 3, 16 channels to 16, unpadded: a forward pass, and the kernel's gradient."""

    def loss(variables, batch, key):
        made = jax.lax.conv_general_dilated(
            batch["x"],
            variables.params,
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.sum(made), fo.Aux()

    batch = {"x": jax.ShapeDtypeStruct((B, 8, 8, 16), jnp.float32)}
    size = 3 * 3 * 16 * 16
    for ways in (True, False, "winograd"):
        model = fo.Model(
            lambda key, batch: fo.Variables(jnp.zeros((3, 3, 16, 16), jnp.float32)), loss,
            fast_convolutions=ways,
        )  # fmt: skip
        step = fo.costs.client_flops(fo.fedavg(SGD), model, batch).step
        products = 2 * 2 * B * 6 * 6 * size
        assert products <= step <= products + B * 6 * 6 * 16 + 10 * size


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fo.costs.client_flops(fo.fedavg(SGD), MODEL, {}),
            "batch must hold at least one array",
        ),
        (
            lambda: fo.costs.client_flops(
                fo.fedavg(SGD), MODEL, BATCH | {"y": jnp.zeros(3, jnp.int32)}
            ),
            "must have leading axes",
        ),
        (
            lambda: fo.costs.client_flops(fo.fedavg(SGD), MODEL, BATCH, samples=0),
            "samples must be a whole number of at least 1",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
