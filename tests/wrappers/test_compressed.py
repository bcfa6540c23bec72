"""Compressed algorithms against NumPy, in their limits, and put together with others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from benchmarks.papers import tables
from fedjax_opt import compression
from fedjax_opt import optimizers as opt
from tests.algorithms.matrix import ROWS
from tests.core.problems import assert_identical

NUM_CLIENTS, STEPS, SIZE, LR = 3, 2, 10, 0.1
WEIGHTS = np.array([0.5, 0.2, 0.3])


def _loss(variables, batch, key):
    del key
    errors = batch["x"] @ variables.params["w"] + variables.params["b"] - batch["y"]
    return jnp.mean(errors**2) / 2, fo.Aux()


MODEL = fo.Model(None, _loss)
RNG = np.random.default_rng(0)
ADAM = opt.adam(0.1, initial_v=0.0)
START = {"w": RNG.normal(size=SIZE), "b": np.array(0.3)}


def batches(seed):
    """The minibatches of a round: `[S, K, B, ...]`."""
    rng = np.random.default_rng(seed)
    shape = (NUM_CLIENTS, STEPS, 4)
    return {"x": rng.normal(size=(*shape, SIZE)), "y": rng.normal(size=shape)}


def play(algorithm, rounds=3, strategy="scan", **options):
    """A few rounds of all clients; all states and infos."""
    round_fn = fo.make_round(algorithm, MODEL, strategy=strategy, **options)
    states = [fo.first_state(algorithm, START, NUM_CLIENTS)]
    infos = []
    for t in range(rounds):
        state, info = round_fn(states[-1], np.arange(NUM_CLIENTS), batches(t), WEIGHTS)
        states.append(state)
        infos.append(info)
    return states, infos


def gradient(params, x, y):
    """Of the mean squared error, by hand."""
    errors = x @ params["w"] + params["b"] - y
    return {"w": x.T @ errors / len(y), "b": errors.mean()}


def combine(function, *trees):
    """A function of the leaves of trees that are dictionaries."""
    return {name: function(*(tree[name] for tree in trees)) for name in trees[0]}


def trained(start, data, client):
    """Where local SGD leads a client."""
    y = start
    for k in range(STEPS):
        g = gradient(y, data["x"][client, k], data["y"][client, k])
        y = combine(lambda a, b: a - LR * b, y, g)
    return y


def assert_models(state, expected):
    for name in START:
        found = state.variables.params[name]
        np.testing.assert_allclose(found, expected[name], rtol=1e-12, atol=1e-14)


def top(values, sparsity):
    """Marks of the entries that are kept."""
    flat = np.abs(np.ravel(values))
    count = flat.size - int(flat.size * sparsity)
    marks = np.zeros(flat.size, bool)
    marks[np.argsort(-flat, kind="stable")[:count]] = True
    return marks.reshape(np.shape(values))


def uniformly(values, marks):
    """Algorithm 3 of the thesis with rounding to the nearest, on what is kept."""
    sent = np.zeros_like(values)
    for sign in (values < 0, values >= 0):
        part = marks & sign
        if part.any():
            low, high = values[part].min(), values[part].max()
            step = (high - low) / 127
            level = np.round((values[part] - low) / step) if step > 0 else 0
            sent[part] = low + level * step
    return sent


def exponentially(values, marks):
    """Algorithm 4 with its base from the largest and the smallest magnitude, on what is kept."""
    sent = np.zeros_like(values)
    part = marks & (values != 0)
    if part.any():
        size = np.abs(values[part])
        base = (size.max() / size.min()) ** (1 / 126)
        level = np.round(np.log(size.max() / size) / np.log(base)) if base > 1 else 0
        sent[part] = np.sign(values[part]) * size.max() * base ** (-1.0 * level)
    return sent


def test_ce_fedavg_against_numpy():
    """Algorithm 2 of the thesis, with the moving Adam of the triples."""
    b1, b2, eps, s = 0.7, 0.9, 0.1, 0.6
    states, _ = play(fo.ce_fedavg(opt.adam(LR, b1, b2, eps, initial_v=0.0), sparsity=s))
    x, m, v = START, combine(np.zeros_like, START), combine(np.zeros_like, START)
    for t in range(3):
        data, total = batches(t), [combine(np.zeros_like, START) for _ in range(3)]
        for i, weight in enumerate(WEIGHTS):
            y, mi, vi = x, m, v
            for k in range(STEPS):
                g = gradient(y, data["x"][i, k], data["y"][i, k])
                mi = combine(lambda a, b: b1 * a + (1 - b1) * b, mi, g)
                vi = combine(lambda a, b: b2 * a + (1 - b2) * b**2, vi, g)
                y = combine(lambda a, b, c: a - LR * b / (np.sqrt(c) + eps), y, mi, vi)
            delta = combine(lambda a, b: np.asarray(a - b), y, x)
            marks = combine(lambda a: top(a, s), delta)
            sent = [combine(uniformly, delta, marks)]
            for new, old in ((mi, m), (vi, v)):
                change = combine(lambda a, b: np.asarray(a - b), new, old)
                sent.append(combine(exponentially, change, marks))
            total = [
                combine(lambda a, b, w=weight: a + w * b, *pair)
                for pair in zip(total, sent, strict=True)
            ]
        x, m, v = (combine(np.add, *pair) for pair in zip((x, m, v), total, strict=True))
        assert_models(states[t + 1], x)


def test_ce_fedavg_warns_of_a_second_moment_that_starts_at_1():
    """Whatever stands before it; what is not known is not asked."""
    for adam in (opt.adam(LR), opt.chain(optax.clip(1.0), opt.yogi(LR))):
        with pytest.warns(UserWarning, match="ce_fedavg: optimizer's second moment v starts at 1"):
            fo.ce_fedavg(adam)
    for adam in (opt.sgdm(LR), opt.adam(LR, initial_v=0.5), opt.adam(np.array([LR, LR]))):
        fo.ce_fedavg(adam)
    jax.eval_shape(lambda v: fo.ce_fedavg(opt.adam(LR, initial_v=v)), 1.0)


def test_error_feedback_against_numpy():
    """Sparse signs of SGD's change and what was left out before; what is left stays at home."""
    algorithm = fo.compressed(
        fo.fedavg(opt.sgd(LR)),
        upload=compression.chain(compression.top_k(sparsity=0.7), compression.sign()),
        error_feedback=True,
    )
    states, _ = play(algorithm)
    x = START
    errors = [combine(np.zeros_like, START) for _ in WEIGHTS]
    for t in range(3):
        data, change = batches(t), combine(np.zeros_like, START)
        for i, weight in enumerate(WEIGHTS):
            y = trained(x, data, i)
            wanted = combine(lambda a, b, e: np.asarray(a - b + e), y, x, errors[i])
            marks = combine(lambda a: top(a, 0.7), wanted)
            sent = combine(
                lambda a, kept: np.where(kept, np.where(a >= 0, 1, -1) * np.abs(a[kept]).mean(), 0),
                wanted,
                marks,
            )
            errors[i] = combine(np.subtract, wanted, sent)
            change = combine(lambda a, b, w=weight: a + w * b, change, sent)
        x = combine(np.add, x, change)
        assert_models(states[t + 1], x)
    kept = jax.tree.leaves(states[-1].clients.error)
    for i in range(NUM_CLIENTS):
        for leaf, name in zip(kept, ("b", "w"), strict=True):
            np.testing.assert_allclose(leaf[i], errors[i][name], rtol=1e-11, atol=1e-14)


