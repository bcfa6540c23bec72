"""What was measured beside what a paper reports, and whether its orderings hold."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.entry import MEASURES, Entry, Part
from fedjax_opt.experiments.experiment import Experiment
from fedjax_opt.experiments.results import Curves, best, curves, interval, rule, score
from fedjax_opt.metrics import rounds_to_target, smooth

# Measures that say how an algorithm is beside the baseline.
_RELATIVE = ("match", "steps")


class Row(NamedTuple):
    """One algorithm of one part.

    Attributes:
      part: the part.
      label: the algorithm's.
      hyperparameters: those that won, if there was a search.
      seeds: one for each number.
      values: numbers `[seeds]` by measure; infinite where a target was not reached, NaN where a run
        diverged. What is relative to a baseline that was not run is left out.
      last: the last round.
    """

    part: Part
    label: str
    hyperparameters: Mapping[str, Any]
    seeds: tuple[int, ...]
    values: dict[str, np.ndarray]
    last: int


def measure(entry: Entry, found: Sequence[tuple[Part, Sequence[Mapping[str, Any]]]]) -> list[Row]:
    """The rows of a reproduction.

    Args:
      entry: which says what to measure.
      found: parts, each with the records of its run.
    """
    chosen: list[tuple[Part, Curves]] = []
    for part, records in found:
        made = part.experiment
        own = curves(records)
        by = rule(own, made.metric, made.criterion, made.target, made.smoothing)
        chosen += [(part, one) for one in best(own, by) if len(one.rounds)]
    bases = {
        part.group: outcome for part, outcome in reversed(chosen) if outcome.label == entry.baseline
    }
    return [
        Row(
            part,
            outcome.label,
            outcome.hyperparameters,
            outcome.seeds,
            {
                name: _VALUES[name](part.experiment, outcome, bases.get(part.group, outcome))
                for name in entry.measures
                if part.group in bases or name not in _RELATIVE
            },
            int(outcome.rounds[-1]),
        )
        for part, outcome in chosen
    ]


def cells(entry: Entry, row: Row) -> list[tuple[str, str]]:
    """For each measure what the paper reports, and what was measured, as texts.

    Args:
      entry: which says the measures.
      row: the row.
    """
    told = row.part.reported.get(row.label, {})
    return [(told.get(name, ""), _text(name, row)) for name in entry.measures]


def heading(name: str) -> str:
    """The title of a column."""
    return MEASURES[name]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Whether the orderings of the paper hold, a sentence for each.

    An ordering holds if the 95% interval of the difference, seed by seed, lies on its side of zero.

    Args:
      rows: of `measure`.
    """
    by_group = {(row.part.group, row.label): row for row in rows}
    claims = {(row.part.group, claim): None for row in rows for claim in row.part.claims}
    found = []
    for group, (better, worse, name) in claims:
        first, second = (by_group.get((group, label)) for label in (better, worse))
        if first is None or second is None or name not in first.values:
            continue
        side = "above" if name == "accuracy" else "below"
        found.append(
            f"{group}: {better} {side} {worse} in {MEASURES[name]}: {_verdict(name, first, second)}"
            f" ({_text(name, first)} against {_text(name, second)})."
        )
    return found


def _verdict(name: str, better: Row, worse: Row) -> str:
    more = name == "accuracy"  # of all else less is better
    first, second = better.values[name], worse.values[name]
    if better.seeds != worse.seeds or np.array_equal(first, second):
        return "not decided"
    if not np.isfinite([*first, *second]).all():
        # What never reached the target is behind what always did.
        if np.isfinite(first).all() and np.isinf(second).all():
            return "holds"
        if np.isinf(first).all() and np.isfinite(second).all():
            return "does not hold"
        return "not decided"
    mean, half = interval(first - second if more else second - first)
    if np.isnan(half):
        return "holds, of one seed" if mean > 0 else "does not hold, of one seed"
    if abs(mean) <= half:
        return f"not decided, the difference is within its interval of ±{half:.2g}"
    return "holds" if mean > 0 else "does not hold"


def _text(name: str, row: Row) -> str:
    if name not in row.values:
        return ""
    values = row.values[name]
    if np.isnan(values).any():
        return "diverged"
    if np.isinf(values).any():
        missed = int(np.isinf(values).sum())
        return (
            "not reached" if missed == len(values) else f"not reached by {missed} of {len(values)}"
        )
    mean, half = interval(values)
    digits = {"accuracy": 1, "steps": 3, "rounds": 0}.get(name, 2)
    text = f"{mean:.{digits}f}"
    return text if np.isnan(half) else f"{text} ± {half:.{digits}f}"


def _accuracy(experiment: Experiment, outcome: Curves, _: Curves) -> np.ndarray:
    criterion = "best" if experiment.criterion == "rounds_to_target" else experiment.criterion
    by = rule([outcome], "accuracy", criterion, smoothing=experiment.smoothing)
    return 100 * score(outcome, by)


def _reached(experiment: Experiment, outcome: Curves, target: float) -> list[int | None]:
    """The first evaluation of each seed that is at the target."""
    curves = [smooth(curve, experiment.smoothing) for curve in outcome.values("accuracy")]
    return [rounds_to_target(np.arange(len(curve)), curve, target) for curve in curves]


def _until(column: str | None, scale: float = 1.0) -> Callable[..., np.ndarray]:
    """What a column says when the target is reached; the round, without a column."""

    def value(experiment: Experiment, outcome: Curves, base: Curves) -> np.ndarray:
        del base
        assert experiment.target is not None
        return _at(outcome, _reached(experiment, outcome, experiment.target), column, scale)

    return value


def _at(
    outcome: Curves, places: Sequence[int | None], column: str | None, scale: float
) -> np.ndarray:
    found = []
    for seed, place in enumerate(places):
        if place is None:
            diverged = np.isnan(outcome.values("accuracy")[seed]).any()
            found.append(np.nan if diverged else np.inf)
        else:
            numbers = outcome.rounds if column is None else outcome.columns[column][seed]
            found.append(numbers[place] / scale)
    return np.array(found, float)


def _match(experiment: Experiment, outcome: Curves, base: Curves) -> np.ndarray:
    if outcome is base:  # until its own best
        return _at(
            outcome, [int(np.argmax(row)) for row in outcome.values("accuracy")], "bytes_up", 1e6
        )
    target = float(_accuracy(experiment, base, base).mean()) / 100
    return _at(outcome, _reached(experiment, outcome, target), "bytes_up", 1e6)


def _steps(experiment: Experiment, outcome: Curves, base: Curves) -> np.ndarray:
    del experiment
    taken, fixed = (one.columns["client_steps"][:, -1] for one in (outcome, base))
    return taken / fixed.mean()


_VALUES: dict[str, Callable[[Experiment, Curves, Curves], np.ndarray]] = {
    "accuracy": _accuracy,
    "rounds": _until(None),
    "upload": _until("bytes_up", 1e6),
    "minutes": _until("simulated_seconds", 60.0),
    "match": _match,
    "steps": _steps,
}
