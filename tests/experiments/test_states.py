"""A sweep that is interrupted, or wants more rounds, goes on where it was: with the bits of one run."""

import warnings

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments import waves
from fedjax_opt.experiments.states import States
from fedjax_opt.experiments.sweep import Interrupted, Trial, run_trials
from fedjax_opt.experiments.trials import finished, identity_of
from fedjax_opt.training import fingerprint
from tests.core import problems

pytestmark = pytest.mark.slow  # every sweep is compiled

DATA = problems.ragged((5, 8, 3, 12, 7, 4))
ROUNDS, EVERY = 7, 2
FEDERATION = fo.Federation(
    problems.MODEL, DATA, cohort=3, local_steps=2, batch_size=4, test=DATA.examples
)


def trials_of(federation=FEDERATION, rates=(0.01, 0.1, 1e30), seeds=(0, 1)):
    """The last ones diverge. Six trials, at most four at once, are two waves of three."""
    return [
        Trial("scaffold", fo.scaffold(fo.optimizers.sgd(r)), federation, seed, {"learning_rate": r})
        for r in rates
        for seed in seeds
    ]


TRIALS = trials_of()


def sweep(trials=TRIALS, rounds=ROUNDS, **options):
    chosen = {"evaluate_every": EVERY, "strategy": fo.Strategy("chunked", 4)}
    return run_trials(trials, rounds, **chosen | options)


class Kept:
    """What a run directory does: it holds the records, and knows from them what was finished."""

    def __init__(self, folder):
        self.folder, self.records = folder / "states", []

    def sweep(self, trials=TRIALS, rounds=ROUNDS, after=None, every=60.0, keep=True, **options):
        """Goes on with what is there, to the end or until so many chunks have been told of."""
        told = []

        def note(progress):
            self.records += progress.records
            told.append(progress)
            if len(told) == after:
                raise KeyboardInterrupt

        reached = {identity_of(record): record["round"] for record in self.records}
        done = finished(self.records, rounds)
        states = States(self.folder, done, reached, every=every, keep=keep)
        try:
            return sweep(trials, rounds, on_chunk=note, states=states, **options)
        except Interrupted as error:
            return error.trials

    def found(self):
        """The records, each the last of its trial and round, in order."""
        last = {(identity_of(record), record["round"]): record for record in self.records}
        return [last[key] for key in sorted(last)]


def in_order(records):
    return sorted(records, key=lambda record: (identity_of(record), record["round"]))


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path)


@pytest.fixture
def played(monkeypatch):
    """The lengths of the chunks that were computed."""
    counts, original = [], waves.play

    def play(shared, wave, states, count, setup):
        counts.append(int(count))
        return original(shared, wave, states, count, setup=setup)

    monkeypatch.setattr(waves, "play", play)
    return counts


@pytest.mark.parametrize("after", [1, 3, 5])
def test_it_goes_on_where_it_was(kept, played, after):
    """Interrupted in the first, or in the second of two waves: no chunk is computed twice."""
    kept.sweep(after=after)
    found = kept.sweep()
    assert kept.found() == in_order(sweep().records)
    assert len(played) == 2 * (4 + 4) and sum(played) == 4 * ROUNDS
    assert found.rounds.count(ROUNDS) == 4 or after == 5


def test_more_rounds_go_on_from_the_final_states(kept, played):
    """Where it ended between two evaluations there is one more record; the others are the same."""
    kept.sweep(rounds=4)
    del played[:]
    kept.sweep()
    assert played == [2, 1, 2, 1], "and the trials that diverged have nothing left to do"
    expected = in_order(sweep().records)
    assert [record for record in kept.found() if "diverged" not in record] == [
        record for record in expected if "diverged" not in record
    ]


def test_without_their_states_they_begin_anew(kept, played):
    kept.sweep(rounds=4, keep=False)
    assert not any(kept.folder.glob("*"))
    del played[:]
    kept.sweep()
    assert sum(played) == 2 * ROUNDS and kept.found() == in_order(sweep().records)


def test_more_trials_leave_the_others_as_they_are(kept):
    few = trials_of(rates=(0.01,), seeds=(1,))
    kept.sweep(few)
    before = kept.found()
    kept.sweep()
    assert [r for r in kept.found() if identity_of(r) == few[0].identity] == before
    found, whole = kept.found(), in_order(sweep().records)
    for one, other in zip(found, whole, strict=True):  # other waves may round differently
        assert one.keys() == other.keys()
        if "loss" in one:
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-12)


def test_a_kill_loses_what_came_after_the_last_write(kept, played, monkeypatch):
    """States are written after each chunk; the second one is cut short inside the program."""
    original = waves.play

    def play(*arguments, **rest):
        if len(played) == 1:
            raise KeyboardInterrupt
        return original(*arguments, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(waves, "play", play)
        kept.sweep(every=0.0)
    assert played == [2] and len(list(kept.folder.iterdir())) == 3
    kept.sweep()
    assert played == [2, 2, 2, 1, 2, 2, 2, 1] and kept.found() == in_order(sweep().records)


def test_a_state_whose_records_were_lost_is_not_used(kept, played):
    kept.sweep(after=2)
    kept.records = kept.records[:3]
    del played[:]
    kept.sweep()
    assert played[:2] == [2, 2] and kept.found() == in_order(sweep().records)


def test_nothing_is_written_before_it_is_due(kept):
    kept.sweep(keep=False)
    assert not kept.folder.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {k: v[:5] for k, v in DATA.examples.items()}},
        {"clients": problems.ragged((5, 8, 3, 12, 7, 5))},
        {"local_steps": 3},
        {"guard": fo.Guard(max_norm=5.0)},
    ],
    ids=str,
)
def test_a_state_of_other_data_or_numbers_is_not_used(kept, changes):
    kept.sweep(after=2)
    kept.records = [record for record in kept.records if "diverged" not in record]
    trials = trials_of(FEDERATION.replace(**changes))
    with pytest.warns(UserWarning, match=r"begins anew, since its state is not used.*other code"):
        kept.sweep(trials)
    own = in_order(sweep(trials).records)
    later = [[str(r) for r in records if r["round"] > 4] for records in (kept.found(), own)]
    assert later[0] == later[1]


def test_other_code_is_noticed(kept, monkeypatch):
    kept.sweep(after=2)
    original = fingerprint.of_jaxpr
    monkeypatch.setattr(fingerprint, "of_jaxpr", lambda jaxpr: original(jaxpr) + " changed")
    with pytest.warns(UserWarning, match="other code, data or numbers"):
        kept.sweep()


def test_a_damaged_state_is_not_used(kept):
    kept.sweep(after=2)
    path = sorted(kept.folder.iterdir())[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"begins anew.*{path.name}"):
        kept.sweep()
    assert kept.found() == in_order(sweep().records)


def test_what_was_finished_says_nothing(kept, played):
    kept.sweep()
    del played[:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kept.sweep()
    assert played == [] and found.records == ()
    assert np.all(np.array(found.rounds) == ROUNDS)
