"""The runtime model, against loops, enumeration and the numbers that the papers print."""

import itertools
import math

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.core.compatibility import enable_x64
from fedjax_opt.costs import Devices

N, S, R = 7, 3, 40
DOWN, UP = 12.0, 7.0


def random_fleet(seed=0):
    rng = np.random.default_rng(seed)
    return Devices(rng.uniform(5, 50, N), rng.uniform(1, 9, N), rng.uniform(0.01, 2, N))


def random_history(seed=1):
    """Cohorts with empty slots (-1, 0 steps), and clients who were asked and lost (an id, 0 steps)."""
    rng = np.random.default_rng(seed)
    cohort = np.stack([rng.permutation(N)[:S] for _ in range(R)])
    steps = rng.integers(1, 9, (R, S))
    gone = rng.random((R, S)) < 0.2
    steps[gone] = 0
    cohort[gone & (rng.random((R, S)) < 0.5)] = -1
    steps[0], cohort[0] = 0, -1  # a round with nobody
    return cohort, steps


def by_loops(fleet, cohort, steps, deadline=None, await_absent=True):
    """Equations (3) and (4), one client after the other."""
    seconds, clients, arrived = [], [], []
    for ids, ks in zip(cohort, steps, strict=True):
        row, here, waited = [], [], 0.0
        for i, k in zip(ids, ks, strict=True):
            took = 0.0
            if k > 0:
                took = DOWN / fleet[0][i] + k * fleet[2][i] + UP / fleet[1][i]
            row.append(took)
            here.append(k > 0 and (deadline is None or took <= deadline))
            if here[-1]:
                waited = max(waited, took)
            elif deadline is not None and (k > 0 or await_absent):
                waited = deadline
        seconds.append(waited)
        clients.append(row)
        arrived.append(here)
    return np.array(seconds), np.array(clients), np.array(arrived)


@pytest.mark.parametrize(
    ("deadline", "await_absent"), [(None, True), (8.0, True), (8.0, False), (1e-3, False)]
)
def test_the_server_waits_for_the_slowest(deadline, await_absent):
    fleet, (cohort, steps) = random_fleet(), random_history()
    seconds, clients, arrived = by_loops(fleet, cohort, steps, deadline, await_absent)
    found = fo.costs.round_seconds(fleet, cohort, steps, DOWN, UP, deadline, await_absent)
    np.testing.assert_allclose(found.seconds, seconds, rtol=1e-14)
    np.testing.assert_allclose(found.client_seconds, clients, rtol=1e-14)
    np.testing.assert_array_equal(found.arrived, arrived)
    for r in range(4):
        alone = fo.costs.round_seconds(fleet, cohort[r], steps[r], DOWN, UP, deadline, await_absent)
        for one, all_rounds in zip(alone, found, strict=True):
            np.testing.assert_array_equal(one, all_rounds[r])
    if deadline == 8.0:
        assert 0 < arrived.sum() < (steps > 0).sum()  # some are late, and not all
        assert set(seconds) & {8.0} and (seconds < 8.0).any()
    total = seconds_of_run(fleet, {"cohort": cohort, "num_steps": steps}, deadline, await_absent)
    np.testing.assert_allclose(total, np.cumsum(seconds), rtol=1e-13)


def seconds_of_run(fleet, history, deadline=None, await_absent=True):
    """`spent`, with DOWN and UP megabits as bytes."""
    traffic = fo.costs.Cost(DOWN * 125_000, UP * 125_000, 0, 0, 0, 0)
    prices = fo.costs.Prices(traffic, devices=fleet, deadline=deadline, await_absent=await_absent)
    return fo.costs.spent(history, prices).seconds


def test_equal_clients_give_equation_5():
    steps = np.array([[5, 5], [3, 3], [1, 1]])
    history = {"cohort": np.array([[0, 1], [2, 3], [9, 4]]), "num_steps": steps}
    total = seconds_of_run(Devices(20.0, 5.0, 0.3), history)[-1]
    assert total == pytest.approx(3 * (DOWN / 20 + UP / 5) + 0.3 * (5 + 3 + 1), rel=1e-14)


