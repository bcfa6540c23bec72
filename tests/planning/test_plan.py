"""`plan` against arithmetic, exhaustive search and the bounds room."""

import json
import math

import jax
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.core.compatibility import enable_x64
from fedjax_opt.planning import candidates
from fedjax_opt.planning.setting import Given, as_numbers, scaled

CONSTANTS = fo.bounds.FedAvgConstants(
    smoothness=4.0,
    strong_convexity=0.1,
    initial_loss=4.1,
    gradient_bound=0.5,
    heterogeneity=20.0,
    noise=3.0,
    optimal_loss=0.2,
    cohort_size=60,
)
SIZE, DOWN, UP, STEP = 6.71, 20.0, 5.0, 0.017
PHONES = fo.costs.devices(DOWN, UP, STEP)
HOURS = 36_000.0


def oracle(c, K, eta, R, N=None):
    """Theorem 1 with a fixed K, written again from the paper."""
    kappa = c.smoothness / c.strong_convexity
    A = kappa * c.initial_loss - c.optimal_loss
    drift = (8 + 4 / (N or c.cohort_size)) * c.gradient_bound**2 * K**2
    Z = c.noise + 6 * c.smoothness * c.heterogeneity + drift
    return 2 * kappa * A / (eta * K * R) + eta * kappa * c.smoothness * Z


def seconds_of(K):
    return SIZE / DOWN + SIZE / UP + STEP * K


@pytest.fixture(scope="module")
def plan():
    return fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=HOURS, num_clients=300)


def test_costs_are_arithmetic(plan):
    """Whole rounds of c + beta K seconds, |x|/8 bytes each way, N clients of 300."""
    row = plan.recommended
    K, R = plan.local_steps, math.floor(HOURS / seconds_of(plan.local_steps))
    assert row.runs == ((K, R),) and (row.rounds, row.local_steps) == (R, K * R)
    assert row.seconds == pytest.approx(R * seconds_of(K), rel=1e-12)
    assert row.total_bytes == pytest.approx(R * 60 * 2 * SIZE * 1e6 / 8, rel=1e-12)
    assert row.client_bytes == pytest.approx(R * 60 / 300 * 2 * SIZE * 1e6 / 8, rel=1e-12)
    assert row.bound == pytest.approx(oracle(CONSTANTS, K, row.learning_rate, R), rel=1e-9)
    assert row.joules is None
    real = oracle(CONSTANTS, K, plan.learning_rate, HOURS / seconds_of(K))
    assert plan.bound.value == pytest.approx(real, rel=1e-12)
    assert sum(plan.bound.terms.values()) == pytest.approx(real, rel=1e-12)
    assert plan.bound.holds and plan.limited_by == "seconds"


def test_k_rounds_has_the_best_initial_steps():
    """Within 2% of its bound from any other K_0: every one is asked for, on a grid."""

    def k_rounds(**chosen):
        found = fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=HOURS, **chosen)
        return {row.name: row.bound for row in found.forecasts}["K-rounds"]

    others = [k_rounds(local_steps=first) for first in (1, 3, 10, 30, 60, 100, 150, 300)]
    assert max(others) > 1.1 * min(others)
    assert k_rounds() <= 1.02 * min(others)


def random_problems():
    rng = np.random.default_rng(0)
    for _ in range(12):
        draw = lambda low, high: float(np.exp(rng.uniform(np.log(low), np.log(high))))  # noqa: E731
        L = draw(0.1, 10)
        yield fo.bounds.FedAvgConstants(
            smoothness=L,
            strong_convexity=L / draw(1.5, 100),
            initial_loss=draw(0.5, 5),
            gradient_bound=draw(0.003, 3),
            heterogeneity=draw(1e-4, 10),
            noise=draw(1e-4, 10),
            optimal_loss=0.1,
            cohort_size=60,
        )


