"""A run that diverges goes back and takes smaller steps."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
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