def test_all_clients_at_once():
    fleet = random_fleet()
    times = fo.costs.client_seconds(fleet, 4, DOWN, UP)
    np.testing.assert_allclose(times, by_loops(fleet, [range(N)], [[4] * N])[1][0], rtol=1e-14)
    per_client = fo.costs.client_seconds(fleet, np.arange(N), DOWN, UP)
    np.testing.assert_allclose(per_client - times, (np.arange(N) - 4) * fleet[2], rtol=1e-12)
    assert fo.costs.client_seconds(Devices(20.0, 5.0, 0.5), 2, 40.0, 5.0).shape == ()
    of_three = fo.costs.client_seconds(Devices(20.0, 5.0, 0.5), [0, 1, 2], 40.0, 5.0)
    np.testing.assert_allclose(of_three, [3.0, 3.5, 4.0])


def test_one_value_for_all_is_that_value_for_each():
    cohort, steps = random_history()
    alike = fo.costs.round_seconds(Devices(20.0, 5.0, 0.5), cohort, steps, DOWN, UP)
    each = Devices(np.full(N, 20.0), 5.0, np.full(N, 0.5))
    for a, b in zip(alike, fo.costs.round_seconds(each, cohort, steps, DOWN, UP), strict=True):
        np.testing.assert_array_equal(a, b)


def test_under_jit_and_vmap():
    fleet, (cohort, steps) = random_fleet(), random_history()
    compiled = jax.jit(fo.costs.round_seconds, static_argnames="await_absent")
    plain = fo.costs.round_seconds(fleet, cohort, steps, DOWN, UP, 8.0)
    for a, b in zip(compiled(fleet, cohort, steps, DOWN, UP, 8.0), plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)

    def slower(factor):
        times = fleet._replace(seconds_per_step=jnp.asarray(fleet.seconds_per_step) * factor)
        return fo.costs.round_seconds(times, cohort, steps, DOWN, UP).seconds

    factors = np.array([0.5, 1.0, 3.0])
    many = jax.vmap(slower)(factors)
    for row, factor in zip(many, factors, strict=True):
        expected = by_loops((fleet[0], fleet[1], fleet[2] * factor), cohort, steps)[0]
        np.testing.assert_allclose(row, expected, rtol=1e-13)
    gradient = jax.grad(lambda k: fo.costs.round_seconds(fleet, [3], k, DOWN, UP).seconds)(2.0)
    assert float(gradient) == pytest.approx(fleet.seconds_per_step[3])


def test_what_an_algorithm_sends_takes_time():
    variables = fo.Variables({"w": jnp.zeros(250_000, jnp.float32)})  # 8 megabits
    sgd = fo.optimizers.sgd(0.1)
    seconds = {}
    for name, algorithm in {
        "fedavg": fo.fedavg(sgd),
        "scaffold": fo.scaffold(sgd),
        "fedgbo": fo.fedgbo(fo.optimizers.sgdm(0.1, 0.9)),
    }.items():
        down, up = fo.costs.megabits(fo.costs.of(algorithm, variables))
        seconds[name] = float(fo.costs.client_seconds(Devices(20.0, 5.0, 0.5), 4, down, up))
    expected = {
        "fedavg": 8 / 20 + 2 + 8 / 5,
        "scaffold": 16 / 20 + 2 + 16 / 5,
        "fedgbo": 16 / 20 + 2 + 8 / 5,
    }
    assert seconds == pytest.approx(expected, rel=1e-14)


# Stragglers -----------------------------------------------------------------------------------


SIZES = np.arange(1, N + 1)
# All cohorts of all sizes, with empty slots.
COHORTS = [c for s in SIZES for c in itertools.combinations(range(N), s)]
PADDED = np.array([[*c, *[-1] * (N - len(c))] for c in COHORTS])


