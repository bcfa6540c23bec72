"""What stays of a run's checkpoints, and how they are written meanwhile."""

import errno
import gc
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.storage import durable
from tests.core import problems
from tests.core.test_simulate import N, simulate

FEDAVG = fo.fedavg(fo.optimizers.sgd(0.1))
STATE = problems.start(FEDAVG, N)


def at(round_number):
    return STATE._replace(round=jnp.int32(round_number))


def fill(directory, losses, **options):
    """Checkpoints of rounds 10, 20, ... with these losses; which of them have stayed."""
    with fo.Checkpoints(directory, **options) as checkpoints:
        for i, loss in enumerate(losses):
            checkpoints.save(at(10 * i + 10), {}, metrics={"loss": loss})
        return checkpoints.rounds, checkpoints.best_round


@pytest.mark.parametrize(
    ("options", "stay", "best"),
    [
        ({"keep": 2}, [40, 50], None),
        ({"keep": 1, "keep_every": 20}, [20, 40, 50], None),
        ({"keep": 1, "best_metric": "loss"}, [20, 50], 20),
        (
            {"keep": 1, "keep_every": 20, "best_metric": "loss", "maximise": True},
            [20, 30, 40, 50],
            30,
        ),
        ({"keep": 9}, [10, 20, 30, 40, 50], None),
    ],
)
def test_what_stays(tmp_path, options, stay, best):
    """Of equal ones the earliest is the best; what is no number never is."""
    assert fill(tmp_path, [3.0, 1.0, 4.0, 1.0, np.nan], **options) == (stay, best)
    assert sorted(os.listdir(tmp_path)) == [".lock", *map(str, stay)]


def test_the_best_is_remembered_by_another_process(tmp_path):
    fill(tmp_path, [3.0, 1.0, 4.0], keep=1, best_metric="loss")
    with fo.Checkpoints(tmp_path, keep=1, best_metric="loss") as checkpoints:
        checkpoints.save(at(90), {}, metrics={"loss": 2.0})
        assert checkpoints.rounds == [20, 90] and checkpoints.best_round == 20
        (tmp_path / "20" / "about.json").write_text("{}")  # what cannot be read is not the best
        assert checkpoints.best_round == 90


def test_a_best_metric_that_nobody_measures_is_refused(tmp_path):
    with fo.Checkpoints(tmp_path, best_metric="accuracy") as checkpoints:
        with pytest.raises(ValueError, match=r"one of the evaluated \['loss'\], got 'accuracy'"):
            checkpoints.save(at(1), {}, metrics={"loss": 1.0})
        with pytest.raises(ValueError, match=r"one of the evaluated \[\], got 'accuracy'"):
            checkpoints.check_metrics(())
        checkpoints.check_metrics({"accuracy": 1.0})
        assert checkpoints.rounds == [] and checkpoints.best_round is None


class Held:
    """Makes every write wait until it is let go, or fail."""

    def __init__(self, monkeypatch, error=None):
        self.go = threading.Event()
        self.begun = threading.Event()
        seal = durable.seal

        def held(folder):
            self.begun.set()
            assert self.go.wait(60)
            if error is not None:
                raise error
            return seal(folder)

        monkeypatch.setattr(durable, "seal", held)


