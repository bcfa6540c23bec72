"""What an experiment's options make of its task."""

import numpy as np
import pytest

import fedjax_opt as fo
from fedjax_opt.experiments.config import from_options
from fedjax_opt.experiments.playing import set_up

TASK = fo.tasks.digits()


def changed(**options):
    given = {"task": ["digits"], "algorithms": ["fedavg"], **{k: [v] for k, v in options.items()}}
    return set_up(from_options(given), TASK)


def evaluated(**options):
    federation = changed(**options).federation
    return federation.test, federation.validation


def test_what_an_experiment_says_takes_the_task_s_place():
    given = changed(cohort_size="7", local_epochs="2", weighting="uniform", batching="replacement")
    found = given.federation
    assert (
        repr(found)
        == "Federation(mlp, 100 clients, 1438 examples, cohort 7, 2 epochs of 8, test 359)"
    )
    assert (found.weighting, found.batching) == ("uniform", "replacement")
    assert given.rounds == 300 and found.clients is TASK.clients
    found = changed(batch_size="4", local_steps="3", rounds="9")
    assert (
        repr(found.federation).endswith("cohort 5, 3 steps of 4, test 359)") and found.rounds == 9
    )
    with pytest.raises(ValueError, match="population of 100 clients, got 101"):
        changed(cohort_size="101")


def test_a_controller_starts_from_the_steps_of_the_task():
    given = changed(controller="K-rounds")
    controller = given.trials[0].federation.local_steps
    assert int(controller.value(controller.init(), 0)) == 20
    with pytest.raises(ValueError, match="needs local_steps to start from, but the task has"):
        set_up(
            from_options(
                {"task": ["digits"], "algorithms": ["fedavg"], "controller": ["K-rounds"]}
            ),
            TASK.replace(local_steps=fo.epochs(1)),
        )


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
    with pytest.raises(ValueError, match=r"test_examples must be .* got 100000"):
        evaluated(test_examples="100000")
