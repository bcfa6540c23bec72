"""What a run writes down is appended to, and its clock goes on."""

import numpy as np

import fedjax_opt as fo
from fedjax_opt.training.history import Columns
from tests.core.test_simulate import simulate


def test_rows_are_appended_without_copying_all_of_them():
    columns, copies, before = Columns(), 0, None
    for i in range(1000):
        columns.append({"x": np.full((2, 3), i), "y": np.array([i, i], np.int32)})
        view = columns.views["x"]
        copies += before is not None and not np.shares_memory(before, view)
        before = view
    assert copies < 12
    assert view.shape == (2000, 3) and columns.views["y"].dtype == np.int32
    np.testing.assert_array_equal(columns.views["y"], np.repeat(np.arange(1000), 2))


def test_what_was_seen_before_stays_what_it_was():
    columns = Columns()
    columns.append({"x": np.arange(3.0)})
    seen = columns.views["x"]
    columns.append({"x": np.arange(9.0)})
    np.testing.assert_array_equal(seen, np.arange(3.0))


def test_rows_are_forgotten():
    columns = Columns()
    columns.append({"round": np.arange(5)})
    columns.cut(1)
    columns.append({"round": np.array([7])})
    assert columns.views["round"].tolist() == [0, 1, 7]


def test_the_clock_of_a_resumed_run_goes_on_without_a_test_set(tmp_path):
    began = []

    class Clock(fo.Extension):
        def begin(self, run, memory):
            began.append(run.seconds)
            return ()

    with fo.Checkpoints(tmp_path) as checkpoints:
        options = {"evaluate_every": 5, "checkpoints": checkpoints, "extensions": [Clock()]}
        seen = []
        first = simulate(5, **options | {"extensions": [lambda chunk: seen.append(chunk.seconds)]})
        resumed = simulate(10, **options)
    assert 0 < seen[0] <= began[0] and first.seconds >= seen[0]
    assert resumed.seconds > began[0]