def test_a_state_may_be_given_up_while_it_is_written(tmp_path, monkeypatch):
    held = Held(monkeypatch)
    give_up = jax.jit(lambda x: jax.tree.map(lambda y: y + 1, x), donate_argnums=0)
    state = jax.tree.map(jnp.copy, at(3))
    expected = problems.arrays(at(3))
    history = {"rounds": {"loss": np.arange(3.0)}}
    with fo.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(state, history)
        assert held.begun.wait(60) and os.listdir(tmp_path / ".partial-3") == ["state"]
        give_up(state.server)
        assert state.server.variables.params["w"].is_deleted()
        history["rounds"]["loss"][:] = -1
        held.go.set()
        restored, found = checkpoints.restore(STATE)
    for a, b in zip(problems.arrays(restored), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(found["rounds"]["loss"], np.arange(3.0))


def test_rounds_go_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The second chunk is played while the first one's checkpoint is held; its own waits for it."""
    held = Held(monkeypatch)
    events = []
    with fo.Checkpoints(tmp_path) as checkpoints:
        wait = checkpoints.wait

        def watched():
            if checkpoints._pending is not None:
                events.append(("waits", held.go.is_set()))
                held.go.set()
            wait()

        def watch(chunk):
            events.append((chunk.last, held.go.is_set()))

        monkeypatch.setattr(checkpoints, "wait", watched)
        simulate(15, FEDAVG, checkpoints=checkpoints, extensions=[watch], evaluate_every=5)
        assert checkpoints.rounds == [5, 10, 15]
    assert events[:3] == [(5, False), (10, False), ("waits", False)]


def test_a_write_that_fails_is_told_and_leaves_the_others(tmp_path, monkeypatch):
    with fo.Checkpoints(tmp_path) as checkpoints:
        simulate(5, FEDAVG, checkpoints=checkpoints, evaluate_every=5)
        held = Held(monkeypatch, OSError(28, "No space left on device"))
        held.go.set()
        with pytest.raises(OSError, match="No space left") as caught:
            simulate(20, FEDAVG, checkpoints=checkpoints, evaluate_every=5)
        assert "checkpoint of round 10" in caught.value.__notes__[0]
        assert checkpoints.rounds == [5]
    assert sorted(os.listdir(tmp_path)) == [".lock", "5", "history"]


def test_two_runs_do_not_write_into_one_directory(tmp_path):
    with fo.Checkpoints(tmp_path) as checkpoints, fo.Checkpoints(tmp_path) as others:
        checkpoints.save(at(1), {})
        assert others.latest_round in (None, 1)  # reading is free
        with pytest.raises(ValueError, match="in use by another run"):
            others.save(at(2), {})
    with fo.Checkpoints(tmp_path) as others:
        others.save(at(2), {})
        assert others.rounds == [1, 2]


def test_a_directory_is_let_go_of_when_nobody_uses_it(tmp_path):
    """As in a program that calls `simulate` twice, and has no name for its checkpoints."""
    for rounds in (5, 10):
        result = simulate(rounds, FEDAVG, checkpoints=fo.Checkpoints(tmp_path), evaluate_every=5)
    assert result.history["loss"].shape == (10,)
    checkpoints = fo.Checkpoints(tmp_path, asynchronous=False)
    checkpoints.save(at(11), {})
    del checkpoints
    gc.collect()
    with fo.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(at(12), {})
        assert checkpoints.rounds == [10, 11, 12]
    checkpoints.save(at(13), {})  # it takes the directory again
    with pytest.raises(ValueError, match="in use by another run"):
        fo.Checkpoints(tmp_path).save(at(14), {})
    checkpoints.close()


def test_a_disk_without_locks_is_written_to_with_a_warning(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(durable.fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="has no locks"), fo.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(at(1), {})
        assert checkpoints.rounds == [1]


def test_no_checkpoint_is_lost_or_passed_over_by_a_loop_of_ones_own(tmp_path):
    with fo.Checkpoints(tmp_path, keep=2, asynchronous=False) as checkpoints:
        for number in (10, 20):
            checkpoints.save(at(number), {})
            assert (tmp_path / str(number) / "about.json").exists()
    with fo.Checkpoints(tmp_path, keep=2) as checkpoints:
        for number in (5, 10, 20):
            with pytest.raises(
                ValueError, match=f"of round 20, so one of round {number} cannot be"
            ):
                checkpoints.save(at(number), {})
        assert checkpoints.rounds == [10, 20]
        checkpoints.delete_after(10)
        checkpoints.save(at(20), {"way": "another"})
        assert checkpoints.restore(STATE)[1] == {"way": "another"}


def rows(count, other=0.0):
    """A history of so many rounds, evaluated every ten."""
    rounds = {"loss": np.arange(count) + other, "cohort": np.arange(3 * count).reshape(-1, 3)}
    evaluated = {"round": np.arange(10, count + 1, 10)} if count >= 10 else {}
    return {"rounds": rounds, "evaluations": evaluated}


def test_the_rows_of_a_history_are_written_once(tmp_path):
    files = tmp_path / "history"
    with fo.Checkpoints(tmp_path, keep=2) as checkpoints:
        for number in (5, 10, 20, 30):
            checkpoints.save(at(number), rows(number))
            checkpoints.wait()
        names = [f"{number:05d}.npz" for number in (5, 10, 20, 30)]
        assert sorted(os.listdir(files)) == names
        assert np.load(files / "00020.npz")["rounds/loss"].shape == (10,)
        for number in (20, 30):
            problems.assert_identical(checkpoints.restore(STATE, round=number)[1], rows(number))
        checkpoints.delete_after(20)  # the run goes another way
        assert not (files / "00030.npz").exists()
        other = rows(30, other=0.5)
        other["rounds"]["loss"][:20] -= 0.5
        checkpoints.save(at(30), other)
    with fo.Checkpoints(tmp_path) as checkpoints:
        problems.assert_identical(checkpoints.restore(STATE)[1], other)
        checkpoints.save(at(40), rows(40))  # goes on after what was restored
        checkpoints.wait()
        assert np.load(files / "00040.npz")["rounds/loss"].tolist() == [*range(30, 40)]
        with pytest.raises(ValueError, match=r"at least the 40 that are saved .* got \[10, 10\]"):
            checkpoints.save(at(50), rows(10))


def test_what_a_run_remembers_comes_back_to_the_bit(tmp_path):
    history = {
        "memories": {
            "stopping": {"best": 0.1 + 0.2, "names": ["a", None], "seen": True, "inf": np.inf},
            "arrays": [np.float32([1 / 3, np.nan]), np.arange(6, dtype=np.int8).reshape(2, 3)],
            "one": np.array(1 / 3, np.float32), "text": np.array(["x", "yy"]), "nothing": {},
        },
        "step_scale": 0.1**3,
    }  # fmt: skip
    with fo.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(at(1), history)
        found = checkpoints.restore(STATE)[1]
        with pytest.raises(ValueError, match="None and arrays, got <object"):
            checkpoints.save(at(2), {"memories": object()})
    assert found["memories"]["stopping"] == history["memories"]["stopping"]
    assert found["step_scale"] == 0.1**3 and found["memories"]["nothing"] == {}
    for name in ("arrays", "one", "text"):
        for a, b in zip(
            *(jax.tree.leaves(x["memories"][name]) for x in (found, history)), strict=True
        ):
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_what_a_kill_has_left_is_cleared_away(tmp_path):
    for name in (".partial-5", ".partial-1"):
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "half").write_text("x")
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "00005.npz").write_text("x")
    with fo.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest_round is None
        checkpoints.save(at(2), {})
    assert sorted(os.listdir(tmp_path)) == [".lock", "2", "history"]
    assert os.listdir(tmp_path / "history") == []


def test_a_failure_of_the_run_is_told_before_that_of_its_checkpoint(tmp_path, monkeypatch):
    held = Held(monkeypatch, OSError("disk"))
    held.go.set()

    def fail(chunk):
        if chunk.last == 10:
            raise ZeroDivisionError

    with (
        fo.Checkpoints(tmp_path) as checkpoints,
        pytest.warns(UserWarning, match="The last checkpoint was not written: disk"),
        pytest.raises(ZeroDivisionError),
    ):
        simulate(10, FEDAVG, checkpoints=checkpoints, extensions=[fail], evaluate_every=5)
