"""Which runs a comparison consists of: each algorithm, at each point of its grid, with each seed."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from fedjax_opt.core import Algorithm, Federation, checks, epochs
from fedjax_opt.core.algorithm import Scheduled
from fedjax_opt.experiments.search import Range, expand, sample
from fedjax_opt.experiments.specs import Spec, unknown
from fedjax_opt.experiments.trials import Trial

Family = Callable[..., Algorithm | Scheduled]
Grid = Mapping[str, Any]
#: Fields of a federation that a grid may name, `local_epochs` in place of `local_steps=fo.epochs(...)`.
FIELDS = ("cohort", "local_steps", "local_epochs", "batch_size", "batching", "weighting")
assert {*FIELDS} - {"local_epochs"} <= {field.name for field in fields(Federation)}  # type: ignore[arg-type]


def trials_of(
    algorithms: Mapping[str, Algorithm | Scheduled | Family],
    federation: Federation,
    grids: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int] = (0,),
    samples: int | None = None,
    search_seed: int = 0,
) -> list[Trial]:
    """All trials of a comparison; what does not fit is refused before anything is computed."""
    if not isinstance(federation, Federation):
        raise ValueError(
            "federation must be a Federation, such as fo.Federation(model, clients, cohort=10,"
            f" local_steps=10), got {type(federation).__name__}: fo.compare(algorithms, federation,"
            " rounds)."
        )
    made: dict[str, Federation] = {}
    trials = []
    for label, algorithm in algorithms.items():
        for point in points_of(label, grids[label], samples, search_seed):
            try:
                own, changes = _parted(algorithm, point)
                key = json.dumps(changes, sort_keys=True)
                if key not in made:
                    made[key] = changed(federation, changes)
                built = _built(algorithm, own)
            except (TypeError, ValueError) as error:
                at = ", ".join(f"{name}={value}" for name, value in point.items())
                raise ValueError(f"{label}{f' ({at})' if at else ''}: {error}") from error
            # A part, such as top_k(sparsity=0.5), is its text in a record.
            shown = {k: str(v) if isinstance(v, Spec) else v for k, v in point.items()}
            trials += [Trial(label, built, made[key], seed, shown) for seed in seeds]
    return trials


def hyperparameters_of(algorithm: Any) -> list[str]:
    """The names of what a family takes; none of an algorithm, which is a value already."""
    if isinstance(algorithm, (Algorithm, Scheduled)):
        return []
    named = getattr(algorithm, "hyperparameters", None)
    if named is not None:
        return list(named)
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [p.name for p in inspect.signature(algorithm).parameters.values() if p.kind in kinds]


def grids_of(algorithms: Mapping[str, Any], grid: Grid) -> dict[str, dict[str, Any]]:
    """Each algorithm's own grid; a name that fits nothing is refused."""
    _check_algorithms(algorithms)
    if not isinstance(grid, Mapping):
        raise ValueError(f"grid must be a mapping of names to values, got {grid!r}.")
    shared = {name: values for name, values in grid.items() if not isinstance(values, Mapping)}
    alone = {name: values for name, values in grid.items() if isinstance(values, Mapping)}
    for label in alone:
        if label not in algorithms:
            raise unknown("grid: label", label, algorithms, f"There are {', '.join(algorithms)}.")
    known = {label: [*hyperparameters_of(a), *FIELDS] for label, a in algorithms.items()}
    for name, owners in [(n, list(algorithms)) for n in shared] + [
        (n, [label]) for label, own in alone.items() for n in own
    ]:
        if not any(name in known[label] for label in owners):
            values = [x for x in owners if isinstance(algorithms[x], (Algorithm, Scheduled))]
            if values:
                raise ValueError(
                    f"grid: {name!r} is no field of a federation that may vary, and {values[0]} is an"
                    " algorithm already, in which nothing can be varied: give a function of its"
                    f" hyperparameters, such as lambda {name}: fo.fedavg(...)."
                )
            names = list(dict.fromkeys(name for label in owners for name in known[label]))
            raise unknown("grid: hyperparameter", name, names, f"There are {', '.join(names)}.")
    found = {}
    for label, names in known.items():
        own = {name: values for name, values in shared.items() if name in names}
        found[label] = own | dict(alone.get(label, {}))
        for name, values in found[label].items():
            _check_axis(name, values)
        if {"local_steps", "local_epochs"} <= found[label].keys():
            raise ValueError("Give local_steps or local_epochs, and leave the other out; got both.")
    return found