def mean_by_size(seconds):
    lengths = np.array([len(c) for c in COHORTS])
    return [np.mean(np.asarray(seconds)[lengths == s]) for s in SIZES]


def test_the_expected_maximum_is_the_mean_over_all_cohorts():
    values = np.random.default_rng(2).normal(size=N).round(1)
    values[3] = values[5]  # a tie
    found = jax.jit(jax.vmap(fo.costs.expected_maximum, (None, 0)))(values, SIZES)
    maxima = [max(values[i] for i in c) for c in COHORTS]
    np.testing.assert_allclose(found, mean_by_size(maxima), atol=1e-14)


@pytest.mark.parametrize("deadline", [None, 8.0])
def test_the_expected_time_of_a_round_is_the_mean_over_all_cohorts(deadline):
    fleet = random_fleet()
    steps = np.where(PADDED < 0, 0, 4)
    means = mean_by_size(by_loops(fleet, PADDED, steps, deadline, await_absent=False)[0])

    def expected(size):
        return fo.costs.expected_round_seconds(fleet, size, 4, DOWN, UP, deadline)

    found = jax.jit(jax.vmap(expected))(SIZES)
    np.testing.assert_allclose(found, means, rtol=1e-13)
    assert np.all(np.diff(found)[:3] > 0)  # more clients, slower rounds


def test_a_large_population_in_single_precision():
    """The weights are ratios of binomials that no float holds."""
    count, size = 20_000, 50
    values = np.sort(np.random.default_rng(0).lognormal(size=count)).astype(np.float32)
    whole = math.comb(count, size)
    exact = sum(float(values[j]) * (math.comb(j, size - 1) / whole) for j in range(size - 1, count))
    with enable_x64(False):
        found = fo.costs.expected_maximum(values, size)
        assert found.dtype == jnp.float32
        assert float(found) == pytest.approx(exact, rel=1e-4)
    assert float(fo.costs.expected_maximum(values, size)) == pytest.approx(exact, rel=1e-11)


def test_equal_clients_have_no_stragglers():
    alike = fo.costs.expected_round_seconds(Devices(20.0, 5.0, 0.5), 3, 2, 40.0, 5.0)
    assert float(alike) == 4.0


# Deadlines in a run ---------------------------------------------------------------------------

DEADLINE, STEPS = 10.0, 5


def punctual(fleet):
    on_time = by_loops(fleet, [range(N)], [[STEPS] * N], DEADLINE)[2][0]
    assert 0 < on_time.sum() < N
    return on_time


def test_who_misses_the_deadline_is_not_in_the_run():
    """And the server waited for them: the history's empty slots say so."""
    fleet = random_fleet()
    model, data, _ = fo.data.quadratics(num_clients=N, dimension=2)
    algorithm = fo.fedavg(fo.optimizers.sgd(0.1))
    state = fo.first_state(algorithm, {"x": jnp.zeros(2)}, num_clients=N)
    sampler = fo.costs.on_time(fo.cohorts.cyclic(S), fleet, STEPS, DOWN, UP, DEADLINE)
    history = fo.run_rounds(
        algorithm,
        fo.Federation(model, data, cohort=sampler, local_steps=STEPS, batch_size=1),
        state,
        12,
        strategy="scan",
    ).history
    asked = np.arange(12 * S).reshape(12, S) % N
    in_time = punctual(fleet)[asked]
    np.testing.assert_array_equal(history.cohort, np.where(in_time, asked, -1))
    np.testing.assert_array_equal(history.num_steps, np.where(in_time, STEPS, 0))
    waited = by_loops(fleet, asked, np.full(asked.shape, STEPS), DEADLINE)[0]
    found = seconds_of_run(fleet, history, DEADLINE)
    np.testing.assert_allclose(found, np.cumsum(waited), rtol=1e-13)


