"""Clients' models on their own test examples, step by step, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt import optimizers as opt
from tests.core import problems

RATE, STEPS, ROUNDS = 0.1, 3, 2
DATA, TEST = problems.ragged([4, 4, 4]), problems.ragged([2, 5, 3], seed=1)
ALGORITHM = fo.fedavg(opt.sgd(RATE))
START = problems.start(ALGORITHM, 3)


def run(algorithm=ALGORITHM, state=START, data=TEST, **options):
    """Two rounds of everybody, each minibatch all that a client has."""
    options = {"cohort": 3, "local_steps": STEPS, "batch_size": 4, "client_test": data} | options
    return fo.run_rounds(
        algorithm, fo.Federation(problems.MODEL, DATA, **options), state, ROUNDS,
        strategy="scan", diagnostics=["user_metrics"] if data else (),
    )  # fmt: skip


def walks(w):
    """The models of each client through a round, and the mean of the last ones."""
    paths = []
    for i in range(3):
        models = [w]
        for _ in range(STEPS):
            models.append(models[-1] - RATE * problems.gradient(models[-1], **DATA[i]))
        paths.append(models)
    return paths, np.mean([path[-1] for path in paths], axis=0)


def test_every_step_against_numpy():
    history = run().history
    w = np.asarray(START.variables.params["w"])
    for t in range(ROUNDS):
        paths, w = walks(w)
        for slot, client in enumerate(history.cohort[t]):
            test = TEST[int(client)]
            losses = [problems.mean_loss(model, **test) for model in paths[client]]
            distances = [np.abs(test["x"] @ m - test["y"]).mean() for m in paths[client]]
            seen = history.diagnostics
            np.testing.assert_allclose(seen["user_loss"][t, slot], losses, rtol=1e-12)
            np.testing.assert_allclose(seen["user_distance"][t, slot], distances, rtol=1e-12)


def test_both_ends_where_the_number_of_steps_is_not_compiled_in():
    known, traced = (run(local_steps=k).history for k in (STEPS, jnp.int32(STEPS)))
    ends = known.diagnostics["user_loss"][:, :, [0, STEPS]]
    np.testing.assert_allclose(traced.diagnostics["user_loss"], ends, rtol=1e-12)


def test_watching_changes_nothing():
    problems.assert_identical(run().state, run(data=None).state)


def test_absent_clients_and_clients_without_examples_have_none():
    empty = fo.ClientData.from_list([TEST[0], {"x": np.zeros((0, 3)), "y": np.zeros(0)}, TEST[2]],
                                    allow_empty=True)  # fmt: skip
    sampler = fo.cohorts.available(3, jnp.array([1.0, 1.0, 0.0]))
    history = run(data=empty, cohort=sampler).history
    seen = np.asarray(history.diagnostics["user_loss"])
    for slots, values in zip(np.asarray(history.cohort), seen, strict=True):
        for client, curve in zip(slots, values, strict=True):
            assert np.all(np.isfinite(curve)) if client == 0 else np.all(np.isnan(curve))


def test_what_is_private_is_part_of_a_clients_model():
    """The model as it is received is the client's own, patch included."""
    data = fo.ClientData.from_list([{"x": np.eye(2) * i, "y": np.ones(2)} for i in (1.0, 2.0)])

    def loss(variables, batch, key):
        del key
        out = batch["x"] @ variables.params["w"] + variables.params["own"]
        losses = (out - batch["y"]) ** 2
        return losses.mean(), fo.Aux(losses=losses)

    algorithm = fo.private(ALGORITHM, "params/own")
    model, params = fo.Model(None, loss), {"w": jnp.zeros(2), "own": jnp.zeros(())}
    state = fo.first_state(algorithm, params, 2)
    federation = fo.Federation(model, data, cohort=2, local_steps=2, batch_size=2, client_test=data)
    first = fo.run_rounds(algorithm, federation, state, 1)
    again = fo.run_rounds(algorithm, federation, first.state, 1, diagnostics=["user_metrics"])
    own = fo.evaluate_clients(model, fo.personal_variables(algorithm, first.state), data)["loss"]
    received = again.history.diagnostics["user_loss"][0, :, 0]
    np.testing.assert_allclose(received, own[again.history.cohort[0]], rtol=1e-12)


def test_another_population_is_refused():
    with pytest.raises(ValueError, match="client_test must be a ClientData of the same 3 clients"):
        run(data=problems.ragged([2, 2]))
    with pytest.raises(ValueError, match="client_test"):
        run(data={"x": np.zeros((3, 3))})
