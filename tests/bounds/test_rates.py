"""The rates of GHBM's Table 1, against the table."""

import jax.numpy as jnp
import numpy as np

import fedjax_opt as fo
from benchmarks.papers import tables
from fedjax_opt.bounds import RateConstants
from tests.bounds.theorems import draw_rates

CONSTANTS = RateConstants(
    smoothness=2.0, initial_loss=3.0, num_clients=100.0, local_steps=5.0, rounds=1e6,
    participation=0.1, noise_variance=4.0, dissimilarity=0.5, gradient_bound=1.5, optimal_loss=0.5,
)  # fmt: skip
COUNT = 64


def test_what_the_paper_says_of_them():
    (constants,) = draw_rates(np.random.default_rng(1), COUNT)
    value = {name: bound.value for name, bound in fo.bounds.rates(constants).items()}
    # In partial participation GHBM has the rate that others have with all clients.
    for name in ("FedAvg, all clients", "FedCM, all clients"):
        np.testing.assert_allclose(value["GHBM"], value[name], rtol=1e-12)
    # No other is lower; FedCM's only once there are many rounds.
    for name in ("FedAvg", "SCAFFOLD-M"):
        assert (value["GHBM"] <= value[name]).all()
    late = fo.bounds.rates(constants._replace(rounds=np.full(COUNT, 1e15)))
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
    for name, (_, communication) in tables.GHBM_TABLE_1.items():
        expected = sent[name.split(",")[0]] / sent["FedAvg"]
        np.testing.assert_allclose(communication, expected, rtol=1e-4)


def test_the_table_is_ordered_and_complete():
    lines = tables.rate_table(CONSTANTS)
    assert len(lines) == len(fo.bounds.rates(CONSTANTS))
    assert lines[0].startswith("GHBM") and "all clients" in lines[-1]