def test_a_quantised_download_against_numpy():
    """Clients start from what they read; the server keeps what it has."""
    states, _ = play(fo.compressed(fo.fedavg(opt.sgd(LR)), download=compression.uniform(8)), 2)
    x = START
    for t in range(2):
        data, change = batches(t), combine(np.zeros_like, START)
        read = combine(lambda a: uniformly(np.asarray(a), np.ones(np.shape(a), bool)), x)
        for i, weight in enumerate(WEIGHTS):
            y = trained(read, data, i)
            change = combine(lambda c, a, b, w=weight: c + w * (a - b), change, y, read)
        x = combine(np.add, x, change)
        assert_models(states[t + 1], x)


@pytest.mark.parametrize(
    "make",
    [fo.fedavg, fo.scaffold, fo.fedgbo, fo.mfl, fo.feddc],
    ids=["fedavg", "scaffold", "fedgbo", "mfl", "feddc"],
)
def test_keeping_everything_changes_nothing(make):
    algorithm = make(opt.sgdm(LR, 0.5)) if make in (fo.fedgbo, fo.mfl) else make(opt.sgd(LR))
    # FedDC is refused with a memory.
    remembers = make is not fo.feddc
    same = fo.compressed(
        algorithm, upload=compression.top_k(sparsity=0.0), error_feedback=remembers
    )
    plain, coded = (play(a, 2)[0][-1] for a in (algorithm, same))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15),
        (plain.server, plain.clients),
        (coded.server, coded.clients.inner if remembers else coded.clients),
    )
    assert not remembers or not any(map(np.any, jax.tree.leaves(coded.clients.error)))


