"""What a page says of an experiment: settings of the task, and whether a search ended at an edge."""

import pytest

import fedjax_opt as fo
from fedjax_opt import experiments as ex
from fedjax_opt.experiments.facts import at_edges, edge_note, facts

TASK = fo.tasks.digits(num_clients=6)


def told(**options):
    given = {"task": ["digits"], "algorithms": ["fedavg"], "cohort_size": ["2"]}
    experiment = ex.from_options(given | {name: [text] for name, text in options.items()})
    return facts(experiment, ex.set_up(experiment, TASK))


def test_what_the_task_settles_is_told():
    found = told()
    assert found["clients"] == 6 and found["cohort"] == 2 and found["rounds"] == 300
    assert found["local steps"] == 20 and "local epochs" not in found


def test_what_was_given_takes_its_place():
    assert told(local_steps="3", rounds="7")["local steps"] == 3
    epochs = told(local_epochs="2")
    assert epochs["local epochs"] == 2 and "local steps" not in epochs
    assert told(local_steps="8", controller="K-rounds")["local steps"] == 8  # K_0
    assert "local steps" not in told(grid="local_steps=1,2,4")


@pytest.mark.parametrize(
    ("grid", "chosen", "end"),
    [
        ("learning_rate=0.1,0.2,0.4", 0.4, "fedavg (learning_rate=0.4, the largest)"),
        ("learning_rate=0.4,0.1,0.2", 0.1, "fedavg (learning_rate=0.1, the smallest)"),
        ("learning_rate=0.1,0.2,0.4", 0.2, None),
        ("learning_rate=0.1,0.2", 0.2, None),  # of two each is an end
    ],
)
def test_a_choice_at_the_edge_of_its_grid(grid, chosen, end):
    experiment = ex.from_options({"task": ["digits"], "algorithms": ["fedavg"], "grid": [grid]})
    point = {"learning_rate": chosen}
    records = [
        {"label": "fedavg", "hyperparameters": point, "seed": 0, "round": 1, "accuracy": 0.5}
    ]
    found = at_edges(experiment, ex.curves(records))
    assert found == ([end] if end else []) and len(edge_note(found)) == len(found)
