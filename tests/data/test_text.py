"""Text as ids: against slow, plain versions written from the descriptions, and hostile input."""

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_opt.data import text

KNOWN = st.text(st.sampled_from(text.CHARACTERS), max_size=60)
# Any code point at all, lone surrogates among them.
ANY = st.text(st.characters(exclude_categories=()), max_size=40)


def test_the_characters_are_those_of_the_shakespeare_task():
    """LEAF's 80 symbols without the newline, in the order of their code points; the space is 0."""
    symbols = string.ascii_letters + string.digits + " !\"&'(),-.:;>?[]}"
    assert "".join(sorted(symbols)) == text.CHARACTERS
    assert len(text.CHARACTERS) == 79 and text.CHARACTERS[0] == " "


@given(st.lists(KNOWN, max_size=5), st.integers(1, 30))
def test_sequences_predict_every_character_but_the_first(lines, length):
    x, y = text.characters(lines, length)
    joined = " ".join(" ".join(lines).split())
    assert x.dtype == np.uint8 and y.dtype == np.int32
    assert x.shape == y.shape == (int(np.ceil(max(len(joined) - 1, 0) / length)), length)
    assert "".join(text.character_text(y)) == joined[1:]
    assert "".join(text.character_text(x))[: len(joined) - 1] == joined[:-1]
    # Padding comes last, and a target is the next input.
    predicted = (y >= 0).ravel()
    assert predicted[: len(joined) - 1].all() and not predicted[len(joined) :].any()
    assert (x.ravel()[~predicted] == 0).all() and (y.ravel()[~predicted] == -1).all()
    following = predicted[:-1] & predicted[1:]
    np.testing.assert_array_equal(y.ravel()[:-1][following], x.ravel()[1:][following])


def test_a_string_is_one_line_and_white_space_is_one_space():
    one, many = text.characters("a \t\n b"), text.characters(iter(["a ", "", "\r\n", "b"]))
    for left, right in zip(one, many, strict=True):
        np.testing.assert_array_equal(left, right)
    assert one[0].shape == (1, 80)
    assert text.character_text(one[1]) == [" b"]


@pytest.mark.parametrize("lines", [[], [""], "", " \n ", "a", ["", "a", ""]])
def test_nothing_to_predict_gives_no_sequences(lines):
    x, y = text.characters(lines, 7)
    assert x.shape == y.shape == (0, 7)


@given(st.lists(ANY, max_size=6))
def test_any_text_has_one_known_id_per_character(texts):
    ids = text.character_ids(texts)
    assert ids.dtype == np.uint8
    assert ids.shape == (len(texts), max(map(len, texts), default=0))
    assert not ids.size or ids.max() < 79
    for row, read, line in zip(ids, text.character_text(ids), texts, strict=True):
        assert not row[len(line) :].any()
        for known, character in zip(read, line, strict=False):
            if character in text.CHARACTERS:
                assert known == character
            elif not character.isalpha():
                assert known in " '\"-"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Être né à l’aube", "Etre ne a l'aube"),
        ("“O—”", '"O-"'),
        ("a\x00b\x1fc\x7fd", "a b c d"),
        ("5 € ☃ 𝒳 \ud800 #", "5" + 10 * " "),
    ],
)
def test_unknown_characters(written, read):
    assert text.character_text(text.character_ids([written])) == [read]


def test_rows_of_a_given_length():
    ids = text.character_ids(["ab", ""], length=4)
    assert text.character_text(ids) == ["ab  ", "    "]
    with pytest.raises(ValueError, match=r"at most length = 2 .* but texts\[1\] has 3"):
        text.character_ids(["ab", "abc"], length=2)


WORDS = st.lists(st.sampled_from(["Ann", "ann", "Bob's", "c_1", "é", "xx"]), max_size=8)
SEPARATORS = st.sampled_from([" ", ", ", "--", "\n", " ' ", "!"])


@st.composite
def posts(draw):
    return [
        draw(SEPARATORS).join(words) for words in draw(st.lists(WORDS, min_size=1, max_size=6))
    ], draw(st.integers(1, 5))


