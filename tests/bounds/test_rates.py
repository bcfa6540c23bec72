"""The rates of GHBM's Table 1, against the table."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.bounds import RateConstants
from tests.bounds import transformations

CONSTANTS = RateConstants(
    smoothness=2.0, initial_loss=3.0, num_clients=100.0, local_steps=5.0, rounds=1e6,
    participation=0.1, noise_variance=4.0, dissimilarity=0.5, gradient_bound=1.5, optimal_loss=0.5,
)  # fmt: skip
COUNT = 64


# Compiled as a whole, which is quicker than operation by operation.
rates = jax.jit(fo.bounds.rates)


def draw(seed=0, extreme=False):
    rng = np.random.default_rng(seed)

    def between(low, high):
        return 10 ** rng.uniform(low, high, COUNT)

    return RateConstants(
        smoothness=between(-8, 8) if extreme else between(-2, 2),
        initial_loss=between(-1, 3),
        num_clients=np.ceil(between(1, 4)),
        local_steps=np.ceil(between(0, 2)),
        rounds=np.ceil(between(1, 9 if extreme else 5)),
        participation=between(-2, -0.01),
        noise_variance=between(-3, 3),
        dissimilarity=between(-2, 2),
        gradient_bound=between(-2, 2),
        optimal_loss=-between(-3, 1),
    )


def table_1(c):
    """The rows of Table 1, with |S| for N and Delta for the gap, as it prints them."""
    L, D, s2, S = c.smoothness, c.initial_loss - c.optimal_loss, c.noise_variance, c.num_clients
    C, J, T, zeta, G = c.participation, c.local_steps, c.rounds, c.gradient_bound, c.dissimilarity
    full = (L * D * s2 / (S * J * T)) ** 0.5 + L * D / T
    return {
        "FedAvg, all clients": full,
        "FedAvg": (L * D * s2 / (S * C * J * T)) ** 0.5 + L * D / T,
        "FedCM": (L * D * (s2 + S * C * J * zeta**2) / (S * C * J * T)) ** 0.5
        + (L * D * (np.sqrt(s2) / J**0.5 + (S * C) ** 0.5 * (zeta + G)) / ((S * C) ** 0.5 * T))
        ** (np.longdouble(2) / 3),
        "FedCM, all clients": full,
        "SCAFFOLD-M": (L * D * s2 / (S * C * J * T)) ** 0.5
        + L * D / T * (1 + S ** (np.longdouble(2) / 3) / (S * C)),
        "GHBM": full,
    }  # fmt: skip


def test_every_row_is_the_tables():
    constants = draw()
    found = rates(constants)
    expected = table_1(jax.tree.map(np.longdouble, constants))
    assert list(fo.bounds.rates(CONSTANTS)) == list(expected)
    for name, bound in found.items():
        np.testing.assert_allclose(bound.value, np.asarray(expected[name], float), rtol=1e-12)
        np.testing.assert_allclose(bound.value, sum(bound.terms.values()), rtol=1e-12)


def test_what_the_paper_says_of_them():
    constants = draw(1)
    value = {name: bound.value for name, bound in rates(constants).items()}
    # In partial participation GHBM has the rate that others have with all clients.
    for name in ("FedAvg, all clients", "FedCM, all clients"):
        np.testing.assert_allclose(value["GHBM"], value[name], rtol=1e-12)
    # No other is lower; FedCM's only once there are many rounds.
    for name in ("FedAvg", "SCAFFOLD-M"):
        assert (value["GHBM"] <= value[name]).all()
    late = rates(constants._replace(rounds=np.full(COUNT, 1e15)))
    assert (late["GHBM"].value <= late["FedCM"].value).all()
    # With all clients FedAvg's two rows are one.
    everyone = fo.bounds.rates(CONSTANTS._replace(participation=1.0))
    assert everyone["FedAvg"].value == everyone["FedAvg, all clients"].value
    # FedCM's does not fall faster than 1/sqrt(T), even without noise.
    quiet = CONSTANTS._replace(noise_variance=0.0)
    ratio = [fo.bounds.rates(quiet._replace(rounds=T))["FedCM"].value for T in (1e20, 1e22)]
    np.testing.assert_allclose(ratio[0] / ratio[1], 10, rtol=1e-2)


def test_assumptions_are_reported_by_name():
    def violated(**changes):
        found = fo.bounds.rates(CONSTANTS._replace(**changes))
        return {name: bound.violated() for name, bound in found.items() if bound.violated()}

    some = {"FedAvg, all clients": ("C = 1",), "FedCM, all clients": ("C = 1",)}
    assert violated() == some
    assert violated(participation=1.0) == {}
    assert violated(participation=1.0, dissimilarity=np.inf) == {
        name: ("G < inf",) for name in ("FedAvg, all clients", "FedAvg", "FedCM")
    }
    assert violated(gradient_bound=np.inf) == {**some, "FedCM": ("zeta < inf",)}
    assert violated(participation=0.15) == {**some, "GHBM": ("1/C is whole",)}
    assert violated(rounds=100.0)["GHBM"] == ("beta (tau - 1) <= 1",)
    assert all("f(x0) >= f*" in names for names in violated(initial_loss=0.0).values())


def test_the_table_is_ordered_and_complete():
    rows = fo.bounds.rate_table(CONSTANTS)
    found = fo.bounds.rates(CONSTANTS)
    assert {row.name: row.value for row in rows} == {n: float(b.value) for n, b in found.items()}
    assert all(row.violated == found[row.name].violated() for row in rows)
    holding = [row for row in rows if not row.violated]
    assert rows[: len(holding)] == holding
    assert holding == sorted(holding, key=lambda row: row.value)
    assert holding[0].name == "GHBM"
    assert {row.name for row in rows if not row.partial_participation} == {
        "FedAvg, all clients", "FedCM, all clients",
    }  # fmt: skip


def test_communication_is_what_the_algorithms_send():
    sgd = fo.optimizers.sgd(0.1)
    algorithms = {
        "FedAvg": fo.fedavg(sgd), "FedCM": fo.fedcm(sgd, alpha=0.1),
        "SCAFFOLD-M": fo.scaffold_m(sgd, beta=0.1), "GHBM": fo.ghbm(sgd, tau=10),
    }  # fmt: skip
    variables = fo.Variables({"w": jnp.zeros(100_000)})
    sent = {}
    for name, algorithm in algorithms.items():
        cost = fo.costs.of(algorithm, variables)
        sent[name] = cost.bytes_down + cost.bytes_up
    for row in fo.bounds.rate_table(CONSTANTS):
        expected = sent[row.name.split(",")[0]] / sent["FedAvg"]
        np.testing.assert_allclose(row.communication, expected, rtol=1e-4)


def test_transformations_and_float32():
    def rate(name, constants):
        return fo.bounds.rates(constants)[name]

    functions = {name: partial(rate, name) for name in ("FedAvg", "FedCM", "SCAFFOLD-M", "GHBM")}
    transformations.check(functions, (draw(2),), (draw(3, extreme=True),))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("smoothness", 0.0), ("initial_loss", np.inf), ("num_clients", 0.0), ("local_steps", 0.0),
        ("rounds", 0.0), ("participation", 0.0), ("participation", 1.5), ("noise_variance", -1.0),
        ("dissimilarity", -1.0), ("gradient_bound", np.nan), ("optimal_loss", np.nan),
    ],
)  # fmt: skip
def test_bad_input_is_refused(name, value):
    with pytest.raises(ValueError, match=f"constants.{name} must lie"):
        fo.bounds.rates(CONSTANTS._replace(**{name: value}))