def test_a_deadline_and_unreliable_clients_compose():
    fleet = random_fleet()
    limits = fleet, STEPS, DOWN, UP, DEADLINE
    plain = fo.cohorts.cyclic(S)
    late = fo.costs.on_time(plain, *limits)
    chances = {"dropout": 0.4, "stragglers": 0.5}
    inside = fo.cohorts.unreliable(late, **chances)
    outside = fo.costs.on_time(fo.cohorts.unreliable(plain, **chances), *limits)
    samplers = late, inside, outside

    @jax.jit
    @jax.vmap
    def draw(t):
        return [sampler.draw(jax.random.key(0), t, N) for sampler in samplers]

    (ids, in_time), *others = jax.tree.map(np.asarray, draw(np.arange(50)))
    np.testing.assert_array_equal(in_time, punctual(fleet)[ids])
    for found, done in others:
        np.testing.assert_array_equal(found, ids)
        assert np.all(done[~in_time] == 0)
        assert {0.0, 1.0} < set(done[in_time].tolist())  # lost, whole, and in between
    assert inside.falls_short and outside.falls_short and not late.falls_short
    assert late.population == inside.population == N


# Devices --------------------------------------------------------------------------------------


def test_devices_are_drawn_from_their_distributions():
    count = 20_000
    drawn = fo.costs.draw_devices(
        jax.random.key(1), count, fo.costs.lognormal(20.0, 2.0), fo.costs.uniform(2.0, 8.0), 0.25
    )
    logs = np.log2(np.asarray(drawn.download_mbps) / 20.0)
    # Standard normal: the standard error of the mean is 1/sqrt(count) = 0.007.
    assert abs(logs.mean()) < 0.03 and abs(logs.std() - 1) < 0.03
    inside = np.mean((drawn.download_mbps > 10.0) & (drawn.download_mbps < 40.0))
    assert inside == pytest.approx(0.6827, abs=0.015)
    assert drawn.upload_mbps.min() >= 2.0 and drawn.upload_mbps.max() <= 8.0
    np.testing.assert_allclose(np.quantile(drawn.upload_mbps, [0.25, 0.75]), [3.5, 6.5], atol=0.1)
    np.testing.assert_array_equal(drawn.seconds_per_step, np.full(count, 0.25))


