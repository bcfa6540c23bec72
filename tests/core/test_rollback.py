"""A run that diverges goes back and takes smaller steps; a run that does not fit is not begun."""

import logging
import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.training import memory
from tests.core import problems

SIZES = (5, 8, 3, 12)
DATA = problems.ragged(SIZES)
OPTIONS = {
    "cohort_size": 4, "batch_size": 4, "local_steps": 2, "strategy": "scan", "progress": False,
    "evaluate_every": 4,
}  # fmt: skip
MODEL, TRACES = problems.counted()


def _scaffold(rate):
    return fo.scaffold(fo.optimizers.sgd(rate))


def _simulate(rate=None, rounds=24, algorithm=_scaffold, **options):
    state = problems.start(_scaffold(0.1), len(SIZES))
    options = OPTIONS | {"state": state, "learning_rate": rate} | options
    return fo.simulate(algorithm, MODEL, DATA, rounds, **options)


def test_a_run_that_does_not_diverge_is_the_same_to_the_last_bit():
    plain = _simulate(0.05)
    kept = _simulate(0.05, rollback=fo.Rollback())
    problems.assert_identical(plain.state, kept.state)
    np.testing.assert_array_equal(kept.history.pop("step_scale"), np.ones(24))
    for name, values in plain.history.items():
        np.testing.assert_array_equal(kept.history[name], values)


def test_a_run_that_diverges_goes_back_and_on_with_smaller_steps(caplog):
    """From the start, here: the run is one with the smaller rate, and nothing was compiled for it."""
    rollback = fo.Rollback(factor=3.0, shrink=0.02)
    _simulate(0.05, rollback=rollback)
    compiled = len(TRACES)
    with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
        result = _simulate(4.0, rollback=rollback)
    assert len(TRACES) == compiled > 0
    scale, rate = result.history["step_scale"], result.history["learning_rate"]
    np.testing.assert_allclose(rate, 4.0 * scale, rtol=1e-12)
    np.testing.assert_array_equal(scale, np.full(24, 0.02))
    assert result.history["round"].tolist() == list(range(24)) and int(result.state.round) == 24
    returns = [m for m in caplog.messages if "Back to round" in m]
    assert len(returns) == 1 and returns[0].endswith("Back to round 0, with the step times 0.02.")
    plain = _simulate(0.08)
    problems.assert_close(result.state.server, plain.state.server)


def test_a_schedule_a_controller_and_a_plain_algorithm_shrink_too():
    """A schedule's value, a controller's value, and the change of the global model."""
    rollback = fo.Rollback(factor=3.0, shrink=0.02)
    controller = fo.Controller(lambda: jnp.zeros(()), lambda s, info: s, lambda s, t: s + 4.0)
    for rate in (lambda t: jnp.full((), 4.0), controller):
        result = _simulate(rate, rounds=8, rollback=rollback)
        scale = result.history["step_scale"]
        np.testing.assert_allclose(result.history["learning_rate"], 4 * scale, rtol=1e-12)
        assert scale.tolist() == [0.02] * 8
    plain = fo.fedavg(fo.optimizers.sgd(0.1), server_learning_rate=40.0)
    state = problems.start(plain, len(SIZES))
    result = _simulate(None, 24, plain, state=state, rollback=rollback)
    assert result.history["step_scale"].tolist() == [0.02] * 24
    damped = _simulate(None, 24, fo.fedavg(fo.optimizers.sgd(0.1), 0.8), state=state)
    problems.assert_close(result.state.server, damped.state.server, 1e-10)


def test_it_gives_up_with_the_last_good_state():
    """No step is small enough for a client whose loss is always NaN."""
    examples = dict(DATA.examples)
    examples["y"] = np.where(np.arange(len(examples["y"])) < 5, np.nan, examples["y"])
    broken = fo.ClientData(examples, DATA.offsets, DATA.sizes)
    state = problems.start(_scaffold(0.1), len(SIZES))
    options = OPTIONS | {"learning_rate": 0.1, "state": state}
    result = fo.simulate(_scaffold, MODEL, broken, 8, rollback=fo.Rollback(limit=2), **options)
    assert "the loss is not finite on client 0" in result.stopped
    assert "Gone back 2 times; the last good state is kept" in result.stopped
    problems.assert_identical(result.state, state)
    guarded = fo.Guard(min_clients=4)
    result = fo.simulate(
        _scaffold, MODEL, broken, 8, rollback=fo.Rollback(limit=1), guard=guarded, **options
    )
    assert "Every round was skipped for what clients sent" in result.stopped
    assert int(result.state.round) == 0


