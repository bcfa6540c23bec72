"""Text as small integers: words of a vocabulary for a bag of words, characters for a language model.

The characters are those of LEAF's Shakespeare task: its alphabet has 80 symbols, of which the newline
never occurs once lines are joined by spaces. The 79 that remain are the vocabulary of FedGBO's model.

Reference:
  Caldas et al. LEAF: a benchmark for federated settings. 2018.
  Mills et al. Accelerating federated learning with a global biased optimiser. 2022, section 5 (5,000
  tokens for Sent140).
"""

import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

import chex
import numpy as np

from fedjax_opt.core import checks

#: The 79 symbols of the Shakespeare task in order of their ids; the space is 0.
CHARACTERS = " !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_TOKEN = re.compile(r"\w+(?:'\w+)*")
_PUNCTUATION = {"‘": "'", "’": "'", "`": "'", "“": '"', "”": '"', "–": "-", "—": "-"}


def vocabulary(texts: Iterable[str], size: int = 5000) -> tuple[str, ...]:
    """Finds the most frequent tokens of some texts.

    A token is a run of letters, digits and underscores in lower case; an apostrophe between two such
    runs joins them, so `don't` is one token. All else separates tokens.

    Args:
      texts: The texts, such as those of all training clients.
      size: How many tokens to keep at most.

    Returns:
      The tokens, the most frequent first, those of equal frequency in the order of the alphabet. There
      are fewer than `size` if the texts have fewer.

    Example:
      >>> vocabulary(["To be, or not to be:", "that's the question!"], size=4)
      ('be', 'to', 'not', 'or')
    """
    checks.integer("size", size, low=1)
    counts = collections.Counter()
    for text in _texts(texts):
        counts.update(_tokens(text))
    if not counts:
        raise ValueError("texts must hold at least one token, got none.")
    return tuple(sorted(counts, key=lambda token: (-counts[token], token))[:size])


def token_ids(
    texts: Iterable[str],
    vocabulary: Sequence[str],
    max_tokens: int | None = None,
    distinct: bool = True,
) -> chex.ArrayNumpy:
    """Writes each text as the ids of its tokens: a bag of words without its zeros.

    Tokens that are not in the vocabulary are left out. With distinct tokens, the ones of the multi-hot
    vector of a text are at its ids; otherwise each token counts as often as it occurs. The FedGBO paper
    describes the first (presence), its published program computes the second (frequencies), and both
    drop texts without a known token: those rows are -1 throughout.

    Args:
      texts: The texts, `n` of them.
      vocabulary: The tokens; the id of a token is its place.
      max_tokens: The length of a row, `L`. A longer text keeps its first `L` ids. None: that of the
        longest text, at least 1.
      distinct: Whether a token counts once per text.

    Returns:
      Ids in the order of the text, `[n, L]`, padded with -1; int16, or int32 if the vocabulary has more
      than 32,767 tokens.

    Example:
      >>> token_ids(["Not to be, not!", "Alas..."], ("be", "to", "not"))
      array([[ 2,  1,  0],
             [-1, -1, -1]], dtype=int16)
    """
    tokens = list(_texts(vocabulary, "vocabulary"))
    places = {token: place for place, token in enumerate(tokens)}
    if not places or len(places) < len(tokens):
        raise ValueError(
            f"vocabulary must hold one or more distinct tokens, got {len(tokens)} of which"
            f" {len(places)} are distinct."
        )
    if max_tokens is not None:
        checks.integer("max_tokens", max_tokens, low=1)
    rows = []
    for text in _texts(texts):
        ids = [places[token] for token in _tokens(text) if token in places]
        rows.append((list(dict.fromkeys(ids)) if distinct else ids)[:max_tokens])
    width = max_tokens or max(map(len, rows), default=1) or 1
    dtype = np.int16 if len(places) <= np.iinfo(np.int16).max else np.int32
    flat = np.fromiter(itertools.chain.from_iterable(rows), dtype)
    return _padded(flat, [len(row) for row in rows], width, -1)


def characters(
    texts: str | Iterable[str], length: int = 80
) -> tuple[chex.ArrayNumpy, chex.ArrayNumpy]:
    """Cuts a client's lines into sequences of characters, each with the character that follows.

    The lines are joined by spaces, and every run of white space becomes one space. A text of `m`
    characters has `m - 1` characters to predict, so it gives `(m - 1) / length` sequences, rounded up:
    none if it has fewer than two characters. They do not overlap, each begins where the targets of the
    one before ended, and only the last is padded.

    Characters outside `CHARACTERS` are written as accented letters without their accents, and
    typographic quotes and dashes as the plain ones; any other is written as a space.

    Args:
      texts: The lines of one client, in order, or one string.
      length: The length of a sequence, `L`.

    Returns:
      `(x, y)`: inputs, uint8 `[n, L]`, padded with the space (0), and targets, int32 `[n, L]`, padded
      with -1. Both are places in `CHARACTERS`.

    Example:
      >>> x, y = characters(["Alas,", "poor Yorick!"], length=10)
      >>> character_text(x), character_text(y)
      (['Alas, poor', ' Yorick   '], ['las, poor ', 'Yorick!'])
    """
    checks.integer("length", length, low=1)
    lines = [texts] if isinstance(texts, str) else _texts(texts)
    ids = _ids(" ".join(" ".join(lines).split()))
    count = max(len(ids) - 1, 0)
    shape = (-(-count // length), length)
    x = np.zeros(shape[0] * length, np.uint8)
    y = np.full(shape[0] * length, -1, np.int32)
    x[:count] = ids[:-1]
    y[:count] = ids[1:]
    return x.reshape(shape), y.reshape(shape)


def character_ids(texts: Iterable[str], length: int | None = None) -> chex.ArrayNumpy:
    """Writes each text as the places of its characters in `CHARACTERS`, one text a row.

    This is for texts that are cut already, such as the windows of 80 characters, and the one character
    to predict, in LEAF's files. Other characters are written as `characters` does.

    Args:
      texts: The texts, `n` of them, each of at most `length` characters.
      length: The length of a row, `L`. None: that of the longest text.

    Returns:
      uint8 `[n, L]`, padded with the space (0) at the end.

    Example:
      >>> character_ids(["be", "é", "?!"])
      array([[53, 56],
             [56,  0],
             [23,  1]], dtype=uint8)
    """
    rows = list(_texts(texts))
    lengths = [len(row) for row in rows]
    width = max(lengths, default=0)
    if length is not None:
        if width > checks.integer("length", length, low=1):
            raise ValueError(
                f"texts must have at most length = {length} characters each, but"
                f" texts[{lengths.index(width)}] has {width}."
            )
        width = length
    return _padded(_ids("".join(rows)), lengths, width, 0)


def character_text(ids: Sequence[Sequence[int]] | chex.ArrayNumpy) -> list[str]:
    """Reads rows of character ids back as text.

    Args:
      ids: Places in `CHARACTERS`, integers `[n, L]`; -1, the padding of targets, is left out.

    Returns:
      One string a row. The padding of inputs, being the space, stays.

    Example:
      >>> character_text([[53, 56, -1]])
      ['be']
    """
    array = np.asarray(ids)
    if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"ids must be integers [n, L], got {array.dtype}{list(array.shape)}.")
    if array.size and (array.min() < -1 or array.max() >= len(CHARACTERS)):
        raise ValueError(
            f"ids must lie in [-1, {len(CHARACTERS) - 1}], got {array.min()} to {array.max()}."
        )
    symbols = np.array([*CHARACTERS, ""])  # -1 is the last, which is no character
    return ["".join(row) for row in symbols[array].tolist()]


def _padded(flat: chex.ArrayNumpy, lengths: list[int], width: int, padding: int) -> chex.ArrayNumpy:
    """Rows of these lengths out of one vector, each padded at its end."""
    padded = np.full((len(lengths), width), padding, flat.dtype)
    padded[np.arange(width) < np.array(lengths, int)[:, None]] = flat
    return padded


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.lower().replace("’", "'"))


def _texts(texts: Iterable[str], name: str = "texts") -> Iterable[str]:
    """The texts one by one, each seen to be one."""
    # A set has another order in each process; a string would be read as a sequence of letters.
    if isinstance(texts, (str, bytes, set, frozenset)) or not isinstance(texts, Iterable):
        raise ValueError(f"{name} must be a sequence of strings, got {texts!r:.60}.")
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"{name} must be a sequence of strings, but {name}[{i}] is {text!r:.60}."
            )
        yield text


def _ids(text: str) -> chex.ArrayNumpy:
    """The places of the characters of a text in `CHARACTERS`: one look-up for each code point."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    table = _table()
    return table[np.minimum(points, len(table) - 1)]


@functools.cache
def _table() -> chex.ArrayNumpy:
    """The id of each code point up to the last that is not read as a space, and one more."""
    places = {character: place for place, character in enumerate(CHARACTERS)}
    table = np.zeros(max(map(ord, _PUNCTUATION)) + 2, np.uint8)
    for point in range(0x250):  # as far as Latin letters with accents go
        character = chr(point)
        plain = unicodedata.normalize("NFKD", character)[0] if character.isalpha() else character
        table[point] = places.get(plain, 0)
    for character, plain in _PUNCTUATION.items():
        table[ord(character)] = places[plain]
    return table
