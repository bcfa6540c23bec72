"""Examples that do not count alike, and epochs without their remainder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo

SIZES, TOKENS = (7, 9, 12, 10), 6
FEDAVG = fo.fedavg(fo.optimizers.sgd(0.1))


def _sequences():
    """Sequences of different lengths: an example counts by its number of tokens."""
    rng = np.random.default_rng(0)
    count = sum(SIZES)
    length = rng.integers(1, TOKENS + 1, count)
    return {
        "x": rng.normal(size=(count, TOKENS, 3)),
        "y": rng.normal(size=(count, TOKENS)),
        "used": (np.arange(TOKENS) < length[:, None]).astype(float),
    }


EXAMPLES = _sequences()
CLIENTS = fo.ClientData.from_arrays(EXAMPLES, np.repeat(np.arange(len(SIZES)), SIZES))
ROWS = [slice(end - size, end) for size, end in zip(SIZES, np.cumsum(SIZES), strict=True)]
W = np.ones(3)


def mean_error(w, rows=slice(None)):
    """The mean over tokens."""
    x, y, used = (EXAMPLES[name][rows] for name in ("x", "y", "used"))
    return ((x @ w - y) ** 2 * used).sum() / used.sum()


def loss(params, batch):
    errors = (batch["x"] @ params["w"] - batch["y"]) ** 2 * batch["used"]
    weights = batch["used"].sum(1)
    losses = errors.sum(1) / weights
    aux = fo.Aux(losses=losses, weights=weights, metrics={"error": losses})
    return errors.sum() / weights.sum(), aux


MODEL = fo.models.from_loss({"w": W}, loss)
FEDERATION = fo.Federation(MODEL, CLIENTS, cohort=4, local_steps=1, batch_size=16)


def step(weights):
    """One step of each client on all of its examples, averaged by weights."""
    gradients = [jax.grad(mean_error)(jnp.asarray(W), rows) for rows in ROWS]
    return W - 0.1 * np.average(gradients, axis=0, weights=weights)


def test_evaluation_is_a_mean_over_what_the_examples_count():
    found = fo.evaluate(MODEL, fo.Variables({"w": W}), EXAMPLES, batch_size=5)
    by_client = fo.evaluate_clients(MODEL, fo.Variables({"w": W}), CLIENTS, batch_size=5)
    for name in ("loss", "error"):
        np.testing.assert_allclose(found[name], mean_error(W), rtol=1e-13)
        expected = [mean_error(W, rows) for rows in ROWS]
        np.testing.assert_allclose(by_client[name], expected, rtol=1e-13)
    totals = [
        fo.client_evaluate(MODEL, fo.Variables({"w": W}), fo.feed(CLIENTS[i], 5)) for i in range(4)
    ]
    total = totals[0] + totals[1] + totals[2] + totals[3]
    np.testing.assert_allclose(total.mean_loss, mean_error(W), rtol=1e-13)


# Minibatches of 16 hold each client's examples, with empty rows.
@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        ("samples", SIZES),
        ("uniform", [1, 1, 1, 1]),
        ("weights", [EXAMPLES["used"][rows].sum() for rows in ROWS]),
        ([1.0, 0.0, 2.5, 0.0], [1.0, 0.0, 2.5, 0.0]),
    ],
    ids=str,
)
def test_what_a_client_counts(weighting, weights):
    federation = FEDERATION.replace(weighting=weighting)
    state = fo.init_state(FEDAVG, federation)
    run = fo.run_rounds(FEDAVG, federation, state, 1)
    np.testing.assert_allclose(run.state.variables.params["w"], step(weights), rtol=1e-12)


def test_a_probe_s_gradient_counts_tokens():
    """Mime's correction is zero at the model that was sent: one step of distributed SGD."""
    mime = fo.mime(fo.optimizers.sgd(0.1))
    run = fo.run_rounds(mime, FEDERATION, fo.init_state(mime, FEDERATION), 1)
    np.testing.assert_allclose(run.state.variables.params["w"], step(SIZES), rtol=1e-12)


def bare(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def test_without_the_remainder_any_mean_will_do():
    federation = FEDERATION.replace(
        model=fo.models.from_loss({"w": W}, bare),
        local_steps=fo.epochs(2), batch_size=4, remainder="drop",
    )  # fmt: skip
    for algorithm in (FEDAVG, fo.mime(fo.optimizers.sgd(0.1))):
        run = fo.run_rounds(algorithm, federation, fo.init_state(algorithm, federation), 1)
        order = np.argsort(run.history.cohort[0])
        taken = run.history.num_steps[0][order]
        np.testing.assert_array_equal(taken, [2 * (size // 4) for size in SIZES])
        assert np.isfinite(run.history.loss[0])
    alone = fo.feed(CLIENTS[0], 4, remainder="drop")
    draws = [alone.draw(jax.random.key(0), k) for k in range(3)]
    assert all(mask is None for _, mask in draws)
    seen = np.concatenate([np.asarray(batch["y"]) for batch, _ in draws[:1]])
    assert len(np.unique(seen[:, 0])) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"remainder": "drop", "batch_size": 8}, "client 0 holds 7; 1 of 4 hold fewer"),
        ({"remainder": "round"}, "remainder must be one of 'exact', 'drop', got 'round'"),
        ({"weighting": [1.0, 2.0]}, r"one number per client, \[4\], got shape \[2\]"),
        ({"weighting": [1.0, -2.0, 0.0, 0.0]}, r"weighting must lie in \[0\.0"),
    ],
)
def test_a_federation_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        FEDERATION.replace(**changes)


def _aux(**fields):
    def loss(params, batch):
        return bare(params, batch), fo.Aux(**fields)

    return loss


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (_aux(weights=jnp.ones(3), losses=jnp.ones(16)), r"aux.weights .* \[16\], got shape \[3\]"),
        (_aux(weights=jnp.ones(16)), "aux.weights needs aux.losses"),
        (lambda params, batch: batch["image"].mean(), r"KeyError: 'image'.*'x': float64\[16, 6, 3\]"),
        (lambda params, batch: jnp.mean(batch["x"] @ params["w"].T @ params["w"]), "model.loss raised"),
    ],
)  # fmt: skip
def test_a_loss_that_does_not_fit_is_named_with_its_minibatch(loss, message):
    federation = FEDERATION.replace(model=fo.models.from_loss({"w": W}, loss))
    with pytest.raises(ValueError, match=message):
        fo.simulate(FEDAVG, federation, 1, progress=False)
