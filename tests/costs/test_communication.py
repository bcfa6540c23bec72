"""Bytes, counted by hand: the derivation from an algorithm's functions must agree."""

import jax
import jax.numpy as jnp
import pytest

import fedjax_opt as fo

# float32 parameters and batch statistics, in bytes: x = 4 (6 + 2) = 32 and s = 4 * 5 = 20.
VARIABLES = fo.Variables(
    {"w": jnp.zeros((2, 3), jnp.float32), "b": jnp.zeros(2, jnp.float32)},
    {"mean": jnp.zeros(5, jnp.float32)},
)
X, S = 32, 20
SGD = fo.optimizers.sgd(0.1)
SGDM = fo.optimizers.sgdm(0.1, 0.9)
ADAM = fo.optimizers.adam(0.1)


@pytest.mark.parametrize(
    ("algorithm", "down", "up", "client", "server"),
    [
        # The model down, its change up; the server keeps the model.
        (fo.fedavg(SGD), X + S, X + S, 0, X + S),
        # A local optimiser's statistics start afresh in every round and never travel.
        (fo.fedavg(ADAM), X + S, X + S, 0, X + S),
        # Adam's m and v stay on the server.
        (fo.fedadam(SGD), X + S, X + S, 0, X + S + 2 * X),
        # FedAdagrad has v alone.
        (fo.fedadagrad(SGD), X + S, X + S, 0, X + S + X),
        # Momentum travels with the model, both ways.
        (fo.mfl(SGDM), X + S + X, X + S + X, 0, X + S + X),
        # Adam's m and v go down, frozen; the server recovers their change from y - x alone.
        (fo.fedgbo(ADAM), X + S + 2 * X, X + S, 0, X + S + 2 * X),
        (fo.fedgbo(SGDM), X + S + X, X + S, 0, X + S + X),
        # Model and control variate both ways; a client keeps its own variate.
        (fo.scaffold(SGD), X + S + X, X + S + X, X, X + S + X),
        # Option I sends its full gradient as a report, too. Only its own client reads it, so the
        # cohort's mean does not come back down.
        (fo.scaffold(SGD, option=1), X + S + X, X + S + X + X, X, X + S + X),
        # Momentum goes down, the gradient at x comes up beside y - x; the mean of the gradients
        # is read by the server alone.
        (fo.mimelite(SGDM), X + S + X, X + S + X, 0, X + S + X),
        # Distributed SGD sends a gradient, of the parameters' size, and the change of the state.
        (fo.dsgd(SGD), X + S, X + S, 0, X + S),
        # A proximal term costs nothing.
        (fo.fedprox(SGD, 0.1), X + S, X + S, 0, X + S),
    ],
    ids=[
        "fedavg", "fedavg-adam", "fedadam", "fedadagrad", "mfl", "fedgbo-adam", "fedgbo-sgdm",
        "scaffold-2", "scaffold-1", "mimelite", "dsgd", "fedprox",
    ],
)  # fmt: skip
def test_costs_by_hand(algorithm, down, up, client, server):
    assert fo.costs.of(algorithm, VARIABLES) == fo.costs.Cost(down, up, client, server)


def test_shapes_are_enough():
    shapes = jax.eval_shape(lambda: VARIABLES)
    algorithm = fo.scaffold(SGD)
    assert fo.costs.of(algorithm, shapes) == fo.costs.of(algorithm, VARIABLES)


def test_dtypes_count():
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), VARIABLES)
    assert fo.costs.of(fo.fedavg(SGD), half)[:2] == ((X + S) // 2, (X + S) // 2)
