"""The error of old pseudo-gradients, against a loop in NumPy."""

import numpy as np
import pytest

import fedjax_opt as fo

CLIENTS, STEPS, RATE, ROUNDS = 4, 3, 0.05, 7
START = np.array([1.0, -1.0])


def federation(cohort=2):
    model, data, _ = fo.data.quadratics(num_clients=CLIENTS, dimension=2, seed=1)
    made = fo.Federation(
        model, data, cohort=fo.cohorts.cyclic(cohort), local_steps=STEPS, batch_size=1,
        weighting="uniform", initial={"x": START},
    )  # fmt: skip
    return made, np.asarray(data.examples["A"]), np.asarray(data.examples["b"])


def displacement(x, A, b, of):
    """What FedAvg's round takes off the model, by the cohort `of`."""
    ends = []
    for i in of:
        y = x
        for _ in range(STEPS):
            y = y - RATE * A[i] @ (y - b[i])
        ends.append(y)
    return x - np.mean(ends, axis=0)


def test_it_is_the_norm_of_the_mean_less_the_displacement_of_all():
    made, A, b = federation()
    x, expected, past, taus = START, np.full((3, ROUNDS), np.nan), [], [1, 2, 5]
    for t in range(ROUNDS):
        past.append(displacement(x, A, b, [2 * t % CLIENTS, (2 * t + 1) % CLIENTS]))
        full = displacement(x, A, b, range(CLIENTS))
        for row, tau in enumerate(taus):
            if t + 1 >= tau:
                expected[row, t] = np.linalg.norm(np.mean(past[-tau:], axis=0) - full)
        x = x - past[-1]
    errors = fo.metrics.reuse_error(fo.fedavg(fo.optimizers.sgd(RATE)), made, ROUNDS, taus)
    np.testing.assert_allclose(errors, expected, rtol=1e-10)


def test_with_all_clients_the_newest_is_without_error():
    made, _, _ = federation(cohort=CLIENTS)
    errors = fo.metrics.reuse_error(fo.fedavg(fo.optimizers.sgd(RATE)), made, 5, [1, 2])
    np.testing.assert_allclose(errors[0], 0, atol=1e-14)
    assert np.isnan(errors[1, 0]) and (errors[1, 1:] > 1e-4).all()


@pytest.mark.parametrize(
    ("rounds", "taus", "message"),
    [(0, [1], "rounds must be"), (3, [0], "taus must be"), (3, [], "taus must name one or more")],
)
def test_refusals(rounds, taus, message):
    with pytest.raises(ValueError, match=message):
        fo.metrics.reuse_error(fo.fedavg(fo.optimizers.sgd(RATE)), federation()[0], rounds, taus)
