"""A run that is killed between any two steps of its loop, and killed again, ends as one that was not."""

import contextlib
import copy
import importlib
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.training import acting, history
from fedjax_opt.training import checkpoints as on_disk
from tests.core import problems

pytestmark = pytest.mark.slow  # a run is begun for each place where it may be killed

N, CHUNK, ROUNDS = 6, 3, 18
DATA = problems.ragged((5, 8, 3, 12, 4, 6))
FEDERATION = fo.Federation(
    problems.MODEL, DATA, cohort=N, local_steps=1, batch_size=4, test=DATA.examples
)


def _scaffold(rate):
    return fo.scaffold(fo.optimizers.sgd(rate))


def _rate(round_number):
    """Far too large at the end of a chunk, which the next one finds."""
    return jnp.where(round_number == 8, 1e3, 0.05)


class Csv(fo.Extension):
    """A row after each chunk; what is later than where the run begins is cut off."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def begin(self, run, memory):
        rows = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        self.path.write_text("".join(row for row in rows if int(row.split(",")[0]) <= run.round))
        return ()

    def after(self, memory, chunk):
        with self.path.open("a") as file:
            file.write(f"{chunk.last},{chunk.metrics['loss']},{chunk.step_scale}\n")
        return memory, None


class InMemory:
    """What `Checkpoints` do, without files, so that many runs take no time."""

    keep = 2

    def __init__(self, directory):
        self.directory, self.kept = directory, {}

    @property
    def latest_round(self):
        return max(self.kept, default=None)

    def check_metrics(self, names):
        pass

    def save(self, state, history, *, identity, metrics, protect):
        del identity, metrics
        kept = jax.tree.map(jnp.copy, state), copy.deepcopy(history)
        self.kept.setdefault(int(state.round), kept)
        stay = {*sorted(self.kept)[-self.keep :], *protect}
        self.kept = {number: kept for number, kept in self.kept.items() if number in stay}

    def restore(self, state, *, identity, round):
        del state, identity
        return copy.deepcopy(self.kept[round])

    def wait(self):
        pass

    close = wait

    def delete_after(self, number, remember):
        for later in sorted((n for n in self.kept if n > number), reverse=True):
            self._delete(later)
        self._forget_after(number, remember)

    def _forget_after(self, number, remember):
        state, history = self.kept[number]
        self.kept[number] = state, history | copy.deepcopy(remember)

    def _delete(self, number):
        del self.kept[number]


class Killed(BaseException):
    """The end of the process."""


LOOP = importlib.import_module("fedjax_opt.training.simulate")
STEPS = [
    (history.Columns, "append"), (history.Columns, "cut"), (LOOP, "measure"),
    (acting.Acting, "_begin"), (acting.Acting, "_ask"), (acting.Acting, "_save"),
    (acting.Acting, "_go_back"), (acting.Acting, "_restore"), (InMemory, "_delete"),
    (InMemory, "_forget_after"), (fo.ClientStore, "roll_back"), (on_disk, "_delete"),
    (fo.Checkpoints, "_forget_after"),
]  # fmt: skip


def _play(folder, checkpoints, moment=0):
    """The run, which ends before a step; what has come of it, and the steps."""
    steps = []

    def tick(name):
        steps.append(name)
        if len(steps) == moment:
            raise Killed

    def ticking(name, function):
        def ticked(*args, **kwargs):
            tick(name)
            return function(*args, **kwargs)

        return ticked

    csv = Csv(folder / "log.csv")
    with pytest.MonkeyPatch.context() as patch, fo.ClientStore(folder / "store") as store:
        for where, name in STEPS:
            patch.setattr(where, name, ticking(name, getattr(where, name)))
        result = fo.simulate(
            fo.scheduled(_scaffold, _rate), FEDERATION, ROUNDS, evaluate_every=CHUNK,
            strategy="scan", progress=False, client_states=store, checkpoints=checkpoints,
            extensions=[fo.early_stopping("loss", 4, maximise=True), fo.Rollback(shrink=1e-2), csv],
        )  # fmt: skip
        clients = store.rows(np.arange(N)).states
    del result.evaluations["seconds"]
    found = problems.arrays((result.state, clients, result.history, result.evaluations))
    return found, result.stopped, csv.path.read_text(), steps


def _assert_same(found, expected):
    for ours, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)
    assert found[1:3] == expected[1:3]


def _remembered(checkpoints, number):
    return checkpoints.kept[number][1]["memories"]


def _kill_twice(folder, make, moment, expected):
    """At this moment, again after half as many steps, and then not any more."""
    folder.mkdir()
    checkpoints = make(folder)
    with pytest.raises(Killed):
        _play(folder, checkpoints, moment)
    with contextlib.suppress(Killed):  # there may be fewer steps left
        _play(folder, checkpoints, (moment + 1) // 2)
    _assert_same(_play(folder, checkpoints), expected)
    return checkpoints


def test_killed_twice_between_any_two_steps(tmp_path):
    """Early stopping, rollback, a file, and clients in a store; it goes back to the same round twice."""
    folder = tmp_path / "whole"
    folder.mkdir()
    checkpoints = InMemory(folder)
    expected = _play(folder, checkpoints)
    _, stopped, rows, steps = expected
    assert stopped == "loss has not improved in 4 evaluations"
    assert steps.count("_go_back") == 2 and "_delete" in steps
    assert [row.split(",")[0] for row in rows.splitlines()] == ["3", "6", "9", "12", "15"]
    remembered = _remembered(checkpoints, 15)
    assert remembered["Rollback"]["returns"] == 2
    assert remembered["early_stopping(loss)"]["waited"] == 4
    for moment in range(1, len(steps) + 1):
        killed = _kill_twice(tmp_path / str(moment), InMemory, moment, expected)
        assert _remembered(killed, 15) == remembered


def test_killed_with_checkpoints_on_disk(tmp_path):
    """The same, where the run goes back: before and after what it decided is on disk, and deletions."""

    def make(folder):
        return fo.Checkpoints(folder / "checkpoints", keep=2, asynchronous=False)

    folder = tmp_path / "whole"
    folder.mkdir()
    with make(folder) as checkpoints:
        expected = _play(folder, checkpoints)
    steps = expected[-1]
    first = steps.index("_go_back")
    went_back = ["_go_back", "_restore", "cut", "cut", "_delete", "_forget_after", "roll_back"]
    assert steps[first : first + 8] == [*went_back, "_begin"]
    for moment in range(first + 5, first + 8):
        _kill_twice(tmp_path / str(moment), make, moment, expected).close()