def test_nothing_is_better():
    """No whole K with any eta on a fine grid, no neighbour of both; K and eta are `best_plan`'s."""
    link = fo.bounds.Link(SIZE, DOWN, UP, STEP)
    steps = np.arange(1, 1001)[:, None]
    seen = set()
    for constants in random_problems():
        found = fo.plan(SIZE, PHONES, constants=constants, seconds=200.0)
        K, eta, limit = found.local_steps, found.learning_rate, 0.25 / constants.smoothness
        grid = np.minimum(np.geomspace(eta / 3, eta * 3, 201), limit)[None]
        rounds = 200.0 / seconds_of(steps)
        value = oracle(constants, K, eta, 200.0 / seconds_of(K))
        assert found.bound.value == pytest.approx(value, rel=1e-12)
        assert value <= oracle(constants, steps, grid, rounds).min() * (1 + 1e-12)
        for near in (eta * 1.01, eta / 1.01):
            if near <= limit:
                assert value < oracle(constants, K, near, 200.0 / seconds_of(K))
        seen |= {"clipped" if found.rate_clipped else "free", "one" if K == 1 else "more"}
        theirs = fo.bounds.best_plan(constants, fo.bounds.Seconds(200.0, link))
        assert int(theirs.local_steps) == K
        assert eta == pytest.approx(float(theirs.learning_rate), rel=1e-9)
    assert seen == {"clipped", "free", "one", "more"}


BUDGETS = {"seconds": HOURS}
# What is changed, and which regime that is: each output's derivative has another form in it.
REGIMES = {
    "free": ({}, {}, BUDGETS),
    "eta at its limit": ({"smoothness": 40.0, "heterogeneity": 1e-4, "noise": 0.0}, {}, BUDGETS),
    "K at 1": ({"gradient_bound": 30.0}, {}, BUDGETS),
    "eta given": ({}, {"learning_rate": 2e-5}, BUDGETS),
    "K given": ({}, {"local_steps": 7}, BUDGETS),
    "two budgets": ({}, {}, {"seconds": HOURS, "rounds": 18_629}),
    "rounds": ({}, {}, {"rounds": 300}),
    "one round": ({"gradient_bound": 1e-3}, {}, {"seconds": 5.0}),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_elasticities_are_slopes_between_half_and_twice(regime):
    """Of K*, eta, rounds, seconds, bytes and the bound, by each input."""
    changes, chosen, budgets = REGIMES[regime]
    constants = CONSTANTS._replace(**changes)
    found = fo.plan(SIZE, PHONES, constants=constants, **chosen, **budgets)
    given = Given(chosen.get("learning_rate"), chosen.get("local_steps"), None, 1000, 0.01)
    names = list(found.elasticities)
    settings = [scaled(found.setting, {name: f}) for name in names for f in (0.5, 2.0)]
    solved = candidates.solve(settings, [60] * len(settings), given)
    logs = np.array([real_outputs(s, b) for s, b in zip(settings, solved, strict=True)])
    measured = (logs[1::2] - logs[::2]) / np.log(4)
    outputs = ["local steps", "learning rate", "rounds", "seconds", "bytes", "bound"]
    ours = np.array([[found.elasticities[name][output] for output in outputs] for name in names])
    np.testing.assert_allclose(ours[:, :-1], measured[:, :-1], atol=1e-8)
    np.testing.assert_allclose(ours[:, -1], measured[:, -1], atol=0.03)  # K is whole there
    assert np.abs(ours).max() > 0.4
    assert {"time budget", "round budget"} & set(names)


def real_outputs(setting, best):
    """Outputs at the real optimum, from the runtime model and the oracle."""
    K, eta = max(float(best.real_steps), 1.0), float(best.real_rate)
    size = float(setting.megabits_down)
    d = setting.devices
    t = float(size / d.download_mbps + size / d.upload_mbps + K * d.seconds_per_step)
    R = float(min(setting.seconds / t, setting.rounds))
    bound = float(oracle(setting.constants, K, eta, R))
    return np.log([K, eta, R, R * t, R * 2 * size, bound])


def test_the_regimes_are_what_they_are_called():
    """Otherwise the test above would test one of them seven times."""

    def planned(regime):
        changes, chosen, budgets = REGIMES[regime]
        return fo.plan(SIZE, PHONES, constants=CONSTANTS._replace(**changes), **chosen, **budgets)

    free = planned("free")
    assert 3 < free.local_steps < 100 and not free.rate_clipped
    limited = planned("eta at its limit")
    assert limited.rate_clipped and limited.local_steps > 1
    assert limited.learning_rate == pytest.approx(0.25 / 40.0)
    assert planned("K at 1").real_steps < 1 == planned("K at 1").local_steps
    assert planned("eta given").learning_rate == 2e-5
    assert planned("K given").local_steps == 7
    both = planned("two budgets")
    assert both.real_steps == pytest.approx((HOURS / 18_629 - seconds_of(0)) / STEP, rel=1e-6)
    one = planned("one round")
    assert one.recommended.rounds == 1
    assert one.local_steps == math.floor((5.0 - seconds_of(0)) / STEP)


def test_what_ifs_are_plans(plan):
    """Half and twice of an input give what a plan with it gives."""
    half, twice = plan.what_ifs["time budget"]
    for factor, other in ((0.5, half), (2.0, twice)):
        again = fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=HOURS * factor)
        assert other == (again.local_steps, again.learning_rate, again.bound.value)
    smaller = fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=HOURS, cohort_size=30)
    assert plan.what_ifs["cohort size"][0].bound == pytest.approx(smaller.bound.value, rel=1e-12)
    tight = fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=3.0)
    assert tight.what_ifs["time budget"][0] is None  # 1.5 s are not enough for a round
    near_one = CONSTANTS._replace(strong_convexity=3.0)
    doubled = fo.plan(SIZE, PHONES, constants=near_one, seconds=HOURS).what_ifs["strong convexity"]
    assert doubled[0] is not None and doubled[1] is None  # mu = 6 > L = 4


