"""A sweep that is interrupted, and goes on where it was: with the bits of one that never was."""

import warnings

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments import sweep as sweeping
from fedjax_opt.experiments import waves
from fedjax_opt.experiments.rundir import RunDirectory, read
from fedjax_opt.experiments.sweep import Interrupted, Trial, run_trials
from fedjax_opt.experiments.trials import finished
from fedjax_opt.experiments.unfinished import Unfinished
from fedjax_opt.training import Checkpoints
from tests.core import problems

DATA = problems.ragged((5, 8, 3, 12, 7, 4))
ROUNDS, EVERY = 7, 2
# The last one diverges. Six trials, at most four at once, are two waves of three.
RATES = (0.01, 0.1, 1e30)


def scaffold(hyperparameters):
    return fo.scaffold(fo.optimizers.sgd(hyperparameters["learning_rate"]))


TRIALS = [Trial("scaffold", scaffold, {"learning_rate": r}, seed) for r in RATES for seed in (0, 1)]


FEDERATION = fo.Federation(
    problems.MODEL, DATA, cohort=3, local_steps=2, batch_size=4, test=DATA.examples
)


def sweep(trials=TRIALS, **changes):
    federation, changes = problems.changed(FEDERATION, changes)
    chosen = {"rounds": ROUNDS, "evaluate_every": EVERY, "strategy": fo.Strategy("chunked", 4)}
    return run_trials(federation, trials, **chosen | changes)


@pytest.fixture(scope="module")
def expected():
    told = []
    return sweep(on_chunk=told.append), told


@pytest.fixture
def played(monkeypatch):
    """The lengths of the chunks that were computed."""
    counts, original = [], waves.play

    def play(shared, wave, states, count, setup):
        if isinstance(count, np.int32):  # else its shapes are asked for
            counts.append(int(count))
        return original(shared, wave, states, count, setup=setup)

    monkeypatch.setattr(waves, "play", play)
    return counts


def interrupted(folder, after, every=60.0, done=frozenset(), told=None, **changes):
    """Plays until so many chunks have been told of, then Ctrl-C."""
    told = [] if told is None else told

    def press(progress):
        told.append(progress)
        if len(told) == after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        sweep(on_chunk=press, unfinished=Unfinished(folder, done, every), **changes)
    return caught.value.trials


def assert_same(found, expected, rows=slice(None)):
    assert found.trials == expected.trials[rows] and found.failures == expected.failures[rows]
    problems.assert_identical(
        (found.rounds, found.variables), (expected.rounds[rows], expected.variables[rows])
    )
    for name in ("history", "evaluations"):
        for key, column in getattr(expected, name).items():
            own = column if key == "round" and name == "evaluations" else column[rows]
            np.testing.assert_array_equal(getattr(found, name)[key], own, err_msg=key)


@pytest.mark.parametrize("after", [1, 3])
def test_a_wave_goes_on_where_it_was(expected, played, tmp_path, after):
    """Interrupted in the first of two waves."""
    folder = tmp_path / "unfinished"
    interrupted(folder, after)
    assert Checkpoints(folder).rounds == [after]
    done = played.copy()
    told = []
    found = sweep(unfinished=Unfinished(folder), on_chunk=told.append)
    assert_same(found, expected[0])
    assert found.records == expected[0].records
    assert len(played) == 2 * 4 and played[len(done) :] == [2] * (3 - after) + [1] + [2, 2, 2, 1]
    assert [p.done for p in told] == [p.done for p in expected[1][after - 1 :]], (
        "the last once more"
    )
    assert not folder.exists()


def test_what_was_finished_keeps_its_place(expected, played, tmp_path):
    """Interrupted in the second wave: the first one is not played again, and changes no program."""
    folder, told = tmp_path / "unfinished", []
    interrupted(folder, 5, told=told)
    records = [record for progress in told for record in progress.records]
    done = finished(records, ROUNDS)
    assert done == {trial.identity for trial in TRIALS[:3]}
    del played[:]
    found = sweep(unfinished=Unfinished(folder, done))
    assert_same(found, expected[0], slice(3, None))
    assert len(played) < 4