def test_drawing_is_a_pure_function_of_the_key():
    near = fo.costs.lognormal(20.0, 1.5)

    def draw(key):
        return fo.costs.draw_devices(key, 5, near, near, near)

    one, again, other = (draw(jax.random.key(seed)) for seed in (0, 0, 1))
    for a, b, c in zip(one, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.all(a != c)
    assert np.all(one.download_mbps != one.upload_mbps)  # each quantity has luck of its own
    for a, b in zip(jax.jit(draw)(jax.random.key(0)), one, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)
    constant = fo.costs.draw_devices(
        jax.random.key(0), 3, fo.costs.lognormal(7.0, 1.0), [1.0, 2.0, 3.0], 1.0
    )
    np.testing.assert_allclose(constant.download_mbps, 7.0)
    np.testing.assert_array_equal(constant.upload_mbps, [1.0, 2.0, 3.0])


# Errors ---------------------------------------------------------------------------------------

FLEET = Devices(20.0, 5.0, 0.1)
EACH = Devices(20.0, np.full(4, 5.0), 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fo.costs.devices(-20.0, 5.0, 0.1), r"download_mbps must lie in \(0.0, inf\).*-20"),
        (lambda: fo.costs.devices(20.0, 0.0, 0.1), "upload_mbps must lie in"),
        (lambda: fo.costs.devices(20.0, 5.0, 0.0), "seconds_per_step must lie in"),
        (lambda: fo.costs.devices(20.0, 5.0, [0.1, np.nan]), "seconds_per_step must lie in"),
        (lambda: fo.costs.devices(np.inf, 5.0, 0.1), "download_mbps must lie in"),
        (lambda: fo.costs.devices(20e6, 5.0, 0.1), "download_mbps is in megabits.*bits per second"),
        (lambda: fo.costs.devices("fast", 5.0, 0.1), "download_mbps must be a number.*fast"),
        (lambda: fo.costs.devices([1.0, 2.0], [1.0] * 3, 0.1), r"upload_mbps must.*N=2.*\(3,\)"),
        (lambda: fo.costs.devices(np.ones((2, 2)), 5.0, 0.1), r"download_mbps must.*\(2, 2\)"),
        (lambda: fo.costs.devices([], 5.0, 0.1), "download_mbps must be that of at least one"),
        (lambda: fo.costs.lognormal(0.0, 2.0), "median must lie in"),
        (lambda: fo.costs.lognormal(1.0, 0.5), "spread must lie in"),
        (lambda: fo.costs.uniform(5.0, 2.0), r"high must lie in \[5.0, inf\), got 2.0"),
        (lambda: fo.costs.uniform(-1.0, 2.0), "low must lie in"),
        (
            lambda: fo.costs.draw_devices(jax.random.key(0), 0, 1.0, 1.0, 1.0),
            "num_clients must be a whole number of at least 1",
        ),
        (
            lambda: fo.costs.draw_devices(jax.random.key(0), 3, [1.0, 2.0], 1.0, 1.0),
            r"download_mbps must be a number or have the shape \[3\]",
        ),
        (lambda: fo.costs.client_seconds((20, 5, 1), 1, 1.0, 1.0), "devices must be Devices"),
        (lambda: fo.costs.client_seconds(FLEET, -1, 1.0, 1.0), "num_steps must lie in"),
        (lambda: fo.costs.client_seconds(FLEET, 1, -1.0, 1.0), "megabits_down must lie in"),
        (lambda: fo.costs.client_seconds(FLEET, 1, 1.0, np.nan), "megabits_up must lie in"),
        (lambda: fo.costs.client_seconds(EACH, [1, 2], 1.0, 1.0), r"num_steps.*shape \[4\].*\[2\]"),
        (
            lambda: fo.costs.client_seconds(FLEET, 1, 40.0, 5_003_408),
            r"megabits_up=5003408 would take 11.6 days.*bytes",
        ),
        (lambda: fo.costs.round_seconds(EACH, [0, 4], 1, 1.0, 1.0), "cohort.*-1 to 3.*0 to 4"),
        (lambda: fo.costs.round_seconds(FLEET, [0, -2], 1, 1.0, 1.0), "cohort.*-2 to 0"),
        (lambda: fo.costs.round_seconds(FLEET, [0.5], 1, 1.0, 1.0), "cohort must be ids"),
        (lambda: fo.costs.round_seconds(FLEET, 3, 1, 1.0, 1.0), "cohort must be ids"),
        (
            lambda: fo.costs.round_seconds(FLEET, [0, 1], [1, 2, 3], 1.0, 1.0),
            r"num_steps must be a number or have the shape \[2\]",
        ),
        (
            lambda: fo.costs.round_seconds(FLEET, [0], 1, 1.0, 1.0, deadline=0.0),
            r"deadline must lie in \(0.0",
        ),
        (lambda: fo.costs.expected_maximum([1.0, 2.0], 3), r"size must lie in \[1, 2\], got 3"),
        (lambda: fo.costs.expected_maximum([1.0, 2.0], 0), "size must lie in"),
        (lambda: fo.costs.expected_maximum(3.0, 1), r"values must be one per client \[N\]"),
        (lambda: fo.costs.megabits(-1), "cost must lie in"),
        (lambda: fo.costs.on_time(3, FLEET, 1, 1.0, 1.0, 9.0), "sampler must be a Sampler"),
        (
            lambda: fo.costs.on_time(
                fo.cohorts.weighted(1, [1.0, 1.0]), EACH, 1, 1.0, 1.0, deadline=9.0
            ),
            "sampler was made for 2 clients, but devices for 4",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