def points_of(
    label: str, grid: Mapping[str, Any], samples: int | None, search_seed: int
) -> list[dict[str, Any]]:
    """The points that are tried of an algorithm; one empty one where nothing is."""
    if not grid:
        return [{}]
    if samples is None:
        ranges = [name for name, values in grid.items() if isinstance(values, Range)]
        if ranges:
            raise ValueError(
                f"grid: {ranges[0]} is a range: say by samples how many points to draw, or give a list"
                " of values."
            )
        return expand(grid)
    if not any(isinstance(values, Range) for values in grid.values()):
        everything = expand(grid)
        if samples > len(everything):
            raise ValueError(
                f"samples must be at most {len(everything)}, all points of the grid of {label}, got"
                f" {samples}. Leave samples out to play them all."
            )
    points = sample(grid, samples, search_seed)
    # Of lists alone the same point may be drawn twice.
    return [point for i, point in enumerate(points) if point not in points[:i]]


def checked_seeds(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """Seeds that differ; of a number so many, from 0 on."""
    if isinstance(seeds, (int, np.integer)):
        return tuple(range(checks.integer("seeds", seeds, low=1)))
    found = tuple(checks.integer("seeds", seed, low=0) for seed in seeds)
    if not found:
        raise ValueError("seeds must hold at least one seed, such as [0], got none.")
    for i, seed in enumerate(found):
        if seed in found[:i]:
            raise ValueError(f"seeds must differ, but {seed} comes twice.")
    return found


def changed(federation: Federation, changes: Mapping[str, Any]) -> Federation:
    """The federation with the fields that a point of a grid names."""
    if not changes:
        return federation
    fields = {name: value for name, value in changes.items() if name != "local_epochs"}
    if "local_epochs" in changes:
        fields["local_steps"] = epochs(changes["local_epochs"])
    return federation.replace(**fields)


def _parted(algorithm: Any, point: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of a point is the algorithm's, and what the federation's."""
    names = hyperparameters_of(algorithm)
    own = {name: value for name, value in point.items() if name in names}
    return own, {name: value for name, value in point.items() if name not in names}


def _built(algorithm: Any, point: Mapping[str, Any]) -> Algorithm | Scheduled:
    if isinstance(algorithm, (Algorithm, Scheduled)):
        return algorithm
    if not hasattr(algorithm, "hyperparameters"):
        missing = [
            p.name
            for p in inspect.signature(algorithm).parameters.values()
            if p.default is p.empty and p.name in hyperparameters_of(algorithm)
            if p.name not in point
        ]
        if missing:
            raise ValueError(
                f"it needs {missing[0]}: put it into the grid, such as"
                f" grid={{{missing[0]!r}: [0.1]}}, or give it a default."
            )
    made = algorithm(**point)
    if not isinstance(made, (Algorithm, Scheduled)):
        raise ValueError(f"it must return an Algorithm, got {made!r:.80}.")
    return made


def _check_algorithms(algorithms: Any) -> None:
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise ValueError(
            "algorithms must be a mapping of labels to algorithms, or to functions that return one,"
            f" such as {{'FedAvg': fo.fedavg(fo.optimizers.sgd(0.1))}}, got {algorithms!r:.80}."
        )
    for label, algorithm in algorithms.items():
        if not isinstance(label, str) or not label.strip() or "\n" in label:
            raise ValueError(f"a label must be a word, got {label!r}.")
        if not isinstance(algorithm, (Algorithm, Scheduled)) and not callable(algorithm):
            raise ValueError(
                f"{label} must be an Algorithm, or a function that returns one, got {algorithm!r:.80}."
            )


def _check_axis(name: str, values: Any) -> None:
    if isinstance(values, Range):
        if name in FIELDS:
            raise ValueError(f"grid: {name} must have whole numbers or words: give a list of them.")
        return
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray) or not len(values):
        raise ValueError(
            f"grid: {name} must have a list of at least one value, or a Range; got {values!r}."
        )
    for i, value in enumerate(values):
        if not _is_plain(value):
            raise ValueError(
                f"grid: the values of {name} must be numbers, words or lists of them, got"
                f" {value!r:.60}. Give a function that makes it of a word."
            )
        if value in list(values[:i]):
            raise ValueError(f"grid: {name} must not repeat a value, got {value!r} twice.")


def _is_plain(value: Any) -> bool:
    if isinstance(
        value, Spec
    ):  # a name and arguments, such as top_k(sparsity=0.9), which has a text
        return True
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (int, float, str, np.generic))
