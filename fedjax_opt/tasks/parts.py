"""Data as tasks need it."""

import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedjax_opt import data as fed

Directory = str | os.PathLike[str] | None
Arrays = dict[str, np.ndarray]
Clients = Iterator[tuple[str, Arrays]]


def normalised(images: np.ndarray) -> tuple[Any, Any]:
    """Steps that scale bytes to [0, 1] and then give each channel mean 0 and deviation 1."""
    # By the counts of the 256 values: much faster than sums over all pixels.
    counts = [np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(images, -1, 0)]
    shares = np.array(counts) / (images.size / images.shape[-1])
    levels = np.arange(256) / 255
    mean = shares @ levels
    std = np.sqrt(shares @ levels**2 - mean**2)
    return fed.scale(), fed.normalise(mean.tolist(), std.tolist())


def by_client(examples: Arrays, num_clients: int) -> fed.ClientData:
    """Examples that say whose they are, in the column `client`."""
    rest = {name: array for name, array in examples.items() if name != "client"}
    return fed.ClientData.from_arrays(rest, examples["client"], num_clients)


def without_clients(examples: Arrays) -> Arrays:
    """The inputs and labels alone."""
    return {"x": examples["x"], "y": examples["y"]}


def gathered(
    train: Callable[[], Clients],
    test: Callable[[set[str]], Clients],
    stored: Directory,
    **options: Any,
) -> tuple[fed.ClientData | fed.StoredClients, Arrays]:
    """The training clients, and the examples of the test clients, in memory or from a directory.

    Args:
      train: () -> the training clients.
      test: (names of the training clients) -> the test clients.
      stored: None for memory, or the directory, which is written once and opened from then on.
      **options: what the clients were made by: a directory that was made by others is refused.
    """
    if stored is None:
        data, names = fed.collect(train())
        return data, fed.collect(test(set(names)))[0].examples
    home = pathlib.Path(stored).expanduser()
    note, made_by = home / "options.json", json.dumps(options)
    if not (home / "train").exists():
        home.mkdir(parents=True, exist_ok=True)
        note.write_text(made_by, encoding="utf-8")
        fed.store(train(), home / "train")
    found = note.read_text(encoding="utf-8") if note.exists() else "something else"
    if found != made_by:
        raise ValueError(f"stored must be a directory made by {made_by}; {home} is by {found}.")
    if not (home / "test").exists():
        fed.store(test(set(fed.stored_names(home / "train"))), home / "test")
    tested: Arrays = {**fed.open_stored(home / "test").examples}
    return fed.open_stored(home / "train"), tested