# What is remembered ---------------------------------------------------------------------------


def _with_statistics(variables, batch, key):
    """The same loss; batch statistics that are soon forgotten."""
    loss, aux = _loss(variables, batch, key)
    return loss, aux._replace(state={"var": jnp.var(batch["x"], axis=0)})


def test_parameters_and_controls_are_remembered_and_statistics_are_not():
    """What starts from the server's value in every round is not lost by being left out."""
    size = {"params": SIZE + 1, "state": SIZE}
    variables = fo.Variables(START, {"var": np.ones(SIZE)})
    for algorithm, kept in (
        (fo.fedavg(opt.sgd(LR)), size["params"]),
        (fo.mfl(opt.adam(LR)), size["params"]),
        (fo.scaffold(opt.sgd(LR)), 2 * size["params"]),
        (fo.scaffold_m(opt.sgd(LR), 0.5), 2 * size["params"]),
        (fo.private(fo.scaffold(opt.sgd(LR)), "params/b"), 2 * SIZE),
    ):
        coded = fo.compressed(
            algorithm, upload=compression.top_k(sparsity=0.5), error_feedback=True
        )
        error = jax.eval_shape(coded.init_client, variables).error
        assert sum(leaf.size for leaf in error) == kept
    # An upload without a model is one, as it is for the codec.
    bare = fo.fedavg(opt.sgd(LR))
    finish = bare.finish
    bare = bare._replace(finish=lambda local, context: (finish(local, context)[0].params, ()))
    coded = fo.compressed(bare, upload=compression.top_k(sparsity=0.5), error_feedback=True)
    assert [leaf.size for leaf in jax.eval_shape(coded.init_client, variables).error] == [1, SIZE]


def test_memory_leaves_variances_positive():
    """Adam's v and a batch variance: remembered decay would be counted once more in every round."""
    algorithm = fo.compressed(
        fo.mfl(opt.adam(0.02, 0.9, 0.5, 1e-3)),
        upload=compression.ce_fedavg(0.8),
        error_feedback=True,
    )
    variables = fo.Variables(START, {"var": np.full(SIZE, 9.0)})
    state = fo.first_state(algorithm, variables, NUM_CLIENTS)
    round_fn = fo.make_round(algorithm, fo.Model(None, _with_statistics), strategy="scan")
    for t in range(12):
        state, info = round_fn(state, np.arange(NUM_CLIENTS), batches(t), WEIGHTS)
        for leaf in jax.tree.leaves((state.server.optimizer.v, state.variables.state)):
            assert np.all(np.asarray(leaf) >= 0)
        assert bool(info.finite)


QUADRATICS = fo.data.quadratics(num_clients=6, dimension=40, num_examples=8)


def distance(algorithm, rounds=150):
    """From the optimum of heterogeneous quadratics, under partial participation."""
    model, data, optimum = QUADRATICS
    state = fo.first_state(algorithm, {"x": jnp.zeros(40)}, 6)
    result = fo.run_rounds(
        algorithm,
        fo.Federation(model, data, cohort=3, local_steps=3, batch_size=8),
        state,
        rounds,
        strategy="vmap",
    )
    return float(jnp.linalg.norm(result.state.variables.params["x"] - optimum))


def test_controls_need_their_memory():
    """SCAFFOLD's c stays the mean of all c_i: it reaches the optimum as without a codec."""
    codec, scaffold = compression.top_k(sparsity=0.5), fo.scaffold(opt.sgd(0.02))
    far = distance(fo.compressed(scaffold, upload=codec))
    near = distance(fo.compressed(scaffold, upload=codec, error_feedback=True))
    assert near < 1e-2 < 1 < far


def test_feddc_bears_codes_but_no_delay():
    """A quantiser's errors return at once; what is left out comes late, and is refused."""
    feddc = fo.feddc(opt.sgd(0.02), 0.1)
    coded = fo.compressed(feddc, upload=compression.uniform(4), error_feedback=True)
    assert distance(coded) < 1.1 * distance(feddc) < 0.1
    for wrapped in (feddc, fo.server_optimizer(feddc, opt.sgd(1.0)), fo.private(feddc, "params/b")):
        late = fo.compressed(wrapped, upload=compression.top_k(sparsity=0.5), error_feedback=True)
        with pytest.raises(ValueError, match=r"error_feedback=True diverges .* comes too late"):
            fo.first_state(late, START, NUM_CLIENTS)