def test_bytes_and_rounds_become_rounds():
    """Each byte budget is the number of rounds that it pays for; the tightest ends the run."""
    each = 2 * SIZE * 1e6 / 8
    for budgets, rounds, limited_by in (
        ({"rounds": 500}, 500, "rounds"),
        ({"total_bytes": 60 * each * 400.5}, 400, "total_bytes"),
        ({"client_bytes": each * 60 / 300 * 77}, 77, "client_bytes"),
        ({"rounds": 500, "total_bytes": 60 * each * 400, "seconds": 1e9}, 400, "total_bytes"),
    ):
        found = fo.plan(SIZE, PHONES, constants=CONSTANTS, num_clients=300, **budgets)
        assert (found.recommended.rounds, found.limited_by) == (rounds, limited_by)
        assert found.recommended.seconds == pytest.approx(rounds * seconds_of(found.local_steps))
    everyone = fo.plan(SIZE, PHONES, constants=CONSTANTS, client_bytes=each * 77)
    assert everyone.recommended.rounds == 77
    uneven = fo.plan((8.0, 2.0), PHONES, constants=CONSTANTS, total_bytes=60 * 10e6 / 8 * 9)
    assert uneven.recommended.rounds == 9


def test_a_better_link_never_costs_time():
    """At equal rounds and K, more bandwidth and faster steps take less time, and as many bytes."""

    def rows(*devices):
        found = fo.plan(
            SIZE, fo.costs.devices(*devices), rounds=1000, cohort_size=60, local_steps=20
        )
        return {row.name: row for row in found.forecasts}

    slow = rows(20.0, 5.0, 0.017)
    for faster in ((40.0, 5.0, 0.017), (20.0, 6.0, 0.017), (20.0, 5.0, 0.01)):
        fast = rows(*faster)
        for name in slow:
            assert fast[name].seconds < slow[name].seconds
            assert fast[name].total_bytes == slow[name].total_bytes


def test_energy_is_that_of_every_round():
    """Summed over rounds and clients, from the costs room."""
    devices = fo.costs.devices(20.0, 5.0, 0.5)
    rates = fo.costs.EnergyRates(
        joules_per_second=3.0, joules_per_byte_down=1e-7, joules_per_byte_up=2e-7
    )
    found = fo.plan(8.0, devices, rounds=50, cohort_size=4, local_steps=6, energy=rates)
    row = {row.name: row for row in found.forecasts}["K-rounds"]
    history = {
        "cohort": np.tile(np.arange(4), (50, 1)),
        "num_steps": np.repeat(np.repeat(*np.array(row.runs).T)[:, None], 4, axis=1),
    }
    prices = fo.costs.Prices(
        traffic=fo.costs.Cost(10**6, 10**6, 0, 0, 0, 0), devices=devices, energy=rates
    )
    assert row.joules == pytest.approx(fo.costs.spent(history, prices).joules[-1], rel=1e-9)
    assert row.rounds == 50 and found.schedule == "K-rounds" and found.bound is None


