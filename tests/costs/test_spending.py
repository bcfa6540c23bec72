"""What was spent, by loops over clients: a real run, energy, and until a target was reached."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.costs import Cost, Devices, EnergyRates, Flops, Prices, Spent

N, S, ROUNDS, EVERY = 20, 4, 24, 4
# Per client and round: 4,000 bytes down and 2,000 up.
TRAFFIC = Cost(4_000, 2_000, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def run():
    """Digits on 20 clients of which some drop out and some do less than was asked."""
    train, test = fo.data.load_digits()
    train, test = (part | {"y": part["y"].astype(np.int64)} for part in (train, test))
    rng = np.random.default_rng(0)
    data = fo.data.ClientData.from_list(
        [
            {k: v[rows] for k, v in train.items()}
            for rows in np.array_split(rng.permutation(1400), N)
        ]
    )
    model = fo.models.mlp([], num_classes=10)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.3))
    sampler = fo.cohorts.unreliable(fo.cohorts.cyclic(S), dropout=0.25, stragglers=0.5)
    result = fo.simulate(
        algorithm,
        fo.Federation(
            model,
            data,
            cohort=sampler,
            local_steps=3,
            batch_size=10,
            batching="replacement",
            test=test,
        ),
        ROUNDS,
        evaluate_every=EVERY,
        strategy="scan",
        progress=False,
    )
    batch = {k: v[:10] for k, v in train.items()}
    prices = Prices(
        traffic=fo.costs.of(algorithm, result.variables),
        flops=fo.costs.client_flops(algorithm, model, batch),
        devices=fo.costs.devices(rng.uniform(5, 50, N), 5.0, rng.uniform(0.01, 0.2, N)),
        energy=EnergyRates(1e-9, 2.0, 1e-6, 1e-6),
    )
    return result, prices


def by_loops(history, prices, rounds):
    """The first rounds of a history, one client after the other."""
    down, up = prices.traffic.bytes_down, prices.traffic.bytes_up
    fleet, flops = prices.devices, prices.flops
    seconds = clients = operations = joules = 0.0
    for r in range(rounds):
        slowest = 0.0
        for i, k in zip(history["cohort"][r], history["num_steps"][r], strict=True):
            if k == 0:
                continue
            computing = k * float(fleet.seconds_per_step[i])
            sending = 8e-6 * (down / float(fleet.download_mbps[i]) + up / 5.0)
            slowest = max(slowest, computing + sending)
            work = flops.start + flops.probe + k * flops.step + flops.finish
            clients, operations = clients + 1, operations + work
            joules += 1e-9 * work + 2.0 * computing + 1e-6 * (down + up)
        seconds += slowest
    return Spent(rounds, seconds, clients * down, clients * up, operations, joules)


@pytest.mark.slow
def test_the_cost_of_a_real_run(run):
    result, prices = run
    history, evaluations = result.history, result.evaluations
    assert np.any(history["num_steps"] == 0) and np.any(history["num_steps"] == 2)
    # 64 x 10 weights and 10 biases of 4 bytes.
    assert prices.traffic.bytes_down == prices.traffic.bytes_up == 4 * 650
    assert prices.flops.step > 10 * (2 + 2) * 640  # one forward and one backward product
    target = evaluations["accuracy"][2]  # reached by the third evaluation at the latest
    first = np.flatnonzero(evaluations["accuracy"] >= target)[0]
    rounds = EVERY * (int(first) + 1)
    found = fo.costs.cost_to_target(result, target, prices)
    np.testing.assert_allclose(found, by_loops(history, prices, rounds), rtol=1e-12)
    assert found.rounds == fo.metrics.rounds_to_target(
        evaluations["round"], evaluations["accuracy"], target
    )
    assert fo.costs.cost_to_target(result, 1.01, prices) is None
    every = fo.costs.spent(history, prices)
    for r in (1, 7, ROUNDS):
        row = [column[r - 1] for column in every]
        np.testing.assert_allclose(row, by_loops(history, prices, r), rtol=1e-12)


@pytest.mark.slow
def test_a_loss_is_to_be_small(run):
    result, prices = run
    losses = result.evaluations["loss"]
    target = np.sort(losses)[2]
    found = fo.costs.cost_to_target(result, target, prices, metric="loss", maximise=False)
    assert found.rounds == EVERY * (np.flatnonzero(losses <= target)[0] + 1)


def history(count, steps=2, first_round=0):
    return {
        "round": np.arange(first_round, first_round + count),
        "cohort": np.tile([0, 1], (count, 1)),
        "num_steps": np.full((count, 2), steps),
    }


PRICES = Prices(TRAFFIC, Flops(step=10.0, probe=5.0), Devices(20.0, 5.0, 0.5), EnergyRates(1.0))
# A round of two clients: the time of two steps and of 32 and 16 kilobits; 2 (5 + 2 * 10) operations.
ROUND = Spent(1, 1.0 + 0.032 / 20 + 0.016 / 5, 8_000, 4_000, 50, 50)


def test_a_run_that_was_resumed_counts_its_own_rounds():
    """Round 104 of the run is the fourth of the history."""
    result = SimpleNamespace(
        history=history(4, first_round=100),
        evaluations={"round": np.array([102, 104]), "accuracy": [0.2, 0.9]},
    )
    for target, rounds in ((0.1, 2), (0.25, 4)):
        found = fo.costs.cost_to_target(result, target, PRICES)
        np.testing.assert_allclose(found, rounds * np.array(ROUND))
    assert fo.costs.cost_to_target(result, 0.95, PRICES) is None


def test_what_has_no_price_is_not_counted():
    assert fo.costs.spent(history(1), Prices()) == Spent(1)
    assert fo.costs.spent(history(1), Prices(TRAFFIC)) == Spent(1, bytes_down=8e3, bytes_up=4e3)


def test_a_probe_takes_time_but_is_no_local_step():
    """Two local steps and a full-batch gradient of three minibatches."""
    timed = PRICES._replace(probe_steps=3, energy=EnergyRates(1.0, joules_per_second=4.0))
    found = fo.costs.spent(history(1), timed)
    assert found.seconds == pytest.approx(ROUND.seconds + 3 * 0.5)
    assert found.flops == ROUND.flops
    assert found.joules == pytest.approx(ROUND.flops + 2 * (2 + 3) * 0.5 * 4.0)


def test_a_deadline_holds_the_server():
    lost = history(2) | {"num_steps": np.array([[2, 0], [2, 2]])}
    waits = PRICES._replace(deadline=30.0)
    assert fo.costs.spent(lost, waits).seconds[0] == 30.0
    goes_on = waits._replace(await_absent=False)
    assert fo.costs.spent(lost, goes_on).seconds[0] == pytest.approx(ROUND.seconds)
    assert fo.costs.spent(lost, waits).bytes_up.tolist() == [2_000, 6_000]


def test_many_runs_at_once_and_the_history_of_run_rounds():
    """Two runs side by side, the second with the double of steps; fields in place of columns."""
    both = jax.tree.map(lambda *x: np.stack(x), history(3), history(3, steps=4))
    found = fo.costs.spent(both, PRICES)
    assert found.seconds.shape == (2, 3)
    for row, steps in enumerate((2, 4)):
        info = SimpleNamespace(**history(3, steps))
        alone = fo.costs.spent(info, PRICES)
        for many, one in zip(found[1:], alone[1:], strict=True):
            np.testing.assert_array_equal(many[row], one)


# Energy ---------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
FLEET = Devices(20.0, 5.0, RNG.uniform(0.1, 2.0, 6))
EACH = EnergyRates(
    RNG.uniform(1e-11, 1e-9, 6), RNG.uniform(1, 9, 6), 1e-6, RNG.uniform(1e-6, 1e-5, 6)
)


@pytest.mark.parametrize("rates", [EnergyRates(1e-10, 2.5, 1e-6, 3e-6), EACH])
def test_joules_of_clients_that_differ(rates):
    """Not of those who drop out, and the server's operations are not a client's."""
    cohort = np.stack([RNG.permutation(6)[:3] for _ in range(12)])
    steps = RNG.integers(1, 9, (12, 3))
    steps[2:5, 0] = 0
    cohort[3, 0] = -1
    flops = Flops(step=3e9, probe=5e9, start=1e6, finish=2e6, server=7e9)
    per_flop, per_second, per_down, per_up = (np.broadcast_to(x, 6) for x in rates)
    joules = np.zeros(12)
    for (r, _), k in np.ndenumerate(steps):
        i = cohort[r, _]
        if k > 0:
            joules[r] += per_second[i] * k * FLEET.seconds_per_step[i]
            joules[r] += per_flop[i] * (5e9 + 1e6 + k * 3e9 + 2e6)
            joules[r] += per_down[i] * 4_000 + per_up[i] * 2_000
    history = {"cohort": cohort, "num_steps": steps}
    found = fo.costs.spent(history, Prices(TRAFFIC, flops, FLEET, rates)).joules
    np.testing.assert_allclose(found, np.cumsum(joules), rtol=1e-13)


def test_what_has_no_rate_needs_nothing():
    """Only bytes; only operations."""
    by_bytes = Prices(TRAFFIC, energy=EnergyRates(joules_per_byte_up=1e-3))
    assert fo.costs.spent(history(1), by_bytes).joules == pytest.approx(2 * 2)
    by_flops = Prices(flops=Flops(step=2e9), energy=EnergyRates(1e-9))
    assert fo.costs.spent(history(1), by_flops).joules == pytest.approx(2 * 2 * 2.0)


# Errors ---------------------------------------------------------------------------------------


ENDED = SimpleNamespace(history=history(1), evaluations={"round": [1], "accuracy": [0.5]})


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"devices": Devices(1.0, 1.0, 1.0)}, "prices must hold traffic"),
        ({"traffic": 4_000}, "traffic must be a Cost.*got 4000"),
        ({"probe_steps": -1}, "probe_steps must lie in"),
        ({"energy": 1.0}, "energy must be a EnergyRates.*got 1.0"),
        ({"energy": EnergyRates(1.0)}, "flops must be given"),
        (
            {"energy": EnergyRates(joules_per_second=1.0)},
            "devices must be given where joules_per_s",
        ),
        ({"energy": EnergyRates(joules_per_byte_up=-1.0)}, "joules_per_byte_up must lie in"),
        ({"energy": EnergyRates(joules_per_byte_up=[0.0])}, r"cohort.*-1 to 0 \(N=1\)"),
        ({"energy": EnergyRates(0.0, 0.0, [1.0], [1.0] * 3)}, "joules_per_byte_up must be.*N=1"),
        ({"traffic": TRAFFIC, "devices": Devices(1.0, 1.0, [1.0])}, r"cohort.*\(N=1\)"),
    ],
)
def test_bad_prices_are_named(prices, message):
    with pytest.raises(ValueError, match=message):
        fo.costs.spent(history(1), Prices(**prices))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fo.costs.cost_to_target(ENDED, 0.5, metric="f1"), "metric.*evaluated.*test set"),
        (lambda: fo.costs.cost_to_target(ENDED, np.nan), "target must lie in"),
        (lambda: fo.costs.spent({}, Prices()), "history must hold 'cohort'"),
        (
            lambda: fo.costs.spent({"cohort": [[0, 1]], "num_steps": [[1]]}, Prices()),
            r"cohort and num_steps \[R, S\], got shapes \[1, 2\] and \[1, 1\]",
        ),
        (
            lambda: fo.costs.spent({"cohort": [[0]], "num_steps": [[-1]]}, Prices()),
            "num_steps must lie in",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