@settings(max_examples=60)
@given(posts(), st.booleans(), st.one_of(st.none(), st.integers(1, 6)))
def test_a_bag_of_words_is_the_vector_of_its_tokens(drawn, distinct, max_tokens):
    texts, size = drawn
    known = {"ann", "bob's", "c_1", "é", "xx"}
    tokens = [
        [
            word
            for word in line.lower().replace("!", " ").replace("--", " ").replace(",", " ").split()
        ]
        for line in texts
    ]
    tokens = [[word for word in line if word in known] for line in tokens]
    counts = {word: sum(line.count(word) for line in tokens) for word in known}
    if not any(counts.values()):
        with pytest.raises(ValueError, match="at least one token, got none"):
            text.vocabulary(texts, size)
        return
    vocabulary = text.vocabulary(texts, size)
    expected = sorted((w for w in known if counts[w]), key=lambda w: (-counts[w], w))[:size]
    assert vocabulary == tuple(expected)
    ids = text.token_ids(texts, vocabulary, max_tokens, distinct)
    assert ids.dtype == np.int16
    assert max_tokens is None or ids.shape[1] == max_tokens
    for row, line in zip(ids, tokens, strict=True):
        want = [expected.index(word) for word in line if word in expected]
        want = list(dict.fromkeys(want)) if distinct else want
        np.testing.assert_array_equal(row[row >= 0], want[:max_tokens])
        assert (row[len(want) :] == -1).all()


def test_large_vocabularies_have_larger_ids():
    vocabulary = [f"w{i}" for i in range(32_768)]
    ids = text.token_ids(["w32767 w0"], vocabulary)
    assert ids.dtype == np.int32 and ids.tolist() == [[32767, 0]]
    assert text.token_ids(["w32766"], vocabulary[:-1]).tolist() == [[32766]]
    assert text.token_ids([], ["a"]).shape == (0, 1)


def test_an_apostrophe_is_one_however_it_is_set():
    assert text.vocabulary(["that's that’s 'that'"]) == ("that's", "that")


def test_arrays_of_strings_are_texts():
    for array in (np.array(["a b", "c"]), np.array(["a b", "c"], object)):
        assert text.vocabulary(array) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (text.vocabulary, (["a", None],), r"but texts\[1\] is None"),
        (text.vocabulary, ("ab",), "texts must be a sequence of strings, got 'ab'"),
        (text.vocabulary, ({"a", "b"},), "texts must be a sequence of strings, got {"),
        (text.vocabulary, (None,), "texts must be a sequence of strings, got None"),
        (text.vocabulary, (["a"], 0), "size must be a whole number of at least 1, got 0"),
        (text.vocabulary, (["?!", ""],), "texts must hold at least one token"),
        (text.token_ids, (["a", 1.5], ["a"]), r"but texts\[1\] is 1\.5"),
        (text.token_ids, (["a"], "abc"), "vocabulary must be a sequence of strings, got 'abc'"),
        (text.token_ids, (["a"], []), "one or more distinct tokens, got 0"),
        (text.token_ids, (["a"], ["b", "b"]), "got 2 of which 1 are distinct"),
        (text.token_ids, (["a"], ["b"], 0), "max_tokens must be .* at least 1, got 0"),
        (text.characters, ([b"a"],), r"but texts\[0\] is b'a'"),
        (text.characters, (None,), "texts must be a sequence of strings, got None"),
        (text.characters, ("a", 0), "length must be a whole number of at least 1, got 0"),
        (text.character_ids, ([np.nan],), r"but texts\[0\] is nan"),
        (text.character_text, ([[0.5]],), r"ids must be integers \[n, L\], got float64\[1, 1\]"),
        (text.character_text, ([0],), r"ids must be integers \[n, L\], got int64\[1\]"),
        (text.character_text, ([[79]],), r"ids must lie in \[-1, 78\], got 79 to 79"),
    ],
)
def test_refused(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
