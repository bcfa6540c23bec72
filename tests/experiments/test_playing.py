"""What an experiment's options make of its task."""

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments.config import from_options
from fedjax_opt.experiments.playing import set_up

TASK = fo.tasks.digits()


def evaluated(**options):
    given = {"task": ["digits"], "algorithms": ["fedavg"], **{k: [v] for k, v in options.items()}}
    setup = set_up(from_options(given), TASK)
    return setup.test, setup.validation


def test_some_examples_of_the_test_set_are_evaluated():
    """The same ones whenever it is asked, no one twice, and labels stay with their images."""
    (some, _), (again, _) = evaluated(test_examples="50"), evaluated(test_examples="50")
    np.testing.assert_array_equal(some["x"], again["x"])
    rows = [np.flatnonzero((TASK.test["x"] == x).all(axis=1))[0] for x in some["x"]]
    assert len(set(rows)) == 50
    np.testing.assert_array_equal(TASK.test["y"][rows], some["y"])
    assert len(evaluated()[0]["y"]) == len(TASK.test["y"])


def test_a_controller_that_watches_has_half_of_them():
    test, validation = evaluated(test_examples="51", controller="K-step")
    assert (len(test["y"]), len(validation["y"])) == (25, 26)


def test_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"test_examples of digits must be .* got 100000"):
        evaluated(test_examples="100000")