# With every algorithm -------------------------------------------------------------------------

REFUSED = {
    ("feddc", "compressed"): "error_feedback=True diverges here",
    ("feddc", "both"): "error_feedback=True diverges here",
    ("independent", "private"): "must have a field 'variables'",
    ("independent", "both"): "must have a field 'variables'",
}
CODED = {"upload": compression.ce_fedavg(0.5), "error_feedback": True}
DOWNLOAD = compression.chain(compression.uniform(8), companions=compression.exponential(8))
WRAPPED = {
    "compressed": lambda a: fo.compressed(a, **CODED),
    "private": lambda a: fo.private(a, "params/b"),
    "both": lambda a: fo.compressed(fo.private(a, "params/b"), **CODED, download=DOWNLOAD),
}


def _featured(variables, batch, key):
    loss, aux = _loss(variables, batch, key)
    return loss, aux._replace(features=batch["x"] * variables.params["w"][None, :])


FEATURED = fo.Model(None, _featured)


@pytest.mark.parametrize("name", [*ROWS, "independent"])
def test_every_algorithm_is_wrapped_or_refused(name):
    """Traced, not run: each gives the state that it was given, or a reason."""
    algorithm = ROWS[name].make(LR) if name in ROWS else fo.independent(opt.sgd(LR))
    for kind, wrap in WRAPPED.items():
        wrapped, data = wrap(algorithm), batches(0)

        def one_round(wrapped=wrapped, data=data):
            state = fo.first_state(wrapped, START, NUM_CLIENTS)
            probe = {} if wrapped.probe is None else {"probe_batches": data}
            round_fn = fo.make_round(wrapped, FEATURED, strategy="scan")
            return state, round_fn(state, np.arange(NUM_CLIENTS), data, WEIGHTS, **probe)[0]

        if (name, kind) in REFUSED:
            with pytest.raises(ValueError, match=REFUSED[name, kind]):
                jax.eval_shape(one_round)
            continue
        before, after = jax.eval_shape(one_round)
        assert jax.tree.structure(before) == jax.tree.structure(after)
        assert jax.tree.leaves(before) == jax.tree.leaves(after)


RANDOM = fo.compressed(
    fo.mfl(opt.adam(LR, eps=0.1)),
    upload=compression.chain(
        compression.random_k(sparsity=0.5),
        compression.uniform(4, stochastic=True),
        companions=compression.exponential(6, stochastic=True),
    ),
    download=compression.uniform(6, stochastic=True),
    error_feedback=True,
)


@pytest.mark.parametrize("strategy", ["vmap", "sharded"])
def test_strategies_draw_the_same_numbers(strategy):
    one, other = (play(RANDOM, 2, name)[0][-1] for name in ("scan", strategy))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12),
        (one.server.inner, one.clients),
        (other.server.inner, other.clients),
    )


def test_rounding_belongs_to_seed_and_round():
    states, _ = play(RANDOM, 3)
    seeds = [tuple(np.asarray(state.server.seed)) for state in states]
    assert len(set(seeds)) == 4
    other = fo.make_round(RANDOM, MODEL, strategy="scan")(
        fo.first_state(RANDOM, START, NUM_CLIENTS, 1),
        np.arange(NUM_CLIENTS),
        batches(0),
        WEIGHTS,
    )[0]
    assert tuple(np.asarray(other.server.seed)) != seeds[1]


def test_what_is_sent_is_what_is_counted():
    """The diagnostic, the encoder's bytes of the very upload, and the expected cost."""
    algorithm = fo.compressed_fedavg(opt.sgd(LR), 0.6)
    _, infos = play(algorithm, 1, diagnostics=["upload_bytes"])
    data, lengths = batches(0), []
    codec = compression.ce_fedavg(0.6)
    for i in range(NUM_CLIENTS):
        y = trained(START, data, i)
        delta = fo.Variables(combine(lambda a, b: np.asarray(a - b), y, START))
        lengths.append(len(compression.encode(codec, delta)))
    assert float(infos[0].diagnostics["upload_bytes"]) == pytest.approx(np.mean(lengths), abs=1e-4)
    variables = fo.Variables({"w": jnp.zeros(50_000, jnp.float32)})
    plain, coded = (fo.costs.of(a, variables) for a in (fo.fedavg(opt.sgd(LR)), algorithm))
    ratio = plain.bytes_up / coded.bytes_up
    assert ratio == pytest.approx(tables.upload_ratio(0.6), rel=0.005)
    assert coded.bytes_down == plain.bytes_down
    with_moments = fo.costs.of(fo.ce_fedavg(ADAM, 0.6), variables)
    assert 600_000 / with_moments.bytes_up == pytest.approx(
        tables.upload_ratio(0.6, moments=True), rel=0.005
    )
    remembering = fo.compressed(
        fo.fedavg(opt.sgd(LR)), upload=compression.sign(), error_feedback=True
    )
    assert fo.costs.of(remembering, variables).client_state == 200_000
    quantised = fo.compressed(fo.fedavg(opt.sgd(LR)), download=compression.uniform(8))
    assert fo.costs.of(quantised, variables).bytes_down == 50_000 + 16 + 7