def test_who_diverged_before_is_not_told_again(tmp_path):
    folder, told = tmp_path / "unfinished", []
    trials = TRIALS[2:]  # one wave, of which two diverge
    interrupted(folder, 3, told=told, trials=trials)
    done = finished([record for progress in told for record in progress.records], ROUNDS)
    assert done == {trial.identity for trial in trials[2:]}
    again = []
    found = sweep(trials, unfinished=Unfinished(folder, done), on_chunk=again.append)
    assert found.trials == tuple(trials[:2])
    whole = sweep(trials)  # fewer trials are another program, which may round differently
    assert_same(found, whole, slice(0, 2))
    assert [p.trials for p in again] == [tuple(trials[:2])] * 2
    models = dict(zip(map(str, whole.trials), whole.variables, strict=True))
    assert [trial for trial, _ in again[-1].models] == trials, "whose models are kept nevertheless"
    for trial, variables in again[-1].models:
        problems.assert_identical(variables, models[str(trial)])


def test_a_kill_loses_what_came_after_the_last_write(expected, played, tmp_path, monkeypatch):
    """The first chunk is written; the second one is cut short inside the program, as by a kill."""
    folder, original = tmp_path / "unfinished", waves.play

    def play(*arguments, **rest):
        if len(played) == 1:
            raise KeyboardInterrupt
        return original(*arguments, **rest)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(waves, "play", play)
        sweep(unfinished=Unfinished(folder, every=0.0))
    assert Checkpoints(folder).rounds == [1]
    del played[:]
    assert_same(sweep(unfinished=Unfinished(folder)), expected[0])
    assert played == [2, 2, 1, 2, 2, 2, 1]


def test_nothing_is_written_before_it_is_due(tmp_path):
    sweep(unfinished=Unfinished(tmp_path / "unfinished"))
    assert not (tmp_path / "unfinished").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trials": TRIALS[1:]}, r"of a wave of other runs: 0 is scaffold.* seed 0 there"),
        ({"rounds": 8}, "rounds is 7 there and 8 here"),
        ({"test": {k: v[:5] for k, v in DATA.examples.items()}}, "Other data: test"),
    ],
)
def test_a_foreign_one_is_not_used(tmp_path, changes, why):
    folder = tmp_path / "unfinished"
    interrupted(folder, 2)
    with pytest.warns(
        UserWarning, match=rf"{folder}/2 is not used, and its runs begin anew.*{why}"
    ):
        found = sweep(unfinished=Unfinished(folder), **changes)
    assert_same(found, sweep(**changes))
    assert not folder.exists()


def test_other_versions_do_not_go_on(tmp_path, monkeypatch):
    folder = tmp_path / "unfinished"
    interrupted(folder, 2)
    now = sweeping.fingerprint.versions()
    monkeypatch.setattr(sweeping.fingerprint, "versions", lambda: now | {"jax": "0.0.1"})
    with pytest.warns(UserWarning, match="Other versions: jax is"):
        sweep(unfinished=Unfinished(folder))


@pytest.mark.parametrize("name", ["2/about.json", "2/state/_METADATA", "history/00002.npz"])
def test_a_damaged_one_is_refused(expected, tmp_path, name):
    folder = tmp_path / "unfinished"
    interrupted(folder, 2)
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.warns(UserWarning, match=rf"{folder}/2 is not used.*{name}"):
        found = sweep(unfinished=Unfinished(folder))
    assert_same(found, expected[0])


def test_an_unusable_one_gives_way_to_the_next(expected, tmp_path):
    """It is of a later chunk, so that it would be taken for the newest."""
    folder = tmp_path / "unfinished"
    interrupted(folder, 3)
    (folder / "3" / "about.json").unlink()
    with pytest.warns(UserWarning, match=r"about\.json cannot be read"):
        interrupted(folder, 1)
    assert Checkpoints(folder).rounds == [1]
    assert_same(sweep(unfinished=Unfinished(folder)), expected[0])


def test_one_that_was_finished_before_it_was_deleted_says_nothing(expected, tmp_path):
    folder = tmp_path / "unfinished"
    interrupted(folder, 2)
    done = [trial.identity for trial in TRIALS[:3]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sweep(unfinished=Unfinished(folder, done))
    assert_same(found, expected[0], slice(3, None))


def test_a_finished_directory_holds_no_unfinished_run(tmp_path):
    with RunDirectory(tmp_path, "rounds = 7") as run:
        interrupted(run.unfinished, 1)
        assert Checkpoints(run.unfinished).rounds == [1]
    assert not run.unfinished.exists()
    assert read(tmp_path).about["status"] == "finished"
