"""Curves made ready: means over seeds, and what to do about those that failed or are missing.

One set of rules holds for every number and every plot:

- A seed has diverged at the first round from which on its loss or accuracy is not finite, or where
  `diverged` says so. Its accuracy stays what it last was, as a run keeps its last good model; its other
  quantities end there.
- A seed whose row is shorter than the others was not finished. It counts as far as it goes.
- A mean stands where every seed has a value, so that it never jumps because a seed has left. A seed
  without any value is not counted.

Each of these is said on the page.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedjax_opt.costs.spending import Spent
from fedjax_opt.experiments.report.curves import Curves
from fedjax_opt.metrics.curves import smooth


class Band(NamedTuple):
    """A quantity over the evaluated rounds `[E]`, NaN where a seed has no value."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Measured(NamedTuple):
    """Curves after the rules above.

    Attributes:
      label: of the algorithm.
      hyperparameters: its own.
      seeds: all that were given.
      rounds: evaluated `[E]`.
      accuracy: of the counted seeds `[counted, E]`.
      bands: quantity -> `Band`; 'accuracy', 'loss' and those of `extra`.
      spent: what was spent `[E]`: 'rounds', 'bytes_up', 'bytes_down', 'bytes', 'flops', 'seconds'.
      ends: the (index of a round, accuracy) of each seed that diverged, where it was last well.
      troubles: what went wrong, in words.
    """

    label: str
    hyperparameters: Mapping[str, Any]
    seeds: tuple[int, ...]
    rounds: np.ndarray
    accuracy: np.ndarray
    bands: dict[str, Band]
    spent: dict[str, np.ndarray]
    ends: list[tuple[int, float]]
    troubles: list[str]


def measure(curves: Curves, smoothing: float = 0.0) -> Measured:
    """Checks the curves of an algorithm, and applies the rules at the top of this file."""
    where = f"in the curves of {curves.label!r}"
    seeds, rounds = _check(curves, where)
    given = {"accuracy": curves.accuracy, "loss": curves.loss, **curves.extra}
    rows = {
        quantity: _rows(f"{quantity} {where}", values, len(seeds), len(rounds))
        for quantity, values in given.items()
        if values is not None
    }
    known = np.concatenate(rows["accuracy"])
    outside = known[np.isfinite(known) & ((known < 0) | (known > 1))]
    if len(outside):
        raise ValueError(f"accuracy {where} must lie in [0, 1], got {outside[0]}.")

    signs = [rows[quantity] for quantity in ("accuracy", "loss") if quantity in rows]
    stops = [_stop([table[i] for table in signs]) for i in range(len(seeds))]
    tables = {name: _table(table, stops, len(rounds)) for name, table in rows.items()}
    accuracy = np.stack(
        [_kept(row, stop, smoothing) for row, stop in zip(tables["accuracy"], stops, strict=True)]
    )
    counted = np.array([np.isfinite(row).any() for row in accuracy])
    ends, troubles = [], []
    for i, (seed, stop, counts) in enumerate(zip(seeds, stops, counted, strict=True)):
        told, length = curves.diverged.get(seed), len(rows["accuracy"][i])
        if told is not None or stop is not None:
            first = stop if told is None else int(np.searchsorted(rounds, told))
            when = f"by round {rounds[first]}" if told is None else f"in round {told}"
            troubles.append(f"seed {seed} diverged {when}")
            ends += [(first - 1, float(accuracy[i, first - 1]))] if counts and first else []
        elif not counts:
            troubles.append(f"seed {seed} has no value, and is not counted")
        elif length < len(rounds):
            troubles.append(f"seed {seed} was not finished: it ends at round {rounds[length - 1]}")
    return Measured(
        curves.label,
        curves.hyperparameters,
        seeds,
        rounds,
        accuracy[counted],
        {name: _band(table[counted]) for name, table in (tables | {"accuracy": accuracy}).items()},
        {"rounds": rounds.astype(np.float64)} | dict(_spent(curves.costs, counted, rounds, where)),
        ends,
        troubles,
    )


