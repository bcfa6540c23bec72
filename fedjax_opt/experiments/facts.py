"""What a page says of an experiment beside its curves: its settings, and where a search ended."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fedjax_opt.core.federation import Epochs
from fedjax_opt.experiments.experiment import SETTINGS, Experiment, grid_of
from fedjax_opt.experiments.playing import Setup
from fedjax_opt.experiments.results import Curves
from fedjax_opt.experiments.search import Range


def facts(experiment: Experiment, setup: Setup) -> dict[str, Any]:
    """What holds for all runs of an experiment, the task's own settings among it.

    Args:
      experiment: the experiment.
      setup: from `set_up`.

    Returns:
      Numbers by name. What the grid varies is left out.

    Example:
      >>> import fedjax_opt as fo
      >>> from fedjax_opt import experiments as ex
      >>> from fedjax_opt.experiments.facts import facts
      >>> experiment = ex.from_options({"task": ["digits"], "algorithms": ["fedavg"]})
      >>> found = facts(experiment, ex.set_up(experiment, fo.tasks.digits()))
      >>> found["clients"], found["cohort"], found["local steps"]
      (100, 5, 20)
    """
    chosen = setup.federation
    found: dict[str, Any] = {"clients": chosen.num_clients, "cohort": chosen.cohort.size}
    # A controller starts from what was given, or from what the task has.
    steps = chosen.local_steps
    if not {name.rpartition(":")[2] for name in experiment.grid} & {*SETTINGS}:
        name, count = "local steps", steps
        if isinstance(steps, Epochs):
            name, count = "local epochs", steps.count
        found[name] = count
    found |= {
        "batch size": chosen.batch_size,
        "rounds": setup.rounds,
        "test examples": len(jax.tree.leaves(chosen.test)[0]),
    }
    return {name: int(value) for name, value in found.items()}


def at_edges(experiment: Experiment, best: Sequence[Curves]) -> list[str]:
    """Which of the chosen hyperparameters are the smallest or the largest that were tried.

    Args:
      experiment: which says what was tried.
      best: the points that won.

    Returns:
      One text for each; of grids of at least three numbers alone, since of two each is an end.

    Example:
      >>> from fedjax_opt import experiments as ex
      >>> from fedjax_opt.experiments.facts import at_edges
      >>> experiment = ex.from_options(
      ...     {"task": ["digits"], "algorithms": ["fedavg"], "grid": ["learning_rate=0.1,0.2,0.4"]}
      ... )
      >>> record = {"label": "fedavg", "hyperparameters": {"learning_rate": 0.4}, "seed": 0, "round": 1}
      >>> at_edges(experiment, ex.curves([record]))
      ['fedavg (learning_rate=0.4, the largest)']
    """
    members = {member.label: member for member in experiment.algorithms}
    return [
        f"{outcome.label} ({name}={outcome.hyperparameters[name]:g}, the {end})"
        for outcome in best
        if outcome.label in members
        for name, end in _ends(grid_of(experiment, members[outcome.label]), outcome.hyperparameters)
    ]


def edge_note(edges: Sequence[str]) -> list[str]:
    """The sentence about what `at_edges` found; none if it found nothing.

    Args:
      edges: of `at_edges`.
    """
    where = "Chosen at the edge of what was tried, so that a wider grid may do better"
    return [f"{where}: {', '.join(edges)}."] if edges else []


def _ends(grid: Mapping[str, Any], chosen: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, values in grid.items():
        numbers = not isinstance(values, Range) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) for value in values
        )
        if numbers and len(values) > 2 and name in chosen:
            ends = {min(values): "smallest", max(values): "largest"}
            found += [(name, ends[chosen[name]])] if chosen[name] in ends else []
    return found
