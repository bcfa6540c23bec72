"""Evaluation: exact means, however the examples are cut into pieces."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from tests.core import problems

SIZES = (5, 1, 0, 12)
DATA = fo.ClientData.from_list(
    [problems.ragged((max(size, 1),), seed=size)[0] for size in SIZES[:2]]
    + [{"x": np.zeros((0, 3)), "y": np.zeros(0)}]
    + [problems.ragged((12,), seed=4)[0]],
    allow_empty=True,
)
W = np.array([0.5, -1.0, 2.0])
VARIABLES = fo.Variables({"w": jnp.asarray(W)})


def by_hand(examples):
    x, y = examples["x"], examples["y"]
    return {"loss": problems.mean_loss(W, x, y), "distance": np.abs(x @ W - y).mean()}


@pytest.mark.parametrize("batch_size", [1, 5, 9, 18, 1000])
def test_the_mean_over_all_examples_is_exact(batch_size):
    found = fo.evaluate(problems.MODEL, VARIABLES, DATA, batch_size)
    assert DATA.num_examples == 18
    for name, value in by_hand(DATA.examples).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-13)
    problems.assert_identical(
        found, fo.evaluate(problems.MODEL, VARIABLES, DATA.examples, batch_size)
    )


@pytest.mark.parametrize("batch_size", [5, 64])
def test_each_client_has_its_own_mean_and_an_empty_one_has_none(batch_size):
    found = fo.evaluate_clients(problems.MODEL, VARIABLES, DATA, batch_size)
    for client, size in enumerate(SIZES):
        for name in ("loss", "distance"):
            if size == 0:
                assert np.isnan(found[name][client])
            else:
                expected = by_hand(DATA[client])[name]
                np.testing.assert_allclose(found[name][client], expected, rtol=1e-13)


def test_the_model_is_told_that_it_is_evaluated():
    def loss(variables, batch, key):
        assert key is None
        return problems.MODEL.loss(variables, batch, key)

    model = fo.Model(problems.MODEL.init, loss)
    assert np.isfinite(fo.evaluate(model, VARIABLES, DATA)["loss"])


def test_scalar_metrics_are_averaged_by_the_examples_they_stand_for():
    """A metric that is one number per piece counts as often as the piece has examples."""

    def loss(variables, batch, key):
        value, aux = problems.MODEL.loss(variables, batch, key)
        return value, aux._replace(metrics={"first": batch["y"][0]})

    model = fo.Model(problems.MODEL.init, loss)
    y = DATA.examples["y"]
    found = fo.evaluate(model, VARIABLES, DATA, 10)["first"]
    np.testing.assert_allclose(found, (10 * y[0] + 8 * y[10]) / 18, rtol=1e-13)


@pytest.mark.parametrize(
    ("examples", "batch_size", "message"),
    [
        ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, 4, "at least one example .* got none"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3)}, 4, r"examples\['y'\] must have .* \[n=2\]"),
        ({}, 4, "examples must hold at least one array"),
        (DATA, 0, "batch_size must be .*at least 1, got 0"),
        (DATA, 2.0, r"batch_size must be a whole number of at least 1, got 2\.0"),
    ],
)
def test_evaluate_refuses(examples, batch_size, message):
    with pytest.raises(ValueError, match=message):
        fo.evaluate(problems.MODEL, VARIABLES, examples, batch_size)


def test_evaluate_clients_refuses():
    with pytest.raises(ValueError, match=r"batch_size must be .*at least 1, got 0"):
        fo.evaluate_clients(problems.MODEL, VARIABLES, DATA, 0)


def test_the_last_piece_of_a_test_set_has_its_own_size():
    """So means are exact of a loss, and a metric, that say nothing of single examples."""

    def loss(variables, batch, key):
        value = problems.MODEL.loss(variables, batch, key)[0]
        return value, fo.Aux(metrics={"twice": 2 * value})

    model, expected = fo.Model(problems.MODEL.init, loss), by_hand(DATA.examples)["loss"]
    for batch_size in (9, 10, 1000):
        found = fo.evaluate(model, VARIABLES, DATA, batch_size)
        np.testing.assert_allclose(found["loss"], expected, rtol=1e-13)
        np.testing.assert_allclose(found["twice"], 2 * expected, rtol=1e-13)
    with pytest.raises(ValueError, match=r"return Aux\(losses=\.\.\.\)"):
        fo.evaluate_clients(model, VARIABLES, DATA, 2)


def test_a_scalar_metric_of_a_partly_filled_minibatch_is_refused():
    def loss(variables, batch, key):
        value, aux = problems.MODEL.loss(variables, batch, key)
        return value, aux._replace(metrics={"twice": 2 * value})

    model = fo.Model(problems.MODEL.init, loss)
    with pytest.raises(ValueError, match=r"the metric 'twice' .*remainder='drop'"):
        fo.evaluate_clients(model, VARIABLES, DATA, 2)
