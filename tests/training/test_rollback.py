"""A run that diverges goes back, to a copy or to a checkpoint, and takes smaller steps."""

import logging
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.training import acting
from tests.core import problems

SIZES = (5, 8, 3, 12)
DATA = problems.ragged(SIZES)
OPTIONS = {"strategy": "scan", "progress": False, "evaluate_every": 4}
MODEL, TRACES = problems.counted()
FEDERATION = fo.Federation(MODEL, DATA, cohort=4, local_steps=2, batch_size=4)


def _scaffold(rate):
    return fo.scaffold(fo.optimizers.sgd(rate))


def _simulate(rate, rounds=24, **options):
    """With a learning rate, or with an algorithm that has its own."""
    state = problems.start(_scaffold(0.1), len(SIZES))
    federation, options = problems.changed(FEDERATION, {"state": state} | OPTIONS | options)
    algorithm = rate if isinstance(rate, fo.Algorithm) else fo.scheduled(_scaffold, rate)
    return fo.simulate(algorithm, federation, rounds, **options)


def test_a_run_that_does_not_diverge_is_the_same_to_the_last_bit():
    plain = _simulate(0.05)
    kept = _simulate(0.05, extensions=[fo.Rollback()])
    problems.assert_identical(plain.state, kept.state)
    np.testing.assert_array_equal(kept.history.pop("step_scale"), np.ones(24))
    for name, values in plain.history.items():
        np.testing.assert_array_equal(kept.history[name], values)


def test_a_run_that_diverges_goes_back_and_on_with_smaller_steps(caplog):
    """From the start, here: the run is one with the smaller rate, and nothing was compiled for it."""
    rollback = fo.Rollback(factor=3.0, shrink=0.02)
    _simulate(0.05, extensions=[rollback])
    compiled = len(TRACES)
    with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
        result = _simulate(4.0, extensions=[rollback])
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
        result = _simulate(rate, rounds=8, extensions=[rollback])
        scale = result.history["step_scale"]
        np.testing.assert_allclose(result.history["learning_rate"], 4 * scale, rtol=1e-12)
        assert scale.tolist() == [0.02] * 8
    plain = fo.fedavg(fo.optimizers.sgd(0.1), server_learning_rate=40.0)
    state = problems.start(plain, len(SIZES))
    result = _simulate(plain, state=state, extensions=[rollback])
    assert result.history["step_scale"].tolist() == [0.02] * 24
    damped = _simulate(fo.fedavg(fo.optimizers.sgd(0.1), 0.8), state=state)
    problems.assert_close(result.state.server, damped.state.server, 1e-10)


def test_it_gives_up_with_the_last_good_state():
    """No step is small enough for a client whose loss is always NaN."""
    examples = dict(DATA.examples)
    examples["y"] = np.where(np.arange(len(examples["y"])) < 5, np.nan, examples["y"])
    broken = fo.ClientData(examples, DATA.offsets, DATA.sizes)
    state = problems.start(_scaffold(0.1), len(SIZES))
    options = {"clients": broken, "state": state}
    result = _simulate(0.1, 8, extensions=[fo.Rollback(limit=2)], **options)
    assert "the loss is not finite on client 0" in result.stopped
    assert "Gone back 2 times; the last good state is kept" in result.stopped
    problems.assert_identical(result.state, state)
    guarded = fo.Guard(min_clients=4)
    result = _simulate(0.1, 8, extensions=[fo.Rollback(limit=1)], guard=guarded, **options)
    assert "Every round was skipped for what clients sent" in result.stopped
    assert int(result.state.round) == 0


def test_rounds_without_clients_say_nothing():
    """Nobody can be reached in some rounds, one of them a whole chunk: no divergence, and no measure."""
    trace = np.ones((24, len(SIZES)))
    trace[[2, 4, 5, 6, 7, 9]] = 0
    sampler = fo.cohorts.available(4, trace)
    options = {"cohort": sampler, "extensions": [fo.Rollback(factor=3.0)]}
    result = _simulate(0.05, **options)
    assert result.stopped == "24 rounds done" and np.all(result.history["step_scale"] == 1)