@pytest.mark.parametrize(
    ("rollback", "message"),
    [
        (True, "rollback must be a Rollback or None, got True"),
        (fo.Rollback(factor=1.0), r"rollback.factor must lie in \(1.0, inf\], got 1.0"),
        (fo.Rollback(shrink=1.0), r"rollback.shrink must lie in \(0.0, 1.0\), got 1.0"),
        (fo.Rollback(limit=0), "rollback.limit must be a whole number of at least 1, got 0"),
    ],
)
def test_wrong_rules_are_refused(rollback, message):
    with pytest.raises(ValueError, match=message):
        _simulate(0.1, rollback=rollback)


# Memory ---------------------------------------------------------------------------------------

WIDE = fo.ClientData.from_list([{"x": np.ones((2, 500)), "y": np.ones(2)} for _ in range(2)])


def _limited(limit, strategy="vmap"):
    return fo.simulate(
        fo.fedavg(fo.optimizers.sgd(0.1)), problems.MODEL, WIDE, 1, memory_limit=limit, cohort_size=2,
        batch_size=2, local_steps=1, strategy=strategy, progress=False,
    )  # fmt: skip


def test_a_run_that_does_not_fit_is_refused_with_what_does():
    """Between what the two need, the one is refused, and the other is what it suggests."""
    with pytest.raises(ValueError, match=r"data 15\.\d+ KiB, state 7\.\d+ KiB, program") as refused:
        _limited(1)
    assert "Already the arrays do not fit, whatever the cohort" in str(refused.value)
    with pytest.raises(ValueError, match="memory_limit=1,") as other:
        _limited(1, "scan")
    texts = (str(error.value) for error in (other, refused))
    least, most = (float(re.search(r"needs ([\d.]+) KiB", text).group(1)) for text in texts)
    assert least < most
    between = int(1024 * (least + most) / 2)
    with pytest.raises(ValueError, match='strategy="scan" is the largest that fits'):
        _limited(between)
    assert _limited(between, "scan").stopped == "1 rounds done"


@pytest.mark.parametrize(
    ("strategy", "fits", "hint"),
    [
        (
            "vmap",
            lambda s, n: s.name == "chunked" and s.size <= 8,
            'fo.Strategy("chunked", size=7)',
        ),
        ("vmap", lambda s, n: s.name == "scan", 'strategy="scan" is the largest'),
        (
            "vmap",
            lambda s, n: s.name == "scan" and n <= 11,
            "A cohort of 11 clients is the largest",
        ),
        ("scan", lambda s, n: n <= 5, "A cohort of 5 clients is the largest"),
        ("scan", lambda s, n: n <= 1, "A cohort of 1 clients is the largest"),
        ("scan", lambda s, n: False, "Not even a cohort of one client fits"),
    ],
)
def test_the_largest_that_fits_is_found(strategy, fits, hint):
    fixed = _Fixed(fo.Strategy(strategy))
    found = memory._what_fits(fixed, 31, lambda fixed, size: fits(fixed.strategy, size))
    assert hint in found


class _Fixed(NamedTuple):
    strategy: fo.Strategy


def test_arrays_that_clearly_do_not_fit_are_refused_without_being_asked(monkeypatch):
    monkeypatch.setattr("fedjax_opt.training.memory.available_bytes", lambda: 1000)
    with pytest.raises(ValueError, match=r"The run's arrays need .* but there are 1000 B"):
        _limited(None)


def test_what_there_is_is_found():
    assert 2**28 < memory.available_bytes() < 2**50
    with pytest.raises(ValueError, match=r"memory_limit must be a whole number .* got 'lots'"):
        _limited("lots")