def test_total_bytes_speak_against_many_clients():
    """A budget of bytes is shared by a cohort: with twice the clients, half the rounds."""
    total = 100 * 2 * SIZE * 1e6 / 8 * 60
    found = fo.plan(SIZE, PHONES, constants=CONSTANTS, total_bytes=total, cohort_size=[60, 30, 120])
    assert [(c.cohort_size, c.rounds) for c in found.cohorts] == [(30, 200), (60, 100), (120, 50)]
    assert [c.total_bytes for c in found.cohorts] == pytest.approx([total] * 3)
    for c in found.cohorts:
        value = oracle(CONSTANTS, c.local_steps, c.learning_rate, c.rounds, c.cohort_size)
        assert c.bound == pytest.approx(value, rel=1e-9)
    assert found.cohort_size == 30
    # Noise that a cohort averages speaks for them, where rounds are what is short.
    noisy = {"constants": CONSTANTS, "rounds": 100, "client_variance": 1e5}
    assert fo.plan(SIZE, PHONES, cohort_size=[30, 60, 120], **noisy).cohort_size == 120


@pytest.mark.slow
def test_a_fleet_and_a_choice_of_cohorts():
    """With unlike devices a round waits for its slowest: exact, and a reason for few."""
    rng = np.random.default_rng(1)
    fleet = fo.costs.devices(20.0 * rng.uniform(0.2, 2, 12), 5.0, 0.02 * rng.uniform(0.2, 5, 12))
    arguments = {"constants": CONSTANTS, "seconds": HOURS, "client_variance": 50.0}
    found = fo.plan(SIZE, fleet, cohort_size=[1, 3, 12], tolerance=0.0, **arguments)
    by_size = {choice.cohort_size: choice for choice in found.cohorts}
    assert list(by_size) == [1, 3, 12]
    for size, choice in by_size.items():
        times = (
            SIZE / fleet.download_mbps
            + SIZE / fleet.upload_mbps
            + fleet.seconds_per_step * choice.local_steps
        )
        exact = fo.costs.expected_maximum(times, size)
        assert choice.round_seconds == pytest.approx(float(exact), rel=1e-9)
        noisy = CONSTANTS._replace(noise=CONSTANTS.noise + 50.0 / size)
        value = oracle(
            noisy, choice.local_steps, choice.learning_rate, HOURS / choice.round_seconds, size
        )
        assert choice.bound == pytest.approx(value, rel=1e-9)
    best = min(found.cohorts, key=lambda choice: choice.bound)
    assert found.cohort_size == best.cohort_size == 3
    assert "smallest bound of those compared" in " ".join(found.notes)
    # Where a large cohort is only slightly better, the small one is taken, and the notes say so.
    patient = fo.plan(SIZE, fleet, cohort_size=[1, 3, 12], **arguments)
    assert patient.cohort_size == 1
    assert "as good as that of N = 3" in " ".join(patient.notes)


@pytest.mark.parametrize("name", ["Sent140", "Shakespeare"])
def test_a_tuned_run_is_recommended_for_its_own_rounds(name):
    """For as many rounds it is the best; for time, compute that is dear makes K smaller."""
    task = fo.planning.paper_tasks()[name]
    tuned = fo.planning.TunedRun(
        task.local_steps, task.learning_rate, 10_000, task.cohort_size, math.log(task.num_classes)
    )
    # As plain constants: what `plan` makes of a TunedRun itself is tested with the command.
    model, devices = task.model_megabits, task.devices
    same = fo.plan(model, devices, constants=tuned.constants, rounds=10_000)
    assert same.local_steps == task.local_steps
    assert same.learning_rate == pytest.approx(task.learning_rate, rel=1e-9)
    seconds = 10_000 * float(fo.costs.client_seconds(devices, task.local_steps, model, model))
    assert same.recommended.seconds == pytest.approx(seconds, rel=1e-6)
    timed = fo.plan(model, devices, constants=tuned.constants, seconds=seconds)
    assert timed.local_steps < task.local_steps
    assert timed.learning_rate <= task.learning_rate * (1 + 1e-9)
    # kappa and the initial loss only scale the bound.
    other = tuned._replace(initial_loss=9.0, condition_number=77.0)
    other = fo.plan(model, devices, constants=other.constants, seconds=seconds)
    assert other.local_steps == timed.local_steps
    assert other.learning_rate == pytest.approx(timed.learning_rate, rel=1e-9)


