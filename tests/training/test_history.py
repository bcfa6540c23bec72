"""What a run writes down is appended to, and its clock goes on."""

import numpy as np

import fedjax_opt as fo
from fedjax_opt.training.history import Columns
from tests.core.test_simulate import simulate


def test_rows_are_appended_without_copying_all_of_them_and_forgotten_by_round():
    columns, copies, before = Columns(), 0, None
    for i in range(1000):
        columns.append({"x": np.full((2, 3), i), "round": np.array([2 * i, 2 * i + 1], np.int32)})
        view = columns.views["x"]
        copies += before is not None and not np.shares_memory(before, view)
        first, before = before if before is not None else view, view
    assert copies < 12 and view.shape == (2000, 3) and columns.views["round"].dtype == np.int32
    np.testing.assert_array_equal(columns.views["round"], np.arange(2000))
    assert first.shape == (1998, 3), "what was seen before stays what it was"
    columns.cut(1)
    columns.append({"x": np.full((1, 3), 7), "round": np.array([7])})
    assert columns.views["round"].tolist() == [0, 1, 7] and columns.views["x"][:, 0].sum() == 7


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
