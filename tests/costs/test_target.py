"""What was spent until a target was reached: a real run, and the printed table of a paper."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
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
    every = fo.costs.cost_to_target(result.history, target, prices, metric="loss", maximise=False)
    assert every.rounds == np.flatnonzero(result.history["loss"] <= target)[0] + 1


def history(accuracy, steps=2, first_round=0):
    count = len(accuracy)
    return {
        "round": np.arange(first_round, first_round + count),
        "cohort": np.tile([0, 1], (count, 1)),
        "num_steps": np.full((count, 2), steps),
        "accuracy": np.array(accuracy),
    }


PRICES = Prices(TRAFFIC, Flops(step=10.0, probe=5.0), Devices(20.0, 5.0, 0.5), EnergyRates(1.0))
# A round of two clients: the time of two steps and of 32 and 16 kilobits; 2 (5 + 2 * 10) operations.
ROUND = Spent(1, 1.0 + 0.032 / 20 + 0.016 / 5, 8_000, 4_000, 50, 50)


def test_a_run_that_was_resumed_counts_its_own_rounds():
    """Round 102 of the run is the third of the history."""
    later = history([0.1, 0.2, 0.3, 0.9], first_round=100)
    found = fo.costs.cost_to_target(later, 0.25, PRICES)
    np.testing.assert_allclose(found, 3 * np.array(ROUND))
    result = SimpleNamespace(
        history=later, evaluations={"round": np.array([102, 104]), "accuracy": [0.2, 0.9]}
    )
    found = fo.costs.cost_to_target(result, 0.25, PRICES)
    np.testing.assert_allclose(found, 4 * np.array(ROUND))


def test_what_has_no_price_is_not_counted():
    found = fo.costs.cost_to_target(history([0.1, 0.5]), 0.5)
    assert found == Spent(2)
    assert fo.costs.spent(history([0.1]), Prices(TRAFFIC))._replace(rounds=None) == Spent(
        None, bytes_down=8_000.0, bytes_up=4_000.0
    )


def test_a_probe_takes_time_but_is_no_local_step():
    """Two local steps and a full-batch gradient of three minibatches."""
    timed = PRICES._replace(probe_steps=3, energy=EnergyRates(1.0, joules_per_second=4.0))
    found = fo.costs.cost_to_target(history([0.5]), 0.5, timed)
    assert found.seconds == pytest.approx(ROUND.seconds + 3 * 0.5)
    assert found.flops == ROUND.flops
    assert found.joules == pytest.approx(ROUND.flops + 2 * (2 + 3) * 0.5 * 4.0)


def test_a_deadline_holds_the_server():
    lost = history([0.5, 0.5]) | {"num_steps": np.array([[2, 0], [2, 2]])}
    waits = PRICES._replace(deadline=30.0)
    assert fo.costs.spent(lost, waits).seconds[0] == 30.0
    goes_on = waits._replace(await_absent=False)
    assert fo.costs.spent(lost, goes_on).seconds[0] == pytest.approx(ROUND.seconds)
    assert fo.costs.spent(lost, waits).bytes_up.tolist() == [2_000, 6_000]


def test_run_rounds_has_a_history_too():
    info = SimpleNamespace(**history([0.1, 0.5]))
    assert fo.costs.cost_to_target(info, 0.5, PRICES) == fo.costs.cost_to_target(
        history([0.1, 0.5]), 0.5, PRICES
    )


# Comparisons ----------------------------------------------------------------------------------

DOUBLE = PRICES._replace(traffic=Cost(8_000, 4_000, 0, 0, 0, 0))
RUNS = {
    "baseline": (history([0.2, 0.4, 0.6, 0.5]), PRICES),
    "faster": (history([0.6, 0.8, 0.7, 0.7]), DOUBLE),
    "never": (history([0.1, 0.5, 0.1, 0.1]), PRICES),
}


def test_each_run_against_the_baseline():
    baseline, faster, never = fo.costs.compare(RUNS, "baseline")
    assert [row.best for row in (baseline, faster, never)] == [0.6, 0.8, 0.5]
    np.testing.assert_allclose(baseline.to_best, 3 * np.array(ROUND))
    assert baseline.to_match == baseline.to_best and set(baseline.factor) == {1.0}
    assert faster.to_best.rounds == 2 and faster.to_match.rounds == 1 and faster.reached
    assert faster.factor.bytes_up == pytest.approx(2 / 3)
    assert faster.factor.flops == pytest.approx(1 / 3)
    assert never.to_best.rounds == 2 and not never.reached
    assert never.to_match is None and never.factor is None


def test_a_run_that_never_matches_may_count_with_all_it_spent():
    """As the GHBM paper does for MimeMom: r = T."""
    never = fo.costs.compare(RUNS, "baseline", unreached="budget")[2]
    assert not never.reached and never.to_match.rounds == 4
    assert never.factor.seconds == pytest.approx(4 / 3)


def test_smaller_may_be_better():
    row = fo.costs.compare(RUNS, "never", maximise=False)[0]
    assert row.best == 0.2 and not row.reached


def test_the_table_has_the_papers_layout():
    big = {name: (h, p._replace(traffic=Cost(10**9, 5 * 10**8, 0, 0, 0, 0), devices=None))
           for name, (h, p) in RUNS.items()}  # fmt: skip
    lines = fo.costs.comparison_table(fo.costs.compare(big, "baseline")).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0][:6] == ["run", "best", "rounds", "down (GB)", "up (GB)", "FLOPs (1e12)"]
    assert cells[0][7:9] == ["rounds to match", "down (GB) to match"]
    # Three rounds of two clients with a gigabyte down and half of one up.
    assert cells[2][:5] == ["baseline", "0.6", "3", "6", "3"]
    assert cells[3][:5] == ["faster", "0.8", "2", "4", "2"]
    assert cells[3][7:10] == ["1 (x0.333)", "2 (x0.333)", "1 (x0.333)"]
    assert cells[4][7:] == ["-"] * 5
    assert len({len(row) for row in cells}) == 1 and "hours" not in lines[0]


# Table 4 of the FedGBO paper as printed, with Table 7's entry (SGDm, K = 10, in units of 10^8) first:
# upload and FLOPs (in units of 10^12) to the best accuracy, and to match FedAvg's.
TABLE_4 = {
    "CIFAR100": "fedavg 49.8 112 120, fedprox 50.2 115 124 115 124, fedmax 49.8 112 120 65.2 69.7,"
    "adaptive_fedopt 49.8 112 120 59.4 63.5, mfl 50.6 231 125 126 68.3,"
    "mimelite 65.7 231 163 130 92.0, fedgbo 50.2 115 124 22.1 23.8",
    "Sent140": "fedavg 0.0260 3.9 0.27, fedprox 0.0290 4.0 0.31, adaptive_fedopt 0.0260 3.4 0.24,"
    "mfl 0.0320 6.1 0.26 6.1 0.26, mimelite 0.0350 6.9 0.32, fedgbo 0.0290 3.4 0.27 1.2 0.09",
    "FEMNIST": "fedavg 31.9 423 416, fedprox 32.2 472 469 423 420, fedmax 31.9 472 464 423 416,"
    "adaptive_fedopt 31.9 433 426 389 383, mfl 32.4 846 423 418 209,"
    "mimelite 49.0 720 544 282 213, fedgbo 32.2 447 444 447 444",
    "Shakespeare": "fedavg 118 21.0 409, fedprox 118 20.4 396 13.0 396,"
    "fedmax 118 21.0 409 12.1 235, adaptive_fedopt 118 21.0 409 16.1 314, mfl 118 37.8 368,"
    "mimelite 2180 40.8 7325 7.6 1373, fedgbo 118 20.6 401 8.9 173",
}
# 13.0 are 3,050 rounds, and 252: the FLOPs of the row's left side are printed twice.
DOES_NOT_FIT = [("Shakespeare", "fedprox", "13.0", "396")]


def test_table_4_of_the_fedgbo_paper():
    """One number of rounds, a multiple of 50, explains upload and FLOPs; a GB there is 2^30 bytes."""
    sgd, sgdm = fo.optimizers.sgd(0.1), fo.optimizers.sgdm(0.1, 0.9)
    algorithms = {
        "fedavg": fo.fedavg(sgd), "fedprox": fo.fedprox(sgd, 0.1), "fedmax": fo.fedmax(sgd, 0.1),
        "adaptive_fedopt": fo.adaptive_fedopt(sgd, sgdm), "mfl": fo.mfl(sgdm),
        "mimelite": fo.mimelite(sgdm), "fedgbo": fo.fedgbo(sgdm),
    }  # fmt: skip
    wrong, evaluated = [], slice(49, None, 50)
    for task_name, rows in TABLE_4.items():
        task = fo.costs.flops_task(task_name)
        variables = fo.Variables({"x": jax.ShapeDtypeStruct((task.num_parameters,), jnp.float32)})
        played = {
            "cohort": np.tile(np.arange(task.cohort_size), (5_000, 1)),
            "num_steps": np.full((5_000, task.cohort_size), 10),
        }
        for row in rows.split(","):
            name, per_round, *printed = row.split()
            traffic = fo.costs.of(algorithms[name], variables)
            prices = Prices(traffic, Flops(step=float(per_round) * 1e8 / 10))
            totals = fo.costs.spent(played, prices)
            for upload, flops in zip(printed[::2], printed[1::2], strict=True):
                fits = _rounds_to(totals.bytes_up[evaluated] / 2**30, upload)
                fits &= _rounds_to(totals.flops[evaluated] / 1e12, flops)
                if not fits.any():
                    wrong.append((task_name, name, upload, flops))
    assert wrong == DOES_NOT_FIT


def _rounds_to(values, printed):
    digits = len(printed.partition(".")[2])
    return np.abs(values - float(printed)) <= 0.5 * 10**-digits * (1 + 1e-9)


# Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fo.costs.cost_to_target(history([0.5]), 0.5, metric="f1"),
            "history must hold 'f1'.*accuracy",
        ),
        (
            lambda: fo.costs.cost_to_target(
                SimpleNamespace(history=history([0.5]), evaluations={}), 0.5
            ),
            "metric must be one of the evaluated.*test set",
        ),
        (lambda: fo.costs.cost_to_target(history([0.5]), np.nan), "target must lie in"),
        (
            lambda: fo.costs.cost_to_target(history([0.5]), 0.5, metric="cohort"),
            "metric 'cohort' must have one value per row",
        ),
        (
            lambda: fo.costs.spent(history([0.5]), Prices(devices=Devices(1.0, 1.0, 1.0))),
            "prices must hold traffic",
        ),
        (
            lambda: fo.costs.spent(history([0.5]), Prices(traffic=4_000)),
            "traffic must be a Cost.*got 4000",
        ),
        (
            lambda: fo.costs.spent({"cohort": [[0, 1]], "num_steps": [[1]]}, Prices()),
            r"cohort and num_steps \[R, S\], got shapes \[1, 2\] and \[1, 1\]",
        ),
        (
            lambda: fo.costs.spent(history([0.5]), Prices(probe_steps=-1)),
            "probe_steps must lie in",
        ),
        (
            lambda: fo.costs.spent(history([0.5]), Prices(energy=EnergyRates(1.0))),
            "flops must be given",
        ),
        (lambda: fo.costs.compare(RUNS, "fedavg"), "baseline must be one of 'baseline'"),
        (
            lambda: fo.costs.compare(RUNS, "baseline", unreached="zero"),
            "unreached must be one of 'none', 'budget'",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
