"""Fine-tuning: gradient descent on a client's own rows, drawn as in training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_opt as fo
from tests.core import problems

SIZES = (5, 0, 2, 4, 0)
CLIENTS = [problems.ragged((max(size, 1),), seed=size)[0] for size in SIZES]
DATA = fo.ClientData.from_list(
    [
        jax.tree.map(lambda x, size=size: x[:size], client)
        for client, size in zip(CLIENTS, SIZES, strict=True)
    ],
    allow_empty=True,
)
IDS = range(len(SIZES))
W = np.array([0.5, -1.0, 2.0])
VARIABLES = fo.Variables({"w": jnp.asarray(W)})
SGD = fo.optimizers.sgd(0.1)


def tuned(variables=VARIABLES, optimizer=SGD, steps=3, model=problems.MODEL, data=DATA, **options):
    # Larger than any client: one shuffled minibatch is all that it has.
    return fo.metrics.fine_tuned(
        model, variables, data, optimizer, steps, **{"batch_size": 8, **options}
    )


def by_hand(client, steps=3, start=W, beta=0.0):
    """Full-batch descent with momentum m+ = beta m + (1 - beta) g."""
    w, m, own = start, np.zeros(3), DATA[client]
    for _ in range(steps if SIZES[client] else 0):
        m = beta * m + (1 - beta) * problems.gradient(w, own["x"], own["y"])
        w = w - 0.1 * m
    return w


@pytest.mark.parametrize(
    ("optimizer", "beta"), [(fo.optimizers.sgdm(0.1, 0.6), 0.6), (optax.sgd(0.1), 0.0)]
)
def test_it_is_gradient_descent_on_the_clients_own_rows(optimizer, beta):
    """With momentum that moves; a client without rows keeps the model in every bit."""
    own = tuned(optimizer=optimizer)
    for client in IDS:
        np.testing.assert_allclose(own(client).params["w"], by_hand(client, beta=beta), rtol=1e-12)
        if not SIZES[client]:
            problems.assert_identical(own(client), VARIABLES)


def test_ids_may_be_traced_and_mapped_over():
    """An empty client takes no harm from the others, nor they from it."""
    own = tuned()
    together = jax.vmap(own)(jnp.arange(len(SIZES)))
    expected = np.stack([by_hand(client) for client in IDS])
    np.testing.assert_allclose(together.params["w"], expected, rtol=1e-12)


def test_no_step_is_the_model_itself():
    own = tuned(steps=0)
    for client in IDS:
        problems.assert_identical(own(client), VARIABLES)


def test_it_can_start_from_each_clients_own_model():
    """Of an algorithm that personalises, and of another fine-tuning."""
    algorithm = fo.independent(SGD)
    state = problems.start(algorithm, len(SIZES))
    other = jnp.arange(15.0).reshape(5, 3) / 10
    state = state._replace(
        clients=state.clients._replace(variables=fo.Variables({"w": other})),
    )
    once = tuned(fo.personal_variables(algorithm, state), steps=1)
    twice = tuned(once, steps=2)
    for client in IDS:
        expected = by_hand(client, start=np.asarray(other[client]))
        np.testing.assert_allclose(twice(client).params["w"], expected, rtol=1e-12)


FEW = problems.ragged((5, 3, 4), seed=2)
SEED = 1


@pytest.mark.parametrize(
    ("optimizer", "batching"),
    [
        (fo.optimizers.adam(0.1), "shuffled"),
        (fo.optimizers.sgdm(0.1, 0.5), "replacement"),
    ],
    ids=["adam", "sgdm"],
)
def test_it_is_what_a_client_does_in_a_round(optimizer, batching):
    """Five steps of two rows, by FedAvg with one client in its first round."""
    algorithm = fo.fedavg(optimizer)
    state = problems.start(algorithm, 3, seed=SEED)
    first_round = jax.random.fold_in(state.key, 0)
    run = fo.run_rounds(
        algorithm,
        fo.Federation(
            problems.MODEL,
            FEW,
            cohort=1,
            local_steps=jnp.asarray(5),
            batch_size=2,
            batching=batching,
        ),
        state,
        1,
        strategy="scan",
    )
    own = tuned(
        state.variables, optimizer, 5, data=FEW, batch_size=2, seed=first_round, batching=batching
    )
    (client,) = run.history.cohort[0]
    assert int(client) != 0, "any other: the key of its minibatches is its own"
    # The server adds y - x to x.
    problems.assert_close(run.state.variables, own(client), 1e-14)
    if batching == "shuffled":
        other = tuned(state.variables, optimizer, 5, data=FEW, batch_size=2, seed=1)(client)
        assert np.abs(other.params["w"] - own(client).params["w"]).max() > 1e-4


def test_evaluation_after_fine_tuning_compiles_once():
    """For other seeds, learning rates, numbers of steps and models; and is exact."""
    model, traces = problems.counted()
    compiled = None
    for seed, rate, steps, scale in ((0, 0.1, 3, 1.0), (7, 0.05, 3, 1.0), (7, 0.05, 1, 2.0)):
        start = fo.Variables({"w": jnp.asarray(scale * W)})
        own = tuned(start, fo.optimizers.sgd(rate), steps, model, seed=seed)
        found = fo.evaluate_clients(model, own, DATA)
        compiled = compiled or len(traces)
        assert len(traces) == compiled > 0
        for client in IDS:
            if SIZES[client] == 0:
                assert np.isnan(found["loss"][client])
                continue
            w, examples = scale * W, (DATA[client]["x"], DATA[client]["y"])
            for _ in range(steps):
                w = w - rate * problems.gradient(w, *examples)
            loss = problems.mean_loss(w, *examples)
            np.testing.assert_allclose(found["loss"][client], loss, rtol=1e-12)


def test_batch_statistics_move_and_the_model_is_told_that_it_trains():
    def loss(variables, batch, key):
        assert key is not None
        value, aux = problems.MODEL.loss(variables, batch, key)
        return value, aux._replace(state=variables.state + 1)

    model = fo.Model(problems.MODEL.init, loss)
    own = tuned(VARIABLES._replace(state=jnp.int32(4)), model=model)
    assert [int(own(client).state) for client in IDS] == [7, 4, 7, 7, 4]


def test_float32_stays_float32():
    narrow = jax.tree.map(lambda x: x.astype(np.float32), DATA.examples)
    data = fo.ClientData(narrow, DATA.offsets, DATA.sizes)
    start = fo.Variables({"w": jnp.asarray(W, jnp.float32)})
    found = tuned(start, data=data)(0).params["w"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_hand(0), rtol=1e-5)


EMPTY = fo.ClientData.from_list([{"x": np.zeros((0, 3)), "y": np.zeros(0)}], allow_empty=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variables": {"w": W}}, "variables must be Variables or a function .* got dict"),
        ({"steps": -1}, r"steps must lie in \[0, inf\], got .*-1"),
        ({"steps": 1.5}, r"steps must be a whole number, got .*1\.5"),
        ({"steps": np.array([1, 2])}, "steps must be a whole number, got array"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batching": "all"}, "batching must be one of 'shuffled', 'replacement', got 'all'"),
        ({"seed": "a"}, "seed must be a number .* got 'a'"),
        ({"seed": 0.5}, r"seed must be a whole number, got .*0\.5"),
        ({"optimizer": 0.1}, r"optimizer must be an optax\.GradientTransformation"),
        (
            {"optimizer": optax.chain(optax.clip(100.0), fo.optimizers.adam(0.1))},
            "optimizer must not hold a triple inside of an optax transformation",
        ),
        ({"data": EMPTY}, "data must hold at least one example to train on, got none"),
    ],
)
def test_it_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        tuned(**arguments)
