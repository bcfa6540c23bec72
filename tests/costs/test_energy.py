"""Energy, against loops over clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.costs import Devices, EnergyRates, Flops

N, R, S = 6, 12, 3
RNG = np.random.default_rng(0)
FLEET = Devices(20.0, 5.0, RNG.uniform(0.1, 2.0, N))
FLOPS = Flops(step=3e9, probe=5e9, start=1e6, finish=2e6, server=7e9)
DOWN, UP = 4_000_000, 2_000_000
COHORT = np.stack([RNG.permutation(N)[:S] for _ in range(R)])
STEPS = RNG.integers(1, 9, (R, S))
STEPS[2:5, 0] = 0
COHORT[3, 0] = -1
HISTORY = {"cohort": COHORT, "num_steps": STEPS}
SAME = EnergyRates(1e-10, 2.5, 1e-6, 3e-6)
EACH = EnergyRates(
    RNG.uniform(1e-11, 1e-9, N), RNG.uniform(1, 9, N), 1e-6, RNG.uniform(1e-6, 1e-5, N)
)


def by_loops(rates):
    """Joules of each client and round; the server's operations are not a client's."""
    per_flop, per_second, per_down, per_up = (np.broadcast_to(np.asarray(x), N) for x in rates)
    joules = np.zeros((R, S))
    for r in range(R):
        for s in range(S):
            i, k = COHORT[r, s], STEPS[r, s]
            if k > 0:
                computing = per_second[i] * k * FLEET.seconds_per_step[i]
                operations = per_flop[i] * (5e9 + 1e6 + k * 3e9 + 2e6)
                joules[r, s] = operations + computing + per_down[i] * DOWN + per_up[i] * UP
    return joules


@pytest.mark.parametrize("rates", [SAME, EACH], ids=["alike", "each its own"])
def test_joules_of_clients_rounds_and_runs(rates):
    expected = by_loops(rates)
    found = fo.costs.round_joules(rates, COHORT, STEPS, DOWN, UP, FLOPS, FLEET)
    np.testing.assert_allclose(found.client_joules, expected, rtol=1e-13)
    np.testing.assert_allclose(found.joules, expected.sum(axis=1), rtol=1e-13)
    run = fo.costs.run_joules(rates, HISTORY, DOWN, UP, FLOPS, FLEET)
    np.testing.assert_allclose(run, np.cumsum(expected.sum(axis=1)), rtol=1e-13)
    one = fo.costs.round_joules(rates, COHORT[0], STEPS[0], DOWN, UP, FLOPS, FLEET)
    assert one.joules.shape == () and one.client_joules.shape == (S,)


def test_what_has_no_rate_needs_nothing():
    """Only bytes; only operations; only time."""
    found = fo.costs.round_joules(EnergyRates(joules_per_byte_up=1e-6), [0, 1], 3, bytes_up=UP)
    assert float(found.joules) == pytest.approx(2 * 1e-6 * UP)
    found = fo.costs.round_joules(EnergyRates(1e-9), [0, 1], 3, flops=Flops(step=2e9))
    assert float(found.joules) == pytest.approx(2 * 3 * 2.0)
    found = fo.costs.round_joules(EnergyRates(joules_per_second=4.0), [2], 3, devices=FLEET)
    assert float(found.joules) == pytest.approx(4 * 3 * FLEET.seconds_per_step[2])


def test_under_jit_vmap_and_grad():
    def total(watts):
        rates = SAME._replace(joules_per_second=watts)
        return fo.costs.run_joules(rates, HISTORY, DOWN, UP, FLOPS, FLEET)[-1]

    watts = np.array([1.0, 2.5, 10.0])
    found = jax.jit(jax.vmap(total))(watts)
    computing = np.sum(STEPS * FLEET.seconds_per_step[COHORT])
    rest = by_loops(SAME._replace(joules_per_second=0.0)).sum()
    np.testing.assert_allclose(found, rest + watts * computing, rtol=1e-13)
    assert float(jax.jit(jax.grad(total))(1.0)) == pytest.approx(computing)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fo.costs.round_joules(1.0, [0], 1), "rates must be EnergyRates, got float"),
        (
            lambda: fo.costs.round_joules(EnergyRates(-1e-9), [0], 1, flops=FLOPS),
            "joules_per_flop must lie in",
        ),
        (lambda: fo.costs.round_joules(EnergyRates(1e-9), [0], 1), "flops must be given"),
        (
            lambda: fo.costs.round_joules(EnergyRates(joules_per_second=1.0), [0], 1),
            "devices must be given where joules_per_second",
        ),
        (
            lambda: fo.costs.round_joules(EnergyRates([0.0, 1e-9]), [2], 1, flops=FLOPS),
            r"cohort.*-1 to 1 \(N=2\)",
        ),
        (
            lambda: fo.costs.round_joules(SAME, [N], 1, flops=FLOPS, devices=FLEET),
            r"cohort.*\(N=6\)",
        ),
        (
            lambda: fo.costs.round_joules(EnergyRates([1.0, 2.0], [1.0] * 3), [0], 1),
            "joules_per_second must be a number or one per client.*N=2",
        ),
        (lambda: fo.costs.round_joules(EnergyRates(), [0], -1), "num_steps must lie in"),
        (lambda: fo.costs.round_joules(EnergyRates(), [0], 1, bytes_up=-5), "bytes_up must lie in"),
        (
            lambda: fo.costs.round_joules(EnergyRates(), [0, 1], 1, bytes_down=jnp.ones(3)),
            r"bytes_down must be a number or have the shape \[2\]",
        ),
        (lambda: fo.costs.run_joules(EnergyRates(), {}), "history must hold 'cohort'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