def test_the_cost_of_a_traced_sparsity_is_not_known():
    def cost(sparsity):
        return fo.costs.of(fo.ce_fedavg(ADAM, sparsity), fo.Variables({"w": jnp.zeros(9)}))

    with pytest.raises(ValueError, match=r"sparsity is\s+traced"):
        jax.eval_shape(cost, 0.5)


def test_private_goes_inside():
    codec = compression.ce_fedavg(0.5)
    algorithm = fo.compressed(fo.private(fo.mfl(opt.adam(LR)), "params/b"), upload=codec)
    states, _ = play(algorithm, 2)
    own = fo.personal_variables(algorithm, states[-1])
    assert len({float(own(i).params["b"]) for i in range(NUM_CLIENTS)}) == NUM_CLIENTS
    assert states[-1].variables.params["b"] == START["b"]
    for option in ({"upload": codec}, {"download": compression.uniform(8)}):
        wrong = fo.private(fo.compressed(fo.mfl(opt.adam(LR)), **option), "params/b")
        with pytest.raises(
            ValueError, match=rf"private goes inside .* where\), {next(iter(option))}="
        ):
            play(wrong, 1)


def test_one_codec_behind_the_other_is_a_chain():
    once = fo.compressed(fo.fedavg(opt.sgd(LR)), upload=compression.top_k(sparsity=0.5))
    for twice in (
        fo.compressed(once, upload=compression.uniform(8)),
        fo.compressed(once, upload=compression.uniform(8), error_feedback=True),
        fo.compressed(
            fo.compressed(once, download=compression.uniform(8)), download=compression.uniform(8)
        ),
    ):
        with pytest.raises(ValueError, match=r"once: .* by compression\.chain"):
            play(twice, 1)
    both_ways = fo.compressed(once, download=compression.uniform(8))
    assert fo.costs.of(both_ways, fo.Variables({"w": jnp.zeros(100)})).bytes_down < 200


def test_small_moments_need_codes_by_exponent_in_a_download():
    """Evenly spaced codes make one number, often 0, of all that is much smaller than the largest."""
    message = fo.mfl(opt.adam(LR)).init(fo.Variables({"w": jnp.ones(100)}))
    moments = message.optimizer._replace(v={"w": jnp.logspace(-8, 0, 100).at[0].set(0.0)})
    message = message._replace(optimizer=moments)
    even = compression.lossy(compression.uniform(8), message).optimizer.v["w"]
    by_exponent = compression.lossy(DOWNLOAD, message).optimizer.v["w"]
    assert np.sum(even == 0) > 60
    np.testing.assert_allclose(by_exponent, moments.v["w"], rtol=0.08)


def test_a_client_that_diverges_is_not_made_to_look_well():
    algorithm = fo.compressed_fedavg(opt.sgd(1e200), 0.5)
    states, infos = play(algorithm, 1)
    assert not bool(infos[0].finite)
    assert_identical(states[0].server, states[1].server)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "upload or download"),
        ({"upload": "top_k"}, "upload must be a Codec"),
        ({"download": 8}, "download must be a Codec"),
        ({"download": compression.top_k(sparsity=0.5)}, "download must not leave entries out"),
        ({"download": compression.uniform(8), "error_feedback": True}, "error_feedback"),
        (
            {"upload": compression.random_k(sparsity=0.9, rescale=True), "error_feedback": True},
            r"does not go with random_k\(rescale=True\)",
        ),
    ],
)
def test_wrong_arguments_say_what_is_wrong(arguments, word):
    with pytest.raises(ValueError, match=word):
        fo.compressed(fo.fedavg(opt.sgd(LR)), **arguments)
