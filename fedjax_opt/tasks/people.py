"""Tasks whose clients are people: writers, speaking roles, authors of messages, owners of phones."""

import functools
import itertools
import os
import pathlib

import numpy as np

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Federation, checks
from fedjax_opt.tasks.parts import (
    Arrays,
    Clients,
    Directory,
    by_client,
    gathered,
    without_clients,
)

_LONGEST = 70  # A message had at most 140 characters, so at most 70 tokens.


def activity(directory: Directory = None) -> Federation:
    """Six activities from 2.56 seconds of a smartphone's accelerometer and gyroscope, by user.

    The data and its clients are those of the reference; the rest is ours.

    Args:
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation` of 30 clients, a fifth of them in each round. The inputs `[128, 6]` are standardised
      with the training set's mean and deviation of each channel.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.activity()  # doctest: +SKIP

    Reference:
      Reyes-Ortiz, Oneto, Samà, Parra, Anguita. Transition-aware human activity recognition using
      smartphones. Neurocomputing 171, 2016.
    """
    train, test, names = fed.load("activity", directory)
    mean, std = (moment(train["x"], axis=(0, 1), dtype=np.float64) for moment in (np.mean, np.std))
    steps = fed.normalise(mean.tolist(), std.tolist()), fed.flatten()
    return Federation(
        models.preprocessed(models.mlp([128], num_classes=6), *steps),
        by_client(train, len(names)),
        cohort=6,
        local_steps=10,
        batch_size=32,
        test=without_clients(test),
    )


def plays(which: str = "plays", directory: Directory = None) -> Federation:
    """The next character in Shakespeare's plays, a client for each speaking role, and a GRU.

    The edition is not the paper's; it is cut into sequences that do not overlap, with a target at every
    character in place of one behind the last.

    Args:
      which: 'plays' for all 37 of them, or 'play' for Macbeth alone, which comes with the package.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Federation`: sequences of 80 characters, each of which predicts the next.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.plays("play")
      >>> federation.num_clients, federation.clients.examples["x"].shape[1]
      (39, 80)

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    checks.choice("which", which, ("plays", "play"))
    train, test, names = fed.load(which, directory)
    return Federation(
        models.gru(vocabulary=len(fed.text.CHARACTERS)),
        by_client(train, len(names)),
        cohort=7,
        local_steps=10,
        batch_size=32,
        test=without_clients(test),
    )


def shakespeare(
    folder: str | os.PathLike[str], local_steps: int = 10, stored: Directory = None
) -> Federation:
    """The character after eighty others in Shakespeare's plays, from LEAF's files, and a GRU.

    LEAF decides which roles there are; the paper has 660.

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.shakespeare("leaf/data/shakespeare/data")  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    home = pathlib.Path(folder)

    def roles(split: str) -> Clients:
        return fed.read_leaf(home / split, "shakespeare")

    clients, test = gathered(
        lambda: roles("train"), lambda names: roles("test"), stored, data="shakespeare"
    )
    return Federation(
        models.gru(vocabulary=len(fed.text.CHARACTERS)),
        clients,
        cohort=min(7, len(clients)),
        local_steps=local_steps,
        batch_size=32,
        test=test,
    )


def sent140(
    folder: str | os.PathLike[str],
    local_steps: int = 10,
    tokens: int = 5000,
    min_examples: int = 10,
    stored: Directory = None,
) -> Federation:
    """The sentiment of short messages from the words in them, by user, and a linear model.

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      tokens: how many of the most frequent tokens the model knows.
      min_examples: users with fewer messages are left out.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Federation`. Messages without a known token are left out, as in the paper; users are counted
      by their training messages that hold one.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.sent140("leaf/data/sent140/data")  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    home = pathlib.Path(folder)
    tokens = checks.integer("tokens", tokens, low=1)
    min_examples = checks.integer("min_examples", min_examples, low=1)

    @functools.cache
    def words() -> tuple[str, ...]:
        messages = fed.read_leaf(home / "train", "sent140")
        return fed.vocabulary((text for _, user in messages for text in user["x"]), tokens)

    def users(split: str) -> Clients:
        for name, examples in fed.read_leaf(home / split, "sent140"):
            ids = fed.token_ids(examples["x"], words(), max_tokens=_LONGEST)
            known = (ids >= 0).any(axis=1)
            if known.any():
                yield name, {"x": ids[known], "y": examples["y"][known]}

    clients, test = gathered(
        lambda: (user for user in users("train") if len(user[1]["y"]) >= min_examples),
        lambda names: (user for user in users("test") if user[0] in names),
        stored,
        data="sent140",
        tokens=tokens,
        min_examples=min_examples,
    )
    return Federation(
        models.bag_of_words(vocabulary=tokens, num_classes=2),
        clients,
        cohort=min(22, len(clients)),
        local_steps=local_steps,
        batch_size=8,
        test=test,
    )


def femnist(
    folder: str | os.PathLike[str], num_clients: int = 3000, stored: Directory = None
) -> Federation:
    """FEMNIST by writer, and a network of two hidden layers of 200 (decaying local steps).

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      num_clients: how many writers to keep, the first of them; 3,000 of about 3,550 in the paper,
        which does not say which.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.femnist("leaf/data/femnist/data")  # doctest: +SKIP

    Reference:
      Mills, Hu, Min. Faster federated learning with decaying number of local SGD steps. 2023.
    """
    clients, test = _leaf_images(folder, num_clients, stored)
    return Federation(
        models.dnn(num_classes=62),
        clients,
        cohort=min(60, len(clients)),
        local_steps=80,
        batch_size=32,
        test=test,
    )


def femnist_cnn(
    folder: str | os.PathLike[str],
    num_clients: int = 3000,
    local_steps: int = 10,
    stored: Directory = None,
) -> Federation:
    """FEMNIST by writer, and the CNN 32-64-512 (FedGBO).

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      num_clients: how many writers to keep, the first of them; 3,000 of about 3,550 in the paper,
        which does not say which.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Federation`.

    Example:
      >>> import fedjax_opt as fo
      >>> federation = fo.tasks.femnist_cnn("leaf/data/femnist/data")  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    clients, test = _leaf_images(folder, num_clients, stored)
    return Federation(
        models.cnn(num_classes=62),
        clients,
        cohort=min(30, len(clients)),
        local_steps=local_steps,
        batch_size=32,
        test=test,
    )


def _leaf_images(
    folder: str | os.PathLike[str], num_clients: int, stored: Directory
) -> tuple[fed.ClientData | fed.StoredClients, Arrays]:
    """The first writers' training images, and the test images of the same writers."""
    num_clients = checks.integer("num_clients", num_clients, low=1)
    home = pathlib.Path(folder)

    def train() -> Clients:
        return itertools.islice(fed.read_leaf(home / "train", "femnist"), num_clients)

    def test(names: set[str]) -> Clients:
        return (pair for pair in fed.read_leaf(home / "test", "femnist") if pair[0] in names)

    return gathered(train, test, stored, data="femnist", num_clients=num_clients)