def _check(curves: Curves, where: str) -> tuple[tuple[int, ...], np.ndarray]:
    """The seeds and the evaluated rounds, after checking them and the names that go with them."""
    seeds = tuple(int(seed) for seed in curves.seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds {where} must be one or more, each once, got {curves.seeds!r}.")
    rounds = np.asarray(curves.round)
    if rounds.ndim != 1 or not len(rounds) or np.any(rounds < 0) or np.any(np.diff(rounds) <= 0):
        raise ValueError(f"round {where} must be increasing [E], got {curves.round!r}.")
    unknown = [seed for seed in curves.diverged if seed not in seeds]
    if unknown:
        raise ValueError(f"diverged {where} must name seeds among {seeds}, got {unknown}.")
    for name in curves.extra:
        # They name files and parts of a page, next to those of accuracy and loss.
        if not name.isidentifier() or name == "loss" or name.startswith("accuracy"):
            raise ValueError(
                f"extra {where} must be named by letters, digits and _, and neither loss nor"
                f" accuracy, got {name!r}."
            )
    return seeds, rounds


def _rows(name: str, values: Any, seeds: int, length: int) -> list[np.ndarray]:
    """One row for each seed, none longer than there are evaluated rounds."""
    rows = [np.asarray(row, np.float64) for row in values]
    if len(rows) != seeds or any(row.ndim != 1 or len(row) > length for row in rows):
        raise ValueError(
            f"{name} must be a row of at most {length} values, one for each evaluated round, for each"
            f" of {seeds} seeds, got shapes {[list(row.shape) for row in rows]}."
        )
    return rows


def _stop(signs: list[np.ndarray]) -> int | None:
    """The index from which on a seed is not finite; a gap before its end is no divergence."""
    ends = []
    for values in signs:
        finite = np.flatnonzero(np.isfinite(values))
        last = int(finite[-1]) + 1 if len(finite) else 0
        ends += [last] if last < len(values) else []
    return min(ends, default=None)


def _table(rows: list[np.ndarray], stops: list[int | None], length: int) -> np.ndarray:
    """The rows up to where they diverged, NaN where they have nothing."""
    table = np.full((len(rows), length), np.nan)
    for filled, row, stop in zip(table, rows, stops, strict=True):
        filled[: len(row[:stop])] = np.where(np.isfinite(row[:stop]), row[:stop], np.nan)
    return table


def _kept(row: np.ndarray, stop: int | None, decay: float) -> np.ndarray:
    """A seed's accuracy, smoothed, and what it last was from where it diverged on."""
    row, known = row.copy(), np.isfinite(row)
    row[known] = smooth(row[known], decay)
    if stop is not None and known.any():
        row[stop:] = row[known][-1]
    return row


def _band(table: np.ndarray) -> Band:
    if not len(table):
        table = np.full((1, table.shape[1]), np.nan)
    return Band(table.mean(axis=0), table.min(axis=0), table.max(axis=0))


def _spent(
    costs: Spent | None, counted: np.ndarray, rounds: np.ndarray, where: str
) -> Iterator[tuple[str, np.ndarray]]:
    """What the counted seeds had spent in the mean."""
    totals = []
    for axis in ("bytes_up", "bytes_down", "flops", "seconds"):
        values = getattr(costs, axis, None)
        if values is None:
            continue
        values = np.asarray(values, np.float64)
        if values.shape not in ((len(rounds),), (len(counted), len(rounds))):
            raise ValueError(
                f"costs.{axis} {where} must be [E] or [seeds, E] for {len(rounds)} evaluated rounds,"
                f" got shape {list(values.shape)}; per_round makes them of the price of a round."
            )
        if values.ndim == 2:
            values = values[counted if counted.any() else slice(None)].mean(axis=0)
        if not np.isfinite(values).all() or values[0] < 0 or np.any(np.diff(values) < 0):
            raise ValueError(
                f"costs.{axis} {where} must be all that was spent so far, finite and never falling,"
                f" got {values.tolist()}."
            )
        totals += [values] if axis.startswith("bytes") else []
        yield axis, values
    if len(totals) == 2:
        yield "bytes", totals[0] + totals[1]
