"""Each schedule against its formula, written again in NumPy and read off what a run has shown."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_opt as fo
from fedjax_opt.controllers.schedules import add_to_window, empty_window
from fedjax_opt.core import StaticInt
from fedjax_opt.core.compatibility import enable_x64
from tests.core.problems import MODEL, ragged, start_at

DATA = ragged([4, 7, 5, 6, 8])
K0, ETA0, WINDOW, PATIENCE, ROUNDS = 40, 0.01, 4, 2, 24
SCHEDULES = fo.controllers.paper_schedules(K0, ETA0, window=WINDOW, patience=PATIENCE, every=2)
SCHEDULES["eta-exponential"] = fo.controllers.Schedule(
    fo.controllers.constant(K0), fo.controllers.rate_exponential(ETA0, decay=0.9)
)


def build(eta):
    return fo.fedavg(fo.optimizers.sgd(eta))


def run(schedule, rounds=ROUNDS, state=None):
    algorithm = fo.scheduled(build, schedule.learning_rate)
    federation = fo.Federation(
        MODEL, DATA, cohort=3, local_steps=schedule.local_steps, batch_size=2,
        initial=start_at(), validation=DATA.examples,
    )  # fmt: skip
    state = fo.init_state(algorithm, federation, 0) if state is None else state
    return fo.run_rounds(algorithm, federation, state, rounds)


def rolling(losses):
    """F_r / F_0 before each round; one while fewer than WINDOW rounds were seen."""
    ratios = np.ones(len(losses))
    for r in range(WINDOW, len(losses)):
        ratios[r] = np.mean(losses[r - WINDOW : r]) / np.mean(losses[:WINDOW])
    return np.minimum(ratios, 1)


def drops(errors):
    """How often a value was divided before each round: once, after PATIENCE bad evaluations."""
    best, waited, dropped, result = np.inf, 0, 0, []
    for error in errors:
        result.append(dropped)
        if not np.isnan(error):
            waited = 0 if error < best else waited + 1
            best = min(best, error)
            dropped = 1 if dropped or waited >= PATIENCE else 0
    return np.array(result)


def expected(name, history):
    r = np.arange(1, ROUNDS + 1)
    ratios, dropped = rolling(history.first_loss), np.zeros(ROUNDS)
    if name.endswith("step"):  # the others watch no validation loss
        dropped = drops(history.diagnostics["validation_loss"])
    steps = {
        "dSGD": np.ones(ROUNDS),
        "K-rounds": np.ceil(K0 * r ** (-1 / 3) - 1e-9),
        "K-error": np.ceil(K0 * ratios ** (1 / 3) - 1e-9),
        "K-step": np.where(dropped, np.ceil(K0 / 10), K0),
    }.get(name, np.full(ROUNDS, K0))
    rates = {
        "eta-rounds": ETA0 / np.sqrt(r),
        "eta-error": ETA0 * np.sqrt(ratios),
        "eta-step": np.where(dropped, ETA0 / 10, ETA0),
        "eta-exponential": ETA0 * 0.9 ** (r - 1),
    }.get(name, np.full(ROUNDS, ETA0))
    return steps, rates


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_each_is_its_formula(name):
    history = run(SCHEDULES[name]).history
    steps, rates = expected(name, history)
    np.testing.assert_array_equal(history.num_steps, np.tile(steps[:, None], 3))
    np.testing.assert_allclose(history.diagnostics["learning_rate"], rates, rtol=1e-12)
    if name not in ("dSGD", "fixed"):
        assert min(steps) < K0 or min(rates) < ETA0, "the schedule has something to do"


def test_validation_is_measured_when_it_is_its_turn():
    run_ = run(SCHEDULES["eta-step"], rounds=5)
    losses = np.asarray(run_.history.diagnostics["validation_loss"])
    assert np.isnan(losses).tolist() == [True, False, True, False, True]
    after_four = run(SCHEDULES["eta-step"], rounds=4).state.variables
    measured = fo.evaluate(MODEL, after_four, DATA.examples)
    np.testing.assert_allclose(losses[3], measured["loss"], rtol=1e-12)
    assert "validation_distance" in run_.history.diagnostics
    assert "validation_loss" not in run(SCHEDULES["fixed"], rounds=1).history.diagnostics


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_by_rounds_are_exact_whole_numbers(dtype):
    """The ceiling of a cube root, by whole numbers: K is least with K^3 r >= K_0^3."""
    rounds = np.arange(10_000)
    with enable_x64(dtype == np.float64):
        for initial in (1, 2, 10, 50, 60, 80, 100):
            controller = fo.controllers.steps_by_rounds(initial)
            found = np.asarray(controller.value((), rounds))
            assert np.all(found >= 1)
            low, high = (found.astype(object) - 1) ** 3, found.astype(object) ** 3
            r = rounds.astype(object) + 1
            assert np.all(high * r >= initial**3)
            assert np.all(low * r < initial**3)


def test_the_share_of_steps_that_the_decay_by_rounds_takes():
    """With exact arithmetic over the paper's 10,000 rounds."""
    controller = fo.controllers.steps_by_rounds(50)
    total = int(np.sum(controller.value((), np.arange(10_000))))
    exact = 0
    for r in range(1, 10_001):
        exact += next(k for k in range(1, 51) if k**3 * r >= 50**3)
    assert total == exact


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40), st.integers(1, 7))
def test_the_window_is_a_rolling_mean(losses, length):
    window = empty_window(StaticInt(length))
    for count, loss in enumerate(losses, start=1):
        window = add_to_window(window, _Shown(jnp.asarray(loss)))
        np.testing.assert_allclose(window.mean, np.mean(losses[max(0, count - length) : count]))
        first = np.mean(losses[:length]) if count >= length else np.nan
        np.testing.assert_allclose(window.first, first)
        assert int(window.seen) < 2 * length


class _Shown:
    def __init__(self, first_loss):
        self.first_loss = first_loss


def _validated(value):
    class Shown:
        round = np.int32(0)
        diagnostics = {"validation_accuracy": jnp.asarray(value)}  # noqa: RUF012

    return Shown()


def test_a_plateau_of_accuracy_may_be_watched_and_drop_more_than_once():
    controller = fo.controllers.steps_on_plateau(
        20, factor=2.0, patience=2, tolerance=0.05, times=2, metric="accuracy", maximise=True
    )
    state, steps = controller.init(), []
    for value in (0.5, 0.6, 0.62, np.nan, 0.64, 0.63, 0.65, 0.64, 0.64, 0.64):
        state = controller.update(state, _validated(value))
        steps.append(int(controller.value(state, 0)))
    # 0.62 and 0.64 are not better than 0.6 by 0.05; nor are 0.63 and 0.65; twice is enough.
    assert steps == [20, 20, 20, 20, 10, 10, 5, 5, 5, 5]