def test_three_returns_end_a_run_whose_loss_does_not_depend_on_the_step():
    """A jump of the data in round 4: no step is small enough."""

    def loss(variables, batch, key):
        del key
        losses = jnp.full(batch["y"].shape, jnp.exp(0.0 * variables.params["w"][0]))
        return losses.mean(), fo.Aux(losses=losses)

    seen = []

    class Judge(fo.Rollback):
        """Takes the loss for ten thousand times as large from round 4 on."""

        def after(self, memory, chunk):
            seen.append((chunk.first, chunk.step_scale))
            first_loss = np.where(chunk.infos.round >= 4, 1e4, 1.0)
            infos = chunk.infos._replace(first_loss=first_loss)
            return super().after(memory, chunk._replace(infos=infos))

    model = fo.Model(problems.MODEL.init, loss)
    result = _simulate(0.1, model=model, evaluate_every=2, extensions=[Judge(limit=3)])
    assert "Gone back 3 times" in result.stopped
    diverged = [(first, scale) for first, scale in seen if first == 4]
    assert diverged == [(4, 1.0), (4, 0.5), (4, 0.25), (4, 0.125)]
    assert int(result.state.round) == len(result.history["loss"]) == 2


# Where it goes back to ------------------------------------------------------------------------

N, CHUNK = 6, 3
SIX = problems.ragged((5, 8, 3, 12, 4, 6))
SIX_CLIENTS = fo.Federation(
    problems.MODEL, SIX, cohort=N, local_steps=2, batch_size=4, test=SIX.examples
)
EVERYBODY = np.arange(N)
RULES = fo.Rollback(factor=9.0, shrink=0.1)
# One more local step while the loss, which it follows slowly, is low.
STEPS = fo.Controller(
    lambda: jnp.float64(9.0),
    lambda seen, info: 0.7 * seen + 0.3 * info.loss,
    lambda seen, round_number: jnp.where(seen < 3, 3, 2),
)


def _soon_too_large(round_number):
    return jnp.where(round_number < 6, 0.02, 1.0)


def _play(rate=_soon_too_large, rounds=24, **options):
    setting = {
        "evaluate_every": CHUNK,
        "strategy": "scan",
        "progress": False,
        "extensions": [RULES],
    }
    federation, options = problems.changed(SIX_CLIENTS, setting | options)
    return fo.simulate(fo.scheduled(_scaffold, rate), federation, rounds, **options)


def _assert_same(left, right):
    seconds = [run.evaluations.pop("seconds", None) for run in (left, right)]
    problems.assert_identical(left.history, right.history)
    problems.assert_identical(left.evaluations, right.evaluations)
    problems.assert_identical(left.state._replace(clients=()), right.state._replace(clients=()))
    for run, values in zip((left, right), seconds, strict=True):
        run.evaluations["seconds"] = values


@pytest.fixture(scope="module")
def in_memory():
    """The run without checkpoints, and with a controller of K."""
    return {"fixed": _play(), "controller": _play(local_steps=STEPS)}


def _returns(caplog):
    return [int(m.split("Back to round ")[1].split(",")[0]) for m in caplog.messages if "Back" in m]


def test_it_goes_back_to_the_newest_state_that_has_proved_itself(caplog):
    """Found in rounds 18 to 20, whose first loss is not yet nine times the lowest."""
    with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
        result = _play()
    history = result.history
    assert _returns(caplog) == [18] and int(result.state.round) == 24
    np.testing.assert_array_equal(history["round"], np.arange(24))
    np.testing.assert_array_equal(history["step_scale"], [1.0] * 18 + [0.1] * 6)
    np.testing.assert_array_equal(result.evaluations["round"], np.arange(3, 25, 3))
    losses = history["first_loss"]
    assert np.all(losses[20:] < losses[18]) and losses.max() <= 9 * losses[:18].min()