def test_single_precision_outside_changes_nothing(plan):
    """A plan is made in double precision, whatever JAX computes in, and leaves that as it was."""
    with enable_x64(False):
        again = fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=HOURS, num_clients=300)
        assert jax.numpy.zeros(()).dtype == np.float32
    assert again.local_steps == plan.local_steps
    assert again.learning_rate == pytest.approx(plan.learning_rate, rel=1e-6)
    assert again.bound.value == pytest.approx(plan.bound.value, rel=1e-6)


def test_json_comes_back(plan):
    """As plain data it survives JSON; what is not limited is null."""
    data = fo.planning.as_dict(plan)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["recommended"]["rounds"] == plan.recommended.rounds
    assert data["setting"]["rounds"] is None and data["setting"]["seconds"] == HOURS


def test_the_table_says_it(plan):
    """The recommendation, its costs, every schedule, every input that is not 0; 80 columns."""
    text = fo.planning.table(plan, "A title", origin="measured")
    assert text.startswith("A title\n") and max(map(len, text.splitlines())) <= 80
    assert f"K = {plan.local_steps} in every round" in text
    assert f"eta = {plan.learning_rate:.3g}" in text
    assert f"{plan.recommended.rounds:,}, of" in text and "10 h" in text and "measured" in text
    assert f"cohort=60,\n      local_steps={plan.local_steps})" in text
    assert all(f"\n  {row.name}" in text for row in plan.forecasts)
    assert all(f"\n  {name}" in text for name in plan.elasticities if name != "client variance")
    assert "holds" in text and "FAILS" not in text


def test_a_broken_assumption_is_in_the_plan():
    """eta above 1/(4L) is planned with, and named; so is a negative F*."""
    found = fo.plan(SIZE, PHONES, constants=CONSTANTS, seconds=HOURS, learning_rate=0.5)
    assert found.bound.violated() == ("eta <= 1/(4L)",)
    text = fo.planning.table(found)
    assert "FAILS" in text and "above 1/(4L) = 0.0625" in text
    below = fo.plan(SIZE, PHONES, constants=CONSTANTS._replace(optimal_loss=-1.0), seconds=HOURS)
    assert "F* is negative" in " ".join(below.notes)


