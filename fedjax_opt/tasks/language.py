"""Characters of plays, and the sentiment of short messages."""

import functools
import os
import pathlib

from fedjax_opt import data as fed
from fedjax_opt import models
from fedjax_opt.core import checks
from fedjax_opt.tasks.parts import (
    FEDGBO,
    Clients,
    Directory,
    by_client,
    gathered,
    three,
    without_clients,
)
from fedjax_opt.tasks.task import Task
from fedjax_opt.tasks.tuned import tuned


def plays(which: str = "plays", directory: Directory = None) -> Task:
    """The next character in Shakespeare's plays, a client for each speaking role, and a GRU.

    Args:
      which: 'plays' for all 37 of them, or 'play' for Macbeth alone, which comes with the package.
      directory: where data sets are kept; see `fo.data.load`.

    Returns:
      A `Task`: sequences of 80 characters, each of which predicts the next.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.plays("play")
      >>> task.data.num_clients, task.data.examples["x"].shape[1]
      (39, 80)

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    checks.choice("which", which, ("plays", "play"))
    train, test, names = fed.load(which, directory)
    return Task(
        name="plays",
        paper=f"{FEDGBO} Its task 'Shakespeare'.",
        differs=(
            "Another edition, cut into sequences that do not overlap, with a target at every character"
            " in place of one behind the last."
        ),
        data=by_client(train, len(names)),
        test=without_clients(test),
        model=models.gru(vocabulary=len(fed.text.CHARACTERS)),
        rounds=1000,
        settings={"cohort_size": 7, "batch_size": 32, "local_steps": 10},
        algorithms=three(1.0, 3.0, 1.0),
    )


def shakespeare(
    folder: str | os.PathLike[str], local_steps: int = 10, stored: Directory = None
) -> Task:
    """The character after eighty others in Shakespeare's plays, from LEAF's files, and a GRU.

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Task`.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.shakespeare("leaf/data/shakespeare/data")  # doctest: +SKIP

    Reference:
      Mills et al. Accelerating federated learning with a global biased optimiser. 2023.
    """
    home = pathlib.Path(folder)

    def clients(split: str) -> Clients:
        return fed.read_leaf(home / split, "shakespeare")

    data, test = gathered(
        lambda: clients("train"), lambda names: clients("test"), stored, data="shakespeare"
    )
    return Task(
        name="shakespeare",
        paper=FEDGBO,
        differs="LEAF decides which roles there are; the paper has 660.",
        data=data,
        test=test,
        model=models.gru(vocabulary=len(fed.text.CHARACTERS)),
        rounds=5000,
        settings={"cohort_size": min(7, len(data)), "batch_size": 32, "local_steps": local_steps},
        algorithms=tuned("shakespeare", local_steps),
    )


def sent140(
    folder: str | os.PathLike[str],
    local_steps: int = 10,
    tokens: int = 5000,
    min_examples: int = 10,
    stored: Directory = None,
) -> Task:
    """The sentiment of short messages from the words in them, by user, and a linear model.

    Args:
      folder: LEAF's data, with the directories `train` and `test`.
      local_steps: K, 10 or 50: for these the paper gives tuned hyperparameters.
      tokens: how many of the most frequent tokens the model knows.
      min_examples: users with fewer messages are left out.
      stored: a directory to keep the clients in, and to open them from the next time: they are then
        memory-mapped, and `folder` is not read again. None: they are read into memory.

    Returns:
      A `Task`. Messages without a known token are left out, as in the paper.

    Example:
      >>> import fedjax_opt as fo
      >>> task = fo.tasks.sent140("leaf/data/sent140/data")  # doctest: +SKIP

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

    data, test = gathered(
        lambda: (user for user in users("train") if len(user[1]["y"]) >= min_examples),
        lambda names: (user for user in users("test") if user[0] in names),
        stored,
        data="sent140",
        tokens=tokens,
        min_examples=min_examples,
    )
    return Task(
        name="sent140",
        paper=FEDGBO,
        differs="Users are counted by their training messages that hold a known token.",
        data=data,
        test=test,
        model=models.bag_of_words(vocabulary=tokens, num_classes=2),
        rounds=5000,
        settings={"cohort_size": min(22, len(data)), "batch_size": 8, "local_steps": local_steps},
        algorithms=tuned("sent140", local_steps),
    )


_LONGEST = 70  # A message had at most 140 characters, so at most 70 tokens.
