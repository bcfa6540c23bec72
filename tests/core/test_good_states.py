"""Where a run that diverges goes back to: copies and checkpoints alike, also if it is killed."""

import logging
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.training import checkpoints as saving
from fedjax_opt.training import rollback
from fedjax_opt.training.good_states import Losses, Record
from tests.core import problems

N, CHUNK = 6, 3
DATA = problems.ragged((5, 8, 3, 12, 4, 6))
EVERYBODY = np.arange(N)
RULES = fo.Rollback(factor=9.0, shrink=0.1)
# One more local step while the loss, which it follows slowly, is low.
STEPS = fo.Controller(
    lambda: jnp.float64(9.0),
    lambda seen, info: 0.7 * seen + 0.3 * info.loss,
    lambda seen, round_number: jnp.where(seen < 3, 3, 2),
)


def _scaffold(rate):
    return fo.scaffold(fo.optimizers.sgd(rate))


def _soon_too_large(round_number):
    return jnp.where(round_number < 6, 0.02, 1.0)


def _play(rate=_soon_too_large, rounds=24, **options):
    setting = {
        "cohort_size": N, "batch_size": 4, "local_steps": 2, "evaluate_every": CHUNK,
        "strategy": "scan", "test": DATA.examples, "progress": False, "rollback": RULES,
    }  # fmt: skip
    return fo.simulate(
        _scaffold, problems.MODEL, DATA, rounds, learning_rate=rate, **setting | options
    )


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


def test_what_grew_worse_is_forgotten_too(caplog):
    """Found in rounds 18 to 20; the loss had more than tripled before, from round 12 on."""
    with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
        result = _play()
    history = result.history
    assert _returns(caplog) == [12] and int(result.state.round) == 24
    np.testing.assert_array_equal(history["round"], np.arange(24))
    np.testing.assert_array_equal(history["step_scale"], [1.0] * 12 + [0.1] * 12)
    np.testing.assert_array_equal(result.evaluations["round"], np.arange(3, 25, 3))
    losses = history["loss"].reshape(-1, CHUNK).mean(axis=1)
    assert np.all(losses[4:] < losses[3])


@pytest.mark.parametrize("name", ["fixed", "controller"])
def test_checkpoints_are_as_good_as_copies(tmp_path, in_memory, name):
    """One is enough, though the run needs an older one: it stays as long as it is needed."""
    seen = []
    with fo.Checkpoints(tmp_path, keep=1, best_metric="loss") as checkpoints:
        result = _play(
            checkpoints=checkpoints,
            local_steps=STEPS if name == "controller" else 2,
            callbacks=[lambda event: seen.append((event.round, checkpoints.rounds))],
        )
    _assert_same(result, in_memory[name])
    if name == "fixed":
        assert [number for number, _ in seen] == [*range(3, 19, 3), *range(15, 25, 3)]
        there, again = dict(seen[:6]), dict(seen[6:])
        assert 12 in there[15] and 12 in there[18]
        assert max(again[15]) == 15  # 18 was of the other way


@pytest.mark.parametrize("kind", ["copies", "checkpoints"])
@pytest.mark.parametrize("folder", [None, "store"])
def test_a_store_of_clients_goes_back_as_well(tmp_path, in_memory, kind, folder):
    expected = in_memory["fixed"]
    with (
        fo.ClientStore(folder and tmp_path / folder) as store,
        fo.Checkpoints(tmp_path / "checkpoints") as checkpoints,
    ):
        used = None if kind == "copies" else checkpoints
        _assert_same(_play(client_state=store, checkpoints=used), expected)
        problems.assert_identical(store.rows(EVERYBODY).states, expected.state.clients)


class Killed(BaseException):
    """The end of the process."""


def test_a_run_that_is_killed_at_any_moment_goes_back_as_one_that_is_not(
    tmp_path, in_memory, monkeypatch
):
    """Before it diverges, before and after each deletion, before the clients go back, afterwards."""
    expected, delete = in_memory["controller"], saving._delete
    undo = fo.ClientStore.roll_back

    def run(folder, moment=0):
        """The run, which ends at such a moment; what happened at each."""
        moments = []

        def count(what):
            moments.append(what)
            if len(moments) == moment:
                raise Killed

        def dying(*args):
            count(f"before {args[1]} is deleted")
            delete(*args)
            count(f"after {args[1]} is deleted")

        def rolling_back(store, number):
            count(f"before the clients are back in {number}")
            undo(store, number)

        with (
            monkeypatch.context() as patch,
            fo.ClientStore(folder / "store") as store,
            fo.Checkpoints(folder / "checkpoints", keep=2, asynchronous=False) as checkpoints,
        ):
            patch.setattr(saving, "_delete", dying)
            patch.setattr(fo.ClientStore, "roll_back", rolling_back)
            result = _play(
                client_state=store, checkpoints=checkpoints, local_steps=STEPS,
                callbacks=[lambda event: count(f"after round {event.round}")],
            )  # fmt: skip
            problems.assert_identical(store.rows(EVERYBODY).states, expected.state.clients)
        _assert_same(result, expected)
        return moments

    moments = run(tmp_path / "whole")
    back = next(i for i, what in enumerate(moments) if i and what.startswith("before the clients"))
    assert moments[back] == "before the clients are back in 12"
    assert moments[back - 4 : back] == [
        "before 18 is deleted", "after 18 is deleted", "before 15 is deleted", "after 15 is deleted",
    ]  # fmt: skip
    for moment in (back - 5, *range(back - 3, back + 2), back + 4):
        with pytest.raises(Killed):
            run(tmp_path / str(moment), moment)
        run(tmp_path / str(moment))


