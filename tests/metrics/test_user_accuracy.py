"""User accuracy: each client's own model, on its own examples, every client once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt.metrics import UserAccuracy

MODEL = fo.models.classifier(
    init=lambda key, batch: {"body": jnp.eye(3), "head": jnp.zeros(3)},
    apply=lambda params, x: x @ params["body"] + params["head"][None, :],
)


def random_clients(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return fo.ClientData.from_list(
        [{"x": rng.normal(size=(n, 3)), "y": rng.integers(3, size=n)} for n in sizes],
        allow_empty=True,
    )


def of(values):
    """A `UserAccuracy` of given values; None for a client without test examples."""
    missing = np.array([value is None for value in values])
    numbers = np.array([np.nan if value is None else value for value in values])
    return UserAccuracy(numbers, ~missing, missing)


def test_it_is_the_mean_over_clients_of_own_models_on_own_examples():
    sizes = [1, 7, 0, 30, 4]
    test = random_clients(sizes)
    algorithm = fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where="params/head")
    state = fo.first_state(algorithm, MODEL.init(jax.random.key(0), test[1]), len(sizes))
    heads = np.random.default_rng(1).normal(size=(len(sizes), 3)) * 2
    clients = jax.tree.map(lambda leaf: jnp.asarray(heads, leaf.dtype), state.clients)
    own = fo.personal_variables(algorithm, state._replace(clients=clients))
    found = fo.metrics.user_accuracy(MODEL, own, test)
    expected = []
    for i, n in enumerate(sizes):
        rows = test[i]
        right = np.argmax(rows["x"] + heads[i], axis=1) == rows["y"]
        expected.append(right.mean() if n else np.nan)
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
    served = np.delete(expected, 2)
    np.testing.assert_allclose(found.mean, served.mean(), rtol=1e-6)
    np.testing.assert_allclose(found.spread, served.std(), rtol=1e-6)
    assert found.missing.tolist() == [False, False, True, False, False]
    by_example = sum(n * a for n, a in zip(sizes, expected, strict=True) if n) / sum(sizes)
    assert abs(by_example - found.mean) > 0.01  # the two means differ here, so it matters which


def test_one_model_for_all_and_another_metric():
    test = random_clients([3, 5])
    variables = MODEL.init(jax.random.key(0), test[0])
    by_client = fo.evaluate_clients(MODEL, variables, test)
    for name in ("accuracy", "loss"):
        found = fo.metrics.user_accuracy(MODEL, variables, test, name=name)
        np.testing.assert_array_equal(found.values, by_client[name])
    with pytest.raises(ValueError, match=r"name must be .* \['accuracy', 'loss'\], got 'recall'"):
        fo.metrics.user_accuracy(MODEL, variables, test, name="recall")


@pytest.mark.parametrize("tuned", [False, True])
def test_clients_whose_model_nobody_knows_are_refused(tuned):
    """They would be evaluated with the last client's model. Fewer are welcome, as is one for all."""
    few, many = random_clients([3, 5]), random_clients([3, 5, 4])
    algorithm = fo.private(fo.fedavg(fo.optimizers.sgd(0.1)), where="params/head")
    variables = MODEL.init(jax.random.key(0), few[0])
    own = fo.personal_variables(algorithm, fo.first_state(algorithm, variables, 2))
    if tuned:
        sgd = fo.optimizers.sgd(0.1)
        with pytest.raises(ValueError, match=r"data must hold the same .* which are 2; got 3"):
            fo.metrics.fine_tuned(MODEL, own, many, sgd, steps=1)
        own = fo.metrics.fine_tuned(MODEL, variables, few, sgd, steps=1)
    with pytest.raises(ValueError, match=r"test_data must hold the same .* which are 2; got 3"):
        fo.metrics.user_accuracy(MODEL, own, many)
    assert fo.metrics.user_accuracy(MODEL, own, random_clients([3])).clients.sum() == 1
    everyones = fo.personal_variables(
        fo.fedavg(fo.optimizers.sgd(0.1)),
        fo.first_state(fo.fedavg(fo.optimizers.sgd(0.1)), variables, 2),
    )
    assert fo.metrics.user_accuracy(MODEL, everyones, many).clients.sum() == 3


def test_a_model_that_gives_nan_is_not_taken_for_a_client_without_examples():
    test = random_clients([3, 0])
    broken = fo.Variables({"body": jnp.full((3, 3), jnp.nan), "head": jnp.zeros(3)})
    found = fo.metrics.user_accuracy(MODEL, broken, test, name="loss")
    assert np.isnan(found.mean) and found.missing.tolist() == [False, True]


@given(st.lists(st.floats(0.0, 1.0) | st.none(), min_size=1, max_size=45), st.data())
def test_summaries_over_any_mask(values, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))))
    found = of(values).over(mask)
    kept = sorted(v for v, m in zip(values, mask, strict=True) if m and v is not None)
    assert sorted(found.counted.tolist()) == kept
    assert found.missing.sum() == sum(v is None and m for v, m in zip(values, mask, strict=True))
    if not kept:
        assert np.isnan([found.mean, found.spread, found.worst_decile]).all()
        return
    tenth = kept[: max(1, int(np.ceil(len(kept) / 10)))]
    np.testing.assert_allclose(found.mean, sum(kept) / len(kept), atol=1e-12)
    np.testing.assert_allclose(found.worst_decile, sum(tenth) / len(tenth), atol=1e-12)
    mean = sum(kept) / len(kept)
    variance = sum((v - mean) ** 2 for v in kept) / len(kept)
    np.testing.assert_allclose(found.spread**2, variance, atol=1e-12)
    assert found.worst_decile <= found.mean + 1e-12


def test_masks_narrow_one_after_the_other():
    found = of([0.1, 0.2, None, 0.4]).over(np.array([True, True, True, False]))
    assert found.over(np.array([False, True, True, True])).counted.tolist() == [0.2]


def test_text():
    assert str(of([0.5, 1.0])) == "75.00% over 2 clients (spread 25.00%, worst tenth 50.00%)"
    assert str(of([0.5, None])).endswith(
        "over 1 clients (spread 0.00%, worst tenth 50.00%), 1 without test examples"
    )


@pytest.mark.parametrize("mask", [[1, 0], [True], [[True, False]]])
def test_over_refuses(mask):
    with pytest.raises(ValueError, match=r"mask must be bool\[2\], one per client, got"):
        of([0.5, 1.0]).over(mask)


def test_a_client_whose_model_broke_is_among_the_worst():
    assert np.isnan(of([np.nan, 0.5, 0.6, 0.9]).worst_decile)
    assert of([0.5, 0.6, 0.9]).worst_decile == 0.5
