"""Schedules as runs of equal K, against the controllers, round by round and Theorem 1 itself."""

import itertools

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.planning import schedules
from fedjax_opt.planning.schedules import Limits


def played(schedule):
    values, counts = schedule
    return np.repeat(values, counts)


@pytest.mark.parametrize("first", [1, 2, 7, 60, 200])
def test_by_rounds_is_the_controller(first):
    """K_r = ceil(K_0 r^(-1/3)) for 30,000 rounds, without an error at any cube."""
    limits = Limits(30_000, np.inf, np.ones(first + 1))
    ours = played(schedules.within(limits, *schedules.by_rounds(first)))
    controller = fo.controllers.steps_by_rounds(first)
    theirs = controller.value(controller.init(), np.arange(30_000))
    np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_stepped_is_a_tenth_rounded_up():
    """As `steps_on_plateau` divides: 80 to 8, 61 to 7, never 0."""
    limits = Limits(5, np.inf, np.ones(100))
    for first, then in ((80, 8), (61, 7), (3, 1)):
        steps = played(schedules.within(limits, *schedules.stepped(first, 2)))
        assert steps.tolist() == [first, first, then, then, then]


@pytest.mark.parametrize(
    ("make", "seconds", "rounds"),
    list(
        itertools.product(
            (schedules.fixed(9), schedules.by_rounds(9), schedules.stepped(9, 13)),
            (0.9, 1.0, 5.0, 37.0, 200.0, np.inf),
            (1, 12, 40),
        )
    ),
)
def test_as_many_rounds_as_fit(make, seconds, rounds):
    """Round after round, as long as the next one is over in time."""
    times = 0.4 + 0.07 * np.arange(10)
    steps = np.repeat(make[0], np.minimum(make[1], 50))[:rounds]
    fit = int(np.sum(np.cumsum(times[steps]) <= seconds + 1e-9))
    limits = Limits(rounds, seconds, times)
    np.testing.assert_array_equal(played(schedules.within(limits, *make)), steps[:fit])


def test_long_runs_are_exact():
    """A thousand million rounds are as many, not about as many."""
    limits = Limits(10**9 + 7, np.inf, np.ones(61))
    values, counts = schedules.within(limits, *schedules.by_rounds(60))
    assert counts.sum() == 10**9 + 7 and values[-1] == 1
    assert counts[:-1].sum() == 60**3 - 1  # K_r is 1 from the round r = 60^3 on


def test_judged_as_theorem_1_does():
    """Theorem 1 with the whole schedule gives the same bound; its eta is no worse than others."""
    constants = fo.bounds.FedAvgConstants(
        smoothness=2.0, strong_convexity=0.5, initial_loss=3.0, gradient_bound=0.3, noise=1.0,
        cohort_size=5.0,
    )  # fmt: skip
    limits = Limits(400, np.inf, np.ones(31))
    rows = [
        schedules.within(limits, *schedule)
        for schedule in (schedules.fixed(4), schedules.by_rounds(30), schedules.stepped(20, 33))
    ]
    etas, bounds = schedules.judge(constants, rows, None)
    for schedule, eta, bound in zip(rows, etas, bounds, strict=True):
        theorem = fo.bounds.fedavg(constants, eta, played(schedule))
        assert bound == pytest.approx(float(theorem.value), rel=1e-12)
        others = [
            float(fo.bounds.fedavg(constants, eta * f, played(schedule)).value) for f in (0.9, 1.1)
        ]
        assert bound < min(others)
    given, worse = schedules.judge(constants, rows, 1e-4)
    assert np.all(given == 1e-4) and np.all(worse > bounds)
    # For as many rounds and steps, no schedule is better than the same K in all of them.
    values, counts = rows[1]
    mean = np.sum(values * counts) / 400
    fixed = fo.bounds.fedavg(constants, etas[1], mean, fo.bounds.Rounds(400))
    assert float(fixed.value) < bounds[1]