@pytest.mark.parametrize("name", ["fixed", "controller"])
def test_checkpoints_are_as_good_as_copies(tmp_path, in_memory, name):
    """One is enough, though the run needs an older one: it stays as long as it is needed."""
    seen = []
    with fo.Checkpoints(tmp_path, keep=1, best_metric="loss") as checkpoints:
        result = _play(
            checkpoints=checkpoints,
            local_steps=STEPS if name == "controller" else 2,
            extensions=[RULES, lambda chunk: seen.append((chunk.last, checkpoints.rounds))],
        )
    _assert_same(result, in_memory[name])
    if name == "fixed":
        assert [number for number, _ in seen] == [*range(3, 22, 3), 21, 24]
        # When rounds 15 to 17 are judged, that of round 12 has proved itself, and that of 15 may.
        assert {12, 15} <= set(dict(seen)[18])


@pytest.mark.parametrize("kind", ["copies", "checkpoints"])
@pytest.mark.parametrize("folder", [None, "store"])
def test_a_store_of_clients_goes_back_as_well(tmp_path, in_memory, kind, folder):
    expected = in_memory["fixed"]
    with (
        fo.ClientStore(folder and tmp_path / folder) as store,
        fo.Checkpoints(tmp_path / "checkpoints") as checkpoints,
    ):
        used = None if kind == "copies" else checkpoints
        _assert_same(_play(client_states=store, checkpoints=used), expected)
        problems.assert_identical(store.rows(EVERYBODY).states, expected.state.clients)


def test_a_state_that_is_bad_itself_is_not_gone_back_to(tmp_path, caplog):
    """Only the last round of a chunk takes a step that is far too large, and nothing shows it yet."""

    def once(round_number):
        return jnp.where(round_number == 8, 1e3, 0.05)

    for checkpoints in (None, fo.Checkpoints(tmp_path)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
            result = _play(
                once, 15, local_steps=1, checkpoints=checkpoints,
                extensions=[fo.Rollback(shrink=1e-4)],
            )  # fmt: skip
        assert _returns(caplog) == [6]
        assert result.stopped == "15 rounds done" and np.all(result.history["loss"] < 10)
    checkpoints.close()


def test_a_signal_while_a_run_diverges_ends_it_at_the_good_state(tmp_path, in_memory, monkeypatch):
    go_back = acting.Acting._go_back

    def signalled(*args):
        go_back(*args)
        signal.raise_signal(signal.SIGTERM)

    with fo.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch, pytest.raises(fo.Interrupted, match="21 of 24"):
            patch.setattr(acting.Acting, "_go_back", signalled)
            _play(checkpoints=checkpoints)
        assert checkpoints.latest_round == 21
        _assert_same(_play(checkpoints=checkpoints), in_memory["fixed"])


def test_a_run_may_resume_under_other_rules_but_not_with_another_guard(tmp_path):
    guard = fo.Guard(max_norm=1e6)
    with fo.Checkpoints(tmp_path) as checkpoints:
        _play(rounds=3, checkpoints=checkpoints, guard=guard, extensions=[])
        with pytest.warns(UserWarning, match="no memory of the extension 'Rollback'.* at round 3"):
            result = _play(rounds=6, checkpoints=checkpoints, guard=guard)
        assert "step_scale" not in result.history  # its first rounds did not have one
        result = _play(rounds=9, checkpoints=checkpoints, guard=guard, extensions=[])
        assert len(result.history["loss"]) == 9
        for options, message in [
            ({"guard": None}, "another .* run: guard.*missing here"),
            ({"guard": fo.Guard(max_norm=1e5)}, "hyperparameters: guard.max_norm is "),
        ]:
            with pytest.raises(ValueError, match=message):
                _play(rounds=12, checkpoints=checkpoints, **options)
