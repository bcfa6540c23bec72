"""Human activities by smartphone: 30 people who walk, climb, sit, stand and lie.

The signals of an accelerometer and a gyroscope at 50 Hz are cut into windows of 128 samples, one every
64, as the authors do; windows within one activity are kept. The last fifth of each person's windows of
each activity is for testing. Windows overlap by half, so those for training that share samples with one
for testing are left out.

Reference:
  Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using
  smartphones. Neurocomputing 171, 2016.
  Data: UCI Machine Learning Repository, doi:10.24432/C54G7M, CC BY 4.0.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedjax_opt.data.sources import inert_pickle

ACTIVITIES = ("walking", "upstairs", "downstairs", "sitting", "standing", "lying")
_SIGNALS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
_LENGTH, _STRIDE = 128, 64
_TEST_FRACTION = 0.2


def read(content: bytes, origin: str) -> tuple[dict, dict, tuple[str, ...]]:
    """(train, test, names of the clients): x, float32 [n, 128, 6], y, int32 [n], client, int32 [n]."""
    people = inert_pickle.read(content, origin)
    if not isinstance(people, dict) or not people:
        raise ValueError(f"{origin} must hold the recordings of each person, and does not.")
    parts: tuple[list, list] = ([], [])
    for client, recordings in enumerate(people.values()):
        if not isinstance(recordings, list) or not recordings:
            raise ValueError(f"{origin} must hold a list of recordings for person {client}.")
        signals, labels, starts, recorded = _windows(recordings, origin)
        in_test = _last_of_each(labels)
        for part, chosen in zip(parts, _apart(in_test, starts, recorded), strict=True):
            owner = np.full(chosen.sum(), client, np.int32)
            part.append({"x": signals[chosen], "y": labels[chosen], "client": owner})
    train, test = (
        {key: np.concatenate([p[key] for p in part]) for key in part[0]} for part in parts
    )
    return train, test, tuple(f"person {name}" for name in people)


def _windows(recordings: list[Any], origin: str) -> tuple[np.ndarray, ...]:
    """Windows, their labels, where they start, and in which recording."""
    found = []
    for number, (signals, labels) in enumerate(_recordings(recordings, origin)):
        starts = np.arange(0, max(len(labels) - _LENGTH + 1, 0), _STRIDE)
        rows = starts[:, None] + np.arange(_LENGTH)
        first = labels[starts]
        pure = np.all(labels[rows] == first[:, None], axis=1)
        kept = pure & (first >= 1) & (first <= len(ACTIVITIES))
        found.append(
            (signals[rows[kept]], first[kept] - 1, starts[kept], np.full(kept.sum(), number))
        )
    x, y, starts, recorded = (np.concatenate(column) for column in zip(*found, strict=True))
    return x.astype(np.float32), y.astype(np.int32), starts, recorded


def _recordings(tables: list[Any], origin: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The signals, [time, 6], and the labels of each recording, out of pandas' table of 2020."""
    for table in tables:
        try:
            _, blocks, names, _ = table.state["_data"].state
            columns = {}
            for block, index in zip(blocks, names, strict=True):
                titles = index.args[1]["data"].state[4]
                columns |= zip(titles, inert_pickle.array(block, origin), strict=True)
            signals = np.stack([columns[name] for name in _SIGNALS], axis=1)
            labels = columns["label"]
            if signals.dtype != np.float64 or labels.dtype != np.int64 or signals.ndim != 2:
                raise ValueError("its columns are of other types")
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"{origin} holds a table that cannot be read: {error!s:.120}."
            ) from error
        if not np.isfinite(signals).all():
            raise ValueError(f"{origin} holds signals that are not finite.")
        yield signals, labels


def _last_of_each(labels: np.ndarray) -> np.ndarray:
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        chosen[members[len(members) - round(_TEST_FRACTION * len(members)) :]] = True
    return chosen


def _apart(
    in_test: np.ndarray, starts: np.ndarray, recorded: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Who is for training and who for testing, without training windows that overlap with tests."""
    gap = np.abs(starts[:, None] - starts[in_test])
    shares = (gap < _LENGTH) & (recorded[:, None] == recorded[in_test])
    return ~in_test & ~shares.any(axis=1), in_test
