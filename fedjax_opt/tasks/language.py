"""Characters of plays, and the sentiment of short messages."""

import functools
import os
import pathlib

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import Federation, checks
from fedjax_opt.tasks.parts import (
    Clients,
    Directory,
    by_client,
    gathered,
    without_clients,
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


_LONGEST = 70  # A message had at most 140 characters, so at most 70 tokens.