def test_a_state_that_is_bad_itself_is_not_gone_back_to(tmp_path, caplog):
    """Only the last round of a chunk takes a step that is far too large, and nothing shows it yet."""

    def once(round_number):
        return jnp.where(round_number == 8, 1e3, 0.05)

    for checkpoints in (None, fo.Checkpoints(tmp_path)):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="fedjax_opt"):
            result = _play(
                once, 15, local_steps=1, checkpoints=checkpoints,
                rollback=fo.Rollback(shrink=1e-4),
            )  # fmt: skip
        assert _returns(caplog) == [6]
        assert result.stopped == "15 rounds done" and np.all(result.history["loss"] < 10)
    checkpoints.close()


def test_a_signal_while_a_run_diverges_ends_it_at_the_good_state(tmp_path, in_memory, monkeypatch):
    go_back = rollback.Fallback.go_back

    def signalled(*args):
        signal.raise_signal(signal.SIGTERM)
        return go_back(*args)

    with fo.Checkpoints(tmp_path) as checkpoints:
        with monkeypatch.context() as patch, pytest.raises(fo.Interrupted, match="12 of 24"):
            patch.setattr(rollback.Fallback, "go_back", signalled)
            _play(checkpoints=checkpoints)
        assert checkpoints.latest_round == 12
        _assert_same(_play(checkpoints=checkpoints), in_memory["fixed"])


def test_a_run_does_not_resume_under_other_rules(tmp_path):
    guard = fo.Guard(max_norm=1e6)
    with fo.Checkpoints(tmp_path) as checkpoints:
        _play(rounds=3, checkpoints=checkpoints, guard=guard)
        for options, message in [
            ({"rollback": None, "guard": guard}, "another .* run: rollback.*missing here"),
            ({"guard": None}, "another .* run: guard.*missing here"),
            (
                {"rollback": fo.Rollback(5.0), "guard": guard},
                "hyperparameters: rollback.factor is 9.0 there and 5.0 here",
            ),
            ({"guard": fo.Guard(max_norm=1e5)}, "hyperparameters: guard.max_norm is "),
        ]:
            with pytest.raises(ValueError, match=message):
                _play(rounds=6, checkpoints=checkpoints, **options)


# The rules by themselves ----------------------------------------------------------------------


def _after(record, done, mean, first=None, reach=np.inf):
    """A chunk of three rounds up to `done`, by the rules of factor 4."""
    found = Losses(mean, mean if first is None else first, mean)
    return record.begun(found).tried(done - 3, found, 4.0).advanced(done, found, 2.0, reach)


def test_a_state_is_good_if_its_chunk_and_its_own_loss_were():
    record = Record(good=(0,))
    for done, mean, first, good in [
        (3, 1.0, 2.0, (0, 3)),  # its own loss is not known yet
        (6, 1.5, 1.0, (3, 6)),
        (9, 3.0, 1.0, (6,)),  # thrice the lowest
        (12, 2.0, 3.0, (6, 12)),
        (15, 2.0, 9.0, (6, 15)),  # the state of round 12 turned out to be bad
        (18, 0.5, 0.5, (15, 18)),
        (21, 1.1, 0.5, (18,)),
    ]:
        record = _after(record, done, mean, first)
        assert record.good == good
    assert (record.lowest, record.lowest_first) == (0.5, 0.5)
    nothing = Losses(np.nan, np.nan, np.nan)  # everybody was away
    assert record.tried(21, nothing, 4.0).advanced(24, nothing, 2.0, np.inf).good == (18,)


def test_a_state_that_gets_out_of_reach_is_given_up_for_the_newest():
    record = _after(Record(good=(0,)), 3, 1.0)
    for done, good in [(6, (3,)), (9, (3,)), (12, (3, 12)), (15, (12,)), (18, (12,))]:
        record = _after(record, done, 3.0, 1.0, reach=3)
        assert record.good == good and max(record.ages) <= 3
    assert _after(record, 21, 3.0, reach=0).good == (21,)


def test_what_is_remembered_survives_a_checkpoint_to_the_bit():
    record = Record((3, 6), (1, 0), 2, 0.1**2, 1 / 3, 2 / 3)
    assert Record.restored(record.saved()) == record
    back = record.returned(0.5)
    assert (back.good, back.ages, back.returns, back.scale) == ((6,), (0,), 3, 0.1**2 / 2)