WRONG = [
    ({"seconds": None}, "a budget must be given"),
    ({"seconds": 0.0}, "seconds must lie in"),
    ({"seconds": 1.0}, "seconds must last for at least one round, got 1 s.*1.678 s"),
    ({"rounds": -1}, "rounds must lie in"),
    ({"total_bytes": 1e3}, "total_bytes must last"),
    ({"federation": -1.0}, "model_megabits must lie in"),
    ({"federation": (1.0, 2.0, 3.0)}, r"a pair \(down, up\)"),
    ({"devices": PHONES._replace(upload_mbps=-5.0)}, "upload_mbps must lie in"),
    ({"devices": (20.0, 5.0, 0.1)}, "devices must be Devices"),
    ({"constants": CONSTANTS._replace(strong_convexity=8.0)}, "kappa = .* must be at least 1"),
    ({"constants": CONSTANTS._replace(strong_convexity=0.0)}, "strong_convexity must be above 0"),
    ({"constants": CONSTANTS._replace(optimal_loss=5.0)}, "initial_loss must be above"),
    ({"constants": CONSTANTS._replace(gradient_bound=-1.0)}, "constants.gradient_bound must lie"),
    ({"constants": CONSTANTS[:4]}, "constants must be FedAvgConstants"),
    ({"constants": fo.planning.TunedRun(0, 0.1, 10, 5)}, "constants.local_steps must be a whole"),
    ({"constants": fo.planning.TunedRun(5, 0.1, 10, 5, 1.0, 0.5)}, "condition_number must lie"),
    ({"constants": None}, "constants or local_steps must be given"),
    ({"constants": None, "cohort_size": None, "local_steps": 3}, "cohort_size must be given"),
    ({"constants": None, "cohort_size": [1, 2], "local_steps": 3}, "cohort_size must be one"),
    ({"cohort_size": 0}, "cohort_size must be a whole number"),
    ({"cohort_size": []}, "cohort_size must hold at least one"),
    ({"cohort_size": 9, "num_clients": 5}, "cohort_size must be at most all 5 clients"),
    ({"learning_rate": 0.0}, "learning_rate must lie in"),
    ({"local_steps": 1001}, "local_steps must be at most max_local_steps=1000"),
    ({"max_local_steps": 10**6}, "max_local_steps must be at most"),
    ({"plateau_round": 0}, "plateau_round must be"),
    ({"tolerance": -0.1}, "tolerance must lie"),
    ({"client_variance": -1.0}, "client_variance must lie"),
    ({"federation": 6.71e6}, "Is it in bytes"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_wrong_input_is_named(changes, message):
    arguments = {
        "federation": SIZE,
        "devices": PHONES,
        "constants": CONSTANTS,
        "cohort_size": 5,
        "seconds": HOURS,
    }
    with pytest.raises(ValueError, match=message):
        fo.plan(**arguments | changes)


def test_as_numbers_keeps_what_is_there():
    setting = as_numbers(fo.planning.Setting(1.0, 2.0, PHONES, None, None, None, None, 5))
    assert np.isnan(setting.num_clients) and setting.client_variance == 0
    assert (setting.seconds, setting.rounds, setting.total_bytes) == (np.inf, 5, np.inf)


def test_a_federation_says_what_travels_and_how_long_a_step_takes():
    """Parameters, operations, clients and steps, counted by hand for softmax regression."""
    examples = {"x": np.ones((60, 6), np.float32), "y": np.arange(60) % 4}
    clients = fo.ClientData.from_sizes(examples, [20, 30, 10])
    federation = fo.Federation(
        fo.models.mlp([], num_classes=4), clients, cohort=2, local_steps=fo.epochs(2), batch_size=8
    )
    megabits = 28 * 32e-6
    step = float(fo.costs.client_flops(
        fo.fedavg(fo.optimizers.sgd(0.1)), federation.model, jax.tree.map(lambda x: x[:8], examples)
    ).step)  # fmt: skip
    steps = round(np.mean([2 * 3, 2 * 4, 2 * 2]))
    by_hand = fo.plan(
        megabits, fo.costs.devices(20.0, 5.0, step / 2.4e9), rounds=100, cohort_size=2,
        num_clients=3, local_steps=steps,
    )  # fmt: skip
    found = fo.plan(federation, rounds=100)
    np.testing.assert_allclose(found.recommended.seconds, by_hand.recommended.seconds, rtol=1e-9)
    assert fo.planning.as_dict(found)["local_steps"] == steps
    assert found.recommended.total_bytes == by_hand.recommended.total_bytes
    both = fo.plan(federation, rounds=100, algorithm=fo.scaffold(fo.optimizers.sgd(0.1)))
    assert both.recommended.total_bytes == 2 * found.recommended.total_bytes
    other = fo.plan(federation, fo.costs.devices(1.0, 1.0, 1.0), rounds=7, local_steps=3)
    assert other.local_steps == 3 and other.recommended.seconds > 7
    for wrong, message in (
        ((1.0,), "must be a Federation where devices are left out"),
        ((federation.replace(clients=9),), "must have its clients' examples"),
        (("6 Mbit", fo.costs.devices(1.0, 1.0, 1.0)), "must be a"),
    ):
        with pytest.raises(ValueError, match=message):
            fo.plan(*wrong, rounds=10, cohort_size=2, local_steps=2)
